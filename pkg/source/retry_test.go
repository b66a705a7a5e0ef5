package source_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/source"
)

const onePage = `{"data":[{"id":1},{"id":2}]}`

// R2, R6, R8: ceilings double, waits lie in their upper half, every retry is logged, the last cause is raised.
func TestGrowingWaits(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) { reply(w, 503, `{"error":"down"}`) })
	_, stats, err := r.fetch()
	wantKind(t, err, etl.SourceUnavailable, "attempt 5 of 5", "GET "+r.server.URL+"/v1/orders:", "status 503 Service Unavailable", "down")
	if strings.Contains(err.Error(), "from=") {
		t.Errorf("error shows the query: %v", err)
	}
	if want := []time.Duration{750 * time.Millisecond, 1500 * time.Millisecond, 3 * time.Second, 6 * time.Second}; fmt.Sprint(r.sleeps) != fmt.Sprint(want) {
		t.Errorf("waits %v, want %v", r.sleeps, want)
	}
	if r.calls() != 5 || stats.Attempts != 5 || stats.Retries != 4 || stats.Waited != 11250*time.Millisecond {
		t.Errorf("%d calls, stats %+v", r.calls(), stats)
	}
	lines := strings.Split(strings.TrimSpace(r.log.String()), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d log lines, want 4:\n%s", len(lines), r.log.String())
	}
	for i, ceiling := range []string{"1s", "2s", "4s", "8s"} {
		for _, want := range []string{"level=WARN", fmt.Sprintf("attempt=%d ", i+1), "ceiling=" + ceiling, "wait=" + r.sleeps[i].String(), "status 503"} {
			if !strings.Contains(lines[i], want) {
				t.Errorf("log line %d lacks %q: %s", i+1, want, lines[i])
			}
		}
	}
}

// Waits never shrink before the cap, never pass it, and are never shorter than what the source demands.
func TestBackoffProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		base := time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(rt, "base"))
		limit := base + time.Duration(rapid.Int64Range(0, int64(24*time.Hour)).Draw(rt, "over"))
		demand := time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(rt, "demand"))
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		c, err := source.New(&pipeline.Pipeline{Source: pipeline.Source{URL: "http://x/", Retry: pipeline.Retry{Base: base, Cap: limit}}},
			source.Options{Rand: rng.Float64})
		if err != nil {
			rt.Fatal(err)
		}
		before := time.Duration(0)
		for n := 1; n < 80; n++ {
			wait, ceiling := c.Backoff(n, demand)
			own, _ := c.Backoff(n, 0)
			switch {
			case ceiling > limit, ceiling < base, own < ceiling/2, own > ceiling, wait < demand:
				rt.Fatalf("attempt %d: wait %v, own %v, ceiling %v, cap %v, demand %v", n, wait, own, ceiling, limit, demand)
			case ceiling < limit && own < before-1:
				rt.Fatalf("attempt %d: wait %v after one of %v", n, own, before)
			}
			before = own
		}
	})
}

// R1, R2: what each status means, with counted calls.
func TestStatuses(t *testing.T) {
	for _, tc := range []struct {
		status  int
		headers []string
		kind    etl.Kind
		calls   int
	}{
		{408, nil, etl.SourceUnavailable, 5},
		{425, nil, etl.SourceUnavailable, 5},
		{429, nil, etl.SourceThrottled, 5},
		{500, nil, etl.SourceUnavailable, 5},
		{502, nil, etl.SourceUnavailable, 5},
		{504, nil, etl.SourceUnavailable, 5},
		{520, nil, etl.SourceUnavailable, 5},
		{400, nil, etl.SourceRejected, 1},
		{401, nil, etl.SourceRejected, 1},
		{403, nil, etl.SourceRejected, 1},
		{403, []string{"X-RateLimit-Remaining", "12"}, etl.SourceRejected, 1},
		{403, []string{"X-RateLimit-Remaining", "0"}, etl.SourceThrottled, 5}, // as GitHub answers
		{404, nil, etl.SourceRejected, 1},
		{409, nil, etl.SourceRejected, 1},
		{422, nil, etl.SourceRejected, 1},
		{300, nil, etl.SourceRejected, 1},
		{304, nil, etl.SourceRejected, 1},
	} {
		t.Run(fmt.Sprint(tc.status, tc.headers), func(t *testing.T) {
			r := newRig(t, func(w http.ResponseWriter, _ *http.Request) { reply(w, tc.status, "", tc.headers...) })
			_, stats, err := r.fetch()
			wantKind(t, err, tc.kind, fmt.Sprintf("status %d", tc.status))
			if r.calls() != tc.calls || stats.Attempts != tc.calls {
				t.Errorf("%d calls, %d attempts, want %d", r.calls(), stats.Attempts, tc.calls)
			}
		})
	}
}

