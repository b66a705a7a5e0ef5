package cloud

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/onceload/onceload/pkg/etl"
)

// firstWrites is how many writes are under way at once before the table has shown what it takes.
const firstWrites = 16

// pace bounds the writes under way: one more after each round without throttling, half as many after a throttled one. All
// writes to a table share it.
type pace struct {
	tokens chan struct{}
	mu     sync.Mutex
	limit  float64
	debt   int // tokens to take out of use when they come back
	era    int // raised by each halving: what began in an earlier one says nothing about this one
}

func newPace(first, most int) *pace {
	p := &pace{tokens: make(chan struct{}, most), limit: float64(min(first, most))}
	for range int(p.limit) {
		p.tokens <- struct{}{}
	}
	return p
}

// enter waits for a place, and returns the era that leave wants to know.
func (p *pace) enter(ctx context.Context) (era int, err error) {
	select {
	case <-p.tokens:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.era, nil
}

func (p *pace) leave(era int, throttled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := int(p.limit)
	switch {
	case era != p.era:
	case throttled:
		p.era++
		p.limit = max(p.limit/2, 1)
		p.debt += before - int(p.limit)
	default:
		p.limit = min(p.limit+1/p.limit, float64(cap(p.tokens)))
		if int(p.limit) > before {
			p.giveBack()
		}
	}
	p.giveBack()
}

func (p *pace) giveBack() {
	if p.debt > 0 {
		p.debt--
		return
	}
	p.tokens <- struct{}{} // never blocks: there are at most as many tokens as the channel holds
}

// paced runs one write, which returns classified errors, at the table's pace.
func (t *Table) paced(ctx context.Context, f func() error) error {
	return t.patiently(ctx, func() error {
		era, err := t.pace.enter(ctx)
		if err != nil {
			return err
		}
		err = f()
		t.pace.leave(era, etl.KindOf(err) == etl.StoreThrottled)
		return err
	})
}

// patiently runs f, which returns classified errors, again for as long as it is throttled, up to the patience of [Retry];
// conflicts as often as its attempts.
func (t *Table) patiently(ctx context.Context, f func() error) error {
	waited := time.Duration(0)
	for attempt := 0; ; attempt++ {
		err := f()
		d := t.Retry.delay(attempt)
		if waited += d; err == nil || !errors.Is(err, errConflict) && etl.KindOf(err) != etl.StoreThrottled {
			return err
		}
		if attempt+1 >= t.Retry.Attempts && (errors.Is(err, errConflict) || waited > t.Retry.Patience) {
			return err
		}
		if err := t.Retry.Sleep(ctx, d); err != nil {
			return err
		}
	}
}
