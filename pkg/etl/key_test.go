package etl_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/onceload/onceload/pkg/etl"
)

var alphabet = regexp.MustCompile(`^[A-Za-z0-9/_=.-]+$`)

var objectKinds = []etl.ObjectKind{etl.RawPart, etl.Manifest, etl.Rejected, etl.Valid, etl.Quarantine, etl.Keys, etl.Drift}

func drawBatch(t *rapid.T) etl.Batch {
	return etl.Batch{
		Pipeline: rapid.StringMatching(`[a-z][a-z0-9_-]{0,62}`).Draw(t, "pipeline"),
		Slot:     time.Unix(rapid.Int64Range(0, 253_402_300_799).Draw(t, "slot"), 0).UTC(),
	}
}

func drawBinding(t *rapid.T) etl.Binding {
	return etl.Binding{
		Extraction: rapid.IntRange(1, 1_000_000).Draw(t, "extraction"),
		Revision:   etl.Revision{Contract: rapid.IntRange(1, 9999).Draw(t, "revision"), Engine: rapid.IntRange(1, 9999).Draw(t, "engine")},
		Contract:   rapid.StringMatching(`[0-9a-f]{8}`).Draw(t, "contract"),
	}
}

func drawObject(t *rapid.T) etl.Object {
	o := etl.Object{Kind: rapid.SampledFrom(objectKinds).Draw(t, "kind"), Batch: drawBatch(t), Binding: drawBinding(t)}
	switch o.Kind {
	case etl.RawPart, etl.Manifest, etl.Rejected:
		o.Binding = etl.Binding{Extraction: o.Binding.Extraction}
	}
	switch o.Kind {
	case etl.Manifest:
	case etl.Rejected:
		o.Name = rapid.StringMatching(`[A-Za-z0-9_-][A-Za-z0-9_-]{0,40}(\.[a-z0-9]{1,8})?`).Draw(t, "name")
	default:
		o.Part = rapid.IntRange(0, etl.MaxParts-1).Draw(t, "part")
	}
	return o
}

// TestObjectKeys: every key round-trips, keeps to the alphabet and cannot climb out of its folder; different objects have
// different keys.
func TestObjectKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o, other := drawObject(t), drawObject(t)
		key := o.Key()
		if !alphabet.MatchString(key) || strings.Contains(key, "..") || strings.Contains(key, "//") || strings.HasPrefix(key, "/") {
			t.Errorf("key %q", key)
		}
		if len(key) > 512 {
			t.Errorf("key of %d bytes: %q", len(key), key)
		}
		back, err := etl.ParseKey(key)
		if err != nil || back != o {
			t.Errorf("%q comes back as %+v, %v\nwant %+v", key, back, err, o)
		}
		if (other.Key() == key) != (other == o) {
			t.Errorf("%+v and %+v have the keys %q and %q", o, other, key, other.Key())
		}
	})
}

