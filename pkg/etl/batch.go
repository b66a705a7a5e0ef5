package etl

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// slotLayout writes a slot inside ids and keys: no colon, so that the text is legal in S3 keys and file names.
const slotLayout = "20060102T150405Z"

// pipelineName bounds what may stand in a key, a table name and a state machine name.
var pipelineName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)

// ValidPipeline reports whether name may name a pipeline: a lower-case letter, then up to 62 of a-z 0-9 _ -.
func ValidPipeline(name string) bool { return pipelineName.MatchString(name) }

// Batch is one pipeline's run for one slot. It is the stable key of R12: every retry, redrive and reprocess of the same
// slot has the same Batch.
type Batch struct {
	Pipeline string
	Slot     time.Time // UTC start of the interval, whole seconds
}

// String is the batch id, `orders/20261130T100000Z`, also the ledger's partition key.
func (b Batch) String() string { return b.Pipeline + "/" + b.SlotID() }

// SlotID is the slot as it stands in keys, `20261130T100000Z`.
func (b Batch) SlotID() string { return b.Slot.UTC().Format(slotLayout) }

// ParseBatch reads what [Batch.String] writes.
func ParseBatch(id string) (Batch, error) {
	name, slot, ok := strings.Cut(id, "/")
	if !ok {
		return Batch{}, Errorf(Usage, "batch id %q: want <pipeline>/<slot>, like orders/20261130T100000Z", id)
	}
	if !ValidPipeline(name) {
		return Batch{}, Errorf(Usage, "batch id %q: %q is not a pipeline name", id, name)
	}
	t, err := parseSlotID(slot)
	if err != nil {
		return Batch{}, Errorf(Usage, "batch id %q: %w", id, err)
	}
	return Batch{Pipeline: name, Slot: t}, nil
}

func parseSlotID(s string) (time.Time, error) {
	t, err := time.Parse(slotLayout, s)
	if err != nil || t.Format(slotLayout) != s {
		return time.Time{}, fmt.Errorf("slot %q: want YYYYMMDDTHHMMSSZ", s)
	}
	return t, nil
}

// Window is the half-open stretch of time [Start, End) that an extraction asks the source for.
type Window struct {
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
}

// Equal reports whether both ends are the same instants.
func (w Window) Equal(o Window) bool { return w.Start.Equal(o.Start) && w.End.Equal(o.End) }

func (w Window) String() string {
	return "[" + w.Start.UTC().Format(time.RFC3339) + ", " + w.End.UTC().Format(time.RFC3339) + ")"
}

// Schedule is when a pipeline runs and what each slot covers.
type Schedule struct {
	Every    time.Duration // one of the lengths ParseEvery accepts
	Lag      time.Duration // how long after a window closed the schedule fires
	Lookback time.Duration // how far the window reaches back before its slot
}

const day = 24 * time.Hour

// weekOffset moves the floor of a 7-day interval from Thursday 1970-01-01 to the Monday after it.
const weekOffset = 4 * day

// ParseEvery reads the length of a slot: whole minutes that divide an hour (`15m`), whole hours that divide a day
// (`6h`), `1d` or `7d`.
func ParseEvery(s string) (time.Duration, error) {
	d, err := parseSpan(s)
	if err != nil {
		return 0, err
	}
	switch {
	case d == 7*day, d == day:
		return d, nil
	case d >= time.Hour && d < day && d%time.Hour == 0 && day%d == 0:
		return d, nil
	case d >= time.Minute && d < time.Hour && d%time.Minute == 0 && time.Hour%d == 0:
		return d, nil
	}
	return 0, fmt.Errorf("%q is not a slot length: want minutes that divide an hour (1m 2m 3m 4m 5m 6m 10m 12m 15m 20m 30m), hours that divide a day (1h 2h 3h 4h 6h 8h 12h), 1d or 7d", s)
}

