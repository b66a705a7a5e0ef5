package contract_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/page"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/store"
)

var update = flag.Bool("update", false, "write the golden files")

// keyed is a contract of one key field and an integer version.
func keyed(id pipeline.Field) pipeline.Contract {
	id.Name = "id"
	return pipeline.Contract{Revision: 1, Epoch: 1, Key: []string{"id"}, Version: "v", Fields: []pipeline.Field{id, {Name: "v", Type: "integer"}}}
}

// TestLongIDs: 64-bit and longer ids stay what they are, digit for digit. // R14
func TestLongIDs(t *testing.T) {
	ids := []string{"634866135153775564", "634866135153775565", "9007199254740993", "18446744073709551615", "50719297655545113494805"}
	long := "12345678901234567890123456789012345678901"
	for _, typ := range []string{"integer", "decimal", "string"} {
		c := compile(t, keyed(pipeline.Field{Type: typ}), pipeline.Target{})
		k, seen := c.NewChecker(), map[string]bool{}
		for _, id := range ids {
			res := k.Check(page.Record{Raw: []byte(`{"id":` + id + `,"v":1}`)}, contract.Place{}, origin())
			if want := id + "\x00"; string(res.Key) != want {
				t.Errorf("%s %s: key %q, want %q (%s)", typ, id, res.Key, want, res.Quarantine)
			}
			seen[string(res.Key)] = true
		}
		if len(seen) != len(ids) {
			t.Errorf("%s: %d keys of %d ids", typ, len(seen), len(ids))
		}
		want := "id:number_too_long"
		if typ == "string" {
			want = `{"id":"` + long + `","v":1}`
		}
		if got := check(t, c, `{"id":`+long+`,"v":1}`); got != want {
			t.Errorf("%s of 41 digits: %s, want %s", typ, got, want)
		}
	}
}

// TestKeyTypes: a key that changes its JSON type is one key; what is no key is told so. // R14
func TestKeyTypes(t *testing.T) {
	cases := []struct{ raw, integer, text string }{ // the key, or the codes
		{`{"id":42,"v":1}`, "42\x00", "42\x00"},
		{`{"id":"42","v":2,"email":""}`, "42\x00", "42\x00"},
		{`{"id":42.0,"v":3}`, "42\x00", "42\x00"},
		{`{"id":"","v":1}`, "id:key_empty", "id:key_empty"},
		{`{"id":null,"v":1}`, "id:key_empty", "id:key_empty"},
		{`{"v":1}`, "id:key_empty", "id:key_empty"},
		{`{"id":" 42","v":4}`, "id:number_syntax", " 42\x00"},
		{`{"id":true,"v":1}`, "id:key_type", "id:key_type"},
		{`{"id":[42],"v":1}`, "id:key_type", "id:key_type"},
		{`{"id":{},"v":1}`, "id:key_type", "id:key_type"},
		{`{"id":"a\u0000b","v":1}`, "id:number_syntax", "id:bad_text"},
		{`{"id":"\ud800","v":1}`, "id:bad_text", "id:bad_text"},
		{`{"id":"","v":null}`, "id:key_empty v:null", "id:key_empty v:null"},
	}
	for _, tc := range cases {
		for typ, want := range map[string]string{"integer": tc.integer, "string": tc.text} {
			c := compile(t, keyed(pipeline.Field{Type: typ}), pipeline.Target{})
			res := c.NewChecker().Check(page.Record{Raw: []byte(tc.raw)}, contract.Place{}, origin())
			got := string(res.Key)
			if res.Line == nil {
				got = outcome(t, res)
			}
			if got != want {
				t.Errorf("%s key of %s: got %q, want %q", typ, tc.raw, got, want)
			}
		}
	}
	trimmed := compile(t, keyed(pipeline.Field{Type: "string", Clean: []string{"trim"}}), pipeline.Target{})
	if got := check(t, trimmed, `{"id":" \t","v":1}`); got != "id:key_empty" {
		t.Errorf("a key of spaces, trimmed: %s", got)
	}
	for typ, values := range map[string][2]string{
		"timestamp": {`"2019-04-09T16:38:44+00:00"`, `"2019-04-09T18:38:44.0+0200"`},
		"date":      {`"2019-04-09"`, `"2019-04-09"`},
		"boolean":   {`true`, `"yes"`},
		"decimal":   {`1.50`, `"15e-1"`},
	} {
		c := compile(t, keyed(pipeline.Field{Type: typ}), pipeline.Target{})
		k, keys := c.NewChecker(), []string{}
		for _, v := range values {
			keys = append(keys, string(k.Check(page.Record{Raw: []byte(`{"id":` + v + `,"v":1}`)}, contract.Place{}, origin()).Key))
		}
		if keys[0] == "" || keys[0] != keys[1] {
			t.Errorf("%s: keys %q", typ, keys)
		}
	}
}

