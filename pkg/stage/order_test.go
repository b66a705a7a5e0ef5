package stage_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"pgregory.net/rapid"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/page"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/snapshot"
	"github.com/onceload/onceload/pkg/stage"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/cloud"
	"github.com/onceload/onceload/pkg/store/disk"
	"github.com/onceload/onceload/pkg/store/mem"
)

// loaded is what one load loads: an extraction of a batch under a revision.
type loaded struct {
	Slot, Extraction, Revision int
	Rows                       []record
}

// record is a record of the source.
type record struct {
	Key     int    `json:"key"`
	Version int    `json:"version"`
	Text    string `json:"text"`
	Status  string `json:"status"`
}

// history is a set of loads, and the contracts they were made under.
type history struct {
	versioned bool
	atomic    bool        // each load is one transaction
	epochs    map[int]int // of a revision
	loads     []loaded
}

const orderKeys = 4

func drawHistory(t *rapid.T, most int, transactions bool) history {
	h := history{versioned: rapid.IntRange(0, 2).Draw(t, "versioned") > 0, atomic: transactions && rapid.IntRange(0, 2).Draw(t, "atomic") == 0, epochs: map[int]int{}}
	for r := 1; r <= 3; r++ {
		h.epochs[r] = rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(t, "epoch")
	}
	rec := rapid.Custom(func(t *rapid.T) record {
		return record{
			Key: rapid.IntRange(1, orderKeys).Draw(t, "key"), Version: rapid.IntRange(1, 3).Draw(t, "version"),
			Text:   rapid.SampledFrom([]string{"Aa", "Bb", "Cc"}).Draw(t, "text"),
			Status: rapid.SampledFrom([]string{"open", "open", "deleted"}).Draw(t, "status"),
		}
	})
	h.loads = rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) loaded {
		return loaded{
			Slot: rapid.IntRange(0, 2).Draw(t, "slot"), Extraction: rapid.IntRange(1, 2).Draw(t, "extraction"),
			Revision: rapid.IntRange(1, 3).Draw(t, "revision"), Rows: rapid.SliceOfN(rec, 1, 6).Draw(t, "rows"),
		}
	}), 1, most, func(l loaded) [3]int { return [3]int{l.Slot, l.Extraction, l.Revision} }).Draw(t, "loads")
	// One extraction has one content, whatever revision reads it.
	content := map[[2]int][]record{}
	for i, l := range h.loads {
		k := [2]int{l.Slot, l.Extraction}
		if content[k] == nil {
			content[k] = l.Rows
		}
		h.loads[i].Rows = content[k]
	}
	return h
}

// text is what a revision makes of a text. Revision 3 takes revision 2 back.
func text(s string, revision int) string {
	if revision == 2 {
		return strings.ToUpper(s)
	}
	return strings.ToLower(s)
}

func (h history) file(revision int) string {
	version, clean := "", "lower"
	if h.versioned {
		version = "version: version"
	}
	if revision == 2 {
		clean = "upper"
	}
	return fmt.Sprintf(`
pipeline: orders
every: 1h
source:
  url: http://orders.example/v1/orders
  paginate: {none: {}}
contract:
  revision: %d
  epoch: %d
  key: [key]
  %s
  fields:
    key: {type: integer, required: true}
    version: {type: integer, required: true}
    text: {type: string, clean: [%s]}
  delete: {from: status, equals: deleted}
target: {table: orders, atomic: %v}
`, revision, h.epochs[revision], version, clean, h.atomic)
}

// prepared is a load whose parts are transformed, ready to run any number of times.
type prepared struct {
	loaded
	pipeline *pipeline.Pipeline
	batch    etl.Batch
	bind     etl.Binding
	objects  *mem.Objects
	records  []store.Item // of the ledger
	owner    ledger.Owner
	items    []store.Item // all valid lines
	held     int          // repeated keys that Load may hold; 0 = as many as it does
}

