package ledger_test

import (
	"reflect"
	"testing"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
)

func transformRecord(part int) ledger.TransformRecord {
	return ledger.TransformRecord{Part: part, Pages: 2, Records: 10, Valid: 8, Quarantined: 2,
		Codes:      map[string]int64{"type": 2},
		Reasons:    []ledger.ReasonCount{{Field: "valor <€>", Code: "type", Count: 2}},
		Examples:   []ledger.Place{{Part: part, Page: 1, Index: 3}},
		MaxVersion: "v", ValidBytes: 1 << 60, ValidSHA256: "aa", QuarantineBytes: 5, QuarantineSHA256: "bb"}
}

func loadRecord(part int) ledger.LoadRecord {
	return ledger.LoadRecord{Part: part, Conflicts: 6,
		LoadCounts: etl.LoadCounts{New: 1, Updated: 2, Unchanged: 3, Stale: 4, Duplicate: 5}}
}

func TestTransformRecords(t *testing.T) {
	f := newFixture()
	ctx := t.Context()
	if r, ok, err := f.GetTransform(ctx, batch, bound, 0); ok || err != nil {
		t.Fatalf("before: %+v %v %v", r, ok, err)
	}
	for _, part := range []int{11, 2, 0} {
		r, err := f.PutTransform(ctx, batch, bound, transformRecord(part))
		if err != nil || !reflect.DeepEqual(r, transformRecord(part)) {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	second := transformRecord(2)
	second.Valid = 99
	r, err := f.PutTransform(ctx, batch, bound, second)
	if err != nil || !reflect.DeepEqual(r, transformRecord(2)) {
		t.Errorf("%+v, %v: want the first one", r, err)
	}
	if r, ok, err := f.GetTransform(ctx, batch, bound, 2); !ok || err != nil || !reflect.DeepEqual(r, transformRecord(2)) {
		t.Errorf("%+v %v %v", r, ok, err)
	}
	// What differs in one thing is another record.
	for _, other := range []etl.Binding{
		{Extraction: 2, Revision: bound.Revision, Contract: bound.Contract},
		{Extraction: 1, Revision: etl.Revision{Contract: 3, Engine: 2}, Contract: bound.Contract},
		{Extraction: 1, Revision: bound.Revision, Contract: "ab12cd35"},
	} {
		if _, ok, err := f.GetTransform(ctx, batch, other, 2); ok || err != nil {
			t.Errorf("%s: %v %v, want none", other, ok, err)
		}
		if _, err := f.PutTransform(ctx, batch, other, transformRecord(2)); err != nil {
			t.Fatal(err)
		}
	}
	all, err := f.Transforms(ctx, batch, bound)
	if want := []ledger.TransformRecord{transformRecord(0), transformRecord(2), transformRecord(11)}; err != nil || !reflect.DeepEqual(all, want) {
		t.Errorf("%+v, %v\nwant %+v", all, err, want)
	}
}

// TestHolds: all codes count, not those alone that are among the top reasons. B2
func TestHolds(t *testing.T) {
	none, some, old := ledger.TransformRecord{Valid: 1}, transformRecord(0), transformRecord(0)
	some.Codes = map[string]int64{"type": 2, "missing": 1}
	old.Codes = nil
	for _, c := range []struct {
		name string
		r    ledger.TransformRecord
		code string
		want bool
	}{
		{"nothing", none, "", false}, {"nothing", none, "type", false},
		{"any", some, "", true}, {"top", some, "type", true}, {"beyond the top", some, "missing", true}, {"another", some, "null", false},
		{"any, codes not counted", old, "", true}, {"top, codes not counted", old, "type", true}, {"another, codes not counted", old, "missing", false},
	} {
		if got := c.r.Holds(c.code); got != c.want {
			t.Errorf("%s: %q %v", c.name, c.code, got)
		}
	}
}

func TestLoadRecords(t *testing.T) {
	f := newFixture()
	ctx := t.Context()
	for _, part := range []int{10, 9} {
		if r, err := f.PutLoad(ctx, batch, bound, 1, loadRecord(part)); err != nil || r != loadRecord(part) {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	again := loadRecord(9) // a rerun after a crash finds its rows unchanged: the first count stays
	again.New, again.Unchanged = 0, 4
	if r, err := f.PutLoad(ctx, batch, bound, 1, again); err != nil || r != loadRecord(9) {
		t.Errorf("%+v, %v: want the first one", r, err)
	}
	if _, ok, err := f.GetLoad(ctx, batch, bound, 2, 9); ok || err != nil {
		t.Errorf("load 2: %v %v, want none", ok, err)
	}
	if r, ok, err := f.GetLoad(ctx, batch, bound, 1, 9); !ok || err != nil || r != loadRecord(9) {
		t.Errorf("%+v %v %v", r, ok, err)
	}
	if _, err := f.PutLoad(ctx, batch, bound, 11, loadRecord(1)); err != nil {
		t.Fatal(err)
	}
	all, err := f.Loads(ctx, batch, bound, 1)
	if err != nil || !reflect.DeepEqual(all, []ledger.LoadRecord{loadRecord(9), loadRecord(10)}) {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestRevisions(t *testing.T) { // B1
	f := newFixture()
	ctx := t.Context()
	record := func(n int) ledger.RevisionRecord {
		// The spec comes back as it is, whatever a store does to documents.
		return ledger.RevisionRecord{Revision: n, Contract: "c", VersionField: "updated_at", VersionType: "timestamp", Epoch: 2,
			Spec: []byte(`{"z":1.50, "a":null}`)}
	}
	for _, n := range []int{10, 9} {
		if r, err := f.BindRevision(ctx, "orders", record(n)); err != nil || !reflect.DeepEqual(r, record(n)) {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	other := record(9)
	other.Contract, other.Spec = "d", []byte(`{}`)
	if r, err := f.BindRevision(ctx, "orders", other); err != nil || !reflect.DeepEqual(r, record(9)) {
		t.Errorf("%+v, %v: want the first one", r, err)
	}
	if r, err := f.BindRevision(ctx, "returns", other); err != nil || !reflect.DeepEqual(r, other) {
		t.Errorf("%+v, %v: another pipeline has its own", r, err)
	}
	all, err := f.Bound(ctx, "orders")
	if err != nil || !reflect.DeepEqual(all, []ledger.RevisionRecord{record(9), record(10)}) {
		t.Errorf("%+v, %v", all, err)
	}
}
