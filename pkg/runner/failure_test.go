package runner_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/asl"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/stage"
)

// TestEveryCallOfAFailure disturbs an execution that has to fail at each of its store calls and events. Whatever happens,
// it fails with its own error and loads nothing, its failure is recorded once, and once the file is right a redrive, or a
// new execution, completes the batch. R10, R11, R19, R28
func TestEveryCallOfAFailure(t *testing.T) {
	noLeaks(t)
	lenient := parse(t, ordersFile)
	strict := parse(t, strings.Replace(ordersFile, "max_ratio: 0.3", "max_ratio: 0.05", 1))
	base := afterFirst(t, lenient)
	b := slot(1)
	calm := base.clone(t, shop())
	calm.process(lenient).succeed(t, "calm", request(b))
	want := calm.outcome(t, b)
	before := fmt.Sprint(base.rows(t))
	probe := base.clone(t, shop()).process(strict)
	probe.failed(t, "probe", request(b), etl.QuarantineExceeded)

	settled := func(t *testing.T, what string, w *world) {
		t.Helper()
		if fmt.Sprint(w.rows(t)) != before {
			t.Fatalf("%s: rows were loaded", what)
		}
	}
	for name, f := range map[string]fate{"refused": refuse, "lost": lose} {
		t.Run(name, func(t *testing.T) {
			for i := 1; i <= probe.calls; i++ {
				if f == lose && reads(probe.ops[i-1]) {
					continue
				}
				what := fmt.Sprintf("call %d, %s", i, probe.ops[i-1])
				w := base.clone(t, shop())
				run := w.process(strict)
				run.plan = at(i, f)
				res, err := run.start("x", request(b))
				if err != nil || res.Status != asl.Failed || res.Error != string(etl.QuarantineExceeded) || !strings.Contains(res.Cause, "3 of 27 records quarantined") {
					t.Fatalf("%s: %s %s %s, %v", what, res.Status, res.Error, res.Cause, err)
				}
				settled(t, what, w)
				v := w.view(t, b)
				if v.Batch.State != ledger.StateFailed || v.Batch.Failures != 1 || len(v.Failures) != 1 || v.Failures[0].Kind != etl.QuarantineExceeded {
					t.Fatalf("%s: %+v", what, v)
				}
				// A Raise whose mark was not set fails once more.
				res, err = w.process(lenient).redrive("x")
				if res.Status == asl.Failed && v.Failures[0].Raised == "" {
					res, err = w.process(lenient).redrive("x")
				}
				if err := completed(res.State, res.Cause, err, "Completed"); err != nil {
					t.Fatalf("%s: redrive: %v", what, err)
				}
				w.outcome(t, b).equal(t, want)
			}
		})
	}
	die := func(what string, run *process) {
		if _, err := run.start("x", request(b)); err == nil || !run.dead {
			t.Fatalf("%s: it lives", what)
		}
		w := run.world
		settled(t, what, w)
		if h := w.histories["x"]; h == nil || len(h.events) == 0 {
			return // it never began
		}
		for n := 1; ; n++ {
			res, err := w.process(lenient).redrive("x")
			if err == nil && res.State == "Completed" {
				break
			}
			if err != nil || res.Status != asl.Failed || n == 3 { // its RecordFailure or Raise had died
				t.Fatalf("%s: redrive %d: %s %s %s, %v", what, n, res.State, res.Error, res.Cause, err)
			}
		}
		w.outcome(t, b).equal(t, want)
	}
	t.Run("died", func(t *testing.T) {
		for i := 1; i <= probe.calls; i++ {
			for _, f := range []fate{dieBefore, dieAfter} {
				if f == dieAfter && reads(probe.ops[i-1]) {
					continue
				}
				run := base.clone(t, shop()).process(strict)
				run.plan = at(i, f)
				die(fmt.Sprintf("call %d, %s, %d", i, probe.ops[i-1], f), run)
			}
		}
		for i := 1; i <= probe.events; i++ {
			run := base.clone(t, shop()).process(strict)
			run.appends = atEvent(i, dieAfter)
			die(fmt.Sprintf("event %d", i), run)
		}
	})
}

// TestTimeout: a function that runs into its limit is tried twice more, then the batch fails as StageTimedOut, under the
// name the platform gave it; a redrive goes on. R4, R19
func TestTimeout(t *testing.T) {
	p := parse(t, ordersFile)
	w := newWorld(shop())
	run := w.process(p)
	run.timeout = 5 * time.Millisecond
	calls := 0
	run.around = func(s etl.Stage, h stage.Handler) stage.Handler {
		if s != etl.StageGate {
			return func(ctx context.Context, in []byte) ([]byte, error) { return h(context.WithoutCancel(ctx), in) }
		}
		return func(ctx context.Context, _ []byte) ([]byte, error) {
			calls++
			<-ctx.Done()
			return nil, fmt.Errorf("gate: %w", etl.Errorf(etl.StoreUnavailable, "read: %w", ctx.Err()))
		}
	}
	run.failed(t, "x", request(slot(0)), etl.StageTimedOut)
	if calls != 3 {
		t.Errorf("%d calls, want 3", calls)
	}
	f := w.view(t, slot(0)).Failures
	if len(f) != 1 || f[0].ErrorName != "Sandbox.Timedout" || f[0].Kind != etl.StageTimedOut || f[0].Stage != etl.StageGate {
		t.Errorf("recorded %+v", f)
	}
	res, err := w.process(p).redrive("x")
	succeeded(t, res, err)
}