type failer interface {
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func ok(t failer, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

type everythingEnded struct{}

func (everythingEnded) Alive(context.Context, string) (ledger.Liveness, error) {
	return ledger.Ended, nil
}

func (h history) prepare(t failer, l loaded) *prepared {
	ctx := context.Background()
	file, err := pipeline.Parse("orders.yaml", []byte(h.file(l.Revision)))
	ok(t, err)
	k, err := contract.Compile(file.Contract, file.Target)
	ok(t, err)
	p := &prepared{loaded: l, pipeline: file, objects: mem.NewObjects()}
	p.batch = etl.Batch{Pipeline: "orders", Slot: time.Date(2026, 11, 30, l.Slot, 0, 0, 0, time.UTC)}
	p.bind = etl.Binding{Extraction: l.Extraction, Revision: k.Revision(), Contract: k.Short()}
	raw, table := mem.NewObjects(), mem.NewTable(ledger.Schema())
	books := &ledger.Ledger{Table: table}
	claim, err := books.Claim(ctx, ledger.ClaimRequest{Batch: p.batch, Execution: "x", Window: file.Schedule.Window(p.batch.Slot)})
	ok(t, err)
	p.owner = claim.Owner
	_, err = books.Update(ctx, p.owner, etl.StageLoad, func(b *ledger.Batch) {
		b.Extraction, b.Binding, b.Table = l.Extraction, &p.bind, "orders"
	})
	ok(t, err)
	s := stage.New(stage.Deps{Raw: raw, Stage: p.objects, Ledger: books})
	// Two parts, so that a key may stand in both.
	half := len(l.Rows) / 2
	for part, rows := range [][]record{l.Rows[:half], l.Rows[half:]} {
		body, err := json.Marshal(append([]record{}, rows...))
		ok(t, err)
		w := snapshot.NewPartWriter(p.batch, l.Extraction, part)
		ok(t, w.Add(body, snapshot.Page{Records: len(rows), FetchedAt: p.batch.Slot}))
		_, _, err = w.Land(ctx, raw)
		ok(t, err)
		ok(t, s.Transform.Part(ctx, file, k, p.batch, l.Extraction, part))
	}
	p.records = table.Items()
	checker := k.NewChecker()
	for _, r := range l.Rows {
		p.items = append(p.items, item(t, checker, r, contract.Origin{Batch: p.batch, Extraction: l.Extraction}))
	}
	return p
}

// run loads the parts into the target, as one execution would that nobody disturbs but through the target.
func (p *prepared) run(target store.Table) (etl.LoadCounts, int64, error) {
	ctx := context.Background()
	table := mem.NewTable(ledger.Schema())
	for _, it := range p.records {
		if err := table.PutIf(ctx, it, store.Condition{}); err != nil {
			return etl.LoadCounts{}, 0, err
		}
	}
	books := &ledger.Ledger{Table: table}
	s := stage.New(stage.Deps{
		Stage: p.objects, Ledger: books, Liveness: everythingEnded{},
		Target:    func(context.Context, *pipeline.Pipeline) (store.Table, error) { return target, nil },
		Pipelines: func(string) (*pipeline.Pipeline, error) { return p.pipeline, nil },
	})
	if p.held > 0 {
		s.Load.HoldRepeats(p.held)
	}
	_, err := s.Load.Run(ctx, etl.LoadInput{
		Execution: "x", Batch: p.batch.String(), Fence: p.owner.Fence, Binding: p.bind, Load: 1,
		Position: etl.LoadPosition{Range: etl.Range{First: 0, Last: 1}},
	})
	if err != nil {
		return etl.LoadCounts{}, 0, err
	}
	loads, err := books.Loads(ctx, p.batch, p.bind, 1)
	var sum etl.LoadCounts
	conflicts := int64(0)
	for _, l := range loads {
		sum = sum.Add(l.LoadCounts)
		conflicts += l.Conflicts
	}
	return sum, conflicts, err
}

// want is the table that the loads must give in any order: of each key the record with the highest epoch, version,
// revision, and of equal ones the one whose digest is higher.
func (h history) want(t failer, loads []*prepared) map[store.Key]store.Item {
	type entry struct {
		order []int
		item  store.Item
		text  string
		gone  bool
	}
	best := map[store.Key]entry{}
	for _, l := range loads {
		for i, r := range l.Rows {
			e := entry{order: []int{h.epochs[l.Revision], r.Version, l.Revision}, item: l.items[i], text: text(r.Text, l.Revision), gone: r.Status == "deleted"}
			if !h.versioned {
				e.order[1] = 10*l.Slot + l.Extraction
			}
			old, there := best[e.item.Key]
			digest := func(it store.Item) string { return it.Rank[strings.LastIndexByte(it.Rank, '|'):] }
			if !there || cmp.Or(slices.Compare(e.order, old.order), strings.Compare(digest(e.item), digest(old.item))) > 0 {
				best[e.item.Key] = e
			}
		}
	}
	out := map[store.Key]store.Item{}
	for k, e := range best {
		doc := columns(t, e.item)
		if (doc["_deleted"] == true) != e.gone || !e.gone && doc["text"] != e.text {
			t.Fatalf("row %v should hold %q, deleted %v: %s", k, e.text, e.gone, e.item.Doc)
		}
		out[k] = e.item
	}
	return out
}

// item is the row of a record.
func item(t failer, checker *contract.Checker, r record, from contract.Origin) store.Item {
	one, err := json.Marshal([]record{r})
	ok(t, err)
	var out store.Item
	_, err = page.Layout{}.Records(one, func(rec page.Record) error {
		res := checker.Check(rec, contract.Place{}, from)
		if res.Line == nil {
			t.Fatalf("%s: %v", rec.Raw, res.Reasons)
		}
		out, err = contract.ParseLine(res.Line)
		return err
	})
	ok(t, err)
	return out
}

// columns are the columns that B5 speaks of.
func columns(t failer, it store.Item) map[string]any {
	var doc map[string]any
	ok(t, json.Unmarshal(it.Doc, &doc))
	maps.DeleteFunc(doc, func(name string, _ any) bool { return name[0] == '_' && name != "_deleted" })
	return doc
}

// holds compares the table with what it must be.
func holds(t failer, target store.Table, want map[store.Key]store.Item, how string) {
	for n := 1; n <= orderKeys; n++ {
		key := store.Key{PK: fmt.Sprint(n)}
		got, err := target.Get(context.Background(), key)
		w, there := want[key]
		switch {
		case errors.Is(err, store.ErrNotFound) && !there:
			continue
		case err != nil:
			t.Fatalf("%s: row %v: %v, want %s", how, key, err, w.Rank)
		case got.Rank != w.Rank, fmt.Sprint(columns(t, got)) != fmt.Sprint(columns(t, w)):
			t.Fatalf("%s: row %v\n is %s %s\nwant %s %s", how, key, got.Rank, got.Doc, w.Rank, w.Doc)
		}
	}
}

func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{{}}
	}
	var out [][]int
	for _, p := range permutations(n - 1) {
		for i := range n {
			out = append(out, slices.Insert(slices.Clone(p), i, n-1))
		}
	}
	return out
}

