package page_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/page"
)

func TestText(t *testing.T) {
	for _, raw := range []string{`""`, `"plain"`, `"ñandú 😀"`, `"a\"b\\c\/d\b\f\n\r\t"`, `"\u0041\u00e9\u20AC"`, `"\ud83d\ude00 and \uD83D\uDE00"`, `"\u0000"`,
		`"\\ud800"`, `"` + strings.Repeat(`long \n `, 50) + `"`, `"\uffff\ufffd"`} {
		var want string
		if err := json.Unmarshal([]byte(raw), &want); err != nil {
			t.Fatal(err)
		}
		v := page.Value{Kind: page.String, Raw: []byte(raw)}
		if got, err := v.Text(); err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", raw, got, err, want)
		}
		if got, err := v.AppendText([]byte("before ")); err != nil || string(got) != "before "+want {
			t.Errorf("%s appended: got %q, %v; want %q", raw, got, err, want)
		}
	}
}

// R16: two different strings never become the same by replacing what cannot be read.
func TestTextFaults(t *testing.T) {
	for raw, want := range map[string]string{
		`"\ud800"`:       "half a surrogate pair",
		`"\udc00"`:       "half a surrogate pair",
		`"\ud800x"`:      "half a surrogate pair",
		`"\ud800\n"`:     "half a surrogate pair",
		`"\ud800\u0041"`: "half a surrogate pair",
		`"\ud800\ud800"`: "half a surrogate pair",
		`"\udc00\ud800"`: "half a surrogate pair",
		"\"\xff\"":       "not UTF-8",
		"\"\\n\xe9\"":    "not UTF-8",
		`"\x"`:           "unknown escape",
		`"abc\x"`:        "unknown escape",
		`"\u12"`:         "four hexadecimal digits",
		`"\u12g4"`:       "four hexadecimal digits",
		`"\"`:            "ends in a backslash",
		`"`:              "want a string",
	} {
		got, err := page.Value{Kind: page.String, Raw: []byte(raw)}.AppendText([]byte("kept"))
		if err == nil || !strings.Contains(err.Error(), want) || string(got) != "kept" {
			t.Errorf("%q: got %q, %v; want …%s…", raw, got, err, want)
		}
		if s, err := (page.Value{Kind: page.String, Raw: []byte(raw)}).Text(); err == nil || s != "" {
			t.Errorf("%q: got text %q, %v", raw, s, err)
		}
	}
	for _, k := range []page.Kind{page.Missing, page.Null, page.Bool, page.Number, page.Array, page.Object} {
		if _, err := (page.Value{Kind: k, Raw: []byte("null")}).Text(); err == nil || !strings.Contains(err.Error(), k.String()) {
			t.Errorf("%v: %v", k, err)
		}
	}
}

func TestFind(t *testing.T) {
	const doc = `{"a":{"b":[10,{"c":"x\u0041"},[true]],"n":null},"a.b":1.50,"d\u0061ta":{"x":{}},"@key":7,"a":0}`
	for p, want := range map[string]string{
		"":             "object " + doc,
		"a.b[0]":       "number 10",
		"a.b[1].c":     `string "x\u0041"`,
		"a.b[2][0]":    "boolean true",
		"a.n":          "null null",
		`a\.b`:         "number 1.50",
		"data":         `object {"x":{}}`,
		"data.x":       `object {}`,
		`\@key`:        "number 7",
		"@key":         "missing ",
		"a.b[3]":       "missing ",
		"a.b.c":        "missing ",
		"a[0]":         "missing ",
		"a.n.x":        "missing ",
		"data.x.y":     "missing ",
		"a.b[1].c.d":   "missing ",
		"a.b[1].c[0]":  "missing ",
		"[0]":          "missing ",
		"zzz":          "missing ",
		"a.b[0].q.r.s": "missing ",
	} {
		v, err := page.Find([]byte("\ufeff "+doc), path(t, p))
		if got := v.Kind.String() + " " + string(v.Raw); err != nil || got != want {
			t.Errorf("Find(%q) = %s, %v; want %s", p, got, err, want)
		}
	}
	nameless := []byte(`{"":[1,2]}`)
	if v, err := page.Find(nameless, path(t, "[0]")); v.Kind != page.Missing || err != nil {
		t.Errorf("an index finds the member without a name: %s, %v", v.Raw, err)
	}
	if v, _ := page.Find(nameless, page.Member("")); string(v.Raw) != "[1,2]" || cap(v.Raw) != len(v.Raw) {
		t.Errorf("got %s with room for %d bytes, want [1,2] without room beyond it", v.Raw, cap(v.Raw))
	}
	for doc, p := range map[string]string{"": "a", " ": "", "{": "a", `{"a":`: "a", `{"a":tru`: "a", `{"a":[1,}`: "a[1]", `{"b":1`: "a", `{"a":x}`: "a.b", "\xff\xfe": "a", `[1 2]`: "[1]",
		strings.Repeat("[", 1001): strings.Repeat("[0]", 1001)} {
		var f *page.Fault
		if v, err := page.Find([]byte(doc), path(t, p)); !errors.As(err, &f) || !f.Malformed() || v.Kind != page.Missing {
			t.Errorf("Find(%.20q, %.20q) = %v, %v; want a fault", doc, p, v, err)
		}
	}
}
