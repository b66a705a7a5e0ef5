package ledger

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// maxTries bounds how often a write that lost a race is decided anew. Each lost race means that another writer got on.
const maxTries = 64

// The indexes of [Schema].
const (
	indexBySlot = "by_slot"
	indexOpen   = "open"
)

// openMark is the value of the attribute `open` of every open batch: the one partition of the open index.
const openMark = "open"

// Schema is the ledger's table: batches by pipeline and slot, and the open batches by slot.
func Schema() store.Schema {
	return store.Schema{
		Name:    "ledger",
		SortKey: true,
		Indexes: []store.Index{
			{Name: indexBySlot, PK: "pipeline", SK: "slot"},
			{Name: indexOpen, PK: "open", SK: "slot"},
		},
	}
}

// Ledger reads and writes the ledger's table. Its methods may be called concurrently. Their errors are those of
// [store.Table] wrapped with operation and batch, and the kinds each method names.
type Ledger struct {
	Table store.Table
	Now   func() time.Time // nil = time.Now
}

// Batch is a batch item. Times are RFC 3339 in UTC, "" = not yet.
type Batch struct {
	ID       string    `json:"id"`       // etl.Batch.String
	Pipeline string    `json:"pipeline"` // with Slot the key of the index by slot
	Slot     string    `json:"slot"`     // etl.Batch.SlotID
	Source   string    `json:"source,omitempty"`
	State    State     `json:"state"`
	Stage    etl.Stage `json:"stage"` // that wrote last

	Owner   string `json:"owner"`             // execution
	Fence   int    `json:"fence"`             // from 1, raised when the owner changes
	Resumed bool   `json:"resumed,omitempty"` // claimed again by its owner after a failure, and not updated since

	Window     etl.Window   `json:"window"`     // of the current extraction
	Extraction int          `json:"extraction"` // from 1
	Binding    *etl.Binding `json:"binding,omitempty"`
	Tried      *etl.Binding `json:"tried,omitempty"`  // what Gate looked at last; nil once the batch is bound
	Prior      *etl.Binding `json:"prior,omitempty"`  // while a reprocess or refetch is open: what the batch was bound to, or Gate had tried, before it
	Table      string       `json:"table,omitempty"`  // target.table, when Gate passed last
	Load       int          `json:"load"`             // number of the current load, from 1
	Reload     bool         `json:"reload,omitempty"` // an open load of the bound objects: nothing to extract or transform

	// The checkpoint of the current extraction. A hint: the landed parts are the truth.
	Parts   int   `json:"parts"`
	Pages   int64 `json:"pages"`
	Records int64 `json:"records"`
	Bytes   int64 `json:"bytes"`

	Counts   *etl.Counts `json:"counts,omitempty"` // as far as the current load has come: nil before Gate, whole once COMPLETED
	Retries  int         `json:"retries"`
	WaitedMS int64       `json:"waited_ms"`

	PipelineDigest string `json:"pipeline_digest,omitempty"`
	ManifestDigest string `json:"manifest_digest,omitempty"`

	Failure  *FailureInfo `json:"last_failure,omitempty"` // since the batch was opened; it holds only while the batch is FAILED
	Failures int          `json:"failures"`               // since the batch was opened

	StartedAt   string `json:"started_at"` // when the batch was opened: first claimed, or reopened
	ClaimedAt   string `json:"claimed_at"` // when the owner came to own it
	UpdatedAt   string `json:"updated_at"`
	CompletedAt string `json:"completed_at,omitempty"`

	Write int `json:"write"` // raised by each write of the item
}

// Looked is what Gate has let pass, else what it tried last. nil if it has not looked at the batch's parts.
func (b Batch) Looked() *etl.Binding { return cmp.Or(b.Binding, b.Tried) }

// Basis is what a reprocess starts from: what the batch was bound to, or had been tried under, before one that has not ended
// opened it, else what it is bound to, else what Gate tried last. nil if Gate has not looked at it.
func (b Batch) Basis() *etl.Binding { return cmp.Or(b.Prior, b.Looked()) }

// Owner is what a claim gives: the right to write the batch item.
type Owner struct {
	Batch     etl.Batch
	Execution string
	Fence     int
}

// Get reads a batch item, strongly consistent. An error that wraps store.ErrNotFound if the batch was never claimed.
func (l *Ledger) Get(ctx context.Context, b etl.Batch) (Batch, error) {
	cur, err := l.read(ctx, b)
	if err != nil {
		return Batch{}, fmt.Errorf("get batch %s: %w", b, err)
	}
	return cur, nil
}