// ParseLag reads a lag or lookback: whole minutes, written with the units s, m, h and d.
func ParseLag(s string) (time.Duration, error) {
	d, err := parseSpan(s)
	if err != nil {
		return 0, err
	}
	if d%time.Minute != 0 {
		return 0, fmt.Errorf("%q is not whole minutes", s)
	}
	return d, nil
}

// parseSpan is time.ParseDuration with days (`7d`), without signs and fractions of a nanosecond.
func parseSpan(s string) (time.Duration, error) {
	if n, ok := strings.CutSuffix(s, "d"); ok {
		days, err := strconv.ParseUint(n, 10, 16)
		if err != nil || days > 3660 {
			return 0, fmt.Errorf("%q is not a number of days", s)
		}
		return time.Duration(days) * day, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration like 90s, 15m, 1h or 7d", s)
	}
	return d, nil
}

// Slot is the slot that a firing at the scheduled time closes: floor(scheduled − lag, every) − every. With the current
// time it is the last closed window's slot.
func (s Schedule) Slot(scheduled time.Time) time.Time {
	return s.Floor(scheduled.Add(-s.Lag)).Add(-s.Every)
}

// Floor is the start of the interval that holds t, counted from 1970-01-01T00:00Z, for 7 days from a Monday.
func (s Schedule) Floor(t time.Time) time.Time {
	off := time.Duration(0)
	if s.Every == 7*day {
		off = weekOffset
	}
	every := int64(s.Every / time.Second)
	sec := t.Unix() - int64(off/time.Second)
	rem := sec % every
	if rem < 0 {
		rem += every
	}
	return time.Unix(sec-rem+int64(off/time.Second), 0).UTC()
}

// Window is what a batch of that slot asks for: [slot − lookback, slot + every).
func (s Schedule) Window(slot time.Time) Window {
	return Window{Start: slot.Add(-s.Lookback).UTC(), End: slot.Add(s.Every).UTC()}
}

// CheckSlot says why t cannot be a slot, or nil.
func (s Schedule) CheckSlot(t time.Time) error {
	if f := s.Floor(t); !f.Equal(t) {
		return Errorf(Usage, "slot %s does not begin an interval of %s: the one that holds it begins at %s",
			FormatTime(t), FormatSpan(s.Every), f.Format(time.RFC3339))
	}
	if w := (Window{Start: t, End: t.Add(s.Every)}); w.Start.UTC().Year() < 1970 || w.End.UTC().Year() > 9999 {
		return Errorf(Usage, "slot %s: it must lie in the years 1970 to 9999, its end included", t.UTC().Format(time.RFC3339))
	}
	return nil
}

// CheckClosed says that the slot's window is still open now, or nil. A batch of an open window would complete without the
// records that are still to come.
func (s Schedule) CheckClosed(slot, now time.Time) error {
	if end := s.Window(slot).End; now.Before(end) {
		return Errorf(Usage, "slot %s is not over: its window closes at %s", slot.UTC().Format(time.RFC3339), end.Format(time.RFC3339))
	}
	return nil
}

// FormatSpan writes a duration as pipeline files do: `7d`, `1h`, `90s`.
func FormatSpan(d time.Duration) string {
	switch {
	case d > 0 && d%day == 0:
		return strconv.FormatInt(int64(d/day), 10) + "d"
	case d > 0 && d%time.Hour == 0:
		return strconv.FormatInt(int64(d/time.Hour), 10) + "h"
	case d > 0 && d%time.Minute == 0:
		return strconv.FormatInt(int64(d/time.Minute), 10) + "m"
	case d%time.Second == 0:
		return strconv.FormatInt(int64(d/time.Second), 10) + "s"
	}
	return d.String()
}

// ParseTime reads a slot or scheduled time given by a person or a scheduler: RFC 3339 or the compact form of keys.
func ParseTime(s string) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t.UTC(), nil
	}
	if t, err := parseSlotID(s); err == nil {
		return t, nil
	}
	for _, layout := range []string{"2006-01-02T15:04Z", "2006-01-02"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, Errorf(Usage, "time %q: want UTC like 2026-11-30T10:00:00Z, 2026-11-30 or 20261130T100000Z", s)
}
