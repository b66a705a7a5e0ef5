package ledger_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/mem"
)

// crowd is a number of invocations that share a source, on one clock that moves to whoever is due next.
type crowd struct {
	table *mem.Table
	now   time.Time
	asked []request // in order
	peers []*peer
	leap  int // most writes in a second of the clock
	mark  struct {
		second int64
		writes int
	}
}

type request struct {
	who int
	at  time.Time
}

// peer is an invocation that makes one request after the other.
type peer struct {
	*ledger.Limiter
	due   time.Time
	slow  time.Duration // what a request takes
	ends  func() (etl.Kind, time.Duration)
	waits []time.Duration
	why   string
}

var dawn = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func newCrowd(limits ledger.Limits, slow ...time.Duration) *crowd {
	c := &crowd{table: mem.NewTable(ledger.Schema()), now: dawn}
	for i, d := range slow {
		c.join(limits, fmt.Sprintf("orders-%d", i), d)
	}
	return c
}

func (c *crowd) join(limits ledger.Limits, pipeline string, slow time.Duration) *peer {
	l := &ledger.Ledger{Table: c.table, Now: func() time.Time { return c.now }}
	limits.Name = cmp.Or(limits.Name, "api.example.com")
	n := 0
	p := &peer{slow: slow, due: c.now, ends: func() (etl.Kind, time.Duration) { return "", 0 },
		Limiter: l.Limiter(limits, pipeline, fmt.Sprint("holder ", len(c.peers)), func() float64 { n++; return float64(n%10) / 10 })}
	c.peers = append(c.peers, p)
	return p
}

// step lets the peer that is due next do what it wants to.
func (c *crowd) step(ctx context.Context) error {
	i := 0
	for j, p := range c.peers {
		if p.due.Before(c.peers[i].due) {
			i = j
		}
	}
	p := c.peers[i]
	if p.due.After(c.now) {
		c.now = p.due
	}
	if s := c.now.Unix(); s != c.mark.second {
		c.mark.second, c.mark.writes = s, c.writes()
	}
	wait, why, err := p.Admit(ctx)
	if err != nil {
		return err
	}
	c.leap = max(c.leap, c.writes()-c.mark.writes)
	if wait > 0 {
		p.waits, p.why = append(p.waits, wait), why
		p.due = c.now.Add(wait)
		return nil
	}
	c.asked = append(c.asked, request{i, c.now})
	kind, demand := p.ends()
	p.due = c.now.Add(p.slow)
	return p.Observe(ctx, kind, demand)
}

func (c *crowd) run(t testing.TB, d time.Duration) {
	t.Helper()
	for end := c.now.Add(d); ; {
		if due := slices.MinFunc(c.peers, func(a, b *peer) int { return a.due.Compare(b.due) }).due; !due.Before(end) {
			c.now = end
			return
		}
		if err := c.step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// most is the highest number of requests in a second of the clock.
func (c *crowd) most() int {
	count, most := map[int64]int{}, 0
	for _, r := range c.asked {
		count[r.at.Unix()]++
		most = max(most, count[r.at.Unix()])
	}
	return most
}

func (c *crowd) writes() int { return c.table.Calls()["PutIf"] }

// TestRate: however many invocations share a budget, they keep its rate together, and use it. B11
func TestRate(t *testing.T) {
	for _, tc := range []struct {
		name  string
		rate  float64
		slow  []time.Duration
		most  int     // in a second
		least float64 // of what the rate allows, or of what the peers could ask
	}{
		{"one fast", 10, []time.Duration{0}, 10, 0.95},
		{"a hundred a second", 100, []time.Duration{0}, 100, 0.95},
		{"five fast", 10, slices.Repeat([]time.Duration{time.Millisecond}, 5), 10, 0.8},
		{"forty", 10, slices.Repeat([]time.Duration{50 * time.Millisecond}, 40), 10, 0.8},
		{"two slow ones never wait", 10, []time.Duration{500 * time.Millisecond, 500 * time.Millisecond}, 10, 0.35},
		{"no whole number", 2.5, []time.Duration{0, 0}, 3, 0.8},
		{"a hundred a minute", 100.0 / 60, []time.Duration{0, 0}, 2, 0.8},
		{"thirty a minute", 0.5, []time.Duration{0, 0}, 1, 0.95},
		{"one an hour", 1.0 / 3600, []time.Duration{0}, 1, 0.3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCrowd(ledger.Limits{Rate: tc.rate}, tc.slow...)
			const minutes = 10
			c.run(t, minutes*time.Minute)
			if got := c.most(); got > tc.most {
				t.Errorf("%d requests in a second, want at most %d", got, tc.most)
			}
			allowed := tc.rate*minutes*60 + 1
			if n := float64(len(c.asked)); n > allowed || n < tc.least*allowed {
				t.Errorf("%g requests, want %g to %g", n, tc.least*allowed, allowed)
			}
			if c.leap > len(tc.slow) {
				t.Errorf("%d writes in a second, want at most 1 an invocation", c.leap)
			}
			if len(tc.slow) == 1 {
				// One alone is not let loose all at once either.
				for i := range max(0, len(c.asked)-4) {
					if gap := c.asked[i+4].at.Sub(c.asked[i].at).Seconds(); gap < 3/tc.rate-1e-6 {
						t.Fatalf("5 requests within %g s", gap)
					}
				}
			}
			t.Logf("%d requests, %d writes, %d reads", len(c.asked), c.writes(), c.table.Calls()["Get"])
		})
	}
}

// TestRateProperty: for any mix of invocations no second has more requests than its share.
func TestRateProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Float64Range(0.2, 40).Draw(t, "rate")
		c := newCrowd(ledger.Limits{Rate: rate})
		for i := range rapid.IntRange(1, 6).Draw(t, "peers") {
			p := c.join(ledger.Limits{Rate: rate}, "orders", time.Duration(rapid.Int64Range(0, int64(3*time.Second)).Draw(t, "slow")))
			p.due = dawn.Add(time.Duration(i) * 137 * time.Millisecond)
		}
		for range 300 {
			if err := c.step(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if most := c.most(); float64(most) >= rate+1 {
			t.Fatalf("%d requests in a second at a rate of %g", most, rate)
		}
	})
}

