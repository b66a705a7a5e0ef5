package snapshot_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"
	"testing/iotest"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/snapshot"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/mem"
)

// bucket is a store in memory whose Get may break off.
type bucket struct {
	*mem.Objects
	reader func(io.Reader) io.Reader
}

func newBucket() *bucket { return &bucket{Objects: mem.NewObjects()} }

func (b *bucket) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	r, err := b.Objects.Get(ctx, key)
	if err != nil || b.reader == nil {
		return r, err
	}
	return io.NopCloser(b.reader(r)), nil
}

// object is what lies under the key.
func (b *bucket) object(tb testing.TB, key string) []byte {
	tb.Helper()
	body, err := b.GetRange(tb.Context(), key, 0, 1<<40)
	if err != nil {
		tb.Fatal(err)
	}
	return body
}

// replace puts body under the key, as nobody but a test may.
func (b *bucket) replace(tb testing.TB, key string, body []byte) {
	tb.Helper()
	if err := b.Put(tb.Context(), key, bytes.NewReader(body)); err != nil {
		tb.Fatal(err)
	}
}

// failPut makes every PutOnce fail: refused, or carried out with its reply lost.
func (b *bucket) failPut(apply bool) {
	b.OnCall = func(op, _ string) (bool, error) {
		if op == "PutOnce" {
			return apply, etl.Errorf(etl.StoreUnavailable, "connection reset")
		}
		return true, nil
	}
}

var (
	batch = etl.Batch{Pipeline: "orders", Slot: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)}
	part0 = etl.RawPartKey(batch, 1, 0)
	at    = time.Date(2026, 11, 30, 11, 5, 0, 123_000_000, time.UTC)
)

// page is the meta of a page whose next state is cursor.
func page(cursor string) snapshot.Page {
	return snapshot.Page{
		Records: 2, URL: "https://api.example.com/v1/orders?a=1&b=<2>", Status: 200, FetchedAt: at, Request: "f00d",
		Before: fmt.Appendf(nil, `{"cursor":%q}`, "before "+cursor), After: fmt.Appendf(nil, `{"cursor": %q}`, cursor),
	}
}

// part is a writer of part 0 that holds the bodies.
func part(t testing.TB, bodies ...string) *snapshot.PartWriter {
	t.Helper()
	w := snapshot.NewPartWriter(batch, 1, 0)
	for _, body := range bodies {
		if err := w.Add([]byte(body), page(body)); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func land(t testing.TB, raw store.Objects, bodies ...string) snapshot.Footer {
	t.Helper()
	f, adopted, err := part(t, bodies...).Land(t.Context(), raw)
	if err != nil || adopted {
		t.Fatalf("Land: adopted %v, %v", adopted, err)
	}
	return f
}

// bodies reads all of a part.
func bodies(t testing.TB, raw store.Objects, f snapshot.Footer) []string {
	t.Helper()
	var out []string
	err := snapshot.ReadPages(t.Context(), raw, f, func(p snapshot.Page, n int, body []byte) error {
		if n != len(out) || p.SHA256 != f.Pages[n].SHA256 {
			t.Errorf("page %d came as %d", len(out), n)
		}
		out = append(out, string(body))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func wantKind(t testing.TB, err error, kind etl.Kind, texts ...string) {
	t.Helper()
	if err == nil || etl.KindOf(err) != kind {
		t.Fatalf("error %v: kind %s, want %s", err, etl.KindOf(err), kind)
	}
	for _, text := range texts {
		if !bytes.Contains([]byte(err.Error()), []byte(text)) {
			t.Errorf("error %q does not say %q", err, text)
		}
	}
}

// cut ends a reader with err after n bytes.
func cut(n int64, err error) func(io.Reader) io.Reader {
	return func(r io.Reader) io.Reader { return io.MultiReader(io.LimitReader(r, n), iotest.ErrReader(err)) }
}