// backends run a test on each store, with the number of checks and of loads that its speed allows; transactions says that
// it has any (dynalite does not know TransactWriteItems).
func backends(t *testing.T, test func(t *testing.T, checks, most int, transactions bool, open func() store.Table)) {
	n := 0
	schema := func() store.Schema { n++; return store.Schema{Name: fmt.Sprint("orders", n)} }
	t.Run("mem", func(t *testing.T) {
		test(t, 100, 4, true, func() store.Table { return mem.NewTable(schema()) })
	})
	t.Run("disk", func(t *testing.T) {
		db, err := disk.OpenDB(t.Context(), filepath.Join(t.TempDir(), "db"))
		ok(t, err)
		t.Cleanup(func() { ok(t, db.Close()) })
		test(t, 15, 3, true, func() store.Table {
			table, err := db.Table(context.Background(), schema())
			ok(t, err)
			return table
		})
	})
	const env = "ONCELOAD_TEST_DYNAMODB" // name=endpoint, comma separated
	if os.Getenv(env) == "" {
		t.Run("cloud", func(t *testing.T) { t.Skipf("no DynamoDB server: %s is not set", env) })
		return
	}
	for server := range strings.SplitSeq(os.Getenv(env), ",") {
		name, endpoint, _ := strings.Cut(server, "=")
		t.Run("cloud/"+name, func(t *testing.T) {
			client := dynamodb.New(dynamodb.Options{Region: "us-east-1", BaseEndpoint: &endpoint,
				Credentials: credentials.NewStaticCredentialsProvider("test", "test", "")})
			run := time.Now().UnixNano()
			test(t, 6, 3, name != "dynalite", func() store.Table {
				s := schema()
				s.Name = fmt.Sprint(s.Name, "-", run)
				ok(t, cloud.CreateTable(context.Background(), client, cloud.TableInput(s)))
				return cloud.NewTable(client, s)
			})
		})
	}
}

