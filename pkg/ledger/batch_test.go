package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/store"
)

func show(b ledger.Batch) string {
	raw, err := json.Marshal(b)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

func onlyDeadIsDead(_ context.Context, execution string) (ledger.Liveness, error) {
	if execution == "dead" {
		return ledger.Ended, nil
	}
	return ledger.Running, nil
}

func TestSchemaHolds(t *testing.T) {
	if err := ledger.Schema().Check(); err != nil {
		t.Error(err)
	}
}

func TestGetUnknown(t *testing.T) {
	_, err := newFixture().Get(t.Context(), batch)
	if !errors.Is(err, store.ErrNotFound) || !strings.Contains(err.Error(), batch.String()) {
		t.Errorf("error %v, want not found with the batch's id", err)
	}
}

// TestFencing: who lost the batch changes nothing, whatever it tries (B6).
func TestFencing(t *testing.T) {
	calls := map[string]func(*fixture, ledger.Owner) error{
		"update": func(f *fixture, o ledger.Owner) error {
			_, err := f.Update(context.Background(), o, etl.StageLoad, func(b *ledger.Batch) { b.Pages = 77 })
			return err
		},
		"settle": func(f *fixture, o ledger.Owner) error {
			_, err := f.Settle(context.Background(), o, balanced)
			return err
		},
		"owned": func(f *fixture, o ledger.Owner) error {
			_, err := f.Owned(context.Background(), o)
			return err
		},
	}
	given := map[string]func(*testing.T, *fixture) ledger.Owner{
		"taken over": func(t *testing.T, f *fixture) ledger.Owner {
			o := f.claim(t, "a")
			f.live["a"] = ledger.Ended
			f.bind(t, f.claim(t, "b"))
			return o
		},
		"taken over and completed": func(t *testing.T, f *fixture) ledger.Owner {
			o := f.claim(t, "a")
			f.live["a"] = ledger.Ended
			f.complete(t, "b")
			return o
		},
		"an old fence of the same execution": func(t *testing.T, f *fixture) ledger.Owner {
			o := f.claim(t, "a")
			f.live["a"], f.live["b"] = ledger.Ended, ledger.Ended
			f.claim(t, "b")
			f.bind(t, f.claim(t, "a"))
			return o
		},
		"a fence that never was": func(t *testing.T, f *fixture) ledger.Owner {
			o := f.claim(t, "a")
			f.bind(t, o)
			o.Fence++
			return o
		},
		"the right fence of another execution": func(t *testing.T, f *fixture) ledger.Owner {
			o := f.claim(t, "a")
			f.bind(t, o)
			o.Execution = "b"
			return o
		},
		"never claimed": func(*testing.T, *fixture) ledger.Owner {
			return ledger.Owner{Batch: batch, Execution: "a", Fence: 1}
		},
	}
	for situation, set := range given {
		for op, call := range calls {
			t.Run(situation+"/"+op, func(t *testing.T) {
				f := newFixture()
				o := set(t, f)
				before := f.get(t)
				wantKind(t, call(f, o), etl.Superseded)
				same(t, f.get(t), before)
			})
		}
	}
	t.Run("a failure of the loser", func(t *testing.T) {
		f := newFixture()
		given["taken over"](t, f)
		before := f.get(t)
		f.fail(t, "a", "late")
		same(t, f.get(t), before)
	})
}

// TestFencingBetweenReadAndWrite takes the batch away after the loser has read it and before it writes (B6).
func TestFencingBetweenReadAndWrite(t *testing.T) {
	for name, call := range map[string]func(*fixture, ledger.Owner) error{
		"update": func(f *fixture, o ledger.Owner) error {
			_, err := f.Update(context.Background(), o, etl.StageLoad, func(b *ledger.Batch) { b.Pages = 77 })
			return err
		},
		"settle": func(f *fixture, o ledger.Owner) error {
			_, err := f.Settle(context.Background(), o, balanced)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture()
			o := f.claim(t, "a")
			f.bind(t, o)
			f.live["a"] = ledger.Ended
			var taken ledger.Batch
			f.table.OnCall = func(op, _ string) (bool, error) {
				if op == "PutIf" {
					f.table.OnCall = nil
					f.claim(t, "b")
					taken = f.get(t)
				}
				return true, nil
			}
			wantKind(t, call(f, o), etl.Superseded)
			same(t, f.get(t), taken)
		})
	}
}

