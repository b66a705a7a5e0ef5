package etl_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/onceload/onceload/pkg/etl"
)

func at(t testing.TB, s string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

const day = 24 * time.Hour

func TestSlotAndWindow(t *testing.T) { // R12, R13, R26
	tests := []struct {
		name       string
		every      time.Duration
		lag        time.Duration
		lookback   time.Duration
		scheduled  string
		slot       string
		start, end string
	}{
		{"hour, on time", time.Hour, 5 * time.Minute, 0, "2026-11-30T11:05:00Z", "2026-11-30T10:00:00Z", "2026-11-30T10:00:00Z", "2026-11-30T11:00:00Z"},
		{"hour, a minute early: the window has not closed", time.Hour, 5 * time.Minute, 0, "2026-11-30T11:04:00Z", "2026-11-30T09:00:00Z", "2026-11-30T09:00:00Z", "2026-11-30T10:00:00Z"},
		{"hour, late within the next slot", time.Hour, 5 * time.Minute, 0, "2026-11-30T12:04:59Z", "2026-11-30T10:00:00Z", "2026-11-30T10:00:00Z", "2026-11-30T11:00:00Z"},
		{"hour, no lag, on the hour", time.Hour, 0, 0, "2026-11-30T11:00:00Z", "2026-11-30T10:00:00Z", "2026-11-30T10:00:00Z", "2026-11-30T11:00:00Z"},
		{"seconds and fractions do not matter", time.Hour, 0, 0, "2026-11-30T11:00:00.999Z", "2026-11-30T10:00:00Z", "2026-11-30T10:00:00Z", "2026-11-30T11:00:00Z"},
		{"another zone is the same instant", time.Hour, 0, 0, "2026-11-30T13:00:00+02:00", "2026-11-30T10:00:00Z", "2026-11-30T10:00:00Z", "2026-11-30T11:00:00Z"},
		{"lookback widens backwards only", time.Hour, 5 * time.Minute, 2 * time.Hour, "2026-11-30T11:05:00Z", "2026-11-30T10:00:00Z", "2026-11-30T08:00:00Z", "2026-11-30T11:00:00Z"},
		{"a lag longer than a slot", 15 * time.Minute, 90 * time.Minute, 0, "2026-11-30T11:30:00Z", "2026-11-30T09:45:00Z", "2026-11-30T09:45:00Z", "2026-11-30T10:00:00Z"},
		{"day over a leap day", day, time.Hour, 0, "2028-03-01T01:00:00Z", "2028-02-29T00:00:00Z", "2028-02-29T00:00:00Z", "2028-03-01T00:00:00Z"},
		{"hour over the year's end", time.Hour, 5 * time.Minute, 0, "2027-01-01T00:05:00Z", "2026-12-31T23:00:00Z", "2026-12-31T23:00:00Z", "2027-01-01T00:00:00Z"},
		{"day over the year's end", day, 5 * time.Minute, 0, "2027-01-01T00:05:00Z", "2026-12-31T00:00:00Z", "2026-12-31T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"the hour that clocks in Europe skip", time.Hour, 0, 0, "2026-03-29T02:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"},
		{"week, fired on Monday", 7 * day, 0, 0, "2026-11-30T00:00:00Z", "2026-11-23T00:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"},
		{"week, fired on Sunday night", 7 * day, 0, 0, "2026-11-29T23:59:00Z", "2026-11-16T00:00:00Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"},
		{"week, a lag over midnight", 7 * day, time.Hour, 0, "2026-11-30T00:59:00Z", "2026-11-16T00:00:00Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"},
		{"week over the year's end", 7 * day, 0, day, "2026-01-05T00:00:00Z", "2025-12-29T00:00:00Z", "2025-12-28T00:00:00Z", "2026-01-05T00:00:00Z"},
		{"week, the first Monday of 1970", 7 * day, 0, 0, "1970-01-12T00:00:00Z", "1970-01-05T00:00:00Z", "1970-01-05T00:00:00Z", "1970-01-12T00:00:00Z"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := etl.Schedule{Every: tt.every, Lag: tt.lag, Lookback: tt.lookback}
			slot := s.Slot(at(t, tt.scheduled))
			if !slot.Equal(at(t, tt.slot)) || slot.Location() != time.UTC {
				t.Errorf("slot %s, want %s", slot, tt.slot)
			}
			want := etl.Window{Start: at(t, tt.start), End: at(t, tt.end)}
			if w := s.Window(slot); !w.Equal(want) {
				t.Errorf("window %s, want %s", w, want)
			}
			if err := s.CheckSlot(slot); err != nil {
				t.Error(err)
			}
			if tt.every == 7*day && slot.Weekday() != time.Monday {
				t.Errorf("the week begins on a %s", slot.Weekday())
			}
		})
	}
}

func TestFloorBefore1970(t *testing.T) {
	s := etl.Schedule{Every: 7 * day}
	if f := s.Floor(at(t, "1969-12-31T23:59:59Z")); !f.Equal(at(t, "1969-12-29T00:00:00Z")) {
		t.Errorf("%s, want the Monday before", f)
	}
}

var everyLength = []string{"1m", "2m", "3m", "4m", "5m", "6m", "10m", "12m", "15m", "20m", "30m", "1h", "2h", "3h", "4h", "6h", "8h", "12h", "1d", "7d"}

// TestSlotProperties: consecutive slots touch without gap or overlap, and every firing within a slot's interval after the
// lag finds the same slot.
func TestSlotProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		every, err := etl.ParseEvery(rapid.SampledFrom(everyLength).Draw(t, "every"))
		if err != nil {
			t.Fatal(err)
		}
		s := etl.Schedule{Every: every, Lag: time.Duration(rapid.IntRange(0, 20_000).Draw(t, "lag")) * time.Minute}
		now := time.Unix(rapid.Int64Range(0, 253_000_000_000).Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanos"))
		slot := s.Slot(now)
		w := s.Window(slot)
		if !s.Slot(w.End.Add(s.Lag)).Equal(slot) {
			t.Errorf("the first firing after %s finds %s", w, s.Slot(w.End.Add(s.Lag)))
		}
		if !s.Slot(w.End.Add(s.Lag + s.Every - 1)).Equal(slot) {
			t.Errorf("the last instant that closes %s finds another slot", w)
		}
		if next := s.Slot(now.Add(every)); !next.Equal(w.End) {
			t.Errorf("after %s comes %s", w, next)
		}
		if closed := now.Add(-s.Lag); w.End.After(closed) || !w.End.Add(every).After(closed) {
			t.Errorf("%s is not the last window that closed before %s", w, closed)
		}
		if !s.Floor(slot).Equal(slot) {
			t.Errorf("floor of slot %s is %s", slot, s.Floor(slot))
		}
	})
}

