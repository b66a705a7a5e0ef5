package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
)

// printReport prints a run's end for people, and remarks on it, a line each.
func printReport(w io.Writer, r ledger.Report, remarks ...string) error {
	var b strings.Builder
	state := string(r.State)
	if state == "" {
		state = "never claimed"
	}
	if r.Already {
		state += "  was complete already: nothing was done"
	}
	fmt.Fprintf(&b, "%s  %s\n", r.BatchID, state)
	if r.Note != "" {
		fmt.Fprintf(&b, "  → %s\n", r.Note)
	}
	if r.Failure != nil {
		f := r.Failure
		at := ""
		if f.Stage != "" {
			at = " in " + string(f.Stage)
		}
		fmt.Fprintf(&b, "  %s%s: %s\n  → %s\n", f.Kind, at, f.Message, f.Hint)
	}
	if r.Failure == nil || r.Counts.Pages > 0 {
		writeCounts(&b, r.Counts, r.State == ledger.StateCompleted)
	}
	if r.Retries > 0 {
		fmt.Fprintf(&b, "  %s made again, %.1f s waited\n", some(int64(r.Retries), "request"), float64(r.WaitedMS)/1000)
	}
	for _, remark := range remarks {
		b.WriteString("  " + remark + "\n")
	}
	return printed(io.WriteString(w, b.String()))
}

// topReasons is how many reasons for quarantine a report names; show names all.
const topReasons = 5

// remarks says what a completed batch has that its counts do not tell: why records were quarantined, and which columns no
// record has anything for.
func remarks(v ledger.View, absent []string) []string {
	var out []string
	if rs := reasons(v.Transforms); len(rs) > 0 {
		var texts []string
		for _, r := range rs[:min(len(rs), topReasons)] {
			texts = append(texts, reasonText(r))
		}
		if n := len(rs) - len(texts); n > 0 {
			texts = append(texts, fmt.Sprintf("and %d more: onceload show %s", n, v.Batch.ID))
		}
		out = append(out, "quarantined for: "+strings.Join(texts, ", "))
	}
	if len(absent) > 0 {
		out = append(out, fmt.Sprintf("in none of the records: %s (if it should be there, look at from in the contract)", strings.Join(absent, ", ")))
	}
	return out
}

// reasons sums the parts' reasons up, the most frequent first.
func reasons(parts []ledger.TransformRecord) []ledger.ReasonCount {
	counts := map[ledger.ReasonCount]int64{}
	var order []ledger.ReasonCount
	for _, p := range parts {
		for _, r := range p.Reasons {
			key := ledger.ReasonCount{Field: r.Field, Code: r.Code}
			if counts[key] == 0 {
				order = append(order, key)
			}
			counts[key] += r.Count
		}
	}
	for i := range order {
		order[i].Count = counts[ledger.ReasonCount{Field: order[i].Field, Code: order[i].Code}]
	}
	slices.SortStableFunc(order, func(a, b ledger.ReasonCount) int { return cmp.Compare(b.Count, a.Count) })
	return order
}

// reasonText is one of them; of the record as a whole it has no field.
func reasonText(r ledger.ReasonCount) string {
	return strings.TrimSpace(r.Field+" "+r.Code) + " ×" + number(r.Count)
}

// writeCounts prints the counts of a batch that is done, or has come as far as it has.
func writeCounts(b *strings.Builder, c etl.Counts, done bool) {
	fmt.Fprintf(b, "  %s, %s", some(c.Pages, "page"), some(c.Records, "record"))
	if c.Valid+c.Quarantined != c.Records {
		b.WriteString(" landed\n") // a batch that has not come to its gate
		return
	}
	fmt.Fprintf(b, ": %s valid, %s quarantined\n", number(c.Valid), number(c.Quarantined))
	if !done {
		return // what has been written is counted at the end
	}
	fmt.Fprintf(b, "  written %s (%s new, %s updated), %s unchanged, %s stale, %s duplicate\n",
		number(c.Written), number(c.New), number(c.Updated), number(c.Unchanged), number(c.Stale), number(c.Duplicate))
}

// printView prints what the ledger knows of a batch; gone says that its owner is.
func printView(w io.Writer, v ledger.View, gone bool) error {
	var s strings.Builder
	b := v.Batch
	state := string(b.State)
	if gone {
		state += " (its process is gone: run it again)"
	}
	fmt.Fprintf(&s, "%s  %s\n", b.ID, state)
	t := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(t, "  %s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	row("stage", "%s", b.Stage)
	row("owner", "%s (fence %d)", b.Owner, b.Fence)
	row("window", "%s", b.Window)
	row("extraction", "%d: %s, %s, %s, %s", b.Extraction, some(int64(b.Parts), "part"), some(b.Pages, "page"), some(b.Records, "record"), some(b.Bytes, "byte"))
	switch {
	case b.Binding != nil:
		row("bound to", "revision %s, contract %s", b.Binding.Revision, b.Binding.Contract)
	case b.Tried != nil:
		row("bound to", "nothing yet; the gate tried revision %s, contract %s", b.Tried.Revision, b.Tried.Contract)
	}
	row("load", "%d", b.Load)
	row("started", "%s", b.StartedAt)
	row("updated", "%s", b.UpdatedAt)
	if b.CompletedAt != "" {
		row("completed", "%s", b.CompletedAt)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	writeCounts(&s, b.Report().Counts, b.State == ledger.StateCompleted)
	for _, r := range reasons(v.Transforms) {
		fmt.Fprintf(&s, "  quarantined: %s\n", reasonText(r))
	}
	conflicts := int64(0)
	for _, l := range v.Loads {
		conflicts += l.Conflicts
	}
	if conflicts > 0 {
		fmt.Fprintf(&s, "  %s conflicts: rows of one version with two contents; a version that does not change with the content is none, leave it out\n", number(conflicts))
	}
	writeDrift(&s, v.Transforms)
	for _, f := range v.Failures {
		what, hint := "earlier failure", ""
		switch {
		case b.State == ledger.StateCompleted:
			what = "mended failure"
		case b.State == ledger.StateFailed && b.Failure != nil && f.ID == b.Failure.ID:
			what, hint = "failure", "    → "+f.Hint+"\n"
		}
		fmt.Fprintf(&s, "  %s %s in %s: %s: %s\n%s", what, f.At, f.Stage, f.Kind, f.Message, hint)
	}
	return printed(io.WriteString(w, s.String()))
}

// writeDrift says how the records of the batch differ from the contract's fields. A part keeps the members that drift
// most; all are in the drift objects.
func writeDrift(s *strings.Builder, parts []ledger.TransformRecord) {
	sum := map[string]ledger.DriftCount{}
	var order []string
	var records int64
	for _, p := range parts {
		records += p.Records
		for _, d := range p.Drift {
			at, known := sum[d.Path]
			if !known {
				order = append(order, d.Path)
			}
			at.New, at.Missing, at.Null, at.Retyped = at.New+d.New, at.Missing+d.Missing, at.Null+d.Null, at.Retyped+d.Retyped
			sum[d.Path] = at
		}
	}
	for _, path := range order {
		d := sum[path]
		for _, kind := range []struct {
			what  string
			count int64
		}{{"is new", d.New}, {"of another type", d.Retyped}, {"missing", d.Missing}, {"null", d.Null}} {
			if kind.count > 0 {
				fmt.Fprintf(s, "  drift: %s %s in %s of %s records\n", path, kind.what, number(kind.count), number(records))
			}
		}
	}
}

func printed(_ int, err error) error {
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// some counts a thing.
func some(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return number(n) + " " + thing + "s"
}

// number groups digits by threes.
func number(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