// A refused credential is named, never shown.
func TestRefusedCredentials(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
		reply(w, 401, `{"you sent":"`+req.Header.Get("Authorization")+`"}`)
	})
	r.pipeline.Source.Auth = pipeline.Auth{Scheme: "bearer", Secret: "orders-api-token"}
	_, _, err := r.fetch()
	wantKind(t, err, etl.SourceRejected, "401", "secret orders-api-token", "Bearer ***")
	if r.calls() != 1 {
		t.Errorf("%d calls, want 1", r.calls())
	}
	r.pipeline.Source.Auth = pipeline.Auth{}
	_, _, err = r.fetch()
	wantKind(t, err, etl.SourceRejected, "set source.auth")
}

// R3: the demand of the source is kept, and nonsense in it is no demand.
func TestRetryAfter(t *testing.T) {
	now := time.Date(1994, 11, 6, 8, 49, 7, 0, time.UTC)
	for _, tc := range []struct {
		value string
		want  time.Duration
	}{
		{"120", 2 * time.Minute},
		{" 120 ", 2 * time.Minute},
		{"1.5", 1500 * time.Millisecond},
		{"0", 0},
		{"-5", 0},
		{"", 0},
		{"soon", 0},
		{"484289h", 0},
		{"1e9", 0},
		{"NaN", 0},
		{"0x10", 0},
		{"50, 53", 53 * time.Second},
		{"50, soon", 50 * time.Second},
		{"99999999999999999999999", 100 * 365 * 24 * time.Hour},
		{strings.Repeat("9", 400), 100 * 365 * 24 * time.Hour},
		{"Sun, 06 Nov 1994 08:49:37 GMT", 30 * time.Second},
		{"Sunday, 06-Nov-94 08:49:37 GMT", 30 * time.Second},
		{"Sun Nov  6 08:49:37 1994", 30 * time.Second},
		{"Sun, 06 Nov 1994 08:49:00 GMT", 0}, // past
		{"Sun, 06 Nov 1994", 0},
		{"06", 6 * time.Second},
	} {
		if got := source.RetryAfter(tc.value, now); got != tc.want {
			t.Errorf("%q: %v, want %v", tc.value, got, tc.want)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"120", "-1", "50, 53", "Sun, 06 Nov 1994 08:49:37 GMT", "484289h", "1e308", "9999999999999999999"} {
		f.Add(s)
	}
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, s string) {
		got := source.RetryAfter(s, now)
		if got < 0 {
			t.Errorf("%q: %v is negative", s, got)
		}
		if end := now.Add(got); end.Before(now) || got > 101*365*24*time.Hour && !strings.Contains(s, ":") {
			t.Errorf("%q: %v is out of reach", s, got)
		}
		if n, err := strconv.ParseUint(s, 10, 20); err == nil && got != time.Duration(n)*time.Second {
			t.Errorf("%q: %v, want so many seconds", s, got)
		}
	})
}

