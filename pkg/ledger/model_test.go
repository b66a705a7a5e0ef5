package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/mem"
)

// world is one batch and the executions that fight for it. It stands between ledger and table: it runs another step
// between a read and the write that follows, makes calls fail, and holds every write of the batch item against the rules.
type world struct {
	*mem.Table
	t      *rapid.T
	ledger *ledger.Ledger
	now    time.Time
	last   int // number of the newest execution
	execs  []*exec

	acting    []*step          // the steps under way, innermost last
	completed map[int]settling // by load number
}

// exec is an execution, alive or not: functions of a dead one may still run.
type exec struct {
	id       string
	liveness ledger.Liveness
	owner    ledger.Owner
}

type settling struct {
	execution string
	fence     int
}

// step is one call of a method by an execution.
type step struct {
	exec    *exec
	op      string
	flag    string
	widen   bool
	n       int
	between *step // runs before this one's first write
	failAt  int   // number of the table call that fails, from 1; 0 = none
	lost    bool  // it is carried out, the reply is lost

	calls int
	wrote bool
	gone  []string // owners that were found dead
}

func (w *world) top() *step { return w.acting[len(w.acting)-1] }

func (w *world) fault() (apply bool, err error) {
	s := w.top()
	if s.calls++; s.calls == s.failAt {
		return s.lost, errReply
	}
	return true, nil
}

func (w *world) Get(ctx context.Context, key store.Key) (store.Item, error) {
	if _, err := w.fault(); err != nil {
		return store.Item{}, err
	}
	return w.Table.Get(ctx, key)
}

func (w *world) PutIf(ctx context.Context, item store.Item, cond store.Condition) error {
	s := w.top()
	if s.between != nil {
		other := s.between
		s.between = nil
		w.run(other)
	}
	apply, fault := w.fault()
	if !apply {
		return fault
	}
	before := w.item()
	err := w.Table.PutIf(ctx, item, cond)
	if item.SK == etl.BatchSK && err == nil {
		s.wrote = true
		w.judge(s, before, w.item())
	}
	if fault != nil {
		return fault
	}
	return err
}

// item is the batch item, past all faults.
func (w *world) item() ledger.Batch {
	l := &ledger.Ledger{Table: w.Table}
	b, err := l.Get(context.Background(), batch)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		w.t.Fatal(err)
	}
	return b
}

// judge holds one write of the batch item against the rules.
func (w *world) judge(s *step, before, after ledger.Batch) {
	bad := func(format string, args ...any) {
		w.t.Fatalf("%s by %s: %s\nbefore %s\nafter  %s", s.op, s.exec.id, fmt.Sprintf(format, args...), show(before), show(after))
	}
	if !slices.ContainsFunc(ledger.Moves(), func(l ledger.Legal) bool { return l.From == before.State && l.To == after.State }) {
		bad("no move leads from %q to %q", before.State, after.State)
	}
	if after.Write != before.Write+1 || after.Extraction < before.Extraction || after.Load < before.Load {
		bad("a counter fell or jumped")
	}
	if after.Owner != s.exec.id {
		bad("the writer is not the owner")
	}
	if before.Owner == after.Owner && before.Fence != after.Fence || before.Owner != after.Owner && after.Fence != before.Fence+1 {
		bad("the fence does not rise with each change of the owner, and with nothing else")
	}
	if before.Owner != after.Owner && s.op != "claim" {
		bad("only a claim changes the owner")
	}
	if before.Owner != after.Owner && before.State != ledger.StateAbsent && before.State != ledger.StateCompleted && !slices.Contains(s.gone, before.Owner) {
		bad("the owner was not found dead")
	}
	if s.op != "claim" && s.op != "fail" && before.Fence != s.exec.owner.Fence {
		bad("the writer's fence is %d", s.exec.owner.Fence)
	}
	if before.State == ledger.StateCompleted && s.flag == "" {
		bad("a completed batch was opened without a word")
	}
	if after.Load > before.Load && before.State != ledger.StateAbsent && s.flag == "" {
		bad("a load was raised without a word")
	}
	if !after.Window.Equal(before.Window) && before.State != ledger.StateAbsent && (s.flag != "refetch" || after.Extraction == before.Extraction) {
		bad("the window changed within an extraction")
	}
	if after.State == ledger.StateCompleted {
		if s.op != "settle" {
			bad("completed without a settle")
		}
		if by, ok := w.completed[after.Load]; ok {
			bad("load %d was settled before, by %+v", after.Load, by)
		}
		w.completed[after.Load] = settling{after.Owner, after.Fence}
	}
}

