package stage_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/store"
)

// wide is n large records with different keys.
func wide(n int) string {
	var out []string
	for i := range n {
		out = append(out, rec(fmt.Sprint("wide", i), 1, strings.Repeat("x", 300_000)))
	}
	return strings.Join(out, ",")
}

// TestGateRules: where each rule begins to hold. R10, R24, R31
func TestGateRules(t *testing.T) {
	timed := strings.Replace(rigFile, "v: {type: integer", "v: {type: timestamp", 1)
	at := func(s string) string { return `{"id":"a","v":"2026-11-30T` + s + `"}` }
	for _, c := range []struct {
		name  string
		file  string
		more  string
		pages []string
		kind  etl.Kind // "" = passes
		says  string
	}{
		{"nothing", rigFile, "", []string{""}, "", ""},
		{"all good", rigFile, "", []string{many(3)}, "", ""},
		{"ratio just held", rigFile, "", []string{join(many(380), bad(20))}, "", ""},
		{"ratio passed", rigFile, "", []string{join(many(379), bad(21))}, etl.QuarantineExceeded, "21 of 400 records quarantined"},
		{"ratio passed below the floor", rigFile, "", []string{join(many(20), bad(19))}, "", ""},
		{"ratio passed at the floor", rigFile, "", []string{join(many(20), bad(20))}, etl.QuarantineExceeded, "id key_empty ×20"},
		{"over parts", rigFile, "", []string{join(many(20), bad(10)), bad(10)}, etl.QuarantineExceeded, "part 0 page 0 index 20"},
		{"none valid", rigFile, "", []string{bad(1)}, etl.QuarantineExceeded, "1 of 1"},
		{"one valid", rigFile, "", []string{join(many(1), bad(1))}, "", ""},
		{"own bounds held", rigFile, "quarantine: {max_ratio: 0.5, min_rows: 1}", []string{join(many(2), bad(2))}, "", ""},
		{"own bounds passed", rigFile, "quarantine: {max_ratio: 0.5, min_rows: 1}", []string{join(many(2), bad(3))}, etl.QuarantineExceeded, "allowed: 0.5"},
		{"29 at 0.29", rigFile, "quarantine: {max_ratio: 0.29, min_rows: 1}", []string{join(many(71), bad(29))}, "", ""},
		{"57 at 0.57", rigFile, "quarantine: {max_ratio: 0.57, min_rows: 1}", []string{join(many(43), bad(57))}, "", ""},
		{"58 at 0.58", rigFile, "quarantine: {max_ratio: 0.58, min_rows: 1}", []string{join(many(42), bad(58))}, "", ""},
		{"59 at 0.58", rigFile, "quarantine: {max_ratio: 0.58, min_rows: 1}", []string{join(many(41), bad(59))}, etl.QuarantineExceeded, "59 of 100 records quarantined (allowed: 0.58 of"},
		{"a small ratio", rigFile, "quarantine: {max_ratio: 0.00001, min_rows: 1}", []string{join(many(1), bad(1))}, etl.QuarantineExceeded, "allowed: 0.00001 of"},
		{"all allowed, none valid", rigFile, "quarantine: {max_ratio: 1}", []string{bad(2)}, etl.QuarantineExceeded, "2 of 2 records quarantined, none is valid: id"},
		{"29 duplicates at 0.29", rigFile, "checks: {max_duplicate_ratio: 0.29}", []string{join(many(71), many(29))}, "", ""},
		{"30 duplicates at 0.29", rigFile, "checks: {max_duplicate_ratio: 0.29}", []string{join(many(70), many(30))}, etl.CheckFailed, "30 of 100 valid records repeat a key, checks.max_duplicate_ratio allows 0.29 of them"},
		{"all duplicates but one of seven", rigFile, "checks: {max_duplicate_ratio: 0.857142857}", []string{many(1), many(1), many(1), many(1), many(1), many(1), many(1)}, etl.CheckFailed, "6 of 7"},
		{"enough records", rigFile, "checks: {min_records: 2}", []string{many(1), bad(1)}, "", ""},
		{"too few records", rigFile, "checks: {min_records: 2}", []string{many(1)}, etl.CheckFailed, "has 1 records, checks.min_records wants at least 2"},
		{"few enough records", rigFile, "checks: {max_records: 2}", []string{many(2)}, "", ""},
		{"too many records", rigFile, "checks: {max_records: 2}", []string{many(2), bad(1)}, etl.CheckFailed, "checks.max_records allows 2"},
		{"few duplicates", rigFile, "checks: {max_duplicate_ratio: 0.25}", []string{many(2), join(rec("id0", 2, "x"), rec("c", 1, "x"))}, "", ""},
		{"duplicates across parts", rigFile, "checks: {max_duplicate_ratio: 0.24}", []string{many(2), join(rec("id0", 2, "x"), rec("c", 1, "x"))}, etl.CheckFailed, "1 of 4 valid records repeat a key"},
		{"duplicates within a part", rigFile, "checks: {max_duplicate_ratio: 0.24}", []string{join(many(3), rec("id0", 2, "x"))}, etl.CheckFailed, "1 of 4"},
		{"thrice", rigFile, "checks: {max_duplicate_ratio: 0.6}", []string{many(1), many(1), many(1)}, etl.CheckFailed, "2 of 3"},
		{"young enough", timed, "checks: {max_age: 1h}", []string{at("10:00:00Z")}, "", ""},
		{"too old", timed, "checks: {max_age: 1h}", []string{at("09:59:59.999999999Z")}, etl.CheckFailed, "checks.max_age wants one from 20261130100000000000000"},
		{"the youngest counts", timed, "checks: {max_age: 1h}", []string{at("10:30:00Z"), at("09:00:00Z")}, "", ""},
		{"atomic", rigFile, "atomic", []string{many(60), join(rec("a", 1, "x"), many(39))}, "", ""},
		{"too large for atomic", rigFile, "atomic", []string{join(rec("a", 1, strings.Repeat("x", 300_000)), wide(13))}, etl.BatchTooLarge, "bytes of valid records: target.atomic loads at most 4194304"},
		{"too many for atomic", rigFile, "atomic", []string{many(100), rec("a", 1, "x")}, etl.BatchTooLarge, "101 valid records: target.atomic loads at most 100"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := c.file + c.more + "\n"
			if c.more == "atomic" {
				file = strings.Replace(c.file, "target: {table: rows}", "target: {table: rows, atomic: true}", 1)
			}
			r := newRig(t, file, c.pages...)
			p := r.landed()
			g, err := r.gate(p, 0)
			if c.kind == "" {
				must(t, err)
				if g.Status != etl.StatusPassed {
					t.Fatalf("%+v", g)
				}
				return
			}
			wantKind(t, err, c.kind, c.says)
			// What fails loads nothing, and shows its counts.
			b, err := r.ledger.Get(t.Context(), r.batch)
			must(t, err)
			if b.Binding != nil || b.Counts == nil || b.Counts.Records != b.Counts.Valid+b.Counts.Quarantined {
				t.Errorf("%+v", b)
			}
			if bound, err := r.ledger.Bound(t.Context(), "rows"); err != nil || len(bound) > 0 {
				t.Errorf("the revision is bound: %+v, %v", bound, err)
			}
		})
	}
}

