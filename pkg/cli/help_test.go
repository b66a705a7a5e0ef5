package cli_test

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/cli"
	"github.com/onceload/onceload/pkg/ledger"
)

// onceload runs the arguments as they are, without a home.
func onceload(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = cli.Run(t.Context(), cli.Env{Args: args, Stdout: &out, Stderr: &errs})
	return code, out.String(), errs.String()
}

// TestHelp: each command that help lists describes itself in three ways that are one: arguments, the flags it takes and no
// others, exit codes, and an example that uses what is described.
func TestHelp(t *testing.T) {
	_, all, _ := onceload(t, "help")
	commands := regexp.MustCompile(`(?m)^  onceload ([a-z]+)`).FindAllStringSubmatch(all, -1)
	if len(commands) < 7 || !strings.Contains(all, "Exit codes:\n  0 ") {
		t.Fatalf("help lists %v:\n%s", commands, all)
	}
	_, noArgs, _ := onceload(t)
	if noArgs != all {
		t.Errorf("without arguments:\n%s", noArgs)
	}
	for _, c := range commands {
		name := c[1]
		t.Run(name, func(t *testing.T) {
			code, text, stderr := onceload(t, "help", name)
			if code != 0 || stderr != "" {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			if name == "help" {
				return
			}
			for _, other := range []string{"--help", "-h"} {
				if _, got, _ := onceload(t, name, other); got != text {
					t.Errorf("%s %s is not help %s:\n%s", name, other, name, got)
				}
			}
			for _, want := range []string{"onceload " + name, "\nExit codes:\n  0 ", "\nExample:\n  onceload " + name} {
				if !strings.Contains(text, want) {
					t.Errorf("it has no %q:\n%s", want, text)
				}
			}
			_, flags, _ := strings.Cut(text, "\nFlags:\n")
			flags, example, _ := strings.Cut(flags, "\nExit codes:\n")
			_, example, _ = strings.Cut(example, "\nExample:\n")
			for _, f := range regexp.MustCompile(`--([a-z-]+)`).FindAllStringSubmatch(example, -1) {
				if !regexp.MustCompile(`--` + f[1] + `\b`).MatchString(flags) {
					t.Errorf("the example has --%s, the flags are\n%s", f[1], flags)
				}
			}
			for flag, of := range map[string]string{"slot": "run", "dry-run": "reprocess", "serve": "demo"} {
				if has := regexp.MustCompile(`(?m)^ +--` + flag + `\b`).MatchString(flags); has != (of == name) {
					t.Errorf("it has --%s: %v", flag, has)
				}
			}
			if strings.Contains(flags, "kill-after-rows") {
				t.Error("it tells of a flag for tests")
			}
		})
	}
}

// TestMisuse: what cannot be understood exits 2 and says what was meant.
func TestMisuse(t *testing.T) {
	for _, c := range []struct {
		args []string
		says []string
	}{
		{[]string{"rnu", "orders"}, []string{`there is no command "rnu"`, "did you mean run?"}},
		{[]string{"frobnicate"}, []string{`there is no command "frobnicate"`, "run, show, redrive, reprocess, check, demo, version, help"}},
		{[]string{"help", "chek"}, []string{`there is no command "chek"`, "did you mean check?"}},
		{[]string{"run", "orders", "--slto", "x"}, []string{"unknown flag: --slto", "did you mean --slot?", "onceload help run"}},
		{[]string{"reprocess", "orders", "--quarantined", "--reason", "number_sytnax"}, []string{"number_sytnax is no reason code", "did you mean number_syntax?"}},
		{[]string{"reprocess", "orders", "--quarantined", "--reason", "zzzzzzzzz"}, []string{"zzzzzzzzz is no reason code", "number_syntax"}},
		{[]string{"run", "orders", "-x"}, []string{"unknown shorthand flag", "onceload help run"}},
		{[]string{"show", "b", "--slot", "x"}, []string{"show has no flag --slot", "onceload help show"}},
		{[]string{"show", "b", "--reason", "x", "--refetch"}, []string{"show has no flag --reason", "show has no flag --refetch"}},
		{[]string{"run", "orders", "--slot"}, []string{"flag needs an argument: --slot", "onceload help run"}},
		{[]string{"run"}, []string{"run takes <pipeline|file>", "not 0 arguments", "onceload help run"}},
		{[]string{"run", "a", "b"}, []string{"run takes <pipeline|file>", "not 2 arguments"}},
		{[]string{"demo", "a"}, []string{"demo takes no argument", "not 1"}},
		{[]string{"reprocess"}, []string{"reprocess takes", "onceload help reprocess"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			code, stdout, stderr := onceload(t, c.args...)
			if code != 2 || stdout != "" {
				t.Errorf("exit code %d, %q", code, stdout)
			}
			for _, want := range append(c.says, "Usage: ") {
				if !strings.Contains(stderr, want) {
					t.Errorf("it does not say %q: %s", want, stderr)
				}
			}
			_, stdout, _ = onceload(t, append([]string{"--json"}, c.args...)...)
			var r ledger.Report
			if err := json.Unmarshal([]byte(stdout), &r); err != nil || r.Failure == nil || r.Failure.Kind != "Usage" {
				t.Errorf("with --json it prints %q", stdout)
			}
		})
	}
}
