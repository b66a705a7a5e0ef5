package ledger_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
)

// TestClaim holds every rule of the claim (R20, R12, R18). The request is always that of execution "b"; "a" came before.
func TestClaim(t *testing.T) {
	type want struct {
		status     etl.Status
		kind       etl.Kind // of the error, "" = none
		state      ledger.State
		owner      string
		fence      int
		extraction int
		load       int
		reload     bool
		resumed    bool
		bound      bool
		window     etl.Window
	}
	open := func(t *testing.T, f *fixture) { f.claim(t, "a") }
	ended := func(t *testing.T, f *fixture) { f.claim(t, "a"); f.live["a"] = ledger.Ended }
	failed := func(t *testing.T, f *fixture) { f.claim(t, "a"); f.fail(t, "a", "1"); f.live["a"] = ledger.Ended }
	boundThenEnded := func(t *testing.T, f *fixture) { f.bind(t, f.claim(t, "a")); f.live["a"] = ledger.Ended }
	completed := func(t *testing.T, f *fixture) { f.complete(t, "a") }
	unknown := func(age time.Duration) func(*testing.T, *fixture) {
		return func(t *testing.T, f *fixture) {
			f.claim(t, "a")
			f.live["a"] = ledger.Unknown
			f.now = f.now.Add(age)
		}
	}
	crashedReload := func(t *testing.T, f *fixture) {
		f.complete(t, "first")
		r := f.request("a")
		r.Reload = true
		if c, err := f.Claim(t.Context(), r); err != nil || c.Status != "" {
			t.Fatalf("%+v, %v", c, err)
		}
		f.live["a"] = ledger.Ended
	}
	reload := func(r *ledger.ClaimRequest) { r.Reload = true }
	refetch := func(r *ledger.ClaimRequest) { r.Refetch = true }
	reprocess := func(r *ledger.ClaimRequest) { r.Reprocess = true }
	widen := func(r *ledger.ClaimRequest) { r.Window = widened }

	tests := []struct {
		name  string
		given func(*testing.T, *fixture)
		ask   []func(*ledger.ClaimRequest)
		want  want
	}{
		{"never claimed", nil, nil,
			want{state: ledger.StateRunning, owner: "b", fence: 1, extraction: 1, load: 1, window: window}},
		{"never claimed, the window is the request's", nil, []func(*ledger.ClaimRequest){widen},
			want{state: ledger.StateRunning, owner: "b", fence: 1, extraction: 1, load: 1, window: widened}},
		{"never claimed, refetch is a first extraction", nil, []func(*ledger.ClaimRequest){refetch},
			want{state: ledger.StateRunning, owner: "b", fence: 1, extraction: 1, load: 1, window: window}},
		{"never claimed, reload is a first load", nil, []func(*ledger.ClaimRequest){reload},
			want{state: ledger.StateRunning, owner: "b", fence: 1, extraction: 1, load: 1, window: window}},

		{"mine and running", func(t *testing.T, f *fixture) { f.claim(t, "b") }, nil,
			want{state: ledger.StateRunning, owner: "b", fence: 1, extraction: 1, load: 1, window: window}},
		{"mine and running, another window: the stored one", func(t *testing.T, f *fixture) { f.claim(t, "b") }, []func(*ledger.ClaimRequest){widen},
			want{state: ledger.StateRunning, owner: "b", fence: 1, extraction: 1, load: 1, window: window}},
		{"mine and failed: a redrive", func(t *testing.T, f *fixture) { f.claim(t, "b"); f.fail(t, "b", "1") }, nil,
			want{state: ledger.StateRunning, owner: "b", fence: 1, extraction: 1, load: 1, resumed: true, window: window}},
		{"mine, failed and resumed: still a redrive", func(t *testing.T, f *fixture) { f.claim(t, "b"); f.fail(t, "b", "1"); f.claim(t, "b") }, nil,
			want{state: ledger.StateRunning, owner: "b", fence: 1, extraction: 1, load: 1, resumed: true, window: window}},
		{"mine, resumed and worked on: no longer", func(t *testing.T, f *fixture) {
			o := f.claim(t, "b")
			f.fail(t, "b", "1")
			f.claim(t, "b")
			f.bind(t, o)
		}, nil,
			want{state: ledger.StateRunning, owner: "b", fence: 1, extraction: 1, load: 1, bound: true, window: window}},
		{"mine and failed, another window: the stored one", func(t *testing.T, f *fixture) { f.claim(t, "b"); f.fail(t, "b", "1") }, []func(*ledger.ClaimRequest){widen},
			want{state: ledger.StateRunning, owner: "b", fence: 1, extraction: 1, load: 1, resumed: true, window: window}},
		{"mine and refetched: not once more", func(t *testing.T, f *fixture) {
			completed(t, f)
			r := f.request("b")
			r.Refetch = true
			if _, err := f.Claim(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}, []func(*ledger.ClaimRequest){refetch},
			want{state: ledger.StateRunning, owner: "b", fence: 2, extraction: 2, load: 2, window: window}},
		{"mine and completed", func(t *testing.T, f *fixture) { f.complete(t, "b") }, nil,
			want{status: etl.StatusDone, state: ledger.StateCompleted, owner: "b", fence: 1, extraction: 1, load: 1, bound: true, window: window}},
		{"mine and completed: a flag has had its effect", func(t *testing.T, f *fixture) { f.complete(t, "b") }, []func(*ledger.ClaimRequest){reload},
			want{status: etl.StatusDone, state: ledger.StateCompleted, owner: "b", fence: 1, extraction: 1, load: 1, bound: true, window: window}},

		{"another's, alive", open, nil,
			want{status: etl.StatusBusy, state: ledger.StateRunning, owner: "a", fence: 1, extraction: 1, load: 1, window: window}},
		{"another's, alive, another window", open, []func(*ledger.ClaimRequest){widen},
			want{status: etl.StatusBusy, state: ledger.StateRunning, owner: "a", fence: 1, extraction: 1, load: 1, window: window}},
		{"another's, alive, refetch", open, []func(*ledger.ClaimRequest){refetch},
			want{status: etl.StatusBusy, state: ledger.StateRunning, owner: "a", fence: 1, extraction: 1, load: 1, window: window}},
		{"another's, failed but still to raise", func(t *testing.T, f *fixture) { f.claim(t, "a"); f.fail(t, "a", "1") }, nil,
			want{status: etl.StatusBusy, state: ledger.StateFailed, owner: "a", fence: 1, extraction: 1, load: 1, window: window}},
		{"another's, ended", ended, nil,
			want{state: ledger.StateRunning, owner: "b", fence: 2, extraction: 1, load: 1, window: window}},
		{"another's, failed and ended", failed, nil,
			want{state: ledger.StateRunning, owner: "b", fence: 2, extraction: 1, load: 1, window: window}},
		{"another's, bound and ended: the binding stays", boundThenEnded, nil,
			want{state: ledger.StateRunning, owner: "b", fence: 2, extraction: 1, load: 1, bound: true, window: window}},
		{"another's, unknown and young", unknown(time.Minute), nil,
			want{status: etl.StatusBusy, state: ledger.StateRunning, owner: "a", fence: 1, extraction: 1, load: 1, window: window}},
		{"another's, unknown for 10 minutes", unknown(10 * time.Minute), nil,
			want{status: etl.StatusBusy, state: ledger.StateRunning, owner: "a", fence: 1, extraction: 1, load: 1, window: window}},
		{"another's, unknown for longer", unknown(10*time.Minute + time.Second), nil,
			want{state: ledger.StateRunning, owner: "b", fence: 2, extraction: 1, load: 1, window: window}},
		{"another's, liveness not to be had", func(t *testing.T, f *fixture) { f.claim(t, "a"); f.liveErr = errors.New("throttled") }, nil,
			want{kind: etl.StoreUnavailable, state: ledger.StateRunning, owner: "a", fence: 1, extraction: 1, load: 1, window: window}},
		{"another's, liveness fails with a kind", func(t *testing.T, f *fixture) {
			f.claim(t, "a")
			f.liveErr = etl.Errorf(etl.StoreThrottled, "slow down")
		}, nil,
			want{kind: etl.StoreThrottled, state: ledger.StateRunning, owner: "a", fence: 1, extraction: 1, load: 1, window: window}},
		{"another's, liveness is nonsense", func(t *testing.T, f *fixture) { f.claim(t, "a"); f.live["a"] = 0 }, nil,
			want{kind: etl.Internal, state: ledger.StateRunning, owner: "a", fence: 1, extraction: 1, load: 1, window: window}},
		{"another's, ended, another window", ended, []func(*ledger.ClaimRequest){widen},
			want{kind: etl.WindowChanged, state: ledger.StateRunning, owner: "a", fence: 1, extraction: 1, load: 1, window: window}},
		{"another's, ended, another window, reload of nothing", ended, []func(*ledger.ClaimRequest){widen, reload},
			want{kind: etl.WindowChanged, state: ledger.StateRunning, owner: "a", fence: 1, extraction: 1, load: 1, window: window}},
		{"another's, ended, refetch takes the window", boundThenEnded, []func(*ledger.ClaimRequest){widen, refetch},
			want{state: ledger.StateRunning, owner: "b", fence: 2, extraction: 2, load: 2, window: widened}},
		{"another's, ended, reprocess keeps the window", boundThenEnded, []func(*ledger.ClaimRequest){widen, reprocess},
			want{state: ledger.StateRunning, owner: "b", fence: 2, extraction: 1, load: 2, window: window}},
		{"another's, ended, reload: first finish", boundThenEnded, []func(*ledger.ClaimRequest){reload},
			want{state: ledger.StateRunning, owner: "b", fence: 2, extraction: 1, load: 1, bound: true, window: window}},

		{"a crashed reload goes on", crashedReload, nil,
			want{state: ledger.StateRunning, owner: "b", fence: 3, extraction: 1, load: 2, reload: true, bound: true, window: window}},
		{"a crashed reload goes on, whatever the window", crashedReload, []func(*ledger.ClaimRequest){widen},
			want{state: ledger.StateRunning, owner: "b", fence: 3, extraction: 1, load: 2, reload: true, bound: true, window: window}},
		{"a crashed reload asked for again is the same load", crashedReload, []func(*ledger.ClaimRequest){reload},
			want{state: ledger.StateRunning, owner: "b", fence: 3, extraction: 1, load: 2, reload: true, bound: true, window: window}},
		{"a crashed reload gives way to a refetch", crashedReload, []func(*ledger.ClaimRequest){widen, refetch},
			want{state: ledger.StateRunning, owner: "b", fence: 3, extraction: 2, load: 3, window: widened}},
		{"a crashed reload gives way to a reprocess", crashedReload, []func(*ledger.ClaimRequest){reprocess},
			want{state: ledger.StateRunning, owner: "b", fence: 3, extraction: 1, load: 3, window: window}},

		{"completed", completed, nil,
			want{status: etl.StatusDone, state: ledger.StateCompleted, owner: "a", fence: 1, extraction: 1, load: 1, bound: true, window: window}},
		{"completed, whatever the window", completed, []func(*ledger.ClaimRequest){widen},
			want{status: etl.StatusDone, state: ledger.StateCompleted, owner: "a", fence: 1, extraction: 1, load: 1, bound: true, window: window}},
		{"completed, reload", completed, []func(*ledger.ClaimRequest){reload},
			want{state: ledger.StateRunning, owner: "b", fence: 2, extraction: 1, load: 2, reload: true, bound: true, window: window}},
		{"completed, reload, whatever the window", completed, []func(*ledger.ClaimRequest){reload, widen},
			want{state: ledger.StateRunning, owner: "b", fence: 2, extraction: 1, load: 2, reload: true, bound: true, window: window}},
		{"completed, refetch", completed, []func(*ledger.ClaimRequest){refetch, widen},
			want{state: ledger.StateRunning, owner: "b", fence: 2, extraction: 2, load: 2, window: widened}},
		{"completed, reprocess", completed, []func(*ledger.ClaimRequest){reprocess, widen},
			want{state: ledger.StateRunning, owner: "b", fence: 2, extraction: 1, load: 2, window: window}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture()
			if tt.given != nil {
				tt.given(t, f)
			}
			before := f.get(t)
			r := f.request("b")
			for _, a := range tt.ask {
				a(&r)
			}
			c, err := f.Claim(t.Context(), r)
			got := want{}
			if err != nil {
				got.kind = etl.KindOf(err)
				if c != (ledger.Claim{}) {
					t.Errorf("an error and a claim: %+v", c)
				}
			}
			b := f.get(t)
			got.status, got.resumed = c.Status, c.Resumed
			got.state, got.owner, got.fence = b.State, b.Owner, b.Fence
			got.extraction, got.load, got.reload = b.Extraction, b.Load, b.Reload
			got.bound, got.window = b.Binding != nil, b.Window
			if got != tt.want {
				t.Errorf("got  %+v\nwant %+v (error %v)", got, tt.want, err)
			}
			owner := ledger.Owner{}
			if err == nil {
				same(t, c.Batch, b)
				if c.Status == "" {
					owner = ledger.Owner{Batch: batch, Execution: "b", Fence: b.Fence}
				}
			}
			if c.Owner != owner {
				t.Errorf("owner %+v, want %+v", c.Owner, owner)
			}
			if (err != nil || c.Status != "") && b.Write != before.Write {
				t.Errorf("nothing was claimed, and yet the item was written")
			}
		})
	}
}

