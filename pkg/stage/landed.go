package stage

import (
	"context"
	"errors"
	"fmt"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/store"
)

// Landed transforms the part whose raw object has come into being, or says why there is nothing to do: it makes Transform
// early, the state machine makes it certain. Events may come twice, late, in any order, and for objects that are nobody's.
func (s *Transform) Landed(ctx context.Context, key string) (done bool, reason string, err error) {
	o, err := etl.ParseKey(key)
	if ours := err == nil && o.Kind == etl.RawPart; !ours {
		return false, "it is no landed part", nil
	}
	if _, err := s.Pipelines(o.Batch.Pipeline); etl.KindOf(err) == etl.Usage {
		return false, fmt.Sprintf("pipeline %s is unknown here", o.Batch.Pipeline), nil
	}
	b, err := s.Ledger.Get(ctx, o.Batch)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return false, fmt.Sprintf("nobody claimed batch %s", o.Batch), nil
	case err != nil:
		return false, "", err
	case b.State == ledger.StateCompleted:
		return false, fmt.Sprintf("batch %s is completed", o.Batch), nil
	case b.Extraction != o.Binding.Extraction:
		return false, fmt.Sprintf("batch %s is at extraction %d", o.Batch, b.Extraction), nil
	}
	p, k, err := s.compile(o.Batch.Pipeline)
	if err != nil {
		return false, "", err
	}
	if err := s.Part(ctx, p, k, o.Batch, o.Binding.Extraction, o.Part); err != nil {
		return false, "", err
	}
	return true, "", nil
}
