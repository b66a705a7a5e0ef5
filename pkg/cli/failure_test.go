package cli_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/ordersapi"
)

// shop is a small pipeline with short waits. More lines go where %s stands.
const shop = `
pipeline: shop
every: 1h
source:
  url: http://api.example.com/items
  records: data
  paginate: {none: {}}
  retry: {attempts: 3, base: 10ms, cap: 20ms}
contract:
  key: [id]
  fields:
    id: {type: integer, required: true}
    valor: {type: decimal}
target: {table: shop}
%s
`

// answers is a source that always answers the same and counts its calls.
func answers(t *testing.T, status int, contentType, body string) (string, *atomic.Int64) {
	t.Helper()
	var calls atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(srv.Close)
	return srv.URL, &calls
}

// TestBadSources: each ends in a named failure with a hint and the documented exit code, and the same batch completes
// once the source is well again. R1, R2, R6, R11
func TestBadSources(t *testing.T) {
	const jsonType = "application/json"
	cut := func(t *testing.T) string {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", jsonType)
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(`{"data":[{"id":1},{"id":`))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}))
		t.Cleanup(srv.Close)
		return srv.URL
	}
	for _, c := range []struct {
		name  string
		more  string // of the pipeline file
		url   func(t *testing.T) (string, *atomic.Int64)
		kind  etl.Kind
		stage etl.Stage
		exit  int
		calls int64
		says  string // regular expression
	}{
		{"unreachable", "", func(*testing.T) (string, *atomic.Int64) { return "http://127.0.0.1:1", nil },
			etl.SourceUnavailable, etl.StageExtract, 4, 0, `attempt 3 of 3: GET http://127\.0\.0\.1:1/items: .*refused`},
		{"503", "", func(t *testing.T) (string, *atomic.Int64) { return answers(t, 503, "text/plain", "down") },
			etl.SourceUnavailable, etl.StageExtract, 4, 3, `attempt 3 of 3: .*503`},
		{"429", "", func(t *testing.T) (string, *atomic.Int64) { return answers(t, 429, "text/plain", "slow down") },
			etl.SourceThrottled, etl.StageExtract, 4, 3, `attempt 3 of 3: .*429`},
		{"401", "", func(t *testing.T) (string, *atomic.Int64) { return answers(t, 401, "text/plain", "who are you") },
			etl.SourceRejected, etl.StageExtract, 1, 1, `401`},
		{"404", "", func(t *testing.T) (string, *atomic.Int64) { return answers(t, 404, "text/plain", "nothing here") },
			etl.SourceRejected, etl.StageExtract, 1, 1, `404`},
		{"an HTML page", "", func(t *testing.T) (string, *atomic.Int64) {
			return answers(t, 200, "text/html", "<html>maintenance</html>")
		}, etl.SourceMalformed, etl.StageExtract, 1, 3, `text/html.*maintenance.*_rejected/`},
		{"nothing", "", func(t *testing.T) (string, *atomic.Int64) { return answers(t, 200, jsonType, "") },
			etl.SourceMalformed, etl.StageExtract, 1, 3, `empty|no body`},
		{"a body cut short", "", func(t *testing.T) (string, *atomic.Int64) { return cut(t), nil },
			etl.SourceUnavailable, etl.StageExtract, 4, 0, `cut after 24 bytes`},
		{"a part of an answer", "", func(t *testing.T) (string, *atomic.Int64) {
			return answers(t, 206, jsonType, `{"data":[{"id":1}]}`)
		}, etl.SourceMalformed, etl.StageExtract, 1, 3, `206.*no part was asked for`},
		{"half a body", "", func(t *testing.T) (string, *atomic.Int64) { return answers(t, 200, jsonType, `{"data":[{"id":1},`) },
			etl.SourceMalformed, etl.StageExtract, 1, 3, `1:19|offset 18`},
		{"no array", "", func(t *testing.T) (string, *atomic.Int64) { return answers(t, 200, jsonType, `{"rows":[]}`) },
			etl.SourceMalformed, etl.StageExtract, 1, 3, `data`},
		{"a null array", "", func(t *testing.T) (string, *atomic.Int64) { return answers(t, 200, jsonType, `{"data":null}`) },
			etl.SourceMalformed, etl.StageExtract, 1, 3, `null`},
		{"an object for an array", "", func(t *testing.T) (string, *atomic.Int64) {
			return answers(t, 200, jsonType, `{"data":{"id":1}}`)
		}, etl.SourceMalformed, etl.StageExtract, 1, 3, `object`},
		{"an empty array under min_records", "checks: {min_records: 1}", func(t *testing.T) (string, *atomic.Int64) {
			return answers(t, 200, jsonType, `{"data":[]}`)
		}, etl.CheckFailed, etl.StageGate, 1, 1, `0 records.*min_records`},
		{"a page of 50 MB", "", func(t *testing.T) (string, *atomic.Int64) {
			return answers(t, 200, jsonType, `{"data":[{"id":1,"pad":"`+strings.Repeat("x", 50_000_000)+`"}]}`)
		}, etl.BatchTooLarge, etl.StageExtract, 1, 1, `max_bytes`},
		{"nothing but bad rows", "", func(t *testing.T) (string, *atomic.Int64) {
			return answers(t, 200, jsonType, `{"data":[{"id":"a"},{"id":null}]}`)
		}, etl.QuarantineExceeded, etl.StageGate, 3, 1, `2 of 2 records.*id .*part 0 page 0 index 0`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			file := h.file("shop.yaml", fmt.Sprintf(shop, c.more))
			url, calls := c.url(t)
			r := h.run(c.exit, file, "--slot", slot, "--source", url)
			if r.Failure == nil {
				t.Fatalf("no failure: %+v", r)
			}
			if r.Failure.Kind != c.kind || r.Failure.Stage != c.stage || r.State != ledger.StateFailed || r.Failure.Hint == "" {
				t.Errorf("%s %+v, want %s in %s", r.State, *r.Failure, c.kind, c.stage)
			}
			if !regexp.MustCompile(c.says).MatchString(r.Failure.Message) {
				t.Errorf("message %q, want %s", r.Failure.Message, c.says)
			}
			if calls != nil && calls.Load() != c.calls {
				t.Errorf("%d calls, want %d", calls.Load(), c.calls)
			}
			// The source gets well: the same command completes the batch, whatever the failure left behind.
			well, _ := answers(t, 200, jsonType, `{"data":[{"id":1,"valor":1.50},{"id":2}]}`)
			if c.stage != etl.StageExtract {
				// What landed is the snapshot of the batch: only a refetch asks the source again.
				return
			}
			again := h.run(0, file, "--slot", slot, "--source", well)
			if again.State != ledger.StateCompleted || again.Counts.Written != 2 {
				t.Errorf("then: %+v", again)
			}
			if got := h.query(`SELECT pk FROM shop ORDER BY pk`); fmt.Sprint(got) != "[[1] [2]]" {
				t.Errorf("rows %v", got)
			}
		})
	}
}