func TestObjectKeysByExample(t *testing.T) {
	b := etl.Batch{Pipeline: "orders", Slot: at(t, "2026-11-30T10:00:00Z")}
	bind := etl.Binding{Extraction: 1, Revision: etl.Revision{Contract: 3, Engine: 1}, Contract: "ab12cd34"}
	const middle = "pipeline=orders/date=2026-11-30/batch=20261130T100000Z/extraction=1/"
	const stage = middle + "revision=3.1/contract=ab12cd34/"
	for got, want := range map[string]string{
		etl.ExtractionPrefix(b, 1):                   "raw/" + middle,
		etl.RawPartKey(b, 1, 7):                      "raw/" + middle + "part-00007.json.gz",
		etl.ManifestKey(b, 1):                        "raw/" + middle + "_manifest.json",
		etl.RejectedKey(b, 1, "page-3.txt"):          "raw/" + middle + "_rejected/page-3.txt",
		etl.StageKey(etl.Valid, b, bind, 7):          "valid/" + stage + "part-00007.ndjson.gz",
		etl.StageKey(etl.Quarantine, b, bind, 7):     "quarantine/" + stage + "part-00007.ndjson.gz",
		etl.StageKey(etl.Keys, b, bind, 7):           "valid/" + stage + "_part-00007.keys",
		etl.StageKey(etl.Drift, b, bind, 99_999):     "valid/" + stage + "_part-99999.drift.json",
		etl.BatchSK:                                  "batch",
		etl.TransformSK(bind, 7):                     "transform#1#3.1#ab12cd34#00007",
		etl.LoadSK(bind, 2, 7):                       "load#1#3.1#ab12cd34#2#00007",
		etl.FailureSK("arn@time"):                    "failure#arn@time",
		etl.PipelinePK("orders"):                     "pipeline#orders",
		etl.RevisionSK(3):                            "revision#3",
		etl.SourcePK("api.example.com"):              "source#api.example.com",
		etl.FailureID("arn", "2026-11-30T10:00:00Z"): "arn@2026-11-30T10:00:00Z",
		bind.String():                                "1/3.1/ab12cd34",
	} {
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if key := (etl.Object{Kind: "other", Batch: b}).Key(); key != "" {
		t.Errorf("an unknown kind has the key %q", key)
	}
}

// TestKeysKnowNoClock: a key is a function of what it names (R12).
func TestKeysKnowNoClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := drawObject(t)
		elsewhere := o
		elsewhere.Batch.Slot = o.Batch.Slot.In(time.FixedZone("x", 5*3600))
		if o.Key() != elsewhere.Key() {
			t.Errorf("%q and %q", o.Key(), elsewhere.Key())
		}
	})
}

func TestParseKeyRefuses(t *testing.T) {
	const raw = "raw/pipeline=orders/date=2026-11-30/batch=20261130T100000Z/extraction=1/"
	const valid = "valid/pipeline=orders/date=2026-11-30/batch=20261130T100000Z/extraction=1/revision=3.1/contract=ab12cd34/"
	for _, key := range []string{
		"", "/", "raw", raw, valid, "x" + raw + "part-00000.json.gz",
		raw + "part-0.json.gz", raw + "part-000000.json.gz", raw + "part-00000.json", raw + "part-00000.ndjson.gz", raw + "_manifest.json.gz", raw + "manifest.json",
		raw + "part-00000.json.gz/", raw + "part-00000.json.gz\n", "\n" + raw + "part-00000.json.gz",
		raw + "_rejected/", raw + "_rejected/a/b", raw + "_rejected/..", raw + "_rejected/../part-00000.json.gz", raw + "_rejected/a..b", raw + "_rejected/.a",
		raw + "_rejected/a.json.gz", raw + "_rejected/a b", raw + "_rejected/" + strings.Repeat("a", 129),
		strings.Replace(raw, "2026-11-30", "2026-11-29", 1) + "_manifest.json",
		strings.Replace(raw, "extraction=1", "extraction=0", 1) + "_manifest.json",
		strings.Replace(raw, "extraction=1", "extraction=01", 1) + "_manifest.json",
		strings.Replace(raw, "extraction=1", "extraction=-1", 1) + "_manifest.json",
		strings.Replace(raw, "extraction=1", "extraction=99999999999999999999", 1) + "_manifest.json",
		strings.Replace(raw, "orders", "Orders", 1) + "_manifest.json",
		strings.Replace(raw, "orders", "..", 1) + "_manifest.json",
		strings.Replace(raw, "20261130T100000Z", "20261130T100000.5Z", 1) + "_manifest.json",
		strings.Replace(raw, "raw/", "valid/", 1) + "part-00000.json.gz",
		valid + "part-00000.json.gz", valid + "_part-00000.ndjson.gz", valid + "part-00000.keys", valid + "part-00000.drift.json",
		strings.Replace(valid, "valid", "quarantine", 1) + "_part-00000.keys",
		strings.Replace(valid, "valid", "raw", 1) + "part-00000.ndjson.gz",
		strings.Replace(valid, "3.1", "3", 1) + "part-00000.ndjson.gz",
		strings.Replace(valid, "3.1", "3.01", 1) + "part-00000.ndjson.gz",
		strings.Replace(valid, "3.1", "0.1", 1) + "part-00000.ndjson.gz",
		strings.Replace(valid, "3.1", "10000.1", 1) + "part-00000.ndjson.gz",
		strings.Replace(valid, "ab12cd34", "AB12CD34", 1) + "part-00000.ndjson.gz",
		strings.Replace(valid, "ab12cd34", "ab12cd3", 1) + "part-00000.ndjson.gz",
	} {
		if o, err := etl.ParseKey(key); err == nil {
			t.Errorf("%q is taken for %+v", key, o)
		}
	}
}

