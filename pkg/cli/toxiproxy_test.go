package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/ordersapi"
)

// toxic is a fault of toxiproxy, with the share of connections it befalls.
type toxic struct {
	Type       string         `json:"type"`
	Stream     string         `json:"stream"`
	Toxicity   float64        `json:"toxicity"`
	Attributes map[string]any `json:"attributes"`
}

// TestToxiproxy puts a proxy between the program and the source that delays, slices, cuts and stalls connections. In 20
// runs the final table is always that of a run without faults.
func TestToxiproxy(t *testing.T) {
	binary := os.Getenv("ONCELOAD_TEST_TOXIPROXY")
	if binary == "" {
		t.Skip("ONCELOAD_TEST_TOXIPROXY does not name toxiproxy's server")
	}
	admin := freePort(t)
	_, port, err := net.SplitHostPort(admin)
	if err != nil {
		t.Fatal(err)
	}
	proxy := exec.CommandContext(t.Context(), binary, "-host", "127.0.0.1", "-port", port)
	if err := proxy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = proxy.Process.Kill()
		_ = proxy.Wait()
	})

	api := ordersapi.New(ordersapi.Config{Seed: 3, Rows: 2000, Token: "token", Faults: ordersapi.Faults{Duplicate: true, Late: true, Delete: true}})
	srv := httptest.NewUnstartedServer(api)
	srv.Config.SetKeepAlivesEnabled(false) // a connection a request: each meets the faults anew
	srv.Start()
	defer srv.Close()

	text := strings.Replace(orders, "attempts: 5, base: 10ms, cap: 20ms", "attempts: 20, base: 2ms, cap: 10ms", 1)
	text = strings.Replace(text, "#part", "part_bytes: 20000", 1)
	calm := newHome(t)
	calm.run(0, calm.file("orders.yaml", text), "--slot", slot, "--source", srv.URL)
	want := calm.table("orders")
	if n := strings.Count(want, "\n"); n < 2000 {
		t.Fatalf("%d rows", n)
	}

	retries := 0
	for i := range 20 {
		rnd := rand.New(rand.NewPCG(uint64(i), 7))
		listen := freePort(t)
		toxics := []toxic{
			{"latency", "downstream", 0.3, map[string]any{"latency": 1 + rnd.IntN(20), "jitter": 10}},
			{"slicer", "downstream", 0.5, map[string]any{"average_size": 500 + rnd.IntN(5000), "size_variation": 200, "delay": 20}},
			{"reset_peer", "downstream", 0.15, map[string]any{"timeout": rnd.IntN(8)}},
			{"timeout", "downstream", 0.1, map[string]any{"timeout": 5 + rnd.IntN(20)}},
			{"limit_data", "downstream", 0.1, map[string]any{"bytes": 200 + rnd.IntN(30000)}},
		}
		name := fmt.Sprintf("source-%d", i)
		post(t, admin, "/proxies", map[string]any{"name": name, "listen": listen, "upstream": strings.TrimPrefix(srv.URL, "http://"), "enabled": true})
		for _, x := range toxics {
			post(t, admin, "/proxies/"+name+"/toxics", x)
		}
		h := newHome(t)
		r := h.run(0, h.file("orders.yaml", text), "--slot", slot, "--source", "http://"+listen)
		retries += r.Retries
		if got := h.table("orders"); got != want {
			t.Fatalf("run %d (%+v): the table is another\n%s", i, toxics, firstDifference(got, want))
		}
	}
	t.Logf("20 runs, %d retries", retries)
	if retries < 20 {
		t.Errorf("only %d retries: the proxy did too little", retries)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// post speaks to toxiproxy, which may not be up yet.
func post(t *testing.T, admin, path string, v any) {
	t.Helper()
	body, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	for range 500 {
		var resp *http.Response
		if resp, err = http.Post("http://"+admin+path, "application/json", bytes.NewReader(body)); err == nil {
			text, rerr := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode/100 != 2 || rerr != nil {
				t.Fatalf("%s: %s %s", path, resp.Status, text)
			}
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal(err)
}

func firstDifference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("line %d: %s\n want %s", i, x[i], y[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(x), len(y))
}