// TestEmptySource: without min_records a slot without records completes. R24
func TestEmptySource(t *testing.T) {
	h := newHome(t)
	url, _ := answers(t, 200, "application/json", `{"data":[]}`)
	r := h.run(0, h.file("shop.yaml", fmt.Sprintf(shop, "")), "--slot", slot, "--source", url)
	if r.State != ledger.StateCompleted || r.Counts.Pages != 1 || r.Counts.Records != 0 {
		t.Errorf("%+v", r)
	}
}

// TestFiveTypos: every fault of a pipeline file at once, each with its place, and no home folder is made for it.
func TestFiveTypos(t *testing.T) {
	h := newHome(t)
	file := h.file("typos.yaml", `pipeline: shop
evry: 1h
source:
  url: http://api.example.com/items
  records: data
  paginate: {nextt: {}}
contract:
  key: [idd]
  fields:
    id: {type: intger}
target: {tabel: shop}
`)
	for _, args := range [][]string{{"run", file, "--slot", slot, "--home", h.dir}, {"check", file}} {
		out := h.exec(args...)
		if out.code != 2 {
			t.Errorf("%s: exit code %d, want 2", args[0], out.code)
		}
		for _, place := range []string{":2:1: ", ":6:14: ", ":8:9: ", ":10:16: ", ":11:10: "} {
			if !strings.Contains(out.stderr, file+place) {
				t.Errorf("%s: no fault at %s:\n%s", args[0], place, out.stderr)
			}
		}
		for _, advice := range []string{"every", "next_url", "integer", "table"} {
			if !strings.Contains(out.stderr, advice) {
				t.Errorf("%s: no advice to write %s:\n%s", args[0], advice, out.stderr)
			}
		}
	}
	if _, err := os.Stat(h.dir); err == nil {
		t.Error("a home folder was made")
	}
}

