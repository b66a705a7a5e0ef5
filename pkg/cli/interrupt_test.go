package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/cli"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
)

// TestInterruptedEarly: a command that is interrupted before there is anything to report says what was interrupted, that
// nothing is lost, and how to go on. R11
func TestInterruptedEarly(t *testing.T) {
	h := newHome(t)
	url, _ := answers(t, 200, "application/json", `{"data":[{"id":1}]}`)
	file := h.file("shop.yaml", fmt.Sprintf(shop, ""))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	run := func(args ...string) (code int, stdout, stderr string) {
		var out, errs bytes.Buffer
		code = cli.Run(ctx, cli.Env{Args: append(args, "--home", h.dir), Stdout: &out, Stderr: &errs})
		return code, out.String(), errs.String()
	}
	h.exec("run", file, "--slot", slot, "--source", url, "--home", h.dir)
	for _, args := range [][]string{
		{"run", file, "--slot", slot, "--source", url}, {"show", "shop/20260105T100000Z"}, {"redrive", "shop/20260105T100000Z"},
		{"reprocess", file}, {"demo"},
	} {
		code, stdout, stderr := run(args...)
		if code != 130 {
			t.Errorf("%v: exit code %d\n%s%s", args, code, stdout, stderr)
		}
		for _, want := range []string{"onceload " + strings.Join(args, " "), "was interrupted", "nothing is lost", "Run the same command again"} {
			if !strings.Contains(stderr, want) {
				t.Errorf("%v: it does not say %q: %s", args, want, stderr)
			}
		}
	}
	_, stdout, _ := run("run", file, "--slot", slot, "--source", url, "--json")
	var r ledger.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || r.Failure == nil || r.Failure.Kind != etl.Interrupted || !strings.Contains(r.Failure.Message, "nothing is lost") {
		t.Errorf("with --json: %s", stdout)
	}
}
