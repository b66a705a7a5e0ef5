package local

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/asl"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/ordersapi"
	"github.com/onceload/onceload/pkg/runner"
)

const redriveFile = `
pipeline: shop
every: 1h
source:
  url: http://orders.example/v1/orders
  query: {updated_from: "{window.start}", updated_to: "{window.end}", limit: 100}
  records: data
  paginate: {cursor: {param: cursor, next: meta.next_cursor}}
contract:
  key: [order_id]
  fields:
    order_id: {type: string, required: true}
    total: {type: decimal, from: valor, min: 0}
quarantine: {max_ratio: 0.01, min_rows: 1}
target: {table: shop}
`

// inProcess answers without a network.
type inProcess struct{ http.Handler }

func (i inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	i.ServeHTTP(rec, r)
	res := rec.Result()
	res.Request = r
	return res, nil
}

// dying is a history whose process dies after an event.
type dying struct {
	runner.History
	left int
}

var errDead = errors.New("the process is dead")

func (d *dying) Append(ctx context.Context, id string, e asl.Event) error {
	d.left--
	if d.left < 0 {
		return errDead
	}
	return d.History.Append(ctx, id, e)
}

// redriving is a home with a batch that fails in Gate as long as its file is as it is.
type redriving struct {
	*Home
	file  string
	batch etl.Batch
}

func newRedriving(t *testing.T) *redriving {
	t.Helper()
	dir := t.TempDir()
	r := &redriving{file: filepath.Join(dir, "shop.yaml"), batch: etl.Batch{Pipeline: "shop", Slot: time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)}}
	must(t, os.WriteFile(r.file, []byte(redriveFile), 0o600))
	api := ordersapi.New(ordersapi.Config{Seed: 1, Rows: 20, PageSize: 100, Faults: ordersapi.Faults{BadEvery: 7}})
	h, err := Open(t.Context(), Options{
		Dir: filepath.Join(dir, "home"), Pipeline: r.file, HTTP: &http.Client{Transport: inProcess{api}},
		Now:   func() time.Time { return r.batch.Slot.Add(2 * time.Hour) },
		Sleep: func(ctx context.Context, _ time.Duration) error { return ctx.Err() },
		Rand:  func() float64 { return 0.5 }, NewID: func() string { return "x" },
	})
	must(t, err)
	t.Cleanup(func() { must(t, h.Close()) })
	r.Home = h
	return r
}

// fix makes the batch pass.
func (r *redriving) fix(t *testing.T) {
	t.Helper()
	must(t, os.WriteFile(r.file, []byte(strings.Replace(redriveFile, "0.01", "0.5", 1)), 0o600))
}

// die runs the batch in a process that dies after an event.
func (r *redriving) die(t *testing.T, after int) {
	t.Helper()
	const id = "local:shop:20261130T000000Z:x"
	release, err := r.locks.hold(id)
	must(t, err)
	from := origin{Pipeline: r.file}
	must(t, r.history.reserve(t.Context(), id, r.batch.String(), from))
	p, err := find(from)
	must(t, err)
	run := r.runner(p)
	run.History = &dying{r.history, after}
	if res, err := run.Start(t.Context(), id, r.batch, etl.Request{Pipeline: "shop", Slot: etl.FormatTime(r.batch.Slot)}); !errors.Is(err, errDead) {
		t.Fatalf("it lives: %+v, %v", res, err)
	}
	must(t, release())
}

