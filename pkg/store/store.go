// Package store declares the two stores the pipeline stands on: [Objects] for landed pages and stage files, [Table] for
// the ledger and the targets. Three backends implement them: disk (a folder and SQLite), mem (in memory, with fault
// hooks) and cloud (S3 and DynamoDB); storetest is the conformance suite they all pass.
package store

import (
	"context"
	"errors"
	"io"
	"iter"
)

// Errors that callers tell apart with errors.Is. Every other error of a backend is an *etl.Error of kind StoreUnavailable,
// StoreThrottled (both transient) or Internal (a request no backend may accept), wrapped with operation and key. A
// cancelled context comes back as its own error.
var (
	ErrNotFound  = errors.New("not found")
	ErrExists    = errors.New("already there")
	ErrCondition = errors.New("condition not met")
)

// Limits every backend enforces, so that a laptop refuses what DynamoDB would refuse.
const (
	MaxItemBytes      = 409_600 // names and values by DynamoDB's size rules
	MaxPKBytes        = 2_048
	MaxSKBytes        = 1_024
	MaxBatchGet       = 100
	MaxPutHigher      = 1_000
	MaxPutAllHigher   = 100
	MaxConditionAttrs = 50
)

// Info describes a stored object.
type Info struct {
	Key  string
	Size int64
}

// Objects is a bucket. Keys follow the grammar of pkg/etl; other keys are refused as Internal. A write is durable and
// visible to every later call when it returns nil, and visible whole or not at all whenever it fails.
type Objects interface {
	// PutOnce stores body under a key that holds nothing. It returns ErrExists, leaving what is there, if something is.
	// A conflicting write under way is a transient error, never ErrExists. After a transient error the object may have
	// been stored: the next PutOnce then says ErrExists, and the caller compares.
	PutOnce(ctx context.Context, key string, body []byte) error
	// Put stores what body yields, replacing what is there. It is idempotent for equal bodies. An error of body aborts
	// the write and is returned as it is (wrapped).
	Put(ctx context.Context, key string, body io.Reader) error
	// Get opens an object from its start. ErrNotFound if there is none. The caller closes the reader.
	Get(ctx context.Context, key string) (io.ReadCloser, error)
	// GetRange reads n bytes from off, or the last n bytes if off is −1 (the whole object if it is shorter). Fewer bytes
	// than asked for come back only at the object's end. ErrNotFound if there is none.
	GetRange(ctx context.Context, key string, off, n int64) ([]byte, error)
	// Head returns the object's size. ErrNotFound if there is none.
	Head(ctx context.Context, key string) (Info, error)
	// List yields the objects whose key begins with prefix, in byte order of their keys.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
}

// Key names an item. SK is empty in tables without a sort key.
type Key struct {
	PK string
	SK string
}

// Item is a row: its key, its rank (targets only; empty in the ledger), and its attributes as one JSON object in
// canonical form. Doc does not repeat the key or the rank. Numbers in Doc are exact to 38 digits.
type Item struct {
	Key
	Rank string
	Doc  []byte
}

// Condition guards a PutIf. The zero value is no guard.
type Condition struct {
	// Absent: no item has the key.
	Absent bool
	// Equals: the stored item exists and each named top-level attribute of its Doc is equal. A value is a string, an
	// int64 or a bool; the name is the attribute's.
	Equals map[string]any
}

// ConditionError is what a failed PutIf returns; errors.Is(err, ErrCondition) holds. Old is the item that was in the way,
// nil if there is none (or it went away meanwhile).
type ConditionError struct{ Old *Item }

func (e *ConditionError) Error() string { return ErrCondition.Error() }

// Unwrap makes errors.Is(err, ErrCondition) true.
func (e *ConditionError) Unwrap() error { return ErrCondition }

// Outcome is what PutHigher did with one item.
type Outcome int

// The outcomes.
const (
	New       Outcome = iota // written; the key was absent
	Updated                  // written; the stored rank was lower
	Unchanged                // not written: the stored rank is equal
	Stale                    // not written: the stored rank is higher
)

func (o Outcome) String() string { return [...]string{"new", "updated", "unchanged", "stale"}[o] }

// Index is a secondary index over two top-level string attributes of Doc. Items that lack PK are not in it (sparse).
type Index struct {
	Name string
	PK   string
	SK   string
}

// Schema describes a table to the backend that opens it.
type Schema struct {
	Name    string
	SortKey bool // items have an SK
	Indexes []Index
}

// Query selects items of one partition, in byte order of SK (of the index's SK attribute, then unspecified).
type Query struct {
	Index    string // "" = the table itself
	PK       string
	SKPrefix string
	Reverse  bool
	Limit    int // 0 = all
}

// Table is a table of items. Keys and ranks compare as bytes.
type Table interface {
	// Get reads one item, strongly consistent. ErrNotFound if there is none.
	Get(ctx context.Context, key Key) (Item, error)
	// Ranks reads the ranks of at most MaxBatchGet distinct keys, possibly stale: an absent key has no entry. It suits
	// ranks alone, which only rise.
	Ranks(ctx context.Context, keys []Key) (map[Key]string, error)
	// Query yields the items, strongly consistent on the table itself, possibly stale on an index.
	Query(ctx context.Context, q Query) iter.Seq2[Item, error]
	// PutIf stores the item, replacing what is there, if the condition holds; else it returns a *ConditionError. After a
	// transient error the item may have been stored: the caller must be able to recognise its own write in Old.
	PutIf(ctx context.Context, item Item, cond Condition) error
	// PutHigher stores each item whose key is absent or holds a lower rank, each decided alone, in any order, and returns
	// one outcome an item. At most MaxPutHigher items, keys distinct, ranks not empty; else Internal. An item's own lost
	// reply counts as Unchanged on a later call. On an error some items may have been written: call again.
	PutHigher(ctx context.Context, items []Item) ([]Outcome, error)
	// PutAllHigher is PutHigher for at most MaxPutAllHigher items, all or none: after an error nothing was written, or
	// (reply lost) everything was.
	PutAllHigher(ctx context.Context, items []Item) ([]Outcome, error)
}
