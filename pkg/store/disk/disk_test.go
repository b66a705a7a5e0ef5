package disk_test

import (
	"path/filepath"
	"testing"

	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/disk"
	"github.com/onceload/onceload/pkg/store/storetest"
)

func TestConformance(t *testing.T) {
	t.Run("objects", func(t *testing.T) {
		storetest.Objects(t, func(t *testing.T) store.Objects {
			o, err := disk.OpenObjects(filepath.Join(t.TempDir(), "bucket"))
			if err != nil {
				t.Fatal(err)
			}
			return o
		}, nil)
	})
	t.Run("table", func(t *testing.T) {
		storetest.Table(t, func(t *testing.T, s store.Schema) store.Table {
			db := openDB(t, t.TempDir())
			table, err := db.Table(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			return table
		}, nil)
	})
}

func openDB(t testing.TB, dir string) *disk.DB {
	t.Helper()
	db, err := disk.OpenDB(filepath.Join(dir, "onceload.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}