func TestUpdate(t *testing.T) { // R17, R19
	f := newFixture()
	o := f.claim(t, "a")
	before := f.get(t)
	f.now = f.now.Add(time.Minute)
	got, err := f.Update(t.Context(), o, etl.StageTransform, func(b *ledger.Batch) {
		b.Extraction, b.Parts, b.Pages, b.Records, b.Bytes = 2, 3, 4, 5, 6
		b.Retries, b.WaitedMS, b.PipelineDigest, b.ManifestDigest = 7, 8, "p", "m"
		b.Binding, b.Counts = &etl.Binding{Extraction: 2, Revision: bound.Revision, Contract: "00000000"}, &etl.Counts{Pages: 4}
	})
	if err != nil {
		t.Fatal(err)
	}
	want := before
	want.Extraction, want.Parts, want.Pages, want.Records, want.Bytes = 2, 3, 4, 5, 6
	want.Retries, want.WaitedMS, want.PipelineDigest, want.ManifestDigest = 7, 8, "p", "m"
	want.Binding, want.Counts = &etl.Binding{Extraction: 2, Revision: bound.Revision, Contract: "00000000"}, &etl.Counts{Pages: 4}
	want.Stage, want.UpdatedAt, want.Write = etl.StageTransform, etl.FormatTime(f.now), 2
	same(t, got, want)
	same(t, f.get(t), want)

	f.now = f.now.Add(time.Minute)
	if got, err = f.Update(t.Context(), o, etl.StageTransform, func(b *ledger.Batch) { b.Parts = 3 }); err != nil {
		t.Fatal(err)
	}
	same(t, got, want) // nothing changed, nothing written
	same(t, f.get(t), want)
}

func TestUpdateOfFailedBatchRunsAgain(t *testing.T) {
	f := newFixture()
	o := f.claim(t, "a")
	f.fail(t, "a", "1")
	b, err := f.Update(t.Context(), o, etl.StageLoad, func(*ledger.Batch) {})
	if err != nil || b.State != ledger.StateRunning || b.Failures != 1 || b.Failure == nil {
		t.Errorf("%s, %v: want RUNNING with its failure remembered", show(b), err)
	}
}

func TestUpdateOfCompletedBatch(t *testing.T) { // R21
	f := newFixture()
	o := f.complete(t, "a")
	before := f.get(t)
	_, err := f.Update(t.Context(), o, etl.StageLoad, func(b *ledger.Batch) { b.Pages = 77 })
	wantKind(t, err, etl.Superseded)
	same(t, f.get(t), before)
}

func TestUpdateChangesProgressOnly(t *testing.T) {
	for name, change := range map[string]func(*ledger.Batch){
		"id":           func(b *ledger.Batch) { b.ID = "x" },
		"slot":         func(b *ledger.Batch) { b.Slot = "x" },
		"state":        func(b *ledger.Batch) { b.State = ledger.StateCompleted },
		"owner":        func(b *ledger.Batch) { b.Owner = "b" },
		"fence":        func(b *ledger.Batch) { b.Fence++ },
		"window":       func(b *ledger.Batch) { b.Window = widened },
		"load":         func(b *ledger.Batch) { b.Load++ },
		"reload":       func(b *ledger.Batch) { b.Reload = true },
		"failure":      func(b *ledger.Batch) { b.Failure = nil },
		"failure text": func(b *ledger.Batch) { b.Failure.Message = "x" },
		"failures":     func(b *ledger.Batch) { b.Failures = 0 },
		"started at":   func(b *ledger.Batch) { b.StartedAt = "" },
		"completed at": func(b *ledger.Batch) { b.CompletedAt = "x" },
		"write":        func(b *ledger.Batch) { b.Write = 0 },
		"extraction":   func(b *ledger.Batch) { b.Extraction-- },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture()
			o := f.claim(t, "a")
			f.fail(t, "a", "1")
			before := f.get(t)
			_, err := f.Update(t.Context(), o, etl.StageLoad, change)
			wantKind(t, err, etl.Internal)
			same(t, f.get(t), before)
		})
	}
}

// TestParallelCheckpoints: writes of one owner that cross each other all take effect.
func TestParallelCheckpoints(t *testing.T) {
	f := newFixture()
	o := f.claim(t, "a")
	const n = 50
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			_, err := f.Update(t.Context(), o, etl.StageExtract, func(b *ledger.Batch) { b.Pages = max(b.Pages, int64(i+1)) })
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if b := f.get(t); b.Pages != n {
		t.Errorf("%d pages, want %d", b.Pages, n)
	}
}

// TestEndlessRace: an item that changes before each write ends in an error that may be tried again, not in a hang.
func TestEndlessRace(t *testing.T) {
	f := newFixture()
	o := f.claim(t, "a")
	inside := false
	f.table.OnCall = func(op, _ string) (bool, error) {
		if op == "PutIf" && !inside {
			inside = true
			_, err := f.Update(t.Context(), o, etl.StageExtract, func(b *ledger.Batch) { b.Pages++ })
			inside = false
			if err != nil {
				t.Error(err)
			}
		}
		return true, nil
	}
	_, err := f.Update(t.Context(), o, etl.StageExtract, func(b *ledger.Batch) { b.Parts = 1 })
	wantKind(t, err, etl.StoreUnavailable)
}

