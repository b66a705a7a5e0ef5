package stage

import (
	"context"
	"errors"
	"fmt"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/store"
)

// Ended records the failure of an execution that died uncaught (aborted, out of time, a fault of the state machine), as
// an event tells it: with that status, after that many redrives. Such events may come twice, late and in any order, so it
// acts only while Step Functions still says the same, the execution owns the batch, and the batch is RUNNING: a FAILED one
// has its failure on record already, a COMPLETED one has none. Otherwise it says why there is nothing to do.
func (s *Settle) Ended(ctx context.Context, execution, status string, redrives int) (done bool, reason string, err error) {
	switch status {
	case "FAILED", "TIMED_OUT", "ABORTED":
	default:
		return false, "status " + status + " is no failure", nil
	}
	d, err := s.Executions.Describe(ctx, execution)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return false, "the execution does not exist", nil
	case err != nil:
		return false, "", fmt.Errorf("end of %s: %w", execution, err)
	case d.Status != status || d.Redrives != redrives:
		return false, fmt.Sprintf("the execution is %s after %d redrives by now", d.Status, d.Redrives), nil
	}
	req, err := etl.Decode[etl.Request]([]byte(d.Input))
	if err != nil {
		return false, fmt.Sprintf("its input is no request: %s", err), nil
	}
	id, err := s.batch(req)
	if err != nil {
		return false, fmt.Sprintf("its input leads to no batch: %s", err), nil
	}
	b, err := s.Ledger.Get(ctx, id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return false, fmt.Sprintf("nobody claimed batch %s", id), nil
	case err != nil:
		return false, "", err
	case b.Owner != execution:
		return false, fmt.Sprintf("%s owns batch %s", b.Owner, id), nil
	case b.State != ledger.StateRunning:
		return false, fmt.Sprintf("batch %s is %s", id, b.State), nil
	}
	if _, err := s.record(ctx, req, execution, ending(execution, b.Stage, d)); err != nil {
		return false, "", err
	}
	return true, "", nil
}

// ending reads an uncaught end as a failure of the stage that wrote last. Its id is the same for every event of that end.
func ending(execution string, at etl.Stage, d Described) ledger.FailureInfo {
	info := failureInfo(etl.RecordFailureInput{
		Execution: execution, Entered: fmt.Sprintf("%s/%d", d.Status, d.Redrives), Stage: at,
		Error: etl.StateError{Error: d.Error, Cause: d.Cause},
	})
	switch d.Status {
	case "TIMED_OUT":
		info.Kind = etl.StageTimedOut
	case "ABORTED":
		info.Kind = etl.Interrupted
	}
	if info.Message == "" {
		info.Message = "the execution ended as " + d.Status
	}
	info.Hint = info.Kind.Info().Hint
	return info
}