func TestParseEvery(t *testing.T) {
	for _, text := range everyLength {
		d, err := etl.ParseEvery(text)
		if err != nil || etl.FormatSpan(d) != text {
			t.Errorf("%s: %v %v, written %s", text, d, err, etl.FormatSpan(d))
		}
	}
	for text, want := range map[string]time.Duration{"60m": time.Hour, "24h": day, "168h": 7 * day} {
		if d, err := etl.ParseEvery(text); err != nil || d != want {
			t.Errorf("%s: %v %v, want %v", text, d, err, want)
		}
	}
	for _, text := range []string{"", "0", "0s", "0d", "1", "h", "-1h", "30s", "90s", "7m", "45m", "90m", "5h", "7h", "36h", "2d", "14d", "1w", "1.5d", "+1d", "1d1h", "9999999999d", "1h "} {
		if d, err := etl.ParseEvery(text); err == nil {
			t.Errorf("%q is taken for %v", text, d)
		}
	}
}

func TestParseLag(t *testing.T) {
	for text, want := range map[string]time.Duration{"0s": 0, "60s": time.Minute, "5m": 5 * time.Minute, "1h30m": 90 * time.Minute, "3d": 3 * day} {
		if d, err := etl.ParseLag(text); err != nil || d != want {
			t.Errorf("%s: %v %v, want %v", text, d, err, want)
		}
	}
	for _, text := range []string{"", "5", "1s", "90s", "1ms", "-5m", "x"} {
		if d, err := etl.ParseLag(text); err == nil {
			t.Errorf("%q is taken for %v", text, d)
		}
	}
}