// TestRetriesAreLogged: what the state machine tries again is told with state, try, error, wait and cause. R8
func TestRetriesAreLogged(t *testing.T) {
	w := newWorld(shop())
	run := w.process(parse(t, ordersFile))
	calls := 0
	run.around = func(s etl.Stage, h stage.Handler) stage.Handler {
		return func(ctx context.Context, in []byte) ([]byte, error) {
			if s == etl.StageLoad {
				if calls++; calls <= 2 {
					return nil, etl.Errorf(etl.StoreUnavailable, "dial tcp: connection refused")
				}
			}
			return h(ctx, in)
		}
	}
	var lines bytes.Buffer
	run.log = slog.New(slog.NewTextHandler(&lines, nil))
	run.succeed(t, "x", request(slot(0)))
	for _, want := range []string{
		"state=LoadRange iteration=Load/0 attempt=1 error=StoreUnavailable next_in=2.5s cause=\"dial tcp: connection refused\"",
		"attempt=2 error=StoreUnavailable next_in=5s",
	} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("no line has %s:\n%s", want, lines.String())
		}
	}
	if n := strings.Count(lines.String(), "\n"); n != 2 {
		t.Errorf("%d lines, want 2:\n%s", n, lines.String())
	}
}

// TestPanic: a stage that panics fails as StageCrashed, as its function on Lambda does, and like a crash there it is called
// twice more: what went wrong may lie in what the process had become. The process lives, and a redrive goes on. R19, R27
func TestPanic(t *testing.T) {
	for _, c := range []struct {
		name          string
		panics, calls int
	}{{"once", 1, 2}, {"always", 99, 3}} {
		t.Run(c.name, func(t *testing.T) {
			p := parse(t, ordersFile)
			w := newWorld(shop())
			run := w.process(p)
			calls := 0
			run.around = func(s etl.Stage, h stage.Handler) stage.Handler {
				return func(ctx context.Context, in []byte) ([]byte, error) {
					if s == etl.StageGate {
						if calls++; calls <= c.panics {
							panic("no such part")
						}
					}
					return h(ctx, in)
				}
			}
			var lines bytes.Buffer
			run.log = slog.New(slog.NewTextHandler(&lines, nil))
			res, err := run.start("x", request(slot(0)))
			if c.panics == 1 {
				succeeded(t, res, err)
			} else {
				wantFailed(t, res, err, etl.StageCrashed)
				f := w.view(t, slot(0)).Failures
				if len(f) != 1 || f[0].ErrorName != "StageCrashed" || f[0].Stage != etl.StageGate || f[0].Message != "panic: no such part" {
					t.Errorf("recorded %+v", f)
				}
				res, err = w.process(p).redrive("x")
				succeeded(t, res, err)
			}
			if calls != c.calls {
				t.Errorf("%d calls, want %d", calls, c.calls)
			}
			if !strings.Contains(lines.String(), "failure_test.go") {
				t.Errorf("the log does not say where it panicked:\n%s", lines.String())
			}
		})
	}
}

// TestInterrupted: a run whose context ends is ABORTED, not failed: nothing is recorded, and a redrive goes on. R28
func TestInterrupted(t *testing.T) {
	p := parse(t, ordersFile)
	w := newWorld(shop())
	run := w.process(p)
	run.before = func(s etl.Stage, _ []byte) {
		if s == etl.StageTransform {
			run.kill()
		}
	}
	res, err := run.start("x", request(slot(0)))
	if err != nil || res.Status != asl.Aborted || res.State != "Transform" {
		t.Fatalf("%+v, %v", res, err)
	}
	if v := w.view(t, slot(0)); v.Batch.State != ledger.StateRunning || len(v.Failures) != 0 {
		t.Errorf("%+v", v)
	}
	res, err = w.process(p).redrive("x")
	succeeded(t, res, err)
}

type alarm struct{ counts []int }

func (a *alarm) Alert(_ context.Context, x stage.Alert) error {
	a.counts = append(a.counts, x.Count)
	return etl.Errorf(etl.StoreUnavailable, "the channel is down")
}

// TestAlerts: each failure of a batch alerts, the second one knows that it is the second; a channel that is down changes
// nothing. R11
func TestAlerts(t *testing.T) {
	w := newWorld(shop())
	run := w.process(parse(t, strings.Replace(ordersFile, "max_ratio: 0.3", "max_ratio: 0.05", 1)))
	a := &alarm{}
	run.alerts = a
	run.failed(t, "x", request(slot(0)), etl.QuarantineExceeded)
	res, err := run.redrive("x")
	wantFailed(t, res, err, etl.QuarantineExceeded)
	run.failed(t, "y", request(slot(0)), etl.QuarantineExceeded)
	if fmt.Sprint(a.counts) != "[1 2 3]" {
		t.Errorf("counts %v", a.counts)
	}
}

// TestUnknownExecution: there is nothing to redrive.
func TestUnknownExecution(t *testing.T) {
	if _, err := newWorld(shop()).process(parse(t, ordersFile)).redrive("never"); etl.KindOf(err) != etl.Usage {
		t.Errorf("%v", err)
	}
}
