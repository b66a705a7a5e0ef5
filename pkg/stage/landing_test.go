package stage_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/snapshot"
	"github.com/onceload/onceload/pkg/stage"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/mem"
)

// landing is Extract over stores in memory and a source that is a function: it answers the nth request (from 1) for a
// page (from 1).
type landing struct {
	t        *testing.T
	pipeline *pipeline.Pipeline
	raw      *mem.Objects
	table    *mem.Table
	ledger   *ledger.Ledger
	deps     stage.Deps
	batch    etl.Batch

	mu    sync.Mutex
	asked []int // pages, in order
	open  int   // requests under way
}

type answers func(n, page int) (status int, body string, header http.Header)

// pages is a source of so many pages with one order each.
func pages(last int) answers {
	return func(_, page int) (int, string, http.Header) {
		return 200, fmt.Sprintf(`{"data":[{"order_id":"o-%d"}],"meta":{"pages":%d}}`, page, last), nil
	}
}

func newLanding(t *testing.T, source answers) *landing {
	l := &landing{t: t, raw: mem.NewObjects(), table: mem.NewTable(ledger.Schema()), pipeline: ordersPipeline("http://api.example.com"),
		batch: etl.Batch{Pipeline: "orders", Slot: time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)}}
	l.pipeline.Source.PartBytes = 1 // a part a page
	l.pipeline.Source.Retry = pipeline.Retry{Attempts: 2, Base: time.Millisecond, Cap: time.Millisecond}
	l.ledger = &ledger.Ledger{Table: l.table}
	l.deps = stage.Deps{
		Raw: l.raw, Stage: mem.NewObjects(), Ledger: l.ledger,
		Pipelines: func(string) (*pipeline.Pipeline, error) { return l.pipeline, nil },
		Liveness:  ended{}, Secrets: noSecrets{},
		HTTP: &http.Client{Transport: l.serve(source)},
	}
	return l
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func (l *landing) serve(source answers) transport {
	return func(req *http.Request) (*http.Response, error) {
		page, err := strconv.Atoi(req.FormValue("page"))
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		l.asked = append(l.asked, page)
		n := len(l.asked)
		l.open++
		l.mu.Unlock()
		defer func() {
			l.mu.Lock()
			l.open--
			l.mu.Unlock()
		}()
		status, body, header := source(n, page)
		if status == 0 { // a request that hangs, and takes its time to end
			<-req.Context().Done()
			time.Sleep(20 * time.Millisecond)
			return nil, req.Context().Err()
		}
		if header == nil {
			header = http.Header{}
		}
		return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(body)), Request: req, ContentLength: int64(len(body))}, nil
	}
}

// run calls Extract once, as the execution.
func (l *landing) run(ctx context.Context, execution string, p etl.Progress) (etl.Progress, error) {
	return stage.New(l.deps).Extract.Run(ctx, etl.ExtractInput{Execution: execution, Request: etl.Request{Pipeline: "orders", Slot: etl.FormatTime(l.batch.Slot)}, Progress: p})
}

// landed reads the pages of the batch's parts, by number.
func (l *landing) landed(extraction int) [][]string {
	l.t.Helper()
	var parts [][]string
	for n := 0; ; n++ {
		f, err := snapshot.ReadFooter(l.t.Context(), l.raw, etl.RawPartKey(l.batch, extraction, n))
		if errors.Is(err, store.ErrNotFound) {
			return parts
		}
		if err != nil {
			l.t.Fatal(err)
		}
		var ids []string
		err = snapshot.ReadPages(l.t.Context(), l.raw, f, func(_ snapshot.Page, _ int, body []byte) error {
			_, rest, _ := strings.Cut(string(body), `"o-`)
			id, _, _ := strings.Cut(rest, `"`)
			ids = append(ids, id)
			return nil
		})
		if err != nil {
			l.t.Fatal(err)
		}
		parts = append(parts, ids)
	}
}

func (l *landing) want(extraction int, parts string, asked ...int) {
	l.t.Helper()
	if got := fmt.Sprint(l.landed(extraction)); got != parts {
		l.t.Errorf("landed %s, want %s", got, parts)
	}
	if asked != nil && !slices.Equal(l.asked, asked) {
		l.t.Errorf("asked for pages %v, want %v", l.asked, asked)
	}
}