func TestFormatSpan(t *testing.T) {
	for want, d := range map[string]time.Duration{"0s": 0, "90s": 90 * time.Second, "1m": time.Minute, "90m": 90 * time.Minute,
		"25h": 25 * time.Hour, "2d": 2 * day, "1.5s": 1500 * time.Millisecond} {
		if got := etl.FormatSpan(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestBatchID(t *testing.T) { // R12
	b := etl.Batch{Pipeline: "orders", Slot: at(t, "2026-11-30T12:00:00+02:00")}
	if b.String() != "orders/20261130T100000Z" || b.SlotID() != "20261130T100000Z" {
		t.Errorf("%s %s", b, b.SlotID())
	}
	for _, id := range []string{"", "orders", "orders/", "/20261130T100000Z", "Orders/20261130T100000Z", "orders/20261130T100000",
		"orders/20261330T100000Z", "orders/2026-11-30T10:00:00Z", "orders/20261130T100000.5Z", "orders/20261130T100000Z/", "orders/20261130T250000Z"} {
		if b, err := etl.ParseBatch(id); err == nil || etl.KindOf(err) != etl.Usage {
			t.Errorf("%q: %v %v, want an error of kind Usage", id, b, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		b := drawBatch(t)
		back, err := etl.ParseBatch(b.String())
		if err != nil || back.Pipeline != b.Pipeline || !back.Slot.Equal(b.Slot) {
			t.Errorf("%s comes back as %+v, %v", b, back, err)
		}
	})
}

func TestValidPipeline(t *testing.T) {
	for name, want := range map[string]bool{"a": true, "orders": true, "a-b_c9": true, strings.Repeat("a", 63): true,
		"": false, strings.Repeat("a", 64): false, "9a": false, "-a": false, "_a": false, "A": false, "a.b": false, "a/b": false,
		"a b": false, "ñ": false, "a\n": false, "..": false} {
		if got := etl.ValidPipeline(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

func TestCheckSlot(t *testing.T) {
	hour := etl.Schedule{Every: time.Hour}
	for _, tt := range []struct {
		slot string
		s    etl.Schedule
		ok   bool
	}{
		{"2026-11-30T10:00:00Z", hour, true},
		{"2026-11-30T10:00:01Z", hour, false},
		{"2026-11-30T10:30:00Z", hour, false},
		{"2026-11-30T10:00:00.5Z", hour, false},
		{"2026-11-30T00:00:00Z", etl.Schedule{Every: 7 * day}, true},
		{"2026-12-01T00:00:00Z", etl.Schedule{Every: 7 * day}, false},
		{"1970-01-01T00:00:00Z", hour, true},
		{"1969-12-31T23:00:00Z", hour, false},
		{"9999-12-31T22:00:00Z", hour, true},
		{"9999-12-31T23:00:00Z", hour, false}, // its window ends in a year that JSON cannot write
	} {
		err := tt.s.CheckSlot(at(t, tt.slot))
		if (err == nil) != tt.ok || err != nil && etl.KindOf(err) != etl.Usage {
			t.Errorf("%s by %s: %v", tt.slot, etl.FormatSpan(tt.s.Every), err)
		}
	}
}

func TestRequestBatch(t *testing.T) { // R26
	hour := etl.Schedule{Every: time.Hour, Lag: 5 * time.Minute}
	const id = "orders/20261130T100000Z"
	for _, tt := range []struct {
		name string
		r    etl.Request
		want string // "" = an error of kind Usage
	}{
		{"scheduled", etl.Request{Pipeline: "orders", ScheduledTime: "2026-11-30T11:05:00Z"}, id},
		{"scheduled, in the scheduler's other zone", etl.Request{Pipeline: "orders", ScheduledTime: "2026-11-30T12:05:00+01:00"}, id},
		{"slot", etl.Request{Pipeline: "orders", Slot: "2026-11-30T10:00:00Z"}, id},
		{"slot as in keys", etl.Request{Pipeline: "orders", Slot: "20261130T100000Z"}, id},
		{"slot to the minute", etl.Request{Pipeline: "orders", Slot: "2026-11-30T10:00Z"}, id},
		{"slot that is a date", etl.Request{Pipeline: "orders", Slot: "2026-11-30"}, "orders/20261130T000000Z"},
		{"with one flag", etl.Request{Pipeline: "orders", Slot: "2026-11-30T10:00:00Z", Reload: true}, id},
		{"neither", etl.Request{Pipeline: "orders"}, ""},
		{"both", etl.Request{Pipeline: "orders", Slot: "2026-11-30", ScheduledTime: "2026-11-30T11:05:00Z"}, ""},
		{"no pipeline", etl.Request{Slot: "2026-11-30"}, ""},
		{"a pipeline that is a path", etl.Request{Pipeline: "../x", Slot: "2026-11-30"}, ""},
		{"no slot of the schedule", etl.Request{Pipeline: "orders", Slot: "2026-11-30T10:01:00Z"}, ""},
		{"no time", etl.Request{Pipeline: "orders", Slot: "yesterday"}, ""},
		{"no time to schedule", etl.Request{Pipeline: "orders", ScheduledTime: "<aws.scheduler.scheduled-time>"}, ""},
		{"scheduled before there were slots", etl.Request{Pipeline: "orders", ScheduledTime: "0000-01-01T00:00:00Z"}, ""},
		{"reload and refetch", etl.Request{Pipeline: "orders", Slot: "2026-11-30", Reload: true, Refetch: true}, ""},
		{"reload and reprocess", etl.Request{Pipeline: "orders", Slot: "2026-11-30", Reload: true, Reprocess: true}, ""},
		{"reprocess and refetch", etl.Request{Pipeline: "orders", Slot: "2026-11-30", Reprocess: true, Refetch: true}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := tt.r.Batch(hour)
			switch {
			case tt.want == "" && (err == nil || etl.KindOf(err) != etl.Usage):
				t.Errorf("%v, %v: want an error of kind Usage", b, err)
			case tt.want != "" && (err != nil || b.String() != tt.want):
				t.Errorf("%v, %v: want %s", b, err, tt.want)
			}
		})
	}
}

func TestRanges(t *testing.T) {
	for _, n := range []int{-1, 0, 1, 2, 199, 200, 201, 399, 400, 5_003, etl.MaxParts} {
		rs := etl.Ranges(n)
		if rs == nil || len(rs) > etl.MaxRanges || len(rs) != min(max(n, 0), etl.MaxRanges) {
			t.Errorf("%d parts: %d ranges", n, len(rs))
		}
		next, short, long := 0, n, 0
		for _, r := range rs {
			if r.First != next || r.Last < r.First {
				t.Errorf("%d parts: range %+v after part %d", n, r, next-1)
			}
			next = r.Last + 1
			short, long = min(short, r.Last-r.First+1), max(long, r.Last-r.First+1)
		}
		if next != max(n, 0) || long-short > 1 {
			t.Errorf("%d parts: up to %d, of %d to %d parts", n, next, short, long)
		}
	}
}