// Owned is [Ledger.Get] for the owner: a batch that another owner or fence holds is an error of kind Superseded. It
// writes nothing. The batch may be COMPLETED.
func (l *Ledger) Owned(ctx context.Context, o Owner) (Batch, error) {
	cur, err := l.read(ctx, o.Batch)
	if err == nil {
		err = o.check(&cur)
	} else if errors.Is(err, store.ErrNotFound) {
		err = o.check(nil)
	}
	if err != nil {
		return Batch{}, fmt.Errorf("check owner of batch %s: %w", o.Batch, err)
	}
	return cur, nil
}

// Update lets the owner change its open batch: extraction, binding (or what was tried), table, checkpoint, counts, retries, waits and digests. A
// change of anything else, or a lower extraction, is an error of kind Internal. A FAILED batch goes back to RUNNING. A
// batch of another owner or fence, or completed, is an error of kind Superseded and stays as it is. Change sets absolute
// values: it may be called more than once, each time on what the item holds then. What changes nothing is not written.
func (l *Ledger) Update(ctx context.Context, o Owner, stage etl.Stage, change func(*Batch)) (Batch, error) {
	b, err := l.edit(ctx, o.Batch, func(cur *Batch) (*Batch, Move, error) {
		if err := o.check(cur); err != nil {
			return nil, "", err
		}
		if cur.State == StateCompleted {
			return nil, "", etl.Errorf(etl.Superseded, "the batch is completed already")
		}
		next := cur.clone()
		change(&next)
		if err := next.onlyProgressSince(*cur); err != nil {
			return nil, "", err
		}
		next.Stage, next.Resumed = stage, false
		return &next, MoveWork, nil
	})
	if err != nil {
		return Batch{}, fmt.Errorf("update batch %s: %w", o.Batch, err)
	}
	return b, nil
}

// Settle completes the owner's batch. Calling it again is no error and changes nothing. Counts that do not add up are an
// error of kind RecordsLost (B7), a batch that Gate never bound one of kind Internal, a batch of another owner or fence
// one of kind Superseded.
func (l *Ledger) Settle(ctx context.Context, o Owner, counts etl.Counts) (Batch, error) {
	b, err := l.edit(ctx, o.Batch, func(cur *Batch) (*Batch, Move, error) {
		if err := o.check(cur); err != nil {
			return nil, "", err
		}
		if cur.State == StateCompleted {
			return nil, "", nil
		}
		if cur.Binding == nil {
			return nil, "", etl.Errorf(etl.Internal, "the batch is not bound to a contract: it has not passed the gate")
		}
		if counts.Records != counts.Valid+counts.Quarantined || counts.Valid != counts.Total() || counts.Written != counts.New+counts.Updated {
			return nil, "", etl.Errorf(etl.RecordsLost, "the counts do not add up: %+v", counts)
		}
		next := cur.clone()
		next.Stage, next.Resumed, next.Reload, next.Prior = etl.StageSettle, false, false, nil
		next.Counts = &counts
		next.CompletedAt = l.now()
		return &next, MoveSettle, nil
	})
	if err != nil {
		return Batch{}, fmt.Errorf("settle batch %s: %w", o.Batch, err)
	}
	return b, nil
}

// check says why the owner may not write the item, or nil.
func (o Owner) check(cur *Batch) error {
	switch {
	case cur == nil:
		return etl.Errorf(etl.Superseded, "nobody claimed the batch")
	case cur.Owner != o.Execution || cur.Fence != o.Fence:
		return etl.Errorf(etl.Superseded, "execution %s (fence %d) owns the batch, not %s (fence %d)", cur.Owner, cur.Fence, o.Execution, o.Fence)
	}
	return nil
}

// onlyProgressSince says what an update changed that it may not, or nil.
func (b Batch) onlyProgressSince(old Batch) error {
	if b.Extraction < old.Extraction {
		return etl.Errorf(etl.Internal, "an update lowers the extraction from %d to %d", old.Extraction, b.Extraction)
	}
	b.Extraction, b.Binding, b.Tried, b.Table = old.Extraction, old.Binding, old.Tried, old.Table
	b.Parts, b.Pages, b.Records, b.Bytes = old.Parts, old.Pages, old.Records, old.Bytes
	b.Counts, b.Retries, b.WaitedMS = old.Counts, old.Retries, old.WaitedMS
	b.PipelineDigest, b.ManifestDigest = old.PipelineDigest, old.ManifestDigest
	if !b.equal(old) {
		return etl.Errorf(etl.Internal, "an update changes more than progress: %+v became %+v", old, b)
	}
	return nil
}

