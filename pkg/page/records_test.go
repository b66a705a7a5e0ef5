package page_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/onceload/onceload/pkg/page"
)

// path parses a path that is known to be good.
func path(t testing.TB, s string) page.Path {
	t.Helper()
	p, err := page.ParsePath(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// collect runs Records and joins what it yields as `key=raw` with bars.
func collect(l page.Layout, body string) (string, error) {
	var got []string
	n, err := l.Records([]byte(body), func(r page.Record) error {
		if r.Index != len(got) {
			return fmt.Errorf("record %d has index %d", len(got), r.Index)
		}
		text := string(r.Raw)
		if r.Key != "" {
			text = r.Key + "=" + text
		}
		got = append(got, text)
		return nil
	})
	if err == nil && n != len(got) {
		err = fmt.Errorf("%d records yielded, %d counted", len(got), n)
	}
	return strings.Join(got, "|"), err
}

func TestRecords(t *testing.T) {
	tests := []struct {
		name, path     string
		object, ndjson bool
		body, want     string
	}{
		{name: "the body", body: ` [1, {"a":2} ,"x"] `, want: `1|{"a":2}|"x"`},
		{name: "empty", body: `[]`},
		{name: "text is kept exactly", body: `[{"a" : 1.00e+2,"b":"\u0041\/"}]`, want: `{"a" : 1.00e+2,"b":"\u0041\/"}`},
		{name: "member", path: "data", body: `{"meta":{"data":[9]},"data":[1,2],"next":null}`, want: "1|2"},
		{name: "deep", path: "a.b[1].c", body: `{"a":{"x":[],"b":[[0],{"c":[7]},{"c":[8]}]}}`, want: "7"},
		{name: "array on top", path: "[1]", body: `[{"page":1},[3,4]]`, want: "3|4"},
		{name: "escaped name in the text", path: "data", body: `{"d\u0061ta":[1]}`, want: "1"},
		{name: "dot in a name", path: `a\.b`, body: `{"a":{"b":[1]},"a.b":[2]}`, want: "2"},
		{name: "backslash in a name", path: `a\\b`, body: `{"a\b":[1],"a\\b":[2]}`, want: "2"},
		{name: "byte order mark", body: "\ufeff[1]", want: "1"},
		{name: "object map", path: "rows", object: true, body: `{"rows":{"k1":{"a":1},"k\u0032":2,"":3}}`, want: `k1={"a":1}|k2=2|3`},
		{name: "object map that is the body", object: true, body: `{"a":1,"a":2}`, want: "a=1|a=2"},
		{name: "array where a map may be", object: true, body: `[1]`, want: "1"},
		{name: "names that stand twice elsewhere", path: "data", body: `{"x":1,"x":2,"data":[{"y":1,"y":2}]}`, want: `{"y":1,"y":2}`},
		{name: "lines", ndjson: true, body: "{\"a\":1}\n\r\n  \n [2]\r\n3", want: `{"a":1}|[2]|3`},
		{name: "lines, bad ones", ndjson: true, body: "x\n1\n2 3 \r\n{\"a\":\n\x00\n[4]", want: "x|1|2 3|{\"a\":|\x00|[4]"},
		{name: "lines, final newline", ndjson: true, body: "1\n2\n", want: "1|2"},
		{name: "no lines", ndjson: true, body: ""},
		{name: "lines, byte order mark", ndjson: true, body: "\ufeff1\n2", want: "1|2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := page.Layout{Path: path(t, tt.path), Map: tt.object, NDJSON: tt.ndjson}
			got, err := collect(l, tt.body)
			if err != nil || got != tt.want {
				t.Errorf("got %s, %v; want %s", got, err, tt.want)
			}
			n, err := l.Records([]byte(tt.body), nil)
			if want := strings.Count(tt.want, "|") + min(1, len(tt.want)); n != want || err != nil {
				t.Errorf("counted %d, %v; want %d", n, err, want)
			}
		})
	}
}

func TestRecordsFaults(t *testing.T) {
	tests := []struct {
		name, path   string
		ndjson       bool
		body         string
		code         string
		offset       int
		line, column int
		msg          string
	}{
		{name: "empty body", body: "", code: page.CodeSyntax, line: 1, column: 1, msg: "the text ends, want a value"},
		{name: "an HTML page", path: "data", body: "\n<html>", code: page.CodeSyntax, offset: 1, line: 2, column: 1, msg: "'<', want a value"},
		{name: "cut short", path: "data", body: `{"data":[{"a":1},{"a`, code: page.CodeSyntax, offset: 20, line: 1, column: 21, msg: "the text ends"},
		{name: "cut short after the records", path: "data", body: `{"data":[1],`, code: page.CodeSyntax, offset: 12, line: 1, column: 13, msg: "a name in quotes"},
		{name: "cut short wins over the layout", path: "data", body: `{"data":null`, code: page.CodeSyntax, offset: 12, line: 1, column: 13, msg: "after a member"},
		{name: "two documents", body: `[] []`, code: page.CodeSyntax, offset: 3, line: 1, column: 4, msg: "nothing after the document"},
		{name: "columns are characters", body: "[\n\"ñandú\" x", code: page.CodeSyntax, offset: 12, line: 2, column: 9, msg: "'x', want ','"},
		{name: "the mark has no column", body: "\ufeffx", code: page.CodeSyntax, offset: 3, line: 1, column: 1, msg: "'x'"},
		{name: "bytes that are not UTF-8", body: "[\"a\xffb\"]", code: page.CodeUTF8, offset: 3, line: 1, column: 4, msg: "byte 0xff"},
		{name: "UTF-16", body: "\xff\xfe[\x00]\x00", code: page.CodeCharset, line: 1, column: 1, msg: "UTF-16"},
		{name: "UTF-16 without a mark", body: "\x00[\x00]", code: page.CodeCharset, line: 1, column: 1, msg: "UTF-16"},
		{name: "UTF-32", body: "\x00\x00\xfe\xff\x00\x00\x00[", code: page.CodeCharset, line: 1, column: 1, msg: "UTF-32"},
		{name: "too deep", body: strings.Repeat("[", 1001), code: page.CodeDepth, offset: 1000, line: 1, column: 1001, msg: "1000"},
		{name: "missing", path: "data", body: `{"date":[]}`, code: page.CodeMissing, line: 1, column: 1, msg: "no member data"},
		{name: "missing deep", path: "a.data", body: `{"a":{"d":1}}`, code: page.CodeMissing, offset: 5, line: 1, column: 6, msg: "no member a.data"},
		{name: "missing element", path: "a[2]", body: `{"a":[1,2]}`, code: page.CodeMissing, offset: 5, line: 1, column: 6, msg: "no element a[2]"},
		{name: "null", path: "data", body: `{"data": null}`, code: page.CodeNull, offset: 9, line: 1, column: 10, msg: "data is null"},
		{name: "null on the way", path: "a.data", body: `{"a":null}`, code: page.CodeNull, offset: 5, line: 1, column: 6, msg: "a is null"},
		{name: "object", path: "data", body: `{"data":{}}`, code: page.CodeNotArray, offset: 8, line: 1, column: 9, msg: "data is of type object"},
		{name: "the body is an object", body: `{}`, code: page.CodeNotArray, line: 1, column: 1, msg: "the document is of type object"},
		{name: "string", path: "data", body: `{"data":"[]"}`, code: page.CodeNotArray, offset: 8, line: 1, column: 9, msg: "type string"},
		{name: "array on the way", path: "a.data", body: `{"a":[]}`, code: page.CodeNotObject, offset: 5, line: 1, column: 6, msg: "a is of type array"},
		{name: "object on the way", path: "a[0]", body: `{"a":{"0":[]}}`, code: page.CodeNotArray, offset: 5, line: 1, column: 6, msg: "want an array on the way"},
		{name: "the records twice", path: "data", body: `{"data":[1],"d\u0061ta":[2]}`, code: page.CodeDuplicate, offset: 24, line: 1, column: 25, msg: "data stands twice"},
		{name: "the first fault is told", path: "a.data", body: `{"a":null,"a":{"data":1}}`, code: page.CodeNull, offset: 5, line: 1, column: 6, msg: "a is null"},
		{name: "two on the only line", ndjson: true, body: "\n2 3\n", code: page.CodeSyntax, offset: 3, line: 2, column: 3, msg: "nothing after"},
		{name: "no line is JSON", ndjson: true, body: "<html>\n<p>\n", code: page.CodeSyntax, offset: 0, line: 1, column: 1, msg: "want a value"},
		{name: "a record over two lines", ndjson: true, body: "{\"a\":\n1}\n", code: page.CodeSyntax, offset: 5, line: 1, column: 6, msg: "the text ends"},
		{name: "last line cut short", ndjson: true, body: "{}\n{\"a\":tr", code: page.CodeSyntax, offset: 10, line: 2, column: 8, msg: "want true"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := collect(page.Layout{Path: path(t, tt.path), NDJSON: tt.ndjson}, tt.body)
			var f *page.Fault
			if !errors.As(err, &f) {
				t.Fatalf("got %v, want a fault", err)
			}
			if f.Code != tt.code || f.Offset != tt.offset || f.Line != tt.line || f.Column != tt.column || !strings.Contains(f.Error(), tt.msg) {
				t.Errorf("got %s %v; want %s at line %d, column %d (offset %d): …%s…", f.Code, f, tt.code, tt.line, tt.column, tt.offset, tt.msg)
			}
		})
	}
}

