package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/local"
	"github.com/onceload/onceload/pkg/ordersapi"
)

// The demo's world: a day long gone, so that every run of the demo shows the same.
const (
	demoPipeline = "orders"
	demoRows     = 2500 // orders a slot
	demoKillAt   = 1000 // rows of the second slot that are written when it is killed
	demoToken    = "demo-token"
	demoVariable = "ONCELOAD_SECRET_ORDERS_API_TOKEN"
)

func demoSlots() []string {
	return []string{"2026-01-05T10:00:00Z", "2026-01-05T11:00:00Z", "2026-01-05T12:00:00Z"}
}

// demo runs three slots of the orders pipeline against an API that misbehaves, kills the second in the middle of Load,
// goes on, and loads everything once more.
func (c *command) demo(ctx context.Context, _ []string) error {
	if c.serve != "" {
		return c.demoServe(ctx)
	}
	c.home = filepath.Join(c.home, "demo")
	if err := os.RemoveAll(c.home); err != nil {
		return etl.Errorf(etl.StoreUnavailable, "clear the last demo: %w", err)
	}
	url, stop, err := serveOrders(ctx, "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer stop()
	c.source = url
	lookup := c.Lookup
	c.Lookup = func(name string) (string, bool) {
		if name == demoVariable {
			return demoToken, true
		}
		return lookup(name)
	}
	say := func(format string, args ...any) { fmt.Fprintf(c.Stdout, "\n── "+format+"\n", args...) }
	say("An orders API is up at %s. It answers 429 and 503, cuts a connection in mid-body, and 2 %% of its rows are bad.", url)
	slots := demoSlots()

	say("Slot 1: extract, transform, gate, load, settle.")
	if err := c.demoRun(ctx, slots[0], false); err != nil {
		return err
	}
	say("Slot 2, in a process of its own that is killed (kill -9) once %d rows are written.", demoKillAt)
	if err := c.demoKilled(ctx, slots[1]); err != nil {
		return err
	}
	say("Slot 2 again, the same command: no page that landed is fetched again, no row is written twice.")
	if err := c.demoRun(ctx, slots[1], false); err != nil {
		return err
	}
	say("Slot 3.")
	if err := c.demoRun(ctx, slots[2], false); err != nil {
		return err
	}
	say("Everything once more (--reload): the table has it all, so nothing is written.")
	for _, slot := range slots {
		if err := c.demoRun(ctx, slot, true); err != nil {
			return err
		}
	}
	return c.demoShow(ctx)
}

// demoServe only serves the API, for runs by hand.
func (c *command) demoServe(ctx context.Context) error {
	url, stop, err := serveOrders(ctx, c.serve)
	if err != nil {
		return err
	}
	defer stop()
	fmt.Fprintf(c.Stdout, "%s/v1/orders is up. Its bearer token is %s: export %s=%s. End it with Ctrl-C.\n", url, demoToken, demoVariable, demoToken)
	<-ctx.Done()
	return nil
}

// serveOrders starts the API at an address of this machine.
func serveOrders(ctx context.Context, address string) (url string, stop func(), err error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return "", nil, etl.Errorf(etl.Usage, "start the demo API: %w", err)
	}
	api := ordersapi.New(ordersapi.Config{Seed: 1, Rows: demoRows, PageSize: 500, Token: demoToken, Faults: ordersapi.Misbehaving()})
	srv := &http.Server{Handler: api, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = srv.Serve(l) }() // ends with ErrServerClosed when stop is called; any other fault shows in the run
	return "http://" + l.Addr().String(), func() { _ = srv.Close() }, nil
}

// demoRun runs one slot and prints its report. A reload that writes a row is a failure of the demo.
func (c *command) demoRun(ctx context.Context, slot string, reload bool) error {
	p := newProgress(c.Stderr, c.terminal(), c.Now)
	h, err := c.open(ctx, demoPipeline, p)
	if err != nil {
		return err
	}
	r, err := h.Run(ctx, etl.Request{Slot: slot, Reload: reload})
	p.end()
	if err := errors.Join(err, h.Close()); err != nil {
		return err
	}
	if err := printReport(c.Stdout, r); err != nil {
		return err
	}
	switch {
	case r.Failure != nil:
		return failed{r.Failure.Kind}
	case reload && r.Counts.Written != 0:
		return etl.Errorf(etl.Internal, "a reload of %s wrote %d rows", r.BatchID, r.Counts.Written)
	}
	return nil
}

// demoKilled runs one slot in a child process that kills itself in the middle of Load.
func (c *command) demoKilled(ctx context.Context, slot string) error {
	program, err := c.Exec()
	if err != nil {
		return etl.Errorf(etl.Internal, "find this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, program, "run", demoPipeline, "--slot", slot, "--source", c.source, "--home", c.home, //nolint:gosec // our own program
		"--kill-after-rows", fmt.Sprint(demoKillAt))
	cmd.Env = append(cmd.Environ(), demoVariable+"="+demoToken)
	cmd.Stdout, cmd.Stderr = io.Discard, c.Stderr
	err = cmd.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != -1 {
		return etl.Errorf(etl.Internal, "the second slot was to be killed, but ended otherwise: %w", err)
	}
	fmt.Fprintf(c.Stdout, "  killed: %s\n", exit)
	return nil
}

// demoShow prints the ledger, a quarantine sample and the table's first rows.
func (c *command) demoShow(ctx context.Context) (err error) {
	h, err := local.Open(ctx, local.Options{Dir: c.home, Now: c.Now})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	batches, err := h.Batches(ctx, demoPipeline)
	if err != nil {
		return err
	}
	var out strings.Builder
	out.WriteString("\n── The ledger.\n")
	if err := demoLedger(&out, batches); err != nil {
		return err
	}
	out.WriteString("\n── A quarantined record: what it was, where it stands, and why.\n")
	b, err := etl.ParseBatch(batches[0].ID)
	if err != nil {
		return err
	}
	v, err := h.Show(ctx, b)
	if err != nil {
		return err
	}
	lines, err := h.Quarantined(ctx, v, 1)
	if err != nil {
		return err
	}
	for _, l := range lines {
		out.WriteString("  " + l + "\n")
	}
	rows, total, err := h.Rows(ctx, demoPipeline, 3)
	if err != nil {
		return err
	}
	fmt.Fprintf(&out, "\n── The first of %s rows.\n", number(total))
	for _, r := range rows {
		fmt.Fprintf(&out, "  %s\n    rank %s\n    %s\n", r.PK, r.Rank, r.Doc)
	}
	fmt.Fprintf(&out, "\nThe last pass over all slots reports written 0: the same batch, once or fifty times, gives the same table.\n"+
		"It is all in %s: raw/, stage/ and onceload.db (try sqlite3).\n", c.home)
	return printed(io.WriteString(c.Stdout, out.String()))
}

func demoLedger(w io.Writer, batches []ledger.Batch) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  batch\tstate\tfence\tload\trecords\tvalid\tquarantined\twritten\tunchanged\tduplicate")
	for _, b := range batches {
		n := b.Report().Counts
		fmt.Fprintf(t, "  %s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", b.ID, b.State, b.Fence, b.Load, n.Records, n.Valid, n.Quarantined, n.Written, n.Unchanged, n.Duplicate)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
