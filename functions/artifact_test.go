package functions_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/etl"
)

// names are the functions, each built from the folder of its stage.
func names() []etl.Stage {
	return []etl.Stage{etl.StageExtract, etl.StageTransform, etl.StageGate, etl.StageLoad, etl.StageSettle}
}

// build builds functions as the template does, for this machine, and returns the path of each.
func build(t *testing.T, functions ...etl.Stage) map[etl.Stage]string {
	t.Helper()
	dir := t.TempDir()
	out := map[etl.Stage]string{}
	for _, f := range functions {
		out[f] = filepath.Join(dir, string(f), "bootstrap")
		cmd := exec.CommandContext(t.Context(), "go", "build", "-tags", "lambda.norpc", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", out[f], "./"+string(f))
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", f, err, b)
		}
	}
	return out
}

// TestDependencies: a function links no store but that of AWS, no interpreter and no command line.
func TestDependencies(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", "lambda.norpc", "./...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	const ours = "github.com/onceload/onceload/pkg/"
	banned := []string{ours + "store/disk", ours + "store/mem", ours + "asl", ours + "runner", ours + "local", ours + "cli", ours + "sim",
		ours + "ordersapi", "modernc.org/sqlite", "testing", "net/rpc"}
	seen := false
	for path := range strings.Lines(string(out)) {
		path = strings.TrimSpace(path)
		seen = seen || path == ours+"stage"
		for _, b := range banned {
			if path == b {
				t.Errorf("the functions link %s", path)
			}
		}
	}
	if !seen {
		t.Error("the functions do not even link pkg/stage: this test looks at the wrong list")
	}
}

// TestMains: a function's main is configuration, clients and lambda.Start.
func TestMains(t *testing.T) {
	mains, err := filepath.Glob("*/main.go")
	if err != nil || len(mains) != len(names()) {
		t.Fatalf("%v, %v", mains, err)
	}
	for _, name := range mains {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(b, []byte("\n")); n >= 40 {
			t.Errorf("%s has %d lines", name, n)
		}
		if want := fmt.Sprintf("etl.Stage%s,", strings.ToUpper(name[:1])+filepath.Dir(name)[1:]); !strings.Contains(string(b), want) {
			t.Errorf("%s does not start %s", name, want)
		}
	}
}