// run makes one step and holds its answer against the rules.
func (w *world) run(s *step) {
	w.acting = append(w.acting, s)
	defer func() { w.acting = w.acting[:len(w.acting)-1] }()
	ctx := context.Background()
	bad := func(format string, args ...any) {
		w.t.Fatalf("%s by %s: %s\nthe item is %s", s.op, s.exec.id, fmt.Sprintf(format, args...), show(w.item()))
	}
	var err error
	switch s.op {
	case "claim":
		r := ledger.ClaimRequest{Batch: batch, Execution: s.exec.id, Window: window, Reload: s.flag == "reload",
			Refetch: s.flag == "refetch", Reprocess: s.flag == "reprocess",
			Alive: func(_ context.Context, id string) (ledger.Liveness, error) {
				if _, err := w.fault(); err != nil {
					return 0, err
				}
				live := w.livenessOf(id)
				if live == ledger.Ended || live == ledger.Unknown && w.now.Sub(w.claimedAt()) > 10*time.Minute {
					s.gone = append(s.gone, id)
				}
				return live, nil
			}}
		if s.widen {
			r.Window = widened
		}
		var c ledger.Claim
		if c, err = w.ledger.Claim(ctx, r); err == nil {
			switch {
			case c.Status == "" && c.Owner == (ledger.Owner{Batch: batch, Execution: s.exec.id, Fence: c.Batch.Fence}) && c.Batch.State == ledger.StateRunning:
				s.exec.owner = c.Owner
			case c.Status == etl.StatusBusy && !s.wrote && c.Batch.Owner != s.exec.id && c.Batch.State != ledger.StateCompleted:
			case c.Status == etl.StatusDone && !s.wrote && c.Batch.State == ledger.StateCompleted:
			default:
				bad("answered %+v", c)
			}
		}
	case "update":
		_, err = w.ledger.Update(ctx, s.exec.owner, etl.StageExtract, func(b *ledger.Batch) { b.Pages = int64(s.n) })
	case "bind":
		_, err = w.ledger.Update(ctx, s.exec.owner, etl.StageGate, func(b *ledger.Batch) {
			v := bound
			v.Extraction = b.Extraction
			b.Binding = &v
		})
	case "settle":
		var b ledger.Batch
		if b, err = w.ledger.Settle(ctx, s.exec.owner, balanced); err == nil {
			if by := w.completed[b.Load]; by != (settling{s.exec.owner.Execution, s.exec.owner.Fence}) {
				bad("said settled, but load %d was settled by %+v", b.Load, by)
			}
		}
	case "fail":
		err = w.ledger.RecordFailure(ctx, batch.String(), &batch, s.exec.id, failure(fmt.Sprint(s.exec.id, "@", s.n)))
	}
	if err != nil {
		switch kind := etl.KindOf(err); {
		case kind == etl.StoreUnavailable && s.failAt > 0:
		case kind == etl.Superseded && !s.wrote && (s.op == "update" || s.op == "bind" || s.op == "settle"):
		case kind == etl.WindowChanged && !s.wrote && s.op == "claim":
		case kind == etl.Internal && s.op == "settle" && !s.wrote: // not bound yet
		default:
			bad("failed: %v (wrote %v)", err, s.wrote)
		}
	}
}

func (w *world) livenessOf(id string) ledger.Liveness {
	for _, e := range w.execs {
		if e.id == id {
			return e.liveness
		}
	}
	return ledger.Ended // one whose place another took
}

func (w *world) claimedAt() time.Time {
	t, err := time.Parse(time.RFC3339, w.item().ClaimedAt)
	if err != nil {
		w.t.Fatal(err)
	}
	return t
}

func (w *world) start() *exec {
	w.last++
	return &exec{id: fmt.Sprint("e", w.last), liveness: ledger.Running}
}

func (w *world) draw(t *rapid.T, depth int) *step {
	s := &step{
		exec:  rapid.SampledFrom(w.execs).Draw(t, "execution"),
		op:    rapid.SampledFrom([]string{"claim", "claim", "update", "bind", "settle", "settle", "fail"}).Draw(t, "op"),
		n:     rapid.IntRange(0, 3).Draw(t, "n"),
		widen: rapid.IntRange(0, 9).Draw(t, "widen") == 0,
	}
	if s.op == "claim" {
		s.flag = rapid.SampledFrom([]string{"", "", "", "", "reload", "refetch", "reprocess"}).Draw(t, "flag")
	}
	if rapid.IntRange(0, 3).Draw(t, "fault") == 0 {
		s.failAt = rapid.IntRange(1, 4).Draw(t, "call")
		s.lost = rapid.Bool().Draw(t, "lost")
	}
	if depth > 0 && rapid.Bool().Draw(t, "interleave") {
		s.between = w.draw(t, depth-1)
	}
	return s
}

// TestModel lets three executions claim, work, fail, die, come back as ghosts, be redriven and be replaced, with steps
// of one between read and write of another, and with lost calls and replies. No two owners settle one load, no fence
// falls, a batch is completed by its current owner's settle alone, who is superseded writes nothing, and whatever
// happened, a fresh execution can finish the batch (R20, R21, B6).
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{Table: mem.NewTable(ledger.Schema()), t: t, now: began, completed: map[int]settling{}}
		w.ledger = &ledger.Ledger{Table: w, Now: func() time.Time { return w.now }}
		for range 3 {
			w.execs = append(w.execs, w.start())
		}
		t.Repeat(map[string]func(*rapid.T){
			"step":  func(t *rapid.T) { w.run(w.draw(t, 2)) },
			"clock": func(*rapid.T) { w.now = w.now.Add(6 * time.Minute) },
			"life": func(t *rapid.T) {
				e := rapid.SampledFrom(w.execs).Draw(t, "execution")
				e.liveness = rapid.SampledFrom([]ledger.Liveness{ledger.Running, ledger.Ended, ledger.Unknown}).Draw(t, "liveness")
			},
			"replace": func(t *rapid.T) {
				w.execs[rapid.IntRange(0, len(w.execs)-1).Draw(t, "execution")] = w.start()
			},
		})
		for _, e := range w.execs {
			e.liveness = ledger.Ended
		}
		heir := w.start()
		w.execs = append(w.execs, heir)
		if b := w.item(); b.State != ledger.StateAbsent && !b.Window.Equal(window) {
			w.run(&step{exec: heir, op: "claim", flag: "refetch"})
		} else {
			w.run(&step{exec: heir, op: "claim"})
		}
		w.run(&step{exec: heir, op: "bind"})
		w.run(&step{exec: heir, op: "settle"})
		if b := w.item(); b.State != ledger.StateCompleted {
			t.Fatalf("nobody can finish the batch: %s", show(b))
		}
	})
}
