package stage_test

import (
	"context"
	"errors"
	"testing"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/stage"
)

const tinyRequest = `{"pipeline":"tiny","slot":"2026-11-30T10:00:00Z"}`

func TestEnded(t *testing.T) {
	tests := []struct {
		name    string
		says    stage.Described
		kind    etl.Kind
		message string
	}{
		{"out of time", stage.Described{Status: "TIMED_OUT", Error: "States.Timeout"}, etl.StageTimedOut, "States.Timeout"},
		{"aborted without a word", stage.Described{Status: "ABORTED"}, etl.Interrupted, "the execution ended as ABORTED"},
		{"aborted by a person", stage.Described{Status: "ABORTED", Error: "Stop", Cause: "wrong pipeline"}, etl.Interrupted, "wrong pipeline"},
		{"a fault of the machine", stage.Described{Status: "FAILED", Redrives: 2, Error: "States.DataLimitExceeded", Cause: "too much"}, etl.Internal, "too much"},
		{"without an error", stage.Described{Status: "FAILED"}, etl.Internal, "the execution ended as FAILED"},
		{"in RecordFailure", stage.Described{Status: "FAILED", Error: "StoreUnavailable", Cause: `{"errorMessage":"no table","errorType":"StoreUnavailable"}`}, etl.StoreUnavailable, "no table"},
		{"crashed", stage.Described{Status: "FAILED", Error: "Runtime.ExitError"}, etl.StageCrashed, "Runtime.ExitError"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := newAfterLanding(t)
			a.described, a.described.Input = tt.says, tinyRequest
			done, reason, err := a.stages.Settle.Ended(t.Context(), "mine", tt.says.Status, tt.says.Redrives)
			if !done || err != nil {
				t.Fatalf("%v, %q, %v", done, reason, err)
			}
			b, err := a.ledger.Get(t.Context(), a.batch)
			if err != nil {
				t.Fatal(err)
			}
			f := b.Failure
			if b.State != ledger.StateFailed || f.Kind != tt.kind || f.Message != tt.message || f.Stage != etl.StageExtract || f.Hint != tt.kind.Info().Hint || f.ErrorName != tt.says.Error || f.Execution != "mine" {
				t.Errorf("batch %s, failure %+v; want %s %q", b.State, f, tt.kind, tt.message)
			}
			if len(a.alerts) != 1 || a.alerts[0].Failure.Kind != tt.kind || a.alerts[0].Count != 1 {
				t.Errorf("alerts %+v", a.alerts)
			}
			// The event comes again.
			if done, _, err := a.stages.Settle.Ended(t.Context(), "mine", tt.says.Status, tt.says.Redrives); done || err != nil || len(a.alerts) != 1 {
				t.Errorf("again: %v, %v, alerts %+v", done, err, a.alerts)
			}
		})
	}
}

// TestEndedAfterRedrive: the second end of one execution is another failure, and a louder one.
func TestEndedAfterRedrive(t *testing.T) {
	a := newAfterLanding(t)
	for redrives := range 2 {
		a.described = stage.Described{Status: "ABORTED", Redrives: redrives, Input: tinyRequest}
		if done, reason, err := a.stages.Settle.Ended(t.Context(), "mine", "ABORTED", redrives); !done || err != nil {
			t.Fatalf("%q, %v", reason, err)
		}
		if _, err := a.ledger.Update(t.Context(), a.owner, etl.StageExtract, func(*ledger.Batch) {}); err != nil {
			t.Fatal(err)
		}
	}
	if len(a.alerts) != 2 || a.alerts[1].Count != 2 || a.alerts[0].Failure.ID == a.alerts[1].Failure.ID {
		t.Errorf("alerts %+v", a.alerts)
	}
}

