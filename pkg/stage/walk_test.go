package stage_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/stage"
	"github.com/onceload/onceload/pkg/store"
)

// watched is a target that notes what is asked of it, and may take its time.
type watched struct {
	store.Table
	mu       sync.Mutex
	looks    []int // keys of each
	writes   []int // rows of each
	bytes    []int // of each write
	together int   // the most looks under way at once
	under    int
	look     func(ctx context.Context, n int) error // before the nth look, from 1
	write    func(ctx context.Context, n int) error // before the nth write
}

func (w *watched) Ranks(ctx context.Context, keys []store.Key) (map[store.Key]string, error) {
	w.mu.Lock()
	w.looks = append(w.looks, len(keys))
	n := len(w.looks)
	w.under++
	w.together = max(w.together, w.under)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.under--
		w.mu.Unlock()
	}()
	if w.look != nil {
		if err := w.look(ctx, n); err != nil {
			return nil, err
		}
	}
	return w.Table.Ranks(ctx, keys)
}

func (w *watched) PutHigher(ctx context.Context, items []store.Item) ([]store.Outcome, error) {
	size := 0
	for _, it := range items {
		size += len(it.Doc)
	}
	w.mu.Lock()
	w.writes, w.bytes = append(w.writes, len(items)), append(w.bytes, size)
	n := len(w.writes)
	w.mu.Unlock()
	if w.write != nil {
		if err := w.write(ctx, n); err != nil {
			return nil, err
		}
	}
	return w.Table.PutHigher(ctx, items)
}

// watch puts a watched target in front of the rig's.
func (r *rig) watch(now func() time.Time, margin time.Duration) *watched {
	w := &watched{Table: r.target}
	r.Stages = stage.New(stage.Deps{
		Raw: r.raw, Stage: r.stage, Ledger: r.ledger, Liveness: ended{}, Secrets: noSecrets{}, HTTP: &http.Client{Transport: r}, Now: now, Margin: margin,
		Target:    func(context.Context, *pipeline.Pipeline) (store.Table, error) { return w, nil },
		Pipelines: func(string) (*pipeline.Pipeline, error) { return r.file, nil },
		Sleep:     func(ctx context.Context, d time.Duration) error { r.pass(d); return ctx.Err() },
	})
	return w
}

// records are n of them, with different keys, and versions and texts as given.
func records(n int, v func(i int) int, text func(i int) string) string {
	var out []string
	for i := range n {
		out = append(out, rec(fmt.Sprintf("id%05d", i), v(i), text(i)))
	}
	return strings.Join(out, ",")
}

func one(int) int { return 1 }

