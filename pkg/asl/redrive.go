package asl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// ErrNotRedrivable is in the error of a redrive that may not be: the execution succeeded, or its history is full or empty.
var ErrNotRedrivable = errors.New("the execution cannot be redriven")

// Redrive goes on with an execution that ended without success, or whose process died, from its history; what that
// means for each type of state stands in the package comment. The execution must not be running. Its input is the
// history's, and so is its start if e has none. The result and the error are those of [Machine.Run].
func (m *Machine) Redrive(ctx context.Context, e Execution, history []Event, o Options) (Result, error) {
	r := &run{m: m, o: o.withDefaults(), e: e}
	if len(history) == 0 || history[0].Type != ExecutionStarted {
		return Result{}, fmt.Errorf("execution %s: its history does not begin with %s: %w", e.ID, ExecutionStarted, ErrNotRedrivable)
	}
	r.e.Input = history[0].Input
	if r.e.StartTime.IsZero() {
		r.e.StartTime = history[0].Time
	}
	for _, ev := range history {
		switch ev.Type {
		case ExecutionSucceeded:
			return Result{}, fmt.Errorf("execution %s: it succeeded: %w", e.ID, ErrNotRedrivable)
		case ExecutionRedriven:
			r.redrives++
		}
		r.weight += weight(ev.Type)
		r.lastID = max(r.lastID, ev.ID)
		if ev.Time.After(r.last) {
			r.last = ev.Time
		}
	}
	if r.weight >= HistoryLimit-1 {
		return Result{}, fmt.Errorf("execution %s: its history has %d events, the limit is %d: %w", e.ID, r.weight, HistoryLimit, ErrNotRedrivable)
	}
	input, err := r.input()
	if err != nil {
		return Result{}, fmt.Errorf("execution %s: history: %w", e.ID, err)
	}
	at, err := m.graph.locate(history, "", input)
	if err != nil {
		return Result{}, fmt.Errorf("execution %s: history: %w", e.ID, err)
	}
	r.redrives++
	if err := r.record(ctx, Event{Type: ExecutionRedriven}); err != nil {
		return Result{}, err
	}
	return r.drive(ctx, at)
}

// locate finds where a graph stands by its history: the state that was entered and not exited, or the one that comes
// after the last exited. path is the iteration's, empty for the machine's own; input is that of the first state.
func (g graph) locate(history []Event, path string, input any) (position, error) {
	var (
		entered, exited *Event
		failed          string // how the last call in this state ended
		since           []Event
	)
	for i, e := range history {
		switch {
		case e.Path != path:
		case strings.HasSuffix(e.Type, "StateEntered"):
			entered, exited, failed, since = &history[i], nil, "", history[i+1:]
		case strings.HasSuffix(e.Type, "StateExited"):
			exited = &history[i]
		case e.Type == TaskFailed, e.Type == MapStateFailed:
			failed = e.Error
		case e.Type == TaskSucceeded, e.Type == MapStateSucceeded:
			failed = ""
		}
	}
	if entered == nil {
		return position{state: g.start, input: input}, nil
	}
	s, ok := g.states[entered.State]
	if !ok {
		return position{}, fmt.Errorf("event %d: the state machine has no state %q", entered.ID, entered.State)
	}
	if exited == nil {
		in, err := payload(entered.ID, entered.Input)
		return position{state: s.name, input: in, resumed: true, since: since}, err
	}
	out, err := payload(exited.ID, exited.Output)
	if err != nil {
		return position{}, err
	}
	next := s.next
	switch {
	case s.kind == "Choice":
		if next, err = (&visit{s: s, input: out}).choose(); err != nil {
			return position{}, fmt.Errorf("event %d: %w", exited.ID, err)
		}
	case failed != "":
		c := s.catcher(failed)
		if c == nil {
			return position{}, fmt.Errorf("event %d: state %s exited after %s, which it does not catch", exited.ID, s.name, failed)
		}
		next = c.next
	}
	if next == "" {
		return position{state: s.name, input: out, over: true}, nil
	}
	return position{state: next, input: out}, nil
}

func payload(id int64, raw json.RawMessage) (any, error) {
	v, err := decode(raw)
	if err != nil {
		return nil, fmt.Errorf("event %d: payload: %w", id, err)
	}
	return v, nil
}