// TestExtractLands: pages land in order, in parts that close when they are full, under a manifest. R16
func TestExtractLands(t *testing.T) {
	l := newLanding(t, pages(5))
	l.pipeline.Source.PartBytes = 700 // two pages
	out, err := l.run(t.Context(), "a", etl.Progress{})
	if err != nil || out.Status != etl.StatusLanded || len(out.Ranges) == 0 {
		t.Fatalf("%+v, %v", out, err)
	}
	l.want(1, "[[1 2] [3 4] [5]]", 1, 2, 3, 4, 5)
	m, err := snapshot.ReadManifest(t.Context(), l.raw, l.batch, 1)
	if err != nil || m.Pages != 5 || m.Records != 5 || len(m.Parts) != 3 {
		t.Fatalf("%+v, %v", m, err)
	}
	// Again: the manifest answers.
	if out, err := l.run(t.Context(), "b", etl.Progress{}); err != nil || out.Status != etl.StatusLanded || len(l.asked) != 5 {
		t.Fatalf("again: %+v, %v, asked %v", out, err, l.asked)
	}
}

// TestExtractFails: what came before a failure is landed, the failure comes up whole, and nothing goes on behind it.
func TestExtractFails(t *testing.T) {
	refused := func(_, page int) (int, string, http.Header) {
		if page == 4 {
			return 404, "no such page", nil
		}
		return pages(9)(0, page)
	}
	for _, tc := range []struct {
		name   string
		source answers
		edit   func(l *landing)
		kind   etl.Kind
		says   string
		parts  string
		asked  int // at most
	}{
		{"the source refuses", refused, nil, etl.SourceRejected, "404", "[[1] [2] [3]]", 4},
		{"the store refuses", pages(9), func(l *landing) {
			l.raw.OnCall = func(op, key string) (bool, error) {
				if op == "PutOnce" && strings.HasSuffix(key, "part-00002.json.gz") {
					return false, etl.Errorf(etl.StoreUnavailable, "no room")
				}
				return true, nil
			}
		}, etl.StoreUnavailable, "no room", "[[1] [2]]", 4},
		{"the store refuses while the source hangs", func(_, page int) (int, string, http.Header) {
			if page == 4 {
				return 0, "", nil
			}
			return pages(9)(0, page)
		}, func(l *landing) {
			l.raw.OnCall = func(op, key string) (bool, error) {
				for op == "PutOnce" && strings.HasSuffix(key, "part-00002.json.gz") {
					l.mu.Lock()
					hangs := slices.Contains(l.asked, 4)
					l.mu.Unlock()
					if hangs {
						return false, etl.Errorf(etl.StoreUnavailable, "no room")
					}
					time.Sleep(time.Millisecond)
				}
				return true, nil
			}
		}, etl.StoreUnavailable, "no room", "[[1] [2]]", 4},
		{"another took the batch over", pages(9), func(l *landing) {
			l.raw.OnCall = func(op, key string) (bool, error) {
				if op == "PutOnce" && strings.HasSuffix(key, "part-00001.json.gz") {
					_, err := l.ledger.Claim(context.Background(), ledger.ClaimRequest{Batch: l.batch, Execution: "thief", Window: etl.Window{Start: l.batch.Slot, End: l.batch.Slot.Add(time.Hour)}, Alive: ended{}.Alive})
					if err != nil {
						l.t.Error(err)
					}
				}
				return true, nil
			}
		}, etl.Superseded, "thief", "[[1] [2]]", 3},
		{"the paging goes in a circle", func(_, _ int) (int, string, http.Header) {
			return 200, `{"data":[{"order_id":"o-1"}],"meta":{"pages":9}}`, nil
		}, func(l *landing) {
			l.pipeline.Source.Paginate = pipeline.Paginate{Style: "next_url", Path: "next"}
			l.deps.HTTP.Transport = l.serve(func(_, _ int) (int, string, http.Header) {
				return 200, `{"data":[{"order_id":"o-1"}],"next":"/v1/orders?page=1"}`, nil
			})
			l.pipeline.Source.Query = []pipeline.Param{{Name: "page", Value: "1"}}
		}, etl.SourceLoops, "repeats the request of page 0", "[[1]]", 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			l := newLanding(t, tc.source)
			if tc.edit != nil {
				tc.edit(l)
			}
			_, err := l.run(t.Context(), "a", etl.Progress{})
			if etl.KindOf(err) != tc.kind || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("%v, want %s: %s", err, tc.kind, tc.says)
			}
			// Nothing is fetched any more by the time Run returns.
			l.mu.Lock()
			if l.open > 0 {
				t.Error("a request is still under way")
			}
			l.mu.Unlock()
			for range 1000 {
				if runtime.NumGoroutine() <= before {
					break
				}
				time.Sleep(time.Millisecond)
			}
			if after := runtime.NumGoroutine(); after > before {
				t.Errorf("%d goroutines before, %d after", before, after)
			}
			l.want(1, tc.parts)
			if len(l.asked) > tc.asked {
				t.Errorf("asked for %v, want at most %d requests", l.asked, tc.asked)
			}
			if _, err := snapshot.ReadManifest(t.Context(), l.raw, l.batch, 1); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("a manifest: %v", err)
			}
		})
	}
}

