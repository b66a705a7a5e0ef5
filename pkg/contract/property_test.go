package contract_test

import (
	"encoding/json"
	"math/big"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/page"
	"github.com/onceload/onceload/pkg/pipeline"
)

// TestNumbersExact: a decimal column is the literal's very value in its shortest plain form, min and max compare as
// numbers do, and an integer column takes exactly the whole ones.
func TestNumbersExact(t *testing.T) {
	literal := rapid.StringMatching(`-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,2})?`)
	rapid.Check(t, func(t *rapid.T) {
		lit, bound := literal.Draw(t, "literal"), literal.Draw(t, "bound")
		want, _ := new(big.Rat).SetString(lit)
		limit, _ := new(big.Rat).SetString(bound)
		c, err := contract.Compile(pipeline.Contract{Key: []string{"id"}, Fields: []pipeline.Field{
			{Name: "id", Type: "string"}, {Name: "d", Type: "decimal"}, {Name: "lo", Type: "decimal", From: "d", Min: &bound}, {Name: "hi", Type: "decimal", From: "d", Max: &bound},
		}}, pipeline.Target{})
		if err != nil {
			t.Fatal(err)
		}
		res := c.NewChecker().Check(page.Record{Raw: []byte(`{"id":"a","d":` + lit + `}`)}, contract.Place{}, origin())
		above, below := false, false
		for _, r := range res.Reasons {
			above, below = above || r.Code == contract.CodeMax, below || r.Code == contract.CodeMin
		}
		if c := want.Cmp(limit); above != (c > 0) || below != (c < 0) {
			t.Fatalf("%s against %s: above %t, below %t", lit, bound, above, below)
		}

		got := column2(t, "decimal", lit)
		exact, ok := new(big.Rat).SetString(got)
		if !ok || exact.Cmp(want) != 0 {
			t.Fatalf("%s became %s", lit, got)
		}
		if strings.ContainsAny(got, "eE+") || got == "-0" || strings.Contains(got, ".") && strings.HasSuffix(got, "0") || strings.HasSuffix(got, ".") {
			t.Fatalf("%s became %s, not canonical", lit, got)
		}
		whole := want.IsInt() && len(strings.TrimPrefix(want.RatString(), "-")) <= etl.MaxDigits
		integer := column2(t, "integer", lit)
		if (integer != "") != whole || whole && integer != want.RatString() {
			t.Fatalf("%s as integer became %q", lit, integer)
		}
	})
}

// column2 is one column's text, "" if the record is quarantined.
func column2(t *rapid.T, typ, lit string) string {
	c, err := contract.Compile(pipeline.Contract{Key: []string{"id"}, Fields: []pipeline.Field{{Name: "id", Type: "string"}, {Name: "v", Type: typ}}}, pipeline.Target{})
	if err != nil {
		t.Fatal(err)
	}
	res := c.NewChecker().Check(page.Record{Raw: []byte(`{"id":"a","v":` + lit + `}`)}, contract.Place{}, origin())
	if res.Line == nil {
		return ""
	}
	var row struct{ V json.RawMessage }
	if err := json.Unmarshal(res.Line, &row); err != nil {
		t.Fatal(err)
	}
	return string(row.V)
}

// TestInstants: a timestamp column is the instant the text names, at one width, whatever the offset or unit it came in;
// its version is the one etl gives that instant. // R15
func TestInstants(t *testing.T) {
	c := compile(t, pipeline.Contract{Revision: 1, Key: []string{"id"}, Version: "text", Fields: []pipeline.Field{
		{Name: "id", Type: "string"}, {Name: "text", Type: "timestamp"}, {Name: "s", Type: "timestamp", Unit: "s"},
	}}, pipeline.Target{})
	k := c.NewChecker()
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(rapid.Int64Range(-62135510400, 253402214400).Draw(t, "sec"), rapid.Int64Range(0, 999_999_999).Draw(t, "nsec")).UTC()
		zone := time.FixedZone("", 60*rapid.IntRange(-1439, 1439).Draw(t, "offset"))
		epoch := new(big.Rat).SetFrac(new(big.Int).Add(new(big.Int).Mul(big.NewInt(at.Unix()), big.NewInt(1e9)), big.NewInt(int64(at.Nanosecond()))), big.NewInt(1e9))
		raw := `{"id":"a","text":"` + at.In(zone).Format(time.RFC3339Nano) + `","s":` + epoch.FloatString(9) + `}`
		res := k.Check(page.Record{Raw: []byte(raw)}, contract.Place{}, origin())
		var row struct{ Text, S string }
		if err := json.Unmarshal(res.Line, &row); err != nil {
			t.Fatalf("%v: %s", err, res.Quarantine)
		}
		if want := at.Format("2006-01-02T15:04:05.000000000Z"); row.Text != want || row.S != want {
			t.Fatalf("%s became %s and %s, want %s", raw, row.Text, row.S, want)
		}
		if want, err := etl.VersionTimestamp(at); err != nil || string(res.Version) != want {
			t.Fatalf("version %s, want %s (%v)", res.Version, want, err)
		}
	})
}

