package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/snapshot"
	"github.com/onceload/onceload/pkg/stage"
	"github.com/onceload/onceload/pkg/store"
)

// Reprocess is what a deliberate new load of a batch asks for.
type Reprocess struct {
	Refetch bool // a new extraction, instead of the landed one
}

// Selection is what a reprocess is about.
type Selection struct {
	Batches []etl.Batch     // chosen, by slot or as named
	Open    []ledger.Report // not chosen, and not completed either
}

// Select chooses the batches of a reprocess among those named, or among all of the home's pipeline if none is: all that
// Gate has looked at, or with quarantined set those that hold quarantined records, or with a reason those that hold
// records quarantined for it. An open batch is judged by what it was bound to before, too: one whose reprocess has not
// ended is chosen again for what it was chosen for. A batch that is named is chosen whatever it is, unless quarantined is
// set.
func (h *Home) Select(ctx context.Context, named []etl.Batch, quarantined bool, reason string) (Selection, error) {
	var out Selection
	among := named
	if len(named) == 0 {
		var err error
		if among, err = h.all(ctx); err != nil {
			return out, err
		}
	}
	for _, b := range among {
		v, err := h.Show(ctx, b)
		if err != nil {
			return out, err
		}
		chosen := len(named) > 0 && !quarantined
		if !chosen {
			if chosen, err = h.holds(ctx, b, v.Batch, quarantined, reason); err != nil {
				return out, err
			}
		}
		switch {
		case chosen:
			out.Batches = append(out.Batches, b)
		case v.Batch.State != ledger.StateCompleted:
			out.Open = append(out.Open, v.Batch.Report())
		}
	}
	return out, nil
}

// all lists the batches of the home's pipeline by slot.
func (h *Home) all(ctx context.Context) ([]etl.Batch, error) {
	p, err := find(origin{Pipeline: h.opts.Pipeline, Source: h.opts.Source})
	if err != nil {
		return nil, err
	}
	var out []etl.Batch
	for found, err := range h.ledger.Batches(ctx, p.Name, false, 0) {
		if err != nil {
			return nil, err
		}
		b, err := etl.ParseBatch(found.ID)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// holds reports whether Gate has looked at a batch, and quarantined records were found in it, for the reason if one is
// given.
func (h *Home) holds(ctx context.Context, id etl.Batch, b ledger.Batch, quarantined bool, reason string) (bool, error) {
	for _, bind := range []*etl.Binding{b.Prior, b.Binding, b.Tried} {
		if bind == nil {
			continue
		}
		if !quarantined {
			return true, nil
		}
		parts, err := h.ledger.Transforms(ctx, id, *bind)
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(parts, func(t ledger.TransformRecord) bool { return t.Holds(reason) }) {
			return true, nil
		}
	}
	return false, nil
}

// Reprocess loads the batch's landed snapshot again under the file's newer revision, or fetches anew. Todo is false, and
// nothing happens, if the batch is completed under this very contract already. A batch whose owner lives is reported as
// busy.
func (h *Home) Reprocess(ctx context.Context, b etl.Batch, r Reprocess) (report ledger.Report, todo bool, err error) {
	v, from, err := h.known(ctx, b)
	if err != nil {
		return v.Batch.Report(), false, err
	}
	if v.Batch.State != ledger.StateCompleted {
		live, err := h.locks.Alive(ctx, v.Batch.Owner)
		if err != nil {
			return v.Batch.Report(), true, err
		}
		if live == ledger.Running { // what it has not done yet is no fault of the batch's
			return busy(b, v.Batch.Report()), true, nil
		}
	}
	req := etl.Request{Slot: etl.FormatTime(b.Slot), Refetch: r.Refetch, Reprocess: !r.Refetch}
	if !r.Refetch {
		if todo, err = h.newer(ctx, b, v, from); err != nil || !todo {
			return v.Batch.Report(), false, err
		}
	}
	report, err = h.run(ctx, from, req)
	return report, true, err
}

// Rehearse says what a reprocess of the batch would come to. It changes nothing.
func (h *Home) Rehearse(ctx context.Context, b etl.Batch) (stage.Rehearsal, error) {
	_, from, err := h.known(ctx, b)
	if err != nil {
		return stage.Rehearsal{}, err
	}
	p, err := find(from)
	if err != nil {
		return stage.Rehearsal{}, err
	}
	return h.stages(p).Load.Rehearse(ctx, b)
}

// known reads a batch, and finds its pipeline file: the one that the command names, else the one of its last run.
func (h *Home) known(ctx context.Context, b etl.Batch) (ledger.View, origin, error) {
	v, err := h.Show(ctx, b)
	if err != nil {
		return v, origin{}, err
	}
	from, known, err := h.history.origin(ctx, v.Batch.Owner)
	if err != nil {
		return v, from, err
	}
	if h.opts.Pipeline != "" || !known {
		from = origin{Pipeline: h.opts.Pipeline}
		if from.Pipeline == "" {
			from.Pipeline = b.Pipeline
		}
		if from, err = absolute(from); err != nil {
			return v, from, err
		}
	}
	if h.opts.Source != "" {
		from.Source = h.opts.Source
	}
	return v, from, nil
}

// newer reports whether the file's contract has another effect on the batch than the one it is bound to; an error if that
// cannot be had by reprocessing.
func (h *Home) newer(ctx context.Context, b etl.Batch, v ledger.View, from origin) (bool, error) {
	p, err := find(from)
	if err != nil {
		return false, err
	}
	k, err := contract.Compile(p.Contract, p.Target)
	if err != nil {
		return false, fmt.Errorf("%s: %w", p.File, err)
	}
	bind, err := h.bound(ctx, b, v.Batch)
	if err != nil {
		return false, err
	}
	if bind != nil {
		now := k.Revision()
		older := now.Contract < bind.Revision.Contract || now.Contract == bind.Revision.Contract && now.Engine < bind.Revision.Engine
		switch {
		case bind.Revision == now && bind.Contract == k.Short() && v.Batch.State == ledger.StateCompleted:
			return false, nil
		case older, now.Contract == bind.Revision.Contract && bind.Contract != k.Short():
			return false, etl.Errorf(etl.ContractChanged, "%s is bound to revision %s, %s has revision %s with another contract: raise contract.revision to %d",
				b, bind.Revision, p.File, now, bind.Revision.Contract+1)
		}
	}
	_, err = snapshot.ReadManifest(ctx, h.raw, b, v.Batch.Extraction)
	if errors.Is(err, store.ErrNotFound) {
		return false, etl.Errorf(etl.RecordsLost, "%s has no complete extraction to reprocess (it never had one, or a lifecycle rule took it): run it again, or reprocess with --refetch", b)
	}
	return err == nil, err
}

// bound is what the batch is bound to, or was when a reprocess that has not ended opened it; nil if no contract has let it
// load yet.
func (h *Home) bound(ctx context.Context, id etl.Batch, b ledger.Batch) (*etl.Binding, error) {
	if b.Binding != nil || b.Prior == nil {
		return b.Binding, nil
	}
	revisions, err := h.ledger.Bound(ctx, id.Pipeline)
	if err != nil {
		return nil, err
	}
	for _, r := range revisions {
		if r.Revision == b.Prior.Revision.Contract && strings.HasPrefix(r.Contract, b.Prior.Contract) {
			return b.Prior, nil
		}
	}
	return nil, nil // Gate tried it, and refused
}