// TestExtractGoesOn: after any end a later call asks for what is missing and for nothing else. R17
func TestExtractGoesOn(t *testing.T) {
	for fail := 1; fail <= 6; fail++ {
		l := newLanding(t, pages(6))
		l.pipeline.Source.PartBytes = 700
		broken := true
		l.raw.OnCall = func(op, key string) (bool, error) {
			if broken && op == "PutOnce" && strings.Contains(key, fmt.Sprintf("part-%05d", fail/2)) {
				return fail%2 == 0, etl.Errorf(etl.StoreUnavailable, "the reply is lost")
			}
			return true, nil
		}
		_, err := l.run(t.Context(), "a", etl.Progress{})
		if fail/2 < 3 && etl.KindOf(err) != etl.StoreUnavailable {
			t.Fatalf("fail %d: %v", fail, err)
		}
		broken = false
		there := len(slices.Concat(l.landed(1)...))
		l.asked = nil
		out, err := l.run(t.Context(), "b", etl.Progress{})
		if err != nil || out.Status != etl.StatusLanded {
			t.Fatalf("fail %d: %+v, %v", fail, out, err)
		}
		l.want(1, "[[1 2] [3 4] [5 6]]")
		if len(l.asked) != 6-there {
			t.Errorf("fail %d: %d pages were there, asked for %v", fail, there, l.asked)
		}
	}
}

// TestExtractAdopts: where another attempt's part is in the way, it counts, and what was fetched beyond it is dropped.
func TestExtractAdopts(t *testing.T) {
	l := newLanding(t, pages(5))
	l.pipeline.Source.PartBytes = 700
	stolen := false
	l.raw.OnCall = func(op, key string) (bool, error) {
		if op == "PutOnce" && strings.HasSuffix(key, "part-00001.json.gz") && !stolen {
			stolen = true
			landOne(t, l)
		}
		return true, nil
	}
	out, err := l.run(t.Context(), "a", etl.Progress{})
	if err != nil || out.Status != etl.StatusLanded {
		t.Fatalf("%+v, %v", out, err)
	}
	l.want(1, "[[1 2] [3] [4 5]]")
	m, err := snapshot.ReadManifest(t.Context(), l.raw, l.batch, 1)
	if err != nil || m.Pages != 5 || m.Records != 5 {
		t.Fatalf("%+v, %v", m, err)
	}
}