// Headers in use today besides Retry-After; dates are read by the clock of who wrote them.
func TestDemand(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name    string
		headers []string
		want    time.Duration
	}{
		{"nothing", nil, 0},
		{"retry-after wins", []string{"Retry-After", "7", "X-RateLimit-Reset", "60"}, 7 * time.Second},
		{"two retry-afters", []string{"Retry-After", "7", "Retry-After", "9"}, 9 * time.Second},
		{"clock of the source", []string{"Date", "Mon, 30 Nov 2026 09:00:00 GMT", "Retry-After", "Mon, 30 Nov 2026 09:00:20 GMT"}, 20 * time.Second},
		{"no date", []string{"Date", "today", "Retry-After", "Mon, 30 Nov 2026 12:00:20 GMT"}, 20 * time.Second},
		{"zero falls back", []string{"Retry-After", "0", "RateLimit-Reset", "30"}, 30 * time.Second},
		{"reset in seconds", []string{"X-RateLimit-Reset", "30"}, 30 * time.Second},
		{"reset in epoch seconds", []string{"X-RateLimit-Reset", fmt.Sprint(now.Unix() + 90)}, 90 * time.Second},
		{"reset in epoch milliseconds", []string{"X-Rate-Limit-Reset", fmt.Sprint(now.UnixMilli() + 1500)}, 1500 * time.Millisecond},
		{"reset in the past", []string{"X-RateLimit-Reset", fmt.Sprint(now.Unix() - 90)}, 0},
		{"draft 3", []string{"RateLimit", "limit=100, remaining=0, reset=50"}, 50 * time.Second},
		{"draft 9", []string{"RateLimit", `"default";r=0;t=45`}, 45 * time.Second},
		{"garbage", []string{"X-RateLimit-Reset", "tomorrow", "RateLimit", ";;=,,t=x"}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := http.Header{}
			for i := 0; i < len(tc.headers); i += 2 {
				h.Add(tc.headers[i], tc.headers[i+1])
			}
			if got := source.Demanded(h, now); got.Round(time.Millisecond) != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

// No header value makes a hot loop: every one is followed by a wait of our own at least.
func TestNoHotLoop(t *testing.T) {
	for _, v := range []string{"0", "-5", "soon", "484289h", "Sun, 06 Nov 1994 08:49:00 GMT", "0.0"} {
		r := newRig(t, func(w http.ResponseWriter, _ *http.Request) { reply(w, 429, "", "Retry-After", v) })
		_, _, err := r.fetch()
		wantKind(t, err, etl.SourceThrottled)
		for i, least := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second} {
			if len(r.sleeps) != 4 || r.sleeps[i] < least {
				t.Errorf("Retry-After %q: waits %v", v, r.sleeps)
				break
			}
		}
	}
}

// B4: a wait too long to sleep through comes back with its end; the attempts go on counting across it.
func TestWait(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) { reply(w, 429, "", "Retry-After", "120") })
	r.pipeline.Source.Retry = pipeline.Retry{InlineWait: 5 * time.Second, Attempts: 3}
	req := r.request(source.State{})
	for tried := range 2 {
		req.Tried = tried
		_, stats, err := r.client().Fetch(t.Context(), req)
		var wait *source.Wait
		if !errors.As(err, &wait) {
			t.Fatalf("after %d attempts: %v, want a wait", tried, err)
		}
		if !wait.Until.Equal(r.now.Add(2*time.Minute)) || !strings.Contains(wait.Reason, "status 429") {
			t.Errorf("wait %+v at %v", wait, r.now)
		}
		if stats.Attempts != tried+1 || stats.Retries != tried || stats.Waited != 0 {
			t.Errorf("stats %+v", stats)
		}
	}
	req.Tried = 2
	_, stats, err := r.client().Fetch(t.Context(), req)
	wantKind(t, err, etl.SourceThrottled, "attempt 3 of 3")
	if r.calls() != 3 || stats.Attempts != 3 || len(r.sleeps) != 0 {
		t.Errorf("%d calls, stats %+v, slept %v", r.calls(), stats, r.sleeps)
	}
}

func TestMaxWait(t *testing.T) {
	for _, tc := range []struct {
		name, after string
		began       time.Duration
		kind        etl.Kind // "" = a Wait
	}{
		{"demand within", "3600", 0, ""},
		{"demand beyond", "90000", 0, etl.SourceThrottled},
		{"a date in 2099", "Fri, 06 Nov 2099 08:49:37 GMT", 0, etl.SourceThrottled},
		{"seconds without end", strings.Repeat("9", 60), 0, etl.SourceThrottled},
		{"all waits together beyond", "3600", 6 * time.Hour, etl.SourceThrottled},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, func(w http.ResponseWriter, _ *http.Request) { reply(w, 503, "", "Retry-After", tc.after) })
			r.pipeline.Source.Retry = pipeline.Retry{InlineWait: time.Second}
			req := r.request(source.State{})
			if tc.began > 0 {
				req.WaitBegan = r.now.Add(-tc.began)
			}
			_, _, err := r.client().Fetch(t.Context(), req)
			if tc.kind == "" {
				if wait := (*source.Wait)(nil); !errors.As(err, &wait) {
					t.Fatalf("%v, want a wait", err)
				}
				return
			}
			wantKind(t, err, tc.kind, "retry.max_wait of 6h0m0s", "status 503")
		})
	}
}

