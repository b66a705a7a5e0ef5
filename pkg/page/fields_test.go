package page_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/onceload/onceload/pkg/page"
)

// fields prepares paths that are known to be good.
func fields(t testing.TB, paths ...string) (*page.Fields, []page.Value) {
	t.Helper()
	parsed := make([]page.Path, len(paths))
	for i, p := range paths {
		parsed[i] = path(t, p)
	}
	return page.NewFields(parsed), make([]page.Value, len(paths))
}

func TestScan(t *testing.T) {
	tests := []struct {
		name, raw    string
		paths        []string
		want, extras string // values with bars, - for missing; extras as name=raw
		dup          string
	}{
		{name: "in any order", raw: `{"b":2,"a":1}`, paths: []string{"a", "b", "c"}, want: "1|2|-"},
		{name: "nested", raw: `{"c":{"x":{"y":"deep"},"z":0},"d":1}`, paths: []string{"c.x.y", "c.z"}, want: `"deep"|0`, extras: "d=1"},
		{name: "a path and one below it", raw: `{"c":{"x":1}}`, paths: []string{"c", "c.x"}, want: `{"x":1}|1`},
		{name: "the same path twice", raw: `{"a":1}`, paths: []string{"a", "a"}, want: "1|1"},
		{name: "the record itself", raw: ` {"a":1} `, paths: []string{"", "a"}, want: `{"a":1}|1`},
		{name: "indexes", raw: `{"i":[{"s":"A"},{"s":"B"},3]}`, paths: []string{"i[1].s", "i[0].s", "i[2]", "i[3]", "i"}, want: `"B"|"A"|3|-|[{"s":"A"},{"s":"B"},3]`},
		{name: "an array record", raw: `["k",{"a":1}]`, paths: []string{"[0]", "[1].a"}, want: `"k"|1`},
		{name: "a record that is no object", raw: `"x"`, paths: []string{"a", "", "[0]"}, want: `-|"x"|-`},
		{name: "escaped dot", raw: `{"a.b":1,"a":{"b":2}}`, paths: []string{`a\.b`, "a.b"}, want: "1|2"},
		{name: "an index is no name", raw: `{"a":{"0":1}}`, paths: []string{"a[0]"}, want: "-"},
		{name: "a name is no index", raw: `{"a":[1]}`, paths: []string{"a.0"}, want: "-"},
		{name: "below a scalar and null", raw: `{"a":1,"b":null}`, paths: []string{"a.x", "b.x", "b"}, want: "-|-|null"},
		{name: "@key", raw: `{"@key":1}`, paths: []string{"@key", `\@key`}, want: "-|1"},
		{name: "escaped names", raw: `{"\u0061":1,"x\u0079":2,"c":{"\u0064":3}}`, paths: []string{"a", "c.d"}, want: "1|3", extras: "xy=2"},
		{name: "names that stand twice", raw: `{"a":1,"a":2}`, paths: []string{"a"}, want: "1", dup: "a"},
		{name: "twice, once escaped", raw: `{"a":1,"\u0061":2}`, paths: []string{"a"}, want: "1", dup: "a"},
		{name: "twice on a path", raw: `{"c":{"x":1,"x":2}}`, paths: []string{"c.x"}, want: "1", dup: "c.x"},
		{name: "twice above a path", raw: `{"c":{"x":1},"c":{"x":2,"y":3}}`, paths: []string{"c.x", "c.y"}, want: "1|-", dup: "c"},
		{name: "twice in an element", raw: `{"i":[{"s":1,"s":2}]}`, paths: []string{"i[0].s"}, want: "1", dup: "i[0].s"},
		{name: "twice among the extras", raw: `{"x.y":1,"z":0,"x.y":2}`, want: "", extras: "x.y=1|z=0", dup: `x\.y`},
		{name: "twice where nobody looks", raw: `{"a":{"q":1,"q":2},"e":{"r":1,"r":2}}`, paths: []string{"a.b"}, want: "-", extras: `a.q=1|e={"r":1,"r":2}`},
		{name: "undeclared inside", raw: `{"a":{"b":1,"x.y":2,"c":{"d":3}},"i":[{"s":1,"t":2}]}`, paths: []string{"a.b", "i[0].s"}, want: "1|1", extras: `a.x\.y=2|a.c={"d":3}|i[0].t=2`},
		{name: "inside of what is declared", raw: `{"a":{"b":1,"x":2},"i":[{"s":1,"t":2}]}`, paths: []string{"a.b", "a", "i[0].s", "i"}, want: `1|{"b":1,"x":2}|1|[{"s":1,"t":2}]`},
		{name: "the same name in two objects", raw: `{"a":{"id":1},"b":{"id":2},"id":3}`, paths: []string{"a.id", "b.id", "id"}, want: "1|2|3"},
		{name: "the first of two duplicates is told", raw: `{"a":1,"b":1,"b":1,"a":1}`, paths: []string{"a", "b"}, want: "1|1", dup: "b"},
		{name: "half a pair where nobody looks", raw: `{"a":{"\ud800":1,"b":2}}`, paths: []string{"a.b", "a"}, want: `2|{"\ud800":1,"b":2}`},
		{name: "empty name", raw: `{"":1}`, paths: []string{"a"}, want: "-", extras: "=1"},
		{name: "empty name twice", raw: `{"":1,"":2}`, paths: []string{"a"}, want: "-", extras: "=1", dup: `""`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, out := fields(t, tt.paths...)
			for range 2 { // a second time on what the first has left in the buffers
				var extras, values []string
				dup, err := f.Scan([]byte(tt.raw), out, func(e page.Extra) {
					name := f.ExtraPath(e.ID).String()
					if e.Top {
						name = string(e.Name)
					}
					extras = append(extras, name+"="+string(e.Value.Raw))
				})
				for _, v := range out {
					values = append(values, string(v.Raw))
					if v.Kind == page.Missing {
						values[len(values)-1] = "-"
					}
				}
				if got := strings.Join(values, "|"); got != tt.want || dup != tt.dup || err != nil {
					t.Errorf("got %s, dup %q, %v; want %s, dup %q", got, dup, err, tt.want, tt.dup)
				}
				if got := strings.Join(extras, "|"); got != tt.extras {
					t.Errorf("extras %s, want %s", got, tt.extras)
				}
				if again, err := f.Scan([]byte(tt.raw), out, nil); again != dup || err != nil {
					t.Errorf("without extra: dup %q, %v", again, err)
				}
			}
		})
	}
}