// TestSameKeyTwice: of one key in a page the newest has the highest rank, equal records have equal lines. // R15
func TestSameKeyTwice(t *testing.T) {
	k := compile(t, pipeline.Contract{Revision: 1, Epoch: 1, Key: []string{"id"}, Version: "v", Extra: "keep",
		Fields: []pipeline.Field{{Name: "id", Type: "string"}, {Name: "v", Type: "integer"}}}, pipeline.Target{}).NewChecker()
	newest, count := map[string]store.Item{}, map[string]int{}
	for i, raw := range []string{
		`{"id":"o-1","v":1,"note":"old"}`, `{"id":"o-2","v":1}`, `{"id":"o-1","v":2,"note":"new"}`, `{"id":"o-3","v":5}`, `{"v":5,"id":"o-3"}`,
	} {
		res := k.Check(page.Record{Index: i, Raw: []byte(raw)}, contract.Place{Index: i}, origin())
		item, err := contract.ParseLine(res.Line)
		if err != nil {
			t.Fatal(err)
		}
		switch old := newest[item.PK]; {
		case item.Rank == old.Rank:
			count["duplicate"]++
			if !bytes.Equal(item.Doc, old.Doc) {
				t.Errorf("equal ranks, not equal: %s %s", item.Doc, old.Doc)
			}
		case item.Rank > old.Rank:
			if old.Rank != "" {
				count["superseded"]++
			}
			newest[item.PK] = item
		}
	}
	if got := fmt.Sprint(count, len(newest)); got != "map[duplicate:1 superseded:1] 3" {
		t.Error(got)
	}
	if doc := newest["o-1"].Doc; !bytes.Contains(doc, []byte(`"note":"new"`)) {
		t.Errorf("o-1 is %s", doc)
	}
}

// TestLine pins the shape of a valid line and of its rank. // R15, R23
func TestLine(t *testing.T) {
	decl := pipeline.Contract{Revision: 3, Epoch: 2, Key: []string{"shop", "id"}, Version: "at", Extra: "keep",
		Delete: &pipeline.Delete{From: "state", Equals: "deleted"},
		Fields: []pipeline.Field{
			{Name: "shop", Type: "string", Const: new("e#u%")}, {Name: "id", Type: "integer"},
			{Name: "at", Type: "timestamp"}, {Name: "Total", Type: "decimal", Required: true}, {Name: "~", Type: "boolean"},
		}}
	c := compile(t, decl, pipeline.Target{Partition: []string{"shop"}, Sort: []string{"id"}})
	k := c.NewChecker()

	res := k.Check(page.Record{Raw: []byte(`{"~":1,"zz":[1.0],"Total":"1.50","id":"7","at":"2026-11-30T10:00:00.5+01:00","Aa":null,"AA":{},"_x":1,"at2":"é","state":"open"}`)},
		contract.Place{}, origin())
	content := `{"AA":{},"Total":1.5,"at":"2026-11-30T09:00:00.500000000Z","at2":"é","id":7,"shop":"e#u%","state":"open","zz":[1],"~":true}`
	rank := etl.Rank{Epoch: 2, Version: "20261130090000500000000", Revision: c.Revision(), Digest: digest(content)}
	want := `{"AA":{},"Total":1.5,"_batch":"orders/20261130T100000Z","_ingested_at":"2026-11-30T11:05:07.123456000Z","_pk":"e%23u%25","_rank":"` + rank.String() +
		`","_run":"orders/20261130T100000Z/1/3.1","_sk":"7",` + strings.TrimPrefix(content, `{"AA":{},"Total":1.5,`)
	if string(res.Line) != want {
		t.Errorf("line\n%s\nwant\n%s", res.Line, want)
	}
	if string(res.Key) != "e%23u%25\x007" || string(res.Version) != rank.Version {
		t.Errorf("key %q, version %q", res.Key, res.Version)
	}
	item, err := contract.ParseLine(res.Line)
	if err != nil || item.PK != etl.JoinKey([]string{"e#u%"}) || item.SK != "7" || item.Rank != rank.String() {
		t.Errorf("item %+v, %v", item.Key, err)
	}
	if s := string(item.Doc); !json.Valid(item.Doc) || strings.Contains(s, `"_pk"`) || strings.Contains(s, `"_sk"`) || strings.Contains(s, `"_rank"`) || !strings.Contains(s, `"_run"`) {
		t.Errorf("doc %s", s)
	}

	// A deletion: key, version and audit; the faults of other columns do not matter.
	res = k.Check(page.Record{Raw: []byte(`{"Total":"bad","id":7,"at":"2026-11-30T09:00:00.5Z","":1,"zz":1,"state":"deleted"}`)}, contract.Place{}, origin())
	content = `{"_deleted":true,"at":"2026-11-30T09:00:00.500000000Z","id":7,"shop":"e#u%"}`
	rank.Digest = digest(content)
	want = `{"_batch":"orders/20261130T100000Z","_deleted":true,"_ingested_at":"2026-11-30T11:05:07.123456000Z","_pk":"e%23u%25","_rank":"` + rank.String() +
		`","_run":"orders/20261130T100000Z/1/3.1","_sk":"7",` + strings.TrimPrefix(content, `{"_deleted":true,`)
	if string(res.Line) != want {
		t.Errorf("deletion\n%s\nwant\n%s", res.Line, want)
	}
	if got := outcome(t, k.Check(page.Record{Raw: []byte(`{"state":"deleted"}`)}, contract.Place{}, origin())); got != "at:missing id:key_empty" {
		t.Errorf("a deletion without key and version: %s", got)
	}
}

