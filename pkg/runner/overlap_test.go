package runner_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/asl"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/stage"
	"github.com/onceload/onceload/pkg/store"
)

// ended is how an execution came to its end.
type ended struct {
	res asl.Result
	err error
}

// zombie starts an execution that stands still at one of its calls until resume is closed, and declares it dead.
func zombie(t *testing.T, w *world, p *pipeline.Pipeline, req etl.Request, call int, f fate) (resume chan struct{}, over chan ended) {
	t.Helper()
	paused := make(chan struct{})
	resume, over = make(chan struct{}), make(chan ended, 1)
	w.lenient = true
	run := w.process(p)
	run.plan = at(call, f)
	run.hold = func() { close(paused); <-resume }
	go func() {
		res, err := run.start("old", req)
		over <- ended{res, err}
	}()
	select {
	case <-paused:
	case e := <-over:
		t.Fatalf("call %d: it ended in %s %s before it could stand still: %v", call, e.res.State, e.res.Cause, e.err)
	}
	w.setLive("old", ledger.Ended)
	return resume, over
}

// TestZombies lets an execution that stood still, and was taken for dead, go on after its successor has completed the
// batch, or in the midst of it: it ends Superseded, and neither table nor ledger show a trace of it. Its file may be an
// older one. R20, B1, B5, B6
func TestZombies(t *testing.T) {
	noLeaks(t)
	file := parse(t, ordersFile)
	newer := parse(t, strings.NewReplacer("key: [shop", "revision: 2\n  key: [shop", "clean: [trim, lower]", "clean: [trim]").Replace(ordersFile))
	b := slot(1)
	base := afterFirst(t, file)
	for name, successor := range map[string]*pipeline.Pipeline{"same file": file, "newer file": newer} {
		t.Run(name, func(t *testing.T) {
			calm := base.clone(t, shop())
			undisturbed := calm.process(successor)
			undisturbed.succeed(t, "calm", request(b))
			want := calm.outcome(t, b)
			probe := base.clone(t, shop()).process(file)
			probe.succeed(t, "probe", request(b))
			for i := 1; i <= probe.calls; i++ {
				for _, f := range []fate{holdBefore, holdAfter} {
					if f == holdAfter && reads(probe.ops[i-1]) {
						continue
					}
					if successor == newer && (i%2 == 0) == (f == holdBefore) {
						continue // each call one way is enough
					}
					what := fmt.Sprintf("call %d, %s, %d", i, probe.ops[i-1], f)
					w := base.clone(t, shop())
					resume, over := zombie(t, w, file, request(b), i, f)
					run := w.process(successor)
					together := i/2%2 == 0
					if together {
						at := 3 + i*7%(undisturbed.calls/2)
						var once sync.Once
						run.plan = func(n int, _, _ string) fate {
							if n == at {
								once.Do(func() { close(resume) })
							}
							return pass
						}
					}
					res, err := run.start("new", request(b))
					if err := completed(res.State, res.Cause, err, "Completed", "Done"); err != nil {
						t.Fatalf("%s: the successor: %v", what, err)
					}
					item, err := w.ledger.Get(t.Context(), store.Key{PK: b.String(), SK: etl.BatchSK})
					must(t, err)
					select {
					case <-resume:
					default:
						close(resume)
					}
					old := <-over
					switch {
					case old.err != nil:
						t.Fatalf("%s: the zombie: %v", what, old.err)
					case old.res.Error == string(etl.Superseded), old.res.State == "Done", old.res.State == "Busy":
					case old.res.State == "Completed" && res.State == "Done": // it had completed the batch before it stood still
					default:
						t.Fatalf("%s: the zombie ended in %s: %s %s", what, old.res.State, old.res.Error, old.res.Cause)
					}
					after, err := w.ledger.Get(t.Context(), item.Key)
					must(t, err)
					if string(after.Doc) != string(item.Doc) {
						t.Fatalf("%s: the zombie changed the batch item from\n%s to\n%s", what, item.Doc, after.Doc)
					}
					if res.State == "Completed" { // else the zombie's own file is the one that counts
						w.outcome(t, b).equal(t, want)
					}
					if t.Failed() {
						t.Fatal(what)
					}
				}
			}
		})
	}
}

