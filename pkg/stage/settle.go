package stage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
)

// Settle ends a batch: completed, or with a recorded failure that a redrive can come back from.
type Settle struct{ *core }

// handle picks the operation by the payload's op.
func (s *Settle) handle(ctx context.Context, payload []byte) ([]byte, error) {
	var head struct {
		Op string `json:"op"`
	}
	if err := json.Unmarshal(payload, &head); err != nil {
		return nil, etl.Errorf(etl.Usage, "settle payload: %w", err)
	}
	switch head.Op {
	case etl.OpSettle:
		return handle(s.Run)(ctx, payload)
	case etl.OpRecordFailure:
		return handle(s.RecordFailure)(ctx, payload)
	case etl.OpRaise:
		return handle(s.Raise)(ctx, payload)
	}
	return nil, etl.Errorf(etl.Usage, "settle payload: op %q: want %s, %s or %s", head.Op, etl.OpSettle, etl.OpRecordFailure, etl.OpRaise)
}

// Run completes the batch once every part has its load record and the books balance (R21, B7).
func (s *Settle) Run(ctx context.Context, in etl.SettleInput) (etl.SettleOutput, error) {
	o, err := owner(in.Batch, in.Execution, in.Fence)
	if err != nil {
		return etl.SettleOutput{}, err
	}
	b, err := s.Ledger.Get(ctx, o.Batch)
	if err != nil {
		return etl.SettleOutput{}, fmt.Errorf("settle %s: %w", o.Batch, err)
	}
	if b.Binding == nil || *b.Binding != in.Binding || b.Load != in.Load || b.Counts == nil {
		return etl.SettleOutput{}, etl.Errorf(etl.Superseded, "settle %s: the batch is bound to something else by now", o.Batch)
	}
	loads, err := s.Ledger.Loads(ctx, o.Batch, in.Binding, in.Load)
	if err != nil {
		return etl.SettleOutput{}, fmt.Errorf("settle %s: %w", o.Batch, err)
	}
	// Gate saw one transform record for each part of the manifest. The batch item's own count is a hint, which a late
	// call of Extract may have set back.
	parts, err := s.Ledger.Transforms(ctx, o.Batch, in.Binding)
	if err != nil {
		return etl.SettleOutput{}, fmt.Errorf("settle %s: %w", o.Batch, err)
	}
	counts := *b.Counts
	counts.LoadCounts = etl.LoadCounts{}
	for _, l := range loads {
		counts.LoadCounts = counts.Add(l.LoadCounts)
	}
	counts.Written = counts.New + counts.Updated
	if len(loads) != len(parts) || counts.Total() != counts.Valid || counts.Records != counts.Valid+counts.Quarantined {
		return etl.SettleOutput{}, etl.Errorf(etl.RecordsLost, "settle %s: %d of %d parts loaded; %d records, %d valid, %d quarantined, %d loaded or passed over",
			o.Batch, len(loads), len(parts), counts.Records, counts.Valid, counts.Quarantined, counts.Total())
	}
	if _, err := s.Ledger.Settle(ctx, o, counts); err != nil {
		return etl.SettleOutput{}, fmt.Errorf("settle %s: %w", o.Batch, err)
	}
	return etl.SettleOutput{Status: etl.StatusCompleted, Counts: counts}, nil
}

// RecordFailure stores what a Catch caught and alerts. It always succeeds when the ledger can be written, so that the
// execution is not left in a state that a redrive cannot leave.
func (s *Settle) RecordFailure(ctx context.Context, in etl.RecordFailureInput) (etl.Failure, error) {
	return s.record(ctx, in.Request, in.Execution, failureInfo(in))
}

