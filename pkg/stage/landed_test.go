package stage_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/snapshot"
	"github.com/onceload/onceload/pkg/stage"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/mem"
)

const tinyFile = `
pipeline: tiny
every: 1h
source: {url: "https://api.example.com/v1/things", records: "", paginate: {none: {}}}
contract: {key: [id], fields: {id: {type: string, required: true}}}
target: {table: tiny}
`

// afterLanding is a world with one batch that has landed one part.
type afterLanding struct {
	stages     *stage.Stages
	ledger     *ledger.Ledger
	table      *mem.Table
	raw, stage *mem.Objects
	batch      etl.Batch
	owner      ledger.Owner

	described stage.Described // what Step Functions says of the execution "mine"
	trouble   error           // or that it cannot be asked
	alerts    []stage.Alert
	deaf      error // that alerts cannot be sent
}

func (a *afterLanding) Describe(_ context.Context, execution string) (stage.Described, error) {
	if execution != "mine" {
		return stage.Described{}, store.ErrNotFound
	}
	return a.described, a.trouble
}

func (a *afterLanding) Alert(_ context.Context, alert stage.Alert) error {
	a.alerts = append(a.alerts, alert)
	return a.deaf
}

func newAfterLanding(t *testing.T) *afterLanding {
	t.Helper()
	now := func() time.Time { return time.Date(2026, 11, 30, 11, 0, 30, 0, time.UTC) }
	a := &afterLanding{table: mem.NewTable(ledger.Schema()), raw: mem.NewObjects(), stage: mem.NewObjects(),
		batch: etl.Batch{Pipeline: "tiny", Slot: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)}}
	a.ledger = &ledger.Ledger{Table: a.table, Now: now}
	p, err := pipeline.Parse("tiny.yaml", []byte(tinyFile))
	if err != nil {
		t.Fatal(err)
	}
	a.stages = stage.New(stage.Deps{
		Raw: a.raw, Stage: a.stage, Ledger: a.ledger, Executions: a, Alerts: a, Now: now,
		Pipelines: func(name string) (*pipeline.Pipeline, error) {
			if name != "tiny" {
				return nil, etl.Errorf(etl.Usage, "no pipeline %s", name)
			}
			return p, nil
		},
	})
	claim, err := a.ledger.Claim(t.Context(), ledger.ClaimRequest{
		Batch: a.batch, Execution: "mine", Window: p.Schedule.Window(a.batch.Slot), PipelineDigest: p.Digest,
		Alive: func(context.Context, string) (ledger.Liveness, error) { return 0, errors.New("nobody asks") },
	})
	if err != nil {
		t.Fatal(err)
	}
	a.owner = claim.Owner
	a.land(t, 1)
	return a
}

func (a *afterLanding) land(t *testing.T, extraction int) {
	t.Helper()
	w := snapshot.NewPartWriter(a.batch, extraction, 0)
	if err := w.Add([]byte(`[{"id":"a"},{"id":"b"},{"id":null}]`), snapshot.Page{Records: 3, Status: 200, FetchedAt: a.batch.Slot, Before: []byte("{}"), After: []byte("{}"), Done: true}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Land(t.Context(), a.raw); err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, from *mem.Objects) map[string]string {
	t.Helper()
	out := map[string]string{}
	for info, err := range from.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		r, err := from.Get(t.Context(), info.Key)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if _, err := b.ReadFrom(r); err != nil {
			t.Fatal(err)
		}
		r.Close()
		out[info.Key] = b.String()
	}
	return out
}

// TestLanded: R29. An arrival and the state machine write the same bytes, whoever comes first, and however often.
func TestLanded(t *testing.T) {
	machine := newAfterLanding(t)
	in := etl.RangeInput{Execution: "mine", Batch: machine.batch.String(), Fence: machine.owner.Fence, Extraction: 1}
	if _, err := machine.stages.Transform.Run(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	want := content(t, machine.stage)
	if len(want) != 4 { // valid, quarantine, keys, drift
		t.Fatalf("objects %v", want)
	}
	event := newAfterLanding(t)
	before, err := event.ledger.Get(t.Context(), event.batch)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		done, reason, err := event.stages.Transform.Landed(t.Context(), etl.RawPartKey(event.batch, 1, 0))
		if !done || err != nil {
			t.Fatalf("%v %q %v", done, reason, err)
		}
		if got := content(t, event.stage); !maps.Equal(got, want) {
			t.Errorf("the event wrote %v, the machine %v", got, want)
		}
	}
	// An arrival has no owner: it must not write the batch item.
	if after, err := event.ledger.Get(t.Context(), event.batch); err != nil || after.Write != before.Write {
		t.Errorf("the batch item was written: %+v, %v", after, err)
	}
	puts := event.stage.Calls()["Put"]
	if _, err := event.stages.Transform.Run(t.Context(), in); err != nil || event.stage.Calls()["Put"] != puts {
		t.Errorf("the machine did it again: %v", err)
	}
}