// edit reads the batch item (nil = absent), lets decide say what it becomes, and writes that, until no other write comes
// between. A nil batch, or one that is the same, is not written. It returns the item as it is then.
func (l *Ledger) edit(ctx context.Context, b etl.Batch, decide func(cur *Batch) (*Batch, Move, error)) (Batch, error) {
	for range maxTries {
		var cur *Batch
		read, err := l.read(ctx, b)
		if err == nil {
			cur = &read
		} else if !errors.Is(err, store.ErrNotFound) {
			return Batch{}, err
		}
		next, move, err := decide(cur)
		if err != nil {
			return Batch{}, err
		}
		if next == nil {
			return read, nil
		}
		if next.State, err = read.State.Next(move); err != nil {
			return Batch{}, err
		}
		if cur != nil && next.equal(read) {
			return read, nil
		}
		next.Write = read.Write + 1
		next.UpdatedAt = l.now()
		cond := store.Condition{Absent: true}
		if cur != nil {
			cond = store.Condition{Equals: map[string]any{
				"owner": cur.Owner, "fence": int64(cur.Fence), "write": int64(cur.Write),
			}}
		}
		doc, err := next.encode()
		if err != nil {
			return Batch{}, err
		}
		err = l.Table.PutIf(ctx, store.Item{Key: batchKey(b), Doc: doc}, cond)
		if err == nil {
			return *next, nil
		}
		var inWay *store.ConditionError
		if !errors.As(err, &inWay) {
			return Batch{}, fmt.Errorf("write: %w", err)
		}
		if inWay.Old != nil {
			// A client under the store may have sent the write twice: then what is in the way is our own.
			if old, err := decodeBatch(*inWay.Old); err != nil {
				return Batch{}, err
			} else if old.equal(*next) {
				return old, nil
			}
		}
	}
	return Batch{}, etl.Errorf(etl.StoreUnavailable, "the batch item changed under %d writes in a row", maxTries)
}

func (l *Ledger) read(ctx context.Context, b etl.Batch) (Batch, error) {
	item, err := l.Table.Get(ctx, batchKey(b))
	if err != nil {
		return Batch{}, fmt.Errorf("read: %w", err)
	}
	return decodeBatch(item)
}

func batchKey(b etl.Batch) store.Key { return store.Key{PK: b.String(), SK: etl.BatchSK} }

func (l *Ledger) time() time.Time {
	if l.Now != nil {
		return l.Now()
	}
	return time.Now()
}

func (l *Ledger) now() string { return etl.FormatTime(l.time()) }

// batchDoc is a batch item's document: Open is there only while the batch is open, which keeps the index of open
// batches small.
type batchDoc struct {
	Batch
	Open string `json:"open,omitempty"`
}

func (b Batch) encode() ([]byte, error) {
	doc := batchDoc{Batch: b}
	if b.State != StateCompleted {
		doc.Open = openMark
	}
	return encode(doc)
}

func decodeBatch(item store.Item) (Batch, error) { return decode[Batch](item) }

// equal reports whether both are the same item.
func (b Batch) equal(o Batch) bool {
	if !b.Window.Equal(o.Window) || !same(b.Binding, o.Binding) || !same(b.Tried, o.Tried) || !same(b.Prior, o.Prior) || !same(b.Counts, o.Counts) || !same(b.Failure, o.Failure) {
		return false
	}
	b.Window, b.Binding, b.Tried, b.Prior, b.Counts, b.Failure = o.Window, o.Binding, o.Tried, o.Prior, o.Counts, o.Failure
	return b == o
}

func same[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// clone is a copy that shares no memory with b.
func (b Batch) clone() Batch {
	b.Binding, b.Tried, b.Prior = copyOf(b.Binding), copyOf(b.Tried), copyOf(b.Prior)
	b.Counts, b.Failure = copyOf(b.Counts), copyOf(b.Failure)
	return b
}

func copyOf[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

// encode writes a document in canonical form: names sorted, characters as they are.
func encode(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, etl.Errorf(etl.Internal, "encode %T: %w", v, err)
	}
	var tree map[string]any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&tree); err != nil {
		return nil, etl.Errorf(etl.Internal, "encode %T: %w", v, err)
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(tree); err != nil {
		return nil, etl.Errorf(etl.Internal, "encode %T: %w", v, err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

func decode[T any](item store.Item) (T, error) {
	var v T
	if err := json.Unmarshal(item.Doc, &v); err != nil {
		return v, etl.Errorf(etl.Internal, "ledger item %s %s is not a %T: %w", item.PK, item.SK, v, err)
	}
	return v, nil
}
