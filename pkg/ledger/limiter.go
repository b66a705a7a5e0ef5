package ledger

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// The breaker of a source has the states of gobreaker, by its names.
const (
	breakerClosed   = "closed"    // requests pass
	breakerOpen     = "open"      // none does
	breakerHalfOpen = "half-open" // one request passes, the probe: it closes the breaker or opens it again
)

const (
	tripAfter  = 10               // failures in a row, of all invocations, that open the breaker
	openFor    = time.Minute      // from the last failure to the probe
	probeFor   = 90 * time.Second // longer than any attempt: a probe not heard of by then is lost
	rowEnds    = 5 * time.Minute  // a failure this long after the last one begins a new row
	maxHold    = time.Hour        // a longer demand to wait holds nobody else up: it may be nonsense, and each asks for itself
	freshFor   = time.Second      // how long an invocation goes by what it read of the shared state
	limitsHold = 5 * time.Minute  // how long after a lease its limits count as in use
	maxSkew    = 5 * time.Second  // how far ahead of ours another machine's clock is believed to be

	firstLease = 16 // tokens an invocation asks for at first
	leastLease = 4  // and at least from then on
)

// Limits is what a pipeline file says of its source's budget. No rate and no daily quota mean unlimited.
type Limits struct {
	Name    string  `json:"-"`                 // shared by all that use it
	Rate    float64 `json:"rate,omitempty"`    // requests a second
	Daily   int64   `json:"daily,omitempty"`   // requests a UTC day
	Reserve int64   `json:"reserve,omitempty"` // of the daily quota, left untouched
}

func (l Limits) unlimited() bool { return l.Rate == 0 && l.Daily == 0 }

func (l Limits) String() string {
	switch rate, day := fmt.Sprintf("%g requests a second", l.Rate), fmt.Sprintf("%d a day", l.Daily-l.Reserve); {
	case l.Daily == 0:
		return rate
	case l.Rate == 0:
		return day
	default:
		return rate + ", " + day
	}
}

// Limiter is one invocation's share of a source's budget, and its view of the source's breaker. All invocations share
// one item of the table, which is read once a second:
//
//   - Tokens are leased in chunks, with one conditional write a second at most. Each belongs to a second of the clock,
//     and those of a second are never more than the rate allows, whoever asks; under one request a second, a token is
//     leased alone. What a lease leaves over goes back to the daily quota with the next one.
//   - A request that succeeds costs no write while nothing is known to be wrong; a failed one costs one.
//
// Not for concurrent use.
type Limiter struct {
	ledger   *Ledger
	limits   Limits
	pipeline string
	holder   string
	rand     func() float64

	shared sharedLimits
	stored bool      // the item is there
	read   time.Time // when shared was read or written; zero = never
	raced  bool      // another invocation came between at the last write

	lease   lease
	next    time.Time // the rate's time for the next request
	probing bool
}

// lease is a chunk of tokens.
type lease struct {
	left, given int64
	at, until   time.Time // zero = there was none yet
}

// sharedLimits is the item's document.
type sharedLimits struct {
	Limits             // of the last lease
	Pipeline string    `json:"pipeline,omitempty"` // that took it
	LeasedAt time.Time `json:"leased_at,omitzero"`
	Second   int64     `json:"second"` // since 1970
	Taken    int64     `json:"taken"`  // tokens of that second
	Day      string    `json:"day,omitempty"`
	Used     int64     `json:"used"` // tokens of that day

	Breaker  string    `json:"breaker"`
	Failures int       `json:"failures"` // in a row
	FailedAt time.Time `json:"failed_at,omitzero"`
	Until    time.Time `json:"until,omitzero"` // open: when a probe is due; half-open: when it counts as lost
	Hold     time.Time `json:"hold,omitzero"`  // the source asked to be left alone until then

	Holder string `json:"holder"` // that wrote last
	Write  int    `json:"write"`  // raised by each write
}

// Limiter makes the limiter of one invocation of a pipeline's extract. Holder names the invocation; rand is uniform in
// [0, 1).
func (l *Ledger) Limiter(limits Limits, pipeline, holder string, rand func() float64) *Limiter {
	return &Limiter{ledger: l, limits: limits, pipeline: pipeline, holder: holder, rand: rand}
}

// verdict is what is to be done about a request: nothing, wait, or write first.
type verdict struct {
	wait  time.Duration
	why   string
	lease lease // to be written; until zero = none
	probe bool  // to be written
}

// Admit asks to make one request now. A positive wait means not yet, and why: ask again after it. Limits other than
// those another pipeline uses under the same name at this time are an error of kind ContractInvalid.
func (l *Limiter) Admit(ctx context.Context) (wait time.Duration, why string, err error) {
	for range maxTries {
		now := l.now()
		if age := now.Sub(l.read); l.read.IsZero() || age >= freshFor || age < 0 {
			if err := l.refresh(ctx, now); err != nil {
				return 0, "", err
			}
		}
		next := l.shared
		v, err := l.decide(&next, now)
		switch {
		case err != nil || v.wait > 0:
			return v.wait, v.why, err
		case !v.probe && v.lease.until.IsZero():
			l.take(now)
			return 0, "", nil
		}
		written, err := l.write(ctx, next, now)
		if err != nil {
			return 0, "", err
		}
		if written && v.probe {
			l.probing = true
		}
		if written && !v.lease.until.IsZero() {
			l.lease = v.lease
		}
	}
	return 0, "", l.contended()
}

