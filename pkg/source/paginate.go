package source

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/onceload/onceload/pkg/page"
	"github.com/onceload/onceload/pkg/pipeline"
)

// State is the paging's whole resume state, stored with each page: with it and the pipeline file any process asks for the
// next page. The zero value asks for the first. It never holds credentials.
type State struct {
	Page   int64  `json:"page,omitempty"`   // pages before this one
	Number int64  `json:"number,omitempty"` // page, offset: value of the parameter
	Full   bool   `json:"full,omitempty"`   // offset: a page of the full limit was seen
	Value  string `json:"value,omitempty"`  // cursor, keyset: value of the parameter
	URL    string `json:"url,omitempty"`    // link, next_url: the next page's address
	// Records is a digest of the records of the page before this one, "" if they were fewer than two: for the loop guard.
	Records string `json:"records,omitempty"`
}

// First reports whether the state asks for the first page.
func (s State) First() bool { return s == State{} }

// pager finds the next page by one of the styles of [pipeline.Paginate].
type pager struct {
	pipeline.Paginate
	path, total, more *page.Path
}

func newPager(p pipeline.Paginate) (pager, error) {
	g := pager{Paginate: p}
	switch p.Style {
	case "":
		g.Style = "none"
	case "none", "page", "offset", "cursor", "link", "next_url", "keyset":
	default:
		return pager{}, fmt.Errorf("unknown style %q", p.Style)
	}
	var err error
	for _, f := range []struct {
		to   **page.Path
		text string
	}{{&g.path, p.Path}, {&g.total, p.Total}, {&g.more, p.HasMore}} {
		if *f.to, err = optionalPath(f.text); err != nil {
			return pager{}, err
		}
	}
	return g, nil
}

// leadsInto reports whether a path that is looked up in the whole document leads into the records.
func (g pager) leadsInto(records page.Path) bool {
	for _, p := range []*page.Path{g.path, g.total, g.more} {
		if p != nil && within(*p, records) && !(p == g.path && g.Style == "keyset") {
			return true
		}
	}
	return false
}

// within reports whether p is at or under the path of the records.
func within(p, records page.Path) bool {
	rest, ok := strings.CutPrefix(p.String(), records.String())
	return ok && (rest == "" || records.String() == "" || rest[0] == '.' || rest[0] == '[')
}

// wantsLast reports whether the next position stands in the page's last record.
func (g pager) wantsLast() bool { return g.Style == "keyset" }

// params are the paging parameters of the request for a page.
func (g pager) params(at State) []pipeline.Param {
	var out []pipeline.Param
	switch g.Style {
	case "page", "offset":
		n := at.Number
		if at.First() {
			n = g.Start
		}
		out = append(out, pipeline.Param{Name: g.Param, Value: strconv.FormatInt(n, 10)})
		if g.SizeParam != "" {
			out = append(out, pipeline.Param{Name: g.SizeParam, Value: strconv.FormatInt(g.Size, 10)})
		}
	case "cursor", "keyset":
		if at.Value != "" {
			out = append(out, pipeline.Param{Name: g.Param, Value: at.Value})
		}
	}
	return out
}

// turn is what a page tells about the next one.
type turn struct {
	url     *url.URL // the page came from, after redirects
	header  http.Header
	around  []byte // the document, without its records where no path leads into them
	records int
	last    page.Record // for keyset
}