// What one record has, the next one does not inherit.
func TestScanForgets(t *testing.T) {
	f, out := fields(t, "a.b", "c")
	for _, raw := range []string{`{"a":{"b":1},"c":2}`, `{}`} {
		if dup, err := f.Scan([]byte(raw), out, nil); dup != "" || err != nil {
			t.Fatal(dup, err)
		}
	}
	if out[0].Kind != page.Missing || out[0].Raw != nil || out[1].Kind != page.Missing {
		t.Errorf("an empty record has %s and %s", out[0].Raw, out[1].Raw)
	}
}

// A record of more members than anyone means has a fault; the next record has none.
func TestScanCrowd(t *testing.T) {
	f, out := fields(t, "a.b")
	crowd := func(n int) []byte {
		b := []byte(`{"a":{"b":1`)
		for i := range n {
			b = fmt.Appendf(b, `,"n%d":0`, i)
		}
		return append(b, "}}"...)
	}
	for _, tt := range []struct {
		members int
		fault   bool
	}{{page.MaxExtras, false}, {page.MaxExtras + page.MaxBeyond, false}, {page.MaxExtras + page.MaxBeyond + 1, true}, {5, false}} {
		told := 0
		_, err := f.Scan(crowd(tt.members), out, func(page.Extra) { told++ })
		var fault *page.Fault
		if errors.As(err, &fault) != tt.fault || tt.fault && fault.Code != page.CodeMembers || told > page.MaxExtras+page.MaxBeyond {
			t.Errorf("%d members: %d told, %v", tt.members, told, err)
		}
	}
}

// A name that was met in good text does not pass in text that is bad.
func TestScanGuessesNoFault(t *testing.T) {
	for _, tt := range []struct{ good, bad string }{
		{`{"a\u0001":1}`, "{\"a\x01\":1}"},
		{`{"a\"b":1}`, `{"a"b":1}`},
		{`{"a\\":1}`, `{"a\":1}`},
		{`{"a\ud800":1}`, "{\"a\xed\xa0\x80\":1}"},
		{`{"a":1,"b":2}`, `{"a":1 "b":2}`},
		{`{"a":1,"b":2}`, `{"a":1,,"b":2}`},
		{`{"a":1,"b":2}`, `{,"a":1,"b":2}`},
		{`{"a":1,"b":2}`, `{"a":1,"b":`},
		{`{"a":1,"b":2}`, `{"a":1,"b":}`},
	} {
		f, out := fields(t, "a.x")
		for range 3 {
			if _, err := f.Scan([]byte(tt.good), out, nil); err != nil && !strings.Contains(err.Error(), "surrogate") {
				t.Fatalf("%s: %v", tt.good, err)
			}
		}
		if _, err := f.Scan([]byte(tt.bad), out, nil); err == nil {
			t.Errorf("%s passes after %s", tt.bad, tt.good)
		}
	}
}

