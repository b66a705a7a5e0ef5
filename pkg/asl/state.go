package asl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// visit is one stay in a state.
type visit struct {
	*run
	s       *state
	it      *iteration
	input   any
	entered time.Time
}

// enter records that a state is entered. One that is resumed was recorded in an earlier run; its entered time is fresh.
func (r *run) enter(ctx context.Context, s *state, at position, it *iteration) (*visit, error) {
	v := &visit{run: r, s: s, it: it, input: at.input}
	if at.resumed {
		r.mu.Lock()
		defer r.mu.Unlock()
		v.entered = r.tick()
		return v, nil
	}
	in, err := encode(at.input)
	if err != nil {
		return nil, err
	}
	v.entered, err = r.stamp(ctx, v.event(s.kind+"StateEntered", func(e *Event) { e.Input = in }))
	return v, err
}

func (v *visit) exit(ctx context.Context, out any) error {
	o, err := encode(out)
	if err != nil {
		return err
	}
	return v.record(ctx, v.event(v.s.kind+"StateExited", func(e *Event) { e.Output = o }))
}

func (v *visit) event(eventType string, fill func(*Event)) Event {
	e := Event{Type: eventType, State: v.s.name, Path: v.it.String()}
	fill(&e)
	return e
}

// step does what the state is for; next is empty at the end of the graph.
func (v *visit) step(ctx context.Context, at position) (out any, next string, err error) {
	switch v.s.kind {
	case "Pass":
		out, err = v.pass()
	case "Choice":
		next, err = v.choose()
		return v.input, next, err
	case "Wait":
		out, err = v.input, v.wait(ctx)
	case "Task":
		return v.caught(v.task(ctx))
	case "Map":
		return v.caught(v.iterate(ctx, at.since))
	case "Succeed":
		return v.input, "", nil
	}
	return out, v.s.next, err
}

func (v *visit) scope() scope { return scope{v.input, v.context} }

// context is the context object.
func (v *visit) context() map[string]any {
	input, err := decode(v.e.Input)
	if err != nil {
		input = nil // a run with such an input has ended before its first state
	}
	object := map[string]any{
		"Execution": map[string]any{
			"Id": v.e.ID, "Name": v.e.Name, "Input": input, "StartTime": formatTime(v.e.StartTime),
			"RedriveCount": json.Number(fmt.Sprint(v.redrives)),
		},
		"StateMachine": map[string]any{"Name": v.e.StateMachine},
		"State":        map[string]any{"EnteredTime": formatTime(v.entered), "Name": v.s.name},
	}
	if v.it != nil {
		object["Map"] = map[string]any{"Item": map[string]any{"Index": json.Number(fmt.Sprint(v.it.index)), "Value": v.it.value}}
	}
	return object
}

func formatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000000Z07:00") }

// pass returns the output of a Pass.
func (v *visit) pass() (any, error) {
	result := v.s.result
	if v.s.parameters != nil {
		var err error
		if result, err = v.s.parameters.eval(v.scope()); err != nil {
			return nil, err
		}
	}
	return v.merge(v.s.resultPath, result)
}

// merge puts a result into the input; a nil path drops it.
func (v *visit) merge(p *path, result any) (any, error) {
	if p == nil {
		return v.input, nil
	}
	out, err := p.put(v.input, result)
	if err != nil {
		return nil, err
	}
	if _, err := encode(out); err != nil {
		return nil, err
	}
	return out, nil
}

// lookup finds a path that must be there.
func (v *visit) lookup(p path, what string) (any, error) {
	found, ok := v.scope().find(p)
	if !ok {
		return nil, &Error{errRuntime, fmt.Sprintf("state %s: %s %s is not in the input", v.s.name, what, p)}
	}
	return found, nil
}

func (v *visit) choose() (string, error) {
	for _, c := range v.s.choices {
		found, err := v.lookup(c.variable, "Variable")
		if err != nil {
			return "", err
		}
		if found == any(c.equals) {
			return c.next, nil
		}
	}
	return "", &Error{errNoChoice, fmt.Sprintf("state %s: no rule matches", v.s.name)}
}

func (v *visit) wait(ctx context.Context) error {
	found, err := v.lookup(v.s.path, "TimestampPath")
	if err != nil {
		return err
	}
	text, _ := found.(string)
	until, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return &Error{errRuntime, fmt.Sprintf("state %s: TimestampPath %s is %q, not an RFC 3339 time", v.s.name, v.s.path, text)}
	}
	return v.pause(ctx, until.Sub(v.o.Now()))
}

