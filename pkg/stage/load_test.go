package stage_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/mem"
)

var atomicFile = strings.Replace(rigFile, "target: {table: rows}", "target: {table: rows, atomic: true}", 1)

// loads are the counts of the parts' load records.
func (r *rig) loads(g etl.GateOutput) []etl.LoadCounts {
	r.t.Helper()
	recs, err := r.ledger.Loads(r.t.Context(), r.batch, g.Binding, g.Load)
	must(r.t, err)
	out := []etl.LoadCounts{}
	for _, rec := range recs {
		out = append(out, rec.LoadCounts)
	}
	return out
}

// TestLoadDuplicates: within a part one record of a key is loaded, the one of the highest rank; each record is counted
// once. B5, B7
func TestLoadDuplicates(t *testing.T) {
	for _, c := range []struct {
		name   string
		pages  []string
		rows   string
		counts []etl.LoadCounts
	}{
		{"highest version", []string{join(rec("a", 1, "one"), rec("a", 3, "three"), rec("a", 2, "two"), rec("b", 1, "x"))},
			"a three, b x", []etl.LoadCounts{{New: 2, Duplicate: 2}}},
		{"highest last", []string{join(rec("a", 1, "one"), rec("a", 2, "two"))}, "a two", []etl.LoadCounts{{New: 1, Duplicate: 1}}},
		{"equal", []string{join(rec("a", 1, "one"), rec("a", 1, "one"), rec("a", 1, "one"))}, "a one", []etl.LoadCounts{{New: 1, Duplicate: 2}}},
		{"across parts", []string{rec("a", 2, "two"), join(rec("a", 1, "one"), rec("b", 1, "x"))}, "a two, b x",
			[]etl.LoadCounts{{New: 1}, {New: 1, Stale: 1}}},
		{"across parts, later", []string{rec("a", 1, "one"), rec("a", 2, "two"), rec("a", 2, "two")}, "a two",
			[]etl.LoadCounts{{New: 1}, {Updated: 1}, {Unchanged: 1}}},
		{"nothing valid in a part", []string{"", rec("a", 1, "one")}, "a one", []etl.LoadCounts{{}, {New: 1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, rigFile, c.pages...)
			p, g := r.bound()
			must(t, r.load(p, g))
			if got := r.rows(); got != c.rows {
				t.Errorf("rows %s, want %s", got, c.rows)
			}
			got := r.loads(g)
			if len(got) != len(c.counts) {
				t.Fatalf("%+v", got)
			}
			for i := range got {
				if got[i] != c.counts[i] {
					t.Errorf("part %d: %+v, want %+v", i, got[i], c.counts[i])
				}
			}
			out, err := r.settle(p, g)
			must(t, err)
			if out.Status != etl.StatusCompleted || out.Counts.Valid != out.Counts.Total() {
				t.Errorf("%+v", out)
			}
		})
	}
}

// TestAtomic: all rows of all parts, or none. R31
func TestAtomic(t *testing.T) {
	pages := []string{join(rec("a", 1, "one"), rec("b", 1, "x")), join(rec("a", 2, "two"), rec("b", 1, "x"), rec("c", 1, "y"))}
	count := func(in ...etl.LoadCounts) []etl.LoadCounts { return in }
	for _, c := range []struct {
		name   string
		apply  bool
		err    error
		before string // row that is there already
		counts []etl.LoadCounts
	}{
		{"undisturbed", true, nil, "", count(etl.LoadCounts{New: 1, Duplicate: 1}, etl.LoadCounts{New: 2, Duplicate: 1})},
		{"refused", false, errDown, "", count(etl.LoadCounts{New: 1, Duplicate: 1}, etl.LoadCounts{New: 2, Duplicate: 1})},
		{"lost", true, errDown, "", count(etl.LoadCounts{Unchanged: 1, Duplicate: 1}, etl.LoadCounts{Unchanged: 2, Duplicate: 1})},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, atomicFile, pages...)
			p, g := r.bound()
			if len(g.Ranges) != 1 || g.Ranges[0] != (etl.Range{First: 0, Last: 1}) {
				t.Fatalf("ranges %+v", g.Ranges)
			}
			r.onCall = func(op, _ string) (bool, error) {
				if op == "PutAllHigher" {
					return c.apply, c.err
				}
				return true, nil
			}
			if c.err != nil {
				wantKind(t, r.load(p, g), etl.StoreUnavailable)
				if got := r.rows(); (got != "") != c.apply || got != "" && got != "a two, b x, c y" {
					t.Fatalf("rows %q", got)
				}
				if got := r.loads(g); len(got) > 0 {
					t.Fatalf("load records %+v", got)
				}
				r.onCall = nil
			}
			must(t, r.load(p, g))
			if got := r.rows(); got != "a two, b x, c y" {
				t.Errorf("rows %s", got)
			}
			got := r.loads(g)
			if len(got) != 2 || got[0] != c.counts[0] || got[1] != c.counts[1] {
				t.Errorf("counts %+v, want %+v", got, c.counts)
			}
			_, err := r.settle(p, g)
			must(t, err)
		})
	}
}

