package runner_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/asl"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/ordersapi"
	"github.com/onceload/onceload/pkg/pipeline"
)

// revised is the orders file under another contract: e-mail addresses keep their case.
func revised(revision int) string {
	return strings.NewReplacer("key: [shop", fmt.Sprintf("revision: %d\n  key: [shop", revision),
		"clean: [trim, lower]", "clean: [trim]").Replace(ordersFile)
}

// TestAnyOrderOfSlots loads three slots that change each other's orders in every order, with a version field and without:
// the table is the same. Loading all of them once more writes nothing. R15, B1, B5, B8
func TestAnyOrderOfSlots(t *testing.T) {
	for name, text := range map[string]string{
		"version": ordersFile, "slot as version": strings.Replace(ordersFile, "version: updated_at", "", 1),
	} {
		t.Run(name, func(t *testing.T) {
			p := parse(t, text)
			var want []string
			for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
				w := newWorld(shop())
				for _, n := range order {
					w.process(p).succeed(t, fmt.Sprint("x", n), request(slot(n)))
				}
				got := w.rows(t)
				if want == nil {
					want = got
				}
				if !slices.Equal(got, want) {
					t.Fatalf("order %v:\n%s", order, diff(got, want))
				}
				deleted := slices.ContainsFunc(got, func(row string) bool { return strings.Contains(row, `"_deleted":true`) })
				if !deleted {
					t.Fatal("no row is deleted: the test proves little")
				}
				for _, n := range order {
					again := request(slot(n))
					again.Reload = true
					run := w.process(p)
					run.succeed(t, fmt.Sprint("again", n), again)
					c := w.batch(t, slot(n)).Counts
					if c.Written != 0 || slices.ContainsFunc(run.ops, func(op string) bool { return strings.HasPrefix(op, "PutHigher") }) {
						t.Fatalf("order %v: reload of %d wrote: %+v", order, n, c)
					}
				}
				if got := w.rows(t); !slices.Equal(got, want) {
					t.Fatalf("order %v, after reloads:\n%s", order, diff(got, want))
				}
			}
		})
	}
}

// TestAgain: what a request for a completed batch does. R20, B1, B2
func TestAgain(t *testing.T) {
	file, newer := parse(t, ordersFile), parse(t, revised(2))
	b := slot(0)
	for _, c := range []struct {
		name     string
		set      func(*etl.Request)
		file     *pipeline.Pipeline
		state    string // where the execution ends
		asks     bool   // the source
		binding  string // extraction and revision afterwards
		load     int
		rewrites bool
	}{
		{"nothing", func(*etl.Request) {}, file, "Done", false, "1/1.1", 1, false},
		{"nothing, newer file", func(*etl.Request) {}, newer, "Done", false, "1/1.1", 1, false},
		{"reload", func(r *etl.Request) { r.Reload = true }, file, "Completed", false, "1/1.1", 2, false},
		{"reload, newer file", func(r *etl.Request) { r.Reload = true }, newer, "Completed", false, "1/1.1", 2, false},
		{"reprocess", func(r *etl.Request) { r.Reprocess = true }, file, "Completed", false, "1/1.1", 2, false},
		{"reprocess, newer file", func(r *etl.Request) { r.Reprocess = true }, newer, "Completed", false, "1/2.1", 2, true},
		{"refetch", func(r *etl.Request) { r.Refetch = true }, file, "Completed", true, "2/1.1", 2, false},
		{"refetch, newer file", func(r *etl.Request) { r.Refetch = true }, newer, "Completed", true, "2/2.1", 2, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := afterFirst(t, file)
			rows, landed := len(w.rows(t)), len(w.landed)
			clear(w.asked)
			w.lenient = true // a refetch fetches
			req := request(b)
			c.set(&req)
			res, err := w.process(c.file).start("again", req)
			if err := completed(res.State, res.Cause, err, c.state); err != nil {
				t.Fatal(err)
			}
			got := w.batch(t, b)
			binding := fmt.Sprintf("%d/%s", got.Binding.Extraction, got.Binding.Revision)
			if binding != c.binding || got.Load != c.load || (len(w.asked) > 0) != c.asks {
				t.Errorf("bound to %s, load %d, asked %d pages", binding, got.Load, len(w.asked))
			}
			o := w.outcome(t, b)
			written := int64(0)
			if c.rewrites {
				written = int64(rows) // each row once
			}
			if c.state == "Completed" && got.Counts.Written != written {
				t.Errorf("%d rows written, want %d: %+v", got.Counts.Written, written, got.Counts)
			}
			if len(o.rows) != rows || c.asks && len(w.landed) != 2*landed {
				t.Errorf("%d rows, %d landed pages", len(o.rows), len(w.landed))
			}
			kept := slices.ContainsFunc(o.rows, func(r string) bool { return strings.Contains(r, `"email":"Customer`) })
			if kept != c.rewrites {
				t.Errorf("rows under the newer contract: %v", kept)
			}
		})
	}
}

