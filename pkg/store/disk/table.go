package disk

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/onceload/onceload/pkg/store"
)

// Table is a [store.Table] in a [DB].
type Table struct {
	db     *DB
	schema store.Schema

	get    *sql.Stmt // reader
	ranks  *sql.Stmt // reader; MaxBatchGet keys
	look   *sql.Stmt // writer, like the rest
	rank   *sql.Stmt
	insert *sql.Stmt
	update *sql.Stmt
	put    *sql.Stmt
}

func newTable(ctx context.Context, d *DB, schema store.Schema) (*Table, error) {
	t := &Table{db: d, schema: schema}
	name := quote(schema.Name)
	one := "SELECT rank, item FROM " + name + " WHERE pk = ? AND sk = ?"
	for _, s := range []struct {
		db   *sql.DB
		stmt **sql.Stmt
		text string
	}{
		{d.reader, &t.get, one},
		{d.reader, &t.ranks, t.ranksSQL(store.MaxBatchGet)},
		{d.writer, &t.look, one},
		{d.writer, &t.rank, "SELECT rowid, rank FROM " + name + " WHERE pk = ? AND sk = ?"},
		{d.writer, &t.insert, "INSERT INTO " + name + " (pk, sk, rank, item) VALUES (?, ?, ?, ?) ON CONFLICT (pk, sk) DO NOTHING"},
		{d.writer, &t.update, "UPDATE " + name + " SET rank = ?, item = ? WHERE rowid = ?"},
		{d.writer, &t.put, "INSERT INTO " + name + " (pk, sk, rank, item) VALUES (?, ?, ?, ?) ON CONFLICT (pk, sk) DO UPDATE SET rank = excluded.rank, item = excluded.item"},
	} {
		stmt, err := s.db.PrepareContext(ctx, s.text)
		if err != nil {
			return nil, sqlError(err)
		}
		*s.stmt = stmt
	}
	return t, nil
}

// wrap says where an error happened.
func (t *Table) wrap(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s in %s: %w", op, key, t.schema.Name, err)
}

// Get implements [store.Table].
func (t *Table) Get(ctx context.Context, key store.Key) (store.Item, error) {
	if err := t.schema.CheckKey(key); err != nil {
		return store.Item{}, t.wrap("get", key.Name(), err)
	}
	item := store.Item{Key: key}
	err := t.get.QueryRowContext(ctx, key.PK, key.SK).Scan(&item.Rank, &item.Doc)
	if err != nil {
		return store.Item{}, t.wrap("get", key.Name(), sqlError(err))
	}
	return item, nil
}

// ranksSQL looks up n keys in one statement.
func (t *Table) ranksSQL(n int) string {
	return "WITH k (pk, sk) AS (VALUES " + strings.TrimSuffix(strings.Repeat("(?, ?), ", n), ", ") + ") " +
		"SELECT t.pk, t.sk, t.rank FROM k CROSS JOIN " + quote(t.schema.Name) + " t ON t.pk = k.pk AND t.sk = k.sk"
}

// Ranks implements [store.Table].
func (t *Table) Ranks(ctx context.Context, keys []store.Key) (map[store.Key]string, error) {
	if len(keys) == 0 {
		return map[store.Key]string{}, ctx.Err()
	}
	ranks, err := t.readRanks(ctx, keys)
	return ranks, t.wrap("read ranks from", keys[0].Name(), err)
}

func (t *Table) readRanks(ctx context.Context, keys []store.Key) (ranks map[store.Key]string, err error) {
	if err := t.schema.CheckKeys(keys); err != nil {
		return nil, err
	}
	args := make([]any, 0, 2*len(keys))
	for _, k := range slices.SortedFunc(slices.Values(keys), compareKeys) {
		args = append(args, k.PK, k.SK)
	}
	var rows *sql.Rows
	if len(keys) == store.MaxBatchGet {
		rows, err = t.ranks.QueryContext(ctx, args...)
	} else {
		rows, err = t.db.reader.QueryContext(ctx, t.ranksSQL(len(keys)), args...)
	}
	if err != nil {
		return nil, sqlError(err)
	}
	defer func() { err = errors.Join(err, sqlError(rows.Close())) }()
	ranks = make(map[store.Key]string, len(keys))
	for rows.Next() {
		var k store.Key
		var rank string
		if err := rows.Scan(&k.PK, &k.SK, &rank); err != nil {
			return nil, sqlError(err)
		}
		ranks[k] = rank
	}
	return ranks, sqlError(rows.Err())
}

func compareKeys(a, b store.Key) int {
	if c := strings.Compare(a.PK, b.PK); c != 0 {
		return c
	}
	return strings.Compare(a.SK, b.SK)
}

// Query implements [store.Table].
func (t *Table) Query(ctx context.Context, q store.Query) iter.Seq2[store.Item, error] {
	return func(yield func(store.Item, error) bool) {
		if err := t.query(ctx, q, yield); err != nil && !errors.Is(err, errStop) {
			yield(store.Item{}, t.wrap("query", q.PK, err))
		}
	}
}

func (t *Table) query(ctx context.Context, q store.Query, yield func(store.Item, error) bool) (err error) {
	text, args, err := t.querySQL(q)
	if err != nil {
		return err
	}
	rows, err := t.db.reader.QueryContext(ctx, text, args...)
	if err != nil {
		return sqlError(err)
	}
	defer func() { err = errors.Join(err, sqlError(rows.Close())) }()
	for rows.Next() {
		var item store.Item
		if err := rows.Scan(&item.PK, &item.SK, &item.Rank, &item.Doc); err != nil {
			return sqlError(err)
		}
		if !yield(item, nil) {
			return errStop
		}
	}
	return sqlError(rows.Err())
}