// TestQuarantine: a bad row is kept with its place and reason while the rest is loaded. R9
func TestQuarantine(t *testing.T) {
	h := newHome(t)
	url, _ := answers(t, 200, "application/json", `{"data":[{"id":1,"valor":1.5},{"id":2,"valor":"N/A"},{"id":3,"valor":"2.50"}]}`)
	r := h.run(0, h.file("shop.yaml", fmt.Sprintf(shop, "")), "--slot", slot, "--source", url)
	if r.Counts.Records != 3 || r.Counts.Valid != 2 || r.Counts.Quarantined != 1 || r.Counts.Written != 2 {
		t.Errorf("%+v", r.Counts)
	}
	lines := gunzipAll(t, h, "stage/quarantine")
	want := `{"batch":"shop/20260105T100000Z","place":{"part":0,"page":0,"index":1},"reasons":[{"field":"valor","code":"number_syntax","message":`
	if !strings.HasPrefix(lines, want) || !strings.HasSuffix(lines, `"record":{"id":2,"valor":"N/A"}}`+"\n") || strings.Count(lines, "\n") != 1 {
		t.Errorf("quarantine:\n%s", lines)
	}
	if got := h.query(`SELECT pk, item->>'valor' FROM shop ORDER BY pk`); fmt.Sprint(got) != "[[1 1.5] [3 2.5]]" {
		t.Errorf("rows %v", got)
	}
}

// TestRedrive: once the cause is gone, redrive goes on at the stage that failed; what landed is not fetched again. R28, B1
func TestRedrive(t *testing.T) {
	t.Run("extract", func(t *testing.T) {
		t.Parallel()
		api := ordersapi.New(ordersapi.Config{Seed: 1, Rows: 500, PageSize: 100})
		var down atomic.Bool
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if down.Load() && r.URL.Query().Get("cursor") != "" && !strings.HasSuffix(r.URL.Query().Get("cursor"), "first") {
				http.Error(w, "down", http.StatusServiceUnavailable)
				return
			}
			api.ServeHTTP(w, r)
		}))
		defer srv.Close()
		h := newHome(t)
		file := h.file("orders.yaml", strings.ReplaceAll(orders, "#part", "part_bytes: 1"))
		down.Store(true)
		r := h.run(4, file, "--slot", slot, "--source", srv.URL)
		if r.Failure.Kind != etl.SourceUnavailable || r.Counts.Pages != 1 {
			t.Fatalf("%+v, want the first page landed", r)
		}
		// The cause is still there: the redrive fails the same way.
		if r := h.report(4, "redrive", r.BatchID); r.Failure.Kind != etl.SourceUnavailable {
			t.Fatalf("redriven while down: %+v", r)
		}
		down.Store(false)
		r = h.report(0, "redrive", r.BatchID)
		if r.State != ledger.StateCompleted || r.Counts.Written != 500 || r.Counts.Pages < 5 {
			t.Errorf("redriven: %+v", r)
		}
		for page, calls := range api.Calls() {
			if calls.Served != 1 {
				t.Errorf("page %v was served %d times", page, calls.Served)
			}
		}
		if owners := h.query(`SELECT count(*) FROM onceload_executions`)[0][0]; owners != "1" {
			t.Errorf("%s executions, want one: a redrive is the same", owners)
		}
	})
	t.Run("gate", func(t *testing.T) {
		t.Parallel()
		url, calls := answers(t, 200, "application/json", `{"data":[{"id":"a-1"},{"id":"a-2"}]}`)
		h := newHome(t)
		file := h.file("shop.yaml", fmt.Sprintf(shop, ""))
		r := h.run(3, file, "--slot", slot, "--source", url)
		if r.Failure.Kind != etl.QuarantineExceeded || r.Counts.Quarantined != 2 {
			t.Fatalf("%+v", r)
		}
		if rows := h.query(`SELECT name FROM sqlite_master WHERE name = 'shop'`); len(rows) != 0 {
			t.Error("the target table was touched")
		}
		// Nothing was loaded under revision 1, so the contract may be mended without a new number.
		h.file("shop.yaml", strings.Replace(fmt.Sprintf(shop, ""), "id: {type: integer,", "id: {type: string,", 1))
		r = h.report(0, "redrive", r.BatchID)
		if r.State != ledger.StateCompleted || r.Counts.Written != 2 || calls.Load() != 1 {
			t.Errorf("redriven: %+v, %d calls", r, calls.Load())
		}
		// From now on the same number with another contract is refused, and nothing of the batch is touched.
		before := h.table("shop")
		h.file("shop.yaml", fmt.Sprintf(shop, ""))
		r = h.run(2, file, "--slot", "2026-01-05T11:00:00Z", "--source", url)
		if r.Failure.Kind != etl.ContractChanged || !strings.Contains(r.Failure.Message, "raise contract.revision to 2") {
			t.Errorf("%+v", r.Failure)
		}
		if after := h.table("shop"); after != before {
			t.Error("the table changed")
		}
	})
	t.Run("another failure", func(t *testing.T) {
		t.Parallel()
		url, _ := answers(t, 404, "text/plain", "nothing here")
		h := newHome(t)
		file := h.file("shop.yaml", fmt.Sprintf(shop, ""))
		r := h.run(1, file, "--slot", slot, "--source", url)
		if r.Failure.Kind != etl.SourceRejected {
			t.Fatalf("%+v", r.Failure)
		}
		// The slot no longer begins an interval: that is what the redrive fails of, not what the run failed of.
		h.file("shop.yaml", strings.Replace(fmt.Sprintf(shop, ""), "every: 1h", "every: 1d", 1))
		r = h.report(2, "redrive", r.BatchID)
		if r.Failure.Kind != etl.Usage || !strings.Contains(r.Failure.Message, "interval of 1d") {
			t.Errorf("redriven: %+v", r.Failure)
		}
	})
	t.Run("completed", func(t *testing.T) {
		t.Parallel()
		url, calls := answers(t, 200, "application/json", `{"data":[{"id":1}]}`)
		h := newHome(t)
		r := h.run(0, h.file("shop.yaml", fmt.Sprintf(shop, "")), "--slot", slot, "--source", url)
		r.Already = true
		if again := h.report(0, "redrive", r.BatchID); again != r || calls.Load() != 1 {
			t.Errorf("redriving a completed batch: %+v, %d calls", again, calls.Load())
		}
	})
}

