package stage_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/stage"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/mem"
)

// rigFile has one page a part. A test changes it by replacing lines.
const rigFile = `
pipeline: rows
every: 1h
source:
  url: http://rows.example/rows
  records: data
  paginate: {page: {param: page, total_pages: pages}}
  part_bytes: 1
  retry: {attempts: 2}
contract:
  revision: 1
  key: [id]
  version: v
  fields:
    id: {type: string, required: true}
    v: {type: integer, required: true}
    text: {type: string}
target: {table: rows}
`

// rig is the stages over stores in memory, and a source that serves what the test says.
type rig struct {
	*stage.Stages
	t          *testing.T
	raw, stage *mem.Objects
	table      *mem.Table // of the ledger
	target     *mem.Table
	ledger     *ledger.Ledger
	lines      bytes.Buffer // of the log
	batch      etl.Batch
	execution  string

	mu     sync.Mutex
	now    time.Time
	took   time.Duration // by each request
	file   *pipeline.Pipeline
	broken error             // of finding the file
	pages  []string          // records of each page
	body   string            // answered instead, if set
	onAsk  func(page string) // may be nil
	asked  []string
	onCall mem.Fault
	cut    int // which of the next objects read from stage breaks off in its middle, for a reason of the store's; 0 = none
}

// breaking are the stage objects of a rig.
type breaking struct {
	store.Objects
	r *rig
}

func (b breaking) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	obj, err := b.Objects.Get(ctx, key)
	if b.r.cut--; err != nil || b.r.cut != 0 {
		return obj, err
	}
	info, err := b.Head(ctx, key)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(io.LimitReader(obj, info.Size/2), iotest.ErrReader(errDown)), obj}, nil
}

func newRig(t *testing.T, file string, pages ...string) *rig {
	t.Helper()
	r := &rig{t: t, raw: mem.NewObjects(), stage: mem.NewObjects(), table: mem.NewTable(ledger.Schema()),
		target: mem.NewTable(store.Schema{Name: "rows"}), execution: "mine", pages: pages, took: time.Second,
		batch: etl.Batch{Pipeline: "rows", Slot: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)},
		now:   time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}
	hook := func(op, key string) (bool, error) {
		if r.onCall == nil {
			return true, nil
		}
		return r.onCall(op, key)
	}
	r.raw.OnCall, r.stage.OnCall, r.table.OnCall, r.target.OnCall = hook, hook, hook, hook
	r.ledger = &ledger.Ledger{Table: r.table, Now: r.clock}
	r.swap(file)
	r.Stages = stage.New(stage.Deps{
		Raw: r.raw, Stage: breaking{r.stage, r}, Ledger: r.ledger, Liveness: ended{}, Secrets: noSecrets{},
		Target:    func(context.Context, *pipeline.Pipeline) (store.Table, error) { return r.target, nil },
		Pipelines: func(string) (*pipeline.Pipeline, error) { return r.file, r.broken },
		HTTP:      &http.Client{Transport: r}, Log: slog.New(slog.NewTextHandler(&r.lines, nil)), Now: r.clock, Rand: func() float64 { return 0.5 },
		Sleep: func(ctx context.Context, d time.Duration) error { r.pass(d); return ctx.Err() },
	})
	return r
}

// swap replaces the pipeline file.
func (r *rig) swap(file string) {
	r.t.Helper()
	p, err := pipeline.Parse("rows.yaml", []byte(file))
	must(r.t, err)
	r.file = p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) clock() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func (r *rig) pass(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = r.now.Add(d)
}

