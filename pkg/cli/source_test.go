package cli_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/asl"
	"github.com/onceload/onceload/pkg/cli"
)

// wall is a clock that only sleeping moves.
type wall struct {
	mu     sync.Mutex
	now    time.Time
	sleeps []time.Duration
}

func newWall() *wall { return &wall{now: time.Date(2026, 1, 5, 11, 5, 0, 0, time.UTC)} }

func (w *wall) time() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *wall) sleep(ctx context.Context, d time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
	w.sleeps = append(w.sleeps, d)
	return ctx.Err()
}

// inProcess runs a command in this process on a clock of its own.
func (h *home) inProcess(w *wall, secrets map[string]string, args ...string) (code int, stdout, stderr string) {
	h.t.Helper()
	var out, errs bytes.Buffer
	code = cli.Run(h.t.Context(), cli.Env{
		Args: append(args, "--home", h.dir), Stdout: &out, Stderr: &errs, Now: w.time, Sleep: w.sleep, Rand: func() float64 { return 0.5 },
		Lookup: func(name string) (string, bool) { v, ok := secrets[name]; return v, ok },
	})
	return code, out.String(), errs.String()
}

func (h *home) events() []asl.Event {
	h.t.Helper()
	var events []asl.Event
	for _, row := range h.query(`SELECT event FROM onceload_history ORDER BY execution, id`) {
		var e asl.Event
		if err := json.Unmarshal([]byte(row[0]), &e); err != nil {
			h.t.Fatal(err)
		}
		events = append(events, e)
	}
	return events
}

// TestRetryAfterBecomesWait: a demand to wait two minutes is a Wait state in the history, and no invocation sleeps. B4
func TestRetryAfterBecomesWait(t *testing.T) {
	var calls int
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		switch {
		case calls == 2:
			w.Header().Set("Retry-After", "120")
			w.WriteHeader(http.StatusTooManyRequests)
		case r.FormValue("page") == "1":
			fmt.Fprint(w, `{"data":[{"id":1}]}`)
		case r.FormValue("page") == "2":
			fmt.Fprint(w, `{"data":[{"id":2}]}`)
		default:
			fmt.Fprint(w, `{"data":[]}`)
		}
	}))
	defer srv.Close()
	h, clock := newHome(t), newWall()
	file := h.file("shop.yaml", strings.Replace(fmt.Sprintf(shop, ""), "{none: {}}", "{page: {param: page}}", 1))
	code, stdout, stderr := h.inProcess(clock, nil, "run", file, "--slot", slot, "--source", srv.URL)
	if code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	if got := fmt.Sprint(h.query(`SELECT pk FROM shop ORDER BY pk`)); got != "[[1] [2]]" || calls != 4 {
		t.Errorf("rows %s after %d calls, want 4: the page that had landed is not asked for again", got, calls)
	}
	var waits []time.Duration
	var entered, scheduled time.Time
	for _, e := range h.events() {
		switch e.Type {
		case "WaitStateEntered":
			entered = e.Time
		case "WaitStateExited":
			waits = append(waits, e.Time.Sub(entered).Round(time.Millisecond))
		case "TaskScheduled":
			scheduled = e.Time
		case "TaskSucceeded", "TaskFailed":
			if d := e.Time.Sub(scheduled).Round(time.Millisecond); d != 0 { // no two events have one time
				t.Errorf("an invocation of %s slept %s", e.State, d)
			}
		}
	}
	if len(waits) != 1 || waits[0] != 2*time.Minute {
		t.Errorf("Wait states of %v, want one of 2m0s; slept %v\n%s", waits, clock.sleeps, stderr)
	}
}