func TestSettle(t *testing.T) { // R19, R21
	f := newFixture()
	o := f.claim(t, "a")
	f.bind(t, o)
	before := f.get(t)
	f.now = f.now.Add(time.Minute)
	got, err := f.Settle(t.Context(), o, balanced)
	if err != nil {
		t.Fatal(err)
	}
	at := etl.FormatTime(f.now)
	want := before
	want.State, want.Stage, want.Counts = ledger.StateCompleted, etl.StageSettle, &balanced
	want.CompletedAt, want.UpdatedAt, want.Write = at, at, before.Write+1
	same(t, got, want)

	f.now = f.now.Add(time.Minute)
	for _, counts := range []etl.Counts{balanced, {}} {
		if got, err = f.Settle(t.Context(), o, counts); err != nil {
			t.Fatal(err)
		}
		same(t, got, want) // again: nothing changes
		same(t, f.get(t), want)
	}
}

func TestSettleEndsAReload(t *testing.T) {
	f := newFixture()
	f.complete(t, "a")
	r := f.request("b")
	r.Reload = true
	c, err := f.Claim(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	b, err := f.Settle(t.Context(), c.Owner, balanced)
	if err != nil || b.Reload || b.Load != 2 || b.State != ledger.StateCompleted {
		t.Errorf("%s, %v: want COMPLETED, load 2, no reload", show(b), err)
	}
}

func TestSettleOfFailedBatch(t *testing.T) {
	f := newFixture()
	o := f.claim(t, "a")
	f.bind(t, o)
	f.fail(t, "a", "1")
	b, err := f.Settle(t.Context(), o, balanced)
	if err != nil || b.State != ledger.StateCompleted {
		t.Errorf("%s, %v: want COMPLETED", show(b), err)
	}
}

func TestSettleRefuses(t *testing.T) { // R21, B7
	off := func(change func(*etl.Counts)) etl.Counts { c := balanced; change(&c); return c }
	for _, tt := range []struct {
		name   string
		bound  bool
		counts etl.Counts
		kind   etl.Kind
	}{
		{"a batch that never passed the gate", false, balanced, etl.Internal},
		{"a record that is nowhere", true, off(func(c *etl.Counts) { c.Records++ }), etl.RecordsLost},
		{"a valid record that was not loaded", true, off(func(c *etl.Counts) { c.Valid++; c.Records++ }), etl.RecordsLost},
		{"a write that is no row", true, off(func(c *etl.Counts) { c.Written++ }), etl.RecordsLost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture()
			o := f.claim(t, "a")
			if tt.bound {
				f.bind(t, o)
			}
			before := f.get(t)
			_, err := f.Settle(t.Context(), o, tt.counts)
			wantKind(t, err, tt.kind)
			same(t, f.get(t), before)
		})
	}
}

func TestCorruptItem(t *testing.T) {
	f := newFixture()
	err := f.table.PutIf(t.Context(), store.Item{Key: store.Key{PK: batch.String(), SK: etl.BatchSK}, Doc: []byte(`{"fence":"x"}`)}, store.Condition{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Claim(t.Context(), f.request("a"))
	wantKind(t, err, etl.Internal)
	if !strings.Contains(err.Error(), batch.String()) {
		t.Errorf("the message does not name the batch: %v", err)
	}
}

func TestLists(t *testing.T) {
	f := newFixture()
	ctx := t.Context()
	at := func(pipeline string, hour int) etl.Batch {
		return etl.Batch{Pipeline: pipeline, Slot: batch.Slot.Add(time.Duration(hour) * time.Hour)}
	}
	for _, b := range []etl.Batch{at("orders", 2), at("orders", 0), at("orders", 1), at("returns", 0)} {
		c, err := f.Claim(ctx, ledger.ClaimRequest{Batch: b, Execution: "a", Window: window, Alive: f.alive})
		if err != nil {
			t.Fatal(err)
		}
		if b == at("orders", 0) {
			f.bind(t, c.Owner)
			if _, err := f.Settle(ctx, c.Owner, balanced); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := f.PutTransform(ctx, b, bound, ledger.TransformRecord{}); err != nil {
			t.Fatal(err)
		}
		if err := f.RecordFailure(ctx, b.String(), nil, "a", failure("1")); err != nil {
			t.Fatal(err)
		}
	}
	collect := func(seq func(func(ledger.Batch, error) bool)) string {
		var ids []string
		for b, err := range seq {
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, b.ID)
		}
		return strings.Join(ids, " ")
	}
	o0, o1, o2, r0 := at("orders", 0).String(), at("orders", 1).String(), at("orders", 2).String(), at("returns", 0).String()
	for _, tt := range []struct{ name, got, want string }{
		{"by slot", collect(f.Batches(ctx, "orders", false, 0)), o0 + " " + o1 + " " + o2},
		{"latest first", collect(f.Batches(ctx, "orders", true, 2)), o2 + " " + o1},
		{"of no pipeline", collect(f.Batches(ctx, "refunds", false, 0)), ""},
		{"open", collect(f.Open(ctx)), r0 + " " + o1 + " " + o2},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, tt.got, tt.want)
		}
	}
	f.table.OnCall = func(op, _ string) (bool, error) { return op != "Query", map[bool]error{true: errReply}[op == "Query"] }
	for _, err := range f.Open(ctx) {
		wantKind(t, err, etl.StoreUnavailable)
	}
}