// TestCommandLine: what cannot be understood is exit code 2 and says what to do.
func TestCommandLine(t *testing.T) {
	h := newHome(t)
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"runn"}, "no command"},
		{[]string{"run"}, "takes <pipeline|file>"},
		{[]string{"run", "orders", "extra"}, "takes <pipeline|file>"},
		{[]string{"run", "ordrs"}, "did you mean orders"},
		{[]string{"run", "./none.yaml"}, "none.yaml"},
		{[]string{"run", "orders", "--slot", "yesterday"}, "slot"},
		{[]string{"run", "orders", "--slot", "2026-01-05T10:30:00Z"}, "begins at 2026-01-05T10:00:00Z"},
		{[]string{"run", "orders", "--sloot", "x"}, "sloot"},
		{[]string{"run", "orders", "--slot", ""}, "--slot is empty"},
		{[]string{"run", "orders", "--slot", "2026-01-05T10:00:00.000000001Z"}, "slot 2026-01-05T10:00:00.000000001Z does not"},
		{[]string{"run", "orders", "--slot", "2999-01-05T10:00:00Z"}, "closes at 2999-01-05T11:00:00Z"},
		{[]string{"run", "orders", "--source", "nonsense"}, "source"},
		{[]string{"show", "orders"}, "pipeline>/<slot>"},
		{[]string{"show", "orders/20260105T100000Z"}, "home"},
		{[]string{"redrive", "orders/20260105T100000Z"}, "never run"},
		{[]string{"check", "--reload"}, "no flag --reload"},
	} {
		out := h.exec(append(c.args, "--home", h.dir)...)
		if c.args[0] == "check" {
			out = h.exec(c.args...)
		}
		if out.code != 2 || !strings.Contains(out.stderr, c.says) {
			t.Errorf("%v: exit code %d, %q; want 2 and %q", c.args, out.code, out.stderr, c.says)
		}
	}
	if out := h.exec("help"); out.code != 0 || !strings.Contains(out.stdout, "Exit codes") {
		t.Errorf("help: exit code %d\n%s", out.code, out.stdout)
	}
	if out := h.exec("check"); out.code != 0 || strings.Count(out.stdout, "ok ") != 3 {
		t.Errorf("check: exit code %d\n%s", out.code, out.stdout)
	}
}

// gunzipAll reads every gzipped object below a folder of the home.
func gunzipAll(t *testing.T, h *home, folder string) string {
	t.Helper()
	var text strings.Builder
	err := filepath.WalkDir(filepath.Join(h.dir, folder), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".gz") {
			return err
		}
		text.WriteString(gunzip(t, path))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return text.String()
}
