package source

import (
	"fmt"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/pipeline"
)

// Guard finds paging that goes round in circles. A loop is the same request again and no new record in its page: a cursor
// that merely repeats while new records arrive is fine. It is also a loop when a page of two records or more has, byte
// for byte, the records of the page before it, whatever was asked for: a source that ignores the paging parameter answers
// so, as does one that gives its last page for every page beyond. One record alone may well stand twice in a source.
type Guard struct {
	paginate     pipeline.Paginate
	maxPages     int64
	key          string // of the paging in the pipeline file
	pages, empty int64
	last         string              // digest of the records of the page before
	requests     map[string]int64    // fingerprint → the page it asked for first
	seen         map[string]struct{} // fingerprint + digest
}

// NewGuard makes the guard of one extraction; MaxPages 0 means 10,000.
func NewGuard(p pipeline.Paginate) *Guard {
	return &Guard{paginate: p, maxPages: orElse(p.MaxPages, 10_000), key: "source.paginate." + p.Style, requests: map[string]int64{}, seen: map[string]struct{}{}}
}

// Add takes the pages of an extraction in order, landed ones first: the fingerprint of the request, the body's digest, the
// number of records, their digest ("" = unknown). It returns an error of kind [etl.SourceLoops] for a loop and for the page after the last allowed one.
func (g *Guard) Add(request, sha256 string, records int, seen string) error {
	n := g.pages
	g.pages++
	if records == 0 {
		g.empty++
	}
	if g.pages > g.maxPages {
		return etl.Errorf(etl.SourceLoops, "page %d passes %s.max_pages of %d; %d of the pages were empty", n, g.key, g.maxPages, g.empty)
	}
	first, again := g.requests[request]
	if !again {
		g.requests[request] = n
	}
	_, same := g.seen[request+sha256]
	if again && (same || records == 0) {
		return etl.Errorf(etl.SourceLoops, "page %d repeats the request of page %d and brings no new record: the source's paging goes round in a circle", n, first)
	}
	if seen == g.last && g.last != "" {
		return etl.Errorf(etl.SourceLoops, "page %d has the same %d records as page %d, though another one was asked for: the source seems to ignore %s, or to answer with its last page beyond the end",
			n, records, n-1, g.asked())
	}
	g.last = seen
	g.seen[request+sha256] = struct{}{}
	return nil
}

// asked names what asks for the next page.
func (g *Guard) asked() string {
	if g.paginate.Param == "" {
		return "the link it gave itself (" + g.key + ")"
	}
	return fmt.Sprintf("the parameter %s (%s.param)", g.paginate.Param, g.key)
}
