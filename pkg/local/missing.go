package local

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/cloud"
)

// missing says which buckets and tables of AWS are not there. It is asked before a run begins: what is not there does not
// come by itself, though the state machine would try for minutes, and the target is not needed before all has landed.
// Any other trouble is left to the run, which meets it too, tries again, and says so.
func (h *Home) missing(ctx context.Context, b etl.Batch, p *pipeline.Pipeline) error {
	if !h.opts.OnAWS {
		return nil
	}
	run := ctx
	ctx, cancel := context.WithTimeout(run, 5*time.Second)
	defer cancel()
	bucket := func(o store.Objects) func() error {
		return func() error {
			for _, err := range o.List(ctx, "onceload/") { // no key begins so: the shortest answer there is
				return err
			}
			return nil
		}
	}
	var faults []error
	for _, s := range []struct {
		kind, name, variable string
		look                 func() error
	}{
		{"S3 bucket", h.names.RawBucket, cloud.EnvRawBucket, bucket(h.raw)},
		{"S3 bucket", h.names.StageBucket, cloud.EnvStageBucket, bucket(h.stage)},
		{"DynamoDB table", h.names.LedgerTable, cloud.EnvLedgerTable, func() error {
			_, err := h.ledger.Get(ctx, b)
			return err
		}},
		{"DynamoDB table", h.names.TargetPrefix + p.Target.Table, cloud.EnvTargetPrefix, func() error {
			key := store.Key{PK: "onceload"}
			if len(p.Target.Sort) > 0 {
				key.SK = key.PK
			}
			t, err := h.openTarget(ctx, p)
			if err == nil {
				_, err = t.Ranks(ctx, []store.Key{key})
			}
			return err
		}},
	} {
		err := s.look()
		var answer interface{ ErrorCode() string }
		switch {
		case err == nil, errors.Is(err, store.ErrNotFound):
		case run.Err() != nil:
			return run.Err()
		case !errors.As(err, &answer): // nobody is there to ask
			h.opts.Log.WarnContext(ctx, "the stores do not answer: going on, since the run tries again", slog.Any("cause", err))
			return errors.Join(faults...)
		case cloud.Missing(err):
			faults = append(faults, etl.Errorf(etl.StoreUnavailable, "the %s %s does not exist: create it, or correct %s: %w", s.kind, s.name, s.variable, err))
		}
	}
	return errors.Join(faults...)
}