// TestContractChangesOnTheWay swaps the pipeline file while its parts are transformed: Gate sends the batch back, and it
// is bound to one contract. A file that never rests fails, and a redrive goes on once it does. R10
func TestContractChangesOnTheWay(t *testing.T) {
	files := []*pipeline.Pipeline{parse(t, ordersFile)}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		files = append(files, parse(t, strings.Replace(ordersFile, "    status: {type: string}", "    status: {type: string}\n    "+name+": {type: string}", 1)))
	}
	for _, swaps := range []int{1, 3, 4} {
		t.Run(fmt.Sprint(swaps), func(t *testing.T) {
			w := newWorld(shop())
			run := w.process(nil)
			now := 0
			run.pipelines = func(string) (*pipeline.Pipeline, error) { return files[now], nil }
			gates := 0
			run.before = func(s etl.Stage, _ []byte) {
				if s == etl.StageGate {
					if gates++; gates <= swaps {
						now++
					}
				}
			}
			res, err := run.start("x", request(slot(0)))
			if swaps > 3 {
				wantFailed(t, res, err, etl.ContractChanged)
				if len(w.rows(t)) > 0 {
					t.Error("rows were loaded")
				}
				res, err = run.redrive("x")
			}
			succeeded(t, res, err)
			w.outcome(t, slot(0))
			bound, err := (&ledger.Ledger{Table: w.ledger}).Bound(t.Context(), "orders")
			must(t, err)
			if len(bound) != 1 || gates < swaps+1 {
				t.Errorf("%d gates, bound %+v", gates, bound)
			}
		})
	}
}

// TestContractChangedAfterLoading: the same number with another contract fails and names what differs; under a new number
// it loads. R10, B1
func TestContractChangedAfterLoading(t *testing.T) {
	w := afterFirst(t, parse(t, ordersFile))
	before := w.rows(t)
	run := w.process(parse(t, revised(1)))
	res := run.failed(t, "x", request(slot(1)), etl.ContractChanged)
	if !strings.Contains(res.Cause, "fields.email.clean") || !strings.Contains(res.Cause, "raise contract.revision to 2") || !slices.Equal(w.rows(t), before) {
		t.Errorf("%s", res.Cause)
	}
	res, err := w.process(parse(t, revised(2))).redrive("x")
	succeeded(t, res, err)
	if got := w.outcome(t, slot(1)); len(got.rows) <= len(before) {
		t.Errorf("%d rows", len(got.rows))
	}
}

// statuses are what the functions of a stage answered, by the history.
func (w *world) statuses(t *testing.T, id, state string) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, e := range w.histories[id].events {
		if e.Type == asl.TaskSucceeded && e.State == state {
			var o struct{ Status string }
			must(t, json.Unmarshal(e.Output, &o))
			out[o.Status]++
		}
	}
	return out
}