// TestCheckerForgets: what a checker makes of a record does not depend on the records before it, however much alike or
// different they are; what it remembers of their shapes only saves time.
func TestCheckerForgets(t *testing.T) {
	c := compile(t, pipeline.Contract{Revision: 1, Key: []string{"id"}, Extra: "keep", Fields: []pipeline.Field{
		{Name: "id", Type: "string", Const: new("x")}, {Name: "doc", Type: "document"}, {Name: "in", Type: "string", From: "a.b"},
	}}, pipeline.Target{})
	name := rapid.SampledFrom([]string{`"a"`, `"b"`, `"c"`, `"a"`, `"b"`, `"c"`, `"bb"`, `"doc"`, `"\u0061"`, `"\""`, `"\ud800"`, `""`})
	space := rapid.SampledFrom([]string{"", "", "", " "})
	value := rapid.Custom(func(t *rapid.T) string {
		return rapid.SampledFrom([]string{`1`, `20`, `"s"`, `null`, `true`, `1.50`, `1e2`, `"\u0073"`, `[]`, `{}`, `[1,{"b":2,"a":1}]`}).Draw(t, "value")
	})
	var object func(depth int) *rapid.Generator[string]
	object = func(depth int) *rapid.Generator[string] {
		return rapid.Custom(func(t *rapid.T) string {
			var members []string
			for range rapid.IntRange(0, 5).Draw(t, "members") {
				v := value
				if depth > 0 && rapid.IntRange(0, 3).Draw(t, "nest") > 0 {
					v = object(depth - 1)
				}
				members = append(members, name.Draw(t, "name")+space.Draw(t, "space")+":"+space.Draw(t, "space")+v.Draw(t, "value"))
			}
			return "{" + space.Draw(t, "space") + strings.Join(members, space.Draw(t, "space")+","+space.Draw(t, "space")) + "}"
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		k := c.NewChecker()
		inDoc := rapid.Map(object(1), func(o string) string { return `{"doc":` + o + `}` })
		shapes := rapid.SampledFrom(rapid.SliceOfN(rapid.StringMatching(`[abc]{1,3}`), 1, 3).Draw(t, "shapes"))
		alike := rapid.Custom(func(t *rapid.T) string {
			var members []string
			for _, name := range strings.Split(shapes.Draw(t, "shape"), "") {
				members = append(members, `"`+name+`":`+value.Draw(t, "value")+space.Draw(t, "space"))
			}
			return `{"doc":{` + strings.Join(members, ",") + `}}`
		})
		for _, raw := range rapid.SliceOfN(rapid.OneOf(alike, alike, alike, inDoc, object(2)), 1, 20).Draw(t, "records") {
			rec := page.Record{Raw: []byte(raw)}
			got, want := k.Check(rec, contract.Place{}, origin()), c.NewChecker().Check(rec, contract.Place{}, origin())
			if string(got.Line) != string(want.Line) || string(got.Quarantine) != string(want.Quarantine) {
				t.Fatalf("%s\nafter others: %s%s\nalone:        %s%s", raw, got.Line, got.Quarantine, want.Line, want.Quarantine)
			}
		}
	})
}

// TestSameShape: an object in the shape of the last one is still read for itself.
func TestSameShape(t *testing.T) {
	c := compile(t, pipeline.Contract{Revision: 1, Key: []string{"id"}, Fields: []pipeline.Field{
		{Name: "id", Type: "string", Const: new("x")}, {Name: "doc", Type: "document"},
	}}, pipeline.Target{})
	for _, doc := range []string{
		`{"b":3,"a":4}`, `{"b":"\u0073","a":"s"}`, `{"b":1.50,"a":1e2}`, `{"b":1 ,"a":2}`, `{"b": 1,"a":2}`, `{"b":[1],"a":{}}`, `{"b":true,"a":null}`,
		`{"b":1}`, `{"b":1,"a":2,"c":3}`, `{"b":1,"a":2,"a":3}`, `{"b":1,"aa":2}`, `{"b":1,"c":2}`, `{}`, `{"b":1,"a":"` + `\ud800` + `"}`,
	} {
		k := c.NewChecker()
		line := func(k *contract.Checker, doc string) string {
			res := k.Check(page.Record{Raw: []byte(`{"doc":` + doc + `}`)}, contract.Place{}, origin())
			return string(res.Line) + string(res.Quarantine)
		}
		line(k, `{"b":1,"a":2}`)
		if got, want := line(k, doc), line(c.NewChecker(), doc); got != want {
			t.Errorf("%s\nafter another: %s\nalone:         %s", doc, got, want)
		}
	}
}

// TestParseLineRefuses: what is not a line of ours is an error, never a panic or half an item.
func TestParseLineRefuses(t *testing.T) {
	for _, line := range []string{
		``, `[]`, `null`, `{}`, `{"_pk":"a"}`, `{"_rank":"r"}`, `{"_pk":1,"_rank":"r"}`, `{"_pk":"a","_rank":"r"`, `{"_pk":"a","_rank":"r"}x`, ` {"_pk":"a","_rank":"r"}`,
		`{"_pk" :"a","_rank":"r"}`, `{ "_pk":"a","_rank":"r"}`, `{"_pk":"a","_rank":"r" }`, `{"_pk":"a","_rank":{"\"":"\\"}}`, `{"_pk":"\ud800","_rank":null}`,
	} {
		if item, err := contract.ParseLine([]byte(line)); err == nil || etl.KindOf(err) != etl.RecordsLost {
			t.Errorf("%s: %+v, %v", line, item, err)
		}
	}
	item, err := contract.ParseLine([]byte(`{"A":"\"}","_pk":"q\"\u0001","_rank":"r","_sk":"s","b":[{"_pk":1}]}`))
	if err != nil || item.PK != "q\"\x01" || item.SK != "s" || item.Rank != "r" || string(item.Doc) != `{"A":"\"}","b":[{"_pk":1}]}` {
		t.Errorf("%+v %s %v", item.Key, item.Doc, err)
	}
}
