package cli_test

import (
	"os"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/ordersapi"
)

// TestThroughput loads 200,000 records of 440 bytes with keys in random order, 1,000 a page, in at least 8 parts. The
// bounds are those of the product for two cores; the figures a stage are in the log. Beside other tests the wall clock
// says little: there the processors' time is held to the bound, and the wall clock where ONCELOAD_TEST_ALONE is set.
func TestThroughput(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: this test loads 200,000 records")
	}
	const rows = 200_000
	url, _ := serve(t, ordersapi.Config{Seed: 7, Rows: rows, PageSize: 1000})
	h := newHome(t)
	file := h.file("orders.yaml", `
pipeline: orders
every: 1h
source:
  url: https://api.example.com/v1/orders
  query: {updated_from: "{window.start}", updated_to: "{window.end}", limit: 1000}
  auth: {bearer: {secret: orders-api-token}}
  records: data
  paginate: {cursor: {param: cursor, next: meta.next_cursor}}
  part_bytes: 1000000
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
target: {table: orders}
`)
	out := h.exec("run", file, "--slot", slot, "--source", url, "--home", h.dir)
	if out.code != 0 {
		t.Fatalf("exit code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	t.Logf("%s (processors %s) resident %d MB\n%s%s", out.took, out.cpu, out.rss>>20, out.stderr, out.stdout)
	if got := h.query(`SELECT count(*) FROM orders`)[0][0]; got != "200000" {
		t.Fatalf("%s rows, want %d", got, rows)
	}
	if parts := h.query(`SELECT count(*) FROM ledger WHERE sk LIKE 'load#%'`)[0][0]; len(parts) < 2 && parts < "8" {
		t.Fatalf("%s parts, want at least 8", parts)
	}
	bound := out.cpu
	if os.Getenv("ONCELOAD_TEST_ALONE") != "" {
		bound = out.took
	}
	if bound > 20*time.Second {
		t.Errorf("took %s, %s of the processors, want at most 20 s", out.took, out.cpu)
	}
	if out.rss > 250<<20 {
		t.Errorf("resident %d MB, want at most 250", out.rss>>20)
	}
}
