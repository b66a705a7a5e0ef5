package runner_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/onceload/onceload/pkg/asl"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/ordersapi"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/runner"
	"github.com/onceload/onceload/pkg/snapshot"
	"github.com/onceload/onceload/pkg/stage"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/mem"
)

// ordersFile reads the orders API in small parts. `#…` lines are replaced by what a test adds.
const ordersFile = `
pipeline: orders
every: 1h
source:
  url: http://orders.example/v1/orders
  query: {updated_from: "{window.start}", updated_to: "{window.end}", limit: 5}
  records: data
  paginate: {cursor: {param: cursor, next: meta.next_cursor}}
  part_bytes: 2500
  #source
contract:
  key: [shop, order_id]
  version: updated_at
  fields:
    shop: {type: string, const: eu}
    order_id: {type: string, required: true}
    email: {type: string, from: customer.email, clean: [trim, lower]}
    total: {type: decimal, from: valor, min: 0}
    status: {type: string}
    items: {type: document}
    updated_at: {type: timestamp, required: true}
  delete: {from: status, equals: deleted}
quarantine: {max_ratio: 0.3, min_rows: 3}
target: {table: orders}
`

var (
	errReply = etl.Errorf(etl.StoreUnavailable, "connection reset")
	errDead  = errors.New("the process is dead")
	firstDay = time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
)

func parse(t testing.TB, text string) *pipeline.Pipeline {
	t.Helper()
	p, err := pipeline.Parse("orders.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// slot is the nth slot of the day.
func slot(n int) etl.Batch {
	return etl.Batch{Pipeline: "orders", Slot: firstDay.Add(time.Duration(n) * time.Hour)}
}

func request(b etl.Batch) etl.Request {
	return etl.Request{Pipeline: b.Pipeline, Slot: etl.FormatTime(b.Slot)}
}

// clock is virtual: sleeping moves it.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func (c *clock) sleep(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.add(d)
	return nil
}

// world is what outlives a process: the stores, the clock, the source, who is alive. It writes down whatever happens that
// must never happen.
type world struct {
	raw, stage     *mem.Objects
	ledger, target *mem.Table
	clock          *clock
	api            http.Handler

	mu        sync.Mutex
	live      map[string]ledger.Liveness
	histories map[string]*history
	landed    map[string]bool // URL of a landed page
	asked     map[string]int  // URL → requests
	broken    []string
	ids       int
	lenient   bool // overlapping executions may well fetch what another landed meanwhile
}

type history struct {
	e      runner.Execution
	events []asl.Event
}

func newWorld(api http.Handler) *world {
	return &world{
		raw: mem.NewObjects(), stage: mem.NewObjects(),
		ledger: mem.NewTable(ledger.Schema()), target: mem.NewTable(store.Schema{Name: "orders"}),
		clock: &clock{at: firstDay.Add(24 * time.Hour)}, api: api,
		live: map[string]ledger.Liveness{}, histories: map[string]*history{}, landed: map[string]bool{}, asked: map[string]int{},
	}
}

// clone is a world of its own with the same content, and a source of its own.
func (w *world) clone(t testing.TB, api http.Handler) *world {
	t.Helper()
	c := newWorld(api)
	for _, pair := range [][2]*mem.Objects{{w.raw, c.raw}, {w.stage, c.stage}} {
		for info, err := range pair[0].List(t.Context(), "") {
			must(t, err)
			must(t, pair[1].PutOnce(t.Context(), info.Key, read(t, pair[0], info.Key)))
		}
	}
	for _, pair := range [][2]*mem.Table{{w.ledger, c.ledger}, {w.target, c.target}} {
		for _, item := range pair[0].Items() {
			must(t, pair[1].PutIf(t.Context(), item, store.Condition{}))
		}
	}
	c.clock.at = w.clock.now()
	c.live, c.landed, c.ids = maps.Clone(w.live), maps.Clone(w.landed), w.ids
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, from *mem.Objects, key string) []byte {
	t.Helper()
	r, err := from.Get(t.Context(), key)
	must(t, err)
	b, err := io.ReadAll(r)
	must(t, err)
	return b
}

func (w *world) wrong(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}

func (w *world) setLive(execution string, l ledger.Liveness) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.live[execution] = l
}