// next says where the page after at stands, or that at was the last. has_more rules where the page has it; then a page that
// is short ends it if stop_on_short says so, and only then, because filters and limits of servers make short pages
// anywhere; then total or total_pages, or the absence of a next cursor or link. An empty page is the end where the source
// states nothing else. A total that is declared must be there, but on an empty first page: without it a page that lost its
// records would pass for the end.
// Errors of kind SourceRejected are final, all others mean a malformed page.
func (g pager) next(c *Client, at State, t turn) (next State, done bool, err error) {
	next = State{Page: at.Page + 1}
	if g.Style == "none" {
		return at, true, nil
	}
	stated := false // the source itself said that there is more
	if g.more != nil {
		v, err := page.Find(t.around, *g.more)
		if err != nil {
			return at, false, err
		}
		if v.Kind != page.Missing && v.Kind != page.Null {
			if !truthy(v) {
				return at, true, nil
			}
			stated = true
		}
	}
	if !stated && g.StopOnShort && int64(t.records) < max(g.Size, 1) {
		return at, true, nil
	}
	switch g.Style {
	case "page", "offset":
		now, first := at.Number, g.Start
		if at.First() {
			now = g.Start
		}
		next.Number = now + 1
		if g.Style == "offset" {
			next.Full = at.Full || (g.Size > 0 && int64(t.records) >= g.Size)
			next.Number = now + g.step(t.records, next.Full)
		}
		total, known, err := g.count(t.around)
		switch {
		case err != nil:
			return at, false, err
		case stated:
		case known && next.Number-first >= total, t.records == 0 && (g.total == nil || !known && at.First()):
			return at, true, nil
		case !known && g.total != nil:
			key := map[string]string{"page": "total_pages", "offset": "total"}[g.Style]
			return at, false, fmt.Errorf("there is no total at %s: where the source gives none, leave source.paginate.%s.%s out, and paging ends at an empty page", g.total, g.Style, key)
		}
	case "cursor":
		next.Value, err = g.text(t.around, "next cursor")
	case "keyset":
		if t.records == 0 {
			return at, true, nil
		}
		if next.Value, err = g.key(t.last); err == nil && next.Value == "" {
			err = fmt.Errorf("the last record has no %s to go on from", g.path)
		}
	case "link":
		next.URL, err = nextLink(t.header.Values("Link")), nil
	case "next_url":
		next.URL, err = g.text(t.around, "next URL")
	}
	if err != nil {
		return at, false, err
	}
	if next.URL != "" {
		u, err := c.resolve(t.url, next.URL)
		if err != nil {
			return at, false, err
		}
		next.URL = u.String()
	}
	if next.Value == "" && next.URL == "" && g.Style != "page" && g.Style != "offset" {
		if stated {
			return at, false, fmt.Errorf("%s says that there is more, but there is no next %s", g.more, g.Style)
		}
		return at, true, nil
	}
	return next, false, nil
}

// step is how far an offset moves on: by the limit once the source has given a page that full; before that by the records
// received, because the source may cap the limit lower. By the limit too over an empty page that is not the end.
func (g pager) step(records int, full bool) int64 {
	if full || records == 0 {
		return max(g.Size, 1)
	}
	return int64(records)
}

// count reads total_pages or total; known is false where a page has none.
func (g pager) count(doc []byte) (n int64, known bool, err error) {
	if g.total == nil {
		return 0, false, nil
	}
	s, err := scalar(doc, *g.total, "total")
	if err != nil || s == "" {
		return 0, false, err
	}
	if n, err = strconv.ParseInt(s, 10, 64); err != nil || n < 0 {
		return 0, false, fmt.Errorf("the total at %s is not a whole number", g.total)
	}
	return n, true, nil
}

// text reads the value at the style's path: "" when there is none.
func (g pager) text(doc []byte, what string) (string, error) {
	if g.path == nil {
		return "", fmt.Errorf("source.paginate names no path for the %s", what)
	}
	return scalar(doc, *g.path, what)
}

// key reads where the page after the record's begins.
func (g pager) key(last page.Record) (string, error) {
	if g.path != nil && g.path.IsKey() {
		return last.Key, nil
	}
	return g.text(last.Raw, "key of the last record")
}

// scalar reads a string or number as text; missing, null, false and "" give "".
func scalar(doc []byte, p page.Path, what string) (string, error) {
	v, err := page.Find(doc, p)
	if err != nil {
		return "", err
	}
	switch {
	case v.Kind == page.String:
		return v.Text()
	case v.Kind == page.Number:
		return string(v.Raw), nil
	case v.Kind == page.Missing, v.Kind == page.Null, string(v.Raw) == "false":
		return "", nil
	}
	return "", fmt.Errorf("the %s at %s is a JSON %s: want a string or a number", what, p, v.Kind)
}
