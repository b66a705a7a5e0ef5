package disk_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/disk"
)

const (
	benchRows  = 200_000
	benchBatch = 1_000
)

// benchItems are rows of some 440 bytes with the keys and ranks that a load writes.
func benchItems(random bool) []store.Item {
	order := rand.New(rand.NewPCG(1, 1)).Perm(benchRows)
	items := make([]store.Item, benchRows)
	for i := range items {
		n := i
		if random {
			n = order[i]
		}
		items[i] = store.Item{
			Key:  store.Key{PK: fmt.Sprintf("eu#%08x-%06d", uint32(n)*2_654_435_761, n)},
			Rank: fmt.Sprintf("0001|20261130100000%09d|0001.0001|%032x", n, n*7919),
			Doc: fmt.Appendf(nil, `{"_batch":"orders/20261130T100000Z","_ingested_at":"2026-11-30T11:05:07Z","_run":"orders/20261130T100000Z/1/1.1",`+
				`"currency":"EUR","email":"customer%07d@example.com","items":[{"name":"a thing of some length","price":12.95,"qty":%d},{"name":"another","price":7,"qty":1}],`+
				`"note":"%s","order_id":"%06d","shop":"eu","total":%d.25,"updated_at":"2026-11-30T10:00:00.%06dZ"}`,
				n, n%9, "forty letters or so of a note to pad it", n, n%1000, n),
		}
		if !random {
			items[i].PK = fmt.Sprintf("eu#%08d", n)
		}
	}
	return items
}

// load is what the load stage does with one call's rows: ranks first, then the rows that must change.
func load(b *testing.B, tab store.Table, items []store.Item) (written int) {
	var todo []store.Item
	for len(items) > 0 {
		n := min(len(items), store.MaxBatchGet)
		keys := make([]store.Key, n)
		for i := range n {
			keys[i] = items[i].Key
		}
		ranks, err := tab.Ranks(b.Context(), keys)
		if err != nil {
			b.Fatal(err)
		}
		for _, item := range items[:n] {
			if ranks[item.Key] < item.Rank {
				todo = append(todo, item)
			}
		}
		items = items[n:]
	}
	if len(todo) == 0 {
		return 0
	}
	if _, err := tab.PutHigher(b.Context(), todo); err != nil {
		b.Fatal(err)
	}
	return len(todo)
}

// BenchmarkLoad loads 200,000 rows into an empty file, rank reads included, in the order of their keys and at random, and
// loads them again, when nothing changes.
func BenchmarkLoad(b *testing.B) {
	for _, order := range []string{"key", "random"} {
		items := benchItems(order == "random")
		fresh := func(b *testing.B) *disk.Table {
			tab, err := openDB(b, b.TempDir()).Table(b.Context(), store.Schema{Name: "orders"})
			if err != nil {
				b.Fatal(err)
			}
			return tab
		}
		all := func(b *testing.B, tab store.Table, want int) {
			written := 0
			for at := 0; at < benchRows; at += benchBatch {
				written += load(b, tab, items[at:at+benchBatch])
			}
			if written != want {
				b.Fatalf("%d rows written, want %d", written, want)
			}
		}
		rate := func(b *testing.B) { b.ReportMetric(float64(benchRows*b.N)/b.Elapsed().Seconds(), "rows/s") }
		b.Run(order+"/first", func(b *testing.B) {
			for b.Loop() {
				all(b, fresh(b), benchRows)
			}
			rate(b)
		})
		b.Run(order+"/again", func(b *testing.B) {
			tab := fresh(b)
			all(b, tab, benchRows)
			for b.Loop() {
				all(b, tab, 0)
			}
			rate(b)
		})
	}
}
