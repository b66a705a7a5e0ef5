package etl_test

import (
	"cmp"
	"math/big"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/onceload/onceload/pkg/etl"
)

// drawInteger makes an integer of at most 38 digits, of any length, near the ends as often as not.
func drawInteger(t *rapid.T, name string) *big.Int {
	n, ok := new(big.Int).SetString(rapid.OneOf(
		rapid.StringMatching(`-?[1-9][0-9]{0,37}`),
		rapid.SampledFrom([]string{"0", "-0", "1", "-1", "9", "10", "-9", "-10", strings.Repeat("9", 38), "-" + strings.Repeat("9", 38),
			"1" + strings.Repeat("0", 37), "-1" + strings.Repeat("0", 37)}),
	).Draw(t, name), 10)
	if !ok {
		t.Fatal("not a number")
	}
	return n
}

func TestVersionIntegerKeepsTheOrder(t *testing.T) { // R15
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawInteger(t, "a"), drawInteger(t, "b")
		if rapid.Bool().Draw(t, "neighbours") {
			if b.Add(a, big.NewInt(int64(rapid.IntRange(-1, 1).Draw(t, "by")))); len(new(big.Int).Abs(b).String()) > etl.MaxDigits {
				b.Set(a)
			}
		}
		av, aerr := etl.VersionInteger(a.String())
		bv, berr := etl.VersionInteger(b.String())
		if aerr != nil || berr != nil || len(av) != 39 || len(bv) != 39 {
			t.Fatalf("%s: %q %v, %s: %q %v", a, av, aerr, b, bv, berr)
		}
		if strings.Compare(av, bv) != a.Cmp(b) {
			t.Errorf("%s and %s compare as %q and %q", a, b, av, bv)
		}
	})
}

func TestVersionInteger(t *testing.T) {
	zeros := strings.Repeat("0", 37)
	for text, want := range map[string]string{
		"0":                           "1" + zeros + "0",
		"-0":                          "1" + zeros + "0",
		"7":                           "1" + zeros + "7",
		"-7":                          "0" + strings.Repeat("9", 37) + "2",
		strings.Repeat("9", 38):       "1" + strings.Repeat("9", 38),
		"-" + strings.Repeat("9", 38): "0" + zeros + "0",
	} {
		if got, err := etl.VersionInteger(text); err != nil || got != want {
			t.Errorf("%s: %q %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-", "+1", "--1", "01", "-01", "00", "1.0", "1e3", " 1", "1 ", "x", "٣", strings.Repeat("1", 39), "-" + strings.Repeat("1", 39)} {
		if got, err := etl.VersionInteger(text); err == nil {
			t.Errorf("%q is taken for %q", text, got)
		}
	}
}

func drawInstant(t *rapid.T, name string) time.Time {
	return time.Unix(rapid.Int64Range(-62_135_596_800, 253_402_300_799).Draw(t, name+" seconds"),
		rapid.Int64Range(0, 999_999_999).Draw(t, name+" nanos")).In(time.FixedZone("x", 60*rapid.IntRange(-840, 840).Draw(t, name+" zone")))
}

func TestVersionTimestampKeepsTheOrder(t *testing.T) { // R15
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawInstant(t, "a"), drawInstant(t, "b")
		if rapid.Bool().Draw(t, "neighbours") {
			b = a.Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "by"))).UTC()
			if b.Year() < 1 || b.Year() > 9999 {
				b = a
			}
		}
		av, aerr := etl.VersionTimestamp(a)
		bv, berr := etl.VersionTimestamp(b)
		if aerr != nil || berr != nil || len(av) != 23 || len(bv) != 23 {
			t.Fatalf("%s: %q %v, %s: %q %v", a, av, aerr, b, bv, berr)
		}
		if strings.Compare(av, bv) != a.Compare(b) {
			t.Errorf("%s and %s compare as %q and %q", a, b, av, bv)
		}
	})
}

func TestVersionTimestamp(t *testing.T) {
	for _, tt := range []struct {
		at   time.Time
		want string
	}{
		{time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), "00010101000000000000000"},
		{time.Date(2026, 11, 30, 12, 0, 5, 7, time.FixedZone("x", 7200)), "20261130100005000000007"},
		{time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC), "99991231235959999999999"},
		{time.Date(0, 12, 31, 23, 59, 59, 0, time.UTC), ""},
		{time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), ""},
		{time.Date(1, 1, 1, 0, 0, 0, 0, time.FixedZone("x", 3600)), ""}, // the year 0 in UTC
	} {
		if got, err := etl.VersionTimestamp(tt.at); got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s: %q %v, want %q", tt.at, got, err, tt.want)
		}
	}
}

func TestVersionSlotKeepsTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawBatch(t), drawBatch(t)
		if rapid.Bool().Draw(t, "one slot") {
			b.Slot = a.Slot
		}
		ae, be := rapid.IntRange(1, 999_999).Draw(t, "a's"), rapid.IntRange(1, 999_999).Draw(t, "b's")
		av, bv := etl.VersionSlot(a, ae), etl.VersionSlot(b, be)
		if len(av) != 23 || strings.Compare(av, bv) != cmp.Or(a.Slot.Compare(b.Slot), cmp.Compare(ae, be)) {
			t.Errorf("%s %d and %s %d compare as %q and %q", a, ae, b, be, av, bv)
		}
	})
}

// TestRankKeepsTheOrderOfItsParts: as bytes, ranks compare in the order epoch, version, revision, digest, and all of one
// version type have one width (R15, B1, B5).
func TestRankKeepsTheOrderOfItsParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]string{"integer", "timestamp", "slot"}).Draw(t, "version type")
		small := rapid.OneOf(rapid.IntRange(1, 12), rapid.IntRange(1, 9999)) // often equal, and of different lengths
		draw := func(name string) (etl.Rank, *big.Int) {
			r := etl.Rank{
				Epoch:    small.Draw(t, name+" epoch"),
				Revision: etl.Revision{Contract: small.Draw(t, name+" revision"), Engine: small.Draw(t, name+" engine")},
				Digest:   rapid.StringMatching(`[0-9a-f]{32}`).Draw(t, name+" digest"),
			}
			var order *big.Int
			var err error
			switch kind {
			case "integer":
				order = drawInteger(t, name+" version")
				r.Version, err = etl.VersionInteger(order.String())
			case "timestamp":
				at := drawInstant(t, name+" version")
				order = new(big.Int).Add(new(big.Int).Mul(big.NewInt(at.Unix()), big.NewInt(1e9)), big.NewInt(int64(at.Nanosecond())))
				r.Version, err = etl.VersionTimestamp(at)
			case "slot":
				b, n := drawBatch(t), rapid.IntRange(1, 999_999).Draw(t, name+" extraction")
				order = new(big.Int).Add(new(big.Int).Mul(big.NewInt(b.Slot.Unix()), big.NewInt(1e6)), big.NewInt(int64(n)))
				r.Version = etl.VersionSlot(b, n)
			}
			if err != nil {
				t.Fatal(err)
			}
			return r, order
		}
		a, av := draw("a")
		b, bv := draw("b")
		// Let the first parts be equal, so that the later ones decide.
		switch rapid.IntRange(0, 4).Draw(t, "equal parts") {
		case 4:
			b.Digest = a.Digest
			fallthrough
		case 3:
			b.Revision = a.Revision
			fallthrough
		case 2:
			b.Version, bv = a.Version, av
			fallthrough
		case 1:
			b.Epoch = a.Epoch
		}
		want := cmp.Or(cmp.Compare(a.Epoch, b.Epoch), av.Cmp(bv), cmp.Compare(a.Revision.Contract, b.Revision.Contract),
			cmp.Compare(a.Revision.Engine, b.Revision.Engine), strings.Compare(a.Digest, b.Digest))
		if got := strings.Compare(a.String(), b.String()); got != want || len(a.String()) != len(b.String()) {
			t.Errorf("%q and %q compare %d, want %d", a, b, got, want)
		}
		for _, c := range []byte(a.String()) {
			if c < ' ' || c > '~' {
				t.Errorf("%q is not plain ASCII", a)
			}
		}
	})
}

func TestRankByExample(t *testing.T) {
	r := etl.Rank{Epoch: 1, Version: "v", Revision: etl.Revision{Contract: 3, Engine: 1}, Digest: strings.Repeat("a", etl.DigestLen)}
	if want := "0001|v|0003.0001|" + r.Digest; r.String() != want {
		t.Errorf("%q, want %q", r, want)
	}
}
