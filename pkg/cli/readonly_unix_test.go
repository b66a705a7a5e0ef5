//go:build unix

package cli_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestReadOnlyHome: a home whose folder may be read and not written gives a clear message.
func TestReadOnlyHome(t *testing.T) {
	h := newHome(t)
	url, _ := answers(t, 200, "application/json", `{"data":[{"id":1}]}`)
	r := h.run(0, h.file("shop.yaml", fmt.Sprintf(shop, "")), "--slot", slot, "--source", url)
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	// Whoever runs as root may write everywhere: then another user asks.
	credential := &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		credential.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		for _, dir := range []string{filepath.Dir(path), filepath.Dir(filepath.Dir(h.dir))} {
			if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // folders of the test
				t.Fatal(err)
			}
		}
	}
	mode := func(dirs, files fs.FileMode) {
		t.Helper()
		err := filepath.WalkDir(h.dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() {
				return os.Chmod(path, dirs) //nolint:gosec // folders of the test
			}
			return os.Chmod(path, files) //nolint:gosec // files of the test
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	defer mode(0o755, 0o644)
	as := func(args ...string) (int, string) {
		t.Helper()
		cmd := h.command(t.Context(), append(args, "--home", h.dir)...)
		cmd.SysProcAttr = credential
		out, _ := cmd.CombinedOutput() // the exit code says it
		return cmd.ProcessState.ExitCode(), string(out)
	}
	mode(0o555, 0o444)
	for _, args := range [][]string{{"show", r.BatchID}, {"redrive", r.BatchID}, {"run", "orders"}} {
		code, out := as(args...)
		if code != 1 {
			t.Errorf("%v: exit code %d", args, code)
		}
		for _, want := range []string{"home " + h.dir, "may not be written", "copy the folder", "--home"} {
			if !strings.Contains(out, want) {
				t.Errorf("%v: it does not say %q:\n%s", args, want, out)
			}
		}
	}
	mode(0o777, 0o444) // a copy that kept the files' modes
	if code, out := as("show", r.BatchID); code != 0 {
		t.Errorf("show in a folder that may be written: exit code %d\n%s", code, out)
	}
}