// FuzzParseKey: what parses is exactly what the object's key is.
func FuzzParseKey(f *testing.F) {
	f.Add("raw/pipeline=orders/date=2026-11-30/batch=20261130T100000Z/extraction=1/part-00000.json.gz")
	f.Add("raw/pipeline=orders/date=2026-11-30/batch=20261130T100000Z/extraction=1/_manifest.json")
	f.Add("raw/pipeline=orders/date=2026-11-30/batch=20261130T100000Z/extraction=1/_rejected/page-3.txt")
	f.Add("valid/pipeline=orders/date=2026-11-30/batch=20261130T100000Z/extraction=1/revision=3.1/contract=ab12cd34/part-00000.ndjson.gz")
	f.Add("valid/pipeline=orders/date=2026-11-30/batch=20261130T100000Z/extraction=1/revision=3.1/contract=ab12cd34/_part-00000.keys")
	f.Fuzz(func(t *testing.T, key string) {
		o, err := etl.ParseKey(key)
		if err != nil {
			if o != (etl.Object{}) {
				t.Errorf("%q: an error and %+v", key, o)
			}
			return
		}
		if o.Key() != key || !alphabet.MatchString(key) || strings.Contains(key, "..") {
			t.Errorf("%q parses as %+v, whose key is %q", key, o, o.Key())
		}
	})
}

// TestItemKeys: the sort keys of a batch's items are all different, lie under their prefixes and sort by part.
func TestItemKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type named struct {
			bind       etl.Binding
			load, part int
		}
		draw := func() named {
			return named{drawBinding(t), rapid.IntRange(1, 12).Draw(t, "load"), rapid.IntRange(0, etl.MaxParts-1).Draw(t, "part")}
		}
		a, b := draw(), draw()
		if rapid.Bool().Draw(t, "one binding") {
			b.bind = a.bind
		}
		at, bt := etl.TransformSK(a.bind, a.part), etl.TransformSK(b.bind, b.part)
		al, bl := etl.LoadSK(a.bind, a.load, a.part), etl.LoadSK(b.bind, b.load, b.part)
		if (at == bt) != (a.bind == b.bind && a.part == b.part) || (al == bl) != (a == b) {
			t.Errorf("%+v and %+v: %q %q, %q %q", a, b, at, bt, al, bl)
		}
		if strings.HasPrefix(at, etl.TransformPrefix(b.bind)) != (a.bind == b.bind) ||
			strings.HasPrefix(al, etl.LoadPrefix(b.bind, b.load)) != (a.bind == b.bind && a.load == b.load) {
			t.Errorf("a prefix takes in another's records: %q %q of %+v and %+v", at, al, a, b)
		}
		if a.bind == b.bind && (at < bt) != (a.part < b.part) {
			t.Errorf("parts %d and %d sort as %q and %q", a.part, b.part, at, bt)
		}
		for _, sk := range []string{at, al, etl.FailureSK("x"), etl.BatchSK} {
			prefixes := []string{etl.TransformPrefix(a.bind)[:10], etl.LoadPrefix(a.bind, 1)[:5], etl.FailurePrefix, etl.RevisionPrefix}
			n := len(slices.DeleteFunc(prefixes, func(p string) bool { return !strings.HasPrefix(sk, p) }))
			if sk == etl.BatchSK && n != 0 || sk != etl.BatchSK && n != 1 {
				t.Errorf("%q has %d of the prefixes", sk, n)
			}
		}
	})
}

