package runner_test

import (
	"fmt"
	"strings"
	"testing"
)

// at plans one fate for one call.
func at(call int, f fate) func(int, string, string) fate {
	return func(n int, _, _ string) fate {
		if n == call {
			return f
		}
		return pass
	}
}

// reads reports whether a call only reads: then a lost reply is a refusal, and after it is before the next one.
func reads(op string) bool { return !strings.HasPrefix(op, "Put") }

func atEvent(event int, f fate) func(int) fate {
	return func(n int) fate {
		if n == event {
			return f
		}
		return pass
	}
}

// TestEveryCall disturbs the run of a batch at each of its store calls and at each event of its history, in every way a
// network or a machine can, and wants the same end every time. B5, B7, R9, R16, R17, R20, R21, R28
func TestEveryCall(t *testing.T) {
	noLeaks(t)
	p := parse(t, ordersFile)
	base := afterFirst(t, p)
	b := slot(1)

	calm := base.clone(t, shop())
	undisturbed := calm.process(p)
	undisturbed.succeed(t, "calm", request(b))
	want := calm.outcome(t, b)
	calls, events := undisturbed.calls, undisturbed.events
	if parts := calm.batch(t, b).Parts; parts < 3 || len(want.quarantine) != 3 {
		t.Fatalf("%d parts, %d quarantined: want several", parts, len(want.quarantine))
	}
	perOp := map[string]int{}
	for _, op := range undisturbed.ops {
		name, _, _ := strings.Cut(op, " ")
		perOp[name]++
	}
	t.Logf("%d store calls %v, %d events", calls, perOp, events)

	// One execution that outlives a fault.
	for name, f := range map[string]fate{"refused": refuse, "lost": lose} {
		t.Run(name, func(t *testing.T) {
			for i := 1; i <= calls; i++ {
				if f == lose && reads(undisturbed.ops[i-1]) {
					continue
				}
				w := base.clone(t, shop())
				run := w.process(p)
				run.plan = at(i, f)
				res, err := run.start("x", request(b))
				if err != nil || res.State != "Completed" {
					t.Fatalf("call %d, %s: ended in %s: %s %s, %v", i, undisturbed.ops[i-1], res.State, res.Error, res.Cause, err)
				}
				w.outcome(t, b).equal(t, want)
				if t.Failed() {
					t.Fatalf("call %d, %s", i, undisturbed.ops[i-1])
				}
			}
		})
	}
	// A process that dies, at a store call or at an event, and what comes after it.
	next := map[string]func(*process) error{
		"successor": func(run *process) error {
			res, err := run.start("y", request(b))
			return completed(res.State, res.Cause, err, "Completed", "Done")
		},
		"redrive": func(run *process) error {
			res, err := run.redrive("x")
			return completed(res.State, res.Cause, err, "Completed")
		},
	}
	for name, goOn := range next {
		for moment, f := range map[string]fate{"before": dieBefore, "after": dieAfter} {
			t.Run("died "+moment+", "+name, func(t *testing.T) {
				try := func(what string, run *process) {
					res, err := run.start("x", request(b))
					if !run.dead {
						t.Fatalf("%s: it lives: %+v, %v", what, res, err)
					}
					if h := run.histories["x"]; name == "redrive" && h != nil && len(h.events) > 0 && h.events[len(h.events)-1].Type == "ExecutionSucceeded" {
						return // nothing to redrive
					}
					if name == "redrive" && len(run.histories["x"].events) == 0 {
						return // it never began
					}
					w := run.world
					if err := goOn(w.process(p)); err != nil {
						t.Fatalf("%s: %v", what, err)
					}
					w.outcome(t, b).equal(t, want)
					if t.Failed() {
						t.Fatal(what)
					}
				}
				for i := 1; i <= calls; i++ {
					if f == dieAfter && reads(undisturbed.ops[i-1]) {
						continue
					}
					run := base.clone(t, shop()).process(p)
					run.plan = at(i, f)
					try(fmt.Sprintf("call %d, %s", i, undisturbed.ops[i-1]), run)
				}
				for i := 1; f == dieAfter && i <= events; i++ { // before an event is after the one before it
					run := base.clone(t, shop()).process(p)
					run.appends = atEvent(i, f)
					try(fmt.Sprintf("event %d", i), run)
				}
			})
		}
	}
}

func completed(state, cause string, err error, want ...string) error {
	for _, s := range want {
		if err == nil && state == s {
			return nil
		}
	}
	return fmt.Errorf("ended in %q: %s, %w", state, cause, err)
}