func digest(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])[:etl.DigestLen]
}

// TestColumnOrder: ours stand where they belong among columns that come before them, behind them, or both.
func TestColumnOrder(t *testing.T) {
	decl := pipeline.Contract{Key: []string{"ID"}, Extra: "keep", Delete: &pipeline.Delete{From: "X", Equals: "gone"},
		Fields: []pipeline.Field{{Name: "ID", Type: "string"}}}
	k := compile(t, decl, pipeline.Target{}).NewChecker()
	for raw, want := range map[string]string{
		`{"ID":"a"}`:             "ID _batch _ingested_at _pk _rank _run",
		`{"ID":"a","b":1,"A":1}`: "A ID _batch _ingested_at _pk _rank _run b",
		`{"ID":"a","X":"gone"}`:  "ID _batch _deleted _ingested_at _pk _rank _run",
	} {
		var names []string
		for name := range membersOf(t, k.Check(page.Record{Raw: []byte(raw)}, contract.Place{}, origin()).Line) {
			names = append(names, name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: columns %s, want %s", raw, got, want)
		}
	}
}

// TestDigestCovers: audit columns do not move the digest, so an identical refetch has the same rank. // B5, B8
func TestDigestCovers(t *testing.T) {
	decl := keyed(pipeline.Field{Type: "string"})
	k := compile(t, decl, pipeline.Target{}).NewChecker()
	raw := page.Record{Raw: []byte(`{"id":"a","v":-12}`)}
	rank := func(k *contract.Checker, from contract.Origin) string {
		item, err := contract.ParseLine(k.Check(raw, contract.Place{}, from).Line)
		if err != nil {
			t.Fatal(err)
		}
		return item.Rank
	}
	first, later := origin(), origin()
	later.Batch.Slot, later.FetchedAt, later.Extraction = later.Batch.Slot.Add(time.Hour), later.FetchedAt.Add(time.Hour), 2
	if a, b := rank(k, first), rank(k, later); a != b {
		t.Errorf("ranks of one content in two batches: %s, %s", a, b)
	}
	version, err := etl.VersionInteger("-12")
	if err != nil {
		t.Fatal(err)
	}
	if got := rank(k, first); !strings.HasPrefix(got, "0001|"+version+"|0001.0001|") {
		t.Errorf("rank %s", got)
	}

	// The audit columns follow every change of the origin.
	next := first
	for _, change := range []func(){
		func() { next.FetchedAt = next.FetchedAt.Add(time.Millisecond) }, func() { next.Extraction++ }, func() { next.Batch.Slot = next.Batch.Slot.Add(time.Hour) },
	} {
		before := string(k.Check(raw, contract.Place{}, next).Line)
		change()
		if string(k.Check(raw, contract.Place{}, next).Line) == before {
			t.Errorf("the line did not follow the origin to %+v", next)
		}
	}

	// Without a version field the slot and the extraction decide, and what was a page before is no longer remembered.
	decl.Version = ""
	k = compile(t, decl, pipeline.Target{}).NewChecker()
	for _, from := range []contract.Origin{first, later, first} {
		want := "0001|" + etl.VersionSlot(from.Batch, from.Extraction) + "|0001.0001|"
		if got := rank(k, from); !strings.HasPrefix(got, want) {
			t.Errorf("rank %s, want %s…", got, want)
		}
		res := k.Check(raw, contract.Place{}, from)
		if len(res.Version) > 0 || !bytes.Contains(res.Line, []byte(`"_batch":"`+from.Batch.String()+`"`)) {
			t.Errorf("version %q of %s", res.Version, res.Line)
		}
	}
}

func TestExtra(t *testing.T) {
	raw := `{"id":"a","v":1,"b":{"y":1.0,"x":null},"a":"","_own":1,"n":null,"renamed":"r","was":"w"}`
	for extra, want := range map[string]string{
		"drop":       `{"id":"a","renamed":"w","v":1}`,
		"keep":       `{"a":"","b":{"x":null,"y":1},"id":"a","renamed":"w","v":1}`,
		"quarantine": `b:extra a:extra _own:extra n:extra renamed:extra`,
	} {
		decl := keyed(pipeline.Field{Type: "string"})
		decl.Extra = extra
		decl.Fields = append(decl.Fields, pipeline.Field{Name: "renamed", Type: "string", From: "was"})
		if got := check(t, compile(t, decl, pipeline.Target{}), raw); got != want {
			t.Errorf("extra: %s: got %s, want %s", extra, got, want)
		}
	}
	decl := keyed(pipeline.Field{Type: "string"})
	decl.Extra = "keep"
	c := compile(t, decl, pipeline.Target{})
	for raw, want := range map[string]string{
		`{"id":"a","v":1,"":1}`:                      `:bad_name`,
		`{"id":"a","v":1,"x":1e999,"y":"\ud800"}`:    `x:number_out_of_range y:bad_text`,
		`{"id":"a","v":"x","x":[[{"a":1,"a":1}]]}`:   `v:number_syntax x:duplicate_name`,
		`{"id":"a","v":1,"\u0041":1,"\"":"q"}`:       `{"\"":"q","A":1,"id":"a","v":1}`,
		`{"id":"a","v":1,"` + long(65_536) + `":1}`:  long(200) + `…:bad_name`,
		`{"id":"a","v":1,"x":1,"x":2}`:               `x:duplicate_name`,
		`{"id":"a","v":1,"\ud800":2}`:                `:bad_name`,
		`{"id":"a","v":1,"deep":` + nest(33) + `}`:   `deep:too_deep`,
		`{"id":"a","v":1,"deep":` + nest(1001) + `}`: `:too_deep`,
	} {
		if got := check(t, c, raw); got != want {
			t.Errorf("%.80s: got %.80s, want %.80s", raw, got, want)
		}
	}
}

func long(n int) string { return strings.Repeat("n", n) }
func nest(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

// TestRecords: one documented outcome for each hostile record.
func TestRecords(t *testing.T) {
	decl := keyed(pipeline.Field{Type: "string", From: "ref.id"})
	decl.Fields = append(decl.Fields, pipeline.Field{Name: "first", Type: "string", From: "list[0].name"})
	c := compile(t, decl, pipeline.Target{})
	cases := []struct{ name, raw, want string }{
		{"good", `{"ref":{"id":"a"},"v":1,"list":[{"name":"x"}]}`, `{"first":"x","id":"a","v":1}`},
		{"absent element", `{"ref":{"id":"a"},"v":1,"list":[]}`, `{"id":"a","v":1}`},
		{"way through a scalar", `{"ref":7,"v":1}`, `id:key_empty`},
		{"used name twice", `{"ref":{"id":"a"},"v":1,"v":2}`, `v:duplicate_name`},
		{"used name twice, deep", `{"ref":{"id":"a","id":"b"},"v":1}`, `ref.id:duplicate_name`},
		{"used name twice, written otherwise", `{"ref":{"id":"a"},"v":1,"\u0076":2}`, `v:duplicate_name`},
		{"unused name twice", `{"ref":{"id":"a"},"v":1,"x":1,"x":1}`, `x:duplicate_name`},
		{"case variant", `{"ref":{"id":"a"},"v":1,"V":2}`, `{"id":"a","v":1}`},
		{"array", `[]`, `:record_type`}, {"null", `null`, `:record_type`}, {"number", `1`, `:record_type`}, {"string", `"{}"`, `:record_type`},
		{"empty object", `{}`, `id:key_empty v:missing`},
		{"NaN", `{"ref":{"id":"a"},"v":NaN}`, `:json_syntax`},
		{"minus infinity", `{"ref":{"id":"a"},"v":-Infinity}`, `:json_syntax`},
		{"leading zero", `{"ref":{"id":"a"},"v":01}`, `:json_syntax`},
		{"plus", `{"ref":{"id":"a"},"v":+1}`, `:json_syntax`},
		{"trailing comma", `{"ref":{"id":"a"},"v":1,}`, `:json_syntax`},
		{"comment", `{"ref":{"id":"a"}/**/,"v":1}`, `:json_syntax`},
		{"single quotes", `{'ref':1}`, `:json_syntax`},
		{"control character", "{\"ref\":{\"id\":\"a\nb\"},\"v\":1}", `:json_syntax`},
		{"bad escape", `{"ref":{"id":"\x"},"v":1}`, `:json_syntax`},
		{"cut", `{"ref":{"id":"a"`, `:json_syntax`},
		{"two records", `{"ref":{"id":"a"},"v":1}{}`, `:json_syntax`},
		{"nothing", ``, `:json_syntax`},
		{"not UTF-8", "{\"ref\":{\"id\":\"\xff\"},\"v\":1}", `:bad_text`},
		{"encoded surrogate", "{\"ref\":{\"id\":\"\xed\xa0\x80\"},\"v\":1}", `:bad_text`},
		{"half a pair in a value not used", `{"ref":{"id":"a"},"v":1,"x":"\ud800"}`, `{"id":"a","v":1}`},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			if got := check(t, c, tc.raw); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// TestMapKey: the name under which a record stood in an object map is a value like any other.
func TestMapKey(t *testing.T) {
	decl := keyed(pipeline.Field{Type: "integer", From: "@key"})
	decl.Extra, decl.Delete = "keep", &pipeline.Delete{From: "@key", Equals: "9"}
	k := compile(t, decl, pipeline.Target{}).NewChecker()
	half := k.Check(page.Record{Key: "\xed\xa0\x80", Raw: []byte(`{"v":1}`)}, contract.Place{}, origin())
	if !bytes.Contains(half.Quarantine, []byte(`,"key_base64":"7aCA",`)) {
		t.Errorf("half a surrogate pair as key: %s", half.Quarantine)
	}
	for key, want := range map[string]string{
		"42": `{"b":2,"id":42,"v":1,"x":1}`, "": "id:key_empty", "a\"": "id:number_syntax", "9": `{"_deleted":true,"id":9,"v":1}`, "\xff": "id:bad_text",
	} {
		res := k.Check(page.Record{Key: key, Raw: []byte(`{"v":1,"x":1,"b":2}`)}, contract.Place{}, origin())
		if got := outcome(t, res); got != want {
			t.Errorf("%q: got %s, want %s", key, got, want)
		}
		if res.Quarantine != nil && !json.Valid(res.Quarantine) {
			t.Errorf("%q: %s", key, res.Quarantine)
		}
	}
}

// TestAbsurdRecords: a record that is nothing but large is refused without being written out, and its reasons are few. R9
func TestAbsurdRecords(t *testing.T) {
	const n = 300_000
	many := func(name func(i int) string, value string) string {
		var b strings.Builder
		b.WriteString(`{"id":"a","v":1`)
		for i := range n {
			b.WriteString(`,"` + name(i) + `":` + value)
		}
		return b.String() + "}"
	}
	names := many(func(i int) string { return "n" + strconv.Itoa(i) }, "1")
	few := `{"id":"a","v":1,` + strings.Join(strings.SplitAfter(names, ",")[2:5000], "") + `"z":1}`
	for _, tt := range []struct {
		name, extra, typ, raw, want string
		reasons, line               int // at most
	}{
		{"a list of bad elements", "", "list", `{"id":"a","v":1,"x":[` + strings.Repeat(`"",`, n) + `""]}`, "x:number_syntax", 1, 0},
		{"a long list", "", "list", `{"id":"a","v":1,"x":[` + strings.Repeat(`12345678,`, n) + `1]}`, "x:item_too_large", 1, 0},
		{"undeclared members", "drop", "", names, ":too_many_members", 1, 0},
		{"undeclared members to quarantine", "quarantine", "", few, "", 1001, 200_000},
		{"undeclared members to keep", "keep", "", names, ":too_many_members", 1, 0},
		{"long undeclared members", "keep", "", strings.ReplaceAll(few, ":1,\"n", `:1,"`+strings.Repeat("x", 1000)+"n"), ":item_too_large", 1, 0},
		{"a document", "", "document", `{"id":"a","v":1,"x":{"a":[` + strings.Repeat(`{"k":null},`, n) + `1]}}`, "x:item_too_large", 1, 0},
		{"a text", "", "string", `{"id":"a","v":1,"x":"` + strings.Repeat("x", 10*n) + `"}`, ":item_too_large", 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			decl := keyed(pipeline.Field{Type: "string"})
			if tt.typ != "" {
				f := pipeline.Field{Name: "x", Type: tt.typ}
				if tt.typ == "list" {
					f.Items = "integer"
				}
				decl.Fields = append(decl.Fields, f)
			}
			decl.Extra = tt.extra
			k := compile(t, decl, pipeline.Target{}).NewChecker()
			raw := []byte(tt.raw)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			res := k.Check(page.Record{Raw: raw}, contract.Place{}, origin())
			runtime.ReadMemStats(&after)
			if res.Line != nil || len(res.Reasons) > tt.reasons {
				t.Fatalf("%d reasons, line of %d bytes", len(res.Reasons), len(res.Line))
			}
			if tt.want != "" && outcome(t, res) != tt.want {
				t.Errorf("got %s, want %s", outcome(t, res), tt.want)
			}
			if tt.reasons > 1 && (len(res.Reasons) != tt.reasons || res.Reasons[tt.reasons-1].Field != "…") {
				t.Errorf("%d reasons, the last of %q", len(res.Reasons), res.Reasons[len(res.Reasons)-1].Field)
			}
			if more := len(res.Quarantine) - len(raw); more > 1024+tt.line {
				t.Errorf("the quarantine line has %d bytes beside the record", more)
			}
			// The quarantine line is a copy of the record; beside it the work is bounded.
			if used := after.TotalAlloc - before.TotalAlloc; used > uint64(len(raw))*5/4+64<<20 {
				t.Errorf("%d MiB allocated for a record of %d KiB", used>>20, len(raw)>>10)
			}
		})
	}
}

func TestDelete(t *testing.T) {
	cases := []struct {
		equals, value string
		want          bool
	}{
		{"deleted", `"deleted"`, true}, {"deleted", `"delet\u0065d"`, true}, {"deleted", `"Deleted"`, false}, {"deleted", `null`, false},
		{"true", `true`, true}, {"true", `"true"`, true}, {"true", `false`, false}, {"true", `1`, false},
		{"1", `1`, true}, {"1", `1.0`, true}, {"1.0", `10e-1`, true}, {"1", `"1"`, true}, {"1", `2`, false}, {"1", `1e999999999`, false},
		{"1e999999999", `1`, false}, {"x", `["x"]`, false}, {"x", `"\ud800"`, false}, {"", `""`, true},
	}
	for _, extra := range []string{"keep", "drop"} { // looked up alone, and with the fields
		for _, tc := range cases {
			decl := keyed(pipeline.Field{Type: "string"})
			decl.Extra, decl.Delete = extra, &pipeline.Delete{From: "meta.state", Equals: tc.equals}
			c := compile(t, decl, pipeline.Target{})
			raw := `{"id":"a","v":1,"meta":{"state":` + tc.value + `}}`
			res := c.NewChecker().Check(page.Record{Raw: []byte(raw)}, contract.Place{}, origin())
			if got := bytes.Contains(res.Line, []byte(`"_deleted":true`)); got != tc.want {
				t.Errorf("extra %s, equals %q, value %s: deleted %t, want %t", extra, tc.equals, tc.value, got, tc.want)
			}
		}
	}
}

// TestKeyLimits: keys of 2,048 and 1,024 bytes, counted after escaping, are the longest.
func TestKeyLimits(t *testing.T) {
	decl := pipeline.Contract{Key: []string{"p", "s"}, Fields: []pipeline.Field{{Name: "p", Type: "string"}, {Name: "s", Type: "string"}}}
	c := compile(t, decl, pipeline.Target{Sort: []string{"s"}})
	cases := []struct {
		name, p, s string
		want       string // "" = valid
	}{
		{"longest", strings.Repeat("p", 2048), strings.Repeat("s", 1024), ""},
		{"partition", strings.Repeat("p", 2049), "s", "p:key_too_long"},
		{"sort", "p", strings.Repeat("s", 1025), "s:key_too_long"},
		{"both", strings.Repeat("p", 2049), strings.Repeat("s", 1025), "p:key_too_long s:key_too_long"},
		{"bytes, not characters", strings.Repeat("é", 1025), "s", "p:key_too_long"},
		{"escaped", strings.Repeat("#", 683), "s", "p:key_too_long"},
		{"just escaped", strings.Repeat("#", 682), "s", ""},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			got := check(t, c, `{"p":"`+tc.p+`","s":"`+tc.s+`"}`)
			if tc.want == "" && got[0] == '{' || got == tc.want {
				return
			}
			t.Errorf("got %.60s, want %s", got, tc.want)
		})
	}
	joined := compile(t, decl, pipeline.Target{})
	if got := check(t, joined, `{"p":"`+strings.Repeat("p", 2000)+`","s":"`+strings.Repeat("s", 48)+`"}`); got != "p,s:key_too_long" {
		t.Errorf("two parts of 2,049 bytes with their delimiter: %.60s", got)
	}
}

// TestKeyParts: any texts as key parts give the key that etl.JoinKey gives, and delimiters inside them never make two keys one.
func TestKeyParts(t *testing.T) {
	c := compile(t, pipeline.Contract{Key: []string{"a", "b"}, Fields: []pipeline.Field{{Name: "a", Type: "string"}, {Name: "b", Type: "string"}}}, pipeline.Target{})
	k := c.NewChecker()
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.StringMatching(`[a#%23é"\\]{1,6}`)
		parts := []string{part.Draw(t, "a"), part.Draw(t, "b")}
		raw, err := json.Marshal(map[string]string{"a": parts[0], "b": parts[1]})
		if err != nil {
			t.Fatal(err)
		}
		res := k.Check(page.Record{Raw: raw}, contract.Place{}, origin())
		item, err := contract.ParseLine(res.Line)
		if err != nil {
			t.Fatal(err)
		}
		if want := etl.JoinKey(parts); item.PK != want || string(res.Key) != want+"\x00" || !slices.Equal(etl.SplitKey(item.PK), parts) {
			t.Fatalf("parts %q: key %q, want %q", parts, item.PK, want)
		}
	})
}

