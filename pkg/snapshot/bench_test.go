package snapshot_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/snapshot"
)

// orders is a page of records much like those of a shop's API, about 440 bytes each.
func orders(n int) []byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	b.WriteString(`{"data":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"order_id":"%d","customer":{"email":"customer%d@example.com","name":"%x"},"valor":"%d.%02d",`+
			`"updated_at":"2026-11-30T10:%02d:%02dZ","status":"paid","items":[{"sku":"%x","quantity":%d,"note":"%s"}]}`,
			rnd.Uint64(), rnd.IntN(1e6), rnd.Uint64(), rnd.IntN(1000), rnd.IntN(100), rnd.IntN(60), rnd.IntN(60),
			rnd.Uint64(), rnd.IntN(9), strings.Repeat("leave it at the door ", 8))
	}
	b.WriteString(`]}`)
	return []byte(b.String())
}

func BenchmarkAdd(b *testing.B) {
	body := orders(1000)
	b.SetBytes(int64(len(body)))
	w := snapshot.NewPartWriter(batch, 1, 0)
	for b.Loop() {
		if w.Size() > 16<<20 {
			w = snapshot.NewPartWriter(batch, 1, 0)
		}
		if err := w.Add(body, page("x")); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadPages(b *testing.B) {
	body := orders(1000)
	raw, w := newBucket(), snapshot.NewPartWriter(batch, 1, 0)
	for range 20 {
		add(b, w, string(body), page("x"))
	}
	f, _, err := w.Land(b.Context(), raw)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(20 * int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		err := snapshot.ReadPages(b.Context(), raw, f, func(snapshot.Page, int, []byte) error { return nil })
		if err != nil {
			b.Fatal(err)
		}
	}
}
