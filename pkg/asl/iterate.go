package asl

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// iterate runs a Map and returns its output. since is what happened in this visit before a redrive: iterations that
// succeeded then keep their result. The first iteration that fails aborts the others and fails the Map.
func (v *visit) iterate(ctx context.Context, since []Event) (any, error) {
	results, err := v.iterations(ctx, since)
	if err == nil {
		var out any
		if out, err = v.merge(v.s.resultPath, results); err == nil {
			return out, v.record(ctx, v.event(MapStateSucceeded, func(*Event) {}))
		}
	}
	var fail *Error
	if !errors.As(err, &fail) {
		return nil, err
	}
	// Like TaskFailed: a redrive knows by it that the state left by its Catch.
	if err := v.record(ctx, v.event(MapStateFailed, func(e *Event) { e.Error, e.Cause = fail.Name, fail.Cause })); err != nil {
		return nil, err
	}
	return nil, fail
}

func (v *visit) iterations(ctx context.Context, since []Event) ([]any, error) {
	found, err := v.lookup(v.s.path, "ItemsPath")
	if err != nil {
		return nil, err
	}
	items, ok := found.([]any)
	if !ok {
		return nil, &Error{errRuntime, fmt.Sprintf("state %s: ItemsPath %s is not an array", v.s.name, v.s.path)}
	}
	before, err := v.earlier(since)
	if err != nil {
		return nil, err
	}
	at := v.s.concurrent
	if v.o.Concurrency > 0 {
		at = min(at, v.o.Concurrency)
	}
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		first   error
		results = make([]any, len(items))
		slots   = make(chan struct{}, at)
	)
	for i, item := range items {
		it := &iteration{fmt.Sprintf("%s/%d", v.s.name, i), i, item}
		past := before[it.path]
		if past.output != nil {
			results[i] = *past.output
			continue
		}
		slots <- struct{}{}
		if inner.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			out, err := v.iteration(inner, it, past)
			mu.Lock()
			defer mu.Unlock()
			results[i] = out
			if err != nil && first == nil {
				first = err
				cancel()
			}
		})
	}
	wg.Wait()
	if first == nil && ctx.Err() != nil {
		first = errAborted // between two iterations: some never began
	}
	return results, first
}

// past is what the history knows of an iteration that a redrive comes upon.
type past struct {
	output *any // it succeeded
	events []Event
}

// earlier sorts what happened in this visit by iteration. A Map that failed for its size begins anew.
func (v *visit) earlier(since []Event) (map[string]past, error) {
	found := map[string]past{}
	for _, e := range since {
		if e.Error == errDataLimit {
			return nil, nil
		}
		if e.Path == "" {
			continue
		}
		p := found[e.Path]
		p.events = append(p.events, e)
		if e.Type == MapIterationSucceeded {
			out, err := decode(e.Output)
			if err != nil {
				return nil, fmt.Errorf("event %d: output: %w", e.ID, err)
			}
			p.output = &out
		}
		found[e.Path] = p
	}
	return found, nil
}

func (v *visit) iteration(ctx context.Context, it *iteration, p past) (any, error) {
	record := func(eventType string, fill func(*Event)) error {
		return v.record(ctx, (&visit{s: v.s, it: it}).event(eventType, fill))
	}
	if len(p.events) == 0 {
		if err := record(MapIterationStarted, func(*Event) {}); err != nil {
			return nil, err
		}
	}
	out, err := v.iterationWalk(ctx, it, p)
	var fail *Error
	switch {
	case err == nil:
		o, err := encode(out)
		if err != nil {
			return nil, err
		}
		return out, record(MapIterationSucceeded, func(e *Event) { e.Output = o })
	case errors.Is(err, errAborted), errors.Is(err, errTimedOut):
		return nil, errors.Join(err, record(MapIterationAborted, func(*Event) {}))
	case errors.As(err, &fail):
		if rerr := record(MapIterationFailed, func(e *Event) { e.Error, e.Cause = fail.Name, fail.Cause }); rerr != nil {
			return nil, rerr
		}
	}
	return nil, err
}

func (v *visit) iterationWalk(ctx context.Context, it *iteration, p past) (any, error) {
	input := it.value
	if v.s.selector != nil {
		var err error
		if input, err = v.s.selector.eval((&visit{run: v.run, s: v.s, it: it, input: v.input, entered: v.entered}).scope()); err != nil {
			return nil, err
		}
	}
	at, err := v.s.processor.locate(p.events, it.path, input)
	if err != nil {
		return nil, err
	}
	return v.walk(ctx, v.s.processor, at, it)
}