// TestItemSize: the largest item is 409,600 bytes by DynamoDB's rules. The sizes of values were measured on a server that
// keeps them.
func TestItemSize(t *testing.T) {
	sizes := map[string]int{
		`0`: 1, `1`: 2, `-1`: 3, `12`: 2, `123`: 3, `-123`: 4, `1234`: 3, `100`: 2, `0.1`: 2, `0.01`: 2, `0.001`: 2, `1.5`: 3, `12.5`: 3, `1.05`: 3, `10.5`: 3,
		`123456789012345678901234567890`: 16, `1234567890123456789012345678901`: 17, `-12345678901234567890123456789012345678`: 21, `1e125`: 2, `1e-130`: 2,
		`true`: 1, `[]`: 3, `{}`: 3, `[null]`: 5, `["x"]`: 5, `{"a":"x"}`: 6, `[["x"]]`: 9, `"é\n\u0001\""`: 5, `""`: 0,
	}
	decl := pipeline.Contract{Key: []string{"id"}, Extra: "keep", Fields: []pipeline.Field{{Name: "id", Type: "string"}, {Name: "pad", Type: "string"}}}
	k := compile(t, decl, pipeline.Target{}).NewChecker()
	run := func(value string, pad int) contract.Result {
		return k.Check(page.Record{Raw: []byte(`{"id":"a","pad":"` + strings.Repeat("p", pad) + `","x":` + value + `}`)}, contract.Place{}, origin())
	}
	base := len("x")
	for name, value := range membersOf(t, run(`""`, 0).Line) {
		if name == "x" {
			continue
		}
		var s string
		if err := json.Unmarshal(value, &s); err != nil {
			t.Fatal(err)
		}
		base += len(name) + len(s)
	}
	for value, size := range sizes {
		pad := store.MaxItemBytes - base - size
		if got := outcome(t, run(value, pad)); got[0] != '{' {
			t.Errorf("%s: an item of 409,600 bytes: %s", value, got)
		}
		if got := outcome(t, run(value, pad+1)); got != ":item_too_large" {
			t.Errorf("%s: an item of 409,601 bytes: %.80s", value, got)
		}
	}
	// Small elements: the line is much shorter than the item.
	if got := check(t, compile(t, decl, pipeline.Target{}), `{"id":"a","pad":"","x":[`+strings.Repeat("1,", 140_000)+`1]}`); got != ":item_too_large" {
		t.Errorf("a list of 140,001 numbers: %.80s", got)
	}
}

