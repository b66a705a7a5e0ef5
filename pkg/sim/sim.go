// Package sim is the fault simulation (B13). From a seed it draws a pipeline, a source, and a schedule: executions that
// overlap, are started twice, die, go on as ghosts after they were taken for dead, are redriven; deliberate reloads,
// reprocesses and refetches while others run; the file's contract and the source's content change in their midst; S3
// events come twice and late; any call to a store or to the source is refused, or carried out with its reply lost, or
// carried out long after its caller gave up. Then the weather clears, every batch is brought to its end, and an oracle
// compares table, ledger and objects with what they must be.
//
// The stages, the state machine and the stores in memory are the real ones. Each call waits for the scheduler, which lets
// one at a time through; time is virtual. The same seed gives the same run.
package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onceload/onceload/pkg/asl"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/runner"
	"github.com/onceload/onceload/pkg/stage"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/mem"
)

// Report says what a run came to.
type Report struct {
	Calls   int            // let through, fates of all kinds
	Fates   map[string]int // how many of each kind
	Started map[string]int // executions by what they were asked for
	Ended   map[string]int // how they ended: Completed, Done, Busy, or the kind of their failure
	Rows    int            // in the target at the end
	Trace   uint64         // over all calls and fates in their order
}

// Bubble is a synctest bubble, in which a run must be called.
type Bubble struct {
	Quiet func()              // synctest.Wait
	Now   func() time.Time    // time.Now
	Sleep func(time.Duration) // time.Sleep
}

// Run runs the seed's schedule. An error says which promise is broken.
func Run(ctx context.Context, seed uint64, b Bubble) (Report, error) {
	s := newSim(ctx, seed, b)
	s.storm() //nolint:contextcheck // an actor has a context of its own, below that of the run
	s.calm = true
	s.drain() //nolint:contextcheck // likewise
	if err := errors.Join(s.broken...); err != nil {
		return s.report, err
	}
	return s.report, s.settle() //nolint:contextcheck // likewise
}

// sim is one run.
type sim struct {
	Bubble
	ctx  context.Context //nolint:containedctx // of the whole run
	seed uint64
	rnd  *rand.Rand // the scheduler's own
	calm bool       // no more faults

	raw, stage     *mem.Objects
	ledger, target *mem.Table
	source         *source
	files          []*pipeline.Pipeline // by revision, from 1
	slots          []etl.Batch
	odds           odds

	mu        sync.Mutex
	revision  int // of the file that is deployed now
	parked    []*parked
	dying     []*actor // died at an event
	running   int      // actors
	actors    int      // so far
	live      map[string]ledger.Liveness
	histories map[string]*history
	events    []string // keys of landed parts whose event is to be delivered
	bindings  map[string]map[string]bool
	applied   []store.Item // rows that were put, whether they won or not
	broken    []error
	report    Report
}

// odds are the seed's weather.
type odds struct {
	fault, late, crash, event float64
	tick                      time.Duration // most time between two calls
	timeout                   time.Duration // of a function
}

// history is an execution's past.
type history struct {
	e      runner.Execution
	events []asl.Event
	over   bool // it succeeded
}

const slots = 3