// decide says what stands against a request now, or writes into s what has to be stored before it.
func (l *Limiter) decide(s *sharedLimits, now time.Time) (verdict, error) {
	if s.Breaker != breakerClosed && !l.probing {
		if d := s.Until.Sub(now); d > 0 {
			return verdict{wait: d, why: fmt.Sprintf("the breaker of source %s is %s: %d requests in a row failed, the last at %s",
				l.limits.Name, s.Breaker, s.Failures, etl.FormatTime(s.FailedAt))}, nil
		}
		s.Breaker, s.Until = breakerHalfOpen, now.Add(probeFor)
		return verdict{probe: true}, nil
	}
	if d := s.Hold.Sub(now); d > 0 {
		return verdict{wait: d, why: fmt.Sprintf("source %s asked to be left alone until %s", l.limits.Name, etl.FormatTime(s.Hold))}, nil
	}
	if l.limits.unlimited() {
		return verdict{}, nil
	}
	wait := func(d time.Duration) verdict {
		return verdict{wait: d, why: fmt.Sprintf("the budget %s gives %s", l.limits.Name, l.limits)}
	}
	if d := l.next.Sub(now); d > 0 {
		return wait(d), nil
	}
	if l.lease.left > 0 && now.Before(l.lease.until) {
		return verdict{}, nil
	}
	if err := l.agree(*s, now); err != nil {
		return verdict{}, err
	}
	chunk := lease{left: firstLease, at: now}
	if !l.lease.at.IsZero() {
		chunk.left = max(leastLease, 2*l.lease.given)
	}
	if d := l.byRate(s, &chunk, now); d > 0 {
		return wait(d + l.spread()), nil
	}
	if d := l.byDay(s, &chunk, now); d > 0 {
		return wait(d + l.spread()), nil
	}
	s.Limits, s.Pipeline, s.LeasedAt = l.limits, l.pipeline, now
	s.Limits.Name = ""
	s.Taken += chunk.left
	s.Used += chunk.left
	return verdict{lease: chunk}, nil
}

// byRate cuts the chunk to what the rate leaves, or says how long there is nothing.
func (l *Limiter) byRate(s *sharedLimits, chunk *lease, now time.Time) time.Duration {
	second := now.Unix()
	end := time.Unix(second+1, 0)
	again := !l.lease.at.IsZero() && l.lease.at.Unix() == second // one lease a second
	switch {
	case l.limits.Rate == 0:
		chunk.until = midnight(now)
		if again {
			return end.Sub(now)
		}
		return 0
	case l.limits.Rate < 1:
		gap := time.Duration(float64(time.Second) / l.limits.Rate)
		if d := s.LeasedAt.Add(gap).Sub(now); d > 0 && d <= gap+maxSkew {
			return d
		}
		chunk.left, chunk.until = 1, now.Add(gap)
		return 0
	}
	if ahead := time.Unix(s.Second, 0).Sub(now); ahead > 0 && ahead <= maxSkew {
		return ahead
	}
	if s.Second != second {
		s.Second, s.Taken = second, 0
	}
	// All seconds together keep the rate, though it may be no whole number.
	free := int64(math.Floor(float64(second+1)*l.limits.Rate)-math.Floor(float64(second)*l.limits.Rate)) - s.Taken
	if free <= 0 || again {
		return end.Sub(now)
	}
	usable := int64(math.Ceil(end.Sub(now).Seconds() * l.limits.Rate))
	chunk.left, chunk.until = min(chunk.left, free, usable), end
	return 0
}

// byDay cuts the chunk to what the daily quota leaves, or says how long there is nothing.
func (l *Limiter) byDay(s *sharedLimits, chunk *lease, now time.Time) time.Duration {
	day := now.UTC().Format(time.DateOnly)
	switch {
	case s.Day != day:
		s.Day, s.Used = day, 0
	case l.lease.at.UTC().Format(time.DateOnly) == day:
		s.Used -= l.lease.left
	}
	if l.limits.Daily == 0 {
		return 0
	}
	free := l.limits.Daily - l.limits.Reserve - s.Used
	if free <= 0 {
		return midnight(now).Sub(now)
	}
	chunk.left = min(chunk.left, free)
	return 0
}

func midnight(now time.Time) time.Time { return now.UTC().Truncate(24 * time.Hour).Add(24 * time.Hour) }

// take uses a token.
func (l *Limiter) take(now time.Time) {
	if l.limits.unlimited() {
		return
	}
	l.lease.left--
	l.lease.given++
	if l.limits.Rate > 0 {
		// A request that is late moves the ones after it by no more than it must.
		gap := time.Duration(float64(time.Second) / l.limits.Rate)
		if l.next = l.next.Add(gap); l.next.Before(now) {
			l.next = now
		}
	}
}

