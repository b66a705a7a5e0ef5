package local

import (
	"sync"
	"testing"

	"github.com/onceload/onceload/pkg/store"
)

// TestTargetIsOpenedOnce: however many loads ask for a target at once, its statements are prepared once in a home's life.
func TestTargetIsOpenedOnce(t *testing.T) {
	h, err := Open(t.Context(), Options{Dir: t.TempDir()})
	must(t, err)
	defer func() { must(t, h.Close()) }()
	schema := store.Schema{Name: "rows", SortKey: true}
	var mu sync.Mutex
	var all sync.WaitGroup
	opened := map[store.Table]bool{}
	for range 8 {
		all.Go(func() {
			table, err := h.target(t.Context(), schema)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			opened[table] = true
		})
	}
	all.Wait()
	if len(opened) != 1 {
		t.Errorf("opened %d times", len(opened))
	}
	other, err := h.target(t.Context(), store.Schema{Name: "rows"})
	must(t, err)
	if opened[other] {
		t.Error("a table with a sort key passes for one without")
	}
}