// RoundTrip serves a page.
func (r *rig) RoundTrip(req *http.Request) (*http.Response, error) {
	r.pass(r.took)
	r.mu.Lock()
	defer r.mu.Unlock()
	page := req.URL.Query().Get("page")
	r.asked = append(r.asked, page)
	if r.onAsk != nil {
		r.onAsk(page)
	}
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	body := r.body
	if body == "" {
		n, err := strconv.Atoi(page)
		if err != nil || n < 1 || n > len(r.pages) {
			return nil, fmt.Errorf("there is no page %q", page)
		}
		body = fmt.Sprintf(`{"pages":%d,"data":[%s]}`, len(r.pages), r.pages[n-1])
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
}

// rec is a record; many is n of them with different keys.
func rec(id string, v int, text string) string {
	return fmt.Sprintf(`{"id":%q,"v":%d,"text":%q}`, id, v, text)
}

func many(n int) string {
	var out []string
	for i := range n {
		out = append(out, rec(fmt.Sprint("id", i), 1, "x"))
	}
	return strings.Join(out, ",")
}

// bad is n records that cannot be right.
func bad(n int) string {
	return strings.TrimSuffix(strings.Repeat(`{"id":null,"v":1},`, n), ",")
}

func join(records ...string) string {
	var some []string
	for _, r := range records {
		if r != "" {
			some = append(some, r)
		}
	}
	return strings.Join(some, ",")
}

func (r *rig) request() etl.Request {
	return etl.Request{Pipeline: "rows", Slot: etl.FormatTime(r.batch.Slot)}
}

func (r *rig) extract() (etl.Progress, error) {
	return r.Extract.Run(r.t.Context(), etl.ExtractInput{Execution: r.execution, Request: r.request()})
}

// landed extracts and transforms.
func (r *rig) landed() etl.Progress {
	r.t.Helper()
	p, err := r.extract()
	must(r.t, err)
	if p.Status != etl.StatusLanded {
		r.t.Fatalf("extract: %+v", p)
	}
	r.transform(p)
	return p
}

func (r *rig) transform(p etl.Progress) {
	r.t.Helper()
	for _, run := range p.Ranges {
		_, err := r.Transform.Run(r.t.Context(), etl.RangeInput{Execution: r.execution, Batch: p.Batch, Fence: p.Fence, Extraction: p.Extraction, Range: run})
		must(r.t, err)
	}
}

func (r *rig) gate(p etl.Progress, stale int) (etl.GateOutput, error) {
	return r.Gate.Run(r.t.Context(), etl.GateInput{Execution: r.execution, Batch: p.Batch, Fence: p.Fence, Extraction: p.Extraction, Stale: stale})
}

// bound is a batch that has passed the gate.
func (r *rig) bound() (etl.Progress, etl.GateOutput) {
	r.t.Helper()
	p := r.landed()
	g, err := r.gate(p, 0)
	must(r.t, err)
	if g.Status != etl.StatusPassed {
		r.t.Fatalf("gate: %+v", g)
	}
	return p, g
}

func (r *rig) load(p etl.Progress, g etl.GateOutput) error {
	for _, run := range g.Ranges {
		out, err := r.Load.Run(r.t.Context(), etl.LoadInput{Execution: r.execution, Batch: p.Batch, Fence: p.Fence, Binding: g.Binding, Load: g.Load,
			Position: etl.LoadPosition{Range: run}})
		if err != nil {
			return err
		}
		if out.Status != etl.StatusDone {
			r.t.Fatalf("load: %+v", out)
		}
	}
	return nil
}

func (r *rig) settle(p etl.Progress, g etl.GateOutput) (etl.SettleOutput, error) {
	return r.Settle.Run(r.t.Context(), etl.SettleInput{Op: etl.OpSettle, Execution: r.execution, Batch: p.Batch, Fence: p.Fence, Binding: g.Binding, Load: g.Load})
}

// rows are the target's rows as `id text`.
func (r *rig) rows() string {
	var out []string
	for _, it := range r.target.Items() {
		var doc struct{ Text string }
		must(r.t, json.Unmarshal(it.Doc, &doc))
		out = append(out, it.PK+" "+doc.Text)
	}
	return strings.Join(out, ", ")
}

func wantKind(t *testing.T, err error, kind etl.Kind, says ...string) {
	t.Helper()
	if err == nil || etl.KindOf(err) != kind {
		t.Fatalf("%v (%s), want %s", err, etl.KindOf(err), kind)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%v does not say %q", err, s)
		}
	}
}

var errDown = etl.Errorf(etl.StoreUnavailable, "connection reset")
