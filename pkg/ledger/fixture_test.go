package ledger_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/mem"
)

var (
	began    = time.Date(2026, 11, 30, 11, 5, 0, 0, time.UTC)
	batch    = etl.Batch{Pipeline: "orders", Slot: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)}
	window   = etl.Window{Start: batch.Slot, End: batch.Slot.Add(time.Hour)}
	widened  = etl.Window{Start: batch.Slot.Add(-time.Hour), End: batch.Slot.Add(time.Hour)}
	bound    = etl.Binding{Extraction: 1, Revision: etl.Revision{Contract: 3, Engine: 1}, Contract: "ab12cd34"}
	balanced = etl.Counts{Pages: 2, Records: 6, Valid: 5, Quarantined: 1, Written: 3,
		LoadCounts: etl.LoadCounts{New: 2, Updated: 1, Unchanged: 1, Stale: 1}}
	errReply = etl.Errorf(etl.StoreUnavailable, "connection reset")
)

// fixture is a ledger on a table in memory, under a clock that the test moves.
type fixture struct {
	*ledger.Ledger
	table *mem.Table
	now   time.Time
	// live says how the executions are; one that is missing runs.
	live map[string]ledger.Liveness
	// liveErr is what asking for a liveness fails with.
	liveErr error
	asked   int
}

func newFixture() *fixture {
	f := &fixture{table: mem.NewTable(ledger.Schema()), now: began, live: map[string]ledger.Liveness{}}
	f.Ledger = &ledger.Ledger{Table: f.table, Now: func() time.Time { return f.now }}
	return f
}

func (f *fixture) alive(_ context.Context, execution string) (ledger.Liveness, error) {
	f.asked++
	if f.liveErr != nil {
		return 0, f.liveErr
	}
	if l, ok := f.live[execution]; ok {
		return l, nil
	}
	return ledger.Running, nil
}

func (f *fixture) request(execution string) ledger.ClaimRequest {
	return ledger.ClaimRequest{Batch: batch, Execution: execution, Window: window, PipelineDigest: "digest-" + execution,
		Source: "api.example.com", Alive: f.alive}
}

func (f *fixture) claim(t testing.TB, execution string) ledger.Owner {
	t.Helper()
	c, err := f.Claim(t.Context(), f.request(execution))
	if err != nil {
		t.Fatal(err)
	}
	if c.Status != "" {
		t.Fatalf("claim of %s: %s", execution, c.Status)
	}
	return c.Owner
}

func (f *fixture) bind(t testing.TB, o ledger.Owner) {
	t.Helper()
	_, err := f.Update(t.Context(), o, etl.StageGate, func(b *ledger.Batch) {
		v := bound
		v.Extraction = b.Extraction
		b.Binding = &v
		b.Parts, b.Pages, b.Records, b.Bytes, b.ManifestDigest = 1, 2, 6, 100, "m"
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) complete(t testing.TB, execution string) ledger.Owner {
	t.Helper()
	o := f.claim(t, execution)
	f.bind(t, o)
	if _, err := f.Settle(t.Context(), o, balanced); err != nil {
		t.Fatal(err)
	}
	return o
}

func (f *fixture) fail(t testing.TB, execution, id string) {
	t.Helper()
	if err := f.RecordFailure(t.Context(), batch.String(), &batch, execution, failure(id)); err != nil {
		t.Fatal(err)
	}
}

func failure(id string) ledger.FailureInfo {
	return ledger.FailureInfo{ID: id, Stage: etl.StageLoad, Kind: etl.StoreThrottled, Message: "no capacity", Hint: "raise it",
		ErrorName: "StoreThrottled", Cause: `{"errorMessage":"no capacity"}`}
}

func (f *fixture) get(t testing.TB) ledger.Batch {
	t.Helper()
	b, err := f.Get(t.Context(), batch)
	if errors.Is(err, store.ErrNotFound) {
		return ledger.Batch{}
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func wantKind(t testing.TB, err error, kind etl.Kind) {
	t.Helper()
	if err == nil || etl.KindOf(err) != kind {
		t.Fatalf("error %v of kind %q, want kind %s", err, etl.KindOf(err), kind)
	}
}