// TestNoSecretAnywhere: a source that shows our credentials wherever it can, in errors, pages that are none, and next
// links, and a search for them in everything that was written: objects, ledger, history, targets, output.
func TestNoSecretAnywhere(t *testing.T) {
	const canary = "canary/7f3a&b=c d"
	for _, tc := range []struct{ name, auth string }{
		{"bearer", "{bearer: {secret: shop}}"},
		{"header", "{header: {name: X-Key, secret: shop}}"},
		{"query", "{query: {name: key, secret: shop}}"},
		{"basic", "{basic: {user: me, secret: shop}}"},
		{"oauth2", "{oauth2: {token_url: http://api.example.com/token, client_id: me, secret: shop}}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			well, asked := false, 0
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/token" {
					fmt.Fprint(w, `{"access_token":"canary-token","expires_in":3600}`)
					return
				}
				shown := fmt.Sprintf("you sent %q %q %q", r.Header, r.URL.RawQuery, canary)
				if !strings.Contains(shown, "canary") && !strings.Contains(shown, "Basic ") {
					t.Errorf("no credentials came: %s", shown)
				}
				asked++
				switch {
				case well && r.FormValue("p") == "2":
					fmt.Fprint(w, `{"data":[{"id":2}]}`)
				case well:
					next := *r.URL
					next.RawQuery += "&p=2"
					w.Header().Set("Link", "<"+next.String()+`>; rel="next"`)
					fmt.Fprint(w, `{"data":[{"id":1},{"id":null}]}`)
				case asked <= 3: // a failure for good
					w.WriteHeader(http.StatusInternalServerError)
					fmt.Fprint(w, shown)
				case asked <= 6: // a page that is none, kept for people
					fmt.Fprint(w, "<html>"+shown)
				default:
					w.WriteHeader(http.StatusForbidden)
					fmt.Fprint(w, shown)
				}
			}))
			defer srv.Close()
			h, clock := newHome(t), newWall()
			text := strings.Replace(fmt.Sprintf(shop, "quarantine: {max_ratio: 0.9}"), "paginate: {none: {}}", "paginate: {link: {}}\n  auth: "+tc.auth, 1)
			file := h.file("shop.yaml", text)
			secrets := map[string]string{"ONCELOAD_SECRET_SHOP": canary}
			var written strings.Builder
			for _, want := range []int{4, 1, 1, 0} {
				well = want == 0
				code, stdout, stderr := h.inProcess(clock, secrets, "run", file, "--slot", slot, "--source", srv.URL, "--json")
				written.WriteString(stdout + stderr)
				if code != want {
					t.Fatalf("exit code %d, want %d\n%s%s", code, want, stdout, stderr)
				}
			}
			_, stdout, stderr := h.inProcess(clock, secrets, "show", "shop/20260105T100000Z")
			written.WriteString(stdout + stderr)
			if got := fmt.Sprint(h.query(`SELECT pk FROM shop ORDER BY pk`)); got != "[[1] [2]]" {
				t.Fatalf("rows %s", got)
			}
			if all := written.String(); !strings.Contains(all, "***") {
				t.Errorf("the output shows nothing of what the source said: %s", all)
			}
			everything := map[string]string{"output": written.String()}
			err := filepath.WalkDir(h.dir, func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				raw, err := os.ReadFile(path)
				if strings.HasSuffix(path, ".gz") && err == nil {
					var z *gzip.Reader
					if z, err = gzip.NewReader(bytes.NewReader(raw)); err == nil {
						raw, err = io.ReadAll(z)
					}
				}
				everything[path] = string(raw)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			kinds := strings.Join(keys(everything), "\n")
			for _, want := range []string{"part-00000.json.gz", "_manifest.json", "_rejected", "valid/", "quarantine/", "onceload.db"} {
				if !strings.Contains(kinds, want) {
					t.Errorf("nothing of %s was searched:\n%s", want, kinds)
				}
			}
			for path, text := range everything {
				for _, form := range []string{"canary", url.QueryEscape(canary), base64.StdEncoding.EncodeToString([]byte("me:" + canary))} {
					if i := strings.Index(text, form); i >= 0 {
						t.Errorf("%s shows the secret: %q", path, text[max(0, i-80):min(len(text), i+80)])
					}
				}
			}
		})
	}
}

func keys(m map[string]string) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	return out
}
