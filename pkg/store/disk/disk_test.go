package disk_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/disk"
	"github.com/onceload/onceload/pkg/store/storetest"
)

func TestConformance(t *testing.T) {
	t.Run("objects", func(t *testing.T) {
		storetest.Objects(t, func(t *testing.T) store.Objects {
			o, err := disk.OpenObjects(filepath.Join(t.TempDir(), "bucket"))
			if err != nil {
				t.Fatal(err)
			}
			return o
		}, nil)
	})
	t.Run("table", func(t *testing.T) {
		storetest.Table(t, func(t *testing.T, s store.Schema) store.Table {
			db := openDB(t, t.TempDir())
			table, err := db.Table(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			return table
		}, nil)
	})
}

func openDB(t testing.TB, dir string) *disk.DB {
	t.Helper()
	db, err := disk.OpenDB(t.Context(), filepath.Join(dir, "onceload.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// TestLeftovers checks that what a killed writer leaves is neither listed nor in the way.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	objects, err := disk.OpenObjects(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"~1", "a/~2", "a/b/~3"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte("half"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := objects.PutOnce(t.Context(), "a/b/c", []byte("whole")); err != nil {
		t.Fatal(err)
	}
	for info, err := range objects.List(t.Context(), "") {
		if err != nil || info.Key != "a/b/c" {
			t.Errorf("listed %+v, %v", info, err)
		}
	}
	if found, err := filepath.Glob(filepath.Join(dir, "a/b/~*")); err != nil || len(found) != 1 {
		t.Errorf("a finished put left %v, %v", found, err)
	}
	// A key cannot be an object and a folder here: it is refused by name, and a read finds nothing.
	for _, key := range []string{"a/b/c/d", "a/b"} {
		if err := objects.PutOnce(t.Context(), key, nil); etl.KindOf(err) != etl.Internal && !errors.Is(err, store.ErrExists) {
			t.Errorf("put once %s: %v", key, err)
		}
	}
}

// TestRowsAsFiles checks the shape that sqlite3 and duckdb users see.
func TestRowsAsFiles(t *testing.T) {
	db := openDB(t, t.TempDir())
	table, err := db.Table(t.Context(), store.Schema{Name: "orders", SortKey: true, Indexes: []store.Index{{Name: "by_slot", PK: "p", SK: "s"}, {Name: "solo", PK: "p"}}})
	if err != nil {
		t.Fatal(err)
	}
	item := store.Item{Key: store.Key{PK: "k", SK: "1"}, Rank: "r", Doc: []byte(`{"b":12345678901234567890.5,"a":"é","p":"x","s":"y"}`)}
	if _, err := table.PutHigher(t.Context(), []store.Item{item}); err != nil {
		t.Fatal(err)
	}
	var row [4]string
	if err := db.SQL().QueryRow(`SELECT pk, sk, rank, item FROM orders WHERE item ->> 'a' = 'é'`).Scan(&row[0], &row[1], &row[2], &row[3]); err != nil {
		t.Fatal(err)
	}
	if want := [4]string{"k", "1", "r", `{"a":"é","b":12345678901234567890.5,"p":"x","s":"y"}`}; row != want {
		t.Errorf("row %q, want %q", row, want)
	}
	for _, index := range []string{"by_slot", "solo"} {
		plan, err := table.Explain(t.Context(), store.Query{Index: index, PK: "x"})
		if err != nil || !strings.Contains(plan, "USING INDEX orders "+index) || strings.Contains(plan, "SCAN") {
			t.Errorf("a query of %s does not use it: %s, %v", index, plan, err)
		}
		for got, err := range table.Query(t.Context(), store.Query{Index: index, PK: "x"}) {
			if err != nil || got.PK != "k" {
				t.Errorf("query of %s: %+v, %v", index, got, err)
			}
		}
	}
}

// TestFaultsAreClassified checks the kinds of what the file system and SQLite say.
func TestFaultsAreClassified(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	wantUnavailable := func(what string, err error) {
		t.Helper()
		if etl.KindOf(err) != etl.StoreUnavailable {
			t.Errorf("%s: %v of kind %s, want StoreUnavailable", what, err, etl.KindOf(err))
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte(strings.Repeat("this is no database. ", 300)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := disk.OpenObjects(filepath.Join(file, "sub"))
	if err == nil {
		t.Error("opened a bucket below a file")
	}
	_, err = disk.OpenDB(t.Context(), file)
	wantUnavailable("open what is no database", err)
	_, err = disk.OpenDB(t.Context(), filepath.Join(dir, "none", "x.db"))
	wantUnavailable("open in a folder that is not there", err)

	// Another process holds the write lock: we wait as long as our context lets us, and no longer.
	other, db := openDB(t, dir), openDB(t, dir)
	table, err := db.Table(ctx, store.Schema{Name: "t"})
	if err != nil {
		t.Fatal(err)
	}
	lock, err := other.SQL().BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	item := store.Item{Key: store.Key{PK: "p"}, Rank: "r", Doc: []byte(`{}`)}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := table.PutHigher(short, []store.Item{item}); !errors.Is(err, context.DeadlineExceeded) || etl.KindOf(err) != etl.StageTimedOut {
		t.Errorf("put under another's lock: %v", err)
	}
	if _, err := table.Get(ctx, item.Key); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a read waits for the lock, or the put took effect: %v", err)
	}
	if _, err := db.SQL().ExecContext(ctx, "PRAGMA busy_timeout = 1"); err != nil {
		t.Fatal(err)
	}
	_, err = table.PutHigher(ctx, []store.Item{item})
	wantUnavailable("put when the lock does not come", err)
	wantUnavailable("put if when the lock does not come", table.PutIf(ctx, item, store.Condition{}))
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	if out, err := table.PutHigher(ctx, []store.Item{item}); err != nil || out[0] != store.New {
		t.Errorf("put after the lock: %v, %v", out, err)
	}
	if _, err := db.Table(ctx, store.Schema{Name: "sqlite_master"}); etl.KindOf(err) != etl.Internal {
		t.Errorf("a table SQLite keeps for itself: %v", err)
	}
}
