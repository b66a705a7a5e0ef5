package disk

import (
	"context"

	"github.com/onceload/onceload/pkg/store"
)

// Explain is SQLite's plan for a query.
func (t *Table) Explain(ctx context.Context, q store.Query) (plan string, err error) {
	text, args, err := t.querySQL(q)
	if err != nil {
		return "", err
	}
	rows, err := t.db.reader.QueryContext(ctx, "EXPLAIN QUERY PLAN "+text, args...)
	if err != nil {
		return "", err
	}
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			return "", err
		}
		plan += detail + "\n"
	}
	return plan, rows.Err()
}
