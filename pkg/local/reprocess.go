package local

import (
	"context"
	"errors"
	"fmt"
	"slices"

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

// Select lists the batches of the home's pipeline that a reprocess is about, by slot: all that were ever bound, or with
// quarantined set those that hold quarantined records, or with a reason those that hold records quarantined for it.
func (h *Home) Select(ctx context.Context, quarantined bool, reason string) ([]etl.Batch, error) {
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
		holds, err := h.Holds(ctx, b, quarantined, reason)
		if err != nil {
			return nil, err
		}
		if holds {
			out = append(out, b)
		}
	}
	return out, nil
}

// Holds reports whether a batch was bound to a contract, and holds quarantined records, for the reason if one is given.
func (h *Home) Holds(ctx context.Context, b etl.Batch, quarantined bool, reason string) (bool, error) {
	v, err := h.Show(ctx, b)
	if err != nil {
		return false, err
	}
	if v.Batch.Binding == nil {
		return false, nil
	}
	return !quarantined && reason == "" || slices.ContainsFunc(v.Transforms, func(t ledger.TransformRecord) bool {
		return t.Quarantined > 0 && (reason == "" || slices.ContainsFunc(t.Reasons, func(r ledger.ReasonCount) bool { return r.Code == reason }))
	}), nil
}

// Reprocess loads the batch's landed snapshot again under the file's newer revision, or fetches anew. Todo is false, and
// nothing happens, if the batch is completed under this very contract already.
func (h *Home) Reprocess(ctx context.Context, b etl.Batch, r Reprocess) (report ledger.Report, todo bool, err error) {
	v, from, err := h.known(ctx, b)
	if err != nil {
		return report, false, err
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
	if bind := v.Batch.Binding; bind != nil {
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