// TestLoadBinding: Load reads what the batch is bound to, and nothing else. B6
func TestLoadBinding(t *testing.T) {
	for name, change := range map[string]func(*etl.GateOutput){
		"extraction": func(g *etl.GateOutput) { g.Binding.Extraction = 2 },
		"revision":   func(g *etl.GateOutput) { g.Binding.Revision.Contract = 2 },
		"contract":   func(g *etl.GateOutput) { g.Binding.Contract = "00000000" },
		"load":       func(g *etl.GateOutput) { g.Load = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rigFile, many(2))
			p, g := r.bound()
			other := g
			change(&other)
			wantKind(t, r.load(p, other), etl.Superseded)
			_, err := r.settle(p, other)
			wantKind(t, err, etl.Superseded)
			if rows := r.rows(); rows != "" {
				t.Errorf("rows %s", rows)
			}
			must(t, r.load(p, g))
		})
	}
}

// TestLoadObjectsGone: what housekeeping took away or a disk damaged is made again from the raw part, the same, before a row
// is written, while the contract stands; else it is refused. R16, R22, R23
func TestLoadObjectsGone(t *testing.T) {
	for _, kind := range []etl.ObjectKind{etl.Valid, etl.Keys, etl.Quarantine} {
		t.Run(string(kind), func(t *testing.T) {
			r := newRig(t, rigFile, join(many(3), bad(1)))
			p, g := r.bound()
			key := etl.StageKey(kind, r.batch, g.Binding, 0)
			before, err := r.stage.Head(t.Context(), key)
			must(t, err)
			r.stage.Delete(key)
			must(t, r.load(p, g))
			if after, err := r.stage.Head(t.Context(), key); err != nil || after != before {
				t.Errorf("%+v, %v, before %+v", after, err, before)
			}
			if got := r.loads(g); len(got) != 1 || got[0].New != 3 {
				t.Errorf("%+v", got)
			}
		})
	}
	t.Run("the file moved on", func(t *testing.T) {
		r := newRig(t, rigFile, many(3))
		p, g := r.bound()
		r.stage.Delete(etl.StageKey(etl.Valid, r.batch, g.Binding, 0))
		r.swap(strings.Replace(rigFile, "revision: 1", "revision: 2", 1))
		wantKind(t, r.load(p, g), etl.ContractChanged, "reprocess the batch")
	})
	t.Run("the file moved on, the objects are there", func(t *testing.T) {
		r := newRig(t, rigFile, many(3))
		p, g := r.bound()
		r.swap(strings.Replace(rigFile, "revision: 1", "revision: 2", 1))
		must(t, r.load(p, g))
	})
	// More rows than a chunk: a digest that is looked at only once the object is read would come too late.
	const rows = 1500
	damages := map[string]struct {
		kind   etl.ObjectKind
		damage func(t *testing.T, body []byte) []byte
	}{
		"a changed row": {etl.Valid, func(t *testing.T, body []byte) []byte {
			return zip(t, bytes.Replace(unzip(t, body), []byte(`"text":"x"`), []byte(`"text":"y"`), 1))
		}},
		"a flipped bit": {etl.Valid, func(_ *testing.T, body []byte) []byte { body[len(body)/8] ^= 1; return body }},
		"no gzip":       {etl.Valid, func(*testing.T, []byte) []byte { return []byte("nonsense") }},
		"cut short":     {etl.Valid, func(_ *testing.T, body []byte) []byte { return body[:len(body)/2] }},
		"empty":         {etl.Valid, func(*testing.T, []byte) []byte { return nil }},
		"changed keys":  {etl.Keys, func(_ *testing.T, body []byte) []byte { copy(body, body[16:32]); return body }},
	}
	for name, d := range damages {
		damaged := func(t *testing.T, file string) (*rig, etl.Progress, etl.GateOutput) {
			r := newRig(t, file, join(many(rows), rec("id0", 1, "x")))
			p, g := r.bound()
			key := etl.StageKey(d.kind, r.batch, g.Binding, 0)
			obj, err := r.stage.Get(t.Context(), key)
			must(t, err)
			body, err := io.ReadAll(obj)
			must(t, err)
			must(t, r.stage.Put(t.Context(), key, bytes.NewReader(d.damage(t, body))))
			return r, p, g
		}
		t.Run(name, func(t *testing.T) {
			r, p, g := damaged(t, rigFile)
			must(t, r.load(p, g))
			if got := r.rows(); strings.Count(got, " x") != rows || len(r.target.Items()) != rows {
				t.Errorf("%d rows, %d of them right", len(r.target.Items()), strings.Count(got, " x"))
			}
			if got := r.loads(g); len(got) != 1 || got[0].New != rows || got[0].Duplicate != 1 {
				t.Errorf("%+v", got)
			}
		})
		t.Run(name+", the file moved on", func(t *testing.T) {
			r, p, g := damaged(t, rigFile)
			r.swap(strings.Replace(rigFile, "revision: 1", "revision: 2", 1))
			wantKind(t, r.load(p, g), etl.ContractChanged, "damaged", "reprocess the batch")
			if n := len(r.target.Items()); n > 0 {
				t.Errorf("%d rows were written", n)
			}
		})
	}
}

