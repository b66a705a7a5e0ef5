package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/pipeline"
)

// guide is a command: what it takes, and what help says of it.
type guide struct {
	name        string
	args        string // as people write them
	least, most int    // arguments
	brief       string
	text        string
	flags       []string
	kinds       []etl.Kind // of its failures; nil = any
	example     string
	run         func(context.Context, []string) error
}

// commands are all commands, in the order of help.
func (c *command) commands() []guide {
	return []guide{
		{"run", "<pipeline|file>", 1, 1, "load one slot (default: the last closed one)",
			`Runs one slot of a pipeline to its end: extract, transform, gate, load, settle. A name is that of a pipeline that ships
(onceload check lists them); whatever has a slash or ends in .yaml is the path of a pipeline file. A batch that failed or
was killed goes on where it stopped; a completed one is left as it is, unless --reload loads its objects once more.`,
			[]string{"slot", "source", "reload", "home", "on", "json"}, nil,
			"run ./orders.yaml --slot 2026-11-30T10:00:00Z", c.runBatch},
		{"show", "<batch>", 1, 1, "what the ledger knows of a batch",
			`Prints state, counts, reasons for quarantine, drift and failures of a batch, like orders/20261130T100000Z.`,
			[]string{"home", "on", "json"}, []etl.Kind{etl.StoreUnavailable, etl.StoreThrottled, etl.Interrupted, etl.Usage, etl.Internal},
			"show orders/20261130T100000Z --json", c.show},
		{"redrive", "<batch>", 1, 1, "go on at the stage that failed",
			`Lets the execution that failed, or was killed, go on at the stage where it stopped, with the pipeline file as it is now.
What landed is not fetched again. A completed batch is left as it is.`,
			[]string{"source", "home", "on", "json"}, nil,
			"redrive orders/20261130T100000Z", c.redrive},
		{"reprocess", "<pipeline|file|batch…>", 1, math.MaxInt, "the landed snapshot under a newer revision",
			`Loads landed snapshots again under the newer contract.revision of the pipeline file, without a request to the source:
those of the batches named, or of all batches of the pipeline. Under the same revision there is nothing to do. One that was killed or failed
is finished by the same words again.`,
			[]string{"refetch", "quarantined", "reason", "dry-run", "source", "home", "on", "json"}, nil,
			"reprocess orders --quarantined --reason number_syntax --dry-run", c.reprocess},
		{"check", "[file…]", 0, math.MaxInt, "find every fault in pipeline files",
			`Lists every fault of the files, or of the pipelines that ship, with line, column and what to write instead.`,
			nil, []etl.Kind{etl.ContractInvalid, etl.Usage},
			"check ./orders.yaml ./refunds.yaml", c.check},
		{"demo", "", 0, 0, "see it survive a misbehaving API and a kill",
			`Runs three slots of the pipeline orders against an API of its own that misbehaves, kills the second in the middle of its
load, goes on, and loads everything once more. Its home is the folder demo in --home, which it empties first.`,
			[]string{"serve", "home"}, nil,
			"demo --serve 127.0.0.1:8080", c.demo},
		{"version", "", 0, 0, "which build of onceload this is",
			`Prints version, revision of the source and Go version of this build; --version does the same.`,
			nil, []etl.Kind{etl.Usage}, "version", c.printVersion},
	}
}

// command finds a command by its name.
func (c *command) command(name string) (*guide, error) {
	var names []string
	for _, k := range c.commands() {
		if k.name == name {
			return &k, nil
		}
		names = append(names, k.name)
	}
	names = append(names, "help")
	if near := pipeline.Nearest(name, names); near != "" {
		return nil, etl.Errorf(etl.Usage, "there is no command %q: did you mean %s?", name, near)
	}
	return nil, etl.Errorf(etl.Usage, "there is no command %q among %s", name, strings.Join(names, ", "))
}

// unparsed says what is wrong with the flags; k is nil where no command is named.
func (c *command) unparsed(k *guide, err error) error {
	topic, flags := "", []string{"help"}
	if k != nil {
		topic, flags = " "+k.name, append(flags, k.flags...)
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		if near := pipeline.Nearest(unknown.GetSpecifiedName(), flags); near != "" {
			return etl.Errorf(etl.Usage, "%w: did you mean --%s? See onceload help%s", err, near, topic)
		}
	}
	return etl.Errorf(etl.Usage, "%w: see onceload help%s", err, topic)
}

// printHelp prints what there is.
func (c *command) printHelp() error {
	var b strings.Builder
	b.WriteString("onceload turns an HTTP API into table rows, on a schedule, so that a retry is boring.\n\nUsage:\n")
	line := func(call, brief string) { fmt.Fprintf(&b, "  onceload %-33s %s\n", call, brief) }
	for _, k := range c.commands() {
		line(strings.TrimSpace(k.name+" "+k.args), k.brief)
	}
	line("help [command]", "a command's flags, exit codes and an example")
	b.WriteString("\n" + exitCodes(nil))
	return printed(io.WriteString(c.Stdout, b.String()))
}

// printVersion prints what the build says of itself.
func (c *command) printVersion(context.Context, []string) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return etl.Errorf(etl.Internal, "this program was built without build information")
	}
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	text := "onceload " + cmp.Or(info.Main.Version, "(devel)")
	if rev := set["vcs.revision"]; rev != "" {
		text += ", revision " + rev
		if set["vcs.modified"] == "true" {
			text += " with changes"
		}
	}
	return printed(fmt.Fprintf(c.Stdout, "%s, %s %s/%s\n", text, info.GoVersion, runtime.GOOS, runtime.GOARCH))
}

// printGuide prints one command.
func (c *command) printGuide(k *guide) error {
	own := pflag.NewFlagSet(k.name, pflag.ContinueOnError)
	own.SortFlags = false
	for _, name := range append(slices.Clone(k.flags), "help") {
		own.AddFlag(c.flags.Lookup(name))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Usage:\n  onceload %s [flags]\n\n%s\n\nFlags:\n%s\n%s\nExample:\n  onceload %s\n",
		strings.TrimSpace(k.name+" "+k.args), k.text, own.FlagUsages(), exitCodes(k.kinds), k.example)
	return printed(io.WriteString(c.Stdout, b.String()))
}

// exitCodes documents the exit codes of some kinds, nil = all, from the table of kinds.
func exitCodes(of []etl.Kind) string {
	byCode := map[int][]string{}
	var order []int
	for _, k := range etl.Kinds() {
		if of != nil && !slices.Contains(of, k.Kind) {
			continue
		}
		if len(byCode[k.Exit]) == 0 {
			order = append(order, k.Exit)
		}
		byCode[k.Exit] = append(byCode[k.Exit], string(k.Kind))
	}
	slices.Sort(order)
	var b strings.Builder
	b.WriteString("Exit codes:\n  0    completed, or nothing to do\n")
	for _, code := range order {
		fmt.Fprintf(&b, "  %-4d %s\n", code, strings.Join(byCode[code], ", "))
	}
	return b.String()
}
