package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"

	"github.com/klauspost/compress/gzip"

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
