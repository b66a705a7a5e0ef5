package stage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/source"
)

// arrival is one page as it came, or why none came. An error is the last arrival.
type arrival struct {
	page   source.Page
	digest string // sha256 of the body, hex
	stats  source.Stats
	err    error
}

// timeUp is the error of an extraction that has too little time for another page.
type timeUp struct{}

func (*timeUp) Error() string { return "the time of this call is up" }

// fetcher asks for an extraction's pages one after the other, under the loop guard.
type fetcher struct {
	client *source.Client
	guard  *source.Guard
	next   source.Request
	short  func(context.Context) bool
	free   chan []byte // bodies of pages that are in a part
}

// fetcher is made at the extraction's position. The guard is the fetcher's own until it has ended.
func (e *extraction) fetcher() (*fetcher, error) {
	f := &fetcher{client: e.client, guard: e.guard, short: e.short, free: make(chan []byte, 2), next: source.Request{
		Slot: e.owner.Batch.Slot, Window: e.window, At: e.at, Tried: e.out.Attempts,
	}}
	if e.out.WaitBegan != "" {
		var err error
		if f.next.WaitBegan, err = time.Parse(time.RFC3339Nano, e.out.WaitBegan); err != nil {
			return nil, etl.Errorf(etl.Usage, "progress: wait_began: %w", err)
		}
	}
	return f, nil
}

// recycle gives the memory of a page back that is not needed any more.
func (f *fetcher) recycle(body []byte) {
	select {
	case f.free <- body:
	default:
	}
}

// run yields each page up to the last one, until one fails or yield says that it is enough.
func (f *fetcher) run(ctx context.Context, yield func(arrival) bool) {
	for {
		a := f.fetch(ctx)
		if !yield(a) || a.err != nil || a.page.Done {
			return
		}
		f.next.At, f.next.Tried, f.next.WaitBegan = a.page.After, 0, time.Time{}
	}
}

func (f *fetcher) fetch(ctx context.Context) (a arrival) {
	if f.short(ctx) {
		a.stats.Attempts = f.next.Tried
		a.err = &timeUp{}
		return a
	}
	select {
	case f.next.Room = <-f.free:
	default:
		f.next.Room = nil
	}
	a.page, a.stats, a.err = f.client.Fetch(ctx, f.next)
	if a.err != nil {
		return a
	}
	sum := sha256.Sum256(a.page.Body)
	a.digest = hex.EncodeToString(sum[:])
	a.err = f.guard.Add(a.page.Request, a.digest, a.page.Records, a.page.Seen)
	return a
}
