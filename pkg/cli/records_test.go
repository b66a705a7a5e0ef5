package cli_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// TestRecordsPathMended: where a page has its records is part of the contract. A batch that landed under the wrong path is
// mended like any other contract, from what landed; no row of the wrong place is loaded, and after loading the path does
// not change without a new revision. R16, B5
func TestRecordsPathMended(t *testing.T) {
	var asked atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		page := map[string][]map[string]any{}
		for i := range 31 {
			page["data"] = append(page["data"], map[string]any{"id": fmt.Sprintf("d%02d", i), "v": 1})
			if i < 30 {
				page["deleted"] = append(page["deleted"], map[string]any{"id": fmt.Sprintf("x%02d", i), "v": 1})
			}
		}
		if err := json.NewEncoder(w).Encode(page); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(srv.Close)
	const text = `
pipeline: rows
every: 1h
source:
  url: %s
  records: deleted
contract:
  key: [id]
  version: v
  fields:
    id: {type: string}
    v: {type: integer, required: true}
checks: {min_records: 100}
target: {table: rows}
`
	h := newHome(t)
	wrong := fmt.Sprintf(text, srv.URL)
	right := strings.NewReplacer("records: deleted", "records: data", "checks: {min_records: 100}\n", "").Replace(wrong)
	file := h.file("rows.yaml", wrong)
	if r := h.run(1, file, "--slot", slot); r.Failure == nil || r.Failure.Kind != "CheckFailed" {
		t.Fatalf("%+v", r)
	}
	h.file("rows.yaml", right)
	r := h.report(0, "redrive", "rows/20260105T100000Z")
	if r.Counts.Records != 31 || r.Counts.New != 31 || asked.Load() != 1 {
		t.Errorf("%+v, %d requests", r.Counts, asked.Load())
	}
	if got := h.query(`SELECT min(pk), max(pk), count(*) FROM rows`)[0]; got[0] != "d00" || got[1] != "d30" || got[2] != "31" {
		t.Errorf("rows %v", got)
	}
	h.file("rows.yaml", strings.Replace(right, "records: data", "records: deleted", 1))
	out := h.exec("run", file, "--slot", "2026-01-05T11:00:00Z", "--home", h.dir)
	if !strings.Contains(out.stderr+out.stdout, "ContractChanged") || !strings.Contains(out.stderr+out.stdout, "source.records") {
		t.Errorf("exit code %d\n%s%s", out.code, out.stderr, out.stdout)
	}
}
