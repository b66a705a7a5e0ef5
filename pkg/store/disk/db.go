package disk

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// DB is a SQLite file that holds tables. Several processes may have it open at once.
type DB struct {
	path   string
	writer *sql.DB // one connection: the process's writers queue here, not in SQLite's busy loop
	reader *sql.DB
}

// Settings of every connection. WAL lets readers go on beside a writer, and with synchronous=NORMAL a commit survives
// kill -9 (not a power cut, after which a rerun writes the missing rows again). Waiting a minute for another process's
// transaction covers the longest of ours many times over.
const pragmas = "_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)"

// OpenDB opens the file, which it makes if need be, in a folder that exists. The caller closes it.
func OpenDB(ctx context.Context, path string) (*DB, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, fileError(err))
	}
	name := (&url.URL{Scheme: "file", Path: filepath.ToSlash(abs)}).String() + "?" + pragmas
	// Rows in random order touch most pages of a table and its index: the writer's cache holds 24 MB of them, and the log
	// grows to 16 MB before it is copied back, so that a page changed by many transactions is copied once. More of both
	// gains 4 % at 200,000 rows, and would take a load of any size beyond 96 MiB.
	writer, err := sql.Open("sqlite", name+"&_txlock=immediate&_pragma=cache_size(-24576)&_pragma=wal_autocheckpoint(4096)")
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, sqlError(err))
	}
	writer.SetMaxOpenConns(1)
	reader, err := sql.Open("sqlite", name+"&_pragma=query_only(1)&_pragma=cache_size(-4096)")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, sqlError(err)), writer.Close())
	}
	reader.SetMaxIdleConns(runtime.GOMAXPROCS(0))
	if err := connect(ctx, writer); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, sqlError(err)), writer.Close(), reader.Close())
	}
	return &DB{path: path, writer: writer, reader: reader}, nil
}

// connect opens the writing connection. Two processes that open a new file at once both want to turn it into WAL mode,
// for which SQLite does not wait: the second one is told that the file is busy, whatever its busy timeout.
func connect(ctx context.Context, writer *sql.DB) error {
	const tries, pause = 500, 10 * time.Millisecond
	for n := 1; ; n++ {
		err := writer.PingContext(ctx)
		var e *sqlite.Error
		if n == tries || !errors.As(err, &e) || e.Code()&0xff != sqlite3.SQLITE_BUSY {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause): //nolint:forbidigo // it is another process that we wait for: no clock of ours moves it
		}
	}
}

// SQL is the connection that all writes of this process queue for, for tables of another shape. Its transactions begin
// IMMEDIATE. Close rows before the next call of the store: there is one connection.
func (d *DB) SQL() *sql.DB { return d.writer }

// Path is the file.
func (d *DB) Path() string { return d.path }

// Close ends all connections.
func (d *DB) Close() error {
	return errors.Join(d.reader.Close(), d.writer.Close())
}

// sqlError classifies what SQLite says: a fault of the statement is ours, everything else is the file's, the disk's or a
// lock's.
func sqlError(err error) error {
	var e *sqlite.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrNoRows):
		return store.ErrNotFound
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &e):
		switch e.Code() & 0xff {
		case sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_MISUSE,
			sqlite3.SQLITE_RANGE, sqlite3.SQLITE_TOOBIG:
			return etl.Errorf(etl.Internal, "sqlite: %w", err)
		}
		return etl.Errorf(etl.StoreUnavailable, "sqlite: %w", err)
	}
	return etl.Errorf(etl.StoreUnavailable, "sqlite: %w", err)
}

// Table returns the table of that schema, which it makes if need be, with its indexes.
func (d *DB) Table(ctx context.Context, schema store.Schema) (*Table, error) {
	t, err := d.table(ctx, schema)
	if err != nil {
		return nil, fmt.Errorf("open table %s in %s: %w", schema.Name, d.path, err)
	}
	return t, nil
}

func (d *DB) table(ctx context.Context, schema store.Schema) (*Table, error) {
	if err := schema.Check(); err != nil {
		return nil, err
	}
	if strings.HasPrefix(strings.ToLower(schema.Name), "sqlite_") {
		return nil, etl.Errorf(etl.Internal, "SQLite keeps names that begin with sqlite_ for itself")
	}
	name := quote(schema.Name)
	ddl := []string{
		"CREATE TABLE IF NOT EXISTS " + name + " (pk TEXT NOT NULL, sk TEXT NOT NULL, rank TEXT NOT NULL, item TEXT NOT NULL)",
		"CREATE UNIQUE INDEX IF NOT EXISTS " + quote(schema.Name+" key") + " ON " + name + " (pk, sk)",
	}
	for _, x := range schema.Indexes {
		columns := members(x)
		ddl = append(ddl, "CREATE INDEX IF NOT EXISTS "+quote(schema.Name+" "+x.Name)+" ON "+name+
			" ("+strings.Join(columns, ", ")+") WHERE "+strings.Join(columns, " IS NOT NULL AND ")+" IS NOT NULL")
	}
	tx, err := d.writer.BeginTx(ctx, nil)
	if err != nil {
		return nil, sqlError(err)
	}
	for _, stmt := range ddl {
		if _, err := tx.ExecContext(ctx, stmt); err != nil {
			return nil, errors.Join(sqlError(err), tx.Rollback())
		}
	}
	if err := tx.Commit(); err != nil {
		return nil, sqlError(err)
	}
	return newTable(ctx, d, schema)
}

// quote quotes a checked name.
func quote(name string) string { return `"` + name + `"` }

// members are the expressions of an index's attributes, one or two. A checked name needs no escape.
func members(x store.Index) []string {
	out := []string{`json_extract(item, '$."` + x.PK + `"')`}
	if x.SK != "" {
		out = append(out, `json_extract(item, '$."`+x.SK+`"')`)
	}
	return out
}
