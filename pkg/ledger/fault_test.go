package ledger_test

import (
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/disk"
)

// scenario is one call of a method, after what was there before.
type scenario struct {
	name  string
	given func(*testing.T, *fixture)
	call  func(context.Context, *fixture) (any, error)
}

func scenarios() []scenario {
	owner := ledger.Owner{Batch: batch, Execution: "a", Fence: 1}
	claim := func(execution string, flag func(*ledger.ClaimRequest)) func(context.Context, *fixture) (any, error) {
		return func(ctx context.Context, f *fixture) (any, error) {
			r := f.request(execution)
			flag(&r)
			c, err := f.Claim(ctx, r)
			return []any{c.Status, show(c.Batch), c.Owner, c.Resumed}, err
		}
	}
	none := func(*ledger.ClaimRequest) {}
	nothing := func(*testing.T, *fixture) {}
	return []scenario{
		{"first claim", nothing, claim("a", none)},
		{"claim again", func(t *testing.T, f *fixture) { f.claim(t, "a") }, claim("a", none)},
		{"resume", func(t *testing.T, f *fixture) { f.claim(t, "a"); f.fail(t, "a", "1") }, claim("a", none)},
		{"take over", func(t *testing.T, f *fixture) { f.claim(t, "dead"); f.live["dead"] = ledger.Ended }, claim("a", none)},
		{"take over with refetch", func(t *testing.T, f *fixture) { f.claim(t, "dead"); f.live["dead"] = ledger.Ended },
			claim("a", func(r *ledger.ClaimRequest) { r.Refetch = true })},
		{"reload", func(t *testing.T, f *fixture) { f.complete(t, "b") }, claim("a", func(r *ledger.ClaimRequest) { r.Reload = true })},
		{"refetch", func(t *testing.T, f *fixture) { f.complete(t, "b") }, claim("a", func(r *ledger.ClaimRequest) { r.Refetch = true })},
		{"reprocess", func(t *testing.T, f *fixture) { f.complete(t, "b") }, claim("a", func(r *ledger.ClaimRequest) { r.Reprocess = true })},
		{"busy", func(t *testing.T, f *fixture) { f.claim(t, "b") }, claim("a", none)},
		{"done", func(t *testing.T, f *fixture) { f.complete(t, "b") }, claim("a", none)},
		{"update", func(t *testing.T, f *fixture) { f.claim(t, "a") }, func(ctx context.Context, f *fixture) (any, error) {
			b, err := f.Update(ctx, owner, etl.StageExtract, func(b *ledger.Batch) { b.Pages = 3 })
			return show(b), err
		}},
		{"update after a failure", func(t *testing.T, f *fixture) { f.claim(t, "a"); f.fail(t, "a", "1") }, func(ctx context.Context, f *fixture) (any, error) {
			b, err := f.Update(ctx, owner, etl.StageExtract, func(b *ledger.Batch) { b.Pages = 3 })
			return show(b), err
		}},
		{"settle", func(t *testing.T, f *fixture) { f.bind(t, f.claim(t, "a")) }, func(ctx context.Context, f *fixture) (any, error) {
			b, err := f.Settle(ctx, owner, balanced)
			return show(b), err
		}},
		{"owned", func(t *testing.T, f *fixture) { f.claim(t, "a") }, func(ctx context.Context, f *fixture) (any, error) {
			b, err := f.Owned(ctx, owner)
			return show(b), err
		}},
		{"get", func(t *testing.T, f *fixture) { f.claim(t, "a") }, func(ctx context.Context, f *fixture) (any, error) {
			b, err := f.Get(ctx, batch)
			return show(b), err
		}},
		{"put transform", nothing, func(ctx context.Context, f *fixture) (any, error) {
			return f.PutTransform(ctx, batch, bound, transformRecord(1))
		}},
		{"get transform", func(t *testing.T, f *fixture) { putTransform(t, f) }, func(ctx context.Context, f *fixture) (any, error) {
			r, ok, err := f.GetTransform(ctx, batch, bound, 1)
			return []any{r, ok}, err
		}},
		{"transforms", func(t *testing.T, f *fixture) { putTransform(t, f) }, func(ctx context.Context, f *fixture) (any, error) {
			return f.Transforms(ctx, batch, bound)
		}},
		{"put load", nothing, func(ctx context.Context, f *fixture) (any, error) {
			return f.PutLoad(ctx, batch, bound, 1, loadRecord(1))
		}},
		{"get load", nothing, func(ctx context.Context, f *fixture) (any, error) {
			r, ok, err := f.GetLoad(ctx, batch, bound, 1, 1)
			return []any{r, ok}, err
		}},
		{"loads", nothing, func(ctx context.Context, f *fixture) (any, error) { return f.Loads(ctx, batch, bound, 1) }},
		{"bind revision", nothing, func(ctx context.Context, f *fixture) (any, error) {
			return f.BindRevision(ctx, "orders", ledger.RevisionRecord{Revision: 3, Contract: "c", Epoch: 1, Spec: []byte(`{}`)})
		}},
		{"bound", nothing, func(ctx context.Context, f *fixture) (any, error) { return f.Bound(ctx, "orders") }},
		{"record failure", func(t *testing.T, f *fixture) { f.claim(t, "a") }, func(ctx context.Context, f *fixture) (any, error) {
			return nil, f.RecordFailure(ctx, batch.String(), &batch, "a", failure("1"))
		}},
		{"record a failure without batch", nothing, func(ctx context.Context, f *fixture) (any, error) {
			return nil, f.RecordFailure(ctx, etl.PipelinePK("orders"), nil, "a", failure("1"))
		}},
		{"raise", func(t *testing.T, f *fixture) { f.fail(t, "a", "1") }, func(ctx context.Context, f *fixture) (any, error) {
			info, raise, err := f.Raise(ctx, batch.String(), "1", "request")
			return []any{info, raise}, err
		}},
		{"failures", func(t *testing.T, f *fixture) { f.fail(t, "a", "1") }, func(ctx context.Context, f *fixture) (any, error) {
			return f.Failures(ctx, batch.String())
		}},
	}
}