// TestGateTried: the view of a batch that failed here has the records of the contract that was tried, not of an earlier one,
// and a batch that passed those of its binding alone. B12
func TestGateTried(t *testing.T) {
	r := newRig(t, rigFile, join(many(20), bad(20)))
	p := r.landed()
	_, err := r.gate(p, 0)
	wantKind(t, err, etl.QuarantineExceeded)
	v, err := r.ledger.View(t.Context(), r.batch)
	must(t, err)
	if v.Batch.Tried == nil || len(v.Transforms) != 1 || v.Transforms[0].Quarantined != 20 || len(v.Transforms[0].Reasons) == 0 {
		t.Fatalf("first: tried %v, %+v", v.Batch.Tried, v.Transforms)
	}
	r.swap(strings.Replace(rigFile, "text: {type: string}", "text: {type: integer}", 1))
	r.transform(p)
	_, err = r.gate(p, 0)
	wantKind(t, err, etl.QuarantineExceeded)
	v, err = r.ledger.View(t.Context(), r.batch)
	must(t, err)
	if len(v.Transforms) != 1 || v.Transforms[0].Quarantined != 40 {
		t.Errorf("under another contract: tried %v, %+v", v.Batch.Tried, v.Transforms)
	}
	r.swap(rigFile + "quarantine: {max_ratio: 0.9}\n")
	_, err = r.gate(p, 0)
	must(t, err)
	v, err = r.ledger.View(t.Context(), r.batch)
	must(t, err)
	if v.Batch.Tried != nil || v.Batch.Binding == nil || len(v.Transforms) != 1 || v.Transforms[0].Quarantined != 20 {
		t.Errorf("bound: %v, tried %v, %+v", v.Batch.Binding, v.Batch.Tried, v.Transforms)
	}
}

