//go:build unix

package contract_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/page"
	"github.com/onceload/onceload/pkg/pipeline"
)

// BenchmarkPart takes 200,000 orders from compressed pages to compressed valid lines. Beside it stand its two
// yardsticks, measured in the same run: the parts alone (gunzip, one validating pass, gzip of the output), and a plain
// Python script for the same job. All rates are by processor time, so that a busy machine does not change the ratios.
func BenchmarkPart(b *testing.B) {
	const n, perPage = 200_000, 1000
	records, _ := orderRecords(n)
	var part bytes.Buffer // a gzip member for each page, as parts land
	var members []int     // where they end
	var bodies int        // bytes of the largest page
	w, err := gzip.NewWriterLevel(&part, gzip.BestSpeed)
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; i < n; i += perPage {
		w.Reset(&part)
		size, err := fmt.Fprintf(w, "{\"data\":[%s]}\n", bytes.Join(records[i:i+perPage], []byte{','}))
		if err := cmp.Or(err, w.Close()); err != nil {
			b.Fatal(err)
		}
		members, bodies = append(members, part.Len()), max(bodies, size)
	}
	from := origin()
	layout := page.Layout{Path: page.Member("data")}
	k := compile(b, orders(), pipeline.Target{}).NewChecker()

	// pass reads the part page by page and writes what records yields, compressed.
	body := make([]byte, bodies+1)
	pass := func(records func(body []byte, out io.Writer) error) {
		var r gzip.Reader
		out, err := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
		if err != nil {
			b.Fatal(err)
		}
		start := 0
		for _, end := range members {
			if err := r.Reset(bytes.NewReader(part.Bytes()[start:end])); err != nil {
				b.Fatal(err)
			}
			size, err := io.ReadFull(&r, body)
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				b.Fatal(err)
			}
			if err := records(body[:size], out); err != nil {
				b.Fatal(err)
			}
			start = end
		}
		if err := out.Close(); err != nil {
			b.Fatal(err)
		}
	}
	var lines []byte // of one page, for the parts alone
	transform := func(body []byte, out io.Writer) error {
		lines = lines[:0]
		_, err := k.Page(layout, body, 0, 0, from, func(res contract.Result) error {
			lines = append(append(lines, res.Line...), '\n')
			return nil
		})
		if err == nil {
			_, err = out.Write(lines)
		}
		return err
	}
	alone := func(body []byte, out io.Writer) error {
		if _, err := layout.Records(body, nil); err != nil {
			return err
		}
		_, err := out.Write(lines)
		return err
	}
	var own, parts time.Duration
	for b.Loop() {
		start := cpuTime(b)
		pass(transform)
		middle := cpuTime(b)
		pass(alone)
		own, parts = own+middle-start, parts+cpuTime(b)-middle
	}
	rate := func(d time.Duration) float64 { return float64(n) * float64(b.N) / d.Seconds() }
	b.ReportMetric(rate(own), "records/s")
	b.ReportMetric(rate(parts), "parts-records/s")
	b.ReportMetric(parts.Seconds()/own.Seconds(), "x-parts")

	python, err := exec.LookPath("python3")
	if err != nil {
		b.Logf("no comparison with Python: %v", err)
		return
	}
	dir := b.TempDir()
	in := filepath.Join(dir, "in.gz")
	if err := os.WriteFile(in, part.Bytes(), 0o600); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(python, "testdata/plain.py", in, filepath.Join(dir, "out.gz"))
	out, err := cmd.CombinedOutput()
	if err != nil || string(bytes.TrimSpace(out)) != fmt.Sprint(n, 0) {
		b.Fatalf("plain.py: %v: %s", err, out)
	}
	took := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	b.ReportMetric(float64(n)/took.Seconds(), "python-records/s")
	b.ReportMetric(took.Seconds()*float64(b.N)/own.Seconds(), "x-python")
}

// cpuTime is what this process has used so far.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
