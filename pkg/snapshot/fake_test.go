package snapshot_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"testing"
	"testing/iotest"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/snapshot"
	"github.com/onceload/onceload/pkg/store"
)

// bucket is a store.Objects that counts its reads and fails on demand.
type bucket struct {
	objects map[string][]byte
	onPut   func(key string) (apply bool, err error)
	reader  func(io.Reader) io.Reader
	reads   []string
}

func newBucket() *bucket { return &bucket{objects: map[string][]byte{}} }

func (b *bucket) PutOnce(_ context.Context, key string, body []byte) error {
	if b.onPut != nil {
		if apply, err := b.onPut(key); err != nil {
			if apply {
				b.objects[key] = bytes.Clone(body)
			}
			return err
		}
	}
	if _, ok := b.objects[key]; ok {
		return store.ErrExists
	}
	b.objects[key] = bytes.Clone(body)
	return nil
}

func (b *bucket) Put(context.Context, string, io.Reader) error {
	return errors.New("a snapshot is written once: Put must not be called")
}

func (b *bucket) Get(_ context.Context, key string) (io.ReadCloser, error) {
	b.reads = append(b.reads, "get")
	body, ok := b.objects[key]
	if !ok {
		return nil, store.ErrNotFound
	}
	var r io.Reader = bytes.NewReader(body)
	if b.reader != nil {
		r = b.reader(r)
	}
	return io.NopCloser(r), nil
}

func (b *bucket) GetRange(_ context.Context, key string, off, n int64) ([]byte, error) {
	b.reads = append(b.reads, "range")
	body, ok := b.objects[key]
	if !ok {
		return nil, store.ErrNotFound
	}
	if off == -1 {
		return bytes.Clone(body[max(0, int64(len(body))-n):]), nil
	}
	off = min(off, int64(len(body)))
	return bytes.Clone(body[off:min(off+n, int64(len(body)))]), nil
}

func (b *bucket) Head(context.Context, string) (store.Info, error) {
	return store.Info{}, errors.New("not needed")
}

func (b *bucket) List(context.Context, string) iter.Seq2[store.Info, error] {
	return func(func(store.Info, error) bool) {}
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