// TestQuarantineLine: the raw text is in it, exactly. // R9
func TestQuarantineLine(t *testing.T) {
	k := compile(t, keyed(pipeline.Field{Type: "string"}), pipeline.Target{}).NewChecker()
	cases := []struct{ name, raw, want string }{
		{"one line", `{ "id":"a\u0041", "v":"x" }`, `"record":{ "id":"a\u0041", "v":"x" }}`},
		{"several lines", "{\n\t\"id\":\"a\",\r\n\"v\":\"x\"}", `"record_text":"{\n\t\"id\":\"a\",\r\n\"v\":\"x\"}"}`},
		{"not JSON", `{"id"`, `"record_text":"{\"id\""}`},
		{"not UTF-8", "{\"id\":\"\xff\"}", `"record_base64":"` + base64.StdEncoding.EncodeToString([]byte("{\"id\":\"\xff\"}")) + `"}`},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			res := k.Check(page.Record{Key: "k\"", Raw: []byte(tc.raw)}, contract.Place{Part: 1, Page: 2, Index: 3}, origin())
			head := `{"batch":"orders/20261130T100000Z","place":{"part":1,"page":2,"index":3},"key":"k\"","reasons":[{"field":"`
			if got := string(res.Quarantine); !strings.HasPrefix(got, head) || !strings.HasSuffix(got, tc.want) || strings.ContainsAny(got, "\r\n") {
				t.Errorf("got %s\nwant …%s", got, tc.want)
			}
		})
	}
	res := k.Check(page.Record{Raw: []byte(`{"v":"x","w":1}`)}, contract.Place{}, origin())
	want := `{"batch":"orders/20261130T100000Z","place":{"part":0,"page":0,"index":0},"reasons":[` +
		`{"field":"id","code":"key_empty","message":"want a value: the field is part of the key"},` +
		`{"field":"v","code":"number_syntax","message":"want a number as JSON writes it"}],"record":{"v":"x","w":1}}`
	if string(res.Quarantine) != want {
		t.Errorf("got %s\nwant %s", res.Quarantine, want)
	}
}

