package disk_test

import (
	"errors"
	"path/filepath"
	"sync"
	"testing"

	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/store/disk"
)

// TestOpenAtOnce: several openers of one new file all get it, and all make the same table. R20
func TestOpenAtOnce(t *testing.T) {
	for range 20 {
		path := filepath.Join(t.TempDir(), "onceload.db")
		var wait sync.WaitGroup
		for range 8 {
			wait.Go(func() {
				db, err := disk.OpenDB(t.Context(), path)
				if err != nil {
					t.Errorf("open: %v", err)
					return
				}
				_, err = db.Table(t.Context(), ledger.Schema())
				if err := errors.Join(err, db.Close()); err != nil {
					t.Errorf("table: %v", err)
				}
			})
		}
		wait.Wait()
	}
}
