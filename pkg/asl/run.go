package asl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Execution is what stands in the context object besides states.
type Execution struct {
	ID           string          // $$.Execution.Id
	Name         string          // $$.Execution.Name
	StateMachine string          // $$.StateMachine.Name
	Input        json.RawMessage // $$.Execution.Input and the input of the first state
	StartTime    time.Time       // $$.Execution.StartTime; zero: when Run begins
}

// Options is what an execution needs from outside.
type Options struct {
	// Invoke calls what a Task names, and returns its output as JSON. An [Error] in its chain is how it failed; any
	// other error is Lambda.Unknown. It must end soon after its context does. It is called concurrently by a Map.
	Invoke func(ctx context.Context, resource string, input []byte) ([]byte, error)
	// Record keeps one event; the execution goes on when it returns. It is called by one goroutine at a time, with a
	// context that outlives an interruption.
	Record func(context.Context, Event) error
	// Retrying is told that a Task failed and is called again after a wait, before that wait; nil: nobody is told. It is
	// called concurrently by a Map.
	Retrying func(context.Context, Retry)

	Now         func() time.Time                           // nil: time.Now
	Sleep       func(context.Context, time.Duration) error // nil: a timer
	Rand        func() float64                             // in [0, 1), for jitter; nil: math/rand
	Concurrency int                                        // bounds the iterations of a Map at once; 0: the definition's bound
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Sleep == nil {
		o.Sleep = sleep
	}
	if o.Rand == nil {
		o.Rand = rand.Float64
	}
	if o.Retrying == nil {
		o.Retrying = func(context.Context, Retry) {}
	}
	return o
}

