package local

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/onceload/onceload/pkg/asl"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/runner"
)

// history keeps executions in the home's database. It implements runner.History.
type history struct{ db *sql.DB }

// origin is where an execution's pipeline came from: a redrive reads it there again.
type origin struct {
	Pipeline string // name, or absolute path of the file
	Source   string // replaces scheme and host of the source, "" = as in the file
}

const historySchema = `
CREATE TABLE IF NOT EXISTS onceload_executions (
	id TEXT PRIMARY KEY, batch TEXT NOT NULL, input TEXT NOT NULL, started TEXT NOT NULL, definition TEXT NOT NULL,
	pipeline TEXT NOT NULL DEFAULT '', source TEXT NOT NULL DEFAULT '', ended INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS onceload_history (
	execution TEXT NOT NULL, id INTEGER NOT NULL, event TEXT NOT NULL, PRIMARY KEY (execution, id)
) WITHOUT ROWID;`

func openHistory(ctx context.Context, db *sql.DB) (*history, error) {
	if _, err := db.ExecContext(ctx, historySchema); err != nil {
		return nil, historyError("open", "", err)
	}
	return &history{db: db}, nil
}

// Begin stores a new execution.
func (h *history) Begin(ctx context.Context, e runner.Execution) error {
	_, err := h.db.ExecContext(ctx, `UPDATE onceload_executions SET batch = ?, input = ?, started = ?, definition = ? WHERE id = ?`,
		e.Batch, string(e.Input), etl.FormatTime(e.StartTime), string(e.Definition), e.ID)
	return historyError("begin", e.ID, err)
}

// reserve stores where an execution's pipeline comes from, before anything else is known of it.
func (h *history) reserve(ctx context.Context, id, batch string, from origin) error {
	_, err := h.db.ExecContext(ctx, `INSERT INTO onceload_executions (id, batch, input, started, definition, pipeline, source) VALUES (?, ?, '', '', '', ?, ?)`,
		id, batch, from.Pipeline, from.Source)
	return historyError("reserve", id, err)
}

// Append stores the execution's next event.
func (h *history) Append(ctx context.Context, execution string, e asl.Event) error {
	event, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("event of %s: %w", execution, err)
	}
	_, err = h.db.ExecContext(ctx, `INSERT INTO onceload_history (execution, id, event) VALUES (?, ?, ?)`, execution, e.ID, string(event))
	return historyError("append to", execution, err)
}

// Load returns an execution with its events.
func (h *history) Load(ctx context.Context, execution string) (e runner.Execution, events []asl.Event, err error) {
	var input, started, definition string
	row := h.db.QueryRowContext(ctx, `SELECT batch, input, started, definition FROM onceload_executions WHERE id = ?`, execution)
	err = row.Scan(&e.Batch, &input, &started, &definition)
	if errors.Is(err, sql.ErrNoRows) || err == nil && started == "" {
		return e, nil, etl.Errorf(etl.Usage, "no history of execution %s: run the batch again instead", execution)
	}
	if err != nil {
		return e, nil, historyError("load", execution, err)
	}
	e.ID, e.Input, e.Definition = execution, []byte(input), []byte(definition)
	if e.StartTime, err = time.Parse(time.RFC3339Nano, started); err != nil {
		return e, nil, etl.Errorf(etl.Internal, "history of %s: start time: %w", execution, err)
	}
	rows, err := h.db.QueryContext(ctx, `SELECT event FROM onceload_history WHERE execution = ? ORDER BY id`, execution)
	if err != nil {
		return e, nil, historyError("load", execution, err)
	}
	defer func() { err = errors.Join(err, historyError("load", execution, rows.Close())) }()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return e, nil, historyError("load", execution, err)
		}
		var ev asl.Event
		if err := json.Unmarshal([]byte(text), &ev); err != nil {
			return e, nil, etl.Errorf(etl.Internal, "history of %s: event %d: %w", execution, len(events)+1, err)
		}
		events = append(events, ev)
	}
	return e, events, historyError("load", execution, rows.Err())
}

// origin says where an execution's pipeline came from; false if the execution is not known here.
func (h *history) origin(ctx context.Context, execution string) (origin, bool, error) {
	var o origin
	err := h.db.QueryRowContext(ctx, `SELECT pipeline, source FROM onceload_executions WHERE id = ?`, execution).Scan(&o.Pipeline, &o.Source)
	if errors.Is(err, sql.ErrNoRows) {
		return o, false, nil
	}
	return o, err == nil, historyError("look up", execution, err)
}

func historyError(op, execution string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return etl.Errorf(etl.StoreUnavailable, "%s history %s: %w", op, execution, err)
}