func unzip(t *testing.T, body []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(body))
	must(t, err)
	text, err := io.ReadAll(z)
	must(t, err)
	return text
}

func zip(t *testing.T, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(text)
	must(t, err)
	must(t, z.Close())
	return b.Bytes()
}

// TestLoadReadsBeforeItWrites: rows that need not change cost no write, and a row that another one beat meanwhile is
// still decided by its rank. B8, R15
func TestLoadReadsBeforeItWrites(t *testing.T) {
	r := newRig(t, rigFile, join(rec("a", 1, "one"), rec("b", 5, "five")))
	p, g := r.bound()
	must(t, r.load(p, g))
	r.batch.Slot = r.batch.Slot.Add(-3600e9)
	r.pages = []string{join(rec("a", 1, "one"), rec("b", 4, "four"))}
	p, g = r.bound()
	writes := r.target.Calls()["PutHigher"]
	must(t, r.load(p, g))
	if n := r.target.Calls()["PutHigher"]; n != writes {
		t.Errorf("%d writes", n-writes)
	}
	if got := r.loads(g); got[0] != (etl.LoadCounts{Unchanged: 1, Stale: 1}) {
		t.Errorf("%+v", got)
	}
	// Another load's row comes between reading the ranks and writing.
	r.batch.Slot = r.batch.Slot.Add(-3600e9)
	r.pages = []string{rec("c", 1, "old")}
	p, g = r.bound()
	between := false
	r.onCall = func(op, _ string) (bool, error) {
		if op == "PutHigher" && !between {
			between = true
			items := r.target.Items()
			items[1].PK, items[1].Doc = "c", []byte(`{"id":"c","text":"new","v":"5"}`)
			_, err := r.target.PutHigher(t.Context(), []store.Item{items[1]})
			must(t, err)
		}
		return true, nil
	}
	must(t, r.load(p, g))
	if got := r.loads(g); got[0] != (etl.LoadCounts{Stale: 1}) || !strings.Contains(r.rows(), "c new") {
		t.Errorf("%+v, rows %s", got, r.rows())
	}
}

// TestLoadOnce: a part that has its load record is not read again. B8
func TestLoadOnce(t *testing.T) {
	r := newRig(t, rigFile, many(3), many(2))
	p, g := r.bound()
	must(t, r.load(p, g))
	reads, ranks := r.stage.Calls()["Get"], r.target.Calls()["Ranks"]
	must(t, r.load(p, g))
	if r.stage.Calls()["Get"] != reads || r.target.Calls()["Ranks"] != ranks {
		t.Error("it was read again")
	}
}