func TestRevision(t *testing.T) {
	for _, text := range []string{"", ".", "3", "3.", ".1", "3.1.1", "03.1", "3.01", "0.1", "3.0", "-3.1", "+3.1", "10000.1", "3.10000", "3,1", "3.1 "} {
		if r, err := etl.ParseRevision(text); err == nil {
			t.Errorf("%q is taken for %+v", text, r)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		r := drawBinding(t).Revision
		if back, err := etl.ParseRevision(r.String()); err != nil || back != r {
			t.Errorf("%+v comes back as %+v, %v", r, back, err)
		}
	})
	// The zero value travels in the payload of a gate that binds nothing.
	var back etl.Revision
	text, err := etl.Revision{}.MarshalText()
	if err != nil || len(text) != 0 || back.UnmarshalText(text) != nil || back != (etl.Revision{}) {
		t.Errorf("zero: %q, %v, comes back as %+v", text, err, back)
	}
	if back.UnmarshalText([]byte("x")) == nil {
		t.Error("x is taken for a revision")
	}
}

// TestJoinKey: the key of a row's parts can be split again, whatever the parts hold, so no two lists share one (R14).
func TestJoinKey(t *testing.T) {
	for want, parts := range map[string][]string{
		"eu#4711":        {"eu", "4711"},
		"":               {""},
		"#":              {"", ""},
		"a%23b":          {"a#b"},
		"a%25":           {"a%"},
		"%2523#%25":      {"%23", "%"},
		"ñ#€#\x00":       {"ñ", "€", "\x00"},
		"%25%23%25#%23#": {"%#%", "#", ""},
	} {
		if got := etl.JoinKey(parts); got != want {
			t.Errorf("%q: %q, want %q", parts, got, want)
		}
	}
	part := rapid.OneOf(rapid.StringOf(rapid.SampledFrom([]rune("#%25 3ab"))), rapid.String())
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(part, 1, 4).Draw(t, "parts")
		others := rapid.SliceOfN(part, 1, 4).Draw(t, "others")
		key := etl.JoinKey(parts)
		if back := etl.SplitKey(key); !slices.Equal(back, parts) {
			t.Errorf("%q joins to %q and splits to %q", parts, key, back)
		}
		if (etl.JoinKey(others) == key) != slices.Equal(parts, others) {
			t.Errorf("%q and %q join to %q", parts, others, key)
		}
	})
}

func ExampleJoinKey() {
	fmt.Println(etl.JoinKey([]string{"eu", "a#1"}))
	// Output: eu#a%231
}

// TestLedgerKeysTellApart: two part records share a key only if they speak of the same part of the same extraction, revision,
// contract and load.
func TestLedgerKeysTellApart(t *testing.T) {
	seen := map[string]string{}
	note := func(key, what string) {
		if other, ok := seen[key]; ok {
			t.Errorf("%s and %s share the key %s", what, other, key)
		}
		seen[key] = what
	}
	for extraction := 1; extraction <= 2; extraction++ {
		for revision := 1; revision <= 2; revision++ {
			for _, contract := range []string{"ab12cd34", "ab12cd35"} {
				b := etl.Binding{Extraction: extraction, Revision: etl.Revision{Contract: revision, Engine: 1}, Contract: contract}
				for part := range 2 {
					note(etl.TransformSK(b, part), fmt.Sprintf("transform %s %d", b, part))
					for load := 1; load <= 2; load++ {
						note(etl.LoadSK(b, load, part), fmt.Sprintf("load %s %d %d", b, load, part))
					}
				}
			}
		}
	}
}
