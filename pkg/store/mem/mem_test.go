package mem_test

import (
	"errors"
	"slices"
	"strings"
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

var errFault = errors.New("the network broke")

// fault refuses or loses the reply of one method's calls from the given one on.
func fault(method string, from int, apply bool) mem.Fault {
	n := 0
	return func(op, _ string) (bool, error) {
		if op != method {
			return true, nil
		}
		n++
		if n <= from {
			return true, nil
		}
		return apply, errFault
	}
}

func TestObjectFaults(t *testing.T) {
	ctx := t.Context()
	for _, apply := range []bool{false, true} {
		o := mem.NewObjects()
		o.OnCall = fault("PutOnce", 0, apply)
		if err := o.PutOnce(ctx, "k", []byte("x")); !errors.Is(err, errFault) {
			t.Errorf("put once: %v", err)
		}
		if _, err := o.Head(ctx, "k"); errors.Is(err, store.ErrNotFound) == apply {
			t.Errorf("apply %v: head says %v", apply, err)
		}
		o.OnCall = fault("Put", 0, apply)
		if err := o.Put(ctx, "p", strings.NewReader("x")); !errors.Is(err, errFault) {
			t.Errorf("put: %v", err)
		}
		if _, err := o.Head(ctx, "p"); errors.Is(err, store.ErrNotFound) == apply {
			t.Errorf("apply %v: head says %v", apply, err)
		}
		for _, op := range []string{"Get", "GetRange", "Head", "List"} {
			o.OnCall = fault(op, 0, apply)
			var err error
			switch op {
			case "Get":
				_, err = o.Get(ctx, "k")
			case "GetRange":
				_, err = o.GetRange(ctx, "k", 0, 1)
			case "Head":
				_, err = o.Head(ctx, "k")
			case "List":
				for _, e := range o.List(ctx, "") {
					err = e
				}
			}
			if !errors.Is(err, errFault) {
				t.Errorf("%s: %v", op, err)
			}
		}
		if calls := o.Calls(); calls["PutOnce"] != 1 || calls["Head"] != 3 {
			t.Errorf("calls %v", calls)
		}
	}
	o := mem.NewObjects()
	if err := o.PutOnce(ctx, "gone", nil); err != nil {
		t.Fatal(err)
	}
	o.Delete("gone")
	if _, err := o.Get(ctx, "gone"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("deleted: %v", err)
	}
}

func TestTableFaults(t *testing.T) {
	ctx := t.Context()
	item := func(pk string) store.Item { return store.Item{Key: store.Key{PK: pk}, Rank: "1", Doc: []byte(`{}`)} }
	all := []store.Item{item("a"), item("b"), item("c"), item("d")}
	for _, c := range []struct {
		op    string
		from  int
		apply bool
		want  string // keys that are there afterwards
	}{
		{"PutHigher", 0, false, ""}, {"PutHigher", 2, false, "ab"}, {"PutHigher", 2, true, "abc"}, {"PutHigher", 4, true, "abcd"},
		{"PutAllHigher", 0, false, ""}, {"PutAllHigher", 0, true, "abcd"},
		{"PutIf", 0, false, ""}, {"PutIf", 0, true, "a"},
		{"Get", 0, true, ""}, {"Ranks", 0, true, ""}, {"Query", 0, true, ""},
	} {
		tab := mem.NewTable(store.Schema{Name: "t"})
		tab.OnCall = fault(c.op, c.from, c.apply)
		var err error
		switch c.op {
		case "PutHigher":
			_, err = tab.PutHigher(ctx, all)
		case "PutAllHigher":
			_, err = tab.PutAllHigher(ctx, all)
		case "PutIf":
			err = tab.PutIf(ctx, all[0], store.Condition{})
		case "Get":
			_, err = tab.Get(ctx, all[0].Key)
		case "Ranks":
			_, err = tab.Ranks(ctx, []store.Key{all[0].Key})
		case "Query":
			for _, e := range tab.Query(ctx, store.Query{PK: "a"}) {
				err = e
			}
		}
		if faulty := c.from < len(all); errors.Is(err, errFault) != faulty {
			t.Errorf("%+v: %v", c, err)
		}
		held := ""
		for _, i := range tab.Items() {
			held += i.PK
		}
		if held != c.want {
			t.Errorf("%+v: the table holds %q", c, held)
		}
		if n := tab.Calls()[c.op]; n != 1 {
			t.Errorf("%+v: %d calls", c, n)
		}
		// Once the fault is over the same call ends the work.
		tab.OnCall = nil
		out, err := tab.PutHigher(ctx, all)
		if err != nil || len(tab.Items()) != len(all) || slices.Contains(out, store.Stale) {
			t.Errorf("%+v: then %v, %v", c, out, err)
		}
	}
}