// B3: no wait and no attempt passes the context's deadline less the margin.
func TestDeadline(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) { reply(w, 503, "") })
	r.now = time.Now()
	ctx, cancel := context.WithDeadline(t.Context(), r.now.Add(14*time.Second))
	defer cancel()
	_, stats, err := r.client().Fetch(ctx, r.request(source.State{})) // 4 s are left: waits of .75 and 1.5 s fit, 3 s does not
	var wait *source.Wait
	if !errors.As(err, &wait) || len(r.sleeps) != 2 || stats.Attempts != 3 {
		t.Fatalf("%v after waits %v, stats %+v", err, r.sleeps, stats)
	}

	r.options.Margin = time.Minute
	calls := r.calls()
	if _, stats, err = r.client().Fetch(ctx, r.request(source.State{})); !errors.As(err, &wait) || r.calls() != calls || stats.Attempts != 0 {
		t.Fatalf("no time left: %v, %d more calls, stats %+v", err, r.calls()-calls, stats)
	}
}

// An attempt that our own deadline cuts is no attempt of the source's.
func TestDeadlineCutsAttempt(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, req *http.Request) { <-req.Context().Done() })
	r.now = time.Now()
	r.options.Margin = time.Hour
	ctx, cancel := context.WithDeadline(t.Context(), r.now.Add(time.Hour+20*time.Millisecond))
	defer cancel()
	_, stats, err := r.client().Fetch(ctx, r.request(source.State{}))
	var wait *source.Wait
	if !errors.As(err, &wait) || stats.Attempts != 0 {
		t.Fatalf("%v, stats %+v", err, stats)
	}
}