func putTransform(t *testing.T, f *fixture) {
	if _, err := f.PutTransform(t.Context(), batch, bound, transformRecord(1)); err != nil {
		t.Fatal(err)
	}
}

// TestEveryCallMayFail refuses each call of each method, and loses its reply; called again, the method gives the answer
// and leaves the items that an undisturbed call does.
func TestEveryCallMayFail(t *testing.T) {
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			clean := newFixture()
			s.given(t, clean)
			calls := 0
			clean.table.OnCall = func(string, string) (bool, error) { calls++; return true, nil }
			want, err := s.call(t.Context(), clean)
			if err != nil || calls == 0 {
				t.Fatalf("undisturbed: %d calls, %v", calls, err)
			}
			for n := range calls {
				for _, lost := range []bool{false, true} {
					name := fmt.Sprintf("call %d, reply lost %v", n, lost)
					f := newFixture()
					s.given(t, f)
					i := 0
					f.table.OnCall = func(string, string) (bool, error) {
						if i++; i-1 == n {
							return lost, errReply
						}
						return true, nil
					}
					if _, err := s.call(t.Context(), f); err == nil {
						t.Errorf("%s: no error", name)
					} else {
						wantKind(t, err, etl.StoreUnavailable)
					}
					got, err := s.call(t.Context(), f)
					if err != nil {
						t.Errorf("%s: again: %v", name, err)
					}
					if !reflect.DeepEqual(got, want) {
						t.Errorf("%s: again: got  %v\nwant %v", name, got, want)
					}
					if !reflect.DeepEqual(f.table.Items(), clean.table.Items()) {
						t.Errorf("%s: the items differ:\n%s\nwant\n%s", name, items(f), items(clean))
					}
				}
			}
		})
	}
}

// insistent sends every write twice, as an SDK does whose first reply was lost: the caller sees the second answer only.
type insistent struct{ store.Table }

func (s insistent) PutIf(ctx context.Context, item store.Item, cond store.Condition) error {
	if err := s.Table.PutIf(ctx, item, cond); err != nil {
		return err
	}
	return s.Table.PutIf(ctx, item, cond)
}

// TestOwnWriteInTheWay: a method knows its own write again.
func TestOwnWriteInTheWay(t *testing.T) {
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			clean, twice := newFixture(), newFixture()
			s.given(t, clean)
			want, err := s.call(t.Context(), clean)
			if err != nil {
				t.Fatal(err)
			}
			s.given(t, twice)
			twice.Table = insistent{twice.table}
			got, err := s.call(t.Context(), twice)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("got  %v, %v\nwant %v", got, err, want)
			}
			if !reflect.DeepEqual(twice.table.Items(), clean.table.Items()) {
				t.Errorf("the items differ:\n%s\nwant\n%s", items(twice), items(clean))
			}
		})
	}
}

// TestOnDisk: the answers do not depend on the backend.
func TestOnDisk(t *testing.T) {
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			clean, onDisk := newFixture(), newFixture()
			db, err := disk.OpenDB(t.Context(), filepath.Join(t.TempDir(), "ledger.db"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := db.Close(); err != nil {
					t.Error(err)
				}
			}()
			table, err := db.Table(t.Context(), ledger.Schema())
			if err != nil {
				t.Fatal(err)
			}
			onDisk.Table = insistent{table}
			s.given(t, clean)
			s.given(t, onDisk)
			want, err := s.call(t.Context(), clean)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				got, err := s.call(t.Context(), onDisk)
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("got  %v, %v\nwant %v", got, err, want)
				}
			}
		})
	}
}

// TestOwnWriteIsNotDecidedAnew: a change that is relative takes effect once, though its write was sent twice.
func TestOwnWriteIsNotDecidedAnew(t *testing.T) {
	f := newFixture()
	o := f.claim(t, "a")
	f.Table = insistent{f.table}
	b, err := f.Update(t.Context(), o, etl.StageExtract, func(b *ledger.Batch) { b.Retries++ })
	if err != nil || b.Retries != 1 {
		t.Errorf("%s, %v: want one retry", show(b), err)
	}
	same(t, f.get(t), b)
}

// TestCancelled: no method goes on under a cancelled context, and its error stays in the chain.
func TestCancelled(t *testing.T) {
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			f := newFixture()
			s.given(t, f)
			before := f.table.Items()
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := s.call(ctx, f)
			wantKind(t, err, etl.Interrupted)
			if !reflect.DeepEqual(f.table.Items(), before) {
				t.Error("something was written")
			}
		})
	}
}

func TestDefaultClock(t *testing.T) {
	f := newFixture()
	f.Now = nil
	f.claim(t, "a")
	at, err := time.Parse(time.RFC3339, f.get(t).ClaimedAt)
	if err != nil || time.Since(at) > time.Minute {
		t.Errorf("claimed at %v, %v: want now", at, err)
	}
}

func items(f *fixture) string {
	s := ""
	for _, i := range f.table.Items() {
		s += i.PK + " " + i.SK + " " + string(i.Doc) + "\n"
	}
	return s
}