// TestMore: each of extract, transform and load stops before its time is up and goes on where it stopped; the end is that
// of an undisturbed run. B3, R17
func TestMore(t *testing.T) {
	cfg := ordersapi.Config{Seed: 3, Rows: 2700, PageSize: 300, Faults: ordersapi.Faults{BadEvery: 50, Duplicate: true}}
	p := parse(t, strings.NewReplacer("limit: 5", "limit: 300", "part_bytes: 2500", "part_bytes: 100000", "min_rows: 3", "min_rows: 1000").Replace(ordersFile))
	b := slot(0)
	calm := newWorld(ordersapi.New(cfg))
	calm.process(p).succeed(t, "calm", request(b))
	want := calm.outcome(t, b)

	api := ordersapi.New(cfg)
	w := newWorld(api)
	run := w.process(p)
	run.margin, run.tick = 20*time.Second, time.Second
	var positions []etl.LoadPosition
	run.before = func(s etl.Stage, payload []byte) {
		run.limit = map[etl.Stage]time.Duration{etl.StageExtract: 35 * time.Second, etl.StageLoad: 40 * time.Second}[s]
		if s == etl.StageLoad {
			in, err := etl.Decode[etl.LoadInput](payload)
			must(t, err)
			positions = append(positions, in.Position)
		}
	}
	run.succeed(t, "x", request(b))
	w.outcome(t, b).equal(t, want)
	if got := w.statuses(t, "x", "Extract"); got["more"]+got["wait"] < 1 || got["landed"] != 1 {
		t.Errorf("Extract: %v", got)
	}
	inside := slices.ContainsFunc(positions, func(p etl.LoadPosition) bool { return p.Row > 0 && p.Counts.Total() == int64(p.Row) })
	if got := w.statuses(t, "x", "LoadRange"); got["more"] < 1 || !inside {
		t.Errorf("LoadRange: %v, positions %+v", got, positions)
	}
	for page, c := range api.Calls() {
		if c.Served != 1 {
			t.Errorf("page %+v was served %d times", page, c.Served)
		}
	}
}

// TestRangesOfSeveralParts: with more parts than ranges Transform stops between parts. B3
func TestRangesOfSeveralParts(t *testing.T) {
	cfg := ordersapi.Config{Seed: 3, Rows: 420, PageSize: 1}
	p := parse(t, strings.NewReplacer("limit: 5", "limit: 1", "part_bytes: 2500", "part_bytes: 1").Replace(ordersFile))
	w := newWorld(ordersapi.New(cfg))
	run := w.process(p)
	run.margin = time.Second
	run.before = func(s etl.Stage, _ []byte) {
		run.limit = 10 * time.Second
		if s == etl.StageTransform || s == etl.StageLoad {
			run.limit = run.margin + 50*time.Millisecond // less than one part takes
		}
	}
	run.succeed(t, "x", request(slot(0)))
	o := w.outcome(t, slot(0))
	if len(o.rows) != 420 || w.batch(t, slot(0)).Parts != 420 {
		t.Errorf("%d rows", len(o.rows))
	}
	for _, state := range []string{"Extract", "TransformRange", "LoadRange"} {
		// Extract waits, until now, where its time runs out between two looks at the clock.
		if got := w.statuses(t, "x", state); got["more"]+got["wait"] < 2 {
			t.Errorf("%s: %v", state, got)
		}
	}
}

// throttling answers 429 with a long Retry-After, some times, to the second page.
type throttling struct {
	http.Handler
	left int
}

func (h *throttling) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("cursor") != "" && h.left > 0 {
		h.left--
		rw.Header().Set("Retry-After", "120")
		rw.WriteHeader(http.StatusTooManyRequests)
		return
	}
	h.Handler.ServeHTTP(rw, r)
}