// TestLoadLooksAhead: many looks are under way at once, each for as many rows as a request takes, and rows that must be
// written go together, however far apart they stand. B8
func TestLoadLooksAhead(t *testing.T) {
	const rows = 5000
	r := newRig(t, rigFile, records(rows, one, func(int) string { return "x" }))
	w := r.watch(r.clock, 0)
	p, g := r.bound()
	must(t, r.load(p, g))
	if len(w.writes) != rows/store.MaxPutHigher || len(w.looks) != rows/store.MaxBatchGet {
		t.Errorf("first load: looks for %v, writes of %v", w.looks, w.writes)
	}
	r.batch.Slot = r.batch.Slot.Add(time.Hour)
	r.pages = []string{records(rows, func(i int) int { return 1 + (i%100)/99 }, func(int) string { return "x" })}
	w = r.watch(r.clock, 0)
	all := make(chan struct{})
	w.look = func(ctx context.Context, n int) error {
		if n == 20 {
			close(all)
		}
		select {
		case <-all: // the first ones wait for the twentieth
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	p, g = r.bound()
	must(t, r.load(p, g))
	if len(w.writes) != 1 || w.writes[0] != rows/100 || w.together < 20 {
		t.Errorf("1 %% changed: writes of %v, %d looks at once", w.writes, w.together)
	}
	if got := r.loads(g); got[0] != (etl.LoadCounts{Updated: rows / 100, Unchanged: rows - rows/100}) {
		t.Errorf("%+v", got)
	}
}

// TestLoadLargeRows: neither the rows that wait for their ranks nor those that wait to be written are more than fit into
// memory, however large they are. R24
func TestLoadLargeRows(t *testing.T) {
	const rows, size = 120, 200 << 10
	r := newRig(t, rigFile, records(rows, one, func(int) string { return strings.Repeat("x", size) }))
	w := r.watch(r.clock, 0)
	p, g := r.bound()
	must(t, r.load(p, g))
	for _, n := range w.looks {
		if n > 2 {
			t.Errorf("a look at %d rows", n)
		}
	}
	for _, n := range w.bytes {
		if n > 8<<20+size+1000 {
			t.Errorf("a write of %d bytes", n)
		}
	}
	if got := r.loads(g); got[0].New != rows {
		t.Errorf("%+v", got)
	}
}

// promised is a context that ends when it says only for those who look at what it says.
type promised struct {
	context.Context
	until func() time.Time
}

func (p promised) Deadline() (time.Time, bool) { return p.until(), true }

// TestLoadStops: whenever the time runs out, the position says what is settled and no more; the next call goes on from
// there, and each row is counted once. B3, B7
func TestLoadStops(t *testing.T) {
	const rows = 5000
	const margin = 4 * time.Second
	for name, begin := range map[string]func(r *rig) (w *watched, until func() time.Time){
		"between looks": func(r *rig) (*watched, func() time.Time) {
			w := r.watch(time.Now, margin)
			w.look = func(_ context.Context, n int) error {
				if n == 9 {
					time.Sleep(time.Minute - margin + time.Second) // there is time left for the rows that are gathered, and for no more
				}
				return nil
			}
			end := time.Now().Add(time.Minute)
			return w, func() time.Time { return end }
		},
		"in a look": func(r *rig) (*watched, func() time.Time) {
			w := r.watch(time.Now, margin)
			var late atomic.Bool
			w.look = func(ctx context.Context, n int) error {
				if n == 25 {
					<-ctx.Done()
					late.Store(true)
					return fmt.Errorf("throttled: %w", ctx.Err())
				}
				return nil
			}
			began := time.Now()
			return w, func() time.Time {
				if late.Load() { // there is time for the rows that are gathered
					return time.Now().Add(time.Hour)
				}
				return began.Add(time.Minute)
			}
		},
		"in a write": func(r *rig) (*watched, func() time.Time) {
			w := r.watch(time.Now, margin)
			w.write = func(ctx context.Context, n int) error {
				if n == 2 {
					<-ctx.Done() // given up in good time
					return ctx.Err()
				}
				return nil
			}
			return w, func() time.Time {
				if len(w.writes) == 1 { // the next one is late
					return time.Now().Add(margin + time.Second)
				}
				return time.Now().Add(time.Hour)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // where work takes no time, and waits end at once
				r := newRig(t, largeParts, records(rows, one, func(int) string { return "x" }), rec("id00003", 1, "x"))
				p, g := r.bound()
				calls, pos := 0, etl.LoadPosition{Range: g.Ranges[0]}
				for {
					calls++
					w, until := begin(r)
					if calls > 3 {
						w.look, w.write, until = nil, nil, func() time.Time { return time.Now().Add(time.Hour) }
					}
					out, err := r.Load.Run(promised{t.Context(), until}, etl.LoadInput{Execution: r.execution, Batch: p.Batch, Fence: p.Fence, Binding: g.Binding, Load: g.Load, Position: pos})
					must(t, err)
					if out.Status == etl.StatusDone {
						break
					}
					if out.Position.Row <= pos.Row || out.Position.Counts.Total() != int64(out.Position.Row) {
						t.Fatalf("call %d: from %+v to %+v", calls, pos, out.Position)
					}
					pos = out.Position
				}
				if got := r.loads(g); len(got) != 1 || got[0].Total() != rows+1 || got[0].Duplicate != 1 || got[0].New < rows/2 || calls < 2 {
					t.Errorf("%d calls: %+v", calls, got)
				}
				if n := len(r.target.Items()); n != rows {
					t.Errorf("%d rows", n)
				}
			})
		})
	}
}

// TestLoadLookFails: a look that fails ends the load, with those that are under way, and nothing more is written. R1
func TestLoadLookFails(t *testing.T) {
	r := newRig(t, rigFile, records(3000, one, func(int) string { return "x" }))
	w := r.watch(r.clock, 0)
	w.look = func(ctx context.Context, n int) error {
		if n == 15 {
			return errDown
		}
		if n > 15 {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	p, g := r.bound()
	if err := r.load(p, g); !errors.Is(err, errDown) {
		t.Errorf("%v", err)
	}
	if w.under > 0 || len(w.writes) > 1 {
		t.Errorf("%d looks are under way still, writes of %v", w.under, w.writes)
	}
	w.look = nil
	must(t, r.load(p, g))
	if n := len(r.target.Items()); n != 3000 {
		t.Errorf("%d rows", n)
	}
}