// Many extras make the set of names grow; a name that stands twice is found wherever it is.
func TestScanManyNames(t *testing.T) {
	f, out := fields(t, "n7")
	sizes := []int{page.MaxExtras + 50, 5, page.MaxExtras + 90}
	for n := range 300 {
		sizes = append(sizes, n)
	}
	for _, n := range sizes {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"n%d":%d,`, i, i)
		}
		calls := 0
		dup, err := f.Scan([]byte("{"+b.String()+`"last":0}`), out, func(page.Extra) { calls++ })
		want := n + 1
		if n > 7 {
			want-- // n7 is no extra
		}
		if dup != "" || err != nil || calls != want {
			t.Fatalf("%d names: dup %q, %v, %d extras, want %d", n, dup, err, calls, want)
		}
		if n == 0 {
			continue
		}
		twice := "n" + strconv.Itoa(n/2)
		if dup, err = f.Scan([]byte("{"+b.String()+`"`+twice+`":0}`), out, nil); dup != twice || err != nil {
			t.Fatalf("%d names, %s twice: dup %q, %v", n, twice, dup, err)
		}
	}
}

func TestScanFaults(t *testing.T) {
	f, out := fields(t, "a.b", "i[1]")
	for raw, want := range map[string]string{
		"":                           page.CodeSyntax,
		`{"a":{"b":01}}`:             page.CodeSyntax,
		`{"a":{"b":1}`:               page.CodeSyntax,
		`{"a":1}x`:                   page.CodeSyntax,
		`{"i":[1 2]}`:                page.CodeSyntax,
		`{"i":[1,`:                   page.CodeSyntax,
		`{"x":"` + "\xff" + `"}`:     page.CodeUTF8,
		strings.Repeat("[", 1001):    page.CodeDepth,
		`{"ok":1,"x\ud800":1,"a":1}`: page.CodeSurrogate,
	} {
		_, err := f.Scan([]byte(raw), out, nil)
		var fault *page.Fault
		if !errors.As(err, &fault) || fault.Code != want {
			t.Errorf("%.40q: %v, want code %s", raw, err, want)
		}
		if dup, err := f.Scan([]byte(`{"a":{"b":1}}`), out, nil); dup != "" || err != nil || string(out[0].Raw) != "1" {
			t.Errorf("a good record after %.40q: %v, dup %q, %v", raw, out[0], dup, err)
		}
	}
	_, err := f.Scan([]byte(`{"ok":1, "x\ud800":1,"y\ud800":2}`), out, nil)
	var fault *page.Fault
	if !errors.As(err, &fault) || fault.Offset != 9 {
		t.Errorf("half a pair in a name: %v, want offset 9", err)
	}
}

func TestScanAllocates(t *testing.T) {
	raw := []byte(`{"a":1,"b":{"c":[1,{"d":"x"}]},"e\u0065":true,"f":null,"g":[],"h":{}}`)
	f, out := fields(t, "a", "b.c[1].d", "f")
	extra := func(page.Extra) {}
	if n := testing.AllocsPerRun(100, func() {
		if dup, err := f.Scan(raw, out, extra); dup != "" || err != nil {
			t.Fatal(dup, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a record, want none", n)
	}
}

// TestScanPage: one pass over a page finds in each record what a pass over the record alone finds.
func TestScanPage(t *testing.T) {
	records := []string{
		`{"a":{"b":1,"x":2},"c":"p"}`, `{}`, `{"c":"q\n","a":null,"new":[1]}`, `"text"`, `{"c":1,"c":2}`, `{"x\ud800":1,"c":"after"}`, `{"a":{"b":[{"c":1}]},"new":2,"newer":3}`,
	}
	for body, layout := range map[string]page.Layout{
		`{"n":0,"data": [ ` + strings.Join(records, " , ") + `],"z":1}`: {Path: page.Member("data")},
		strings.Join(records, "\r\n\n"):                                 {NDJSON: true},
	} {
		f, out := fields(t, "a.b", "c", "a")
		alone, want := fields(t, "a.b", "c", "a")
		n, err := layout.Scan([]byte(body), f, out, nil, func(rec page.Record, dup string, fault error) error {
			if string(rec.Raw) != records[rec.Index] {
				t.Errorf("record %d is %s", rec.Index, rec.Raw)
			}
			wantDup, wantFault := alone.Scan(rec.Raw, want, nil)
			if dup != wantDup || fmt.Sprint(fault) != fmt.Sprint(wantFault) || !reflect.DeepEqual(out, want) {
				t.Errorf("%s: %v, %q, %v; alone %v, %q, %v", rec.Raw, out, dup, fault, want, wantDup, wantFault)
			}
			return nil
		})
		if n != len(records) || err != nil {
			t.Errorf("%d records, %v", n, err)
		}
	}
	stop := errors.New("stop")
	f, out := fields(t, "a")
	if n, err := (page.Layout{}).Scan([]byte(`[{"a":1},2]`), f, out, nil, func(page.Record, string, error) error { return stop }); n != 0 || !errors.Is(err, stop) {
		t.Errorf("stopped: %d, %v", n, err)
	}
	var bad *page.Fault
	if _, err := (page.Layout{}).Scan([]byte(`[{"a":01}]`), f, out, nil, func(page.Record, string, error) error { return nil }); !errors.As(err, &bad) || bad.Offset != 7 {
		t.Errorf("a bad page: %v", err)
	}
}

// FuzzScan: what Scan finds, a walk over the tree of encoding/json finds too, and nothing else.
func FuzzScan(f *testing.F) {
	for _, s := range []string{`{"a":1,"b":{"c":[1,{"d":2}]}}`, `{"a.b":1,"a":{"b":2}}`, `{"a":1,"a":2}`, `[{"a":1},[2]]`, `{"\u0061":[{}],"x":"\ud800"}`, `{"b":{"c":[],"c":1}}`, `"a"`} {
		f.Add([]byte(s), "b.c[1].d", "a")
	}
	f.Fuzz(func(t *testing.T, raw []byte, one, two string) {
		names := []string{"a", "a.b", `a\.b`, "b.c[0]", "b.c[1].d", "b", "[0].a", "[1][0]", ""}
		for _, s := range []string{one, two} {
			if _, err := page.ParsePath(s); err == nil {
				names = append(names, s)
			}
		}
		f, out := fields(t, names...)
		var extras []string
		dup, err := f.Scan(raw, out, func(e page.Extra) {
			if e.Top {
				extras = append(extras, string(e.Name))
			}
		})
		if err != nil {
			var fault *page.Fault
			if !errors.As(err, &fault) || fault.Malformed() && json.Valid(raw) && utf8.Valid(raw) && fault.Code != page.CodeDepth {
				t.Fatalf("%v of a good text", err)
			}
			return
		}
		if !json.Valid(raw) && !strings.HasPrefix(string(raw), "\ufeff") {
			t.Fatal("a bad text passes")
		}
		for i, s := range names {
			p := path(t, s)
			v, err := page.Find(raw, p)
			if err != nil || v.Kind != out[i].Kind || string(v.Raw) != string(out[i].Raw) {
				t.Fatalf("%q: Scan has %s, Find %s, %v", s, out[i].Raw, v.Raw, err)
			}
		}
		if dup != "" || strings.Contains(string(raw), `\ud`) || strings.Contains(string(raw), `\uD`) || strings.HasPrefix(string(raw), "\ufeff") {
			return // encoding/json keeps the last of two and replaces half a pair
		}
		for i, s := range names {
			want, found := naive(raw, s)
			if s == "@key" {
				found = false
			}
			switch {
			case found != (out[i].Kind != page.Missing):
				t.Fatalf("%q: found %v, want %v", s, !found, found)
			case found && !reflect.DeepEqual(tree(t, out[i].Raw), want):
				t.Fatalf("%q: %s, want %v", s, out[i].Raw, want)
			}
		}
		top := map[string]json.RawMessage{}
		if json.Unmarshal(raw, &top) != nil {
			top = nil
		}
		for _, s := range names {
			if st := split(s); len(st) > 0 && s != "@key" && st[0].index < 0 {
				delete(top, st[0].name)
			}
		}
		slices.Sort(extras)
		if want := slices.Sorted(maps.Keys(top)); !slices.Equal(extras, want) {
			t.Fatalf("extras %q, want %q", extras, want)
		}
	})
}

// place is one step of a path as the naive reader sees it.
type place struct {
	name  string
	index int
}

// split reads a path that ParsePath has passed, by other means.
func split(s string) (steps []place) {
	name, open := "", false
	flush := func() {
		if open {
			steps = append(steps, place{name, -1})
		}
		name, open = "", false
	}
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '.':
			flush()
		case '[':
			flush()
			end := i + strings.IndexByte(s[i:], ']')
			n, _ := strconv.Atoi(s[i+1 : end])
			steps, i = append(steps, place{"", n}), end
		case '\\':
			i++
			fallthrough
		default:
			name, open = name+s[i:i+1], true
		}
	}
	flush()
	return steps
}

// tree decodes with numbers kept as text.
func tree(t *testing.T, raw []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// naive walks the whole tree.
func naive(raw []byte, s string) (v any, found bool) {
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return nil, false
	}
	for _, st := range split(s) {
		switch at := v.(type) {
		case map[string]any:
			if v, found = at[st.name]; !found || st.index >= 0 {
				return nil, false
			}
		case []any:
			if st.index < 0 || st.index >= len(at) {
				return nil, false
			}
			v = at[st.index]
		default:
			return nil, false
		}
	}
	return v, true
}