// TestDaily: the daily quota less its reserve is never passed, leftovers are not lost, and the next day begins anew. B11
func TestDaily(t *testing.T) {
	c := newCrowd(ledger.Limits{Daily: 1000, Reserve: 100}, 100*time.Millisecond, 150*time.Millisecond, 3*time.Second)
	c.run(t, 11*time.Hour)
	if n := len(c.asked); n > 900 || n < 850 {
		t.Errorf("%d requests on the first day, want 900 or hardly less", n)
	}
	if why := c.peers[0].why; !strings.Contains(why, "900 a day") {
		t.Errorf("why: %s", why)
	}
	first := len(c.asked)
	c.run(t, 2*time.Hour)
	if n := len(c.asked) - first; n > 900 || n < 850 {
		t.Errorf("%d requests on the second day, want 900 or hardly less", n)
	}
	if at := c.asked[first].at; at.Before(dawn.Add(12*time.Hour)) || at.After(dawn.Add(12*time.Hour+time.Second)) {
		t.Errorf("the second day begins at %s", at)
	}
}

// What a lease leaves over when its second ends is not lost to the daily quota.
func TestLeftovers(t *testing.T) {
	c := newCrowd(ledger.Limits{Rate: 10, Daily: 1000}, 500*time.Millisecond)
	c.run(t, 11*time.Hour)
	if n := len(c.asked); n > 1000 || n < 990 {
		t.Errorf("%d requests of a quota of 1,000", n)
	}
}

// TestLimiterCost is the bill of 1,000 requests. A request that succeeds under no budget costs no write.
func TestLimiterCost(t *testing.T) {
	for _, tc := range []struct {
		name   string
		limits ledger.Limits
		slow   time.Duration
		bad    int // every nth request fails
		writes int // at most
	}{
		{"no budget", ledger.Limits{}, 200 * time.Millisecond, 0, 0},
		{"10 a second, used up", ledger.Limits{Rate: 10}, 0, 0, 101},
		{"10 a second, half used", ledger.Limits{Rate: 10}, 200 * time.Millisecond, 0, 201},
		{"100 a second, slow source", ledger.Limits{Rate: 100}, time.Second, 0, 1000},
		{"a daily quota", ledger.Limits{Daily: 1e6}, 200 * time.Millisecond, 0, 20},
		{"one in 50 fails", ledger.Limits{}, 200 * time.Millisecond, 50, 40},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCrowd(tc.limits, tc.slow)
			c.peers[0].ends = func() (etl.Kind, time.Duration) {
				if tc.bad > 0 && len(c.asked)%tc.bad == 0 {
					return etl.SourceUnavailable, 0
				}
				return "", 0
			}
			for len(c.asked) < 1000 {
				if err := c.step(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("1,000 requests in %s: %d writes, %d reads", c.now.Sub(dawn), c.writes(), c.table.Calls()["Get"])
			if c.writes() > tc.writes {
				t.Errorf("%d writes, want at most %d", c.writes(), tc.writes)
			}
		})
	}
}

