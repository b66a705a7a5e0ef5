package stage_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/snapshot"
	"github.com/onceload/onceload/pkg/stage"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/disk"
	"github.com/onceload/onceload/pkg/store/mem"
)

// resident is about what the process holds of the machine's memory.
func resident() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys - m.HeapReleased)
}

// measuring is the variable that tells a process which one test it was started for.
const measuring = "ONCELOAD_TEST_MEASURING"

// measured begins a test that measures memory over large objects: it runs in a process of its own, where nothing that
// other tests left counts. False in the process that only waits for it.
func measured(t *testing.T) bool {
	t.Helper()
	switch {
	case os.Getenv(measuring) == t.Name():
		return true
	case testing.Short():
		t.Skip("-short: this test makes large objects")
	case raced:
		t.Skip("-race: this test measures memory, and the detector needs its own")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v") //nolint:gosec // this very program
	cmd.Env = append(cmd.Environ(), measuring+"="+t.Name())
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	return false
}

const partFile = `
pipeline: part
every: 1h
source: {url: "https://api.example.com/v1/things", records: "", ndjson: true, paginate: {none: {}}}
contract:
  key: [id]
  version: at
  fields:
    id: {type: string, required: true}
    at: {type: timestamp}
    email: {type: string, clean: [trim, lower]}
    total: {type: decimal, min: 0}
    items: {type: document}
target: {table: part}
`

// landPart lands one part of so many pages on disk, and returns the stages over it, and what Transform needs.
func landPart(tb testing.TB, pages, records int, record func(b []byte, i int) []byte, watch func(stage.Tick)) (transform func() ledger.TransformRecord, staged store.Objects) {
	tb.Helper()
	p, err := pipeline.Parse("part.yaml", []byte(partFile))
	if err != nil {
		tb.Fatal(err)
	}
	k, err := contract.Compile(p.Contract, p.Target)
	if err != nil {
		tb.Fatal(err)
	}
	raw, err := disk.OpenObjects(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	out, err := disk.OpenObjects(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	b := etl.Batch{Pipeline: "part", Slot: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)}
	w := snapshot.NewPartWriter(b, 1, 0)
	var body []byte
	for n := range pages {
		body = body[:0]
		for i := range records {
			body = append(record(body, n*records+i), '\n')
		}
		meta := snapshot.Page{Records: records, Status: 200, FetchedAt: b.Slot, Before: []byte("{}"), After: []byte("{}"), Done: n == pages-1}
		if err := w.Add(body, meta); err != nil {
			tb.Fatal(err)
		}
	}
	if _, _, err := w.Land(tb.Context(), raw); err != nil {
		tb.Fatal(err)
	}
	return func() ledger.TransformRecord {
		books := &ledger.Ledger{Table: mem.NewTable(ledger.Schema()), Now: func() time.Time { return b.Slot }}
		stages := stage.New(stage.Deps{Raw: raw, Stage: out, Ledger: books, Watch: watch})
		if err := stages.Transform.Part(tb.Context(), p, k, b, 1, 0); err != nil {
			tb.Fatal(err)
		}
		rec, ok, err := books.GetTransform(tb.Context(), b, etl.Binding{Extraction: 1, Revision: k.Revision(), Contract: k.Short()}, 0)
		if err != nil || !ok {
			tb.Fatal(ok, err)
		}
		return rec
	}, out
}

func order(b []byte, i int) []byte {
	return fmt.Appendf(b, `{"id":"o-%08d","at":"2026-11-30T10:%02d:%02d.5Z","email":" User%d@Example.com ","total":%d.50,"items":[{"sku":"A-%d","qty":2,"price":"9.90"}],"note":"leave it at the door, ring twice, thank you %d"}`,
		i*7919%100_000_000, i/60%60, i%60, i, i%1000, i%5000, i)
}

// TestTransformMemory: what Transform holds does not grow with the part.
func TestTransformMemory(t *testing.T) {
	if !measured(t) {
		return
	}
	for _, c := range []struct {
		name           string
		pages, records int
		record         func(b []byte, i int) []byte
	}{
		{"orders", 300, 1000, order},
		{"large pages", 4, 150_000, order}, // just under the default of max_bytes, 32 MiB
		{"small records", 60, 25_000, func(b []byte, i int) []byte {
			return append(strconv.AppendInt(append(b, `{"at":"2026-11-30T10:00:00Z","id":`...), int64(i%1_400_000), 10), '}')
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var peak int64
			transform, staged := landPart(t, c.pages, c.records, c.record, func(stage.Tick) { peak = max(peak, resident()) })
			debug.FreeOSMemory()
			before := resident()
			rec := transform()
			n := int64(c.pages * c.records)
			if rec.Records != n || rec.Valid != n {
				t.Fatalf("%+v", rec)
			}
			t.Logf("before %d MiB, peak %d MiB, valid lines %d MiB", before>>20, peak>>20, rec.ValidBytes>>20)
			if peak > 64<<20 {
				t.Errorf("resident %d MiB, want at most 64", peak>>20)
			}
			// The key object is sorted runs, and its merge is all keys in order.
			for info, err := range staged.List(t.Context(), "") {
				if err != nil {
					t.Fatal(err)
				}
				if o, err := etl.ParseKey(info.Key); err != nil || o.Kind != etl.Keys {
					continue
				}
				keys, repeated, rises, err := stage.MergeKeys(t.Context(), staged, map[string]int64{info.Key: n})
				if wantRepeated := max(n-1_400_000, 0); err != nil || keys != n || repeated != wantRepeated || !rises {
					t.Errorf("%d keys, %d repeated, in order %v, %v", keys, repeated, rises, err)
				}
			}
		})
	}
}

// madeKeys is a store of key objects that are made up as they are read: of each object's keys every hundredth is in all
// the others too.
type madeKeys struct {
	store.Objects
	peak int64
	gets int
}

func (m *madeKeys) GetRange(_ context.Context, key string, off, n int64) ([]byte, error) {
	object, err := strconv.ParseUint(key, 10, 64)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, n)
	for i := uint64(off / 16); i < uint64(off+n)/16; i++ {
		in := i % stage.MaxRun // a run begins anew
		lo := object + 1 + i/stage.MaxRun<<32
		if in%100 == 0 {
			lo = 0
		}
		out = binary.BigEndian.AppendUint64(out, in<<30)
		out = binary.BigEndian.AppendUint64(out, lo)
	}
	if m.gets++; m.gets%8 == 0 {
		m.peak = max(m.peak, resident())
	}
	return out, nil
}

// TestMergeMemory: 10 million keys of a batch are merged in 64 MiB, whether they lie in few parts or in many. R24
func TestMergeMemory(t *testing.T) {
	if !measured(t) {
		return
	}
	for _, parts := range []int{4, 1000} {
		debug.FreeOSMemory()
		made, held := &madeKeys{}, map[string]int64{}
		each := int64(10_000_000 / parts)
		for i := range parts {
			held[strconv.Itoa(i)] = each
		}
		keys, repeated, rises, err := stage.MergeKeys(t.Context(), made, held)
		runs := (each + stage.MaxRun - 1) / stage.MaxRun
		var want int64 // every hundredth of the longest run is there once for each run that reaches it
		for first := int64(0); first < each; first += stage.MaxRun {
			want += (min(each-first, stage.MaxRun) + 99) / 100 * int64(parts)
		}
		want -= (min(each, stage.MaxRun) + 99) / 100
		if err != nil || keys != 10_000_000 || repeated != want || !rises {
			t.Errorf("%d parts of %d runs: %d keys, %d repeated, want %d, in order %v, %v", parts, runs, keys, repeated, want, rises, err)
		}
		t.Logf("%d parts: peak %d MiB, %d reads", parts, made.peak>>20, made.gets)
		if made.peak > 64<<20 {
			t.Errorf("%d parts: resident %d MiB, want at most 64", parts, made.peak>>20)
		}
	}
}

// TestMergeShort: a key object that is not as long as the part's record says has lost records. R23
func TestMergeShort(t *testing.T) {
	objects := mem.NewObjects()
	key := "valid/pipeline=p/date=2026-11-30/batch=20261130T100000Z/extraction=1/revision=1.1/contract=00000000/_part-00000.keys"
	if err := objects.Put(t.Context(), key, bytes.NewReader(make([]byte, 16*3+5))); err != nil {
		t.Fatal(err)
	}
	if keys, repeated, _, err := stage.MergeKeys(t.Context(), objects, map[string]int64{key: 3}); keys != 3 || repeated != 2 || err != nil {
		t.Errorf("%d keys, %d repeated, %v", keys, repeated, err)
	}
	if _, _, _, err := stage.MergeKeys(t.Context(), objects, map[string]int64{key: 4}); etl.KindOf(err) != etl.RecordsLost {
		t.Errorf("a key too few: %v", err)
	}
	if _, _, _, err := stage.MergeKeys(t.Context(), objects, map[string]int64{key + "x": 1}); err == nil {
		t.Error("no object: no error")
	}
	if keys, _, _, err := stage.MergeKeys(t.Context(), objects, map[string]int64{"none": 0}); keys != 0 || err != nil {
		t.Errorf("no keys: %d, %v", keys, err)
	}
}

// TestTransformGivesUp: a store that fails while an object is written leaves nothing behind and comes back with its own
// error; the next call does the part.
func TestTransformGivesUp(t *testing.T) {
	for _, suffix := range []string{"part-00000.ndjson.gz", "_part-00000.keys", "_part-00000.drift.json"} {
		t.Run(suffix, func(t *testing.T) {
			r := newRig(t, rigFile, many(3)+","+bad(1))
			p, err := r.extract()
			must(t, err)
			failed := errors.New("full")
			r.onCall = func(op, key string) (bool, error) {
				if op == "Put" && bytes.HasSuffix([]byte(key), []byte(suffix)) {
					return false, etl.Errorf(etl.StoreUnavailable, "%w", failed)
				}
				return true, nil
			}
			in := etl.RangeInput{Execution: r.execution, Batch: p.Batch, Fence: p.Fence, Extraction: p.Extraction, Range: etl.Range{}}
			if _, err := r.Transform.Run(t.Context(), in); !errors.Is(err, failed) {
				t.Fatalf("%v", err)
			}
			r.onCall = nil
			if _, err := r.Transform.Run(t.Context(), in); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// BenchmarkTransform is a part from disk to disk, with all its digests and its keys.
func BenchmarkTransform(b *testing.B) {
	const pages, records = 200, 1000
	transform, _ := landPart(b, pages, records, order, nil)
	for b.Loop() {
		transform()
	}
	b.ReportMetric(float64(b.N)*pages*records/b.Elapsed().Seconds(), "records/s")
}

// TestCodes: a part's record counts its quarantined records by code, whatever is among the reasons it keeps, and one record
// once under a code that several of its fields have. B2
func TestCodes(t *testing.T) {
	file := strings.Replace(rigFile, "    text: {type: string}\n", "    text: {type: string}\n    yes: {type: boolean}\n", 1)
	var fields string
	for i := range 30 {
		file = strings.Replace(file, "    text:", fmt.Sprintf("    f%d: {type: integer}\n    text:", i), 1)
		fields += fmt.Sprintf(`,"f%d":"x"`, i)
	}
	r := newRig(t, file, join(many(1), `{"id":"a","v":1`+fields+`}`, `{"id":"b","v":1`+fields+`}`, `{"id":"c","v":1,"yes":"maybe"}`))
	p := r.landed()
	rec, ok, err := r.ledger.GetTransform(t.Context(), r.batch, etl.Binding{Extraction: p.Extraction, Revision: etl.Revision{Contract: 1, Engine: contract.EngineVersion}, Contract: r.short()}, 0)
	must(t, err)
	if !ok || rec.Quarantined != 3 || !maps.Equal(rec.Codes, map[string]int64{contract.CodeNumberSyntax: 2, contract.CodeBooleanSyntax: 1}) || len(rec.Reasons) != 20 {
		t.Errorf("%v: %d quarantined, %v, %v", ok, rec.Quarantined, rec.Codes, rec.Reasons)
	}
}

// short is the contract part of the rig's bindings.
func (r *rig) short() string {
	r.t.Helper()
	k, err := contract.Compile(r.file.Contract, r.file.Target)
	must(r.t, err)
	return k.Short()
}
