package pipeline

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/onceload/onceload/pkg/etl"
)

// Fault is one thing wrong with a pipeline file. Line and Column count from 1, columns in characters.
type Fault struct {
	File    string
	Line    int
	Column  int
	Path    string // of the key, like source.paginate.cursor.next; "" = the file itself
	What    string // what is wrong, one clause
	Instead string // what to write instead; "" = nothing can be said
}

// String is `file:line:column: key path: what is wrong; write … instead`.
func (f Fault) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d:%d: ", f.File, f.Line, f.Column)
	if f.Path != "" {
		b.WriteString(f.Path + ": ")
	}
	b.WriteString(f.What)
	if f.Instead != "" {
		b.WriteString("; write " + f.Instead + " instead")
	}
	return b.String()
}

// Faults is everything wrong with a pipeline file, in the order of the file. [Parse] returns it inside an [etl.Error] of
// kind ContractInvalid; errors.As finds it there.
type Faults []Fault

// Error is one line a fault.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, one := range f {
		lines[i] = one.String()
	}
	return strings.Join(lines, "\n")
}

// err sorts the faults and gives them their kind; nil if there are none.
func (f Faults) err() error {
	if len(f) == 0 {
		return nil
	}
	slices.SortStableFunc(f, func(a, b Fault) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), strings.Compare(a.Path, b.Path))
	})
	return &etl.Error{Kind: etl.ContractInvalid, Err: slices.Compact(f)}
}

// Nearest is the candidate that a slip of the keyboard may have meant, "" if none is near.
func Nearest(name string, candidates []string) string {
	if len(name) > 64 {
		return ""
	}
	best, least := "", max(1, len(name)/3)+1
	for _, c := range candidates {
		if d := distance(strings.ToLower(name), c); d < least {
			best, least = c, d
		}
	}
	return best
}

// distance is the number of letters to insert, drop, replace, or swap with their neighbour to get from a to b.
func distance(a, b string) int {
	var before []int
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			swap := 1
			if a[i-1] == b[j-1] {
				swap = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+swap)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
