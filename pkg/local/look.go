package local

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/klauspost/compress/gzip"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/store"
)

// Batches lists a pipeline's batches by slot.
func (h *Home) Batches(ctx context.Context, pipeline string) ([]ledger.Batch, error) {
	var out []ledger.Batch
	for b, err := range h.ledger.Batches(ctx, pipeline, false, 0) {
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// Quarantined reads at most n quarantine lines of the contract a batch is bound to.
func (h *Home) Quarantined(ctx context.Context, v ledger.View, n int) ([]string, error) {
	b, err := etl.ParseBatch(v.Batch.ID)
	if err != nil || v.Batch.Binding == nil {
		return nil, err
	}
	var out []string
	for _, t := range v.Transforms {
		if t.Quarantined == 0 || len(out) == n {
			continue
		}
		key := etl.StageKey(etl.Quarantine, b, *v.Batch.Binding, t.Part)
		lines, err := head(ctx, h.stage, key, n-len(out))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", key, err)
		}
		out = append(out, lines...)
	}
	return out, nil
}

// head reads the first n lines of a gzipped object.
func head(ctx context.Context, from store.Objects, key string, n int) (lines []string, err error) {
	obj, err := from.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, obj.Close()) }()
	gz, err := gzip.NewReader(obj)
	if err != nil {
		return nil, etl.Errorf(etl.RecordsLost, "%w", err)
	}
	in := bufio.NewScanner(gz)
	in.Buffer(nil, 64<<20)
	for len(lines) < n && in.Scan() {
		lines = append(lines, in.Text())
	}
	return lines, in.Err()
}

// Rows reads the first n rows of a target table, in the order of their keys, and how many it has.
func (h *Home) Rows(ctx context.Context, table string, n int) (rows []store.Item, total int64, err error) {
	if err := (store.Schema{Name: table}).Check(); err != nil {
		return nil, 0, err
	}
	db := h.db.SQL()
	if err := db.QueryRowContext(ctx, `SELECT count(*) FROM "`+table+`"`).Scan(&total); err != nil {
		return nil, 0, etl.Errorf(etl.StoreUnavailable, "count rows of %s: %w", table, err)
	}
	found, err := db.QueryContext(ctx, `SELECT pk, sk, rank, item FROM "`+table+`" ORDER BY pk, sk LIMIT ?`, n)
	if err != nil {
		return nil, 0, etl.Errorf(etl.StoreUnavailable, "read rows of %s: %w", table, err)
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	for found.Next() {
		var it store.Item
		if err := found.Scan(&it.PK, &it.SK, &it.Rank, &it.Doc); err != nil {
			return nil, 0, etl.Errorf(etl.StoreUnavailable, "read rows of %s: %w", table, err)
		}
		rows = append(rows, it)
	}
	return rows, total, found.Err()
}

// Gone reports whether the owner of a batch has ended. Of an open batch that is not FAILED this means that its process
// died: a live one holds its lock.
func (h *Home) Gone(ctx context.Context, v ledger.View) (bool, error) {
	live, err := h.locks.Alive(ctx, v.Batch.Owner)
	return live == ledger.Ended, err
}

// Absent lists the declared fields, by their path in a record, that were in none of the batch's records under the contract
// that was looked at last. Such a column is empty in all rows, most likely for a misspelt from. Deletions, and records that
// are no object, are not asked.
func (h *Home) Absent(ctx context.Context, v ledger.View) ([]string, error) {
	b, err := etl.ParseBatch(v.Batch.ID)
	bind := v.Batch.Looked()
	if err != nil || bind == nil {
		return nil, err
	}
	// The records of the parts say of which fields it may be true, mostly of none: then no object is read.
	absent := map[string]bool{}
	for _, t := range v.Transforms {
		for _, d := range t.Drift {
			if d.Missing > 0 && d.New+d.Null+d.Retyped == 0 {
				absent[d.Path] = true
			}
		}
	}
	seen := false
	for _, t := range v.Transforms {
		if len(absent) == 0 {
			break
		}
		d, err := h.drift(ctx, etl.StageKey(etl.Drift, b, *bind, t.Part))
		if err != nil {
			return nil, err
		}
		seen = seen || d.Records > 0
		for _, f := range d.Fields {
			if f.Missing < d.Records {
				delete(absent, f.Path)
			}
		}
	}
	if !seen {
		return nil, nil
	}
	return slices.Sorted(maps.Keys(absent)), nil
}

// drift reads what Transform found of a part.
func (h *Home) drift(ctx context.Context, key string) (d contract.Drift, err error) {
	obj, err := h.stage.Get(ctx, key)
	if err != nil {
		return d, fmt.Errorf("read %s: %w", key, err)
	}
	defer func() { err = errors.Join(err, obj.Close()) }()
	if err := json.NewDecoder(obj).Decode(&d); err != nil {
		return d, etl.Errorf(etl.RecordsLost, "read %s: %w", key, err)
	}
	return d, nil
}