// TestGolden pins the output bytes of this engine version. A change of the bytes needs a new EngineVersion, and with it a
// new file: write it with -update, and delete the old one.
func TestGolden(t *testing.T) {
	raws, err := os.ReadFile("testdata/records.ndjson")
	if err != nil {
		t.Fatal(err)
	}
	decl := orders()
	decl.Extra = "keep"
	decl.Fields = append(decl.Fields, pipeline.Field{Name: "tags", Type: "list", Clean: []string{"nfc"}}, pipeline.Field{Name: "day", Type: "date"},
		pipeline.Field{Name: "seen", Type: "timestamp", Unit: "ms"}, pipeline.Field{Name: "de", Type: "decimal", DecimalComma: true, Thousands: "point"},
		pipeline.Field{Name: "here", Type: "string", Nullable: new(false)})
	k := compile(t, decl, pipeline.Target{Sort: []string{"order_id"}}).NewChecker()
	var got []byte
	for i, raw := range bytes.Split(bytes.TrimSpace(raws), []byte{'\n'}) {
		res := k.Check(page.Record{Index: i, Raw: raw}, contract.Place{Index: i}, origin())
		got = append(append(append(got, res.Line...), res.Quarantine...), '\n')
	}
	name := fmt.Sprintf("testdata/engine-%d.golden", contract.EngineVersion)
	if *update {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatalf("%v (run the test with -update)", err)
	}
	gotLines, wantLines := bytes.Split(got, []byte{'\n'}), bytes.Split(want, []byte{'\n'})
	for i := range max(len(gotLines), len(wantLines)) {
		if i >= len(gotLines) || i >= len(wantLines) || !bytes.Equal(gotLines[i], wantLines[i]) {
			t.Fatalf("line %d changed: raise EngineVersion\ngot  %s\nwant %s", i+1, at(gotLines, i), at(wantLines, i))
		}
	}
}

