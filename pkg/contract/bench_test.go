package contract_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/page"
	"github.com/onceload/onceload/pkg/pipeline"
)

// orders is the contract the benchmarks check against: every type, an array of objects kept native.
func orders() pipeline.Contract {
	return pipeline.Contract{
		Revision: 1, Epoch: 1, Key: []string{"shop", "order_id"}, Version: "updated_at", Extra: "drop",
		Fields: []pipeline.Field{
			{Name: "shop", Type: "string", Const: new("eu")},
			{Name: "order_id", Type: "string", Required: true},
			{Name: "email", Type: "string", From: "customer.email", Clean: []string{"trim", "lower"}},
			{Name: "name", Type: "string", From: "customer.name"},
			{Name: "total", Type: "decimal", From: "valor", Min: new("0")},
			{Name: "currency", Type: "string", Enum: []string{"EUR", "USD", "GBP"}},
			{Name: "paid", Type: "boolean"},
			{Name: "lines", Type: "integer"},
			{Name: "created_at", Type: "timestamp"},
			{Name: "updated_at", Type: "timestamp", Required: true},
			{Name: "items", Type: "document"},
			{Name: "note", Type: "string", MaxLen: new(200)},
		},
		Delete: &pipeline.Delete{From: "status", Equals: "deleted"},
	}
}

// orderRecords makes n raw orders of about 440 bytes.
func orderRecords(n int) (records [][]byte, size int) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		r := fmt.Appendf(nil, `{"order_id":"o-%08d","status":"open","customer":{"email":" User%d@Example.com ","name":"Ana Pérez %d"},`+
			`"valor":%d.%02d,"currency":"EUR","paid":%t,"lines":%d,"created_at":"2026-11-%02dT08:15:30Z","updated_at":"2026-11-%02dT09:%02d:%02d.%03dZ",`+
			`"items":[{"sku":"A-%06d","qty":%d,"price":"%d.50"},{"sku":"B-%06d","qty":1,"price":"3.20"}],"note":"leave at the door, ring twice, thank you %d",`+
			`"source":{"channel":"web","campaign":"autumn"}}`,
			rnd.IntN(1e8), i, i, rnd.IntN(1000), rnd.IntN(100), i%2 == 0, rnd.IntN(9), 1+rnd.IntN(28), 1+rnd.IntN(28), rnd.IntN(60), rnd.IntN(60), rnd.IntN(1000),
			rnd.IntN(1e6), rnd.IntN(9), rnd.IntN(90), rnd.IntN(1e6), i)
		records = append(records, r)
		size += len(r)
	}
	return records, size
}

// BenchmarkCheck checks orders; BenchmarkScan beside it is the one validating pass alone, the ceiling.
func BenchmarkCheck(b *testing.B) {
	records, size := orderRecords(1000)
	k := compile(b, orders(), pipeline.Target{}).NewChecker()
	b.ReportAllocs()
	b.SetBytes(int64(size / len(records)))
	i := 0
	for b.Loop() {
		if res := k.Check(page.Record{Raw: records[i%len(records)]}, contract.Place{}, origin()); res.Line == nil {
			b.Fatal(string(res.Quarantine))
		}
		i++
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

func BenchmarkScan(b *testing.B) {
	records, size := orderRecords(1000)
	var paths []page.Path
	for _, f := range orders().Fields {
		paths = append(paths, page.Member(f.Name))
	}
	f, out := page.NewFields(paths), make([]page.Value, len(paths))
	b.SetBytes(int64(size / len(records)))
	i := 0
	for b.Loop() {
		if _, err := f.Scan(records[i%len(records)], out, nil); err != nil {
			b.Fatal(err)
		}
		i++
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkFields shows the time per byte as the columns grow from 5 to 50.
func BenchmarkFields(b *testing.B) {
	for _, n := range []int{5, 10, 20, 50} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			decl := pipeline.Contract{Revision: 1, Key: []string{"f0"}, Extra: "drop"}
			raw := []byte{'{'}
			for i := range n {
				name := fmt.Sprintf("f%d", i)
				switch i % 4 {
				case 0:
					decl.Fields = append(decl.Fields, pipeline.Field{Name: name, Type: "string"})
					raw = fmt.Appendf(raw, `"%s":"some text of %d characters",`, name, i)
				case 1:
					decl.Fields = append(decl.Fields, pipeline.Field{Name: name, Type: "decimal"})
					raw = fmt.Appendf(raw, `"%s":1234.%02d,`, name, i)
				case 2:
					decl.Fields = append(decl.Fields, pipeline.Field{Name: name, Type: "integer"})
					raw = fmt.Appendf(raw, `"%s":98765%d,`, name, i)
				case 3:
					decl.Fields = append(decl.Fields, pipeline.Field{Name: name, Type: "timestamp"})
					raw = fmt.Appendf(raw, `"%s":"2026-11-30T10:00:%02dZ",`, name, i)
				}
			}
			raw = append(bytes.TrimSuffix(raw, []byte{','}), '}')
			k := compile(b, decl, pipeline.Target{}).NewChecker()
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if res := k.Check(page.Record{Raw: raw}, contract.Place{}, origin()); res.Line == nil {
					b.Fatal(string(res.Quarantine))
				}
			}
		})
	}
}

func BenchmarkParseLine(b *testing.B) {
	records, _ := orderRecords(1)
	k := compile(b, orders(), pipeline.Target{}).NewChecker()
	line := bytes.Clone(k.Check(page.Record{Raw: records[0]}, contract.Place{}, origin()).Line)
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := contract.ParseLine(line); err != nil {
			b.Fatal(err)
		}
	}
}
