package contract_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/page"
	"github.com/onceload/onceload/pkg/pipeline"
)

// origin is a fixed origin.
func origin() contract.Origin {
	return contract.Origin{
		Batch:      etl.Batch{Pipeline: "orders", Slot: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)},
		Extraction: 1,
		FetchedAt:  time.Date(2026, 11, 30, 11, 5, 7, 123456000, time.UTC),
	}
}

// compile compiles a contract that must be good.
func compile(tb testing.TB, c pipeline.Contract, target pipeline.Target) *contract.Contract {
	tb.Helper()
	out, err := contract.Compile(c, target)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// check runs one record and tells the outcome as text: the canonical line without audit columns, or `field:code …`.
func check(tb testing.TB, c *contract.Contract, raw string) string {
	tb.Helper()
	return outcome(tb, c.NewChecker().Check(page.Record{Raw: []byte(raw)}, contract.Place{}, origin()))
}

func outcome(tb testing.TB, res contract.Result) string {
	tb.Helper()
	if (res.Line == nil) == (res.Quarantine == nil) || (res.Line == nil) != (len(res.Reasons) > 0) {
		tb.Fatalf("not exactly one outcome: line %s, quarantine %s, reasons %v", res.Line, res.Quarantine, res.Reasons)
	}
	if res.Line == nil {
		var codes []string
		for _, r := range res.Reasons {
			codes = append(codes, r.Field+":"+r.Code)
		}
		return strings.Join(codes, " ")
	}
	out := []byte{'{'}
	for name, value := range membersOf(tb, res.Line) {
		if name == "_deleted" || !strings.HasPrefix(name, "_") {
			quoted, _ := json.Marshal(name)
			out = append(append(append(out, quoted...), ':'), append(bytes.Clone(value), ',')...)
		}
	}
	return string(bytes.TrimSuffix(out, []byte{','})) + "}"
}

// membersOf yields the members of a JSON object in their order.
func membersOf(tb testing.TB, object []byte) func(yield func(string, json.RawMessage) bool) {
	return func(yield func(string, json.RawMessage) bool) {
		dec := json.NewDecoder(bytes.NewReader(object))
		dec.UseNumber()
		if _, err := dec.Token(); err != nil {
			tb.Fatalf("%s: %v", object, err)
		}
		for dec.More() {
			name, err := dec.Token()
			if err != nil {
				tb.Fatalf("%s: %v", object, err)
			}
			var v json.RawMessage
			if err := dec.Decode(&v); err != nil {
				tb.Fatalf("%s: %v", object, err)
			}
			if !yield(name.(string), v) {
				return
			}
		}
	}
}

// column checks one value of one field v of a record whose key is good, and gives the column's text, `-` if it is left
// out, or the codes.
func column(tb testing.TB, f pipeline.Field, value string) string {
	tb.Helper()
	f.Name = "v"
	c := compile(tb, pipeline.Contract{Key: []string{"id"}, Fields: []pipeline.Field{{Name: "id", Type: "string"}, f}}, pipeline.Target{})
	raw := `{"id":"k","v":` + value + `}`
	if value == "" {
		raw = `{"id":"k"}`
	}
	out := check(tb, c, raw)
	if after, ok := strings.CutPrefix(out, `{"id":"k","v":`); ok {
		return strings.TrimSuffix(after, "}")
	}
	if out == `{"id":"k"}` {
		return "-"
	}
	return strings.ReplaceAll(out, "v:", "")
}

// TestCompileFaults: every fault is reported, all at once, as ContractInvalid.
func TestCompileFaults(t *testing.T) {
	id := pipeline.Field{Name: "id", Type: "string"}
	with := func(f pipeline.Field) pipeline.Contract {
		return pipeline.Contract{Key: []string{"id"}, Fields: []pipeline.Field{id, f}}
	}
	cases := []struct {
		name   string
		decl   pipeline.Contract
		target pipeline.Target
		want   []string
	}{
		{"several at once", pipeline.Contract{Key: []string{"nope"}, Version: "gone", Extra: "some",
			Fields: []pipeline.Field{{Name: "_x", Type: "string"}, {Name: "a", Type: "text"}, id, id}},
			pipeline.Target{}, []string{"extra: ", `field "_x"`, "field a: type", "id stands twice", "nope is not a field", "gone is not a field"}},
		{"no key", pipeline.Contract{Fields: []pipeline.Field{id}}, pipeline.Target{}, []string{"key: at least one"}},
		{"key twice", pipeline.Contract{Key: []string{"id", "id"}, Fields: []pipeline.Field{id}}, pipeline.Target{}, []string{"exactly once"}},
		{"sort takes all", pipeline.Contract{Key: []string{"id"}, Fields: []pipeline.Field{id}}, pipeline.Target{Sort: []string{"id"}}, []string{"target.partition"}},
		{"sort of another field", pipeline.Contract{Key: []string{"id"}, Fields: []pipeline.Field{id}}, pipeline.Target{Sort: []string{"x"}}, []string{"exactly once", "x is not a field"}},
		{"list as key", pipeline.Contract{Key: []string{"l"}, Fields: []pipeline.Field{{Name: "l", Type: "list"}}}, pipeline.Target{}, []string{"field l is of type list"}},
		{"string as version", pipeline.Contract{Key: []string{"id"}, Version: "id", Fields: []pipeline.Field{id}}, pipeline.Target{}, []string{"want integer or timestamp"}},
		{"path", with(pipeline.Field{Name: "a", Type: "string", From: "a..b"}), pipeline.Target{}, []string{"field a: from"}},
		{"pattern", with(pipeline.Field{Name: "a", Type: "string", Pattern: "("}), pipeline.Target{}, []string{"field a: pattern"}},
		{"clean", with(pipeline.Field{Name: "a", Type: "string", Clean: []string{"shout"}}), pipeline.Target{}, []string{`clean: "shout"`}},
		{"default of another type", with(pipeline.Field{Name: "a", Type: "integer", Default: new("1.5")}), pipeline.Target{}, []string{`default: "1.5"`}},
		{"default that breaks min", with(pipeline.Field{Name: "a", Type: "integer", Default: new("1"), Min: new("2")}), pipeline.Target{}, []string{"breaks min"}},
		{"default and required", with(pipeline.Field{Name: "a", Type: "integer", Default: new("1"), Required: true}), pipeline.Target{}, []string{"exclude each other"}},
		{"enum of another type", with(pipeline.Field{Name: "a", Type: "boolean", Enum: []string{"si"}}), pipeline.Target{}, []string{`enum: "si"`}},
		{"min of a string", with(pipeline.Field{Name: "a", Type: "string", Min: new("2")}), pipeline.Target{}, []string{"min and max"}},
		{"length of a number", with(pipeline.Field{Name: "a", Type: "integer", MaxLen: new(2)}), pipeline.Target{}, []string{"min_length"}},
		{"unit", with(pipeline.Field{Name: "a", Type: "timestamp", Unit: "ns"}), pipeline.Target{}, []string{`unit "ns"`}},
		{"zone", with(pipeline.Field{Name: "a", Type: "timestamp", Zone: "Mars/Olympus"}), pipeline.Target{}, []string{"zone"}},
		{"zone of the machine", with(pipeline.Field{Name: "a", Type: "timestamp", Zone: "Local"}), pipeline.Target{}, []string{"zone"}},
		{"layout without offset or zone", with(pipeline.Field{Name: "a", Type: "timestamp", Layout: "02.01.2006 15:04"}), pipeline.Target{}, []string{"declare zone"}},
		{"layout with an abbreviation", with(pipeline.Field{Name: "a", Type: "timestamp", Layout: time.RFC1123}), pipeline.Target{}, []string{"ambiguous"}},
		{"layout without a day", with(pipeline.Field{Name: "a", Type: "date", Layout: "2006-01"}), pipeline.Target{}, []string{"year, month and day"}},
		{"delete path", pipeline.Contract{Key: []string{"id"}, Fields: []pipeline.Field{id}, Delete: &pipeline.Delete{From: "["}}, pipeline.Target{}, []string{"delete"}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			_, err := contract.Compile(tc.decl, tc.target)
			if etl.KindOf(err) != etl.ContractInvalid {
				t.Fatalf("kind %s of %v, want ContractInvalid", etl.KindOf(err), err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("no %q in:\n%v", want, err)
				}
			}
			var j interface{ Unwrap() []error }
			if !errors.As(err, &j) || len(j.Unwrap()) < len(tc.want) {
				t.Errorf("want at least %d errors joined: %v", len(tc.want), err)
			}
		})
	}
}

