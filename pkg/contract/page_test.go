package contract_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/page"
	"github.com/onceload/onceload/pkg/pipeline"
)

// TestPaging: however records are cut into pages, the valid lines are the same bytes, and each record is accounted for.
// // B7, B12
func TestPaging(t *testing.T) {
	c := compile(t, orders(), pipeline.Target{})
	good, _ := orderRecords(3)
	pool := []string{
		string(good[0]), string(good[1]), string(good[2]), `{}`, `[]`, `null`, `{"order_id":"a","updated_at":"2026-11-30T10:00:00Z","valor":"x","new":1}`,
		`{"order_id":"d","updated_at":"2026-11-30T10:00:00Z","status":"deleted","customer":{"phone":1}}`, `{"x\ud800":1}`, `{"order_id":"b","order_id":"b"}`,
		`{"order_id":"\ud800","updated_at":"2026-11-30T10:00:00Z","customer":{"email":null,"phone":""}}`,
	}
	rapid.Check(t, func(t *rapid.T) {
		records := rapid.SliceOfN(rapid.SampledFrom(pool), 1, 40).Draw(t, "records")
		run := func(size int) (valid, reasons []byte, drift contract.Drift) {
			k, n, seen := c.NewChecker(), 0, 0
			for first := 0; first < len(records); first += size {
				body := []byte("[" + strings.Join(records[first:min(first+size, len(records))], ",") + "]")
				count, err := k.Page(page.Layout{}, body, 0, n, origin(), func(res contract.Result) error {
					seen++
					valid = append(append(valid, res.Line...), '\n')
					for _, r := range res.Reasons {
						reasons = fmt.Appendf(reasons, "%+v ", r)
					}
					var at struct{ Place contract.Place }
					if res.Quarantine != nil && (json.Unmarshal(res.Quarantine, &at) != nil || at.Place != res.Place || at.Place.Page != n) {
						t.Fatalf("page %d: %s", n, res.Quarantine)
					}
					return nil
				})
				if err != nil || count != min(size, len(records)-first) {
					t.Fatalf("%d records, %v", count, err)
				}
				n++
			}
			if seen != len(records) {
				t.Fatalf("%d results of %d records", seen, len(records))
			}
			drift = k.Drift()
			for _, f := range [][]contract.FieldDrift{drift.Fields, drift.New} {
				for i := range f {
					f[i].Example = nil // a place
				}
			}
			return valid, reasons, drift
		}
		v1, r1, d1 := run(1)
		v2, r2, d2 := run(rapid.IntRange(1, 41).Draw(t, "size"))
		if !bytes.Equal(v1, v2) || !bytes.Equal(r1, r2) || !reflect.DeepEqual(d1, d2) {
			t.Fatalf("not the same:\n%s\n%s\n%s\n%s\n%+v\n%+v", v1, v2, r1, r2, d1, d2)
		}
	})
}

// FuzzPage: of any page that can be read, every record has one outcome, the one Check gives it alone.
func FuzzPage(f *testing.F) {
	for _, body := range []string{
		`{"data":[{"order_id":"a","updated_at":"2026-11-30T10:00:00Z"},{},[],null,{"a":1,"a":2},{"x\ud800":{}}]}`, `{"data":{"k":{"order_id":1},"\u006b":{}}}`,
		"{\"order_id\":1}\r\n\n[1]\n", "x\n{\"order_id\":\"a\"}\n\"\r\n", `{"data":[{"customer":{"email":"a","x":1,"x":2}}]}`, `{"data":[` + strings.Repeat(`{"order_id":"a","v":`, 3) + `1}}}]}`, `[`,
	} {
		f.Add([]byte(body))
	}
	decl := orders()
	decl.Extra = "keep"
	decl.Fields = append(decl.Fields, pipeline.Field{Name: "k", Type: "string", From: "@key"}, pipeline.Field{Name: "de", Type: "decimal", DecimalComma: true, Thousands: "point"})
	c := compile(f, decl, pipeline.Target{})
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, layout := range []page.Layout{{Path: page.Member("data"), Map: true}, {NDJSON: true}, {}} {
			want, wantErr := layout.Records(body, nil)
			k, alone := c.NewChecker(), c.NewChecker()
			var valid, quarantined int
			i := 0
			var raws []page.Record
			_, _ = layout.Records(body, func(r page.Record) error {
				raws = append(raws, r)
				return nil
			})
			n, err := k.Page(layout, body, 1, 2, origin(), func(res contract.Result) error {
				outcome(t, res)
				again := alone.Check(raws[i], contract.Place{Part: 1, Page: 2, Index: i}, origin())
				// What is no JSON may be described otherwise: alone it is a document, with a charset.
				broken := len(res.Reasons) == 1 && len(again.Reasons) == 1 && res.Reasons[0].Code == contract.CodeSyntax && again.Reasons[0].Code == contract.CodeSyntax
				if !bytes.Equal(res.Line, again.Line) || !broken && !bytes.Equal(res.Quarantine, again.Quarantine) || res.Place.Index != i {
					t.Fatalf("record %d %s\nin its page %s%s\nalone       %s%s", i, raws[i].Raw, res.Line, res.Quarantine, again.Line, again.Quarantine)
				}
				i++
				if res.Line != nil {
					valid++
				} else {
					quarantined++
				}
				return nil
			})
			if n != want || (err == nil) != (wantErr == nil) || err == nil && valid+quarantined != want {
				t.Fatalf("%d records (%v), valid %d, quarantined %d, want %d (%v)", n, err, valid, quarantined, want, wantErr)
			}
			if d := k.Drift(); !reflect.DeepEqual(d, alone.Drift()) || d.Records+d.Deleted > int64(i) {
				t.Fatalf("drift %+v, alone %+v", d, alone.Drift())
			}
		}
	})
}