// agree refuses limits other than those that another pipeline uses under the same name at this time.
func (l *Limiter) agree(s sharedLimits, now time.Time) error {
	theirs := s.Limits
	theirs.Name = l.limits.Name
	if s.Pipeline == "" || s.Pipeline == l.pipeline || theirs == l.limits || now.Sub(s.LeasedAt) > limitsHold {
		return nil
	}
	return etl.Errorf(etl.ContractInvalid, "source.budget: pipeline %s uses the budget %s with %s, pipeline %s with %s: give both the same limits, or one of them another name",
		s.Pipeline, l.limits.Name, theirs, l.pipeline, l.limits)
}

// spread keeps invocations that met at one moment from meeting again at the next.
func (l *Limiter) spread() time.Duration {
	if !l.raced {
		return 0
	}
	return time.Duration(l.rand() * float64(time.Second) / 4)
}

// Observe tells how an admitted request ended: "" or the kind of its failure; and for how long the source wants to be
// left alone, 0 = it did not say. An end that says nothing about the source is not told.
func (l *Limiter) Observe(ctx context.Context, kind etl.Kind, demand time.Duration) error {
	for range maxTries {
		now := l.now()
		next := l.shared
		l.judge(&next, kind, demand, now)
		if next == l.shared {
			return nil
		}
		written, err := l.write(ctx, next, now)
		if err != nil {
			return err
		}
		if written {
			l.probing = false
			return nil
		}
	}
	return l.contended()
}

// judge writes into s what the end of a request makes of it.
func (l *Limiter) judge(s *sharedLimits, kind etl.Kind, demand time.Duration, now time.Time) {
	if until := now.Add(demand); demand > 0 && demand <= maxHold && until.Sub(s.Hold) >= time.Second {
		s.Hold = until
	}
	up := kind != etl.SourceUnavailable // whatever else it answered
	switch {
	case s.Breaker != breakerClosed && !l.probing: // asked before the breaker opened
	case up:
		s.Breaker, s.Failures, s.FailedAt, s.Until = breakerClosed, 0, time.Time{}, time.Time{}
	default:
		if now.Sub(s.FailedAt) > rowEnds && !l.probing {
			s.Failures = 0
		}
		s.Failures++
		s.FailedAt = now
		if l.probing || s.Failures >= tripAfter {
			s.Breaker, s.Until = breakerOpen, now.Add(openFor)
		}
	}
}

// refresh reads the shared state.
func (l *Limiter) refresh(ctx context.Context, now time.Time) error {
	item, err := l.ledger.Table.Get(ctx, l.key())
	if errors.Is(err, store.ErrNotFound) {
		l.shared, l.stored, l.read = sharedLimits{Breaker: breakerClosed}, false, now
		return nil
	}
	if err != nil {
		return fmt.Errorf("read limits of source %s: %w", l.limits.Name, err)
	}
	return l.see(item, now)
}

func (l *Limiter) see(item store.Item, now time.Time) error {
	s, err := decode[sharedLimits](item)
	if err != nil {
		return err
	}
	l.shared, l.stored, l.read = s, true, now
	return nil
}

// write stores what was decided, unless another invocation came between: then it is to be decided anew.
func (l *Limiter) write(ctx context.Context, next sharedLimits, now time.Time) (written bool, err error) {
	next.Holder, next.Write = l.holder, l.shared.Write+1
	doc, err := encode(next)
	if err != nil {
		return false, err
	}
	cond := store.Condition{Absent: true}
	if l.stored {
		cond = store.Condition{Equals: map[string]any{"write": int64(l.shared.Write)}}
	}
	err = l.ledger.Table.PutIf(ctx, store.Item{Key: l.key(), Doc: doc}, cond)
	var inWay *store.ConditionError
	switch {
	case err == nil:
		l.shared, l.stored, l.read, l.raced = next, true, now, false
		return true, nil
	case !errors.As(err, &inWay):
		return false, fmt.Errorf("write limits of source %s: %w", l.limits.Name, err)
	case inWay.Old == nil:
		l.raced = true
		return false, l.refresh(ctx, now)
	}
	if err := l.see(*inWay.Old, now); err != nil {
		return false, err
	}
	// A client under the store may have sent the write twice: then what is in the way is our own.
	written = l.shared == next
	l.raced = !written
	return written, nil
}

func (l *Limiter) contended() error {
	return etl.Errorf(etl.StoreUnavailable, "limits of source %s: their item changed under %d writes in a row", l.limits.Name, maxTries)
}

func (l *Limiter) key() store.Key {
	return store.Key{PK: etl.SourcePK(l.limits.Name), SK: etl.LimitsSK}
}

// now is the ledger's clock in the form that a document keeps.
func (l *Limiter) now() time.Time { return l.ledger.time().Round(0).UTC() }