// TestBreaker: ten failures in a row of all invocations together open it; after a minute one of them makes one request,
// whose end opens or closes it for all. R7
func TestBreaker(t *testing.T) {
	down := true
	c := newCrowd(ledger.Limits{}, slices.Repeat([]time.Duration{1300 * time.Millisecond}, 5)...)
	for i, p := range c.peers {
		p.due = dawn.Add(time.Duration(i) * 1100 * time.Millisecond)
		p.ends = func() (etl.Kind, time.Duration) {
			if down {
				return etl.SourceUnavailable, 0
			}
			return "", 0
		}
	}
	c.run(t, time.Minute)
	// One that read the state within the second before it opened may still ask.
	opened := len(c.asked)
	if opened < 10 || opened > 14 {
		t.Fatalf("%d requests before the breaker opened, want 10, and those of the last second", opened)
	}
	c.run(t, 5*time.Minute)
	if probes := len(c.asked) - opened; probes < 4 || probes > 6 {
		t.Fatalf("%d probes in 5 minutes, want one a minute", probes)
	}
	for i := opened + 1; i < len(c.asked); i++ {
		if gap := c.asked[i].at.Sub(c.asked[i-1].at); gap < time.Minute {
			t.Fatalf("two probes within %s", gap)
		}
	}
	if why := c.peers[0].why; !strings.Contains(why, "the breaker of source api.example.com is open") || !strings.Contains(why, "requests in a row failed") {
		t.Errorf("why: %s", why)
	}
	down = false
	before := len(c.asked)
	c.run(t, 10*time.Minute)
	if n := len(c.asked) - before; n < 1500 {
		t.Errorf("%d requests in 10 minutes once the source was back", n)
	}
}

// An answer to a request from before the breaker opened does not close it.
func TestLateAnswer(t *testing.T) {
	c := newCrowd(ledger.Limits{}, 0, 0)
	late, failing := c.peers[0], c.peers[1]
	if wait, _, err := late.Admit(t.Context()); wait != 0 || err != nil {
		t.Fatal(wait, err)
	}
	for range 10 {
		if wait, _, err := failing.Admit(t.Context()); wait != 0 || err != nil {
			t.Fatal(wait, err)
		}
		if err := failing.Observe(t.Context(), etl.SourceUnavailable, 0); err != nil {
			t.Fatal(err)
		}
	}
	c.now = c.now.Add(2 * time.Second)
	if wait, _, err := late.Admit(t.Context()); wait != 58*time.Second || err != nil {
		t.Fatalf("wait %s, %v", wait, err)
	}
	if err := late.Observe(t.Context(), "", 0); err != nil {
		t.Fatal(err)
	}
	if wait, _, err := late.Admit(t.Context()); wait != 58*time.Second || err != nil {
		t.Fatalf("after a late answer: wait %s, %v", wait, err)
	}
}

// TestLostProbe: an invocation that dies with the probe does not keep the breaker open for ever.
func TestLostProbe(t *testing.T) {
	c := newCrowd(ledger.Limits{}, 0)
	p := c.peers[0]
	p.ends = func() (etl.Kind, time.Duration) { return etl.SourceUnavailable, 0 }
	for range 10 {
		if err := c.step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c.now = c.now.Add(time.Minute)
	if wait, _, err := p.Admit(t.Context()); wait != 0 || err != nil {
		t.Fatalf("probe: %s, %v", wait, err)
	}
	other := c.join(ledger.Limits{}, "orders", 0)
	wait, why, err := other.Admit(t.Context())
	if err != nil || wait != 90*time.Second || !strings.Contains(why, "half-open") {
		t.Fatalf("beside the probe: %s, %q, %v", wait, why, err)
	}
	c.now = c.now.Add(wait)
	if wait, _, err := other.Admit(t.Context()); wait != 0 || err != nil {
		t.Fatalf("after a lost probe: %s, %v", wait, err)
	}
	if err := other.Observe(t.Context(), "", 0); err != nil {
		t.Fatal(err)
	}
	if wait, _, err := c.join(ledger.Limits{}, "orders", 0).Admit(t.Context()); wait != 0 || err != nil {
		t.Fatalf("closed: %s, %v", wait, err)
	}
}

// TestNoTrip: what must not open the breaker.
func TestNoTrip(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(n int) etl.Kind
		gap  time.Duration
	}{
		{"a success between", func(n int) etl.Kind {
			if n%10 == 9 {
				return ""
			}
			return etl.SourceUnavailable
		}, time.Second},
		{"failures long apart", func(int) etl.Kind { return etl.SourceUnavailable }, 6 * time.Minute},
		{"answers that are refusals", func(int) etl.Kind { return etl.SourceRejected }, time.Second},
		{"answers that are no pages", func(int) etl.Kind { return etl.SourceMalformed }, time.Second},
		{"throttling", func(int) etl.Kind { return etl.SourceThrottled }, time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCrowd(ledger.Limits{}, tc.gap)
			c.peers[0].ends = func() (etl.Kind, time.Duration) { return tc.end(len(c.asked)), 0 }
			for range 40 {
				if err := c.step(t.Context()); err != nil {
					t.Fatal(err)
				}
				item, err := c.table.Get(t.Context(), store.Key{PK: "source#api.example.com", SK: "limits"})
				if err == nil && !strings.Contains(string(item.Doc), `"breaker":"closed"`) {
					t.Fatalf("after %d requests: %s", len(c.asked), item.Doc)
				}
			}
			if len(c.asked) != 40 {
				t.Errorf("%d of 40 requests passed: %s", len(c.asked), c.peers[0].why)
			}
		})
	}
}