// record stores a failure of the execution that the request began, and alerts.
func (s *Settle) record(ctx context.Context, req etl.Request, execution string, info ledger.FailureInfo) (etl.Failure, error) {
	info.At = etl.FormatTime(s.Now())
	pk, batch := etl.PipelinePK(req.Pipeline), (*etl.Batch)(nil)
	if b, err := s.batch(req); err != nil {
		// The pipeline file is the fault, most likely the very one being recorded: the failure goes under the pipeline.
		s.Log.WarnContext(ctx, "failure without a batch", slog.String("pipeline", req.Pipeline), slog.Any("cause", err))
	} else {
		pk, batch = b.String(), &b
	}
	if err := s.Ledger.RecordFailure(ctx, pk, batch, execution, info); err != nil {
		return etl.Failure{}, err
	}
	if s.Alerts != nil {
		earlier, err := s.Ledger.Failures(ctx, pk)
		if err != nil {
			return etl.Failure{}, err
		}
		if err := s.Alerts.Alert(ctx, Alert{Batch: pk, Pipeline: req.Pipeline, Execution: execution, Failure: info, Count: len(earlier)}); err != nil {
			// The failure is recorded and the execution is about to fail, which is loud by itself: a channel that is down
			// must not leave it in a state that a redrive cannot leave.
			s.Log.ErrorContext(ctx, "alert not delivered", slog.String("batch", pk), slog.Any("cause", err))
		}
	}
	return etl.Failure{Status: etl.StatusRecorded, PK: pk, ID: info.ID, Stage: info.Stage, Kind: info.Kind, Message: info.Message}, nil
}

// batch finds the batch of a request.
func (s *Settle) batch(req etl.Request) (etl.Batch, error) {
	p, err := s.Pipelines(req.Pipeline)
	if err != nil {
		return etl.Batch{}, err
	}
	return req.Batch(p.Schedule)
}

// failureInfo reads an error name and cause as Step Functions gives them.
func failureInfo(in etl.RecordFailureInput) ledger.FailureInfo {
	info := ledger.FailureInfo{
		ID: etl.FailureID(in.Execution, in.Entered), Stage: in.Stage, Kind: kindOfName(in.Error.Error),
		ErrorName: in.Error.Error, Message: truncate(cmp.Or(etl.CauseMessage(in.Error.Cause), in.Error.Error)),
	}
	info.Hint = info.Kind.Info().Hint
	return info
}

// kindOfName turns an error name of a state into a kind: names of the platform speak of time limits or crashes.
func kindOfName(name string) etl.Kind {
	switch k := etl.Kind(name); {
	case k.Known():
		return k
	case name == "States.Timeout" || name == "States.HeartbeatTimeout" || name == "Sandbox.Timedout":
		return etl.StageTimedOut
	case strings.HasPrefix(name, "Lambda.") || strings.HasPrefix(name, "Runtime.") || strings.HasPrefix(name, "Sandbox."):
		return etl.StageCrashed
	}
	return etl.Internal
}

// truncate cuts a message at a character boundary.
func truncate(s string) string {
	if len(s) <= etl.MaxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:etl.MaxMessage-3], "") + "…"
}

// Raise fails with the recorded failure the first time, and succeeds on every later call: then a redrive is under way,
// and the state machine goes back to the stage. When the ledger cannot be reached it fails with the recorded failure too.
func (s *Settle) Raise(ctx context.Context, in etl.RaiseInput) (etl.RaiseOutput, error) {
	id, err := requestID(ctx)
	if err != nil {
		return etl.RaiseOutput{}, etl.Errorf(etl.Internal, "raise: %w", err)
	}
	original := etl.Errorf(in.Failure.Kind, "%s", in.Failure.Message)
	_, raise, err := s.Ledger.Raise(ctx, in.Failure.PK, in.Failure.ID, id)
	if err != nil {
		return etl.RaiseOutput{}, errors.Join(original, fmt.Errorf("(its mark in the ledger could not be set: %w)", err))
	}
	if raise {
		return etl.RaiseOutput{}, original
	}
	return etl.RaiseOutput{Status: etl.StatusRaised}, nil
}
