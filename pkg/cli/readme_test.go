package cli_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/pipeline"
)

var update = flag.Bool("update", false, "write the README's generated tables")

const readme = "../../README.md"

func kindsTable() string {
	var b strings.Builder
	b.WriteString("| Kind | Passes by itself | Exit code | What happened | What to do |\n|---|---|---|---|---|\n")
	for _, k := range etl.Kinds() {
		transient := "no"
		if k.Transient {
			transient = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %d | %s | %s |\n", k.Kind, transient, k.Exit, k.Meaning, k.Hint)
	}
	return b.String()
}

func codesTable() string {
	var b strings.Builder
	b.WriteString("| Code | Meaning |\n|---|---|\n")
	for _, c := range contract.Codes() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", c.Code, c.Meaning)
	}
	return b.String()
}

// TestReadmeTables holds the README's tables against the code they come from.
func TestReadmeTables(t *testing.T) {
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for name, table := range map[string]string{
		"reference": pipeline.ReferenceTable(), "kinds": kindsTable(), "codes": codesTable(),
	} {
		begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
		from, to := strings.Index(want, begin), strings.Index(want, end)
		if from < 0 || to < from {
			t.Fatalf("the README has no place for the table of %s", name)
		}
		want = want[:from+len(begin)] + strings.TrimSpace(table) + "\n" + want[to:]
	}
	if *update {
		if err := os.WriteFile(readme, []byte(want), 0o644); err != nil { //nolint:gosec // a file of the repository
			t.Fatal(err)
		}
	}
	if want != string(text) && !*update {
		t.Error("the README's tables are not those of the code: go test ./pkg/cli -run TestReadmeTables -update")
	}
}

// TestReadmeCommands runs every command of the README's shell blocks in their order, in one folder, as a newcomer would.
// The make targets are CI's own (section "make test", "make run").
func TestReadmeCommands(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the README begins with the demo, about 20 s")
	}
	for _, tool := range []string{"bash", "jq", "sqlite3", "zcat"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the README's commands need %s: %v", tool, err)
		}
	}
	t.Parallel()
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	h := newHome(t)
	dir := filepath.Dir(h.dir)
	bin, err := program()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, ".bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(bin, filepath.Join(dir, ".bin", "onceload")); err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	script.WriteString("set -euo pipefail\n.bin/onceload demo\n") // what `make run` does once it has built
	var duckdb []string
	commands := 0
	for i, block := range strings.Split(string(text), "```sh\n") {
		if i == 0 {
			continue
		}
		block, _, _ = strings.Cut(block, "```")
		if strings.Contains(block, "needs an AWS account") || strings.Contains(block, "make -s aws-local") {
			continue // the second one is CI's own, section "make aws-local"
		}
		for line := range strings.Lines(block) {
			line = strings.TrimSpace(line)
			switch {
			case line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "make "):
				continue
			case strings.HasPrefix(line, "duckdb "):
				duckdb = append(duckdb, line)
				continue
			case strings.HasPrefix(line, "cd "):
				t.Errorf("%q leaves the reader, who pastes the block whole, in another folder: write (%s)", line, line)
			}
			commands++
			fmt.Fprintf(&script, "echo '$ '%q\n%s\n", line, line)
			if strings.Contains(line, "--serve") {
				script.WriteString("for n in {1..100}; do (: >/dev/tcp/127.0.0.1/8086) 2>/dev/null && break; sleep 0.1; done\n")
			}
		}
	}
	if commands < 10 {
		t.Fatalf("%d commands found in the README", commands)
	}
	bash := func(t *testing.T, script string, wants ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "bash", "-m", "-c", script)
		cmd.Dir = dir
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		for _, want := range wants {
			if !strings.Contains(out.String(), want) {
				t.Errorf("the output has no %s:\n%s", want, out.String())
			}
		}
	}
	bash(t, script.String(), `"written": 0`, "COMPLETED", `"code":"number_syntax"`, `{"shop":"eu","order_id":"ord_`, "eu#ord_")
	t.Run("DuckDB", func(t *testing.T) {
		if _, err := exec.LookPath("duckdb"); err != nil {
			t.Skipf("the README's DuckDB commands: %v", err)
		}
		if len(duckdb) != 2 {
			t.Fatalf("%d commands found, want 2", len(duckdb))
		}
		bash(t, "set -e\n"+strings.Join(duckdb, "\n"), "eu#ord_", "number_syntax")
	})
}