func at(lines [][]byte, i int) []byte {
	if i < len(lines) {
		return lines[i]
	}
	return []byte("(none)")
}

// TestAllocations: a checked record costs at most six allocations.
func TestAllocations(t *testing.T) {
	records, _ := orderRecords(50)
	k := compile(t, orders(), pipeline.Target{}).NewChecker()
	i := 0
	if n := testing.AllocsPerRun(500, func() {
		k.Check(page.Record{Raw: records[i%len(records)]}, contract.Place{}, origin())
		i++
	}); n > 6 {
		t.Errorf("%.0f allocations a record", n)
	}
}

// FuzzCheck: whatever comes in, exactly one line comes out, the same one every time, canonical or with the raw text in it.
func FuzzCheck(f *testing.F) {
	for _, raw := range []string{
		`{"order_id":"a","updated_at":"2026-11-30T10:00:00Z","valor":"1.5"}`, `{"order_id":1e2,"x":{"b":[1,{}],"a":"\ud83d\ude00"}}`, `[]`, `{"a":1,"a":2}`, "{\n}", "\xff",
		`{"status":"deleted","order_id":"a","updated_at":"2026-11-30T10:00:00Z"}`,
	} {
		f.Add([]byte(raw), "key")
	}
	codes := map[string]bool{}
	for _, c := range contract.Codes() {
		codes[c.Code] = true
	}
	var contracts []*contract.Contract
	for _, extra := range []string{"keep", "drop", "quarantine"} {
		decl := orders()
		decl.Extra = extra
		decl.Fields = append(decl.Fields, pipeline.Field{Name: "tags", Type: "list", Items: "decimal"}, pipeline.Field{Name: "day", Type: "date"},
			pipeline.Field{Name: "seen", Type: "timestamp", Unit: "s"}, pipeline.Field{Name: "k", Type: "string", From: "@key"})
		contracts = append(contracts, compile(f, decl, pipeline.Target{Sort: []string{"order_id"}}))
	}
	f.Fuzz(func(t *testing.T, raw []byte, key string) {
		for _, c := range contracts {
			k := c.NewChecker()
			res := k.Check(page.Record{Key: key, Raw: raw}, contract.Place{}, origin())
			outcome(t, res)
			line, quarantine := bytes.Clone(res.Line), bytes.Clone(res.Quarantine)
			again := k.Check(page.Record{Key: key, Raw: bytes.Clone(raw)}, contract.Place{}, origin())
			if !bytes.Equal(again.Line, line) || !bytes.Equal(again.Quarantine, quarantine) {
				t.Fatalf("not the same twice:\n%s%s\n%s%s", line, quarantine, again.Line, again.Quarantine)
			}
			if line != nil {
				checkLine(t, line, string(again.Key))
			} else {
				checkQuarantine(t, quarantine, raw, codes)
			}
		}
	})
}

