package cli_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/ordersapi"
	"github.com/onceload/onceload/pkg/stage"
)

// TestReprocess mends a contract and loads the landed snapshot again under it, without a request to the source: the rows
// that were quarantined for the mended reason arrive, every other row is written once, the still bad ones stay. B1, B2
func TestReprocess(t *testing.T) {
	url, api := serve(t, ordersapi.Config{Seed: 3, Rows: 300, PageSize: 100, Faults: ordersapi.Faults{BadEvery: 30}})
	h := newHome(t)
	h.file("orders.yaml", orders)
	first := h.run(0, "orders.yaml", "--slot", slot, "--source", url)
	if first.Counts.Quarantined == 0 {
		t.Fatalf("nothing is quarantined: %+v", first.Counts)
	}
	requests := func() (n int) {
		for _, c := range api.Calls() {
			n += c.Asked
		}
		return n
	}
	asked, before := requests(), h.table("orders")
	type result struct {
		Batches    []ledger.Report   `json:"batches"`
		Unchanged  []string          `json:"unchanged"`
		Rehearsals []stage.Rehearsal `json:"rehearsals"`
	}
	reprocess := func(code int, args ...string) (r result) {
		t.Helper()
		out := h.exec(append([]string{"reprocess", "--home", h.dir, "--json"}, args...)...)
		if out.code != code {
			t.Fatalf("%v: exit code %d, want %d\n%s%s", args, out.code, code, out.stdout, out.stderr)
		}
		if err := json.Unmarshal([]byte(out.stdout), &r); err != nil {
			t.Fatalf("%v\n%s", err, out.stdout)
		}
		return r
	}

	t.Run("same revision", func(t *testing.T) {
		r := reprocess(0, "orders.yaml")
		if len(r.Batches) != 0 || len(r.Unchanged) != 1 || h.table("orders") != before {
			t.Errorf("%+v", r)
		}
	})
	t.Run("another contract, same revision", func(t *testing.T) {
		h.file("orders.yaml", strings.Replace(orders, "total: {type: decimal, from: valor, min: 0}", "total: {type: string, from: valor}", 1))
		out := h.exec("reprocess", "orders.yaml", "--home", h.dir)
		if out.code != 2 || !strings.Contains(out.stdout, "raise contract.revision to 2") {
			t.Errorf("exit code %d\n%s%s", out.code, out.stdout, out.stderr)
		}
	})
	mended := strings.Replace(strings.Replace(orders, "total: {type: decimal, from: valor, min: 0}", "total: {type: string, from: valor}", 1),
		"  key: [shop", "  revision: 2\n  key: [shop", 1)
	h.file("orders.yaml", mended)
	var rehearsal stage.Rehearsal
	t.Run("dry run", func(t *testing.T) {
		r := reprocess(0, "orders.yaml", "--quarantined", "--reason", "number_syntax", "--dry-run")
		if len(r.Rehearsals) != 1 {
			t.Fatalf("%+v", r)
		}
		rehearsal = r.Rehearsals[0]
		if rehearsal.Quarantined != first.Counts.Quarantined || rehearsal.Pass == 0 || rehearsal.WriteUnits < float64(rehearsal.Rows) || h.table("orders") != before {
			t.Errorf("%+v", rehearsal)
		}
		if r := reprocess(0, "orders.yaml", "--quarantined", "--reason", "enum", "--dry-run"); len(r.Rehearsals) != 0 {
			t.Errorf("a reason that no record has chooses %+v", r)
		}
	})
	t.Run("newer revision", func(t *testing.T) {
		r := reprocess(0, first.BatchID, "--quarantined")
		if len(r.Batches) != 1 || r.Batches[0].State != ledger.StateCompleted {
			t.Fatalf("%+v", r)
		}
		c := r.Batches[0].Counts
		if c.Quarantined != rehearsal.Quarantined-rehearsal.Pass || c.Written != rehearsal.Rows || c.Valid != first.Counts.Valid+rehearsal.Pass {
			t.Errorf("%+v, the dry run said %+v", c, rehearsal)
		}
		if n := requests(); n != asked {
			t.Errorf("%d requests to the source", n-asked)
		}
	})
	t.Run("once more", func(t *testing.T) {
		after := h.table("orders")
		if r := reprocess(0, "orders.yaml"); len(r.Unchanged) != 1 || h.table("orders") != after || after == before {
			t.Errorf("%+v", r)
		}
	})
	t.Run("refetch", func(t *testing.T) {
		r := reprocess(0, "orders.yaml", "--refetch", "--source", url)
		if len(r.Batches) != 1 || r.Batches[0].Counts.Written != 0 || r.Batches[0].Counts.Unchanged == 0 {
			t.Errorf("an identical refetch, with a version field, wrote: %+v", r)
		}
		if requests() == asked {
			t.Error("nothing was fetched")
		}
	})
	t.Run("usage", func(t *testing.T) {
		for _, args := range [][]string{{}, {"orders.yaml", "--reason", "x"}, {"orders.yaml", "--refetch", "--dry-run"}, {first.BatchID, "orders.yaml"}} {
			if out := h.exec(append([]string{"reprocess", "--home", h.dir}, args...)...); out.code != 2 {
				t.Errorf("%v: exit code %d\n%s", args, out.code, out.stderr)
			}
		}
	})
}

