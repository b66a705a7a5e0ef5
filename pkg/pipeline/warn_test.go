package pipeline_test

import (
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/pipeline"
)

func TestWarnings(t *testing.T) {
	const text = `
pipeline: orders
every: 1h
source:
  url: http://orders.example/v1/orders
  paginate: {none: {}}
contract:
  key: [shop, day, id]
  fields:
    shop: {type: string, const: eu}
    day: {type: date, required: true}
    id: {type: string, required: true}
target: {table: orders, TARGET}
`
	for target, want := range map[string]string{
		"partition: [shop, day, id]":         "",
		"partition: [shop, id], sort: [day]": "",
		"partition: [id], sort: [shop, day]": "",
		"partition: [shop], sort: [day, id]": "(shop) is a constant: all rows go to one partition, which takes 1,000 writes a second",
		"partition: [day], sort: [shop, id]": "(day) is a date: all rows of a day go to one partition",
		"partition: [shop, day], sort: [id]": "(shop, day) is a date: all rows of a day",
	} {
		t.Run(target, func(t *testing.T) {
			p, err := pipeline.Parse("orders.yaml", []byte(strings.Replace(text, "TARGET", target, 1)))
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(p.Warnings(), "\n")
			if (want == "") != (got == "") || !strings.Contains(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}
