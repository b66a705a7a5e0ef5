package source_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/source"
)

func TestNextLink(t *testing.T) {
	for _, tc := range []struct {
		name   string
		fields []string
		want   string
	}{
		{"none", nil, ""},
		{"empty", []string{""}, ""},
		{"one", []string{`<https://x/?page=2>; rel="next"`}, "https://x/?page=2"},
		{"token", []string{`<a>;rel=next`}, "a"},
		{"any case", []string{`<a>; REL="Next"`}, "a"},
		{"several links", []string{`<a>; rel="prev", <b>; rel="next", <c>; rel="last"`}, "b"},
		{"several fields", []string{`<a>; rel="prev"`, `<b>; rel="next"`}, "b"},
		{"several relations", []string{`<a>; rel="last next"`}, "a"},
		{"comma in the target", []string{`<a?ids=1,2,3>; rel="next"`}, "a?ids=1,2,3"},
		{"comma and semicolon in quotes", []string{`<a>; title="x, <b>; rel=\"next\""; rel="prev", <c>; rel="next"`}, "c"},
		{"parameter without value", []string{`<a>; crossorigin; rel="next"`}, "a"},
		{"white space", []string{"  <a>\t;\trel = \"next\" , <b>;rel=prev"}, "a"},
		{"relative", []string{`<?page=2>; rel="next"`}, "?page=2"},
		{"only the first rel counts", []string{`<a>; rel="prev"; rel="next"`}, ""},
		{"not a word of it", []string{`<a>; rel="nextish"`, `<b>; title="next"`}, ""},
		{"of another resource", []string{`<a>; rel="next"; anchor="/other", <b>; rel="next"`}, "b"},
		{"empty elements", []string{`, ,<a>; rel="next",`}, "a"},
		{"no brackets", []string{`https://x/; rel="next"`}, ""},
		{"no end", []string{`<https://x/; rel="next"`}, ""},
		{"open quote", []string{`<a>; rel="next`}, "a"},
		{"open escape", []string{`<a>; rel="next\`}, "a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := source.NextLink(tc.fields); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// What is found stood between angle brackets; a good next link in front is always found.
func FuzzNextLink(f *testing.F) {
	for _, s := range []string{`<a>; rel="next"`, `<a>; title="x, <b>"; rel=prev, <c>;rel=next`, `,,;="\`, "<<>;rel=neXt"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		bracketed := func(target string) bool {
			for i := range len(s) {
				if in, _, closed := strings.Cut(s[i+1:], ">"); s[i] == '<' && closed && strings.TrimSpace(in) == target {
					return true
				}
			}
			return false
		}
		if got := source.NextLink([]string{s}); got != "" && !bracketed(got) {
			t.Errorf("%q in %q stood in no brackets", got, s)
		}
		if got := source.NextLink([]string{"<here>; rel=next, " + s}); got != "here" {
			t.Errorf("a good link before %q gives %q", s, got)
		}
	})
}

// Whatever a source writes as its next link: only allowed origins, never down from https, no credentials, no user.
func FuzzResolve(f *testing.F) {
	for _, s := range []string{"?page=2", "/a?api_key=x&b=c", "//evil.example/x", "http://api.example.com/", "https://api.example.com:443/x#y",
		"https://cdn.example.com/x", "https://user@api.example.com/", "javascript:alert(1)", "https://api.example.com\\@evil.example/", "?API%5fkey=1&api%5Fkey=2"} {
		f.Add(s)
	}
	c, err := source.New(&pipeline.Pipeline{Source: pipeline.Source{URL: "https://api.example.com/v1/orders",
		Auth: pipeline.Auth{Scheme: "query", Name: "api_key"}, AllowHosts: []string{"cdn.example.com"}}}, source.Options{})
	if err != nil {
		f.Fatal(err)
	}
	from, err := url.Parse("https://api.example.com/v1/orders?page=1")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, ref string) {
		u, err := c.Resolve(from, ref)
		if err != nil {
			return
		}
		again, err := url.Parse(u.String()) // as the state stores it
		if err != nil {
			t.Fatalf("%q resolves to %q, which cannot be read: %v", ref, u, err)
		}
		for _, u := range []*url.URL{u, again} {
			if o := source.Origin(u); o != "https://api.example.com:443" && o != "https://cdn.example.com:443" {
				t.Errorf("%q leads to %s", ref, o)
			}
			if u.User != nil || u.Fragment != "" || u.Query().Has("api_key") {
				t.Errorf("%q resolves to %s", ref, u)
			}
		}
	})
}