func TestLandedIgnores(t *testing.T) {
	b := newAfterLanding(t).batch
	other := etl.Batch{Pipeline: "unheard-of", Slot: b.Slot}
	unclaimed := etl.Batch{Pipeline: "tiny", Slot: b.Slot.Add(time.Hour)}
	bind := etl.Binding{Extraction: 1, Revision: etl.Revision{Contract: 1, Engine: 1}, Contract: "00000000"}
	tests := []struct {
		name, key, reason string
		prepare           func(*testing.T, *afterLanding)
	}{
		{"somebody's object", "raw/orders/2026-11-30/page.json", "it is no landed part", nil},
		{"a key that is not canonical", strings.Replace(etl.RawPartKey(b, 1, 0), "extraction=1", "extraction=01", 1), "it is no landed part", nil},
		{"an encoded key", strings.ReplaceAll(etl.RawPartKey(b, 1, 0), "=", "%3D"), "it is no landed part", nil},
		{"a manifest", etl.ManifestKey(b, 1), "it is no landed part", nil},
		{"a refused body", etl.RejectedKey(b, 1, "page.body"), "it is no landed part", nil},
		{"a stage object", etl.StageKey(etl.Valid, b, bind, 0), "it is no landed part", nil},
		{"a pipeline unknown here", etl.RawPartKey(other, 1, 0), "pipeline unheard-of is unknown here", nil},
		{"a batch nobody claimed", etl.RawPartKey(unclaimed, 1, 0), "nobody claimed batch tiny/20261130T110000Z", nil},
		{"an extraction to come", etl.RawPartKey(b, 2, 0), "batch tiny/20261130T100000Z is at extraction 1", nil},
		{"an extraction given up", etl.RawPartKey(b, 1, 0), "batch tiny/20261130T100000Z is at extraction 2", func(t *testing.T, a *afterLanding) {
			if _, err := a.ledger.Update(t.Context(), a.owner, etl.StageExtract, func(b *ledger.Batch) { b.Extraction = 2 }); err != nil {
				t.Fatal(err)
			}
		}},
		{"a batch that is completed", etl.RawPartKey(b, 1, 0), "batch tiny/20261130T100000Z is completed", func(t *testing.T, a *afterLanding) { a.complete(t) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := newAfterLanding(t)
			if tt.prepare != nil {
				tt.prepare(t, a)
			}
			done, reason, err := a.stages.Transform.Landed(t.Context(), tt.key)
			if done || reason != tt.reason || err != nil {
				t.Errorf("%v, %q, %v; want %q", done, reason, err, tt.reason)
			}
			if got := content(t, a.stage); len(got) != 0 {
				t.Errorf("it wrote %v", got)
			}
		})
	}
}

func (a *afterLanding) complete(t *testing.T) {
	t.Helper()
	if _, err := a.ledger.Update(t.Context(), a.owner, etl.StageGate, func(b *ledger.Batch) {
		b.Binding = &etl.Binding{Extraction: 1, Revision: etl.Revision{Contract: 1, Engine: 1}, Contract: "00000000"}
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.ledger.Settle(t.Context(), a.owner, etl.Counts{}); err != nil {
		t.Fatal(err)
	}
}

// TestLandedFails: what may pass is an error, so that the event comes again.
func TestLandedFails(t *testing.T) {
	down := etl.Errorf(etl.StoreUnavailable, "down")
	t.Run("ledger", func(t *testing.T) {
		a := newAfterLanding(t)
		a.table.OnCall = func(string, string) (bool, error) { return false, down }
		if done, _, err := a.stages.Transform.Landed(t.Context(), etl.RawPartKey(a.batch, 1, 0)); done || etl.KindOf(err) != etl.StoreUnavailable {
			t.Errorf("%v, %v", done, err)
		}
	})
	t.Run("stage objects", func(t *testing.T) {
		a := newAfterLanding(t)
		a.stage.OnCall = func(string, string) (bool, error) { return false, down }
		if done, _, err := a.stages.Transform.Landed(t.Context(), etl.RawPartKey(a.batch, 1, 0)); done || etl.KindOf(err) != etl.StoreUnavailable {
			t.Errorf("%v, %v", done, err)
		}
	})
	t.Run("no object behind the event", func(t *testing.T) {
		a := newAfterLanding(t)
		if done, _, err := a.stages.Transform.Landed(t.Context(), etl.RawPartKey(a.batch, 1, 7)); done || !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%v, %v", done, err)
		}
	})
}
