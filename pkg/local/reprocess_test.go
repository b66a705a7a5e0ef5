package local

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/asl"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
)

const reprocessFile = `
pipeline: shop
every: 1h
source:
  url: http://orders.example/v1/orders
  query: {from: "{window.start}"}
  records: data
  paginate: {none: {}}
contract:
  revision: 1
  key: [order_id]
  fields:
    order_id: {type: string, required: true}
    total: {type: decimal}
quarantine: {max_ratio: 0.5}
target: {table: shop}
`

// reprocessing is a home with completed batches of four records each, of which one is quarantined.
type reprocessing struct {
	*Home
	file  string
	ids   int
	asked int
}

// slots are the batches; the second one is what dies.
var slots = func() (out [3]etl.Batch) {
	for i := range out {
		out[i] = etl.Batch{Pipeline: "shop", Slot: time.Date(2026, 11, 30, i, 0, 0, 0, time.UTC)}
	}
	return out
}()

func newReprocessing(t *testing.T) *reprocessing {
	t.Helper()
	r := openReprocessing(t, reprocessFile)
	for _, b := range slots {
		report, err := r.Run(t.Context(), etl.Request{Slot: etl.FormatTime(b.Slot)})
		if must(t, err); report.State != ledger.StateCompleted || report.Counts.Quarantined != 1 {
			t.Fatalf("%+v", report)
		}
	}
	return r
}

// openReprocessing is such a home before its first run.
func openReprocessing(t *testing.T, file string) *reprocessing {
	t.Helper()
	dir := t.TempDir()
	r := &reprocessing{file: filepath.Join(dir, "shop.yaml")}
	r.write(t, file)
	h, err := Open(t.Context(), Options{
		Dir: filepath.Join(dir, "home"), Pipeline: r.file, HTTP: &http.Client{Transport: inProcess{r}},
		Now:   func() time.Time { return slots[2].Slot.Add(2 * time.Hour) },
		Sleep: func(ctx context.Context, _ time.Duration) error { return ctx.Err() },
		Rand:  func() float64 { return 0.5 }, NewID: func() string { r.ids++; return fmt.Sprint(r.ids) },
	})
	must(t, err)
	t.Cleanup(func() { must(t, h.Close()) })
	r.Home = h
	return r
}

func (r *reprocessing) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.asked++
	w.Header().Set("Content-Type", "application/json")
	id := req.URL.Query().Get("from")
	fmt.Fprintf(w, `{"data":[{"order_id":"%[1]s a","total":1},{"order_id":"%[1]s b","total":2},{"order_id":"%[1]s c","total":3},{"order_id":"%[1]s d","total":"many"}]}`, id)
}

func (r *reprocessing) write(t *testing.T, file string) {
	t.Helper()
	must(t, os.WriteFile(r.file, []byte(file), 0o600))
}

// mend raises the revision to one under which all records pass.
func (r *reprocessing) mend(t *testing.T) {
	t.Helper()
	r.write(t, strings.NewReplacer("revision: 1", "revision: 2", "{type: decimal}", "{type: string}").Replace(reprocessFile))
}

// begin runs a request in a process that dies after so many events, or not at all if that is negative. Its id is returned.
func (r *reprocessing) begin(t *testing.T, b etl.Batch, req etl.Request, after int) string {
	t.Helper()
	id := fmt.Sprintf("local:shop:%s:dies", b.SlotID())
	release, err := r.locks.hold(id)
	must(t, err)
	from := origin{Pipeline: r.file}
	must(t, r.history.reserve(t.Context(), id, b.String(), from))
	p, err := find(from)
	must(t, err)
	run := r.runner(p)
	if after >= 0 {
		run.History = &dying{r.history, after}
	}
	req.Pipeline, req.Slot = "shop", etl.FormatTime(b.Slot)
	if _, err := run.Start(t.Context(), id, b, req); err != nil && !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	must(t, release())
	return id
}

// ways are the selections that a batch of this home belongs to.
func ways() map[string]func(*reprocessing, *testing.T) Selection {
	ask := func(named []etl.Batch, quarantined bool, reason string) func(*reprocessing, *testing.T) Selection {
		return func(r *reprocessing, t *testing.T) Selection {
			t.Helper()
			s, err := r.Select(t.Context(), named, quarantined, reason)
			must(t, err)
			return s
		}
	}
	return map[string]func(*reprocessing, *testing.T) Selection{
		"pipeline":                      ask(nil, false, ""),
		"pipeline, quarantined":         ask(nil, true, ""),
		"pipeline, quarantined, reason": ask(nil, true, "number_syntax"),
		"named":                         ask(slots[:], false, ""),
		"named, quarantined":            ask(slots[:], true, ""),
		"named, quarantined, reason":    ask(slots[:], true, "number_syntax"),
	}
}