// same compares batches by what they say.
func same(t testing.TB, got, want ledger.Batch) {
	t.Helper()
	if g, w := show(got), show(want); g != w {
		t.Errorf("got  %s\nwant %s", g, w)
	}
}

func TestClaimAsksOnlyWhatItMust(t *testing.T) {
	f := newFixture()
	f.claim(t, "a")
	f.claim(t, "a")
	f.complete(t, "a")
	r := f.request("b")
	if _, err := f.Claim(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	r.Reload = true
	if _, err := f.Claim(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if f.asked != 0 {
		t.Errorf("asked %d times for a liveness that decides nothing", f.asked)
	}
}

func TestFirstClaimFillsTheItem(t *testing.T) { // R12, R19
	f := newFixture()
	f.claim(t, "a")
	at := etl.FormatTime(began)
	same(t, f.get(t), ledger.Batch{
		ID: "orders/20261130T100000Z", Pipeline: "orders", Slot: "20261130T100000Z", Source: "api.example.com",
		State: ledger.StateRunning, Stage: etl.StageExtract, Owner: "a", Fence: 1, Window: window, Extraction: 1, Load: 1,
		PipelineDigest: "digest-a", StartedAt: at, ClaimedAt: at, UpdatedAt: at, Write: 1,
	})
}

func TestReopenBeginsTheBooksAnew(t *testing.T) {
	tests := []struct {
		name  string
		flag  func(*ledger.ClaimRequest)
		wants func(*ledger.Batch)
	}{
		{"reload", func(r *ledger.ClaimRequest) { r.Reload = true }, func(b *ledger.Batch) { b.Reload = true; v := bound; b.Binding = &v }},
		{"reprocess", func(r *ledger.ClaimRequest) { r.Reprocess = true }, func(b *ledger.Batch) { v := bound; b.Prior = &v }},
		{"refetch", func(r *ledger.ClaimRequest) { r.Refetch = true }, func(b *ledger.Batch) {
			b.Extraction, b.ManifestDigest = 2, ""
			b.Parts, b.Pages, b.Records, b.Bytes = 0, 0, 0, 0
			v := bound
			b.Prior = &v
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture()
			o := f.claim(t, "a")
			f.fail(t, "a", "1")
			if _, err := f.Update(t.Context(), o, etl.StageExtract, func(b *ledger.Batch) { b.Retries, b.WaitedMS = 4, 900 }); err != nil {
				t.Fatal(err)
			}
			f.complete(t, "a")
			f.now = f.now.Add(time.Hour)
			r := f.request("b")
			tt.flag(&r)
			c, err := f.Claim(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			at := etl.FormatTime(f.now)
			want := ledger.Batch{
				ID: batch.String(), Pipeline: "orders", Slot: batch.SlotID(), Source: "api.example.com",
				State: ledger.StateRunning, Stage: etl.StageExtract, Owner: "b", Fence: 2, Window: window, Extraction: 1, Load: 2,
				Parts: 1, Pages: 2, Records: 6, Bytes: 100, ManifestDigest: "m", PipelineDigest: "digest-b",
				StartedAt: at, ClaimedAt: at, UpdatedAt: at, Write: c.Batch.Write,
			}
			tt.wants(&want)
			same(t, c.Batch, want)
		})
	}
}

func TestTakeoverKeepsTheBooks(t *testing.T) { // R17, R20
	f := newFixture()
	f.bind(t, f.claim(t, "a"))
	f.fail(t, "a", "1")
	before := f.get(t)
	f.live["a"] = ledger.Ended
	f.now = f.now.Add(time.Hour)
	f.claim(t, "b")
	want := before
	want.State, want.Stage, want.Owner, want.Fence, want.PipelineDigest = ledger.StateRunning, etl.StageExtract, "b", 2, "digest-b"
	want.ClaimedAt, want.UpdatedAt, want.Write = etl.FormatTime(f.now), etl.FormatTime(f.now), before.Write+1
	same(t, f.get(t), want)
}

// TestTakeoverWithReprocess: what an earlier gate counted does not hold for a binding that is still to come.
func TestTakeoverWithReprocess(t *testing.T) {
	f := newFixture()
	o := f.claim(t, "a")
	f.bind(t, o)
	if _, err := f.Update(t.Context(), o, etl.StageGate, func(b *ledger.Batch) { b.Counts = &balanced }); err != nil {
		t.Fatal(err)
	}
	f.live["a"] = ledger.Ended
	r := f.request("b")
	r.Reprocess = true
	c, err := f.Claim(t.Context(), r)
	if err != nil || c.Batch.Counts != nil || c.Batch.Binding != nil || c.Batch.Parts != 1 {
		t.Errorf("%s, %v: want the landed parts alone", show(c.Batch), err)
	}
}

// TestPrior: what a batch was bound to when a reprocess opened it, or a refetch, or had been tried under, is known until it
// is completed, however often such a claim dies: else nobody finds it again. B1, B2, R11
func TestPrior(t *testing.T) {
	newer := bound
	newer.Revision.Contract++
	reprocess := func(r *ledger.ClaimRequest) { r.Reprocess = true }
	refetch := func(r *ledger.ClaimRequest) { r.Refetch = true }
	plain := func(*ledger.ClaimRequest) {}
	for _, c := range []struct {
		name  string
		given func(*testing.T, *fixture)
		asks  []func(*ledger.ClaimRequest) // each dies
		binds bool                         // the last one dies bound to a newer revision
		want  *etl.Binding
	}{
		{"completed", func(t *testing.T, f *fixture) { f.complete(t, "a") }, []func(*ledger.ClaimRequest){plain}, false, nil},
		{"reload", func(t *testing.T, f *fixture) { f.complete(t, "a") }, []func(*ledger.ClaimRequest){func(r *ledger.ClaimRequest) { r.Reload = true }}, false, nil},
		{"reprocess", func(t *testing.T, f *fixture) { f.complete(t, "a") }, []func(*ledger.ClaimRequest){reprocess}, false, &bound},
		{"refetch", func(t *testing.T, f *fixture) { f.complete(t, "a") }, []func(*ledger.ClaimRequest){refetch}, false, &bound},
		{"bound and again", func(t *testing.T, f *fixture) { f.complete(t, "a") }, []func(*ledger.ClaimRequest){reprocess, reprocess, plain, reprocess}, true, &bound},
		{"a plain run", func(t *testing.T, f *fixture) { f.complete(t, "a") }, []func(*ledger.ClaimRequest){reprocess, plain}, false, &bound},
		{"tried alone", func(t *testing.T, f *fixture) {
			_, err := f.Update(t.Context(), f.claim(t, "a"), etl.StageGate, func(b *ledger.Batch) { v := bound; b.Tried = &v })
			if err != nil {
				t.Fatal(err)
			}
		}, []func(*ledger.ClaimRequest){reprocess}, false, &bound},
		{"never at a gate", func(t *testing.T, f *fixture) { f.claim(t, "a") }, []func(*ledger.ClaimRequest){reprocess}, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture()
			c.given(t, f)
			f.live["a"] = ledger.Ended
			var o ledger.Owner
			for i, ask := range c.asks {
				r := f.request(fmt.Sprint("e", i))
				ask(&r)
				claim, err := f.Claim(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				f.live[r.Execution], o = ledger.Ended, claim.Owner
				if c.binds && claim.Status == "" {
					if _, err := f.Update(t.Context(), o, etl.StageGate, func(b *ledger.Batch) { v := newer; b.Binding = &v }); err != nil {
						t.Fatal(err)
					}
				}
			}
			b := f.get(t)
			if c.want == nil && b.Prior != nil || c.want != nil && (b.Prior == nil || *b.Prior != *c.want) {
				t.Fatalf("prior %+v, want %+v", b.Prior, c.want)
			}
			if b.State == ledger.StateCompleted {
				return
			}
			f.bind(t, o)
			if b, err := f.Settle(t.Context(), o, balanced); err != nil || b.Prior != nil {
				t.Errorf("completed: prior %+v, %v", b.Prior, err)
			}
		})
	}
}

// TestManyClaim lets executions race for one batch: one wins, the others see it alive (R20).
func TestManyClaim(t *testing.T) {
	tests := []struct {
		name  string
		given func(*testing.T, *fixture)
		flag  func(*ledger.ClaimRequest)
		fence int
		load  int
	}{
		{"a new batch", func(*testing.T, *fixture) {}, func(*ledger.ClaimRequest) {}, 1, 1},
		{"a dead owner's", func(t *testing.T, f *fixture) { f.claim(t, "dead") }, func(*ledger.ClaimRequest) {}, 2, 1},
		{"a reload", func(t *testing.T, f *fixture) { f.complete(t, "dead") }, func(r *ledger.ClaimRequest) { r.Reload = true }, 2, 2},
		{"a refetch", func(t *testing.T, f *fixture) { f.complete(t, "dead") }, func(r *ledger.ClaimRequest) { r.Refetch = true }, 2, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture()
			tt.given(t, f)
			const n = 50
			claims, errs := make([]ledger.Claim, n), make([]error, n)
			var start, done sync.WaitGroup
			start.Add(1)
			for i := range n {
				done.Go(func() {
					r := ledger.ClaimRequest{Batch: batch, Execution: fmt.Sprint("e", i), Window: window, Alive: onlyDeadIsDead}
					tt.flag(&r)
					start.Wait()
					claims[i], errs[i] = f.Claim(t.Context(), r)
				})
			}
			start.Done()
			done.Wait()
			winners := 0
			for i, c := range claims {
				switch {
				case errs[i] != nil:
					t.Error(errs[i])
				case c.Status == "":
					winners++
					if c.Owner.Fence != tt.fence || c.Batch.Load != tt.load {
						t.Errorf("winner %+v, want fence %d and load %d", c, tt.fence, tt.load)
					}
				case c.Status != etl.StatusBusy:
					t.Errorf("a loser got %q, want busy", c.Status)
				}
			}
			if winners != 1 {
				t.Errorf("%d winners, want 1", winners)
			}
		})
	}
}