// TestZombieRefetch: an execution that lost its batch while it waited does not claim it again, and does not refetch a
// batch that its successor has completed. B6
func TestZombieRefetch(t *testing.T) {
	p := parse(t, ordersFile)
	b := slot(0)
	w := afterFirst(t, p)
	w.lenient = true
	req := request(b)
	req.Refetch = true

	// The old execution leaves Extract with more, and stands still before it is called again.
	old := w.process(p)
	old.limit, old.margin, old.tick = time.Minute, 10*time.Second, 6*time.Second
	paused, resume := make(chan struct{}), make(chan struct{})
	extracts := 0
	old.before = func(s etl.Stage, _ []byte) {
		if s == etl.StageExtract {
			if extracts++; extracts == 2 {
				close(paused)
				<-resume
			}
		}
	}
	over := make(chan ended, 1)
	go func() {
		res, err := old.start("old", req)
		over <- ended{res, err}
	}()
	select {
	case <-paused:
	case e := <-over:
		t.Fatalf("it ended in %s %s before it could stand still: %v", e.res.State, e.res.Cause, e.err)
	}
	w.setLive("old", ledger.Ended)
	w.process(p).succeed(t, "new", request(b))
	before := w.batch(t, b)
	if before.Extraction != 2 {
		t.Fatalf("extraction %d, want the second one", before.Extraction)
	}
	close(resume)
	e := <-over
	wantFailed(t, e.res, e.err, etl.Superseded)
	if after := w.batch(t, b); after.Owner != "new" || after.Extraction != 2 || after.Write != before.Write {
		t.Fatalf("the zombie changed the batch: %+v", after)
	}
}

// answer is what a function call came to.
type answer struct {
	out []byte
	err error
}

// TestLateInvocation: a function call that was given up on, and tried again, goes on by itself and makes its writes late,
// under the same owner and fence. R17, R21, B5
func TestLateInvocation(t *testing.T) {
	noLeaks(t)
	p := parse(t, ordersFile)
	b := slot(1)
	base := afterFirst(t, p)
	calm := base.clone(t, shop())
	undisturbed := calm.process(p)
	undisturbed.succeed(t, "calm", request(b))
	want := calm.outcome(t, b)
	for i := 1; i <= undisturbed.calls; i++ {
		for j, later := range [][]int{{1, 37}, {13, 1000}}[i%2] {
			lives := []int64{1000, 3, 1, 6}[(i/2+j)%4]
			what := fmt.Sprintf("call %d, %s, let go %d calls later for %d calls", i, undisturbed.ops[i-1], later, lives)
			w := base.clone(t, shop())
			w.lenient = true
			run := w.process(p)
			paused, resume := make(chan struct{}), make(chan struct{})
			run.hold = func() { paused <- struct{}{}; <-resume }
			var late chan answer
			var current, held *atomic.Int64
			var once sync.Once
			letGo := func() { once.Do(func() { held.Store(lives); close(resume) }) }
			run.plan = func(n int, _, _ string) fate {
				switch n {
				case i:
					return holdBefore
				case i + later:
					if held == nil {
						break // another goroutine of the function call that stands still
					}
					letGo() // it overlaps with the call under way, and is over before the next one
				}
				return pass
			}
			run.around = func(_ etl.Stage, h stage.Handler) stage.Handler {
				return func(ctx context.Context, payload []byte) ([]byte, error) {
					select {
					case <-resume:
						if late != nil {
							late <- <-late
						}
					default:
					}
					got := make(chan answer, 1)
					current = new(atomic.Int64)
					current.Store(1000)
					ctx = context.WithValue(context.WithoutCancel(ctx), budgetKey{}, current)
					go func() {
						out, err := h(ctx, payload)
						got <- answer{out, err}
					}()
					select {
					case <-paused:
						late, held = got, current
						return nil, errReply
					case a := <-got:
						return a.out, a.err
					}
				}
			}
			res, err := run.start("x", request(b))
			letGo()
			<-late
			if err := completed(res.State, res.Cause, err, "Completed"); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			w.outcome(t, b).equal(t, want)
			if t.Failed() {
				t.Fatal(what)
			}
		}
	}
}
