package page_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/page"
)

// orders makes a page of n records of about 440 bytes, like those of an orders API.
func orders(n int) []byte {
	var b strings.Builder
	b.WriteString(`{"data":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"order_id":"ord_%010d","shop":"eu","status":"paid","customer":{"id":%d,"email":"person.%d@example.com","name":"Zoë Müller"},`+
			`"valor":"%d.%02d","currency":"EUR","quantity":%d,"weight":%d.25,"gift":false,"coupon":null,"created_at":"2026-11-30T09:%02d:11Z",`+
			`"updated_at":"2026-11-30T10:%02d:42.123Z","items":[{"sku":"A-%d","qty":1,"price":9.99},{"sku":"B-%d","qty":2,"price":19.5}],`+
			`"note":"leave it at the \"back\" door, please"}`,
			i*7919, i, i, i%900, i%100, i%9, i%40, i%60, (i+3)%60, i%5000, i%7000)
	}
	b.WriteString(`],"meta":{"next_cursor":"abc"}}`)
	return []byte(b.String())
}

// BenchmarkRecords is to be read beside BenchmarkValid, which reads the same page with encoding/json.
func BenchmarkRecords(b *testing.B) {
	body := orders(1000)
	l := page.Layout{Path: path(b, "data")}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if n, err := l.Records(body, func(page.Record) error { return nil }); n != 1000 || err != nil {
			b.Fatal(n, err)
		}
	}
}

func BenchmarkValid(b *testing.B) {
	body := orders(1000)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if !json.Valid(body) {
			b.Fatal("not valid")
		}
	}
}

func BenchmarkScan(b *testing.B) {
	var raws [][]byte
	size := 0
	_, err := page.Layout{Path: path(b, "data")}.Records(orders(1000), func(r page.Record) error {
		raws, size = append(raws, r.Raw), size+len(r.Raw)
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	var paths []page.Path
	for _, p := range []string{"order_id", "shop", "customer.email", "valor", "updated_at", "created_at", "items", "status", "quantity", "items[0].sku"} {
		paths = append(paths, path(b, p))
	}
	f, out := page.NewFields(paths), make([]page.Value, len(paths))
	extra := func(page.Extra) {}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		for _, raw := range raws {
			if dup, err := f.Scan(raw, out, extra); dup != "" || err != nil {
				b.Fatal(dup, err)
			}
		}
	}
}
