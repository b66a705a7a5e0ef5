package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/local"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/stage"
)

// reprocessed is the object of `onceload reprocess --json`.
type reprocessed struct {
	Batches    []ledger.Report   `json:"batches,omitempty"`    // what was run, or could not be
	Unchanged  []string          `json:"unchanged,omitempty"`  // batches that are completed under the file's contract already
	Rehearsals []stage.Rehearsal `json:"rehearsals,omitempty"` // with --dry-run
	Open       []ledger.Report   `json:"open,omitempty"`       // batches that were not chosen and are not completed
}

// reprocess loads the landed snapshots of batches again under a newer revision, or refetches them.
func (c *command) reprocess(ctx context.Context, args []string) (err error) {
	if c.reason != "" && !c.quarantined {
		return etl.Errorf(etl.Usage, "--reason chooses among quarantined records: give --quarantined too")
	}
	if err := knownReason(c.reason); err != nil {
		return err
	}
	if c.dryRun && c.refetch {
		return etl.Errorf(etl.Usage, "--dry-run works on what has landed: it cannot say what --refetch would fetch")
	}
	batches, file, err := c.batches(args)
	if err != nil {
		return err
	}
	p := newProgress(c.Stderr, c.terminal(), c.Now)
	h, err := c.open(ctx, file, p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	chosen, err := h.Select(ctx, batches, c.quarantined, c.reason)
	if err != nil {
		return err
	}
	out := reprocessed{Open: chosen.Open}
	var first error
	for _, b := range chosen.Batches {
		kind := c.reprocessOne(ctx, h, b, &out)
		if kind != "" && first == nil {
			first = failed{kind}
		}
		if kind == etl.Interrupted {
			break
		}
	}
	p.end()
	return errors.Join(c.printReprocessed(out), first)
}

// knownReason refuses a reason code that no record can have.
func knownReason(code string) error {
	var known []string
	for _, c := range contract.Codes() {
		known = append(known, c.Code)
	}
	switch near := pipeline.Nearest(code, known); {
	case code == "" || slices.Contains(known, code):
		return nil
	case near != "":
		return etl.Errorf(etl.Usage, "--reason %s is no reason code: did you mean %s?", code, near)
	}
	return etl.Errorf(etl.Usage, "--reason %s is no reason code: want one of %s", code, strings.Join(known, ", "))
}

// reprocessOne does what the command says to one batch, notes how that went, and returns the kind of its failure, if any:
// the other batches do not suffer from it.
func (c *command) reprocessOne(ctx context.Context, h *local.Home, b etl.Batch, out *reprocessed) etl.Kind {
	var report ledger.Report
	todo := true
	var err error
	if c.dryRun {
		var r stage.Rehearsal
		if r, err = h.Rehearse(ctx, b); err == nil {
			out.Rehearsals = append(out.Rehearsals, r)
			return ""
		}
		if v, unknown := h.Show(ctx, b); unknown == nil {
			report = v.Batch.Report()
		}
	} else {
		report, todo, err = h.Reprocess(ctx, b, local.Reprocess{Refetch: c.refetch})
	}
	switch {
	case err != nil:
		kind := etl.KindOf(err)
		report.BatchID = b.String()
		report.Failure = &ledger.ReportFailure{Kind: kind, Message: err.Error(), Hint: kind.Info().Hint}
	case !todo:
		out.Unchanged = append(out.Unchanged, b.String())
		return ""
	}
	out.Batches = append(out.Batches, report)
	if report.Failure == nil {
		return ""
	}
	return report.Failure.Kind
}

// batches reads the arguments: batches, or one pipeline (file).
func (c *command) batches(args []string) (batches []etl.Batch, file string, err error) {
	if _, err := etl.ParseBatch(args[0]); err != nil && len(args) == 1 {
		return nil, args[0], nil
	}
	for _, a := range args {
		b, err := etl.ParseBatch(a)
		if err != nil {
			return nil, "", err
		}
		batches = append(batches, b)
	}
	return batches, "", nil
}

func (c *command) printReprocessed(out reprocessed) error {
	if c.json {
		return c.printJSON(out)
	}
	for _, r := range out.Batches {
		if err := c.report(r); err != nil {
			return err
		}
	}
	var b strings.Builder
	for _, id := range out.Unchanged {
		fmt.Fprintf(&b, "%s  nothing to do: it is loaded under this revision already\n", id)
	}
	var sum stage.Rehearsal
	for _, r := range out.Rehearsals {
		writeRehearsal(&b, r)
		sum.Quarantined += r.Quarantined
		sum.Pass += r.Pass
		sum.Rows += r.Rows
		sum.WriteUnits += r.WriteUnits
		sum.ReadUnits += r.ReadUnits
	}
	if n := len(out.Rehearsals); n > 1 {
		fmt.Fprintf(&b, "in all: %s of %s quarantined records would pass; at most %s rows written, %s write and %s read units\n",
			number(sum.Pass), number(sum.Quarantined), number(sum.Rows), number(int64(sum.WriteUnits)), number(int64(sum.ReadUnits)))
	}
	for _, r := range out.Open {
		fmt.Fprintf(&b, "%s  %s, and this is not about it: redrive it, or run it again\n", r.BatchID, r.State)
	}
	if len(out.Batches)+len(out.Unchanged)+len(out.Rehearsals)+len(out.Open) == 0 {
		b.WriteString("nothing to do: no batch is chosen\n")
	}
	return printed(io.WriteString(c.Stdout, b.String()))
}

func writeRehearsal(b *strings.Builder, r stage.Rehearsal) {
	fmt.Fprintf(b, "%s  revision %s → %s\n", r.Batch, r.From, r.To)
	fmt.Fprintf(b, "  %s of %s quarantined records would pass\n", number(r.Pass), number(r.Quarantined))
	for _, reason := range r.Reasons {
		fmt.Fprintf(b, "  still: %s\n", reasonText(reason))
	}
	if r.From == r.To {
		b.WriteString("  the file has the revision that the batch is bound to: raise contract.revision, then reprocess\n")
	}
	fmt.Fprintf(b, "  at most %s rows written, about %s write and %s read units of DynamoDB\n", number(r.Rows), number(int64(r.WriteUnits)), number(int64(r.ReadUnits)))
}
