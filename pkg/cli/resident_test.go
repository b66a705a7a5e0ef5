package cli_test

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/ordersapi"
)

// TestLoadResident loads one part of 100,000 rows by itself, as a reload does, into an empty table and once more: Load
// holds a chunk of rows at a time, whatever the part's size.
func TestLoadResident(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it loads 100,000 rows twice, about 10 s")
	}
	const rows = 100_000
	url, _ := serve(t, ordersapi.Config{Seed: 3, Rows: rows, PageSize: 1000})
	h := newHome(t)
	file := h.file("orders.yaml", strings.NewReplacer("limit: 100}", "limit: 1000}", "#part", "part_bytes: 1000000000").Replace(orders))
	args := []string{"run", file, "--slot", slot, "--source", url, "--home", h.dir}
	if out := h.exec(args...); out.code != 0 {
		t.Fatalf("exit code %d\n%s", out.code, out.stderr)
	}
	if parts := h.query(`SELECT count(*) FROM ledger WHERE sk LIKE 'load#%'`)[0][0]; parts != "1" {
		t.Fatalf("%s parts, want one", parts)
	}
	db, err := sql.Open("sqlite", filepath.Join(h.dir, "onceload.db"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`DELETE FROM orders`); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"written 100,000 (100,000 new", "written 0 (0 new, 0 updated), 100,000 unchanged"} {
		out := h.exec(append(args, "--reload")...)
		if out.code != 0 || !strings.Contains(out.stdout, want) {
			t.Fatalf("exit code %d\n%s%s", out.code, out.stderr, out.stdout)
		}
		t.Logf("%s: %s, resident %d MiB", want, out.took, out.rss>>20)
		if out.rss > 96<<20 {
			t.Errorf("resident %d MiB, want at most 96", out.rss>>20)
		}
	}
}