// TestReprocessGoesOn: a batch that cannot be reprocessed does not keep the others from it, and its kind is the exit code. A
// batch that is open and not chosen is named.
func TestReprocessGoesOn(t *testing.T) {
	url, _ := serve(t, ordersapi.Config{Seed: 3, Rows: 100, PageSize: 100, Faults: ordersapi.Faults{BadEvery: 30}})
	h := newHome(t)
	revision := func(n string) {
		h.file("orders.yaml", strings.Replace(orders, "  key: [shop", "  revision: "+n+"\n  key: [shop", 1))
	}
	revision("1")
	var ids []string
	for _, slot := range []string{"2026-01-05T10:00:00Z", "2026-01-05T11:00:00Z", "2026-01-05T12:00:00Z"} {
		ids = append(ids, h.run(0, "orders.yaml", "--slot", slot, "--source", url).BatchID)
	}
	revision("3")
	if out := h.exec("reprocess", ids[1], "--home", h.dir); out.code != 0 {
		t.Fatalf("exit code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	revision("2")
	type result struct {
		Batches []ledger.Report `json:"batches"`
		Open    []ledger.Report `json:"open"`
	}
	one := func(code int, args ...string) (r result) {
		t.Helper()
		out := h.exec(append([]string{"reprocess", "--home", h.dir, "--json"}, args...)...)
		if out.code != code {
			t.Fatalf("%v: exit code %d, want %d\n%s%s", args, out.code, code, out.stdout, out.stderr)
		}
		if err := json.Unmarshal([]byte(out.stdout), &r); err != nil { // one object
			t.Fatalf("%v\n%s", err, out.stdout)
		}
		return r
	}
	r := one(2, "orders.yaml")
	if len(r.Batches) != 3 {
		t.Fatalf("%+v", r)
	}
	for i, b := range r.Batches {
		refused := b.Failure != nil && b.Failure.Kind == etl.ContractChanged
		if b.BatchID != ids[i] || b.State != ledger.StateCompleted || refused != (i == 1) {
			t.Errorf("%+v", b)
		}
	}

	if r := h.run(4, "orders.yaml", "--slot", "2026-01-05T13:00:00Z", "--source", "http://127.0.0.1:1"); r.State != ledger.StateFailed {
		t.Fatalf("%+v", r)
	}
	revision("4")
	if r := one(0, "orders.yaml"); len(r.Batches) != 3 || len(r.Open) != 1 || r.Open[0].BatchID != "orders/20260105T130000Z" {
		t.Errorf("%+v", r)
	}
	out := h.exec("reprocess", "orders/20260105T130000Z", "--quarantined", "--home", h.dir)
	if out.code != 0 || strings.Contains(out.stdout, "nothing to do") || !strings.Contains(out.stdout, "orders/20260105T130000Z  FAILED") {
		t.Errorf("exit code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
}
