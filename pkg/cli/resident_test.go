package cli_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
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

// TestLoadResidentRepeats loads one part in which every key stands twice: what Load holds does not grow with the keys
// that repeat. B7
func TestLoadResidentRepeats(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it loads a part of 800,000 records, about 10 s")
	}
	const rows, pageSize = 800_000, 20_000
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		offset, err := strconv.Atoi(r.URL.Query().Get("offset"))
		if err != nil {
			t.Error(err)
		}
		body := []byte{'['}
		for i := offset; i < min(offset+pageSize, rows); i++ {
			body = fmt.Appendf(body, `{"id":%d,"v":%d},`, i%(rows/2), i)
		}
		if len(body) == 1 {
			body = append(body, ',')
		}
		body[len(body)-1] = ']'
		if _, err := w.Write(body); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(srv.Close)
	h := newHome(t)
	file := h.file("twice.yaml", fmt.Sprintf(`
pipeline: twice
every: 1h
source:
  url: %s
  paginate: {offset: {param: offset, limit_param: limit, limit: %d}}
  part_bytes: 1000000000
contract:
  key: [id]
  version: v
  fields:
    id: {type: integer}
    v: {type: integer, required: true}
target: {table: twice}
`, srv.URL, pageSize))
	out := h.exec("run", file, "--slot", slot, "--home", h.dir)
	if out.code != 0 || !strings.Contains(out.stdout, "written 400,000 (400,000 new, 0 updated), 0 unchanged, 0 stale, 400,000 duplicate") {
		t.Fatalf("exit code %d\n%s%s", out.code, out.stderr, out.stdout)
	}
	t.Logf("%s, resident %d MiB", out.took, out.rss>>20)
	if out.rss > 96<<20 {
		t.Errorf("resident %d MiB, want at most 96", out.rss>>20)
	}
	if got := h.query(`SELECT min(rank), max(rank) FROM twice`)[0]; !strings.Contains(got[0], "400000|") || !strings.Contains(got[1], "799999|") {
		t.Errorf("ranks from %s to %s, want the versions 400000 to 799999", got[0], got[1])
	}
}
