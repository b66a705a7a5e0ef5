package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// maxCause bounds the cause of a failure in bytes, as Step Functions does: an item must hold it.
const maxCause = 32_768

// FailureInfo is a recorded failure.
type FailureInfo struct {
	ID        string    `json:"id"` // etl.FailureID
	Execution string    `json:"execution,omitempty"`
	Stage     etl.Stage `json:"stage"`
	Kind      etl.Kind  `json:"kind"`
	Message   string    `json:"message"` // cut after etl.MaxMessage
	Hint      string    `json:"hint"`
	At        string    `json:"at"`         // RFC 3339 UTC
	ErrorName string    `json:"error_name"` // verbatim from Step Functions
	Cause     string    `json:"cause"`      // likewise; cut after 32 KiB
	Raised    string    `json:"raised"`     // id of the request that raised it, "" = not yet
}

// RecordFailure stores a failure of the execution under the partition key pk (the batch id, or etl.PipelinePK if there is
// no batch), once for its id: a later call changes nothing that the first one finished. If the batch b is open and the
// execution owns it, it becomes FAILED; nil = the failure has no batch.
func (l *Ledger) RecordFailure(ctx context.Context, pk string, b *etl.Batch, execution string, f FailureInfo) error {
	f.Execution = execution
	f.Message, f.Cause = cut(f.Message, etl.MaxMessage), cut(f.Cause, maxCause)
	f.Raised = ""
	if f.At == "" {
		f.At = l.now()
	}
	f, err := putFact(ctx, l.Table, failureKey(pk, f.ID), f)
	if err != nil {
		return fmt.Errorf("record failure %s: %w", f.ID, err)
	}
	if b == nil || f.Raised != "" {
		// Raised: this call is a late double, the batch has moved on.
		return nil
	}
	_, err = l.edit(ctx, *b, func(cur *Batch) (*Batch, Move, error) {
		if cur == nil || cur.Owner != execution || cur.State == StateCompleted || cur.Failure != nil && cur.Failure.ID == f.ID {
			return nil, "", nil
		}
		next := cur.clone()
		next.Stage, next.Failure, next.Resumed = f.Stage, &f, false
		next.Failures++
		return &next, MoveFail, nil
	})
	if err != nil {
		return fmt.Errorf("record failure %s: mark batch %s: %w", f.ID, b, err)
	}
	return nil
}

// Raise marks a recorded failure as raised by the request. It says to raise if nobody had raised it before, or this very
// request had (its reply was lost). Whoever gets an error raises as well, with the failure as far as it could be read.
func (l *Ledger) Raise(ctx context.Context, pk, id, requestID string) (f FailureInfo, raise bool, err error) {
	key := failureKey(pk, id)
	item, err := l.Table.Get(ctx, key)
	if err != nil {
		return FailureInfo{}, true, fmt.Errorf("raise failure %s: read: %w", id, err)
	}
	if f, err = decode[FailureInfo](item); err != nil {
		return FailureInfo{}, true, err
	}
	if f.Raised != "" {
		return f, f.Raised == requestID, nil
	}
	marked := f
	marked.Raised = requestID
	doc, err := encode(marked)
	if err != nil {
		return f, true, err
	}
	err = l.Table.PutIf(ctx, store.Item{Key: key, Doc: doc}, store.Condition{Equals: map[string]any{"raised": ""}})
	var inWay *store.ConditionError
	switch {
	case err == nil:
		return marked, true, nil
	case errors.As(err, &inWay) && inWay.Old != nil:
		if f, err = decode[FailureInfo](*inWay.Old); err != nil {
			return marked, true, err
		}
		return f, f.Raised == requestID, nil
	}
	return f, true, fmt.Errorf("raise failure %s: mark: %w", id, err)
}

// Failures reads what was recorded under a partition key (a batch id or etl.PipelinePK), oldest first.
func (l *Ledger) Failures(ctx context.Context, pk string) ([]FailureInfo, error) {
	out, err := facts[FailureInfo](ctx, l.Table, pk, etl.FailurePrefix)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(out, func(a, b FailureInfo) int { return a.time().Compare(b.time()) })
	return out, nil
}

// time is At, which as text does not sort; the zero time if it is none.
func (f FailureInfo) time() time.Time {
	t, _ := time.Parse(time.RFC3339, f.At)
	return t
}

func failureKey(pk, id string) store.Key { return store.Key{PK: pk, SK: etl.FailureSK(id)} }

// cut bounds a text at a whole character.
func cut(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