// task calls the function until it succeeds or a retrier gives up, and returns the state's output.
func (v *visit) task(ctx context.Context) (any, error) {
	spent := make([]int, len(v.s.retry))
	for attempt := 1; ; attempt++ {
		out, err := v.try(ctx, attempt)
		if err == nil {
			return out, nil
		}
		var fail *Error
		if !errors.As(err, &fail) {
			return nil, err
		}
		i := slices.IndexFunc(v.s.retry, func(r retrier) bool { return matches(r.names, fail.Name) })
		if i < 0 || spent[i] >= v.s.retry[i].attempts {
			return nil, err
		}
		spent[i]++
		wait := v.s.retry[i].delay(spent[i], v.o.Rand)
		v.o.Retrying(ctx, Retry{State: v.s.name, Path: v.it.String(), Attempt: attempt, Error: *fail, Wait: wait})
		if err := v.pause(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// delay is the wait before the nth retry by this retrier.
func (r retrier) delay(n int, random func() float64) time.Duration {
	d := float64(r.interval) * math.Pow(r.backoff, float64(n-1))
	if r.maxDelay > 0 {
		d = min(d, float64(r.maxDelay))
	}
	d = min(d, float64(maxSeconds*time.Second))
	if r.jitter {
		d *= random()
	}
	return time.Duration(d)
}

// matches reports whether an error of this name is meant by the names of a rule; Parse lets no rule name States.Runtime.
func matches(names []string, name string) bool {
	return slices.ContainsFunc(names, func(n string) bool {
		switch n {
		case name:
			return true
		case errAll:
			return name != errRuntime && name != errDataLimit
		case errTaskFailed:
			return name != errRuntime && name != errDataLimit && name != errTimeout
		}
		return false
	})
}

// try calls the function once. Whatever makes the try fail is recorded as TaskFailed, which is how a redrive knows that
// a state left by its Catch.
func (v *visit) try(ctx context.Context, attempt int) (any, error) {
	out, err := v.call(ctx, attempt)
	var fail *Error
	if !errors.As(err, &fail) || errors.Is(err, errAborted) {
		return out, err
	}
	ev := v.event(TaskFailed, func(e *Event) { e.Error, e.Cause, e.Attempt = fail.Name, fail.Cause, attempt })
	if err := v.record(ctx, ev); err != nil {
		return nil, err
	}
	return nil, fail
}

func (v *visit) call(ctx context.Context, attempt int) (any, error) {
	payload := v.input
	if v.s.parameters != nil {
		var err error
		if payload, err = v.s.parameters.eval(v.scope()); err != nil {
			return nil, err
		}
	}
	in, err := encode(payload)
	if err != nil {
		return nil, err
	}
	if err := v.record(ctx, v.event(TaskScheduled, func(e *Event) { e.Input, e.Attempt = in, attempt })); err != nil {
		return nil, err
	}
	raw, err := v.o.Invoke(ctx, v.s.resource, in)
	if err != nil {
		var fail *Error
		switch {
		case ctx.Err() != nil:
			return nil, errAborted
		case errors.As(err, &fail):
			return nil, fail
		}
		return nil, &Error{errLambdaUnknown, err.Error()}
	}
	result, err := decode(raw)
	if err != nil {
		return nil, &Error{errLambdaUnknown, fmt.Sprintf("the output of %s is not JSON: %v", v.s.resource, err)}
	}
	res, err := encode(result)
	if err != nil {
		return nil, err
	}
	out, err := v.merge(v.s.resultPath, result)
	if err != nil {
		return nil, err
	}
	return out, v.record(ctx, v.event(TaskSucceeded, func(e *Event) { e.Output, e.Attempt = res, attempt }))
}

// caught is the end of a Task or Map: its output and what follows, by Next or by the Catch that matches.
func (v *visit) caught(out any, err error) (any, string, error) {
	if err == nil {
		return out, v.s.next, nil
	}
	var fail *Error
	if !errors.As(err, &fail) {
		return nil, "", err
	}
	c := v.s.catcher(fail.Name)
	if c == nil {
		return nil, "", err
	}
	out, err = v.merge(c.resultPath, map[string]any{"Error": fail.Name, "Cause": fail.Cause})
	return out, c.next, err
}

// catcher finds the Catch rule for an error; nil if there is none.
func (s *state) catcher(name string) *catcher {
	for i := range s.catch {
		if matches(s.catch[i].names, name) {
			return &s.catch[i]
		}
	}
	return nil
}
