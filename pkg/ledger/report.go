package ledger

import (
	"context"

	"github.com/onceload/onceload/pkg/etl"
)

// Report is what a run of a batch says at its end, the object of `onceload run --json`.
type Report struct {
	BatchID  string         `json:"batch_id"`
	State    State          `json:"state"`   // "" if the batch was never claimed
	Failure  *ReportFailure `json:"failure"` // null = none
	Counts   etl.Counts     `json:"counts"`
	Retries  int            `json:"retries"`   // requests to the source made again
	WaitedMS int64          `json:"waited_ms"` // before them

	Already bool   `json:"already_complete,omitempty"` // the batch was COMPLETED before: nothing was done, the rest tells of then
	Note    string `json:"note,omitempty"`             // what an operator may want to do
}

// ReportFailure says why a run did not complete its batch.
type ReportFailure struct {
	Kind    etl.Kind  `json:"kind"`
	Stage   etl.Stage `json:"stage"`
	Message string    `json:"message"`
	Hint    string    `json:"hint"`
}

// Report sums the batch item up. An open batch counts what has landed.
func (b Batch) Report() Report {
	r := Report{BatchID: b.ID, State: b.State, Retries: b.Retries, WaitedMS: b.WaitedMS}
	if b.Counts != nil {
		r.Counts = *b.Counts
	} else {
		r.Counts.Pages, r.Counts.Records = b.Pages, b.Records
	}
	if b.State == StateFailed && b.Failure != nil {
		r.Failure = &ReportFailure{Kind: b.Failure.Kind, Stage: b.Failure.Stage, Message: b.Failure.Message, Hint: b.Failure.Hint}
	}
	return r
}

// View is all the ledger knows of a batch.
type View struct {
	Batch      Batch             `json:"batch"`
	Failures   []FailureInfo     `json:"failures"`   // all there ever were, oldest first
	Transforms []TransformRecord `json:"transforms"` // of the bound contract, or of the one that Gate tried
	Loads      []LoadRecord      `json:"loads"`      // of the current load
}

// View reads a batch with its failures and the records of its parts. An error that wraps store.ErrNotFound if the batch
// was never claimed.
func (l *Ledger) View(ctx context.Context, b etl.Batch) (View, error) {
	var v View
	var err error
	if v.Batch, err = l.Get(ctx, b); err != nil {
		return v, err
	}
	if v.Failures, err = l.Failures(ctx, b.String()); err != nil {
		return v, err
	}
	bind := v.Batch.Looked()
	if bind == nil {
		return v, nil
	}
	if v.Transforms, err = l.Transforms(ctx, b, *bind); err != nil || v.Batch.Binding == nil {
		return v, err
	}
	v.Loads, err = l.Loads(ctx, b, *bind, v.Batch.Load)
	return v, err
}
