package cli_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
)

// says fails unless a command ends with the code and prints every text.
func (h *home) says(code int, args []string, texts ...string) output {
	h.t.Helper()
	out := h.exec(append(args, "--home", h.dir)...)
	if out.code != code {
		h.t.Fatalf("onceload %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), out.code, code, out.stdout, out.stderr)
	}
	for _, text := range texts {
		if !strings.Contains(out.stdout+out.stderr, text) {
			h.t.Errorf("onceload %s does not say %q:\n%s%s", strings.Join(args, " "), text, out.stdout, out.stderr)
		}
	}
	return out
}

// TestSummary: a run says why records were quarantined, and which fields no record has. R9, B12
func TestSummary(t *testing.T) {
	t.Parallel()
	url, _ := answers(t, 200, "application/json", `{"data":[{"id":1,"op":"D"},{"id":2,"customer":{"name":"x"},"valor":"1"},{"id":3},{"id":4,"note":null},"oops",{"id":"x"},{"id":"y"}]}`)
	h := newHome(t)
	text := strings.Replace(fmt.Sprintf(shop, "quarantine: {max_ratio: 0.9}"), "    valor: {type: decimal}",
		"    valor: {type: decimal}\n    note: {type: string}\n    name: {type: string, from: customer.nmae}\n  delete: {from: op, equals: D}", 1)
	file := h.file("shop.yaml", text)
	out := h.says(0, []string{"run", file, "--slot", slot, "--source", url}, "quarantined for: id ", " ×2, record_type ×1\n", "in none of the records: customer.nmae (if")
	if strings.Contains(out.stdout, "was complete already") {
		t.Errorf("a fresh run says %s", out.stdout)
	}
	h = newHome(t)
	file = h.file("shop.yaml", strings.Replace(text, "customer.nmae", "customer.name", 1))
	out = h.says(0, []string{"run", file, "--slot", slot, "--source", url})
	if strings.Contains(out.stdout, "in none of") {
		t.Errorf("all fields are there, and it says %s", out.stdout)
	}
}

// TestCompleteAlready: what is done already is told apart from a fresh run, with what to do if its contract has changed
// meanwhile. R20
func TestCompleteAlready(t *testing.T) {
	t.Parallel()
	url, _ := answers(t, 200, "application/json", `{"data":[{"id":1}]}`)
	h := newHome(t)
	text := fmt.Sprintf(shop, "")
	file := h.file("shop.yaml", text)
	run := []string{"run", file, "--slot", slot, "--source", url}
	redrive := []string{"redrive", "shop/20260105T100000Z"}
	if out := h.says(0, run); strings.Contains(out.stdout, "already") {
		t.Errorf("a fresh run says %s", out.stdout)
	}
	for name, c := range map[string]struct {
		text  string
		note  string
		lacks string
	}{
		"the same":      {text, "COMPLETED  was complete already: nothing was done", "→"},
		"another":       {strings.Replace(text, "type: decimal", "type: string", 1), "raise contract.revision to 2, then onceload reprocess shop/20260105T100000Z", "fresh"},
		"under another": {strings.Replace(text, "  key:", "  revision: 2\n  key:", 1), "the file has 2.1: onceload reprocess shop/20260105T100000Z", "fresh"},
	} {
		h.file("shop.yaml", c.text)
		for _, args := range [][]string{run, redrive} {
			out := h.says(0, args, "was complete already", c.note)
			if strings.Contains(out.stdout, c.lacks) {
				t.Errorf("%s: %s", name, out.stdout)
			}
			if r := h.report(0, args...); !r.Already || (r.Note == "") != (name == "the same") {
				t.Errorf("%s: %+v", name, r)
			}
		}
	}
}

// TestAdvice: what a failure says to do can be typed, and what it says to look at can be opened. R11
func TestAdvice(t *testing.T) {
	t.Parallel()
	const id = "shop/20260105T100000Z"
	h := newHome(t)
	text := fmt.Sprintf(shop, "quarantine: {max_ratio: 0.01, min_rows: 1}")
	file := h.file("shop.yaml", text)
	run := func(body string) []string {
		url, _ := answers(t, 200, "application/json", body)
		return []string{"run", file, "--slot", slot, "--source", url}
	}
	then := "then onceload redrive " + id + " --home " + h.dir
	malformed := h.says(1, run(`{"rows":[],"meta":{"n":1}}`), "no member data", "the members rows (array), meta;", "body kept as "+h.dir+"/raw/raw/pipeline=shop", then)
	_, path, _ := strings.Cut(malformed.stdout, "body kept as ")
	path, _, _ = strings.Cut(path, ")")
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	gate := h.says(3, run(`{"data":[{"id":1},{"id":"x"},"oops"]}`), "all in "+h.dir+"/stage/quarantine/pipeline=shop", then, "3 records: 1 valid, 2 quarantined")
	if strings.Contains(gate.stdout, "written") {
		t.Errorf("nothing is loaded yet, and it says %s", gate.stdout)
	}
	h.says(0, []string{"show", id}, "extraction  1: 1 part, 1 page, 3 records", then, "quarantined: record_type ×1")
	h.file("shop.yaml", strings.Replace(text, "every: 1h", "every: 1h\nlookback: 1h", 1))
	h.says(2, []string{"redrive", id}, "onceload: the extraction of "+id+" asks for", "onceload reprocess "+id+" --home "+h.dir+" --refetch")
	h.says(2, run(`{"data":[]}`), "WindowChanged: the extraction of "+id+" asks for")
}

// TestOlderRevision: a revision that was set back is no error, and not passed over in silence.
func TestOlderRevision(t *testing.T) {
	t.Parallel()
	url, _ := answers(t, 200, "application/json", `{"data":[{"id":1}]}`)
	h := newHome(t)
	text := fmt.Sprintf(shop, "")
	newer := strings.Replace(text, "  key:", "  revision: 2\n  key:", 1)
	for i, c := range []struct{ text, note string }{{text, ""}, {newer, ""}, {text, "loaded under revision 1, older than 2"}} {
		file := h.file("shop.yaml", c.text)
		r := h.run(0, file, "--slot", fmt.Sprintf("2026-01-05T%02d:00:00Z", i), "--source", url)
		if !strings.Contains(r.Note, c.note) || (c.note == "") != (r.Note == "") {
			t.Errorf("run %d: note %q", i, r.Note)
		}
	}
}

// TestVersion: the program says which build it is.
func TestVersion(t *testing.T) {
	code, want, stderr := onceload(t, "version")
	if code != 0 || !strings.HasPrefix(want, "onceload ") || !strings.Contains(want, runtime.Version()) {
		t.Errorf("exit code %d: %s%s", code, want, stderr)
	}
	if _, got, _ := onceload(t, "--version"); got != want {
		t.Errorf("--version: %s", got)
	}
	if code, _, _ := onceload(t, "show", "shop/20260105T100000Z", "--version"); code != 2 {
		t.Errorf("with a command: exit code %d", code)
	}
}

// TestShowOfTheDead: a batch whose process was killed is RUNNING to the ledger, and show says that nobody runs it. R19
func TestShowOfTheDead(t *testing.T) {
	t.Parallel()
	const id, gone = "shop/20260105T100000Z", "RUNNING (its process is gone: run it again)"
	h := newHome(t)
	file := h.file("shop.yaml", fmt.Sprintf(shop, ""))
	asked, answer := make(chan struct{}), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-answer
		fmt.Fprint(w, `{"data":[{"id":1}]}`)
	}))
	defer srv.Close()
	cmd := h.command(t.Context(), "run", file, "--slot", slot, "--source", srv.URL, "--home", h.dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-asked
	if out := h.says(0, []string{"show", id}, id+"  RUNNING\n"); strings.Contains(out.stdout, "gone") {
		t.Errorf("it lives, and show says %s", out.stdout)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	close(answer)
	h.says(0, []string{"show", id}, gone)
}