func newSim(ctx context.Context, seed uint64, b Bubble) *sim {
	rnd := rand.New(rand.NewPCG(seed, 0x0a11))
	s := &sim{
		Bubble: b, ctx: ctx, seed: seed, rnd: rnd,
		raw: mem.NewObjects(), stage: mem.NewObjects(),
		ledger: mem.NewTable(ledger.Schema()), target: mem.NewTable(store.Schema{Name: "orders"}),
		revision: 1, live: map[string]ledger.Liveness{}, histories: map[string]*history{}, bindings: map[string]map[string]bool{},
		report: Report{Fates: map[string]int{}, Started: map[string]int{}, Ended: map[string]int{}},
	}
	s.odds = odds{
		fault: []float64{0, 0.01, 0.04, 0.1}[rnd.IntN(4)], late: []float64{0, 0.3, 0.7}[rnd.IntN(3)],
		crash: []float64{0, 0.002, 0.01, 0.03}[rnd.IntN(4)], event: []float64{0, 0.5, 1}[rnd.IntN(3)],
		tick:    []time.Duration{time.Millisecond, 200 * time.Millisecond, 2 * time.Second}[rnd.IntN(3)],
		timeout: []time.Duration{time.Minute, 15 * time.Minute}[rnd.IntN(2)],
	}
	versioned, lookback := rnd.IntN(3) > 0, rnd.IntN(2) == 0
	partBytes := []int{1, 250, 100_000}[rnd.IntN(3)]
	for r := 1; r <= 3; r++ {
		p, err := pipeline.Parse("orders.yaml", []byte(file(r, versioned, lookback, partBytes)))
		if err != nil {
			panic(err) // the text is ours
		}
		s.files = append(s.files, p)
	}
	first := b.Now().UTC().Truncate(time.Hour).Add(-24 * time.Hour)
	for n := range slots {
		s.slots = append(s.slots, etl.Batch{Pipeline: "orders", Slot: first.Add(time.Duration(n) * time.Hour)})
	}
	s.source = newSource(rnd, s.slots)
	return s
}

// file is the pipeline file of a revision. Revision 3 takes back what revision 2 changed.
func file(revision int, versioned, lookback bool, partBytes int) string {
	version, back, clean := "", "0s", "lower"
	if versioned {
		version = "version: version"
	}
	if lookback {
		back = "1h"
	}
	if revision == 2 {
		clean = "upper"
	}
	return fmt.Sprintf(`
pipeline: orders
every: 1h
lookback: %s
source:
  url: http://orders.example/v1/orders
  query: {from: "{window.start}", to: "{window.end}"}
  records: data
  paginate: {cursor: {param: cursor, next: next}}
  cursor_expired: {status: [410]}
  part_bytes: %d
contract:
  revision: %d
  key: [id]
  %s
  fields:
    id: {type: string, required: true}
    version: {type: integer, required: true}
    text: {type: string, clean: [%s]}
  delete: {from: status, equals: deleted}
quarantine: {max_ratio: 0.9, min_rows: 1000}
target: {table: orders}
`, back, partBytes, revision, version, clean)
}

// storm starts what the seed has in store, and lets calls through until all of it is under way and has ended.
func (s *sim) storm() {
	intents := 5 + s.rnd.IntN(8)
	for intents > 0 || s.busy() {
		s.Quiet()
		s.bury()
		switch p := s.rnd.Float64(); {
		case intents > 0 && (p < 0.01 || !s.busy()):
			s.intent(slots + 1 - intents)
			intents--
		case p < 0.014:
			s.source.change(s.rnd)
		case p < 0.016:
			s.deploy()
		case p < 0.02 && len(s.events) > 0:
			s.deliver()
		case p < 0.02+s.odds.crash:
			s.crash()
		default:
			s.step()
		}
	}
}

// drain lets everything that is under way come to its end.
func (s *sim) drain() {
	for s.busy() || len(s.events) > 0 {
		s.Quiet()
		s.bury()
		if len(s.events) > 0 {
			s.deliver()
		}
		s.step()
	}
}

func (s *sim) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running > 0 || len(s.parked) > 0
}

// deploy puts the next revision of the file into force.
func (s *sim) deploy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision = min(s.revision+1, len(s.files))
}

// pipeline is the file in force.
func (s *sim) pipeline(string) (*pipeline.Pipeline, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files[s.revision-1], nil
}

// intent starts an execution that nobody can foresee. The first ones are those of the schedule.
func (s *sim) intent(nth int) {
	b := s.slots[s.rnd.IntN(len(s.slots))]
	if nth <= 0 {
		b = s.slots[-nth%len(s.slots)]
	}
	req := etl.Request{Pipeline: b.Pipeline, Slot: etl.FormatTime(b.Slot)}
	what := "run"
	switch s.rnd.IntN(9) {
	case 0:
		req.Reload, what = true, "reload"
	case 1:
		s.deploy()
		req.Reprocess, what = true, "reprocess"
	case 2:
		req.Refetch, what = true, "refetch"
	case 3, 4:
		if id := s.failed(); id != "" {
			s.report.Started["redrive"]++
			s.launch(id, func(ctx context.Context, r *runner.Runner) (asl.Result, error) { return r.Redrive(ctx, id) })
			return
		}
	}
	s.report.Started[what]++
	s.start(b, req)
}

