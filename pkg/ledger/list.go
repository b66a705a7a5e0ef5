package ledger

import (
	"context"
	"fmt"
	"iter"

	"github.com/onceload/onceload/pkg/store"
)

// Batches yields the pipeline's batches by slot, the newest first if latest is set, at most limit (0 = all). It reads an
// index, which may be stale.
func (l *Ledger) Batches(ctx context.Context, pipeline string, latest bool, limit int) iter.Seq2[Batch, error] {
	return l.list(ctx, store.Query{Index: indexBySlot, PK: pipeline, Reverse: latest, Limit: limit})
}

// Open yields the open batches of all pipelines by slot, the oldest first. It reads an index, which may be stale: Get a
// batch before acting on it.
func (l *Ledger) Open(ctx context.Context) iter.Seq2[Batch, error] {
	return l.list(ctx, store.Query{Index: indexOpen, PK: openMark})
}

func (l *Ledger) list(ctx context.Context, q store.Query) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		for item, err := range l.Table.Query(ctx, q) {
			var b Batch
			if err != nil {
				err = fmt.Errorf("query index %s of %s: %w", q.Index, q.PK, err)
			} else {
				b, err = decodeBatch(item)
			}
			if !yield(b, err) || err != nil {
				return
			}
		}
	}
}
