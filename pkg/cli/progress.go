package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/stage"
)

// progress shows how far a run is: one line that is redrawn on a terminal, plain lines elsewhere; and at the end what each
// stage did in which time. Log lines go through it, so that they do not tear the line apart.
type progress struct {
	killAfter int64 // kill this process once so many rows are written; 0 = never

	mu       sync.Mutex
	w        io.Writer
	terminal bool
	now      func() time.Time
	stages   []*stageProgress
	drawn    bool
	last     time.Time
	written  int64
	total    int64 // records of the batch, once Extract knows
}

type stageProgress struct {
	name        etl.Stage
	began, last time.Time
	parts       int
	pages       int
	records     int64
	written     int64
}

const (
	redrawEvery = 100 * time.Millisecond
	lineEvery   = 5 * time.Second
)

func newProgress(w io.Writer, terminal bool, now func() time.Time) *progress {
	return &progress{w: w, terminal: terminal, now: now}
}

// tick adds a stage's work.
func (p *progress) tick(t stage.Tick) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stage(t.Stage)
	s.last = p.now()
	s.parts += t.Parts
	s.pages += t.Pages
	s.records += t.Records
	s.written += t.Written
	p.written += t.Written
	p.total = max(p.total, t.Total)
	if p.killAfter > 0 && p.written >= p.killAfter {
		kill()
	}
	every := lineEvery
	if p.terminal {
		every = redrawEvery
	}
	if s.last.Sub(p.last) >= every {
		p.last = s.last
		p.draw(s)
	}
}

// kill ends this process as kill -9 does: nothing is flushed, released or told.
func kill() {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(err) // a test that was to die must not go on
	}
	select {}
}

func (p *progress) stage(name etl.Stage) *stageProgress {
	for _, s := range p.stages {
		if s.name == name {
			return s
		}
	}
	now := p.now()
	s := &stageProgress{name: name, began: now}
	p.stages = append(p.stages, s)
	if p.last.IsZero() {
		p.last = now
	}
	return s
}

func (p *progress) draw(s *stageProgress) {
	line := fmt.Sprintf("%-9s  %s%s parts  %s records", s.name, p.bar(s), number(int64(s.parts)), number(s.records))
	if s.name == etl.StageLoad {
		line += fmt.Sprintf("  %s written", number(s.written))
	}
	if p.terminal {
		fmt.Fprintf(p.w, "\r\x1b[K%s", line)
		p.drawn = true
		return
	}
	fmt.Fprintln(p.w, line)
}

// bar shows the share of the batch's records that a stage is through with; nothing while their number is unknown.
func (p *progress) bar(s *stageProgress) string {
	if p.total == 0 || s.name == etl.StageExtract {
		return ""
	}
	done := min(s.records, p.total)
	percent := fmt.Sprintf("%3d %%  ", done*100/p.total)
	if !p.terminal {
		return percent
	}
	const width = 20
	full := int(done * width / p.total)
	return strings.Repeat("█", full) + strings.Repeat("░", width-full) + " " + percent
}

// Write lets a log line through.
func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	if _, err := p.w.Write(b); err != nil {
		return 0, fmt.Errorf("log: %w", err)
	}
	return len(b), nil
}

func (p *progress) clear() {
	if p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.drawn = false
	}
}

// end removes the line and prints a line a stage: records, time, records a second.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	var out bytes.Buffer
	for _, s := range p.stages {
		if s.records == 0 {
			continue // what was done before this run
		}
		took := s.last.Sub(s.began)
		fmt.Fprintf(&out, "%-9s  %s records in %s", s.name, number(s.records), took.Round(time.Millisecond))
		if took >= 10*time.Millisecond {
			fmt.Fprintf(&out, "  (%s records/s)", number(int64(float64(s.records)/took.Seconds())))
		}
		fmt.Fprintln(&out)
	}
	_, _ = p.w.Write(out.Bytes()) // a courtesy: a terminal that is closed must not fail the run
}
