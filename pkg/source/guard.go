package source

import (
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/pipeline"
)

// Guard finds paging that goes round in circles. A loop is the same request again and no new record in its page: a cursor
// that merely repeats while new records arrive is fine.
type Guard struct {
	maxPages     int64
	key          string // of maxPages in the pipeline file
	pages, empty int64
	requests     map[string]int64    // fingerprint → the page it asked for first
	seen         map[string]struct{} // fingerprint + digest
}

// NewGuard makes the guard of one extraction; MaxPages 0 means 10,000.
func NewGuard(p pipeline.Paginate) *Guard {
	return &Guard{maxPages: orElse(p.MaxPages, 10_000), key: "source.paginate." + p.Style + ".max_pages", requests: map[string]int64{}, seen: map[string]struct{}{}}
}

// Add takes the pages of an extraction in order, landed ones first: the fingerprint of the request, the body's digest, the
// number of records. It returns an error of kind [etl.SourceLoops] for a loop and for the page after the last allowed one.
func (g *Guard) Add(request, sha256 string, records int) error {
	n := g.pages
	g.pages++
	if records == 0 {
		g.empty++
	}
	if g.pages > g.maxPages {
		return etl.Errorf(etl.SourceLoops, "page %d passes %s of %d; %d of the pages were empty", n, g.key, g.maxPages, g.empty)
	}
	first, again := g.requests[request]
	if !again {
		g.requests[request] = n
	}
	_, same := g.seen[request+sha256]
	if again && (same || records == 0) {
		return etl.Errorf(etl.SourceLoops, "page %d repeats the request of page %d and brings no new record: the source's paging goes round in a circle", n, first)
	}
	g.seen[request+sha256] = struct{}{}
	return nil
}
