// Package cli is the command line: its commands speak to a [local.Home], and print for people or, with --json, for programs.
// Results go to standard output, progress and errors to standard error.
package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/local"
	"github.com/onceload/onceload/pkg/pipeline"
)

// Env is the world of a command. Args, Stdout and Stderr are required.
type Env struct {
	Args   []string // without the program's name
	Stdout io.Writer
	Stderr io.Writer
	Lookup func(string) (string, bool) // environment; default os.LookupEnv
	Now    func() time.Time
	Sleep  func(context.Context, time.Duration) error
	Rand   func() float64
	Exec   func() (string, error) // path of the onceload program, for the demo; default os.Executable
}

// Run executes one command and returns its exit code.
func Run(ctx context.Context, env Env) int {
	c := &command{Env: env}
	if c.Lookup == nil {
		c.Lookup = os.LookupEnv
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Exec == nil {
		c.Exec = os.Executable
	}
	return c.exit(c.run(ctx))
}

// command is one invocation.
type command struct {
	Env
	flags *pflag.FlagSet

	home   string
	slot   string
	source string
	reload bool

	refetch     bool
	quarantined bool
	reason      string
	dryRun      bool

	serve     string
	on        string
	json      bool
	killAfter int64

	batch string // that the command is about, where it is known
}

func (c *command) run(ctx context.Context) error {
	f := pflag.NewFlagSet("onceload", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.SortFlags = false
	f.StringVar(&c.slot, "slot", "", "start of the slot, UTC, like 2026-11-30T10:00:00Z")
	f.StringVar(&c.source, "source", "", "replaces scheme and host of the source, like http://127.0.0.1:8080")
	f.BoolVar(&c.reload, "reload", false, "load a completed batch's objects once more")
	f.BoolVar(&c.refetch, "refetch", false, "fetch anew under the file's window, as a new extraction")
	f.BoolVar(&c.quarantined, "quarantined", false, "only batches that hold quarantined records")
	f.StringVar(&c.reason, "reason", "", "with --quarantined: only batches with records quarantined under this code")
	f.BoolVar(&c.dryRun, "dry-run", false, "say how many quarantined records would pass, and the cost; change nothing")
	f.StringVar(&c.serve, "serve", "", "only serve the demo's orders API, at an address like 127.0.0.1:8080, until interrupted")
	f.StringVar(&c.home, "home", ".onceload", "folder of objects, ledger and targets")
	f.StringVar(&c.on, "on", "", "aws: stores in S3 and DynamoDB, as the environment names them; locks and history in --home")
	f.BoolVar(&c.json, "json", false, "print one JSON object")
	f.Int64Var(&c.killAfter, "kill-after-rows", 0, "for tests: kill this process (as kill -9 does) once N rows are written")
	f.Lookup("kill-after-rows").Hidden = true
	version := f.Bool("version", false, "print which build this is")
	f.Lookup("version").Hidden = true
	help := f.BoolP("help", "h", false, "print this help")
	c.flags = f
	parsed := f.Parse(c.Args)
	args := f.Args()
	if parsed != nil {
		// What could not be parsed hides what is behind it: the command, and how to print this.
		c.json = c.json || slices.Contains(c.Args, "--json")
		args = slices.DeleteFunc(slices.Clone(c.Args), func(a string) bool { return strings.HasPrefix(a, "-") })
	}
	switch {
	case *version && parsed == nil && len(args) == 0:
		return c.printVersion(ctx, nil)
	case len(args) > 0 && args[0] == "help":
		args = args[1:]
		*help = true
	case len(args) == 0 && parsed == nil:
		*help = true
	}
	if *help && (len(args) == 0 || args[0] == "help") {
		return c.printHelp()
	}
	var k *guide
	if len(args) > 0 {
		var err error
		if k, err = c.command(args[0]); err != nil {
			return err
		}
		args = args[1:]
	}
	switch {
	case *help:
		return c.printGuide(k)
	case parsed != nil:
		return c.unparsed(k, parsed)
	}
	if err := c.allow(k); err != nil {
		return err
	}
	if c.on != "" && c.on != "aws" {
		return etl.Errorf(etl.Usage, "--on %s: there is only --on aws; without it the stores are in --home", c.on)
	}
	if c.slot == "" && f.Changed("slot") {
		return etl.Errorf(etl.Usage, "--slot is empty: leave it out for the last closed slot")
	}
	if len(args) < k.least || len(args) > k.most {
		return etl.Errorf(etl.Usage, "%s takes %s, not %s: see onceload help %s", k.name, cmp.Or(k.args, "no argument"), some(int64(len(args)), "argument"), k.name)
	}
	return k.run(ctx, args)
}

// allow refuses flags that the command does not have: a flag without effect would mislead.
func (c *command) allow(k *guide) error {
	var bad error
	c.flags.Visit(func(f *pflag.Flag) {
		if !slices.Contains(k.flags, f.Name) && !(f.Name == "kill-after-rows" && k.name == "run") {
			bad = errors.Join(bad, etl.Errorf(etl.Usage, "%s has no flag --%s: see onceload help %s", k.name, f.Name, k.name))
		}
	})
	return bad
}

// failed is how a command ends whose report already says all.
type failed struct{ kind etl.Kind }

func (f failed) Error() string { return string(f.kind) }

// exit prints what went wrong and returns the exit code of its kind.
func (c *command) exit(err error) int {
	if err == nil {
		return 0
	}
	var f failed
	if errors.As(err, &f) {
		return f.kind.Info().Exit
	}
	kind := etl.KindOf(err)
	if kind == etl.Interrupted {
		err = fmt.Errorf("onceload %s was interrupted; nothing is lost, what was done before is kept (%w)", strings.Join(c.Args, " "), err)
	}
	if c.json {
		r := ledger.Report{Failure: &ledger.ReportFailure{Kind: kind, Message: err.Error(), Hint: kind.Info().Hint}}
		if err := c.printJSON(r); err != nil {
			fmt.Fprintf(c.Stderr, "onceload: %s\n", err)
		}
		return kind.Info().Exit
	}
	if errors.As(err, new(pipeline.Faults)) {
		fmt.Fprintln(c.Stderr, err) // a fault a line, each with its place in front, as editors and people expect
		return kind.Info().Exit
	}
	fmt.Fprintf(c.Stderr, "onceload: %s\n%s: %s\n", c.here(err.Error()), kind, c.advice(kind.Info().Hint, c.batch, ledger.StateFailed))
	return kind.Info().Exit
}

func (c *command) printJSON(v any) error {
	enc := json.NewEncoder(c.Stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// terminal reports whether people watch standard error.
func (c *command) terminal() bool {
	f, ok := c.Stderr.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// open opens the home for a command about the pipeline (may be "").
func (c *command) open(ctx context.Context, pipeline string, p *progress) (*local.Home, error) {
	o := local.Options{
		Dir: c.home, OnAWS: c.on == "aws", Pipeline: pipeline, Source: c.source, Lookup: c.Lookup,
		Log: slog.New(logHandler{to: p}),
		Now: c.Now, Sleep: c.Sleep, Rand: c.Rand, Watch: p.tick,
	}
	h, err := local.Open(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("home %s: %w", c.home, err)
	}
	return h, nil
}

func (c *command) runBatch(ctx context.Context, args []string) error {
	// A faulty pipeline file is found before a home folder is made for it.
	if _, err := pipeline.Find(args[0]); err != nil {
		return err
	}
	return c.with(ctx, args[0], func(h *local.Home) (ledger.Report, error) {
		return h.Run(ctx, etl.Request{Slot: c.slot, Reload: c.reload})
	})
}

func (c *command) redrive(ctx context.Context, args []string) error {
	b, err := etl.ParseBatch(args[0])
	if err != nil {
		return err
	}
	c.batch = b.String()
	return c.with(ctx, "", func(h *local.Home) (ledger.Report, error) { return h.Redrive(ctx, b) })
}

// with runs one batch command under a progress display and prints its report.
func (c *command) with(ctx context.Context, pipeline string, do func(*local.Home) (ledger.Report, error)) (err error) {
	p := newProgress(c.Stderr, c.terminal(), c.Now)
	p.killAfter = c.killAfter
	h, err := c.open(ctx, pipeline, p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	r, err := do(h)
	p.end()
	if err != nil {
		return err
	}
	said, err := c.remarks(ctx, h, r)
	if err := errors.Join(c.report(r, said...), err); err != nil {
		return err
	}
	if r.Failure != nil {
		return failed{r.Failure.Kind}
	}
	return nil
}

func (c *command) report(r ledger.Report, remarks ...string) error {
	if c.json {
		return c.printJSON(r)
	}
	if r.Failure != nil {
		f := *r.Failure
		f.Message, f.Hint = c.here(f.Message), c.advice(f.Hint, r.BatchID, r.State)
		r.Failure = &f
	}
	return printReport(c.Stdout, r, remarks...)
}

// key is the key of an object, as messages name them.
var key = regexp.MustCompile(`\b(raw|valid|quarantine)/pipeline=[A-Za-z0-9/_=.-]*[A-Za-z0-9/_=-]`)

// here is a message with keys as the files that they are in this home.
func (c *command) here(message string) string {
	if c.on != "" {
		return message
	}
	return key.ReplaceAllStringFunc(message, func(k string) string {
		folder := "stage"
		if strings.HasPrefix(k, "raw/") {
			folder = "raw"
		}
		return filepath.Join(c.home, folder) + "/" + k
	})
}

// advice is a kind's hint with the commands to type for a batch.
func (c *command) advice(hint, batch string, state ledger.State) string {
	home := ""
	if c.home != c.flags.Lookup("home").DefValue {
		home = " --home " + c.home
	}
	if c.on != "" {
		home += " --on " + c.on
	}
	switch {
	case batch == "":
		return hint
	case state == ledger.StateCompleted:
		hint = strings.ReplaceAll(hint, ", then redrive", "")
	case state == ledger.StateAbsent:
		hint = strings.ReplaceAll(hint, "then redrive", "then run it again")
	default:
		hint = strings.ReplaceAll(hint, "then redrive", "then onceload redrive "+batch+home)
	}
	return strings.ReplaceAll(hint, "<batch>", batch+home)
}

// remarks reads what there is to say of a batch that a run has completed.
func (c *command) remarks(ctx context.Context, h *local.Home, r ledger.Report) ([]string, error) {
	if c.json || r.State != ledger.StateCompleted || r.Already || r.Failure != nil {
		return nil, nil
	}
	b, err := etl.ParseBatch(r.BatchID)
	if err != nil {
		return nil, err
	}
	v, err := h.Show(ctx, b)
	if err != nil {
		return nil, err
	}
	absent, err := h.Absent(ctx, v)
	return remarks(v, absent), err
}

func (c *command) show(ctx context.Context, args []string) (err error) {
	b, err := etl.ParseBatch(args[0])
	if err != nil {
		return err
	}
	if _, err := os.Stat(c.home); err != nil {
		return etl.Errorf(etl.Usage, "no home folder: %w", err)
	}
	h, err := c.open(ctx, "", newProgress(c.Stderr, false, c.Now))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	v, err := h.Show(ctx, b)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(v)
	}
	for i := range v.Failures {
		f := &v.Failures[i]
		f.Message, f.Hint = c.here(f.Message), c.advice(f.Hint, v.Batch.ID, v.Batch.State)
	}
	gone := false
	if c.on == "" && v.Batch.State == ledger.StateRunning {
		if gone, err = h.Gone(ctx, v); err != nil {
			return err
		}
	}
	return printView(c.Stdout, v, gone)
}

// check reads pipeline files, the embedded ones if none is named, and reports every fault of every one.
func (c *command) check(_ context.Context, args []string) error {
	if len(args) == 0 {
		args = pipeline.Names()
	}
	var faults []error
	var good []*pipeline.Pipeline
	for _, name := range args {
		p, err := pipeline.Find(name)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		good = append(good, p)
		fmt.Fprintf(c.Stdout, "ok  %s (%s)\n", p.File, p.Name)
		for _, w := range p.Warnings() {
			fmt.Fprintf(c.Stderr, "warning: %s\n", w)
		}
	}
	return errors.Join(append(faults, pipeline.CheckTogether(good))...)
}
