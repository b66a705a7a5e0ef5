//go:build unix

package stage_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/page"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/stage"
	"github.com/onceload/onceload/pkg/store/disk"
	"github.com/onceload/onceload/pkg/store/mem"
)

// What a process started by these tests does instead of testing, and for whom.
const (
	childVariable = "ONCELOAD_TEST_CHILD"
	childServe    = "serve"
	childTable    = "table"
	childExtract  = "extract" // with URL, folder and number of pages behind it
)

// orderPage is a page of orders of about 440 bytes each, up to the end of its data.
func orderPage(orders int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	var b bytes.Buffer
	b.WriteString(`{"data":[`)
	for i := range orders {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"shop":"eu","order_id":"ord_%016x","customer":{"email":"customer%d@example.com","name":"%x"},"valor":%d.%02d,"currency":"EUR",`+
			`"updated_at":"2026-01-05T10:%02d:%02dZ","status":"paid","items":[`, r.Uint64(), r.IntN(1e6), r.Uint64(), r.IntN(1000), r.IntN(100), r.IntN(60), r.IntN(60))
		for j := range 3 {
			if j > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `{"sku":"%08x","quantity":%d,"price":%d.%02d,"note":"leave it there"}`, r.Uint32(), r.IntN(9), r.IntN(100), r.IntN(100))
		}
		b.WriteString(`]}`)
	}
	b.WriteString("]")
	return b.Bytes()
}

// TestChild is no test: it is what a process started by another test runs.
func TestChild(t *testing.T) {
	args := strings.Fields(os.Getenv(childVariable))
	if len(args) == 0 {
		return
	}
	switch args[0] {
	case childServe:
		body := orderPage(999)[len(`{"data":[`):]
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("http://%s\n", l.Addr())
		t.Fatal(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			first := fmt.Sprintf(`{"data":[{"shop":"eu","order_id":"page_%s"},`, r.FormValue("page")) // no page is like the one before
			meta := fmt.Sprintf(`,"meta":{"pages":%s}}`, r.FormValue("pages"))
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", strconv.Itoa(len(first)+len(body)+len(meta)))
			_, _ = io.WriteString(w, first)
			_, _ = w.Write(body)
			_, _ = io.WriteString(w, meta)
		})))
	case childTable:
		serveTable(t)
	case childExtract:
		pages, err := strconv.ParseInt(args[3], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		extractPages(t, args[1], args[2], pages)
		fmt.Println(peak(t))
	}
}

// peak is the largest resident size of this process so far, in bytes. On Linux rusage would also count what the parent had
// when it started us.
func peak(t testing.TB) int64 {
	t.Helper()
	if status, err := os.ReadFile("/proc/self/status"); err == nil {
		var kib int64
		_, rest, _ := strings.Cut(string(status), "VmHWM:")
		if _, err := fmt.Sscan(rest, &kib); err != nil {
			t.Fatal(err)
		}
		return kib << 10
	}
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return int64(u.Maxrss) //nolint:unconvert // an int32 on some systems
}

// child starts this test binary as a process that does something else, and returns its standard output.
func child(t testing.TB, what string) (*bufio.Reader, *exec.Cmd) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$")
	cmd.Env = append(os.Environ(), childVariable+"="+what)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return bufio.NewReader(out), cmd
}

// pageServer serves pages from a process of its own, as a real source would.
func pageServer(t testing.TB) string {
	t.Helper()
	out, cmd := child(t, childServe)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	url, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(url)
}

// extractPages lands pages of the server on disk.
func extractPages(t testing.TB, url, dir string, pages int64) {
	t.Helper()
	p := ordersPipeline(url)
	p.Source.Paginate.MaxPages = pages
	p.Source.Query = []pipeline.Param{{Name: "pages", Value: strconv.FormatInt(pages, 10)}}
	raw, err := disk.OpenObjects(filepath.Join(dir, "raw"))
	if err != nil {
		t.Fatal(err)
	}
	s := stage.New(stage.Deps{
		Raw: raw, Stage: mem.NewObjects(), Ledger: &ledger.Ledger{Table: mem.NewTable(ledger.Schema())},
		Pipelines: func(string) (*pipeline.Pipeline, error) { return p, nil },
		Liveness:  ended{}, Secrets: noSecrets{},
	})
	out, err := s.Extract.Run(t.Context(), etl.ExtractInput{Execution: "x", Request: etl.Request{Pipeline: "orders", Slot: "2026-01-05T10:00:00Z"}})
	if err != nil || out.Status != etl.StatusLanded {
		t.Fatalf("extract: %+v, %v", out, err)
	}
}

// loop does by hand and in sequence what Extract does to a page: fetch, sha256, validate, count, compress.
func loop(t testing.TB, url string, pages int64) {
	t.Helper()
	var object bytes.Buffer
	zip, err := gzip.NewWriterLevel(&object, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	path, err := page.ParsePath("data")
	if err != nil {
		t.Fatal(err)
	}
	layout := page.Layout{Path: path}
	var body bytes.Buffer
	var digests []string
	records := 0
	for n := range pages {
		resp, err := http.Get(url + "/v1/orders?pages=1&page=" + strconv.FormatInt(n, 10))
		if err != nil {
			t.Fatal(err)
		}
		body.Reset()
		_, err = body.ReadFrom(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(body.Bytes())
		digests = append(digests, hex.EncodeToString(sum[:]))
		count, err := layout.Records(body.Bytes(), nil)
		if err != nil {
			t.Fatal(err)
		}
		records += count
		if object.Len() > 16<<20 {
			object.Reset()
		}
		zip.Reset(&object)
		if _, err := zip.Write(body.Bytes()); err != nil {
			t.Fatal(err)
		}
		if err := zip.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(digests) != int(pages) || records != int(pages)*1000 {
		t.Fatalf("%d digests, %d records", len(digests), records)
	}
}

// BenchmarkExtract lands 1,000 pages of 440 KB each from a server on this machine and holds the time against a plain loop
// over the same pages, the two in turn: at GOMAXPROCS=1 the loop has the same processor, at 2 Extract overlaps fetching
// with compressing and the loop cannot. The bounds of the product are 1.25 and 0.75. On a busy machine only a real-time
// priority (chrt -f 50) gives two processors of its own.
func BenchmarkExtract(b *testing.B) {
	const pages = 1000
	url := pageServer(b)
	for _, procs := range []int{1, 2} {
		b.Run(fmt.Sprintf("procs=%d", procs), func(b *testing.B) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			loop(b, url, 20)
			var ours, loops []time.Duration
			for b.Loop() {
				began := time.Now()
				loop(b, url, pages)
				loops = append(loops, time.Since(began))
				began = time.Now()
				extractPages(b, url, b.TempDir(), pages)
				ours = append(ours, time.Since(began))
			}
			slices.Sort(ours)
			slices.Sort(loops)
			mine, theirs := ours[len(ours)/2], loops[len(loops)/2]
			b.ReportMetric(mine.Seconds(), "s/extract")
			b.ReportMetric(theirs.Seconds(), "s/loop")
			b.ReportMetric(mine.Seconds()/theirs.Seconds(), "ratio")
		})
	}
}

// TestExtractMemory: the memory of an extraction does not grow with the batch. 96 MiB is the product's bound.
func TestExtractMemory(t *testing.T) {
	if raced {
		t.Skip("the race detector takes memory of its own")
	}
	pages := 2000
	if testing.Short() {
		pages = 300
	}
	url := pageServer(t)
	out, cmd := child(t, fmt.Sprintf("%s %s %s %d", childExtract, url, t.TempDir(), pages))
	text, err := io.ReadAll(out)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	rss, nerr := strconv.ParseInt(line, 10, 64)
	if err != nil || nerr != nil {
		t.Fatalf("%v, %v\n%s", err, nerr, text)
	}
	t.Logf("%d pages: resident %d MiB", pages, rss>>20)
	if rss > 96<<20 {
		t.Errorf("resident %d MiB, want at most 96", rss>>20)
	}
}

type ended struct{}

func (ended) Alive(context.Context, string) (ledger.Liveness, error) { return ledger.Ended, nil }

type noSecrets struct{}

func (noSecrets) Secret(_ context.Context, name string) (string, error) {
	return "", etl.Errorf(etl.SourceRejected, "no secret %s", name)
}

// ordersPipeline is a pipeline over url/v1/orders, paged by number.
func ordersPipeline(url string) *pipeline.Pipeline {
	return &pipeline.Pipeline{
		Name: "orders", Digest: "d", Schedule: etl.Schedule{Every: time.Hour},
		Source: pipeline.Source{
			URL: url + "/v1/orders", Method: "GET", Records: "data", PartBytes: 16 << 20,
			Paginate: pipeline.Paginate{Style: "page", Param: "page", Start: 1, Total: "meta.pages"},
		},
		Contract: pipeline.Contract{Revision: 1, Epoch: 1, Key: []string{"order_id"}, Extra: "drop",
			Fields: []pipeline.Field{{Name: "order_id", Type: "string", Required: true}}},
		Target: pipeline.Target{Table: "orders"},
	}
}