// TestRepeats: however many keys repeat in a part and however few of them are looked at together, the highest rank of
// each is loaded, each other record of it is a duplicate, and one in conflict with what is loaded is counted so. B5, B7
func TestRepeats(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := history{versioned: rapid.Bool().Draw(t, "versioned"), epochs: map[int]int{1: 1}}
		rec := rapid.Custom(func(t *rapid.T) record {
			return record{Key: rapid.IntRange(1, 12).Draw(t, "key"), Version: rapid.IntRange(1, 2).Draw(t, "version"), Text: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "text")}
		})
		p := h.prepare(t, loaded{Extraction: 1, Revision: 1, Rows: rapid.SliceOfN(rec, 1, 60).Draw(t, "rows")})
		p.held = rapid.IntRange(1, 8).Draw(t, "held")
		target := mem.NewTable(store.Schema{Name: "orders"})
		counts, conflicts, err := p.run(target)
		ok(t, err)
		// Both parts have one row of each of their keys in the end; the second one's may have met the first one's.
		duplicates, lost := int64(0), int64(0)
		half := len(p.items) / 2
		for _, part := range [][]store.Item{p.items[:half], p.items[half:]} {
			best := map[store.Key]string{}
			for _, it := range part {
				best[it.Key] = max(best[it.Key], it.Rank)
			}
			duplicates += int64(len(part) - len(best))
			for _, it := range part {
				if etl.Conflict(best[it.Key], it.Rank) {
					lost++
				}
			}
		}
		second := map[store.Key]string{} // the winners of the second part, against those of the first
		for _, it := range p.items[half:] {
			second[it.Key] = max(second[it.Key], it.Rank)
		}
		first := map[store.Key]string{}
		for _, it := range p.items[:half] {
			first[it.Key] = max(first[it.Key], it.Rank)
		}
		for k, rank := range second {
			if etl.Conflict(first[k], rank) {
				lost++
			}
		}
		if counts.Duplicate != duplicates || conflicts != lost {
			t.Errorf("%d duplicates, %d conflicts; want %d, %d", counts.Duplicate, conflicts, duplicates, lost)
		}
		want := h.want(t, []*prepared{p})
		for _, it := range target.Items() {
			if it.Rank != want[it.Key].Rank {
				t.Errorf("%v: rank %s, want %s", it.Key, it.Rank, want[it.Key].Rank)
			}
		}
		if len(target.Items()) != len(want) {
			t.Errorf("%d rows, want %d", len(target.Items()), len(want))
		}
	})
}

// TestFirstOfEquals: of records that are the same the first is loaded, with the time of its own page.
func TestFirstOfEquals(t *testing.T) {
	r := newRig(t, largeParts, rec("a", 1, "x"), rec("a", 1, "x"))
	p, g := r.bound()
	must(t, r.load(p, g))
	var doc struct {
		At time.Time `json:"_ingested_at"`
	}
	must(t, json.Unmarshal(r.target.Items()[0].Doc, &doc))
	if first := r.footers(1)[0].Pages[0].FetchedAt; !doc.At.Equal(first) {
		t.Errorf("ingested at %s, the first page came at %s", doc.At, first)
	}
}

// TestLoadBalance: a part whose rows are not as many as its record says is not recorded as loaded. B7
func TestLoadBalance(t *testing.T) {
	for name, file := range map[string]string{"one by one": rigFile, "atomic": atomicFile} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, file, many(3))
			p, g := r.bound()
			key := store.Key{PK: r.batch.String(), SK: etl.TransformSK(g.Binding, 0)}
			it, err := r.table.Get(t.Context(), key)
			must(t, err)
			it.Doc = []byte(strings.Replace(string(it.Doc), `"valid":3`, `"valid":4`, 1))
			must(t, r.table.PutIf(t.Context(), it, store.Condition{}))
			wantKind(t, r.load(p, g), etl.RecordsLost)
			if got := r.loads(g); len(got) > 0 {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestLoadReadBreaksOff: a connection that breaks while an object is read is the store's failure, which passes, and says
// nothing against the object. R1
func TestLoadReadBreaksOff(t *testing.T) {
	for name, file := range map[string]string{"one by one": rigFile, "atomic": atomicFile} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, file, many(50))
			p, g := r.bound()
			// The valid lines and the keys while they are verified, then the lines while they are loaded.
			for _, r.cut = range []int{1, 2, 3} {
				wantKind(t, r.load(p, g), etl.StoreUnavailable, "part-00000")
				if n := len(r.target.Items()); n > 0 {
					t.Errorf("%d rows were written", n)
				}
			}
			must(t, r.load(p, g))
		})
	}
}
