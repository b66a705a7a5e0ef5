package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceload/onceload/pkg/etl"
)

// unknownGrace is how long an owner whose execution cannot be found keeps its batch: DescribeExecution may not know an
// execution yet that has just begun.
const unknownGrace = 10 * time.Minute

// Liveness is whether an execution still runs.
type Liveness int

// The answers.
const (
	Running Liveness = iota + 1 // it runs
	Ended                       // it succeeded, failed, timed out or was aborted
	Unknown                     // there is no such execution
)

// ClaimRequest asks for a batch on behalf of an execution. At most one of Reload, Refetch and Reprocess is set.
type ClaimRequest struct {
	Batch          etl.Batch
	Execution      string
	Window         etl.Window // what the pipeline file gives this batch now
	PipelineDigest string
	Source         string // the source's name for people, like its host
	Reload         bool   // load a completed batch's bound objects once more
	Refetch        bool   // begin a new extraction, under Window
	Reprocess      bool   // bind the stored extraction anew
	// Alive says whether the execution that owns the batch still runs. Required. Its error never leads to a take-over.
	Alive func(ctx context.Context, execution string) (Liveness, error)
}

// Claim is the answer to a [ClaimRequest].
type Claim struct {
	Status  etl.Status // busy, done, or "" = claimed
	Batch   Batch      // as it is now
	Owner   Owner      // what Update and Settle ask for; set only if claimed
	Resumed bool       // this execution owned the batch before and failed, and has not updated it since: a redrive
}

// Claim gives the batch to the execution, or says why not (R20). Nothing but Extract claims.
//
//   - Never claimed: claimed, with fence 1, extraction 1, load 1 and the request's window.
//   - Owned by this execution: claimed under the same fence; a FAILED batch runs again (Resumed). The flags of the
//     request took effect with the first claim and do so only once. If it is COMPLETED: done.
//   - COMPLETED by another: done, whatever the window is now, without a flag. Reload raises the load number and keeps the
//     binding; Refetch begins a new extraction under the request's window; Reprocess keeps the extraction; both of them
//     raise the load number and clear the binding, which stays known as Prior until the batch is completed.
//   - Open, owned by another execution: busy while that is alive, and while it is unknown and its claim is not older
//     than 10 minutes. Else the batch is taken over as it stands, an open reload with its load number and binding, and
//     Refetch and Reprocess take effect. An error of Alive is returned, as StoreUnavailable if it has no kind.
//
// To take over an open batch under another window than the stored one is an error of kind WindowChanged, except with
// Refetch, and with Reprocess or for an open reload, which fetch nothing and keep the stored window.
func (l *Ledger) Claim(ctx context.Context, r ClaimRequest) (Claim, error) {
	var status etl.Status
	b, err := l.edit(ctx, r.Batch, func(cur *Batch) (*Batch, Move, error) {
		switch {
		case cur == nil:
			next := Batch{
				ID: r.Batch.String(), Pipeline: r.Batch.Pipeline, Slot: r.Batch.SlotID(),
				Window: utc(r.Window), Extraction: 1, Load: 1, StartedAt: l.now(),
			}
			l.own(&next, r)
			return &next, MoveClaim, nil
		case cur.Owner == r.Execution && cur.State == StateCompleted:
			status = etl.StatusDone
			return nil, "", nil
		case cur.Owner == r.Execution && cur.State == StateFailed:
			next := cur.clone()
			next.Resumed, next.Stage, next.PipelineDigest = true, etl.StageExtract, r.PipelineDigest
			return &next, MoveResume, nil
		case cur.Owner == r.Execution:
			return nil, "", nil
		case cur.State == StateCompleted && !r.Reload && !r.Refetch && !r.Reprocess:
			status = etl.StatusDone
			return nil, "", nil
		case cur.State == StateCompleted:
			next := cur.clone()
			next.reopen(r)
			next.StartedAt = l.now()
			l.own(&next, r)
			return &next, MoveReopen, nil
		}
		ended, err := l.ended(ctx, *cur, r.Alive)
		if err != nil {
			return nil, "", err
		}
		if !ended {
			status = etl.StatusBusy
			return nil, "", nil
		}
		if !r.Refetch && !r.Reprocess {
			if err := cur.Keeps(r.Window); err != nil {
				return nil, "", err
			}
		}
		next := cur.clone()
		next.begin(r)
		l.own(&next, r)
		return &next, MoveTakeover, nil
	})
	if err != nil {
		return Claim{}, fmt.Errorf("claim batch %s for %s: %w", r.Batch, r.Execution, err)
	}
	c := Claim{Status: status, Batch: b}
	if status == "" {
		c.Owner = Owner{Batch: r.Batch, Execution: r.Execution, Fence: b.Fence}
		c.Resumed = b.Resumed
	}
	return c, nil
}