// TestGateContracts: what a changed contract means once rows are loaded under the first one. R10, B1
func TestGateContracts(t *testing.T) {
	replace := func(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(rigFile) }
	for _, c := range []struct {
		name string
		file string
		kind etl.Kind
		says []string
	}{
		{"the same", rigFile, "", nil},
		{"another order of the fields", replace("    text: {type: string}\n", "", "  fields:\n", "  fields:\n    text: {type: string}\n"), "", nil},
		{"another field", replace("text: {type: string}", "text: {type: string}\n    more: {type: string}"), etl.ContractChanged,
			[]string{"fields.more (new)", "raise contract.revision to 2"}},
		{"another field, raised", replace("text: {type: string}", "text: {type: string}\n    more: {type: string}", "revision: 1", "revision: 2"), "", nil},
		{"another version field, raised", replace("version: v", "version: w", "text: {type: string}", "w: {type: integer, required: true, from: v}", "revision: 1", "revision: 2"), etl.ContractChanged,
			[]string{"revision 2 has version w (integer), revision 1 had v (integer)", "raise contract.epoch to 2"}},
		{"no version field, raised", replace("version: v\n", "\n", "revision: 1", "revision: 2"), etl.ContractChanged, []string{"none (the slot)", "raise contract.epoch to 2"}},
		{"another version type, raised", replace("v: {type: integer", "v: {type: timestamp, unit: s", "revision: 1", "revision: 2"), etl.ContractChanged, []string{"v (timestamp)"}},
		{"another version type and epoch", replace("v: {type: integer", "v: {type: timestamp, unit: s", "revision: 1", "revision: 2\n  epoch: 2"), "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, rigFile, many(2))
			r.bound()
			r.batch.Slot = r.batch.Slot.Add(-3600e9)
			r.swap(c.file)
			p := r.landed()
			_, err := r.gate(p, 0)
			if c.kind == "" {
				must(t, err)
				return
			}
			wantKind(t, err, c.kind, c.says...)
		})
	}
}

// TestGateStale: parts under another contract are transformed again, at most three times.
func TestGateStale(t *testing.T) {
	r := newRig(t, rigFile, many(2), rec("b", 1, "x"))
	p := r.landed()
	r.swap(strings.Replace(rigFile, "text: {type: string}", "text: {type: string, clean: [trim]}", 1))
	for stale := range 3 {
		g, err := r.gate(p, stale)
		must(t, err)
		if g.Status != etl.StatusStale || g.Stale != stale+1 || len(g.Ranges) > 0 {
			t.Fatalf("%+v", g)
		}
	}
	_, err := r.gate(p, 3)
	wantKind(t, err, etl.ContractChanged, "changed 3 times")
	r.transform(p)
	g, err := r.gate(p, 3)
	must(t, err)
	if g.Status != etl.StatusPassed || len(g.Ranges) != 2 {
		t.Errorf("%+v", g)
	}
}

// TestGateBalance: a part whose record does not say what was landed stops the batch. B7, R23
func TestGateBalance(t *testing.T) {
	for field, says := range map[string]string{
		"records": "part 0 landed 3 records", "valid": "part 0 landed 3 records", "quarantined": "part 0 landed 3 records",
		"raw_sha256": "part 0 was transformed from pages with digest 2",
	} {
		t.Run(field, func(t *testing.T) {
			r := newRig(t, rigFile, many(3))
			p := r.landed()
			for _, it := range r.table.Items() {
				if !strings.HasPrefix(it.SK, "transform#") {
					continue
				}
				var doc map[string]any
				must(t, json.Unmarshal(it.Doc, &doc))
				if _, text := doc[field].(string); text {
					doc[field] = "2"
				} else {
					doc[field] = 2
				}
				text, err := json.Marshal(doc)
				must(t, err)
				it.Doc = text
				must(t, r.table.PutIf(t.Context(), it, store.Condition{}))
			}
			_, err := r.gate(p, 0)
			wantKind(t, err, etl.RecordsLost, says)
		})
	}
}

// TestFenced: no stage does anything for an execution that lost its batch, or speaks of another extraction. B6
func TestFenced(t *testing.T) {
	r := newRig(t, rigFile, many(2))
	p, g := r.bound()
	old := p
	r.execution = "successor"
	p, err := r.extract()
	must(t, err)
	r.execution = "mine"
	before := len(r.table.Items())
	_, err = r.Transform.Run(t.Context(), etl.RangeInput{Execution: "mine", Batch: old.Batch, Fence: old.Fence, Extraction: 1})
	wantKind(t, err, etl.Superseded)
	_, err = r.gate(old, 0)
	wantKind(t, err, etl.Superseded)
	wantKind(t, r.load(old, g), etl.Superseded)
	if rows := r.rows(); rows != "" {
		t.Errorf("it wrote %s", rows)
	}
	r.execution = "successor"
	must(t, r.load(p, g))
	r.execution = "mine"
	_, err = r.settle(old, g)
	wantKind(t, err, etl.Superseded)
	if n := len(r.table.Items()); n != before+1 {
		t.Errorf("%d items, want %d", n, before+1)
	}
	r.execution = "successor"
	p.Extraction = 2
	_, err = r.gate(p, 0)
	wantKind(t, err, etl.Superseded, "at extraction 1, not 2")
}