// TestBadLines: of a page of lines, one that is no JSON is quarantined as it is and the others pass. R9
func TestBadLines(t *testing.T) {
	k := compile(t, keyed(pipeline.Field{Type: "string"}), pipeline.Target{}).NewChecker()
	body := "{\"id\":\"a\",\"v\":1}\n{\"id\":\"b\",\"v\":\r\n{\"id\":\"\xff\",\"v\":2}\n" + strings.Repeat("[", page.MaxDepth+1) + "\n{\"id\":\"c\",\"v\":3}"
	var got []string
	n, err := k.Page(page.Layout{NDJSON: true}, []byte(body), 0, 0, origin(), func(res contract.Result) error {
		got = append(got, outcome(t, res))
		if res.Place.Index == 1 && !bytes.Contains(res.Quarantine, []byte(`"record_text":"{\"id\":\"b\",\"v\":"`)) || res.Place.Index == 2 && !bytes.Contains(res.Quarantine, []byte(`"record_base64":`)) {
			t.Errorf("%s", res.Quarantine)
		}
		return nil
	})
	want := []string{`{"id":"a","v":1}`, ":json_syntax", ":bad_text", ":too_deep", `{"id":"c","v":3}`}
	if n != 5 || err != nil || !slices.Equal(got, want) {
		t.Errorf("%d records, %v: %q", n, err, got)
	}
	if d := k.Drift(); d.Records != 2 {
		t.Errorf("drift of %d records", d.Records)
	}
}

// TestPageErrors: an error of yield ends the page; a bad page is an error whatever was yielded before.
func TestPageErrors(t *testing.T) {
	k := compile(t, keyed(pipeline.Field{Type: "string"}), pipeline.Target{}).NewChecker()
	stop := errors.New("stop")
	if n, err := k.Page(page.Layout{}, []byte(`[{},{}]`), 0, 0, origin(), func(contract.Result) error { return stop }); n != 0 || !errors.Is(err, stop) {
		t.Errorf("stopped: %d, %v", n, err)
	}
	var fault *page.Fault
	yielded := 0
	_, err := k.Page(page.Layout{}, []byte(`[{},{"a":}]`), 0, 0, origin(), func(contract.Result) error { yielded++; return nil })
	if !errors.As(err, &fault) || yielded != 1 {
		t.Errorf("a bad page: %d yielded, %v", yielded, err)
	}
}

