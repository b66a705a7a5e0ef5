package mem

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/onceload/onceload/pkg/store"
)

// Table is a [store.Table] in memory. Set OnCall before the first call. It is safe for concurrent use.
type Table struct {
	OnCall Fault
	calls

	schema store.Schema
	mu     sync.RWMutex
	held   map[store.Key]store.Item
}

// NewTable returns an empty table.
func NewTable(schema store.Schema) *Table {
	return &Table{schema: schema, held: make(map[store.Key]store.Item)}
}

// own copies an item, so that no caller can reach into the table.
func own(item store.Item) store.Item {
	item.Doc = slices.Clone(item.Doc)
	return item
}

// wrap says where an error happened.
func (t *Table) wrap(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s in %s: %w", op, key, t.schema.Name, err)
}

// begin counts a call and consults the hook.
func (t *Table) begin(ctx context.Context, op, key string) (apply bool, err error) {
	if err := t.add(ctx, op); err != nil {
		return false, err
	}
	return t.OnCall.ask(op, key)
}

// Get implements [store.Table].
func (t *Table) Get(ctx context.Context, key store.Key) (store.Item, error) {
	item, err := t.get(ctx, key)
	return item, t.wrap("get", key.Name(), err)
}

func (t *Table) get(ctx context.Context, key store.Key) (store.Item, error) {
	if err := t.schema.CheckKey(key); err != nil {
		return store.Item{}, err
	}
	if _, err := t.begin(ctx, "Get", key.Name()); err != nil {
		return store.Item{}, err
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	item, ok := t.held[key]
	if !ok {
		return store.Item{}, store.ErrNotFound
	}
	return own(item), nil
}

// Ranks implements [store.Table].
func (t *Table) Ranks(ctx context.Context, keys []store.Key) (map[store.Key]string, error) {
	ranks := make(map[store.Key]string, len(keys))
	if len(keys) == 0 {
		return ranks, t.add(ctx, "Ranks")
	}
	if err := t.schema.CheckKeys(keys); err != nil {
		return nil, t.wrap("read ranks", keys[0].Name(), err)
	}
	if _, err := t.begin(ctx, "Ranks", keys[0].Name()); err != nil {
		return nil, t.wrap("read ranks", keys[0].Name(), err)
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, k := range keys {
		if item, ok := t.held[k]; ok {
			ranks[k] = item.Rank
		}
	}
	return ranks, nil
}

// Query implements [store.Table].
func (t *Table) Query(ctx context.Context, q store.Query) iter.Seq2[store.Item, error] {
	return func(yield func(store.Item, error) bool) {
		found, err := t.query(ctx, q)
		for _, item := range found {
			if err = ctx.Err(); err != nil {
				break
			}
			if !yield(item, nil) {
				return
			}
		}
		if err != nil {
			yield(store.Item{}, t.wrap("query", q.PK, err))
		}
	}
}

func (t *Table) query(ctx context.Context, q store.Query) ([]store.Item, error) {
	index, err := t.schema.CheckQuery(q)
	if err != nil {
		return nil, err
	}
	if _, err := t.begin(ctx, "Query", q.PK); err != nil {
		return nil, err
	}
	type row struct {
		sk   string
		item store.Item
	}
	var rows []row
	t.mu.RLock()
	for key, item := range t.held {
		in := true
		if index != nil {
			key, in = index.Key(item)
		}
		if in && key.PK == q.PK && strings.HasPrefix(key.SK, q.SKPrefix) {
			rows = append(rows, row{key.SK, own(item)})
		}
	}
	t.mu.RUnlock()
	slices.SortFunc(rows, func(a, b row) int {
		c := cmp.Or(strings.Compare(a.sk, b.sk), strings.Compare(a.item.PK, b.item.PK), strings.Compare(a.item.SK, b.item.SK))
		if q.Reverse {
			return -c
		}
		return c
	})
	if q.Limit > 0 && len(rows) > q.Limit {
		rows = rows[:q.Limit]
	}
	items := make([]store.Item, len(rows))
	for i, r := range rows {
		items[i] = r.item
	}
	return items, nil
}

// PutIf implements [store.Table].
func (t *Table) PutIf(ctx context.Context, item store.Item, cond store.Condition) error {
	return t.wrap("put", item.Key.Name(), t.putIf(ctx, item, cond))
}

func (t *Table) putIf(ctx context.Context, item store.Item, cond store.Condition) error {
	item, err := t.schema.CheckItem(item)
	if err != nil {
		return err
	}
	if err := cond.Check(); err != nil {
		return err
	}
	apply, lost := t.begin(ctx, "PutIf", item.Key.Name())
	if !apply {
		return lost
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var old *store.Item
	if held, ok := t.held[item.Key]; ok {
		held = own(held)
		old = &held
	}
	if cond.Holds(old) {
		t.held[item.Key] = item
		return lost
	}
	if lost != nil {
		return lost
	}
	return &store.ConditionError{Old: old}
}

// PutHigher implements [store.Table].
func (t *Table) PutHigher(ctx context.Context, items []store.Item) ([]store.Outcome, error) {
	items, err := t.schema.CheckHigher(items)
	if err != nil {
		return nil, t.wrap("put", "items", err)
	}
	if err := t.add(ctx, "PutHigher"); err != nil {
		return nil, t.wrap("put", "items", err)
	}
	outcomes := make([]store.Outcome, len(items))
	for i, item := range items {
		apply, err := t.OnCall.ask("PutHigher", item.Key.Name())
		if apply {
			t.mu.Lock()
			outcomes[i] = t.putHigher(item)
			t.mu.Unlock()
		}
		if err != nil {
			return nil, t.wrap("put", item.Key.Name(), err)
		}
	}
	return outcomes, nil
}

// PutAllHigher implements [store.Table].
func (t *Table) PutAllHigher(ctx context.Context, items []store.Item) ([]store.Outcome, error) {
	items, err := t.schema.CheckAllHigher(items)
	if err != nil {
		return nil, t.wrap("put all", "items", err)
	}
	if len(items) == 0 {
		return []store.Outcome{}, t.add(ctx, "PutAllHigher")
	}
	apply, lost := t.begin(ctx, "PutAllHigher", items[0].Key.Name())
	if !apply {
		return nil, t.wrap("put all", items[0].Key.Name(), lost)
	}
	outcomes := make([]store.Outcome, len(items))
	t.mu.Lock()
	for i, item := range items {
		outcomes[i] = t.putHigher(item)
	}
	t.mu.Unlock()
	if lost != nil {
		return nil, t.wrap("put all", items[0].Key.Name(), lost)
	}
	return outcomes, nil
}

// putHigher decides one item, under the lock.
func (t *Table) putHigher(item store.Item) store.Outcome {
	old, ok := t.held[item.Key]
	outcome := store.Higher(old.Rank, item.Rank, ok)
	if outcome.Written() {
		t.held[item.Key] = item
	}
	return outcome
}

// Items is a copy of the whole table in the order of its keys.
func (t *Table) Items() []store.Item {
	t.mu.RLock()
	defer t.mu.RUnlock()
	items := make([]store.Item, 0, len(t.held))
	for _, item := range t.held {
		items = append(items, own(item))
	}
	slices.SortFunc(items, func(a, b store.Item) int {
		return cmp.Or(strings.Compare(a.PK, b.PK), strings.Compare(a.SK, b.SK))
	})
	return items
}