func TestRecordsYieldStops(t *testing.T) {
	stop := errors.New("stop")
	for _, l := range []page.Layout{{}, {Map: true}, {NDJSON: true}} {
		body := map[bool]string{false: `[1,2,3`, true: "1\n2\n{"}[l.NDJSON]
		if l.Map {
			body = `{"a":1,"b":2,`
		}
		n, err := l.Records([]byte(body), func(r page.Record) error {
			if r.Index == 1 {
				return stop
			}
			return nil
		})
		if n != 1 || !errors.Is(err, stop) {
			t.Errorf("%+v: got %d, %v; want 1, the error of yield", l, n, err)
		}
	}
}

func TestRecordsLayoutsThatCannotBe(t *testing.T) {
	for _, l := range []page.Layout{{Path: path(t, "@key")}, {NDJSON: true, Path: path(t, "data")}, {NDJSON: true, Map: true}} {
		if _, err := l.Records([]byte("[]"), nil); err == nil || !strings.Contains(err.Error(), "NDJSON") {
			t.Errorf("%+v: %v", l, err)
		}
	}
}

// R9: a key that is no text is one bad record, not a bad page; the reader can tell.
func TestRecordsKeyOfHalfAPair(t *testing.T) {
	got, err := collect(page.Layout{Map: true}, `{"a\ud800b":1,"\ud83d\ude00":2}`)
	if want := "a\xed\xa0\x80b=1|😀=2"; err != nil || got != want || utf8.ValidString(got) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

// A record's slice must not reach beyond it: appending to it would overwrite the page.
func TestRecordsRawHasNoRoom(t *testing.T) {
	for _, l := range []page.Layout{{}, {NDJSON: true}} {
		_, err := l.Records([]byte("[[1,2]]"), func(r page.Record) error {
			if cap(r.Raw) != len(r.Raw) {
				t.Errorf("record %s has room for %d bytes", r.Raw, cap(r.Raw))
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestRecordsAllocates(t *testing.T) {
	few, many := orders(10), orders(2000)
	lines := bytes.ReplaceAll(many[len(`{"data":[`):bytes.LastIndexByte(many, ']')], []byte(`},{"order_id"`), []byte("}\n{\"order_id\""))
	nothing := func(page.Record) error { return nil }
	count := func(l page.Layout, body []byte) float64 {
		return testing.AllocsPerRun(10, func() {
			if _, err := l.Records(body, nothing); err != nil {
				t.Fatal(err)
			}
		})
	}
	data := page.Layout{Path: path(t, "data")}
	if a, b := count(data, few), count(data, many); a > 1 || b > 1 {
		t.Errorf("%v allocations for 10 records, %v for 2,000; want at most 1 for any number", a, b)
	}
	if a := count(page.Layout{NDJSON: true}, lines); a > 1 {
		t.Errorf("%v allocations for 2,000 lines, want at most 1", a)
	}
}

// FuzzRecords: a body passes if and only if encoding/json and utf8 pass it, and what is yielded is the page again.
func FuzzRecords(f *testing.F) {
	for _, s := range []string{`[1,2.5e3,"a\u00e9",{"b":[null,true]}]`, `{"a":1,"b":{}}`, "1\n{}\r\n\n[]", `["\ud800"]`, "[\"\xff\"]", "\ufeff[]", ` { "k" : [ ] } `, "[\x00", `[01]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		plain := bytes.TrimPrefix(body, []byte("\ufeff"))
		if bytes.Count(plain, []byte("["))+bytes.Count(plain, []byte("{")) >= page.MaxDepth {
			return // encoding/json goes deeper
		}
		fits := json.Valid(plain) && utf8.Valid(plain)
		var raws [][]byte
		var keys []string
		n, err := page.Layout{Map: true}.Records(body, func(r page.Record) error {
			raws, keys = append(raws, r.Raw), append(keys, r.Key)
			return nil
		})
		var fault *page.Fault
		if err != nil && !errors.As(err, &fault) {
			t.Fatalf("%v is no fault", err)
		}
		if got := fault == nil || !fault.Malformed(); got != fits {
			t.Fatalf("fault %v, want good = %v", fault, fits)
		}
		if fault != nil && (fault.Offset < 0 || fault.Offset > len(body) || fault.Line < 1 || fault.Column < 1 || fault.Msg == "") {
			t.Fatalf("the fault has no place: %+v", *fault)
		}
		if n != len(raws) {
			t.Fatalf("%d yielded, %d counted", len(raws), n)
		}
		if err == nil {
			sameRecords(t, plain, raws, keys)
		}
		sameLines(t, plain)
	})
}

// sameRecords checks what was yielded of a good page against encoding/json.
func sameRecords(t *testing.T, plain []byte, raws [][]byte, keys []string) {
	t.Helper()
	joined := append(append([]byte{'['}, bytes.Join(raws, []byte{','})...), ']')
	var got, want []json.RawMessage
	if err := json.Unmarshal(joined, &got); err != nil || len(got) != len(raws) {
		t.Fatalf("the records joined are %d values, want %d: %v", len(got), len(raws), err)
	}
	if json.Unmarshal(plain, &want) == nil {
		if len(want) != len(raws) {
			t.Fatalf("%d records, encoding/json has %d", len(raws), len(want))
		}
		for i := range want {
			if !bytes.Equal(want[i], raws[i]) {
				t.Fatalf("record %d is %q, encoding/json has %q", i, raws[i], want[i])
			}
		}
		return
	}
	members := map[string]json.RawMessage{} // of a name that stands twice encoding/json keeps the last
	if err := json.Unmarshal(plain, &members); err != nil {
		t.Fatal(err)
	}
	mine := map[string]json.RawMessage{}
	for i, k := range keys {
		if !utf8.ValidString(k) {
			return // encoding/json replaces what is no text
		}
		mine[k] = raws[i]
	}
	if len(mine) != len(members) {
		t.Fatalf("%d keys, encoding/json has %d", len(mine), len(members))
	}
	for k, raw := range members {
		if !bytes.Equal(mine[k], raw) {
			t.Fatalf("record %q is %q, encoding/json has %q", k, mine[k], raw)
		}
	}
}

// sameLines checks the reading of NDJSON against encoding/json line by line.
func sameLines(t *testing.T, body []byte) {
	t.Helper()
	var want [][]byte
	any, last := false, true // good lines; the last one, behind the last newline
	for line := range bytes.SplitSeq(bytes.TrimPrefix(body, []byte("\ufeff")), []byte{'\n'}) {
		if line = bytes.Trim(line, " \t\r"); len(line) > 0 {
			want = append(want, line)
			last = json.Valid(line) && utf8.Valid(line)
			any = any || last
		} else {
			last = true
		}
	}
	good := last && (any || len(want) == 0)
	var got [][]byte
	_, err := page.Layout{NDJSON: true}.Records(body, func(r page.Record) error {
		got = append(got, r.Raw)
		return nil
	})
	var fault *page.Fault
	if errors.As(err, &fault) && fault.Code == page.CodeCharset {
		return
	}
	if (err == nil) != good {
		t.Fatalf("as lines: %v, want good = %v", err, good)
	}
	if good && !bytes.Equal(bytes.Join(got, []byte{'\n'}), bytes.Join(want, []byte{'\n'})) {
		t.Fatalf("as lines: %q, want %q", got, want)
	}
}
