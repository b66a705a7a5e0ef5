package stage_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/stage"
	"github.com/onceload/onceload/pkg/store"
)

// TestSettle: COMPLETED takes a load record for each part, and counts that add up; once there it stays. R21, B7
func TestSettle(t *testing.T) {
	r := newRig(t, rigFile, many(2), join(rec("a", 1, "x"), bad(1)))
	p, g := r.bound()
	short := g
	short.Ranges = g.Ranges[:1]
	must(t, r.load(p, short))
	_, err := r.settle(p, g)
	wantKind(t, err, etl.RecordsLost, "1 of 2 parts loaded", "3 valid, 1 quarantined, 2 loaded")
	must(t, r.load(p, g))
	want := etl.Counts{Pages: 2, Records: 4, Valid: 3, Quarantined: 1, Written: 3, LoadCounts: etl.LoadCounts{New: 3}}
	for range 2 {
		out, err := r.settle(p, g)
		must(t, err)
		if out.Status != etl.StatusCompleted || out.Counts != want {
			t.Fatalf("%+v", out)
		}
	}
	if b, err := r.ledger.Get(t.Context(), r.batch); err != nil || b.State != ledger.StateCompleted || *b.Counts != want {
		t.Errorf("%+v, %v", b, err)
	}
}

// TestSettleCounts: load records that do not add up to what Gate counted.
func TestSettleCounts(t *testing.T) {
	r := newRig(t, rigFile, many(2))
	p, g := r.bound()
	must(t, r.load(p, g))
	key := store.Key{PK: r.batch.String(), SK: etl.LoadSK(g.Binding, g.Load, 0)}
	it, err := r.table.Get(t.Context(), key)
	must(t, err)
	it.Doc = []byte(strings.Replace(string(it.Doc), `"new":2`, `"new":1`, 1))
	must(t, r.table.PutIf(t.Context(), it, store.Condition{}))
	_, err = r.settle(p, g)
	wantKind(t, err, etl.RecordsLost)
}

func (r *rig) caught(name, cause string) etl.RecordFailureInput {
	return etl.RecordFailureInput{Op: etl.OpRecordFailure, Execution: r.execution, Entered: "2026-11-30T12:00:00Z", Request: r.request(),
		Stage: etl.StageLoad, Error: etl.StateError{Error: name, Cause: cause}}
}

// TestFailureKinds: what a name of Step Functions or Lambda means. R19
func TestFailureKinds(t *testing.T) {
	ours := `{"errorMessage":"no capacity","errorType":"x"}`
	for _, c := range []struct {
		name, cause string
		kind        etl.Kind
		message     string
	}{
		{"StoreThrottled", ours, etl.StoreThrottled, "no capacity"},
		{"QuarantineExceeded", ours, etl.QuarantineExceeded, "no capacity"},
		{"States.Timeout", "", etl.StageTimedOut, "States.Timeout"},
		{"States.HeartbeatTimeout", "", etl.StageTimedOut, "States.HeartbeatTimeout"},
		{"Sandbox.Timedout", `{"errorMessage":"RequestId: 1 Error: Task timed out after 900.00 seconds","errorType":"Sandbox.Timedout"}`, etl.StageTimedOut, "RequestId: 1 Error: Task timed out after 900.00 seconds"},
		{"Runtime.ExitError", `{"errorMessage":"signal: killed"}`, etl.StageCrashed, "signal: killed"},
		{"Lambda.Unknown", "no text", etl.StageCrashed, "no text"},
		{"Lambda.TooManyRequestsException", "", etl.StageCrashed, "Lambda.TooManyRequestsException"},
		{"Sandbox.Whatever", "", etl.StageCrashed, "Sandbox.Whatever"},
		{"States.DataLimitExceeded", "too long", etl.Internal, "too long"},
		{"States.Runtime", "", etl.Internal, "States.Runtime"},
		{"errorString", "odd", etl.Internal, "odd"},
		{"StoreUnavailable", `{"errorMessage":"` + strings.Repeat("é", etl.MaxMessage) + `"}`, etl.StoreUnavailable, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, rigFile, many(1))
			r.landed()
			out, err := r.Settle.RecordFailure(t.Context(), r.caught(c.name, c.cause))
			must(t, err)
			if out.Status != etl.StatusRecorded || out.Kind != c.kind || out.PK != r.batch.String() || out.Stage != etl.StageLoad {
				t.Errorf("%+v", out)
			}
			if c.message != "" && out.Message != c.message || len(out.Message) > etl.MaxMessage || strings.ContainsRune(out.Message, '�') {
				t.Errorf("message of %d bytes: %s", len(out.Message), out.Message)
			}
			all, err := r.ledger.Failures(t.Context(), out.PK)
			must(t, err)
			if len(all) != 1 || all[0].ErrorName != c.name || all[0].Kind != c.kind || all[0].Hint != c.kind.Info().Hint {
				t.Errorf("%+v", all)
			}
			if b, err := r.ledger.Get(t.Context(), r.batch); err != nil || b.State != ledger.StateFailed {
				t.Errorf("%+v, %v", b, err)
			}
		})
	}
}