// Retry is a try of a Task that failed and is followed by another one.
type Retry struct {
	State   string
	Path    string // as in an [Event]
	Attempt int    // the try that failed, from 1
	Error   Error
	Wait    time.Duration // before the next one
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// How an execution ends.
const (
	Succeeded = "SUCCEEDED"
	Failed    = "FAILED"
	Aborted   = "ABORTED"
	TimedOut  = "TIMED_OUT"
)

// Result is the end of an execution.
type Result struct {
	Status string          // Succeeded, Failed, Aborted or TimedOut
	Output json.RawMessage // with Succeeded
	Error  string          // with Failed
	Cause  string          // with Failed
	State  string          // where it ended
}

// Ends of a walk that are no failure of a state.
var (
	errAborted  = errors.New("the execution was interrupted")
	errTimedOut = errors.New("the time limit of the state machine has passed")
)

// Run runs an execution from its first state to its end. A cancelled context ends it as Aborted. The error speaks of
// what is not the execution's own: an event that could not be recorded; where the execution stands is then what was
// recorded before.
func (m *Machine) Run(ctx context.Context, e Execution, o Options) (Result, error) {
	r := &run{m: m, o: o.withDefaults(), e: e}
	if r.e.StartTime.IsZero() {
		r.e.StartTime = r.o.Now()
	}
	if err := r.record(ctx, Event{Type: ExecutionStarted, Input: e.Input}); err != nil {
		return Result{}, err
	}
	input, err := r.input()
	if err != nil {
		return r.end(ctx, nil, err)
	}
	return r.drive(ctx, position{state: m.graph.start, input: input})
}

// run is one execution under way.
type run struct {
	m        *Machine
	o        Options
	e        Execution
	redrives int
	deadline time.Time // zero: none
	at       string    // the top-level state under way

	mu     sync.Mutex // guards what follows: iterations record at the same time
	lastID int64
	weight int       // of the history so far
	last   time.Time // of the last event
	broken error     // recording failed: nothing may be recorded after
}

// position is where a walk begins: a state with its input.
type position struct {
	state   string
	input   any
	resumed bool    // the state was entered before and not exited
	since   []Event // what happened in it, if resumed
	over    bool    // state was the last one; input is the walk's output
}

// iteration is the Map iteration a walk belongs to; nil outside of Maps.
type iteration struct {
	path  string
	index int
	value any
}

func (i *iteration) String() string {
	if i == nil {
		return ""
	}
	return i.path
}

// input is the execution's, decoded.
func (r *run) input() (any, error) {
	v, err := decode(r.e.Input)
	if err != nil {
		return nil, &Error{errRuntime, fmt.Sprintf("the input of the execution is not JSON: %v", err)}
	}
	if _, err := encode(v); err != nil {
		return nil, err
	}
	return v, nil
}

func (r *run) drive(ctx context.Context, from position) (Result, error) {
	if r.m.timeout > 0 {
		r.deadline = r.o.Now().Add(r.m.timeout)
	}
	r.at = from.state
	out, err := r.walk(ctx, r.m.graph, from, nil)
	return r.end(ctx, out, err)
}

// end records how the execution ended.
func (r *run) end(ctx context.Context, out any, err error) (Result, error) {
	res := Result{State: r.at}
	ev := Event{State: r.at}
	var fail *Error
	switch {
	case err == nil:
		res.Status, ev.Type = Succeeded, ExecutionSucceeded
		if res.Output, err = encode(out); err != nil {
			return Result{}, err // it was encoded when its state exited
		}
		ev.Output = res.Output
	case errors.Is(err, errAborted):
		res.Status, ev.Type = Aborted, ExecutionAborted
	case errors.Is(err, errTimedOut):
		res.Status, ev.Type = TimedOut, ExecutionTimedOut
	case errors.As(err, &fail):
		res.Status, ev.Type = Failed, ExecutionFailed
		res.Error, res.Cause = fail.Name, fail.Cause
		ev.Error, ev.Cause = fail.Name, fail.Cause
	default:
		return Result{}, err
	}
	if err := r.record(ctx, ev); err != nil {
		return Result{}, err
	}
	return res, nil
}

// walk goes from state to state until the graph ends, and returns its output. An error is an *Error when a state failed
// for good, errAborted, errTimedOut, or a trouble of our own.
func (r *run) walk(ctx context.Context, g graph, at position, it *iteration) (any, error) {
	if at.over {
		return at.input, nil
	}
	for {
		if err := r.check(ctx); err != nil {
			return nil, err
		}
		s := g.states[at.state]
		if it == nil {
			r.at = s.name
		}
		v, err := r.enter(ctx, s, at, it)
		if err != nil {
			return nil, err
		}
		out, next, err := v.step(ctx, at)
		if err != nil {
			return nil, err
		}
		if err := v.exit(ctx, out); err != nil {
			return nil, err
		}
		if next == "" {
			return out, nil
		}
		at = position{state: next, input: out}
	}
}

// check says why the execution may not go on, if so.
func (r *run) check(ctx context.Context) error {
	switch {
	case ctx.Err() != nil:
		return errAborted
	case !r.deadline.IsZero() && !r.o.Now().Before(r.deadline):
		return errTimedOut
	}
	return nil
}

// pause sleeps, at most until the machine's time limit.
func (r *run) pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return r.check(ctx)
	}
	late := false
	if !r.deadline.IsZero() {
		if left := r.deadline.Sub(r.o.Now()); left < d {
			d, late = max(left, 0), true
		}
	}
	if err := r.o.Sleep(ctx, d); err != nil {
		if ctx.Err() != nil {
			return errAborted
		}
		return fmt.Errorf("sleep: %w", err)
	}
	if late {
		return errTimedOut
	}
	return r.check(ctx)
}

// record numbers an event and hands it out. A history at its limit fails the execution.
func (r *run) record(ctx context.Context, ev Event) error {
	_, err := r.stamp(ctx, ev)
	return err
}

// stamp is record, and returns the event's time.
func (r *run) stamp(ctx context.Context, ev Event) (time.Time, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.broken != nil {
		return time.Time{}, r.broken
	}
	if w := weight(ev.Type); r.weight+w >= HistoryLimit && !endType(ev.Type) {
		return time.Time{}, &Error{errRuntime, fmt.Sprintf("the execution reached the maximum number of history events (%d)", HistoryLimit)}
	}
	ev.ID, ev.Time = r.lastID+1, r.tick()
	if err := r.o.Record(context.WithoutCancel(ctx), ev); err != nil {
		r.broken = fmt.Errorf("record event %d, %s of execution %s: %w", ev.ID, ev.Type, r.e.ID, err)
		return time.Time{}, r.broken
	}
	r.lastID, r.weight = ev.ID, r.weight+weight(ev.Type)
	return ev.Time, nil
}

// tick is the time now, later than any it gave before: entered times identify failures. The caller holds mu.
func (r *run) tick() time.Time {
	t := r.o.Now().UTC()
	if !t.After(r.last) {
		t = r.last.Add(1)
	}
	r.last = t
	return t
}

func endType(t string) bool {
	switch t {
	case ExecutionSucceeded, ExecutionFailed, ExecutionAborted, ExecutionTimedOut:
		return true
	}
	return false
}
