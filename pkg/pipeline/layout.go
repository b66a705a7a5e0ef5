package pipeline

import (
	"fmt"

	"github.com/onceload/onceload/pkg/page"
)

// Layout says where the records stand in a body. An object map is accepted only where a field asks for the key of a
// record (`from: "@key"`): elsewhere an object in the place of the array is a fault of the source.
func (p *Pipeline) Layout() (page.Layout, error) {
	path, err := page.ParsePath(p.Source.Records)
	if err != nil {
		return page.Layout{}, fmt.Errorf("source.records: %w", err)
	}
	l := page.Layout{Path: path, NDJSON: p.Source.NDJSON}
	for _, f := range p.Contract.Fields {
		from, err := page.ParsePath(f.From)
		if err != nil {
			return page.Layout{}, fmt.Errorf("contract.fields.%s.from: %w", f.Name, err)
		}
		l.Map = l.Map || from.IsKey()
	}
	return l, nil
}
