package page_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

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
		{name: "two on a line", ndjson: true, body: "1\n2 3\n", code: page.CodeSyntax, offset: 4, line: 2, column: 3, msg: "nothing after"},
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