// check is rapid.Check with a number of checks of its own.
func check(t *testing.T, checks int, prop func(*rapid.T)) {
	f := flag.Lookup("rapid.checks")
	old := f.Value.String()
	if old == f.DefValue {
		ok(t, f.Value.Set(fmt.Sprint(checks)))
		defer func() { ok(t, f.Value.Set(old)) }()
	}
	rapid.Check(t, prop)
}

// TestAnyOrder loads random histories in every order: the table is the same. Then everything again, and nothing is
// written. R15, B1, B5, B8
func TestAnyOrder(t *testing.T) {
	backends(t, func(t *testing.T, checks, most int, transactions bool, open func() store.Table) {
		check(t, checks, func(t *rapid.T) {
			h := drawHistory(t, most, transactions)
			var loads []*prepared
			for _, l := range h.loads {
				loads = append(loads, h.prepare(t, l))
			}
			want := h.want(t, loads)
			var target store.Table
			for _, order := range permutations(len(loads)) {
				target = open()
				for _, i := range order {
					counts, _, err := loads[i].run(target)
					ok(t, err)
					if counts.Total() != int64(len(loads[i].Rows)) { // B7
						t.Fatalf("order %v: load %d counts %+v, %d rows", order, i, counts, len(loads[i].Rows))
					}
				}
				holds(t, target, want, fmt.Sprint("order ", order))
			}
			for i, l := range loads {
				if counts, _, err := l.run(target); err != nil || counts.New+counts.Updated > 0 {
					t.Fatalf("load %d once more: %+v, %v", i, counts, err)
				}
			}
		})
	})
}

var errCrash = errors.New("the loader is dead")

// turns lets loaders into a table one call at a time, in the order that a draw gives.
type turns struct {
	store.Table
	ask, goOn chan struct{}
	calls     int
	crashAt   int  // number of the call at which this loader dies, 0 = never
	applied   bool // after that call took effect
	stale     func() bool
}

func (s *turns) turn(do func() error) error {
	if s.crashAt > 0 && s.calls >= s.crashAt {
		return errCrash
	}
	s.ask <- struct{}{}
	<-s.goOn
	if s.calls++; s.calls != s.crashAt {
		return do()
	}
	if s.applied {
		if err := do(); err != nil {
			return err
		}
	}
	return errCrash
}

// Ranks may be stale: of a row that is there it may not know yet.
func (s *turns) Ranks(ctx context.Context, keys []store.Key) (ranks map[store.Key]string, err error) {
	err = s.turn(func() error {
		ranks, err = s.Table.Ranks(ctx, keys)
		for _, k := range keys {
			if s.stale() {
				delete(ranks, k)
			}
		}
		return err
	})
	return ranks, err
}