// checkLine holds a valid line against the canonical form.
func checkLine(t *testing.T, line []byte, key string) {
	t.Helper()
	if !json.Valid(line) || !utf8.Valid(line) || bytes.ContainsAny(line, "\r\n") {
		t.Fatalf("not a line of JSON: %q", line)
	}
	last := ""
	for name := range membersOf(t, line) {
		if name <= last {
			t.Fatalf("%q after %q in %s", name, last, line)
		}
		last = name
	}
	item, err := contract.ParseLine(line)
	if err != nil {
		t.Fatal(err)
	}
	if item.PK+"\x00"+item.SK != key {
		t.Fatalf("key %q of %s", key, line)
	}
	// The item holds all the line held.
	whole, rest := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if json.Unmarshal(line, &whole) != nil || json.Unmarshal(item.Doc, &rest) != nil || len(rest)+3 != len(whole) {
		t.Fatalf("doc %s of line %s", item.Doc, line)
	}
}

// checkQuarantine holds a quarantine line against the raw record.
func checkQuarantine(t *testing.T, line, raw []byte, codes map[string]bool) {
	t.Helper()
	var q struct {
		Reasons []contract.Reason
		Record  json.RawMessage
		Text    *string `json:"record_text"`
		Base64  []byte  `json:"record_base64"`
	}
	if !utf8.Valid(line) || bytes.ContainsAny(line, "\r\n") {
		t.Fatalf("not one line: %q", line)
	}
	if err := json.Unmarshal(line, &q); err != nil {
		t.Fatalf("%v: %q", err, line)
	}
	for _, r := range q.Reasons {
		if !codes[r.Code] || r.Message == "" {
			t.Fatalf("reason %+v", r)
		}
	}
	kept := slices.Concat(q.Record, q.Base64)
	if q.Text != nil {
		kept = []byte(*q.Text)
	}
	if !bytes.Equal(kept, bytes.TrimFunc(raw, func(r rune) bool { return q.Record != nil && strings.ContainsRune(" \t", r) })) {
		t.Fatalf("kept %q of %q", kept, raw)
	}
}