// TestReprocessOfTheDead: a reprocess, or a refetch, that died anywhere is chosen by the same words again and finished,
// under the newer revision; a dry run speaks of it too. R11, B1, B2
func TestReprocessOfTheDead(t *testing.T) {
	for _, req := range []etl.Request{{Reprocess: true}, {Refetch: true}} {
		probe := newReprocessing(t)
		probe.mend(t)
		_, events, err := probe.history.Load(t.Context(), probe.begin(t, slots[1], req, -1))
		must(t, err)
		// Everything in it that is a place to die: each stage's beginning and end.
		for i, e := range events {
			if e.Type != asl.TaskScheduled && e.Type != asl.TaskSucceeded && i != len(events)-1 {
				continue
			}
			name := fmt.Sprintf("refetch=%v %s %s", req.Refetch, e.State, e.Type)
			t.Run(name, func(t *testing.T) {
				r := newReprocessing(t)
				r.mend(t)
				r.begin(t, slots[1], req, i)
				v, err := r.Show(t.Context(), slots[1])
				must(t, err)
				done := v.Batch.State == ledger.StateCompleted && v.Batch.Binding.Revision.Contract == 2
				for way, ask := range ways() {
					s, want := ask(r, t), slots[:]
					if done && strings.Contains(way, "quarantined") {
						want = []etl.Batch{slots[0], slots[2]} // none of it is quarantined any more
					}
					if !slices.Equal(s.Batches, want) || len(s.Open) > 0 {
						t.Errorf("%s chooses %+v", way, s)
					}
				}
				rehearsal, err := r.Rehearse(t.Context(), slots[1])
				must(t, err)
				if !done && (rehearsal.From.Contract != 1 || rehearsal.To.Contract != 2 || rehearsal.Pass != 1 || rehearsal.Rows != 4) {
					t.Errorf("%+v", rehearsal)
				}
				asked := r.asked
				for _, b := range slots {
					report, todo, err := r.Reprocess(t.Context(), b, Reprocess{Refetch: req.Refetch})
					if must(t, err); todo != (b != slots[1] || req.Refetch || !done) || report.State != ledger.StateCompleted {
						t.Errorf("%s: todo %v, %+v", b, todo, report)
					}
					v, err := r.Show(t.Context(), b)
					if must(t, err); v.Batch.Binding == nil || v.Batch.Binding.Revision.Contract != 2 || v.Batch.Prior != nil {
						t.Errorf("%s is bound to %v, prior %v", b, v.Batch.Binding, v.Batch.Prior)
					}
				}
				if !req.Refetch && r.asked != asked {
					t.Errorf("%d requests to the source", r.asked-asked)
				}
				rows, n, err := r.Rows(t.Context(), "shop", 20)
				must(t, err)
				if n != 12 {
					t.Errorf("%d rows", n)
				}
				for _, it := range rows {
					if !strings.Contains(it.Rank, "|0002.") {
						t.Errorf("%s has rank %s", it.PK, it.Rank)
					}
				}
			})
		}
	}
}

// TestReprocessRefused: a batch that Gate refuses is chosen again, whether it had loaded before or not. B2
func TestReprocessRefused(t *testing.T) {
	strict := strings.Replace(reprocessFile, "{max_ratio: 0.5}", "{max_ratio: 0, min_rows: 1}", 1)
	chosen := func(t *testing.T, r *reprocessing, want ...etl.Batch) {
		t.Helper()
		for way, ask := range ways() {
			if strings.HasPrefix(way, "named") && len(want) == 1 {
				continue // the others were never run
			}
			if s := ask(r, t); !slices.Equal(s.Batches, want) || len(s.Open) > 0 {
				t.Errorf("%s chooses %+v", way, s)
			}
		}
		if rehearsal, err := r.Rehearse(t.Context(), slots[1]); err != nil || rehearsal.Quarantined != 1 {
			t.Errorf("%+v, %v", rehearsal, err)
		}
	}
	mended := func(t *testing.T, r *reprocessing) {
		t.Helper()
		r.mend(t)
		report, todo, err := r.Reprocess(t.Context(), slots[1], Reprocess{})
		if must(t, err); !todo || report.State != ledger.StateCompleted || report.Counts.Valid != 4 {
			t.Errorf("%v, %+v", todo, report)
		}
	}
	t.Run("after a load", func(t *testing.T) {
		r := newReprocessing(t)
		r.write(t, strings.Replace(strict, "revision: 1", "revision: 2", 1))
		for range 2 {
			report, todo, err := r.Reprocess(t.Context(), slots[1], Reprocess{})
			if must(t, err); !todo || report.Failure == nil || report.Failure.Kind != etl.QuarantineExceeded {
				t.Fatalf("%v, %+v", todo, report)
			}
			chosen(t, r, slots[:]...)
		}
		mended(t, r)
	})
	t.Run("never loaded", func(t *testing.T) {
		r := openReprocessing(t, strict)
		report, err := r.Run(t.Context(), etl.Request{Slot: etl.FormatTime(slots[1].Slot)})
		if must(t, err); report.Failure == nil || report.Failure.Kind != etl.QuarantineExceeded {
			t.Fatalf("%+v", report)
		}
		chosen(t, r, slots[1])
		mended(t, r)
	})
}

// TestReprocessNames: what is open and not chosen is named; a batch whose owner lives is busy, whatever it is at; a file
// that went back is refused while a reprocess is open, as it is before. R11, R20
func TestReprocessNames(t *testing.T) {
	r := newReprocessing(t)
	r.mend(t)
	r.begin(t, slots[1], etl.Request{Reprocess: true}, 9)
	s, err := r.Select(t.Context(), nil, true, "boolean_syntax")
	if must(t, err); len(s.Batches) != 0 || len(s.Open) != 1 || s.Open[0].BatchID != slots[1].String() {
		t.Errorf("%+v", s)
	}
	release, err := r.locks.hold(fmt.Sprintf("local:shop:%s:dies", slots[1].SlotID()))
	must(t, err)
	report, todo, err := r.Reprocess(t.Context(), slots[1], Reprocess{})
	if must(t, err); !todo || report.Failure == nil || report.Failure.Kind != etl.Busy {
		t.Errorf("%v, %+v", todo, report)
	}
	must(t, release())
	r.write(t, strings.Replace(reprocessFile, "{type: decimal}", "{type: integer}", 1))
	if _, _, err := r.Reprocess(t.Context(), slots[1], Reprocess{}); etl.KindOf(err) != etl.ContractChanged {
		t.Errorf("another contract under the old revision: %v", err)
	}
}