// Keeps says, as an error of kind WindowChanged, that w is not the window of the batch's extraction. An open reload
// extracts nothing.
func (b Batch) Keeps(w etl.Window) error {
	if b.Reload || b.Window.Equal(w) {
		return nil
	}
	return etl.Errorf(etl.WindowChanged, "the extraction of %s asks for %s, the pipeline file now gives it %s: restore every and lookback, or take the file's window with onceload reprocess %s --refetch",
		b.ID, b.Window, utc(w), b.ID)
}

// own makes the request's execution the owner.
func (l *Ledger) own(b *Batch, r ClaimRequest) {
	b.Owner, b.Fence, b.ClaimedAt = r.Execution, b.Fence+1, l.now()
	b.Stage, b.Resumed = etl.StageExtract, false
	b.PipelineDigest, b.Source = r.PipelineDigest, r.Source
}

// reopen makes a completed batch one that has its work before it.
func (b *Batch) reopen(r ClaimRequest) {
	b.Counts, b.CompletedAt = nil, ""
	b.Failure, b.Failures = nil, 0
	b.Retries, b.WaitedMS = 0, 0
	if r.Reload {
		b.Load++
		b.Reload = true
	}
	b.begin(r)
}

// begin lets refetch and reprocess take effect.
func (b *Batch) begin(r ClaimRequest) {
	if !r.Refetch && !r.Reprocess {
		return
	}
	b.Load++
	b.Reload = false
	// What an earlier one that did not end began with stands: it is what the batch was chosen for.
	b.Prior = b.Basis()
	b.Binding, b.Tried, b.Counts = nil, nil, nil
	if r.Refetch {
		b.Extraction++
		b.Window = utc(r.Window)
		b.Parts, b.Pages, b.Records, b.Bytes = 0, 0, 0, 0
		b.ManifestDigest = ""
	}
}

// ended reports whether the batch's owner is gone for good.
func (l *Ledger) ended(ctx context.Context, b Batch, alive func(context.Context, string) (Liveness, error)) (bool, error) {
	live, err := alive(ctx, b.Owner)
	if err != nil {
		var classified *etl.Error
		if errors.As(err, &classified) || ctx.Err() != nil {
			return false, fmt.Errorf("ask whether its owner %s is alive: %w", b.Owner, err)
		}
		return false, etl.Errorf(etl.StoreUnavailable, "ask whether its owner %s is alive: %w", b.Owner, err)
	}
	switch live {
	case Running:
		return false, nil
	case Ended:
		return true, nil
	case Unknown:
		at, err := time.Parse(time.RFC3339, b.ClaimedAt)
		if err != nil {
			return false, etl.Errorf(etl.Internal, "claimed at: %w", err)
		}
		return l.time().Sub(at) > unknownGrace, nil
	}
	return false, etl.Errorf(etl.Internal, "liveness %d of its owner %s", live, b.Owner)
}

func utc(w etl.Window) etl.Window { return etl.Window{Start: w.Start.UTC(), End: w.End.UTC()} }
