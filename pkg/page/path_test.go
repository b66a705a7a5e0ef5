package page_test

import (
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/page"
)

func TestParsePath(t *testing.T) {
	for _, s := range []string{"", "a", "a.b.c", "a[0]", "a[0][12].b", "[3]", "[0].id", `a\.b.c`, `\[0]`, `a\\b`, "@key", `\@key`, "@key.a", "a.@key",
		"@id", "with space", "ñ.日本", "a]b", "a-b_c", `"quoted"`} {
		p, err := page.ParsePath(s)
		if err != nil || p.String() != s || p.IsKey() != (s == "@key") {
			t.Errorf("ParsePath(%q) = %q (key %v), %v", s, p, p.IsKey(), err)
		}
	}
	for s, want := range map[string]string{
		".":             "a name is missing at position 1",
		".a":            "a name is missing at position 1",
		"a.":            "a name is missing at position 3",
		"a..b":          "a name is missing at position 3",
		"a.[0]":         "a name is missing at position 3",
		"a[0]b":         "want '.' or '[' at position 5",
		"a[0]]":         "want '.' or '[' at position 5",
		"a[":            "want an index like [0] at position 2",
		"a[]":           "want an index",
		"a[-1]":         "want an index",
		"a[+1]":         "want an index",
		"a[01]":         "want an index",
		"a[1":           "want an index",
		"a[x]":          "want an index",
		"a[*]":          "want an index",
		"a[9999999999]": "want an index",
		`a\`:            "a backslash at position 2",
		`a\n`:           `write \\ for a backslash`,
		"a\xff":         "not UTF-8",
	} {
		if p, err := page.ParsePath(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParsePath(%q) = %q, %v; want …%s…", s, p, err, want)
		}
	}
}

func TestMember(t *testing.T) {
	for name, want := range map[string]string{"a": "a", "a.b": `a\.b`, "a[0]": `a\[0]`, "@key": `\@key`, `\`: `\\`} {
		p := page.Member(name)
		if p.String() != want || p.IsKey() {
			t.Errorf("Member(%q) = %q, want %q", name, p, want)
		}
		again, err := page.ParsePath(want)
		if err != nil {
			t.Fatal(err)
		}
		doc := []byte(`{"a":1,"a.b":2,"a[0]":3,"@key":4,"\\":5}`)
		v, _ := page.Find(doc, p)
		w, _ := page.Find(doc, again)
		if v.Kind != page.Number || string(v.Raw) != string(w.Raw) {
			t.Errorf("Member(%q) finds %q, the parsed path %q", name, v.Raw, w.Raw)
		}
	}
}

// FuzzPath: what parses is written back as a path that is the same place.
func FuzzPath(f *testing.F) {
	for _, s := range []string{"", "a.b[0].c", `a\.b\[c\\d`, "@key", `\@key`, "[1][2]", "a..b", "[00]", "a[", `\`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := page.ParsePath(s)
		if err != nil {
			return
		}
		again, err := page.ParsePath(p.String())
		if err != nil || again.String() != p.String() || again.IsKey() != p.IsKey() {
			t.Fatalf("%q is written %q, which reads as %q, %v", s, p, again, err)
		}
		if strings.ReplaceAll(s, `\`, "") != strings.ReplaceAll(p.String(), `\`, "") {
			t.Fatalf("%q is written %q: more than needless backslashes differ", s, p)
		}
	})
}