// TestWait: a long Retry-After becomes a Wait state, which costs the clock alone; the attempts at a request are bounded
// across waits, and the time waited is counted. R2, R3, B4
func TestWait(t *testing.T) {
	p := parse(t, ordersFile)
	for _, c := range []struct {
		refusals int
		waits    int
		fails    bool
	}{{1, 1, false}, {4, 4, false}, {5, 4, true}} {
		t.Run(fmt.Sprint(c.refusals), func(t *testing.T) {
			w := newWorld(&throttling{shop(), c.refusals})
			run := w.process(p)
			began := w.clock.now()
			res, err := run.start("x", request(slot(0)))
			if c.fails {
				wantFailed(t, res, err, etl.SourceThrottled)
				if !strings.Contains(res.Cause, "attempt 5 of 5") {
					t.Errorf("%s", res.Cause)
				}
			} else {
				succeeded(t, res, err)
			}
			slept := w.clock.now().Sub(began)
			if got := w.statuses(t, "x", "Extract"); got["wait"] != c.waits {
				t.Errorf("Extract: %v", got)
			}
			b := w.batch(t, slot(0))
			low := time.Duration(c.waits) * 120 * time.Second
			counted := low - time.Duration(b.WaitedMS)*time.Millisecond // what passed meanwhile was not waited for
			if slept < low || slept > low+time.Minute || counted < 0 || counted > time.Second || b.Retries != c.waits {
				t.Errorf("the clock moved %s; waited_ms %d, retries %d", slept, b.WaitedMS, b.Retries)
			}
			if c.fails {
				// The pages before it are kept, and a redrive has all its attempts again.
				res, err := w.process(p).redrive("x")
				succeeded(t, res, err)
			}
			w.outcome(t, slot(0))
		})
	}
}

// expiring refuses its cursors a given number of times once some pages are out, and tells extractions apart: each gives
// every order a new total.
type expiring struct {
	left, first, served int
}

func (h *expiring) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	cursor := r.URL.Query().Get("cursor")
	if cursor == "" {
		h.first++
		cursor = fmt.Sprintf("%d:0", h.first)
	}
	var run, page int
	if _, err := fmt.Sscanf(cursor, "%d:%d", &run, &page); err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	if page == 3 && h.left > 0 {
		h.left--
		rw.WriteHeader(http.StatusGone)
		fmt.Fprint(rw, `{"error":"CURSOR_EXPIRED"}`)
		return
	}
	h.served++
	next := fmt.Sprintf(`"%d:%d"`, run, page+1)
	if page == 5 {
		next = "null"
	}
	fmt.Fprintf(rw, `{"data":[{"order_id":"o%d","valor":%d,"updated_at":"2026-11-30T00:10:00Z"}],"meta":{"next_cursor":%s}}`, page, run, next)
}

// TestCursorExpired: a refused cursor begins a new extraction, and the rows are of that one alone; too many of them fail,
// and a redrive goes on. R18
func TestCursorExpired(t *testing.T) {
	p := parse(t, strings.Replace(ordersFile, "#source", "cursor_expired: {status: [410], body: CURSOR_EXPIRED}", 1))
	for _, c := range []struct {
		expires, extraction int
		fails               bool
	}{{0, 1, false}, {1, 2, false}, {3, 4, false}, {4, 4, true}} {
		t.Run(fmt.Sprint(c.expires), func(t *testing.T) {
			w := newWorld(&expiring{left: c.expires})
			w.lenient = true // a new extraction fetches everything again
			run := w.process(p)
			res, err := run.start("x", request(slot(0)))
			if c.fails {
				wantFailed(t, res, err, etl.CursorExpired)
				res, err = w.process(p).redrive("x")
			}
			succeeded(t, res, err)
			b := w.batch(t, slot(0))
			if b.Extraction != c.extraction || b.Binding.Extraction != c.extraction {
				t.Fatalf("extraction %d, bound to %d", b.Extraction, b.Binding.Extraction)
			}
			rows := w.outcome(t, slot(0)).rows
			if len(rows) != 6 || b.Counts.Records != 6 {
				t.Fatalf("%d rows, %+v", len(rows), b.Counts)
			}
			totals := map[string]bool{}
			for _, r := range rows {
				_, total, _ := strings.Cut(r, `"total":`)
				totals[total[:1]] = true
			}
			if len(totals) != 1 {
				t.Errorf("rows of several extractions: %v", rows)
			}
		})
	}
}
