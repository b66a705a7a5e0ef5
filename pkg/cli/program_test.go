package cli_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/ordersapi"
)

const secretVariable = "ONCELOAD_SECRET_ORDERS_API_TOKEN"

// program builds the onceload program once.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "onceload")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "onceload")
	out, err := exec.Command("go", "build", "-o", path, "github.com/onceload/onceload/pkg/cmd/onceload").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := program(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// home is a home folder that the program works in.
type home struct {
	t   *testing.T
	dir string
	env []string
}

func newHome(t *testing.T, env ...string) *home {
	t.Helper()
	return &home{t: t, dir: filepath.Join(t.TempDir(), "home"), env: env}
}

// command is the program with arguments, to be started.
func (h *home) command(ctx context.Context, args ...string) *exec.Cmd {
	h.t.Helper()
	path, err := program()
	if err != nil {
		h.t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = filepath.Dir(h.dir)
	cmd.Env = append(append(os.Environ(), secretVariable+"=token"), h.env...)
	return cmd
}

// output is what a finished program left.
type output struct {
	code           int
	stdout, stderr string
	rss            int64         // largest resident size, bytes
	took, cpu      time.Duration // on the wall; of the processors, user and system
}

func (h *home) exec(args ...string) output {
	h.t.Helper()
	cmd := h.command(h.t.Context(), args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	peak := watchPeak(cmd.Process.Pid)
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.t.Fatal(err)
	}
	return output{code: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String(), rss: peak(cmd.ProcessState), took: time.Since(began),
		cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
}

// run runs a pipeline with --json and returns its report.
func (h *home) run(code int, args ...string) ledger.Report {
	h.t.Helper()
	return h.report(code, append([]string{"run"}, args...)...)
}

func (h *home) report(code int, args ...string) ledger.Report {
	h.t.Helper()
	out := h.exec(append(args, "--home", h.dir, "--json")...)
	if out.code != code {
		h.t.Fatalf("onceload %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), out.code, code, out.stdout, out.stderr)
	}
	var r ledger.Report
	dec := json.NewDecoder(strings.NewReader(out.stdout))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		h.t.Fatalf("onceload %s prints no report: %v\n%s", strings.Join(args, " "), err, out.stdout)
	}
	return r
}

// query reads rows of the home's database as text.
func (h *home) query(sqlText string, args ...any) [][]string {
	h.t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(h.dir, "onceload.db"))
	if err != nil {
		h.t.Fatal(err)
	}
	rows, err := db.Query(sqlText, args...)
	if err != nil {
		h.t.Fatalf("%s: %v", sqlText, err)
	}
	cols, err := rows.Columns()
	if err != nil {
		h.t.Fatal(err)
	}
	var out [][]string
	for rows.Next() {
		row := make([]string, len(cols))
		ptrs := make([]any, len(cols))
		for i := range row {
			ptrs[i] = &row[i]
		}
		if err := rows.Scan(ptrs...); err != nil {
			h.t.Fatal(err)
		}
		out = append(out, row)
	}
	if err := errors.Join(rows.Err(), rows.Close(), db.Close()); err != nil {
		h.t.Fatal(err)
	}
	return out
}

// table dumps a target table by what B5 speaks of: key, rank, _deleted and all columns without a leading `_`.
func (h *home) table(name string) string {
	h.t.Helper()
	var b strings.Builder
	for _, row := range h.query(`SELECT pk, sk, rank, item FROM "` + name + `" ORDER BY pk, sk`) {
		var item map[string]json.RawMessage
		if err := json.Unmarshal([]byte(row[3]), &item); err != nil {
			h.t.Fatal(err)
		}
		for name := range item {
			if strings.HasPrefix(name, "_") && name != "_deleted" {
				delete(item, name)
			}
		}
		columns, err := json.Marshal(item)
		if err != nil {
			h.t.Fatal(err)
		}
		fmt.Fprintln(&b, row[0], row[1], row[2], string(columns))
	}
	return b.String()
}

// file writes a pipeline file beside the home and returns its path.
func (h *home) file(name, text string) string {
	h.t.Helper()
	path := filepath.Join(filepath.Dir(h.dir), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// serve starts an orders API and returns its URL.
func serve(t *testing.T, cfg ordersapi.Config) (string, *ordersapi.Handler) {
	t.Helper()
	cfg.Token = "token"
	api := ordersapi.New(cfg)
	srv := httptest.NewServer(api)
	t.Cleanup(srv.Close)
	return srv.URL, api
}

const slot = "2026-01-05T10:00:00Z"
