package ledger_test

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/store"
)

func TestRecordFailure(t *testing.T) { // R19
	f := newFixture()
	f.claim(t, "a")
	before := f.get(t)
	f.now = f.now.Add(time.Minute)
	f.fail(t, "a", "1")

	info := failure("1")
	info.Execution, info.At = "a", etl.FormatTime(f.now)
	want := before
	want.State, want.Stage, want.Failure, want.Failures = ledger.StateFailed, etl.StageLoad, &info, 1
	want.UpdatedAt, want.Write = etl.FormatTime(f.now), before.Write+1
	same(t, f.get(t), want)

	f.now = f.now.Add(time.Minute)
	f.fail(t, "a", "1") // the same failure once more: nothing changes
	same(t, f.get(t), want)

	f.fail(t, "a", "2") // another one, the redrive having updated nothing
	if b := f.get(t); b.State != ledger.StateFailed || b.Failures != 2 || b.Failure.ID != "2" {
		t.Errorf("%s: want FAILED by failure 2, the second", show(b))
	}
	all, err := f.Failures(t.Context(), batch.String())
	if err != nil || len(all) != 2 || all[0] != info || all[1].ID != "2" {
		t.Errorf("failures %+v, %v", all, err)
	}
}

func TestRecordFailureMarksOnlyTheOwnersOpenBatch(t *testing.T) {
	for _, tt := range []struct {
		name  string
		given func(*testing.T, *fixture)
	}{
		{"never claimed", func(*testing.T, *fixture) {}},
		{"another's", func(t *testing.T, f *fixture) { f.claim(t, "b") }},
		{"completed", func(t *testing.T, f *fixture) { f.complete(t, "a") }},
		{"recorded and raised before, and resumed since", func(t *testing.T, f *fixture) {
			f.claim(t, "a")
			f.fail(t, "a", "1")
			if _, raise, err := f.Raise(t.Context(), batch.String(), "1", "request"); err != nil || !raise {
				t.Fatal(raise, err)
			}
			f.fail(t, "a", "2")
			f.claim(t, "a")
		}},
		{"recorded before and resumed since", func(t *testing.T, f *fixture) {
			f.claim(t, "a")
			f.fail(t, "a", "1")
			f.claim(t, "a")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture()
			tt.given(t, f)
			before := f.get(t)
			f.fail(t, "a", "1")
			same(t, f.get(t), before)
			all, err := f.Failures(t.Context(), batch.String())
			if err != nil || len(all) == 0 || all[0].ID != "1" {
				t.Errorf("failures %+v, %v: want it recorded all the same", all, err)
			}
		})
	}
}

func TestFailureWithoutBatch(t *testing.T) {
	f := newFixture()
	pk := etl.PipelinePK("orders")
	if err := f.RecordFailure(t.Context(), pk, nil, "a", failure("1")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.BindRevision(t.Context(), "orders", ledger.RevisionRecord{Revision: 1}); err != nil {
		t.Fatal(err)
	}
	all, err := f.Failures(t.Context(), pk)
	if err != nil || len(all) != 1 || all[0].ID != "1" {
		t.Errorf("failures %+v, %v", all, err)
	}
	if info, raise, err := f.Raise(t.Context(), pk, "1", "r"); err != nil || !raise || info.Kind != etl.StoreThrottled {
		t.Errorf("%+v %v %v: want it raised", info, raise, err)
	}
}

func TestFailuresAreInOrderOfTime(t *testing.T) {
	f := newFixture()
	for _, in := range []struct {
		id    string
		after time.Duration
	}{{"c", 0}, {"b", time.Millisecond}, {"a", time.Second}} {
		f.now = began.Add(in.after)
		f.fail(t, "x", in.id)
	}
	all, err := f.Failures(t.Context(), batch.String())
	if err != nil || len(all) != 3 || all[0].ID+all[1].ID+all[2].ID != "cba" {
		t.Errorf("failures %+v, %v: want c, b, a", all, err)
	}
}

func TestFailureTextIsBounded(t *testing.T) {
	f := newFixture()
	f.claim(t, "a")
	info := failure("1")
	info.Message = strings.Repeat("ñ", 300_000)
	info.Cause = "x" + strings.Repeat("€", 300_000) + "\xff"
	if err := f.RecordFailure(t.Context(), batch.String(), &batch, "a", info); err != nil {
		t.Fatal(err)
	}
	got := f.get(t).Failure
	for s, most := range map[string]int{got.Message: etl.MaxMessage, got.Cause: 32_768} {
		if len(s) > most || len(s) < most-3 || !utf8.ValidString(s) || strings.ContainsRune(s, utf8.RuneError) {
			t.Errorf("%d bytes, valid %v: want %d bytes of whole characters", len(s), utf8.ValidString(s), most)
		}
	}
}

func TestRaise(t *testing.T) { // R28
	f := newFixture()
	ctx := t.Context()
	f.claim(t, "a")
	f.fail(t, "a", "1")
	if _, raise, err := f.Raise(ctx, batch.String(), "2", "r1"); !errors.Is(err, store.ErrNotFound) || !raise {
		t.Errorf("a failure that is not there: %v %v, want not found", raise, err)
	}
	for _, tt := range []struct {
		name, request string
		raise         bool
	}{
		{"first", "r1", true},
		{"the same request, its reply lost", "r1", true},
		{"the redrive's", "r2", false},
		{"a later one", "r3", false},
	} {
		info, raise, err := f.Raise(ctx, batch.String(), "1", tt.request)
		want := failure("1")
		want.Execution, want.At, want.Raised = "a", etl.FormatTime(began), "r1"
		if err != nil || raise != tt.raise || info != want {
			t.Errorf("%s: %+v %v %v, want raise %v", tt.name, info, raise, err, tt.raise)
		}
	}
}

// TestRaiseRaces lets another request mark the failure between read and write: one of the two raises.
func TestRaiseRaces(t *testing.T) {
	f := newFixture()
	f.fail(t, "a", "1")
	f.table.OnCall = func(op, _ string) (bool, error) {
		if op == "PutIf" {
			f.table.OnCall = nil
			if _, raise, err := f.Raise(t.Context(), batch.String(), "1", "first"); err != nil || !raise {
				t.Errorf("first: %v %v", raise, err)
			}
		}
		return true, nil
	}
	if info, raise, err := f.Raise(t.Context(), batch.String(), "1", "second"); err != nil || raise || info.Raised != "first" {
		t.Errorf("second: %+v %v %v, want it not to raise", info, raise, err)
	}
}

func TestRaiseWithoutLedger(t *testing.T) {
	for _, op := range []string{"Get", "PutIf"} {
		t.Run(op, func(t *testing.T) {
			f := newFixture()
			f.fail(t, "a", "1")
			f.table.OnCall = func(o, _ string) (bool, error) {
				if o == op {
					return false, errReply
				}
				return true, nil
			}
			info, raise, err := f.Raise(t.Context(), batch.String(), "1", "r")
			wantKind(t, err, etl.StoreUnavailable)
			if !raise || (op == "PutIf") != (info.Kind == etl.StoreThrottled) {
				t.Errorf("%+v %v: want it raised with what could be read", info, raise)
			}
		})
	}
}
