package local

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/onceload/onceload/pkg/asl"
	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/store"
)

func newID() string {
	var b [6]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// Run starts an execution for the request and waits for its end. A request without a slot means the last closed window.
// Its pipeline is that of the home's options. A run that did not complete the batch is no error: the report says why.
func (h *Home) Run(ctx context.Context, req etl.Request) (report ledger.Report, err error) {
	from, err := absolute(origin{Pipeline: h.opts.Pipeline, Source: h.opts.Source})
	if err != nil {
		return report, err
	}
	return h.run(ctx, from, req)
}

// run is Run with a pipeline from an origin.
func (h *Home) run(ctx context.Context, from origin, req etl.Request) (report ledger.Report, err error) {
	p, err := find(from)
	if err != nil {
		return report, err
	}
	req.Pipeline = p.Name
	if req.Slot == "" && req.ScheduledTime == "" {
		req.Slot = etl.FormatTime(p.Schedule.Slot(h.opts.Now()))
	}
	b, err := req.Batch(p.Schedule)
	if err != nil {
		return report, err
	}
	if err := p.Schedule.CheckClosed(b.Slot, h.opts.Now()); err != nil {
		return report, err
	}
	if err := h.missing(ctx, b, p); err != nil {
		return report, err
	}
	id := fmt.Sprintf("local:%s:%s:%s", b.Pipeline, b.SlotID(), h.opts.NewID())
	release, err := h.locks.hold(id)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, release()) }()
	if err := h.history.reserve(ctx, id, b.String(), from); err != nil {
		return report, err
	}
	res, err := h.runner(p).Start(ctx, id, b, req)
	if err != nil {
		return report, err
	}
	if report, err = h.report(ctx, b, id, "", res); err == nil && report.Already {
		report.Note, err = h.outdated(ctx, b, p)
	}
	return report, err
}

// outdated says how the contract of a file differs from the one that a completed batch is loaded under, "" if it does not.
func (h *Home) outdated(ctx context.Context, b etl.Batch, p *pipeline.Pipeline) (string, error) {
	cur, err := h.ledger.Get(ctx, b)
	if err != nil || cur.Binding == nil {
		return "", err
	}
	k, err := contract.Compile(p.Contract, p.Target)
	if err != nil {
		return "", fmt.Errorf("%s: %w", p.File, err)
	}
	was, now := cur.Binding.Revision, k.Revision()
	switch {
	case was == now && cur.Binding.Contract == k.Short():
		return "", nil
	case now.Contract == was.Contract && cur.Binding.Contract != k.Short():
		return fmt.Sprintf("the contract has changed since, under the same revision: raise contract.revision to %d, then onceload reprocess %s", was.Contract+1, b), nil
	case now.Contract < was.Contract || now.Contract == was.Contract && now.Engine < was.Engine:
		return fmt.Sprintf("it is loaded under revision %s, newer than the file's %s", was, now), nil
	}
	return fmt.Sprintf("it is loaded under revision %s, the file has %s: onceload reprocess %s loads it under that", was, now, b), nil
}

// overtaken says that a batch was loaded under an older revision than others of its pipeline, "" if it was not.
func (h *Home) overtaken(ctx context.Context, b etl.Batch, bind *etl.Binding) (string, error) {
	if bind == nil {
		return "", nil
	}
	bound, err := h.ledger.Bound(ctx, b.Pipeline)
	if err != nil || len(bound) == 0 {
		return "", err
	}
	newest := bound[len(bound)-1].Revision
	if newest <= bind.Revision.Contract {
		return "", nil
	}
	return fmt.Sprintf("it is loaded under revision %d, older than %d, under which rows of this pipeline were loaded before: at equal version those stay; if contract.revision was set back by mistake, restore it, then onceload reprocess %s",
		bind.Revision.Contract, newest, b), nil
}

// complete reports a batch that was COMPLETED before its redrive.
func (h *Home) complete(ctx context.Context, b etl.Batch, cur ledger.Batch) (ledger.Report, error) {
	r := cur.Report()
	r.Already = true
	from, known, err := h.history.origin(ctx, cur.Owner)
	if err != nil || !known {
		return r, err
	}
	p, err := find(from)
	if err != nil {
		return r, nil //nolint:nilerr // nothing is done with the file: one that is gone or faulty is no failure of the batch
	}
	r.Note, err = h.outdated(ctx, b, p)
	return r, err
}

// absolute makes a path that outlives the working directory.
func absolute(o origin) (origin, error) {
	if !strings.ContainsAny(o.Pipeline, `/\.`) {
		return o, nil
	}
	abs, err := filepath.Abs(o.Pipeline)
	if err != nil {
		return o, etl.Errorf(etl.Usage, "pipeline file %s: %w", o.Pipeline, err)
	}
	o.Pipeline = abs
	return o, nil
}

// report says how an execution ended, by what it says itself and then by the ledger, which another execution may have
// written since; earlier is the id of the failure that stood there before. The ledger is asked even after an interruption.
func (h *Home) report(ctx context.Context, b etl.Batch, id, earlier string, res asl.Result) (ledger.Report, error) {
	batch, err := h.ledger.Get(context.WithoutCancel(ctx), b)
	if errors.Is(err, store.ErrNotFound) {
		batch, err = ledger.Batch{ID: b.String()}, nil
	}
	if err != nil {
		return ledger.Report{}, err
	}
	r := batch.Report()
	switch res.Status {
	case asl.Succeeded:
		var out struct {
			Extract etl.Progress     `json:"extract"`
			Settle  etl.SettleOutput `json:"settle"`
		}
		if err := json.Unmarshal(res.Output, &out); err != nil {
			return r, etl.Errorf(etl.Internal, "output of %s: %w", id, err)
		}
		switch {
		case out.Settle.Status == etl.StatusCompleted:
			note, err := h.overtaken(context.WithoutCancel(ctx), b, batch.Binding)
			return ledger.Report{BatchID: b.String(), State: ledger.StateCompleted, Counts: out.Settle.Counts,
				Retries: out.Extract.Retries, WaitedMS: out.Extract.WaitedMS, Note: note}, err
		case out.Extract.Status == etl.StatusBusy:
			r = busy(b, r)
		default:
			r.State, r.Failure, r.Already = ledger.StateCompleted, nil, true
		}
	case asl.Aborted:
		r.Failure = failure(etl.Interrupted, batch.Stage, fmt.Sprintf("interrupted in %s; nothing is lost, what was done before is kept", res.State))
	default:
		if r.Failure == nil || batch.Failure == nil || batch.Failure.Execution != id || batch.Failure.ID == earlier {
			r.Failure = failureOf(res)
		}
	}
	return r, nil
}