// TestRedriveOfTheDead: an execution that died anywhere between the failure of a stage and the end of Raise completes with one redrive once its file is
// right, and fails anew with its own error while it is not. R28
func TestRedriveOfTheDead(t *testing.T) {
	probe := newRedriving(t)
	report, err := probe.Run(t.Context(), etl.Request{Slot: "2026-11-30T00:00:00Z"})
	must(t, err)
	if report.Failure == nil || report.Failure.Kind != etl.QuarantineExceeded || report.Failure.Stage != etl.StageGate {
		t.Fatalf("%+v", report)
	}
	_, events, err := probe.history.Load(t.Context(), "local:shop:20261130T000000Z:x")
	must(t, err)
	died := 0
	for i, e := range events {
		failed := slices.ContainsFunc(events[:i+1], func(e asl.Event) bool { return e.Type == asl.TaskFailed })
		if !failed || e.Type == asl.ExecutionFailed {
			continue
		}
		died++
		t.Run(e.Type+" "+e.State, func(t *testing.T) {
			r := newRedriving(t)
			r.die(t, i+1)
			report, err := r.Redrive(t.Context(), r.batch)
			must(t, err)
			if report.State != ledger.StateFailed || report.Failure == nil || report.Failure.Kind != etl.QuarantineExceeded {
				t.Errorf("with the same file: %+v", report)
			}
		})
		t.Run(e.Type+" "+e.State+", fixed", func(t *testing.T) {
			r := newRedriving(t)
			r.die(t, i+1)
			r.fix(t)
			report, err := r.Redrive(t.Context(), r.batch)
			must(t, err)
			if report.State != ledger.StateCompleted || report.Failure != nil || report.Counts.Written != 19 {
				t.Fatalf("%+v", report)
			}
			if _, n, err := r.Rows(t.Context(), "shop", 1); err != nil || n != 19 {
				t.Errorf("%d rows, %v", n, err)
			}
			// It is completed: another redrive changes nothing.
			again, err := r.Redrive(t.Context(), r.batch)
			report.Already = true
			if must(t, err); again != report {
				t.Errorf("%+v, then %+v", report, again)
			}
		})
	}
	if died < 11 {
		t.Errorf("died in %d places", died)
	}
}

// TestRedriveRefuses: what cannot be redriven, and a lock that another process holds.
func TestRedriveRefuses(t *testing.T) {
	r := newRedriving(t)
	if _, err := r.Redrive(t.Context(), r.batch); etl.KindOf(err) != etl.Usage {
		t.Errorf("never run: %v", err)
	}
	r.die(t, 9)
	release, err := r.locks.hold("local:shop:20261130T000000Z:x")
	must(t, err)
	if _, err := r.Redrive(t.Context(), r.batch); etl.KindOf(err) != etl.Busy {
		t.Errorf("alive: %v", err)
	}
	// A second run of a batch whose owner lives does nothing.
	ids := 0
	r.opts.NewID = func() string { ids++; return fmt.Sprint("y", ids) }
	report, err := r.Run(t.Context(), etl.Request{Slot: "2026-11-30T00:00:00Z"})
	if must(t, err); report.Failure == nil || report.Failure.Kind != etl.Busy {
		t.Errorf("%+v", report)
	}
	must(t, release())
	// Once it is dead the batch is taken over, and its old execution is no longer the one to redrive.
	r.fix(t)
	if report, err = r.Run(t.Context(), etl.Request{Slot: "2026-11-30T00:00:00Z"}); err != nil || report.State != ledger.StateCompleted {
		t.Errorf("%+v, %v", report, err)
	}
}

// TestRedriveUnderAnotherWindow: a redrive refuses, as a run does, to end under the old window what the file now gives
// another one. R13
func TestRedriveUnderAnotherWindow(t *testing.T) {
	r := newRedriving(t)
	if _, err := r.Run(t.Context(), etl.Request{Slot: "2026-11-30T00:00:00Z"}); err != nil {
		t.Fatal(err)
	}
	r.fix(t)
	fixed, err := os.ReadFile(r.file)
	must(t, err)
	must(t, os.WriteFile(r.file, []byte(strings.Replace(string(fixed), "every: 1h", "every: 1h\nlookback: 1h", 1)), 0o600))
	_, err = r.Redrive(t.Context(), r.batch)
	if etl.KindOf(err) != etl.WindowChanged || !strings.Contains(err.Error(), "onceload reprocess shop/20261130T000000Z --refetch") {
		t.Errorf("redrive: %v", err)
	}
	r.opts.NewID = func() string { return "y" }
	report, err := r.Run(t.Context(), etl.Request{Slot: "2026-11-30T00:00:00Z"})
	if must(t, err); report.Failure == nil || report.Failure.Kind != etl.WindowChanged {
		t.Errorf("run: %+v", report)
	}
	must(t, os.WriteFile(r.file, fixed, 0o600))
	if report, err = r.Redrive(t.Context(), r.batch); err != nil || report.State != ledger.StateCompleted {
		t.Errorf("with the window restored: %+v, %v", report, err)
	}
}