// Alive implements stage.Liveness.
func (w *world) Alive(_ context.Context, execution string) (ledger.Liveness, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return cmp.Or(w.live[execution], ledger.Unknown), nil
}

// fate is what becomes of a call.
type fate int

const (
	pass       fate = iota
	refuse          // an error, and nothing done; of several items the first half is written all the same
	lose            // done, and an error all the same
	dieBefore       // the process dies: nothing done, and no call of its after
	dieAfter        // done, then the process dies
	holdBefore      // waits for process.hold, then is done
	holdAfter       // done, then waits for process.hold
)

// process is one process over a world.
type process struct {
	*world
	pipelines func(string) (*pipeline.Pipeline, error)
	plan      func(n int, op, key string) fate // of the nth store call, from 1; nil: all pass
	appends   func(n int) fate                 // of the nth event of the history
	hold      func()
	before    func(etl.Stage, []byte)                      // sees each function call
	around    func(etl.Stage, stage.Handler) stage.Handler // replaces handlers
	limit     time.Duration                                // of a function call, on the virtual clock
	margin    time.Duration
	tick      time.Duration // how long a store call or a request takes
	alerts    stage.Alerts
	watch     func(stage.Tick)
	parallel  int           // Map concurrency; 0 = 1
	timeout   time.Duration // of a function call, in truth
	log       *slog.Logger

	counter sync.Mutex
	calls   int
	ops     []string
	events  int
	dead    bool
	kill    context.CancelFunc
}

func (w *world) process(p *pipeline.Pipeline) *process {
	return &process{world: w, pipelines: func(string) (*pipeline.Pipeline, error) { return p, nil }, tick: 10 * time.Millisecond}
}

func (p *process) die() {
	p.counter.Lock()
	defer p.counter.Unlock()
	p.dead = true
	p.kill()
}

func (p *process) isDead() bool {
	p.counter.Lock()
	defer p.counter.Unlock()
	return p.dead
}

// budgetKey finds how many store calls a function call may still make before it dies alone.
type budgetKey struct{}

// call makes one store call as the plan has it. half says that less than everything is done when it is refused.
func (p *process) call(ctx context.Context, op, key string, do func() error, half func() error) error {
	if left, ok := ctx.Value(budgetKey{}).(*atomic.Int64); ok && left.Add(-1) < 0 {
		return errDead
	}
	p.counter.Lock()
	if p.dead {
		p.counter.Unlock()
		return errDead
	}
	p.calls++
	n := p.calls
	p.ops = append(p.ops, op+" "+key)
	p.counter.Unlock()
	p.clock.add(p.tick)
	f := pass
	if p.plan != nil {
		f = p.plan(n, op, key)
	}
	if (f == refuse || f == dieBefore) && half != nil {
		if err := half(); err != nil {
			return err
		}
	}
	switch f {
	case refuse:
		return fmt.Errorf("%s %s: %w", op, key, errReply)
	case dieBefore:
		p.die()
		return errDead
	case holdBefore:
		p.hold()
	}
	err := do()
	switch f {
	case lose:
		return fmt.Errorf("%s %s: %w", op, key, errReply)
	case dieAfter:
		p.die()
		return errDead
	case holdAfter:
		p.hold()
	}
	return err
}

// objects is a bucket as the process sees it.
type objects struct {
	p  *process
	in *mem.Objects
}

func (o objects) PutOnce(ctx context.Context, key string, body []byte) error {
	return o.p.call(ctx, "PutOnce", key, func() error {
		err := o.in.PutOnce(ctx, key, body)
		if err == nil {
			o.p.noteLanded(ctx, key)
		}
		return err
	}, nil)
}

