package stage_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/disk"
	"github.com/onceload/onceload/pkg/store/mem"
)

// meter counts the requests that a table of DynamoDB would get, and their units.
type meter struct {
	store.Table
	mu                     sync.Mutex
	reads, writes          int
	readUnits, writeUnits  float64
	rowsWritten, rowsStale int
}

func (m *meter) stored(ctx context.Context, k store.Key) int {
	it, err := m.Table.Get(ctx, k)
	if err != nil {
		return 0
	}
	size, err := store.ItemSize(it)
	if err != nil {
		panic(err)
	}
	return size
}

func (m *meter) Ranks(ctx context.Context, keys []store.Key) (map[store.Key]string, error) {
	m.mu.Lock()
	m.reads++
	for _, k := range keys {
		m.readUnits += store.ReadUnits(m.stored(ctx, k))
	}
	m.mu.Unlock()
	return m.Table.Ranks(ctx, keys)
}

func (m *meter) PutHigher(ctx context.Context, items []store.Item) ([]store.Outcome, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := make([]int, len(items))
	for i, it := range items {
		old[i] = m.stored(ctx, it.Key)
	}
	out, err := m.Table.PutHigher(ctx, items)
	for i, o := range out {
		size, serr := store.ItemSize(items[i])
		if serr != nil {
			return nil, serr
		}
		if o.Written() {
			m.rowsWritten++
			m.writeUnits += store.WriteUnits(max(size, old[i]))
		} else {
			m.rowsStale++
			m.writeUnits += store.WriteUnits(old[i]) // a failed condition costs what stands in its way
		}
		m.writes++
	}
	return out, err
}

// TestCost loads a batch, loads it again, loads its rows through an overlapping slot, with one row in a hundred changed,
// and under a newer revision; and prints what each costs. What is unchanged costs no write. B8
func TestCost(t *testing.T) {
	rows := 100_000
	if testing.Short() {
		rows = 5_000
	}
	h := history{versioned: true, epochs: map[int]int{1: 1, 2: 1, 3: 1}}
	first := loaded{Slot: 0, Extraction: 1, Revision: 1}
	for n := range rows {
		first.Rows = append(first.Rows, record{Key: n, Version: 1, Text: fmt.Sprintf("Text %d %s", n, strings.Repeat("x", 200)), Status: "open"})
	}
	later, changed, newer := first, first, first
	later.Slot, changed.Slot, newer.Revision = 1, 2, 2
	changed.Rows = append([]record{}, first.Rows...)
	for n := 0; n < rows; n += 100 {
		changed.Rows[n].Version, changed.Rows[n].Text = 2, "Changed"
	}
	n := int64(rows)
	steps := []struct {
		name  string
		load  *prepared
		want  etl.LoadCounts
		quick bool
	}{
		{"first load", h.prepare(t, first), etl.LoadCounts{New: n}, false},
		{"reload", nil, etl.LoadCounts{Unchanged: n}, true},
		{"lookback overlap", h.prepare(t, later), etl.LoadCounts{Unchanged: n}, true},
		{"1 % changed", h.prepare(t, changed), etl.LoadCounts{Updated: n / 100, Unchanged: n - n/100}, false},
		{"reprocess", h.prepare(t, newer), etl.LoadCounts{Updated: n - n/100, Stale: n / 100}, false},
	}
	steps[1].load = steps[0].load
	db, err := disk.OpenDB(t.Context(), filepath.Join(t.TempDir(), "db"))
	ok(t, err)
	defer func() { ok(t, db.Close()) }()
	embedded, err := db.Table(t.Context(), store.Schema{Name: "orders"})
	ok(t, err)
	inMemory := mem.NewTable(store.Schema{Name: "orders"})
	var firstRequests int
	var firstTook time.Duration
	t.Logf("%-17s %9s %9s %9s %9s %8s", "", "requests", "rows", "write u.", "read u.", "on disk")
	for i, s := range steps {
		m := &meter{Table: inMemory}
		counts, _, err := s.load.run(m)
		if err != nil || counts != s.want {
			t.Fatalf("%s: %+v, %v; want %+v", s.name, counts, err, s.want)
		}
		began := time.Now()
		if _, _, err := s.load.run(embedded); err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		requests := m.reads + m.writes
		t.Logf("%-17s %9d %9d %9.0f %9.0f %7.2fs", s.name, requests, m.rowsWritten, m.writeUnits, m.readUnits, took.Seconds())
		if i == 0 {
			firstRequests, firstTook = requests, took
		}
		if s.quick && (m.writes > 0 || requests*50 > firstRequests) {
			t.Errorf("%s: %d requests, %d of them writes; the first load had %d", s.name, requests, m.writes, firstRequests)
		}
		if s.quick {
			t.Logf("%-17s %.3f of the first load's time on disk", "", took.Seconds()/firstTook.Seconds())
		}
		if m.rowsStale > 0 {
			t.Errorf("%s: %d writes of rows that had lost already", s.name, m.rowsStale)
		}
	}
}
