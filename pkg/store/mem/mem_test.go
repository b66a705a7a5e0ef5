package mem_test

import (
	"testing"

	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/mem"
	"github.com/onceload/onceload/pkg/store/storetest"
)

func TestConformance(t *testing.T) {
	t.Run("objects", func(t *testing.T) {
		storetest.Objects(t, func(*testing.T) store.Objects { return mem.NewObjects() }, nil)
	})
	t.Run("table", func(t *testing.T) {
		storetest.Table(t, func(_ *testing.T, s store.Schema) store.Table { return mem.NewTable(s) }, nil)
	})
}