// busy says that another execution has the batch.
func busy(b etl.Batch, r ledger.Report) ledger.Report {
	r.State = ledger.StateRunning
	r.Failure = failure(etl.Busy, etl.StageExtract, fmt.Sprintf("another execution owned %s and was still running", b))
	return r
}

// failureOf reads the end of an execution whose failure is not in the batch item: it has none, or another owns it.
func failureOf(res asl.Result) *ledger.ReportFailure {
	kind, message := etl.Kind(res.Error), etl.CauseMessage(res.Cause)
	if !kind.Known() {
		kind, message = etl.Internal, res.Error+": "+message
	}
	return failure(kind, "", message)
}

func failure(kind etl.Kind, s etl.Stage, message string) *ledger.ReportFailure {
	return &ledger.ReportFailure{Kind: kind, Stage: s, Message: message, Hint: kind.Info().Hint}
}

// Show reads all the ledger knows of a batch; an error of kind Usage if it was never run here.
func (h *Home) Show(ctx context.Context, b etl.Batch) (ledger.View, error) {
	v, err := h.ledger.View(ctx, b)
	if errors.Is(err, store.ErrNotFound) {
		return v, etl.Errorf(etl.Usage, "batch %s was never run in %s", b, h.opts.Dir)
	}
	return v, err
}

// Redrive lets the batch's execution go on at the stage that failed, with the pipeline file as it is now. A completed
// batch is left as it is.
func (h *Home) Redrive(ctx context.Context, b etl.Batch) (report ledger.Report, err error) {
	v, err := h.Show(ctx, b)
	if err != nil {
		return report, err
	}
	id := v.Batch.Owner
	release, err := h.locks.hold(id)
	if err != nil && v.Batch.State == ledger.StateCompleted {
		return h.complete(ctx, b, v.Batch)
	}
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, release()) }()
	// Only under the lock does it stand still: the execution may have ended meanwhile, or lost the batch.
	if v, err = h.Show(ctx, b); err != nil {
		return report, err
	}
	if v.Batch.State == ledger.StateCompleted {
		return h.complete(ctx, b, v.Batch)
	}
	if v.Batch.Owner != id {
		return report, etl.Errorf(etl.Busy, "execution %s took %s over just now", v.Batch.Owner, b)
	}
	from, known, err := h.history.origin(ctx, id)
	if err != nil {
		return report, err
	}
	if !known {
		return report, etl.Errorf(etl.Usage, "execution %s of batch %s did not run in %s: run the batch again instead", id, b, h.opts.Dir)
	}
	if h.opts.Source != "" {
		from.Source = h.opts.Source
	}
	p, err := find(from)
	if err != nil {
		return report, err
	}
	if err := h.missing(ctx, b, p); err != nil {
		return report, err
	}
	if err := h.keeps(ctx, v.Batch, b, p); err != nil {
		return report, err
	}
	earlier := ""
	if v.Batch.Failure != nil {
		earlier = v.Batch.Failure.ID
	}
	res, err := h.redrive(ctx, p, id)
	if err != nil {
		return report, err
	}
	return h.report(ctx, b, id, earlier, res)
}

// keeps refuses to redrive a batch to which the file gives another window, as Claim does when it is run again. What its
// execution was asked for counts: a reprocess fetches nothing.
func (h *Home) keeps(ctx context.Context, cur ledger.Batch, b etl.Batch, p *pipeline.Pipeline) error {
	e, _, err := h.history.Load(ctx, cur.Owner)
	if err != nil {
		return err
	}
	req, err := etl.Decode[etl.Request](e.Input)
	if err != nil {
		return fmt.Errorf("request of %s: %w", cur.Owner, err)
	}
	if _, err := req.Batch(p.Schedule); err != nil || req.Reprocess {
		return nil //nolint:nilerr // what is wrong with a file that has no such batch any more the execution says itself
	}
	return cur.Keeps(p.Schedule.Window(b.Slot))
}

// redrive redrives an execution, and once more if all it did was to raise the failure it had died of: a death between a
// stage's failure and the end of Raise leaves that failure to be raised.
func (h *Home) redrive(ctx context.Context, p *pipeline.Pipeline, id string) (asl.Result, error) {
	r := h.runner(p)
	res, err := r.Redrive(ctx, id)
	if err != nil || res.Status != asl.Failed {
		return res, err
	}
	_, events, err := h.history.Load(ctx, id)
	if err != nil || reached(events) {
		return res, err
	}
	return r.Redrive(ctx, id)
}

// reached reports whether the last redrive called a stage.
func reached(events []asl.Event) bool {
	for _, e := range slices.Backward(events) {
		switch {
		case e.Type == asl.ExecutionRedriven:
			return false
		case e.Type == asl.TaskScheduled && e.State != "RecordFailure" && e.State != "Raise":
			return true
		}
	}
	return false
}