func TestEndedIgnores(t *testing.T) {
	failed := stage.Described{Status: "FAILED", Redrives: 1, Input: tinyRequest}
	with := func(change func(*stage.Described)) stage.Described {
		d := failed
		change(&d)
		return d
	}
	tests := []struct {
		name      string
		execution string
		status    string
		redrives  int
		says      stage.Described
		prepare   func(*testing.T, *afterLanding)
		reason    string
	}{
		{"it runs", "mine", "RUNNING", 1, failed, nil, "status RUNNING is no failure"},
		{"it succeeded", "mine", "SUCCEEDED", 1, failed, nil, "status SUCCEEDED is no failure"},
		{"it does not exist", "other", "FAILED", 1, failed, nil, "the execution does not exist"},
		{"redriven meanwhile", "mine", "FAILED", 1, stage.Described{Status: "RUNNING", Redrives: 2}, nil, "the execution is RUNNING after 2 redrives by now"},
		{"failed again meanwhile", "mine", "FAILED", 0, failed, nil, "the execution is FAILED after 1 redrives by now"},
		{"ended otherwise", "mine", "ABORTED", 1, failed, nil, "the execution is FAILED after 1 redrives by now"},
		{"another input", "mine", "FAILED", 1, with(func(d *stage.Described) { d.Input = `{"hello":1}` }), nil, `its input is no request: payload etl.Request: json: unknown field "hello"`},
		{"no input", "mine", "FAILED", 1, with(func(d *stage.Described) { d.Input = "" }), nil, "its input is no request: payload etl.Request: want a JSON object"},
		{"another pipeline", "mine", "FAILED", 1, with(func(d *stage.Described) { d.Input = `{"pipeline":"gone","slot":"2026-11-30T10:00:00Z"}` }), nil, "its input leads to no batch: no pipeline gone"},
		{"never claimed", "mine", "FAILED", 1, with(func(d *stage.Described) { d.Input = `{"pipeline":"tiny","slot":"2026-11-30T11:00:00Z"}` }), nil, "nobody claimed batch tiny/20261130T110000Z"},
		{"taken over", "mine", "FAILED", 1, failed, func(t *testing.T, a *afterLanding) {
			b, err := a.ledger.Get(t.Context(), a.batch)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.ledger.Claim(t.Context(), ledger.ClaimRequest{Batch: a.batch, Execution: "heir", Window: b.Window,
				Alive: func(context.Context, string) (ledger.Liveness, error) { return ledger.Ended, nil }}); err != nil {
				t.Fatal(err)
			}
		}, "heir owns batch tiny/20261130T100000Z"},
		{"completed", "mine", "FAILED", 1, failed, func(t *testing.T, a *afterLanding) { a.complete(t) }, "batch tiny/20261130T100000Z is COMPLETED"},
		{"on record", "mine", "FAILED", 1, failed, func(t *testing.T, a *afterLanding) {
			in := etl.RecordFailureInput{Execution: "mine", Entered: "now", Stage: etl.StageGate, Request: etl.Request{Pipeline: "tiny", Slot: "2026-11-30T10:00:00Z"}}
			if _, err := a.stages.Settle.RecordFailure(t.Context(), in); err != nil {
				t.Fatal(err)
			}
			a.alerts = nil
		}, "batch tiny/20261130T100000Z is FAILED"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := newAfterLanding(t)
			if tt.prepare != nil {
				tt.prepare(t, a)
			}
			a.described = tt.says
			before, err := a.ledger.Get(t.Context(), a.batch)
			if err != nil {
				t.Fatal(err)
			}
			done, reason, err := a.stages.Settle.Ended(t.Context(), tt.execution, tt.status, tt.redrives)
			if done || reason != tt.reason || err != nil {
				t.Errorf("%v, %q, %v; want %q", done, reason, err, tt.reason)
			}
			after, err := a.ledger.Get(t.Context(), a.batch)
			if err != nil || after.Write != before.Write || len(a.alerts) != 0 {
				t.Errorf("batch %+v, %v, alerts %+v", after, err, a.alerts)
			}
		})
	}
}

// TestEndedFails: what may pass is an error, so that the event comes again. An alert that is lost is not: the failure is
// on record.
func TestEndedFails(t *testing.T) {
	a := newAfterLanding(t)
	a.trouble = etl.Errorf(etl.StoreUnavailable, "throttled")
	if done, _, err := a.stages.Settle.Ended(t.Context(), "mine", "FAILED", 0); done || etl.KindOf(err) != etl.StoreUnavailable {
		t.Errorf("%v, %v", done, err)
	}
	a.trouble, a.described = nil, stage.Described{Status: "FAILED", Input: tinyRequest}
	a.table.OnCall = func(string, string) (bool, error) { return false, etl.Errorf(etl.StoreUnavailable, "down") }
	if done, _, err := a.stages.Settle.Ended(t.Context(), "mine", "FAILED", 0); done || etl.KindOf(err) != etl.StoreUnavailable {
		t.Errorf("%v, %v", done, err)
	}
	a.table.OnCall, a.deaf = nil, errors.New("the topic is gone")
	if done, _, err := a.stages.Settle.Ended(t.Context(), "mine", "FAILED", 0); !done || err != nil {
		t.Errorf("%v, %v", done, err)
	}
}