// failed draws an execution that can be redriven, "" if there is none.
func (s *sim) failed() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for id, h := range s.histories {
		if !h.over && s.live[id] == ledger.Ended && len(h.events) > 0 {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return ""
	}
	slices.Sort(ids)
	return ids[s.rnd.IntN(len(ids))]
}

func (s *sim) start(b etl.Batch, req etl.Request) string {
	id := fmt.Sprintf("execution-%d", s.actors+1)
	s.launch(id, func(ctx context.Context, r *runner.Runner) (asl.Result, error) { return r.Start(ctx, id, b, req) })
	return id
}

// launch runs an execution as an actor of its own.
func (s *sim) launch(id string, run func(context.Context, *runner.Runner) (asl.Result, error)) {
	a := s.actor(id)
	s.mu.Lock()
	s.live[id] = ledger.Running
	s.mu.Unlock()
	go func() {
		res, err := run(a.ctx, a.runner())
		s.mu.Lock()
		defer s.mu.Unlock()
		how := res.State
		if res.Status == asl.Failed {
			how = res.Error
		}
		if err != nil || a.gone() {
			how = "died"
		}
		s.report.Ended[how]++
		if h := s.histories[id]; h != nil && res.Status == asl.Succeeded && err == nil {
			h.over = true
		}
		if !a.gone() {
			s.live[id] = ledger.Ended
		}
		s.running--
	}()
}