// TestFailureOfAnother: a failure is kept, and leaves a batch that another execution owns, or that nobody claimed, alone;
// without a readable file it is kept under the pipeline. B6, R19
func TestFailureOfAnother(t *testing.T) {
	r := newRig(t, rigFile, many(1))
	r.landed()
	before, err := r.ledger.Get(t.Context(), r.batch)
	must(t, err)
	r.execution = "other"
	_, err = r.Settle.RecordFailure(t.Context(), r.caught("Superseded", ""))
	must(t, err)
	if after, err := r.ledger.Get(t.Context(), r.batch); err != nil || after.State != ledger.StateRunning || after.Write != before.Write {
		t.Errorf("%+v, %v", after, err)
	}
	r.broken = etl.Errorf(etl.ContractInvalid, "rows.yaml:1:1: broken")
	out, err := r.Settle.RecordFailure(t.Context(), r.caught("ContractInvalid", ""))
	must(t, err)
	if all, err := r.ledger.Failures(t.Context(), "pipeline#rows"); err != nil || out.PK != "pipeline#rows" || len(all) != 1 {
		t.Errorf("%+v, %+v, %v", out, all, err)
	}
}

// TestRaise: the first call raises, a later one lets through; a call whose reply was lost raises again; where the ledger
// cannot be reached the failure itself is raised. R28
func TestRaise(t *testing.T) {
	r := newRig(t, rigFile, many(1))
	r.landed()
	f, err := r.Settle.RecordFailure(t.Context(), r.caught("StoreThrottled", `{"errorMessage":"no capacity"}`))
	must(t, err)
	raise := func(request string) error {
		t.Helper()
		out, err := r.Settle.Raise(stage.WithRequestID(t.Context(), request), etl.RaiseInput{Op: etl.OpRaise, Execution: r.execution, Failure: f})
		if err == nil && out.Status != etl.StatusRaised {
			t.Fatalf("%+v", out)
		}
		return err
	}
	for _, op := range []string{"Get", "PutIf"} { // unreachable: raised, and not marked
		r.onCall = func(o, _ string) (bool, error) { return o != op, map[bool]error{true: errDown}[o == op] }
		err := raise("zero")
		wantKind(t, err, etl.StoreThrottled, "no capacity", "connection reset")
	}
	r.onCall = func(o, _ string) (bool, error) { return true, map[bool]error{true: errDown}[o == "PutIf"] } // the reply is lost
	wantKind(t, raise("one"), etl.StoreThrottled, "no capacity")
	r.onCall = nil
	wantKind(t, raise("one"), etl.StoreThrottled, "no capacity") // the same request again
	must(t, raise("two"))
	must(t, raise("three"))
	if _, err := r.Settle.Raise(t.Context(), etl.RaiseInput{Failure: f}); etl.KindOf(err) != etl.Internal {
		t.Errorf("without a request id: %v", err)
	}
	// A failure that is not there is raised too.
	f.ID = "gone"
	if err := raise("four"); etl.KindOf(err) != etl.StoreThrottled || !errors.Is(err, store.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

// TestSettlePayloads: one function, three operations, and nothing else.
func TestSettlePayloads(t *testing.T) {
	r := newRig(t, rigFile, many(1))
	h := r.Handlers()[etl.StageSettle]
	for payload, says := range map[string]string{
		`{"op":"destroy"}`:                   `op "destroy"`,
		`{}`:                                 `op ""`,
		`[]`:                                 "settle payload",
		`{"op":"raise","surprise":1}`:        "surprise",
		`{"op":"settle","batch":"nonsense"}`: "nonsense",
		`{"op":"record_failure","entered":{"x":1}}`: "entered",
	} {
		_, err := h(t.Context(), []byte(payload))
		wantKind(t, err, etl.Usage, says)
	}
	in, err := json.Marshal(r.caught("StoreThrottled", ""))
	must(t, err)
	if out, err := h(t.Context(), in); err != nil || !strings.Contains(string(out), `"status":"recorded"`) {
		t.Errorf("%s, %v", out, err)
	}
}