// PutHigher decides each item alone, so that others' calls come between any two.
func (s *turns) PutHigher(ctx context.Context, items []store.Item) (out []store.Outcome, err error) {
	for _, it := range items {
		err := s.turn(func() error {
			o, err := s.Table.PutHigher(ctx, []store.Item{it})
			out = append(out, o...)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (s *turns) PutAllHigher(ctx context.Context, items []store.Item) (out []store.Outcome, err error) {
	err = s.turn(func() error { out, err = s.Table.PutAllHigher(ctx, items); return err })
	return out, err
}

// TestAnyInterleaving runs two and three loaders at once, one call at a time in a random order, with stale looks; each may
// die at any of its calls and is run again, beside the others that are left. The table is the same. R15, B5
func TestAnyInterleaving(t *testing.T) {
	backends(t, func(t *testing.T, checks, _ int, transactions bool, open func() store.Table) {
		check(t, 2*checks, func(t *rapid.T) {
			h := drawHistory(t, 3, transactions)
			var loads []*prepared
			for _, l := range h.loads {
				loads = append(loads, h.prepare(t, l))
			}
			if len(loads) == 1 {
				loads = append(loads, loads[0]) // the same load twice at once: a zombie and its successor
			}
			want := h.want(t, loads)
			target := open()
			for round := 0; len(loads) > 0; round++ {
				loads = atOnce(t, target, loads, round < 2)
			}
			holds(t, target, want, "interleaved")
		})
	})
}

// atOnce runs the loads at once and returns those whose loader died.
func atOnce(t *rapid.T, target store.Table, loads []*prepared, mayDie bool) (dead []*prepared) {
	type ended struct {
		i   int
		err error
	}
	over := make(chan ended)
	seats := make([]*turns, len(loads))
	waiting := map[int]bool{}
	running := len(loads)
	asks := make(chan int)
	for i, l := range loads {
		s := &turns{Table: target, ask: make(chan struct{}), goOn: make(chan struct{})}
		s.stale = func() bool { return rapid.IntRange(0, 3).Draw(t, "stale") == 0 }
		if mayDie && rapid.Bool().Draw(t, "dies") {
			s.crashAt, s.applied = rapid.IntRange(1, 6).Draw(t, "at call"), rapid.Bool().Draw(t, "applied")
		}
		seats[i] = s
		go func() {
			for range s.ask {
				asks <- i
			}
		}()
		go func() {
			_, _, err := l.run(s)
			close(s.ask)
			over <- ended{i, err}
		}()
	}
	for running > 0 {
		for len(waiting) < running {
			select {
			case i := <-asks:
				waiting[i] = true
			case e := <-over:
				running--
				switch {
				case errors.Is(e.err, errCrash):
					dead = append(dead, loads[e.i])
				case e.err != nil:
					t.Fatalf("load %d: %v", e.i, e.err)
				}
			}
		}
		if running == 0 {
			break
		}
		next := rapid.SampledFrom(slices.Sorted(maps.Keys(waiting))).Draw(t, "next")
		delete(waiting, next)
		seats[next].goOn <- struct{}{}
	}
	return dead
}

// TestConflicts counts two contents under one version: within a part, and against the row that is there, also one that
// the first look did not show. C28
func TestConflicts(t *testing.T) {
	h := history{versioned: true, epochs: map[int]int{1: 1}}
	at := func(slot int, texts ...string) *prepared {
		l := loaded{Slot: slot, Extraction: 1, Revision: 1}
		for _, s := range texts {
			l.Rows = append(l.Rows, record{Key: 1, Version: 7, Text: s, Status: "open"})
		}
		return h.prepare(t, l)
	}
	a, b, both := at(0, "aa"), at(1, "bb"), at(2, "", "aa", "bb", "bb")
	if a.items[0].Rank > b.items[0].Rank {
		a, b = b, a
	}
	target := mem.NewTable(store.Schema{Name: "orders"})
	for _, step := range []struct {
		name      string
		load      *prepared
		stale     bool
		counts    etl.LoadCounts
		conflicts int64
	}{
		{"new", a, false, etl.LoadCounts{New: 1}, 0},
		{"its own write, reply lost", a, true, etl.LoadCounts{Unchanged: 1}, 0},
		{"a higher digest", b, false, etl.LoadCounts{Updated: 1}, 1},
		{"a lower digest", a, false, etl.LoadCounts{Stale: 1}, 1},
		{"a lower digest, not seen at first", a, true, etl.LoadCounts{Stale: 1}, 1},
	} {
		t.Run(step.name, func(t *testing.T) {
			counts, conflicts, err := step.load.run(blind{target, step.stale, new(bool)})
			if err != nil || counts != step.counts || conflicts != step.conflicts {
				t.Errorf("%+v, %d conflicts, %v; want %+v, %d", counts, conflicts, err, step.counts, step.conflicts)
			}
		})
	}
	t.Run("within a part", func(t *testing.T) {
		counts, conflicts, err := both.run(mem.NewTable(store.Schema{Name: "orders"}))
		if err != nil || counts.Total() != 4 || conflicts == 0 {
			t.Errorf("%+v, %d conflicts, %v", counts, conflicts, err)
		}
	})
}

// blind shows nothing at the first look.
type blind struct {
	store.Table
	on     bool
	looked *bool
}

func (b blind) Ranks(ctx context.Context, keys []store.Key) (map[store.Key]string, error) {
	if b.on && !*b.looked {
		*b.looked = true
		return map[store.Key]string{}, nil
	}
	return b.Table.Ranks(ctx, keys)
}
