package asl_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/asl"
)

// function is what a fake task does.
type function func(ctx context.Context, input string) (string, error)

// world is everything an execution sees: a clock that only sleeping moves, functions, and the history.
type world struct {
	mu        sync.Mutex
	now       time.Time
	slept     []time.Duration
	functions map[string]function
	calls     []string // "resource input"
	history   []asl.Event
	failAt    int64 // Record refuses the event of this number
	rand      float64
}

func newWorld(functions map[string]function) *world {
	return &world{now: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC), functions: functions, rand: 1}
}

var errDisk = errors.New("disk full")

func (w *world) options() asl.Options {
	return asl.Options{
		Now: func() time.Time {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.now
		},
		Sleep: func(ctx context.Context, d time.Duration) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.now = w.now.Add(d)
			w.slept = append(w.slept, d)
			return ctx.Err()
		},
		Rand: func() float64 { return w.rand },
		Record: func(ctx context.Context, e asl.Event) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if e.ID == w.failAt {
				return errDisk
			}
			w.history = append(w.history, e)
			return nil
		},
		Invoke: func(ctx context.Context, resource string, in []byte) ([]byte, error) {
			w.mu.Lock()
			w.calls = append(w.calls, resource+" "+string(in))
			w.mu.Unlock()
			out, err := w.functions[resource](ctx, string(in))
			return []byte(out), err
		},
	}
}

func (w *world) execution(input string) asl.Execution {
	return asl.Execution{ID: "arn:x", Name: "x", StateMachine: "m", Input: json.RawMessage(input)}
}

func (w *world) run(t *testing.T, m *asl.Machine, input string) asl.Result {
	t.Helper()
	res, err := m.Run(t.Context(), w.execution(input), w.options())
	if err != nil {
		t.Fatalf("Run: %v", err)
	}
	return res
}

func (w *world) redrive(t *testing.T, m *asl.Machine) asl.Result {
	t.Helper()
	res, err := m.Redrive(t.Context(), asl.Execution{ID: "arn:x", Name: "x", StateMachine: "m"}, slices.Clone(w.history), w.options())
	if err != nil {
		t.Fatalf("Redrive: %v", err)
	}
	return res
}

// count is how often an event of a type stands in the history, for a state ("" = any).
func (w *world) count(eventType, state string) int {
	n := 0
	for _, e := range w.history {
		if e.Type == eventType && (state == "" || e.State == state) {
			n++
		}
	}
	return n
}

func (w *world) called(resource string) int {
	n := 0
	for _, c := range w.calls {
		if strings.HasPrefix(c, resource+" ") {
			n++
		}
	}
	return n
}

func parse(t testing.TB, def string) *asl.Machine {
	t.Helper()
	m, err := asl.Parse([]byte(def))
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	return m
}

// answer always returns the same.
func answer(out string) function {
	return func(context.Context, string) (string, error) { return out, nil }
}

// refuse always fails with this name.
func refuse(name string) function {
	return func(context.Context, string) (string, error) { return "", &asl.Error{Name: name, Cause: "why"} }
}

// inTurn does one thing after the other, and the last one ever after.
func inTurn(fs ...function) function {
	var mu sync.Mutex
	n := 0
	return func(ctx context.Context, in string) (string, error) {
		mu.Lock()
		f := fs[min(n, len(fs)-1)]
		n++
		mu.Unlock()
		return f(ctx, in)
	}
}

func want(t *testing.T, res asl.Result, status, output string) {
	t.Helper()
	if res.Status != status || (output != "" && string(res.Output) != output) {
		t.Fatalf("got %s %s (%s: %s, in %s), want %s %s", res.Status, res.Output, res.Error, res.Cause, res.State, status, output)
	}
}

func wantFailed(t *testing.T, res asl.Result, name, state string) {
	t.Helper()
	if res.Status != asl.Failed || res.Error != name || res.State != state {
		t.Fatalf("got %s %s (%s) in %s, want FAILED %s in %s", res.Status, res.Error, res.Cause, res.State, name, state)
	}
}
