package cli_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/ordersapi"
)

// orders reads the orders API in small parts.
const orders = `
pipeline: orders
every: 1h
source:
  url: https://api.example.com/v1/orders
  query: {updated_from: "{window.start}", updated_to: "{window.end}", limit: 100}
  auth: {bearer: {secret: orders-api-token}}
  records: data
  paginate: {cursor: {param: cursor, next: meta.next_cursor}}
  retry: {attempts: 5, base: 10ms, cap: 20ms}
  #part
contract:
  key: [shop, order_id]
  version: updated_at
  fields:
    shop: {type: string, const: eu}
    order_id: {type: string, required: true}
    email: {type: string, from: customer.email, clean: [trim, lower]}
    total: {type: decimal, from: valor, min: 0}
    status: {type: string}
    updated_at: {type: timestamp, required: true}
    items: {type: document}
  delete: {from: status, equals: deleted}
target: {table: orders}
`

func gunzip(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// landedPages reads how many pages of a batch's parts are in the raw folder.
func landedPages(t *testing.T, h *home) int {
	t.Helper()
	parts, err := filepath.Glob(filepath.Join(h.dir, "raw/raw/pipeline=orders/*/*/extraction=1/part-*.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	pages := 0
	for _, path := range parts {
		// Only the footer member is a line of ours.
		for _, line := range strings.Split(gunzip(t, path), "\n") {
			var footer struct {
				Onceload string            `json:"onceload"`
				Pages    []json.RawMessage `json:"pages"`
			}
			if strings.HasPrefix(line, `{"onceload":"footer"`) || strings.Contains(line, `"onceload":"footer"`) {
				if err := json.Unmarshal([]byte(line), &footer); err != nil {
					t.Fatal(err)
				}
				pages += len(footer.Pages)
			}
		}
	}
	return pages
}

// TestKill kills a run with SIGKILL at random moments and runs it again, until it completes: the table is that of an
// undisturbed run, and no page that had landed is fetched again. R16, R17, R20, B5
func TestKill(t *testing.T) {
	const kills = 50
	cfg := ordersapi.Config{Seed: 3, Rows: 3000, PageSize: 100, Faults: ordersapi.Faults{BadEvery: 50, Duplicate: true}}
	text := strings.ReplaceAll(orders, "#part", "part_bytes: 20000")

	url, _ := serve(t, cfg)
	calm := newHome(t)
	r := calm.run(0, calm.file("orders.yaml", text), "--slot", slot, "--source", url)
	want := calm.table("orders")
	began := time.Now()
	again := newHome(t)
	again.run(0, again.file("orders.yaml", text), "--slot", slot, "--source", url)
	took := time.Since(began)

	rnd := rand.New(rand.NewPCG(1, 2))
	killed, mid := 0, 0
	for killed < kills {
		url, api := serve(t, cfg)
		h := newHome(t)
		file := h.file("orders.yaml", text)
		for {
			cmd := h.command(t.Context(), "run", file, "--slot", slot, "--source", url, "--home", h.dir, "--json")
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			timer := time.AfterFunc(time.Duration(rnd.Int64N(int64(took))), func() { _ = cmd.Process.Kill() })
			err := cmd.Wait()
			timer.Stop()
			if err == nil {
				break
			}
			if code := cmd.ProcessState.ExitCode(); code != -1 {
				t.Fatalf("exit code %d after %d kills\n%s", code, killed, stderr.String())
			}
			killed++
			landed := landedPages(t, h)
			if landed > 0 && landed < int(r.Counts.Pages) {
				mid++
			}
			served := api.Calls()
			// What is landed now must not be asked for from now on.
			defer func() {
				asked := api.Calls()
				for page, calls := range served {
					if page.Offset/cfg.PageSize < landed && asked[page].Asked != calls.Asked {
						t.Errorf("page %v had landed and was fetched again", page)
					}
				}
			}()
		}
		if got := h.table("orders"); got != want {
			t.Fatalf("after %d kills the table differs", killed)
		}
		done := h.run(0, file, "--slot", slot, "--source", url)
		if done.Counts.Records != r.Counts.Records || done.Counts.Written+done.Counts.Unchanged != r.Counts.Written+r.Counts.Unchanged {
			t.Fatalf("counts %+v, undisturbed %+v", done.Counts, r.Counts)
		}
	}
	t.Logf("%d kills, %d of them with some pages landed and some not", killed, mid)
}

// TestTwoAtOnce starts two runs of one batch at once: one does the work, the other exits 5 or finds it completed. R20, B6
func TestTwoAtOnce(t *testing.T) {
	const rounds = 50
	cfg := ordersapi.Config{Seed: 5, Rows: 1000, PageSize: 100}
	text := strings.ReplaceAll(orders, "#part", "part_bytes: 20000")
	url, _ := serve(t, cfg)
	calm := newHome(t)
	calm.run(0, calm.file("orders.yaml", text), "--slot", slot, "--source", url)
	want := calm.table("orders")
	busy := 0
	for range rounds {
		h := newHome(t)
		file := h.file("orders.yaml", text)
		var wait sync.WaitGroup
		var codes [2]int
		var says [2]string
		for i := range codes {
			cmd := h.command(t.Context(), "run", file, "--slot", slot, "--source", url, "--home", h.dir, "--json")
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			wait.Go(func() {
				err := cmd.Wait()
				codes[i], says[i] = cmd.ProcessState.ExitCode(), fmt.Sprint(errors.Join(err), out.String())
			})
		}
		wait.Wait()
		for i, code := range codes {
			if code != 0 && code != 5 {
				t.Fatalf("exit codes %v\n%s", codes, says[i])
			}
		}
		if codes[0] != 0 && codes[1] != 0 {
			t.Fatalf("nobody did the work: %v\n%s\n%s", codes, says[0], says[1])
		}
		if codes[0] == 5 || codes[1] == 5 {
			busy++
		}
		if h.table("orders") != want {
			t.Fatal("the table differs")
		}
	}
	t.Logf("%d of %d times the second one was told that it is busy", busy, rounds)
}

// TestDemo runs the demo to its end: its last pass writes nothing. B8
func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the demo waits for its misbehaving API, about 20 s")
	}
	t.Parallel()
	h := newHome(t)
	out := h.exec("demo", "--home", h.dir)
	if out.code != 0 {
		t.Fatalf("exit code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	_, last, _ := strings.Cut(out.stdout, "Everything once more")
	if strings.Count(last, "  written 0 (0 new, 0 updated)") != 3 {
		t.Errorf("the last pass:\n%s", last)
	}
	for _, want := range []string{"killed: signal: killed", "1,000 unchanged", `"valor":"N/A"`, "written 2,452 (2,450 new, 2 updated)"} {
		if !strings.Contains(out.stdout, want) {
			t.Errorf("the demo does not show %q:\n%s", want, out.stdout)
		}
	}
	if out.took > time.Minute {
		t.Errorf("took %s, want at most a minute", out.took)
	}
}
