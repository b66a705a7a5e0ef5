package template_test

import (
	"encoding/json"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/machine"
)

// task is a state that calls a function, with the retry rules around it.
type task struct {
	Type, Resource string
	MaxConcurrency int
	Retry          []struct {
		ErrorEquals     []string
		IntervalSeconds float64
		MaxAttempts     int
		BackoffRate     float64
		MaxDelaySeconds float64
	}
	ItemProcessor struct{ States map[string]task }
}

// worst is the longest that one visit of the task takes when every call runs into the function's time limit and every
// rule for which counts is used up.
func (s task) worst(limit time.Duration, counts func(errors []string) bool) time.Duration {
	calls, wait := 1, 0.0
	for _, r := range s.Retry {
		if !counts(r.ErrorEquals) {
			continue
		}
		calls += r.MaxAttempts
		for n := range r.MaxAttempts {
			wait += min(r.IntervalSeconds*math.Pow(r.BackoffRate, float64(n)), r.MaxDelaySeconds)
		}
	}
	return time.Duration(calls)*limit + time.Duration(wait*float64(time.Second))
}

// TestWorstTime computes from the definition how long a machine can keep trying: a function that always needs more time
// than it has must not hold a batch for hours.
func TestWorstTime(t *testing.T) { // R27
	var definition struct {
		TimeoutSeconds int
		States         map[string]task
	}
	if err := json.Unmarshal(machine.Definition(), &definition); err != nil {
		t.Fatal(err)
	}
	functions, err := project(t).Functions()
	if err != nil {
		t.Fatal(err)
	}
	limits := map[string]time.Duration{}
	for _, f := range functions {
		limits["${"+f.ID+"Arn}"] = time.Duration(f.Timeout) * time.Second
	}
	outOfTime := func(errors []string) bool { return slices.Contains(errors, "Sandbox.Timedout") }
	always := func([]string) bool { return true }

	var all time.Duration
	visit := func(name string, s task, times int) {
		limit, ok := limits[s.Resource]
		if !ok {
			t.Fatalf("%s calls %s, which is no function of template.yaml", name, s.Resource)
		}
		for _, r := range s.Retry {
			if outOfTime(r.ErrorEquals) && slices.ContainsFunc(r.ErrorEquals, func(e string) bool { return etl.Kind(e).Known() && etl.Kind(e) != etl.StageCrashed }) {
				t.Errorf("%s: running out of time shares a rule with faults of the store: %v", name, r.ErrorEquals)
			}
			if r.MaxDelaySeconds == 0 || r.BackoffRate < 1 {
				t.Errorf("%s: a rule without a longest delay: %+v", name, r)
			}
		}
		late, worst := s.worst(limit, outOfTime), s.worst(limit, always)
		all += worst * time.Duration(times)
		t.Logf("%-15s out of time %8v, worst %8v, %d times one after the other", name, late, worst, times)
		if late > 20*time.Minute || worst > 75*time.Minute {
			t.Errorf("%s may take %v when it is out of time every time, %v when everything fails", name, late, worst)
		}
	}
	for name, s := range definition.States {
		switch s.Type {
		case "Task":
			visit(name, s, 1)
		case "Map":
			for inner, is := range s.ItemProcessor.States {
				if is.Type == "Task" {
					visit(inner, is, (etl.MaxRanges+s.MaxConcurrency-1)/s.MaxConcurrency)
				}
			}
		}
	}
	bound := time.Duration(definition.TimeoutSeconds) * time.Second
	t.Logf("all together %v, the machine ends after %v", all, bound)
	if all == 0 || all > bound {
		t.Errorf("one way through may take %v; the machine ends after %v", all, bound)
	}
}