// noteLanded notes the pages of a landed part.
func (w *world) noteLanded(ctx context.Context, key string) {
	o, err := etl.ParseKey(key)
	if err != nil || o.Kind != etl.RawPart {
		return
	}
	f, err := snapshot.ReadFooter(ctx, w.raw, key)
	if err != nil {
		w.wrong("landed %s cannot be read: %v", key, err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range f.Pages {
		w.landed[fmt.Sprint(o.Binding.Extraction, " ", p.URL)] = true
	}
}

func (o objects) Put(ctx context.Context, key string, body io.Reader) error {
	return o.p.call(ctx, "Put", key, func() error {
		var old []byte
		if r, err := o.in.Get(ctx, key); err == nil {
			old, _ = io.ReadAll(r)
		}
		if err := o.in.Put(ctx, key, body); err != nil {
			return err
		}
		if r, err := o.in.Get(ctx, key); err == nil && old != nil {
			if now, _ := io.ReadAll(r); !bytes.Equal(now, old) {
				o.p.wrong("%s was written again with another content", key)
			}
		}
		return nil
	}, nil)
}

func (o objects) Get(ctx context.Context, key string) (r io.ReadCloser, err error) {
	err = o.p.call(ctx, "Get", key, func() error { r, err = o.in.Get(ctx, key); return err }, nil)
	return r, err
}

func (o objects) GetRange(ctx context.Context, key string, off, n int64) (b []byte, err error) {
	err = o.p.call(ctx, "GetRange", key, func() error { b, err = o.in.GetRange(ctx, key, off, n); return err }, nil)
	return b, err
}

func (o objects) Head(ctx context.Context, key string) (i store.Info, err error) {
	err = o.p.call(ctx, "Head", key, func() error { i, err = o.in.Head(ctx, key); return err }, nil)
	return i, err
}

func (o objects) List(ctx context.Context, prefix string) iter.Seq2[store.Info, error] {
	return seq(ctx, o.p, "List", prefix, o.in.List(ctx, prefix))
}

func seq[T any](ctx context.Context, p *process, op, key string, in iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var all []T
		err := p.call(ctx, op, key, func() error {
			for v, err := range in {
				if err != nil {
					return err
				}
				all = append(all, v)
			}
			return nil
		}, nil)
		if err != nil {
			var zero T
			yield(zero, err)
			return
		}
		for _, v := range all {
			if !yield(v, nil) {
				return
			}
		}
	}
}

// table is a table as the process sees it.
type table struct {
	p  *process
	in *mem.Table
}

func (x table) Get(ctx context.Context, key store.Key) (it store.Item, err error) {
	err = x.p.call(ctx, "Get", key.Name(), func() error { it, err = x.in.Get(ctx, key); return err }, nil)
	return it, err
}

func (x table) Ranks(ctx context.Context, keys []store.Key) (m map[store.Key]string, err error) {
	err = x.p.call(ctx, "Ranks", "", func() error { m, err = x.in.Ranks(ctx, keys); return err }, nil)
	return m, err
}

func (x table) Query(ctx context.Context, q store.Query) iter.Seq2[store.Item, error] {
	return seq(ctx, x.p, "Query", q.PK+" "+q.SKPrefix, x.in.Query(ctx, q))
}

func (x table) PutIf(ctx context.Context, it store.Item, c store.Condition) error {
	return x.p.call(ctx, "PutIf", it.Key.Name(), func() error {
		x.p.mu.Lock()
		old, err := x.in.Get(ctx, it.Key)
		there := err == nil
		err = x.in.PutIf(ctx, it, c)
		x.p.mu.Unlock()
		if there && err == nil && !strings.HasPrefix(it.PK, "source#") {
			x.p.judge(old, it)
		}
		return err
	}, nil)
}

// judge holds a change of a ledger item against the rules: facts never change but for the mark of a failure, a batch
// item is written by its owner alone until another owner raises the fence, and COMPLETED is left by a new owner only. B6
func (w *world) judge(old, now store.Item) {
	switch {
	case strings.HasPrefix(now.SK, etl.FailurePrefix):
		var a, b ledger.FailureInfo
		if json.Unmarshal(old.Doc, &a) != nil || json.Unmarshal(now.Doc, &b) != nil || a.Raised != "" {
			w.wrong("failure %s was written twice", now.Key.Name())
		}
	case now.SK != etl.BatchSK:
		w.wrong("fact %s changed from %s to %s", now.Key.Name(), old.Doc, now.Doc)
	default:
		var a, b ledger.Batch
		if json.Unmarshal(old.Doc, &a) != nil || json.Unmarshal(now.Doc, &b) != nil {
			w.wrong("batch item: %s, %s", old.Doc, now.Doc)
			return
		}
		switch {
		case a.Owner == b.Owner && a.Fence != b.Fence, a.Owner != b.Owner && b.Fence != a.Fence+1:
			w.wrong("owner %s fence %d became %s fence %d", a.Owner, a.Fence, b.Owner, b.Fence)
		case a.State == ledger.StateCompleted && a.Owner == b.Owner:
			w.wrong("a completed batch was changed by %s", b.Owner)
		}
	}
}

func (x table) PutHigher(ctx context.Context, items []store.Item) (out []store.Outcome, err error) {
	put := func(items []store.Item) func() error {
		return func() error { out, err = x.in.PutHigher(ctx, items); return err }
	}
	err = x.p.call(ctx, "PutHigher", "", put(items), put(items[:len(items)/2]))
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (x table) PutAllHigher(ctx context.Context, items []store.Item) (out []store.Outcome, err error) {
	err = x.p.call(ctx, "PutAllHigher", "", func() error { out, err = x.in.PutAllHigher(ctx, items); return err }, nil)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Begin implements runner.History.
func (p *process) Begin(_ context.Context, e runner.Execution) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.histories[e.ID] = &history{e: e}
	return nil
}

// Append implements runner.History.
func (p *process) Append(_ context.Context, execution string, e asl.Event) error {
	p.counter.Lock()
	dead := p.dead
	p.events++
	n := p.events
	p.counter.Unlock()
	f := pass
	if p.appends != nil {
		f = p.appends(n)
	}
	if dead || f == dieBefore {
		p.die()
		return errDead
	}
	// Through JSON, as a history on disk goes.
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	var kept asl.Event
	if err := json.Unmarshal(text, &kept); err != nil {
		return err
	}
	p.mu.Lock()
	h := p.histories[execution]
	h.events = append(h.events, kept)
	p.mu.Unlock()
	if f == dieAfter {
		p.die()
		return errDead
	}
	return nil
}

// Load implements runner.History.
func (p *process) Load(_ context.Context, execution string) (runner.Execution, []asl.Event, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, ok := p.histories[execution]
	if !ok {
		return runner.Execution{}, nil, etl.Errorf(etl.Usage, "no execution %s", execution)
	}
	return h.e, slices.Clone(h.events), nil
}

// RoundTrip asks the source in process, without a network.
func (p *process) RoundTrip(r *http.Request) (*http.Response, error) {
	if p.isDead() {
		return nil, errDead
	}
	p.clock.add(p.tick)
	p.mu.Lock()
	p.asked[r.URL.String()]++
	if !p.lenient && p.landed["1 "+r.URL.String()] {
		p.broken = append(p.broken, "fetched again although it had landed: "+r.URL.String())
	}
	p.mu.Unlock()
	rec := httptest.NewRecorder()
	cut := func() (cut bool) {
		defer func() {
			err, _ := recover().(error)
			cut = errors.Is(err, http.ErrAbortHandler)
		}()
		p.api.ServeHTTP(rec, r)
		return false
	}()
	res := rec.Result()
	res.Request = r
	if cut {
		res.Body = io.NopCloser(io.MultiReader(rec.Body, brokenOff{}))
	}
	return res, nil
}

type brokenOff struct{}

func (brokenOff) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// limited is a context with a deadline on the virtual clock.
type limited struct {
	context.Context
	until time.Time
}

func (l limited) Deadline() (time.Time, bool) { return l.until, true }

type noSecrets struct{}

func (noSecrets) Secret(_ context.Context, name string) (string, error) {
	return "", etl.Errorf(etl.SourceRejected, "no secret %s", name)
}

func (p *process) runner() *runner.Runner {
	s := stage.New(stage.Deps{
		Raw: objects{p, p.raw}, Stage: objects{p, p.stage},
		Ledger:    &ledger.Ledger{Table: table{p, p.ledger}, Now: p.clock.now},
		Target:    func(context.Context, *pipeline.Pipeline) (store.Table, error) { return table{p, p.target}, nil },
		Pipelines: p.pipelines, Liveness: p, Secrets: noSecrets{}, Alerts: p.alerts,
		HTTP: &http.Client{Transport: p}, Now: p.clock.now, Sleep: p.clock.sleep, Rand: func() float64 { return 0.5 },
		Margin: p.margin, Watch: p.watch,
	})
	handlers := s.Handlers()
	for name, h := range handlers {
		if p.around != nil {
			h = p.around(name, h)
		}
		handlers[name] = func(ctx context.Context, payload []byte) ([]byte, error) {
			if p.before != nil {
				p.before(name, payload)
			}
			if p.limit > 0 {
				ctx = limited{ctx, p.clock.now().Add(p.limit)}
			}
			return h(ctx, payload)
		}
	}
	return &runner.Runner{
		Handlers: handlers, History: p, Now: p.clock.now, Sleep: p.clock.sleep, Rand: func() float64 { return 0.5 },
		RequestID: p.requestID, Concurrency: cmp.Or(p.parallel, 1), Timeout: p.timeout, Log: p.log,
	}
}

func (w *world) requestID() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ids++
	return fmt.Sprintf("request-%d", w.ids)
}

// start runs an execution to its end; when it returns, the execution is over.
func (p *process) start(id string, req etl.Request) (asl.Result, error) {
	b, err := req.Batch(etl.Schedule{Every: time.Hour})
	if err != nil {
		return asl.Result{}, err
	}
	return p.alive(id, func(ctx context.Context) (asl.Result, error) { return p.runner().Start(ctx, id, b, req) })
}

func (p *process) redrive(id string) (asl.Result, error) {
	return p.alive(id, func(ctx context.Context) (asl.Result, error) { return p.runner().Redrive(ctx, id) })
}

func (p *process) alive(id string, run func(context.Context) (asl.Result, error)) (asl.Result, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p.kill = cancel
	p.setLive(id, ledger.Running)
	defer p.setLive(id, ledger.Ended)
	return run(ctx)
}

// succeed is start for an execution that must complete its batch.
func (p *process) succeed(t testing.TB, id string, req etl.Request) asl.Result {
	t.Helper()
	res, err := p.start(id, req)
	succeeded(t, res, err)
	return res
}

func succeeded(t testing.TB, res asl.Result, err error) {
	t.Helper()
	if err != nil || res.Status != asl.Succeeded || res.State != "Completed" {
		t.Fatalf("execution ended in %s: %s %s %s, %v", res.State, res.Status, res.Error, res.Cause, err)
	}
}

// failed is start for an execution that must fail with a kind.
func (p *process) failed(t testing.TB, id string, req etl.Request, kind etl.Kind) asl.Result {
	t.Helper()
	res, err := p.start(id, req)
	wantFailed(t, res, err, kind)
	return res
}

func wantFailed(t testing.TB, res asl.Result, err error, kind etl.Kind) {
	t.Helper()
	if err != nil || res.Status != asl.Failed || res.Error != string(kind) {
		t.Fatalf("execution ended in %s: %s %s %s, %v; want %s", res.State, res.Status, res.Error, res.Cause, err, kind)
	}
}

func (w *world) batch(t testing.TB, b etl.Batch) ledger.Batch {
	t.Helper()
	got, err := (&ledger.Ledger{Table: w.ledger}).Get(t.Context(), b)
	must(t, err)
	return got
}

func (w *world) view(t testing.TB, b etl.Batch) ledger.View {
	t.Helper()
	v, err := (&ledger.Ledger{Table: w.ledger}).View(t.Context(), b)
	must(t, err)
	return v
}

// rows are the target's rows as B5 compares them: key, rank, _deleted and the columns without a leading `_`.
func (w *world) rows(t testing.TB) []string {
	t.Helper()
	var out []string
	for _, it := range w.target.Items() {
		var doc map[string]json.RawMessage
		must(t, json.Unmarshal(it.Doc, &doc))
		maps.DeleteFunc(doc, func(name string, _ json.RawMessage) bool { return name[0] == '_' && name != "_deleted" })
		text, err := json.Marshal(doc)
		must(t, err)
		out = append(out, it.Key.Name()+" "+it.Rank+" "+string(text))
	}
	return out
}

// quarantined are the quarantine lines of what a batch is bound to, without their places, which depend on how pages fell into parts.
func (w *world) quarantined(t testing.TB, b etl.Batch) []string {
	t.Helper()
	out := []string{}
	bound := w.batch(t, b).Binding
	for info, err := range w.stage.List(t.Context(), "quarantine/") {
		must(t, err)
		if o, err := etl.ParseKey(info.Key); err != nil || o.Batch != b || o.Binding != *bound {
			continue
		}
		gz, err := gzip.NewReader(bytes.NewReader(read(t, w.stage, info.Key)))
		must(t, err)
		all, err := io.ReadAll(gz)
		must(t, err)
		for line := range strings.Lines(string(all)) {
			var l struct {
				Reasons, Record json.RawMessage
			}
			must(t, json.Unmarshal([]byte(line), &l))
			out = append(out, string(l.Reasons)+" "+string(l.Record))
		}
	}
	slices.Sort(out)
	return out
}

// outcome is what any way to the end of a batch must come to.
type outcome struct {
	rows, quarantine             []string
	pages, records, valid, taken int64
}

func (w *world) outcome(t testing.TB, b etl.Batch) outcome {
	t.Helper()
	got := w.batch(t, b)
	if got.State != ledger.StateCompleted || got.Counts == nil {
		t.Fatalf("batch %s is %s in %s", b, got.State, got.Stage)
	}
	c := *got.Counts
	if c.Valid != c.Total() || c.Records != c.Valid+c.Quarantined || c.Written != c.New+c.Updated {
		t.Fatalf("the counts do not balance: %+v", c) // B7
	}
	o := outcome{w.rows(t), w.quarantined(t, b), c.Pages, c.Records, c.Valid, c.Written + c.Unchanged}
	if int64(len(o.quarantine)) != c.Quarantined {
		t.Fatalf("%d quarantine lines, %d counted", len(o.quarantine), c.Quarantined)
	}
	for _, what := range w.broken {
		t.Error(what)
	}
	return o
}

func (o outcome) equal(t testing.TB, want outcome) {
	t.Helper()
	if !slices.Equal(o.rows, want.rows) {
		t.Errorf("the table differs:\n%s", diff(o.rows, want.rows))
	}
	if !slices.Equal(o.quarantine, want.quarantine) {
		t.Errorf("quarantine differs:\n%s", diff(o.quarantine, want.quarantine))
	}
	o.rows, o.quarantine, want.rows, want.quarantine = nil, nil, nil, nil
	if fmt.Sprint(o) != fmt.Sprint(want) {
		t.Errorf("counts %+v, want %+v", o, want)
	}
}

func diff(got, want []string) string {
	var b strings.Builder
	for _, s := range got {
		if !slices.Contains(want, s) {
			fmt.Fprintf(&b, "+ %.300s\n", s)
		}
	}
	for _, s := range want {
		if !slices.Contains(got, s) {
			fmt.Fprintf(&b, "- %.300s\n", s)
		}
	}
	return b.String()
}

// noLeaks fails the test if goroutines are left over after it.
func noLeaks(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for range 100 {
			if runtime.NumGoroutine() <= before {
				return
			}
			time.Sleep(time.Millisecond)
		}
		buf := make([]byte, 1<<20)
		t.Errorf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
	})
}

// shop is the source of most tests: late updates, duplicates, deletes, bad rows.
func shop() http.Handler {
	return ordersapi.New(ordersapi.Config{Seed: 7, Rows: 24, PageSize: 5,
		Faults: ordersapi.Faults{BadEvery: 8, Duplicate: true, Late: true, Delete: true}})
}

// afterFirst is a world in which slot 0 is loaded: the orders that later slots change.
func afterFirst(t testing.TB, p *pipeline.Pipeline) *world {
	t.Helper()
	w := newWorld(shop())
	w.process(p).succeed(t, "first", request(slot(0)))
	return w
}