// TestSpec: what cannot change a byte of output is not in the digest, everything else is. (B1: ContractChanged)
func TestSpec(t *testing.T) {
	base := func() (pipeline.Contract, pipeline.Target) {
		return pipeline.Contract{
			Revision: 1, Epoch: 1, Key: []string{"shop", "id"}, Version: "n", Extra: "drop",
			Fields: []pipeline.Field{
				{Name: "shop", Type: "string", Const: new("eu")}, {Name: "id", Type: "string"},
				{Name: "n", Type: "integer", Min: new("0"), Enum: []string{"1", "2"}},
			},
			Delete: &pipeline.Delete{From: "status", Equals: "gone"},
		}, pipeline.Target{Table: "orders"}
	}
	decl, target := base()
	old := compile(t, decl, target)
	if got := old.Short(); got != old.Digest()[:8] || len(old.Digest()) != 64 {
		t.Errorf("short %s of %s", got, old.Digest())
	}
	cases := []struct {
		name   string
		change func(*pipeline.Contract, *pipeline.Target)
		want   []string
	}{
		{"revision alone", func(c *pipeline.Contract, _ *pipeline.Target) { c.Revision = 2 }, nil},
		{"order of fields", func(c *pipeline.Contract, _ *pipeline.Target) { slices.Reverse(c.Fields) }, nil},
		{"order of enum, writing of min", func(c *pipeline.Contract, _ *pipeline.Target) {
			c.Fields[2].Enum, c.Fields[2].Min = []string{"2", "1.0"}, new("0.00")
		}, nil},
		{"from that is the default", func(c *pipeline.Contract, _ *pipeline.Target) { c.Fields[1].From = "id" }, nil},
		{"partition that is the default, table", func(_ *pipeline.Contract, t *pipeline.Target) {
			t.Partition, t.Table = []string{"shop", "id"}, "other"
		}, nil},
		{"field gone and new", func(c *pipeline.Contract, _ *pipeline.Target) { c.Fields[2].Name, c.Version = "m", "m" },
			[]string{"fields.m (new)", "fields.n (gone)", "version"}},
		{"parts of a field", func(c *pipeline.Contract, _ *pipeline.Target) {
			c.Fields[2].Min, c.Fields[2].Max = new("1"), new("9")
		}, []string{"fields.n.max", "fields.n.min"}},
		{"clean, order of it", func(c *pipeline.Contract, _ *pipeline.Target) { c.Fields[1].Clean = []string{"trim", "lower"} }, []string{"fields.id.clean"}},
		{"key order", func(c *pipeline.Contract, _ *pipeline.Target) { slices.Reverse(c.Key) }, []string{"key", "partition"}},
		{"sort", func(_ *pipeline.Contract, t *pipeline.Target) { t.Sort = []string{"id"} }, []string{"partition", "sort"}},
		{"epoch, extra, delete", func(c *pipeline.Contract, _ *pipeline.Target) { c.Epoch, c.Extra, c.Delete = 2, "keep", nil },
			[]string{"delete", "epoch", "extra"}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			decl, target := base()
			tc.change(&decl, &target)
			got := compile(t, decl, target)
			if diff := contract.DiffSpecs(old.Spec(), got.Spec()); !slices.Equal(diff, tc.want) {
				t.Errorf("differs in %q, want %q", diff, tc.want)
			}
			if same := got.Digest() == old.Digest(); same != (tc.want == nil) {
				t.Errorf("same digest: %t", same)
			}
		})
	}
	if got := contract.DiffSpecs([]byte("null"), old.Spec()); len(got) == 0 {
		t.Error("no difference from null")
	}
	if got := contract.DiffSpecs([]byte("?"), old.Spec()); !slices.Equal(got, []string{"contract"}) {
		t.Errorf("an unreadable spec: %q", got)
	}
}

func TestRevisionAndVersionType(t *testing.T) {
	decl := orders()
	decl.Revision = 3
	c := compile(t, decl, pipeline.Target{})
	if got := c.Revision(); got != (etl.Revision{Contract: 3, Engine: contract.EngineVersion}) {
		t.Errorf("revision %v", got)
	}
	if got := c.VersionType(); got != "timestamp" {
		t.Errorf("version type %q", got)
	}
	decl.Version = ""
	if got := compile(t, decl, pipeline.Target{}).VersionType(); got != "" {
		t.Errorf("version type %q without a version", got)
	}
}

// TestCodes: the list is closed, its codes distinct, every row has a meaning.
func TestCodes(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range contract.Codes() {
		if seen[c.Code] || c.Code == "" || !strings.HasSuffix(c.Meaning, ".") {
			t.Errorf("row %+v", c)
		}
		seen[c.Code] = true
	}
}