// TestGateEpoch: a file that goes back to a lower epoch, even under a revision that is bound, would lose every row. B5
func TestGateEpoch(t *testing.T) {
	r := newRig(t, rigFile, many(1))
	p, g := r.bound()
	must(t, r.load(p, g))
	_, err := r.settle(p, g)
	must(t, err)
	next := func(file string) error {
		r.swap(file)
		r.batch.Slot = r.batch.Slot.Add(-time.Hour)
		_, err := r.gate(r.landed(), 0)
		return err
	}
	must(t, next(strings.Replace(rigFile, "revision: 1", "revision: 2\n  epoch: 2", 1)))
	wantKind(t, next(rigFile), etl.ContractChanged, "epoch 2", "raise contract.revision above 2")
}

// TestRawGone: what landed and is gone is a loss, and says how to fetch it anew. R16
func TestRawGone(t *testing.T) {
	r := newRig(t, rigFile, many(1), many(2))
	p, err := r.extract()
	must(t, err)
	r.raw.Delete(etl.RawPartKey(r.batch, 1, 1))
	_, err = r.Transform.Run(t.Context(), etl.RangeInput{Execution: r.execution, Batch: p.Batch, Fence: p.Fence, Extraction: 1, Range: etl.Range{First: 1, Last: 1}})
	wantKind(t, err, etl.RecordsLost, "part 1", "gone")
	r.raw.Delete(etl.ManifestKey(r.batch, 1))
	_, err = r.gate(p, 0)
	wantKind(t, err, etl.RecordsLost, "manifest is gone")
	if hint := etl.RecordsLost.Info().Hint; !strings.Contains(hint, "reprocess <batch> --refetch") {
		t.Errorf("hint %q", hint)
	}
}

// TestReloadOfAnotherShape: rows that do not fit the table any more are not reloaded, and the batch stays completed.
func TestReloadOfAnotherShape(t *testing.T) {
	r := newRig(t, rigFile, many(2))
	p, g := r.bound()
	must(t, r.load(p, g))
	_, err := r.settle(p, g)
	must(t, err)
	reload := func(file string) error {
		r.swap(file)
		r.execution += "+"
		in := etl.ExtractInput{Execution: r.execution, Request: r.request()}
		in.Request.Reload = true
		_, err := r.Extract.Run(t.Context(), in)
		return err
	}
	shape := strings.NewReplacer("revision: 1", "revision: 2", "key: [id]", "key: [id, text]", "text: {type: string}", "text: {type: string, required: true}",
		"target: {table: rows}", "target: {table: rows, partition: [id], sort: [text]}").Replace(rigFile)
	wantKind(t, reload(shape), etl.ContractChanged, "reprocess the batch")
	b, err := r.ledger.Get(t.Context(), r.batch)
	must(t, err)
	if b.State != ledger.StateCompleted {
		t.Errorf("%s", b.State)
	}
	must(t, reload(strings.Replace(rigFile, "revision: 1", "revision: 2", 1)))
}

// TestAnotherTable: a completed batch may be loaded into another table, and the log says so; what is loaded in part is
// finished where it began, since the parts that are done would be missing elsewhere. R21, R31
func TestAnotherTable(t *testing.T) {
	moved := strings.Replace(rigFile, "{table: rows}", "{table: moved}", 1)
	r := newRig(t, rigFile, many(2), rec("b", 1, "x"))
	p, g := r.bound()
	half := g
	half.Ranges = g.Ranges[:1]
	must(t, r.load(p, half))
	r.swap(moved)
	wantKind(t, r.load(p, g), etl.ContractChanged, "began in the table rows", "target.table is moved now", "--reload")
	_, err := r.gate(p, 0)
	wantKind(t, err, etl.ContractChanged, "1 of 2 parts", "table rows", "target.table is moved now", "--reload")
	r.swap(rigFile)
	must(t, r.load(p, g))
	_, err = r.settle(p, g)
	must(t, err)
	if r.lines.Len() > 0 {
		t.Errorf("so far it said: %s", r.lines.String())
	}

	reload := func() {
		t.Helper()
		r.execution += "!"
		in := etl.ExtractInput{Execution: r.execution, Request: r.request()}
		in.Request.Reload = true
		p, err = r.Extract.Run(t.Context(), in)
		must(t, err)
		g, err = r.gate(p, 0)
		must(t, err)
		must(t, r.load(p, g))
		_, err = r.settle(p, g)
		must(t, err)
	}
	r.swap(moved)
	reload()
	if says := r.lines.String(); !strings.Contains(says, "another table") || !strings.Contains(says, "before=rows now=moved") {
		t.Errorf("the reload said %q", says)
	}
	r.lines.Reset()
	reload()
	if r.lines.Len() > 0 {
		t.Errorf("a reload into the same table said %q", r.lines.String())
	}
}