// TestHold: a wait that the source demands of one invocation holds for all, unless it is longer than an hour.
func TestHold(t *testing.T) {
	for _, tc := range []struct{ demand, want time.Duration }{
		{2 * time.Minute, 2 * time.Minute}, {time.Hour, time.Hour}, {484289 * time.Hour, 0}, {0, 0},
	} {
		c := newCrowd(ledger.Limits{}, 0, 0)
		if _, _, err := c.peers[0].Admit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := c.peers[0].Observe(t.Context(), etl.SourceThrottled, tc.demand); err != nil {
			t.Fatal(err)
		}
		wait, why, err := c.peers[1].Admit(t.Context())
		if err != nil || wait != tc.want || (wait > 0) != strings.Contains(why, "asked to be left alone") {
			t.Errorf("demand %s: %s, %q, %v", tc.demand, wait, why, err)
		}
	}
}

// TestOtherLimits: two pipelines that give one budget different limits at the same time are told so; a changed file is
// no fault.
func TestOtherLimits(t *testing.T) {
	c := newCrowd(ledger.Limits{Rate: 10}, 0)
	if err := c.step(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := c.join(ledger.Limits{Rate: 5, Daily: 100}, "refunds", 0)
	_, _, err := other.Admit(t.Context())
	if etl.KindOf(err) != etl.ContractInvalid || !strings.Contains(err.Error(), "orders-0 uses the budget api.example.com with 10 requests a second, pipeline refunds with 5 requests a second, 100 a day") {
		t.Fatalf("error %v", err)
	}
	if _, _, err := c.join(ledger.Limits{}, "without", 0).Admit(t.Context()); err != nil {
		t.Fatalf("a pipeline without limits: %v", err)
	}
	c.now = c.now.Add(time.Second)
	if _, _, err := c.join(ledger.Limits{Rate: 20}, "orders-0", 0).Admit(t.Context()); err != nil {
		t.Fatalf("the same pipeline's new limits: %v", err)
	}
	c.now = c.now.Add(6 * time.Minute)
	if _, _, err := other.Admit(t.Context()); err != nil {
		t.Fatalf("limits nobody uses any more: %v", err)
	}
}

// TestLimiterFaults: a ledger that fails is an error of its kind, and a write whose reply was lost and that the client
// sent again is known as our own.
func TestLimiterFaults(t *testing.T) {
	away := etl.Errorf(etl.StoreUnavailable, "away")
	for _, op := range []string{"Get", "PutIf"} {
		c := newCrowd(ledger.Limits{Rate: 1}, 0)
		c.table.OnCall = func(o, _ string) (bool, error) {
			if o == op {
				return false, away
			}
			return true, nil
		}
		if _, _, err := c.peers[0].Admit(t.Context()); !errors.Is(err, away) || !strings.Contains(err.Error(), "api.example.com") {
			t.Errorf("%s: %v", op, err)
		}
	}
	twice := &twiceTable{Table: mem.NewTable(ledger.Schema())}
	now := dawn
	l := (&ledger.Ledger{Table: twice, Now: func() time.Time { return now }}).Limiter(ledger.Limits{Name: "x", Rate: 2}, "orders", "me", func() float64 { return 0 })
	for i := range 2 {
		if wait, _, err := l.Admit(t.Context()); wait != 0 || err != nil {
			t.Fatalf("request %d: %s, %v", i, wait, err)
		}
		now = now.Add(500 * time.Millisecond)
	}
	if twice.puts != 1 {
		t.Errorf("%d leases for two requests", twice.puts)
	}
}

// twiceTable sends every write twice, as a client does whose first reply was lost.
type twiceTable struct {
	store.Table
	puts int
}

func (t *twiceTable) PutIf(ctx context.Context, item store.Item, cond store.Condition) error {
	t.puts++
	if err := t.Table.PutIf(ctx, item, cond); err != nil {
		return err
	}
	return t.Table.PutIf(ctx, item, cond)
}