// querySQL writes a query as a statement.
func (t *Table) querySQL(q store.Query) (text string, args []any, err error) {
	index, err := t.schema.CheckQuery(q)
	if err != nil {
		return "", nil, err
	}
	columns, order := []string{"pk", "sk"}, []string{"sk"}
	if index != nil {
		columns = members(*index)
		order = slices.Concat(columns[1:], []string{"pk", "sk"})
	}
	text = "SELECT pk, sk, rank, item FROM " + quote(t.schema.Name) + " WHERE " + columns[0] + " = ?"
	args = []any{q.PK}
	if index != nil && len(columns) > 1 {
		text += " AND " + columns[1] + " IS NOT NULL"
	}
	if q.SKPrefix != "" {
		// UTF-8 has no byte 0xff, so the last byte can be raised: the first text after all that begin with the prefix.
		after := []byte(q.SKPrefix)
		after[len(after)-1]++
		text += " AND " + columns[1] + " >= ? AND " + columns[1] + " < ?"
		args = append(args, q.SKPrefix, string(after))
	}
	direction := ""
	if q.Reverse {
		direction = " DESC"
	}
	text += " ORDER BY " + strings.Join(order, direction+", ") + direction
	if q.Limit > 0 {
		text += fmt.Sprintf(" LIMIT %d", q.Limit)
	}
	return text, args, nil
}

// transact runs f in one write transaction.
func (t *Table) transact(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := t.db.writer.BeginTx(ctx, nil)
	if err != nil {
		return sqlError(err)
	}
	if err := f(tx); err != nil {
		if back := tx.Rollback(); back != nil && !errors.Is(back, sql.ErrTxDone) {
			err = errors.Join(err, sqlError(back))
		}
		return err
	}
	return sqlError(tx.Commit())
}

// PutIf implements [store.Table].
func (t *Table) PutIf(ctx context.Context, item store.Item, cond store.Condition) error {
	checked, err := t.schema.CheckItem(item)
	if err == nil {
		err = cond.Check()
	}
	if err == nil {
		err = t.transact(ctx, func(tx *sql.Tx) error { return t.putIf(ctx, tx, checked, cond) })
	}
	return t.wrap("put", item.Name(), err)
}

func (t *Table) putIf(ctx context.Context, tx *sql.Tx, item store.Item, cond store.Condition) error {
	old := &store.Item{Key: item.Key}
	err := tx.StmtContext(ctx, t.look).QueryRowContext(ctx, item.PK, item.SK).Scan(&old.Rank, &old.Doc)
	if errors.Is(err, sql.ErrNoRows) {
		old, err = nil, nil
	}
	if err != nil {
		return sqlError(err)
	}
	if !cond.Holds(old) {
		return &store.ConditionError{Old: old}
	}
	_, err = tx.StmtContext(ctx, t.put).ExecContext(ctx, item.PK, item.SK, item.Rank, string(item.Doc))
	return sqlError(err)
}

// PutHigher implements [store.Table]: one transaction, so here an error means that nothing was written.
func (t *Table) PutHigher(ctx context.Context, items []store.Item) ([]store.Outcome, error) {
	items, err := t.schema.CheckHigher(items)
	if err != nil {
		return nil, t.wrap("put", "items", err)
	}
	return t.putHigher(ctx, items)
}

// PutAllHigher implements [store.Table].
func (t *Table) PutAllHigher(ctx context.Context, items []store.Item) ([]store.Outcome, error) {
	items, err := t.schema.CheckAllHigher(items)
	if err != nil {
		return nil, t.wrap("put all", "items", err)
	}
	return t.putHigher(ctx, items)
}

func (t *Table) putHigher(ctx context.Context, items []store.Item) ([]store.Outcome, error) {
	outcomes := make([]store.Outcome, len(items))
	if len(items) == 0 {
		return outcomes, ctx.Err()
	}
	// In the order of their keys neighbours share the pages of the index.
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return compareKeys(items[a].Key, items[b].Key) })
	err := t.transact(ctx, func(tx *sql.Tx) error {
		// A context that can end costs a goroutine a statement: look at it between them instead.
		still := context.WithoutCancel(ctx)
		insert, rank, update := tx.StmtContext(still, t.insert), tx.StmtContext(still, t.rank), tx.StmtContext(still, t.update)
		for _, i := range order {
			if err := ctx.Err(); err != nil {
				return err
			}
			var err error
			if outcomes[i], err = putOne(still, insert, rank, update, items[i]); err != nil {
				return t.wrap("put", items[i].Name(), sqlError(err))
			}
		}
		return nil
	})
	if err != nil {
		return nil, t.wrap("put", fmt.Sprintf("%d items", len(items)), err)
	}
	return outcomes, nil
}

// putOne inserts the item, and only if its key is taken compares ranks.
func putOne(ctx context.Context, insert, rank, update *sql.Stmt, item store.Item) (store.Outcome, error) {
	done, err := insert.ExecContext(ctx, item.PK, item.SK, item.Rank, string(item.Doc))
	if err != nil {
		return 0, err
	}
	if n, err := done.RowsAffected(); err != nil || n > 0 {
		return store.New, err
	}
	var rowid int64
	var old string
	if err := rank.QueryRowContext(ctx, item.PK, item.SK).Scan(&rowid, &old); err != nil {
		return 0, err
	}
	outcome := store.Higher(old, item.Rank, true)
	if outcome == store.Updated {
		_, err = update.ExecContext(ctx, item.Rank, string(item.Doc), rowid)
	}
	return outcome, err
}