// TestDrift: what is new, missing, null and of another type is counted with a place, and never a value. // B12
func TestDrift(t *testing.T) {
	decl := keyed(pipeline.Field{Type: "string"})
	decl.Delete = &pipeline.Delete{From: "state", Equals: "gone"}
	decl.Fields = append(decl.Fields,
		pipeline.Field{Name: "email", Type: "string", From: "customer.email"}, pipeline.Field{Name: "total", Type: "decimal"}, pipeline.Field{Name: "paid", Type: "boolean"},
		pipeline.Field{Name: "at", Type: "timestamp", Unit: "s"}, pipeline.Field{Name: "day", Type: "date"}, pipeline.Field{Name: "tags", Type: "list"}, pipeline.Field{Name: "doc", Type: "document"},
		pipeline.Field{Name: "de", Type: "decimal", DecimalComma: true}, pipeline.Field{Name: "sku", Type: "string", From: "doc.sku"})
	k := compile(t, decl, pipeline.Target{}).NewChecker()
	body := `[
		{"id":"secret","v":1,"customer":{"email":"secret","phone":"secret"},"total":1.5,"paid":true,"at":1,"day":"2026-11-30","tags":["secret"],"doc":{"x":"secret"},"de":"1,5","state":"new"},
		{"id":"secret","v":1,"customer":{"email":null},"total":"1.5","paid":"yes","at":"1","day":20261130,"tags":"secret","doc":7,"de":1.5},
		{"id":7,"v":"1","customer":[],"wide.name":{"secret":1},"total":null},
		{"id":"secret","v":1,"state":"gone","odd":1},
		["secret"]]`
	if _, err := k.Page(page.Layout{}, []byte(body), 3, 2, origin(), func(contract.Result) error { return nil }); err != nil {
		t.Fatal(err)
	}
	d := k.Drift()
	text, err := json.Marshal(d)
	if err != nil || bytes.Contains(text, []byte("secret")) {
		t.Errorf("%v: %s", err, text)
	}
	got := map[string]string{}
	for _, f := range append(d.Fields, d.New...) {
		at := "-"
		if f.Example != nil {
			at = fmt.Sprint(f.Example.Index)
			if f.Example.Part != 3 || f.Example.Page != 2 {
				t.Errorf("%s: example %+v", f.Path, f.Example)
			}
		}
		types, err := json.Marshal(f.Types)
		if err != nil {
			t.Fatal(err)
		}
		got[f.Path] = fmt.Sprintf("%s missing %d %g null %d %g retyped %d at %s", types, f.Missing, f.MissingRate, f.Null, f.NullRate, f.Retyped, at)
	}
	want := map[string]string{
		"id":             `{"number":1,"string":2} missing 0 0 null 0 0 retyped 1 at 2`,
		"v":              `{"number":2,"string":1} missing 0 0 null 0 0 retyped 1 at 2`,
		"customer.email": `{"null":1,"string":1} missing 1 0.333333 null 1 0.333333 retyped 0 at 2`,
		"total":          `{"null":1,"number":1,"string":1} missing 0 0 null 1 0.333333 retyped 1 at 1`,
		"paid":           `{"boolean":1,"string":1} missing 1 0.333333 null 0 0 retyped 1 at 1`,
		"at":             `{"number":1,"string":1} missing 1 0.333333 null 0 0 retyped 1 at 1`,
		"day":            `{"number":1,"string":1} missing 1 0.333333 null 0 0 retyped 1 at 1`,
		"tags":           `{"array":1,"string":1} missing 1 0.333333 null 0 0 retyped 1 at 1`,
		"doc":            `{"number":1,"object":1} missing 1 0.333333 null 0 0 retyped 0 at 2`,
		"de":             `{"number":1,"string":1} missing 1 0.333333 null 0 0 retyped 0 at 2`,
		"doc.sku":        `{} missing 3 1 null 0 0 retyped 0 at 0`,
		"customer.phone": `{"string":1} missing 2 0.666667 null 0 0 retyped 0 at 0`,
		`wide\.name`:     `{"object":1} missing 2 0.666667 null 0 0 retyped 0 at 2`,
	}
	for path, w := range want {
		if got[path] != w {
			t.Errorf("%s: got %s, want %s", path, got[path], w)
		}
		delete(got, path)
	}
	if len(got) > 0 || d.Records != 3 || d.Deleted != 1 || d.Beyond != 0 {
		t.Errorf("more drift: %v, %+v", got, d)
	}
}

// TestDriftBounds: a source that makes up names fills neither memory nor the report.
func TestDriftBounds(t *testing.T) {
	k := compile(t, keyed(pipeline.Field{Type: "string"}), pipeline.Target{}).NewChecker()
	for i := range page.MaxExtras + 7 {
		k.Check(page.Record{Raw: fmt.Appendf(nil, `{"id":"a","v":1,"made%d":1,"made0":2}`, i)}, contract.Place{Index: i}, origin())
	}
	if d := k.Drift(); len(d.New) != page.MaxExtras || d.Beyond != 7 || d.New[0].Path != "made0" || d.New[0].Missing != 0 {
		t.Errorf("%d new, %d beyond, first %+v", len(d.New), d.Beyond, d.New[0])
	}
}