// deliver hands one event to Transform.
func (s *sim) deliver() {
	s.mu.Lock()
	i := s.rnd.IntN(len(s.events))
	key := s.events[i]
	s.events = slices.Delete(s.events, i, i+1)
	s.mu.Unlock()
	a := s.actor("event " + key)
	go func() {
		ctx, cancel := context.WithTimeout(a.ctx, s.odds.timeout)
		defer cancel()
		_, _, err := stage.New(a.deps()).Transform.Landed(ctx, key)
		if err != nil && etl.KindOf(err) == etl.RecordsLost {
			s.wrong("event of %s: %w", key, err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.running--
	}()
}

// actor makes a process.
func (s *sim) actor(name string) *actor {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running++
	s.actors++
	a := &actor{sim: s, name: name, number: s.actors}
	a.ctx, a.kill = context.WithCancel(s.ctx)
	return a
}

// crash ends an execution between two calls: its process dies, or it is taken for dead and its functions go on.
func (s *sim) crash() {
	s.mu.Lock()
	var victims []*actor
	for _, p := range s.parked {
		if p.actor != nil && !p.actor.gone() && !slices.Contains(victims, p.actor) {
			victims = append(victims, p.actor)
		}
	}
	if len(victims) == 0 {
		s.mu.Unlock()
		return
	}
	slices.SortFunc(victims, func(a, b *actor) int { return a.number - b.number })
	v := victims[s.rnd.IntN(len(victims))]
	ghost := s.rnd.IntN(2) == 0
	s.mu.Unlock()
	s.end(v, ghost)
	if ghost {
		s.count("ghost")
	} else {
		s.count("crash")
	}
}

// bury ends the processes that died at an event.
func (s *sim) bury() {
	s.mu.Lock()
	dead := s.dying
	s.dying = nil
	s.mu.Unlock()
	for _, a := range dead {
		s.end(a, false)
		s.count("crash at event")
	}
}

// end lets a process die; as a ghost its functions go on although its execution has ended.
func (s *sim) end(a *actor, ghost bool) {
	a.life.Lock()
	a.dead, a.ghost = a.dead || !ghost, a.ghost || ghost
	a.life.Unlock()
	s.mu.Lock()
	if _, ok := s.live[a.name]; ok {
		s.live[a.name] = ledger.Ended
	}
	s.mu.Unlock()
	if !ghost {
		a.kill()
	}
}

func (s *sim) count(fate string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Fates[fate]++
}

// wrong notes a broken promise.
func (s *sim) wrong(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = append(s.broken, fmt.Errorf(format, args...))
}

// Alive implements stage.Liveness.
func (s *sim) Alive(_ context.Context, execution string) (ledger.Liveness, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l, ok := s.live[execution]; ok {
		return l, nil
	}
	return ledger.Unknown, nil
}

// actor is one process: an execution with its functions, or a function that an event called.
type actor struct {
	*sim
	name   string
	number int
	ctx    context.Context //nolint:containedctx // its end is the process's
	kill   context.CancelFunc

	life        sync.Mutex
	dead, ghost bool
	requests    int
}

func (a *actor) gone() bool {
	a.life.Lock()
	defer a.life.Unlock()
	return a.dead || a.ghost
}

func (a *actor) deps() stage.Deps {
	return stage.Deps{
		Raw: objects{a, a.raw}, Stage: objects{a, a.stage}, Ledger: &ledger.Ledger{Table: table{a, a.ledger}},
		Target:    func(context.Context, *pipeline.Pipeline) (store.Table, error) { return table{a, a.target}, nil },
		Pipelines: a.pipeline, Liveness: a, Secrets: noSecrets{}, HTTP: &http.Client{Transport: a},
		Rand: func() float64 { return 0.5 }, Margin: 5 * time.Second,
	}
}

func (a *actor) runner() *runner.Runner {
	handlers := stage.New(a.deps()).Handlers()
	for name, h := range handlers {
		handlers[name] = func(ctx context.Context, payload []byte) ([]byte, error) {
			if a.gone() {
				return nil, errDead // Step Functions calls no function for an execution that has ended
			}
			defer func() {
				if p := recover(); p != nil { // a retry must not heal what is a bug
					a.wrong("%s panicked: %v", name, p)
					panic(p)
				}
			}()
			return h(context.WithValue(ctx, invocation{}, hash(name, string(payload))), payload)
		}
	}
	return &runner.Runner{Handlers: handlers, History: a, Timeout: a.odds.timeout, Rand: func() float64 { return 0.5 }, RequestID: a.requestID}
}

func (a *actor) requestID() string {
	a.life.Lock()
	defer a.life.Unlock()
	a.requests++
	return fmt.Sprintf("request %d of %d", a.requests, a.number)
}

var errDead = errors.New("the process is dead")

// Begin implements runner.History.
func (a *actor) Begin(_ context.Context, e runner.Execution) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.histories[e.ID] = &history{e: e}
	return nil
}

// Append implements runner.History. The process may die before or after an event is kept.
func (a *actor) Append(_ context.Context, execution string, e asl.Event) error {
	if a.gone() {
		return errDead
	}
	odds := float64(hash(a.seed, a.number, e.Type, e.State, e.Time.UnixNano())%100_000) / 100_000
	if a.calm || e.Path != "" { // iterations record in no order that a seed could give
		odds = 0.5
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if odds < a.odds.crash/2 {
		a.dying = append(a.dying, a)
		return errDead
	}
	a.histories[execution].events = append(a.histories[execution].events, e)
	if odds > 1-a.odds.crash/2 {
		a.dying = append(a.dying, a)
		return errDead
	}
	return nil
}

// Load implements runner.History.
func (a *actor) Load(_ context.Context, execution string) (runner.Execution, []asl.Event, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h, ok := a.histories[execution]
	if !ok {
		return runner.Execution{}, nil, etl.Errorf(etl.Usage, "no execution %s", execution)
	}
	return h.e, slices.Clone(h.events), nil
}

type noSecrets struct{}

func (noSecrets) Secret(_ context.Context, name string) (string, error) {
	return "", etl.Errorf(etl.SourceRejected, "no secret %s", name)
}

// window reads the window that a source request asks for.
func window(r *http.Request) (from, to time.Time, err error) {
	q := r.URL.Query()
	if from, err = time.Parse(time.RFC3339, q.Get("from")); err == nil {
		to, err = time.Parse(time.RFC3339, q.Get("to"))
	}
	return from, to, err
}

// cursor splits a cursor into its session and offset.
func cursor(s string) (session string, offset int) {
	session, at, _ := strings.Cut(s, ".")
	if _, err := fmt.Sscan(at, &offset); err != nil {
		return "", 0
	}
	return session, offset
}