func TestCancelled(t *testing.T) {
	r := newRig(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	r.handler = func(w http.ResponseWriter, req *http.Request) { cancel(); <-req.Context().Done() }
	_, _, err := r.client().Fetch(ctx, r.request(source.State{}))
	wantKind(t, err, etl.Interrupted)
	if r.calls() != 1 {
		t.Errorf("%d calls after the interruption", r.calls())
	}
}

// R1: no answer at all is transient; a certificate that does not verify is not.
func TestNoAnswer(t *testing.T) {
	r := newRig(t, nil)
	r.pipeline.Source.Auth = pipeline.Auth{Scheme: "query", Name: "api_key", Secret: "key"}
	r.server.Close()
	_, stats, err := r.fetch()
	wantKind(t, err, etl.SourceUnavailable, "attempt 5 of 5", "connect")
	if stats.Attempts != 5 || strings.Contains(err.Error(), "?") || strings.Contains(r.log.String(), "canary") {
		t.Errorf("stats %+v, error %v", stats, err)
	}
	r.pipeline.Source.URL = "http://onceload.invalid/"
	_, stats, err = r.fetch()
	wantKind(t, err, etl.SourceUnavailable, "onceload.invalid")
	if stats.Attempts != 5 {
		t.Errorf("stats %+v", stats)
	}
}

// R5: a POST is repeated only under a key that stays the same.
func TestPost(t *testing.T) {
	var keys, bodies []string
	r := newRig(t, nil)
	r.handler = func(w http.ResponseWriter, req *http.Request) {
		body := make([]byte, req.ContentLength)
		if _, err := req.Body.Read(body); err != nil && len(body) == 0 {
			t.Error(err)
		}
		keys, bodies = append(keys, req.Header.Get("Idempotency-Key")), append(bodies, string(body))
		if len(keys) == 1 {
			reply(w, 503, "")
			return
		}
		reply(w, 200, onePage)
	}
	r.pipeline.Source.Method = "POST"
	r.pipeline.Source.Body = `{"since":"{window.start:date}"}`
	_, stats, err := r.fetch()
	wantKind(t, err, etl.SourceUnavailable, "not tried again", "source.idempotency_header", "503")
	if len(keys) != 1 || stats.Attempts != 1 || bodies[0] != `{"since":"2026-11-30"}` {
		t.Fatalf("%d calls, stats %+v, body %s", len(keys), stats, bodies[0])
	}
	keys, bodies = nil, nil
	r.pipeline.Source.IdempotencyHeader = "Idempotency-Key"
	if _, _, err = r.fetch(); err != nil {
		t.Fatal(err)
	}
	if len(keys) != 2 || keys[0] == "" || keys[0] != keys[1] || bodies[0] != bodies[1] {
		t.Errorf("keys %q, bodies %q", keys, bodies)
	}
}

// limiter lets the second request in only after a wait.
type limiter struct {
	waits   []time.Duration
	kinds   []etl.Kind
	demands []time.Duration
	err     error
}

func (l *limiter) Admit(context.Context) (time.Duration, string, error) {
	if len(l.waits) == 0 {
		return 0, "", l.err
	}
	w := l.waits[0]
	l.waits = l.waits[1:]
	return w, "the budget is used up", nil
}

func (l *limiter) Observe(_ context.Context, k etl.Kind, demand time.Duration) error {
	l.kinds, l.demands = append(l.kinds, k), append(l.demands, demand)
	return nil
}

func TestLimiter(t *testing.T) {
	first := true
	r := newRig(t, nil)
	r.handler = func(w http.ResponseWriter, _ *http.Request) {
		if first {
			first = false
			reply(w, 503, "")
			return
		}
		reply(w, 200, onePage)
	}
	l := &limiter{waits: []time.Duration{0, 2 * time.Second}}
	r.options.Limiter = l
	_, stats, err := r.fetch()
	if err != nil || fmt.Sprint(l.kinds) != "[SourceUnavailable ]" || fmt.Sprint(r.sleeps) != "[750ms 2s]" || stats.Retries != 1 {
		t.Fatalf("%v, observed %q, slept %v, stats %+v", err, l.kinds, r.sleeps, stats)
	}
	l.waits = []time.Duration{2 * time.Hour}
	_, stats, err = r.fetch()
	if wait := (*source.Wait)(nil); !errors.As(err, &wait) || !strings.Contains(wait.Reason, "budget") || !wait.Shared || stats.Attempts != 0 {
		t.Fatalf("%v, stats %+v", err, stats)
	}
	r.pipeline.Source.Retry.InlineWait = 5 * time.Second
	l.waits = slices.Repeat([]time.Duration{time.Second}, 100)
	_, stats, err = r.fetch()
	if wait := (*source.Wait)(nil); !errors.As(err, &wait) || !wait.Shared || stats.Waited != 5*time.Second {
		t.Fatalf("many short waits: %v, stats %+v", err, stats)
	}
	l.waits = []time.Duration{7 * time.Hour}
	_, _, err = r.fetch()
	wantKind(t, err, etl.SourceThrottled, "retry.max_wait", "the budget is used up")
	l.waits = nil
	r.handler = func(w http.ResponseWriter, _ *http.Request) { reply(w, 429, "", "Retry-After", "120") }
	l.kinds, l.demands = nil, nil
	if _, _, err = r.fetch(); fmt.Sprint(l.kinds, l.demands) != "[SourceThrottled] [2m0s]" {
		t.Fatalf("%v, told %v %v", err, l.kinds, l.demands)
	}
	// What says nothing about the source is not told.
	l.kinds = nil
	r.pipeline.Source.Auth = pipeline.Auth{Scheme: "bearer", Secret: "orders"}
	r.options.Secret = func(context.Context, string) (string, error) {
		return "", etl.Errorf(etl.StoreUnavailable, "no answer")
	}
	if _, _, err = r.fetch(); err == nil || len(l.kinds) > 0 {
		t.Fatalf("without the secret: %v, told %q", err, l.kinds)
	}
	r.pipeline.Source.Auth = pipeline.Auth{}
	r.handler = func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }
	r.now, r.options.Margin = time.Now(), time.Hour
	ctx, cancel := context.WithDeadline(t.Context(), r.now.Add(time.Hour+20*time.Millisecond))
	defer cancel()
	if _, _, err = r.client().Fetch(ctx, r.request(source.State{})); !errors.As(err, new(*source.Wait)) || len(l.kinds) > 0 {
		t.Fatalf("cut by our deadline: %v, told %q", err, l.kinds)
	}
	l.err = errors.New("ledger away")
	if _, _, err = r.fetch(); !errors.Is(err, l.err) {
		t.Fatalf("error %v", err)
	}
}
