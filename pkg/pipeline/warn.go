package pipeline

import (
	"fmt"
	"slices"
	"strings"
)

// Warnings says what works, but not well.
func (p *Pipeline) Warnings() []string {
	partition := p.Target.Partition
	if len(partition) == 0 {
		partition = p.Contract.Key
	}
	constant := true
	for _, name := range partition {
		i := slices.IndexFunc(p.Contract.Fields, func(f Field) bool { return f.Name == name })
		if i < 0 {
			return nil
		}
		f := p.Contract.Fields[i]
		if f.Const == nil && f.Type != "date" {
			return nil
		}
		constant = constant && f.Const != nil
	}
	what := "a date: all rows of a day"
	if constant {
		what = "a constant: all rows"
	}
	return []string{fmt.Sprintf("%s: the partition key (%s) is %s go to one partition, which takes 1,000 writes a second at most; put a part into target.partition that differs from row to row",
		p.File, strings.Join(partition, ", "), what)}
}