// landOne lands page 3 alone as part 1, as another attempt would whose part was old.
func landOne(t *testing.T, l *landing) {
	t.Helper()
	f, err := snapshot.ReadFooter(t.Context(), l.raw, etl.RawPartKey(l.batch, 1, 0))
	if err != nil {
		t.Fatal(err)
	}
	w := snapshot.NewPartWriter(l.batch, 1, 1)
	err = w.Add([]byte(`{"data":[{"order_id":"o-3"}],"meta":{"pages":5}}`), snapshot.Page{
		Records: 1, Status: 200, Request: fingerprint("http://api.example.com/v1/orders?page=3"), Before: f.Pages[1].After, After: []byte(`{"page":3,"number":4}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Land(t.Context(), l.raw); err != nil {
		t.Fatal(err)
	}
}

// TestExtractWaits: a long wait lands what there is, and is over when the source said. Calls without progress are
// bounded; a wait for what is shared with others is no sign of being stuck. B3, B4
func TestExtractWaits(t *testing.T) {
	throttled := func(n, page int) (int, string, http.Header) {
		if n == 3 {
			return 429, "", http.Header{"Retry-After": {"120"}}
		}
		return pages(4)(n, page)
	}
	l := newLanding(t, throttled)
	l.pipeline.Source.PartBytes = 1 << 20
	now := time.Date(2026, 1, 5, 11, 5, 0, 0, time.UTC)
	l.deps.Now = func() time.Time { return now }
	l.ledger.Now = l.deps.Now
	out, err := l.run(t.Context(), "a", etl.Progress{})
	if err != nil || out.Status != etl.StatusWait || out.ResumeAt != "2026-01-05T11:07:00Z" || out.Attempts != 1 || out.WaitBegan == "" {
		t.Fatalf("%+v, %v", out, err)
	}
	l.want(1, "[[1 2]]", 1, 2, 3)
	now = now.Add(2 * time.Minute)
	if out, err = l.run(t.Context(), "a", out); err != nil || out.Status != etl.StatusLanded || out.Retries != 1 || out.WaitedMS != 120_000 || out.WaitBegan != "" {
		t.Fatalf("then: %+v, %v", out, err)
	}
	l.want(1, "[[1 2] [3 4]]", 1, 2, 3, 3, 4)

	l = newLanding(t, throttled)
	l.pipeline.Source.Retry = pipeline.Retry{Attempts: 100}
	l.deps.HTTP.Transport = l.serve(func(int, int) (int, string, http.Header) { return 429, "", http.Header{"Retry-After": {"60"}} })
	l.deps.Now, l.ledger.Now = func() time.Time { return now }, func() time.Time { return now }
	out = etl.Progress{}
	for i := range 20 {
		if out, err = l.run(t.Context(), "a", out); err != nil {
			if i != 10 || etl.KindOf(err) != etl.SourceUnavailable || !strings.Contains(err.Error(), "11 calls in a row landed no page") || !strings.Contains(err.Error(), "429") {
				t.Fatalf("call %d: %v", i, err)
			}
			break
		}
		now = now.Add(time.Minute)
	}
	if err == nil {
		t.Fatalf("for ever: %+v", out)
	}

	// The same under a breaker that stays open: bounded by retry.max_wait alone.
	l = newLanding(t, func(int, int) (int, string, http.Header) { return 503, "", nil })
	l.pipeline.Source.Retry = pipeline.Retry{Attempts: 50, Base: time.Millisecond, Cap: time.Millisecond, MaxWait: time.Hour}
	l.deps.Now, l.ledger.Now = func() time.Time { return now }, func() time.Time { return now }
	l.deps.Sleep = func(context.Context, time.Duration) error { return nil }
	out = etl.Progress{}
	for i := range 100 {
		if out, err = l.run(t.Context(), "a", out); err != nil {
			if i < 20 || etl.KindOf(err) != etl.SourceUnavailable && etl.KindOf(err) != etl.SourceThrottled {
				t.Fatalf("call %d: %v", i, err)
			}
			return
		}
		if !strings.HasPrefix(out.ResumeAt, now.Add(time.Minute).Format("2006-01-02T15:04")) {
			t.Fatalf("call %d: %+v", i, out)
		}
		now = now.Add(time.Minute)
	}
	t.Fatal("for ever")
}

// yesterday is a slot that is over by the clock of a synctest bubble.
func yesterday() time.Time { return time.Now().UTC().Truncate(time.Hour).Add(-24 * time.Hour) }

// TestExtractMore: near the deadline Extract lands what it has and asks to be called again. B3
func TestExtractMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLanding(t, func(n, page int) (int, string, http.Header) {
			time.Sleep(4 * time.Second)
			return pages(8)(n, page)
		})
		l.pipeline.Source.PartBytes = 1 << 20
		l.batch.Slot = yesterday()
		var out etl.Progress
		var calls int
		for out.Status != etl.StatusLanded {
			calls++
			began := time.Now()
			ctx, cancel := context.WithDeadline(t.Context(), began.Add(25*time.Second))
			var err error
			out, err = l.run(ctx, "a", out)
			cancel()
			if err != nil || time.Since(began) > 20*time.Second || out.Status != etl.StatusMore && out.Status != etl.StatusLanded {
				t.Fatalf("call %d: %+v, %v after %s", calls, out, err, time.Since(began))
			}
		}
		if calls < 2 || calls > 4 {
			t.Errorf("%d calls", calls)
		}
		if got := slices.Concat(l.landed(1)...); fmt.Sprint(got) != "[1 2 3 4 5 6 7 8]" {
			t.Errorf("landed %v", got)
		}
	})
}

// TestExtractPartAge: a part closes when it is 30 s old, also while the next page is slow to come.
func TestExtractPartAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLanding(t, func(n, page int) (int, string, http.Header) {
			time.Sleep(map[int]time.Duration{4: 50 * time.Second}[page] + 7*time.Second)
			return pages(9)(n, page)
		})
		l.pipeline.Source.PartBytes = 1 << 20
		l.batch.Slot = yesterday()
		began := time.Now()
		var at []time.Duration
		l.deps.Watch = func(k stage.Tick) {
			if k.Parts > 0 {
				at = append(at, time.Since(began))
			}
		}
		out, err := l.run(t.Context(), "a", etl.Progress{})
		if err != nil || out.Status != etl.StatusLanded {
			t.Fatalf("%+v, %v", out, err)
		}
		// The first page comes at 7 s; page 4 keeps everyone waiting until 78 s.
		l.want(1, "[[1 2 3] [4 5 6 7 8] [9]]")
		if fmt.Sprint(at[:2]) != "[37s 1m48s]" {
			t.Errorf("parts landed at %v", at)
		}
	})
}

// TestExtractRestarts: an expired cursor begins a new extraction from the first page, a bounded number of times. R18
func TestExtractRestarts(t *testing.T) {
	for _, expiries := range []int{1, 3, 4} {
		t.Run(fmt.Sprint(expiries), func(t *testing.T) {
			gone := 0
			l := newLanding(t, func(n, page int) (int, string, http.Header) {
				if page == 3 && gone < expiries {
					gone++
					return 410, "CURSOR_EXPIRED", nil
				}
				return pages(4)(n, page)
			})
			l.pipeline.Source.CursorExpired = pipeline.CursorExpired{Status: []int{410}, Body: "CURSOR_EXPIRED"}
			out, err := l.run(t.Context(), "a", etl.Progress{})
			if expiries > 3 {
				if etl.KindOf(err) != etl.CursorExpired {
					t.Fatalf("%+v, %v", out, err)
				}
				return
			}
			if err != nil || out.Status != etl.StatusLanded || out.Extraction != 1+expiries || out.Restarts != expiries {
				t.Fatalf("%+v, %v", out, err)
			}
			l.want(1, "[[1] [2]]")
			l.want(1+expiries, "[[1] [2] [3] [4]]")
			if _, err := snapshot.ReadManifest(t.Context(), l.raw, l.batch, 1); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("a manifest of what was given up: %v", err)
			}
		})
	}
}

// TestExtractInterrupted: a call that is cancelled ends at once, whatever the source does.
func TestExtractInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l := newLanding(t, func(n, page int) (int, string, http.Header) {
		if page == 3 {
			cancel()
			return 0, "", nil
		}
		return pages(4)(n, page)
	})
	_, err := l.run(ctx, "a", etl.Progress{})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	// The interruption may come before page 2 has landed.
	if got := fmt.Sprint(l.landed(1)); got != "[[1] [2]]" && got != "[[1]]" {
		t.Errorf("landed %s", got)
	}
}
