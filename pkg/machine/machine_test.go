package machine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/asl"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/machine"
)

func arns() map[string]string {
	return map[string]string{
		"ExtractFunctionArn": "extract", "TransformFunctionArn": "transform", "GateFunctionArn": "gate",
		"LoadFunctionArn": "load", "SettleFunctionArn": "settle",
	}
}

func load(t testing.TB) *asl.Machine {
	t.Helper()
	def, err := machine.Substitute(machine.Definition(), arns())
	if err != nil {
		t.Fatal(err)
	}
	m, err := asl.Parse(def)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestDefinitionNamesTheFunctions(t *testing.T) { // B14
	wanted := []string{"extract", "gate", "load", "settle", "transform"}
	if got := load(t).Resources(); !slices.Equal(got, wanted) {
		t.Errorf("Resources = %v, want %v", got, wanted)
	}
}

func TestDefinitionIsTheCallers(t *testing.T) {
	machine.Definition()[0] = 'x'
	if machine.Definition()[0] != '{' {
		t.Error("a caller changed the definition of another")
	}
}

func TestSubstitute(t *testing.T) {
	for _, tt := range []struct {
		name, def string
		values    map[string]string
		want      string
		faults    []string
	}{
		{"each", `{"a":"${A}","b":"x${B}${A}"}`, map[string]string{"A": "1", "B": "2"}, `{"a":"1","b":"x21"}`, nil},
		{"quoted for JSON", `{"a":"${A}"}`, map[string]string{"A": `"\`}, `{"a":"\"\\"}`, nil},
		{"not again in what was put in", `"${A}"`, map[string]string{"A": "${B}"}, `"${B}"`, nil},
		{"paths are left alone", `{"a.$":"$$.Execution.Id"}`, nil, `{"a.$":"$$.Execution.Id"}`, nil},
		{"no value", `"${A} ${B}"`, map[string]string{}, "", []string{"no value for ${A}", "no value for ${B}"}},
		{"nothing asks for it", `"${A}"`, map[string]string{"A": "1", "C": "2"}, "", []string{"there is no ${C}"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := machine.Substitute([]byte(tt.def), tt.values)
			for _, f := range tt.faults {
				if err == nil || !strings.Contains(err.Error(), f) {
					t.Errorf("got %v, want %q", err, f)
				}
			}
			if tt.faults == nil && (err != nil || string(got) != tt.want) {
				t.Errorf("got %s, %v; want %s", got, err, tt.want)
			}
		})
	}
}

// TestErrorNames holds every ErrorEquals against the list of kinds and the names AWS reserves.
func TestErrorNames(t *testing.T) { // R27
	reserved := []string{"States.ALL", "States.Timeout", "Lambda.", "Sandbox.Timedout", "Runtime.ExitError"}
	for _, name := range load(t).ErrorNames() {
		ours := etl.Kind(name).Known()
		theirs := slices.ContainsFunc(reserved, func(r string) bool {
			return name == r || strings.HasSuffix(r, ".") && strings.HasPrefix(name, r)
		})
		if ours == theirs {
			t.Errorf("%s: a kind of ours: %v, a reserved name: %v", name, ours, theirs)
		}
	}
}

// definition is what the tests look at that package asl keeps to itself.
type definition struct {
	TimeoutSeconds int
	Comment        string
	States         map[string]state
}

type state struct {
	Type  string
	Retry []struct {
		ErrorEquals    []string
		MaxAttempts    int
		JitterStrategy string
		MaxDelay       int `json:"MaxDelaySeconds"`
	}
	Catch         []struct{ Next string }
	ItemProcessor *struct{ States map[string]state }
}

func TestRetryRules(t *testing.T) { // R27
	var d definition
	if err := json.Unmarshal(machine.Definition(), &d); err != nil {
		t.Fatal(err)
	}
	if d.TimeoutSeconds == 0 || d.Comment == "" {
		t.Error("the machine has no time limit or no comment")
	}
	tasks := map[string]state{}
	for name, s := range d.States {
		if s.Type == "Task" {
			tasks[name] = s
		}
		if s.Type == "Map" {
			for name, inner := range s.ItemProcessor.States {
				if inner.Type == "Task" {
					tasks[name] = inner
				}
			}
		}
	}
	for _, name := range []string{"Extract", "TransformRange", "Gate", "LoadRange", "Settle", "RecordFailure"} {
		rules := tasks[name].Retry
		if len(rules) != 2 {
			t.Errorf("%s has %d retry rules, want 2: store and Lambda, and ends without an answer", name, len(rules))
			continue
		}
		for _, r := range rules {
			if r.JitterStrategy != "FULL" || r.MaxDelay == 0 {
				t.Errorf("%s: a rule without full jitter or a longest delay", name)
			}
			for _, e := range r.ErrorEquals {
				if k := etl.Kind(e); k.Known() && k != etl.StoreUnavailable && k != etl.StoreThrottled && k != etl.StageCrashed {
					t.Errorf("%s retries %s", name, e)
				}
			}
		}
		for _, e := range []string{"Sandbox.Timedout", "Lambda.Unknown", "Runtime.ExitError", "StageCrashed"} {
			if !slices.Contains(rules[1].ErrorEquals, e) || rules[1].MaxAttempts > 2 {
				t.Errorf("%s: %s is retried %d times, want at most 2", name, e, rules[1].MaxAttempts)
			}
		}
	}
	if s := tasks["Raise"]; s.Retry != nil || s.Catch != nil {
		t.Error("Raise has a Retry or a Catch")
	}
	extract, transform, loads := tasks["Extract"].Retry, tasks["TransformRange"].Retry, tasks["LoadRange"].Retry
	if fmt.Sprint(extract) == fmt.Sprint(transform) || fmt.Sprint(transform) == fmt.Sprint(loads) {
		t.Error("extract, transform and load share a rule")
	}
	for name, s := range d.States {
		if s.Type == "Fail" {
			t.Errorf("%s is a Fail: a redrive could never leave it", name)
		}
	}
}

// functions are the five stages on an imagined batch of 3 parts; a test scripts what they answer. Every payload is
// decoded strictly, as on Lambda.
type functions struct {
	mu      sync.Mutex
	extract []string         // answers in turn, the last one ever after
	gate    []string         // likewise
	fail    map[string]error // by stage: what it fails with
	raised  map[string]bool
	failure []etl.RecordFailureInput
	steps   []string // what was called, in order
	now     time.Time
	slept   []time.Duration
	history []asl.Event
}

func newFunctions() *functions {
	return &functions{
		extract: []string{landed},
		gate:    []string{passed},
		fail:    map[string]error{},
		raised:  map[string]bool{},
		now:     time.Date(2026, 11, 30, 11, 5, 0, 0, time.UTC),
	}
}

const (
	request = `{"pipeline":"orders","scheduled_time":"2026-11-30T11:05:00Z"}`
	common  = `"batch":"orders/20261130T100000Z","fence":3,"extraction":1,"attempts":0,"idle":0,"restarts":0,"retries":2,"waited_ms":1500`
	landed  = `{"status":"landed",` + common + `,"ranges":[{"first":0,"last":1},{"first":2,"last":2}]}`
	more    = `{"status":"more",` + common + `,"ranges":[]}`
	wait    = `{"status":"wait",` + common + `,"ranges":[],"resume_at":"2026-11-30T12:00:00Z","wait_began":"2026-11-30T11:05:00Z"}`
	busy    = `{"status":"busy",` + common + `,"ranges":[]}`
	done    = `{"status":"done",` + common + `,"ranges":[]}`
	bound   = `"binding":{"extraction":1,"revision":"3.1","contract":"ab12cd34"},"load":1`
	passed  = `{"status":"passed","stale":0,` + bound + `,"ranges":[{"first":0,"last":2}]}`
	stale   = `{"status":"stale","stale":1,"binding":{"extraction":0,"revision":"","contract":""},"load":0,"ranges":[]}`
)

func (f *functions) turn(answers *[]string) string {
	a := (*answers)[0]
	if len(*answers) > 1 {
		*answers = (*answers)[1:]
	}
	return a
}

func (f *functions) invoke(_ context.Context, resource string, in []byte) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out, err := f.answer(resource, in)
	if err != nil {
		var named *asl.Error
		if errors.As(err, &named) {
			return nil, named
		}
		return nil, &asl.Error{Name: string(etl.KindOf(err)), Cause: err.Error()}
	}
	if raw, ok := out.(string); ok {
		return []byte(raw), nil
	}
	return json.Marshal(out)
}

func (f *functions) answer(resource string, in []byte) (any, error) {
	step := func(s string, batch string, fence int) error {
		f.steps = append(f.steps, s)
		if batch != "orders/20261130T100000Z" || fence != 3 {
			return etl.Errorf(etl.Internal, "%s: batch %q, fence %d", s, batch, fence)
		}
		name, _, _ := strings.Cut(s, " ")
		return f.fail[name]
	}
	switch resource {
	case "extract":
		p, err := etl.Decode[etl.ExtractInput](in)
		if err != nil {
			return nil, err
		}
		if p.Execution != "arn:x" || p.Request.Pipeline != "orders" {
			return nil, etl.Errorf(etl.Internal, "extract got %s", in)
		}
		f.steps = append(f.steps, "extract "+string(p.Progress.Status))
		if err := f.fail["extract"]; err != nil {
			return nil, err
		}
		return f.turn(&f.extract), nil
	case "transform":
		p, err := etl.Decode[etl.RangeInput](in)
		if err != nil {
			return nil, err
		}
		if err := step(fmt.Sprintf("transform %d-%d", p.Range.First, p.Range.Last), p.Batch, p.Fence); err != nil {
			return nil, err
		}
		if p.Range.First < p.Range.Last { // one part a call
			return etl.RangeOutput{Status: etl.StatusMore, Range: etl.Range{First: p.Range.First + 1, Last: p.Range.Last}}, nil
		}
		return etl.RangeOutput{Status: etl.StatusDone, Range: p.Range}, nil
	case "gate":
		p, err := etl.Decode[etl.GateInput](in)
		if err != nil {
			return nil, err
		}
		if err := step(fmt.Sprintf("gate %d", p.Stale), p.Batch, p.Fence); err != nil {
			return nil, err
		}
		return f.turn(&f.gate), nil
	case "load":
		p, err := etl.Decode[etl.LoadInput](in)
		if err != nil {
			return nil, err
		}
		if err := step(fmt.Sprintf("load %d-%d@%d", p.Position.Range.First, p.Position.Range.Last, p.Position.Row), p.Batch, p.Fence); err != nil {
			return nil, err
		}
		if p.Binding.Contract != "ab12cd34" || p.Load != 1 {
			return nil, etl.Errorf(etl.Internal, "load got %s", in)
		}
		if p.Position.Row == 0 {
			p.Position.Row, p.Position.Counts.New = 500, 500
			return etl.LoadOutput{Status: etl.StatusMore, Position: p.Position}, nil
		}
		return etl.LoadOutput{Status: etl.StatusDone, Position: p.Position}, nil
	}
	return f.settle(in, step)
}

func (f *functions) settle(in []byte, step func(string, string, int) error) (any, error) {
	var op struct{ Op string }
	if err := json.Unmarshal(in, &op); err != nil {
		return nil, err
	}
	switch op.Op {
	case etl.OpSettle:
		p, err := etl.Decode[etl.SettleInput](in)
		if err != nil {
			return nil, err
		}
		if err := step("settle", p.Batch, p.Fence); err != nil {
			return nil, err
		}
		return etl.SettleOutput{Status: etl.StatusCompleted, Counts: etl.Counts{Records: 1000}}, nil
	case etl.OpRecordFailure:
		p, err := etl.Decode[etl.RecordFailureInput](in)
		if err != nil {
			return nil, err
		}
		f.steps = append(f.steps, "record "+string(p.Stage)+" "+p.Error.Error)
		f.failure = append(f.failure, p)
		if err := f.fail["record"]; err != nil {
			return nil, err
		}
		return etl.Failure{Status: etl.StatusRecorded, PK: "orders/20261130T100000Z", ID: etl.FailureID(p.Execution, p.Entered)}, nil
	}
	p, err := etl.Decode[etl.RaiseInput](in)
	if err != nil {
		return nil, err
	}
	f.steps = append(f.steps, "raise")
	if f.raised[p.Failure.ID] {
		return etl.RaiseOutput{Status: etl.StatusRaised}, nil
	}
	f.raised[p.Failure.ID] = true
	last := f.failure[len(f.failure)-1]
	return nil, &asl.Error{Name: last.Error.Error, Cause: last.Error.Cause}
}

func (f *functions) options() asl.Options {
	return asl.Options{
		Invoke: f.invoke,
		Record: func(_ context.Context, e asl.Event) error { f.history = append(f.history, e); return nil },
		Now:    func() time.Time { f.mu.Lock(); defer f.mu.Unlock(); return f.now },
		Sleep: func(_ context.Context, d time.Duration) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.now, f.slept = f.now.Add(d), append(f.slept, d)
			return nil
		},
		Rand:        func() float64 { return 1 },
		Concurrency: 1,
	}
}

func (f *functions) run(t *testing.T) asl.Result {
	t.Helper()
	res, err := load(t).Run(t.Context(), asl.Execution{ID: "arn:x", Input: json.RawMessage(request)}, f.options())
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func (f *functions) redrive(t *testing.T) asl.Result {
	t.Helper()
	res, err := load(t).Redrive(t.Context(), asl.Execution{ID: "arn:x"}, slices.Clone(f.history), f.options())
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func (f *functions) wantSteps(t *testing.T, wanted ...string) {
	t.Helper()
	if !slices.Equal(f.steps, wanted) {
		t.Errorf("called\n %s\nwant\n %s", strings.Join(f.steps, ", "), strings.Join(wanted, ", "))
	}
}

// transformed is Transform over the three parts, then what follows.
func transformed(then ...string) []string {
	return append([]string{"transform 0-1", "transform 1-1", "transform 2-2"}, then...)
}

// loaded is the rest of the good way once Gate has passed.
func loaded() []string { return []string{"load 0-2@0", "load 0-2@500", "settle"} }

func TestEdges(t *testing.T) {
	for _, tt := range []struct {
		name  string
		setup func(*functions)
		state string
		slept []time.Duration
		steps []string
	}{
		{"landed, passed", func(*functions) {}, "Completed", nil,
			slices.Concat([]string{"extract more"}, transformed("gate 0"), loaded())},
		{"more", func(f *functions) { f.extract = []string{more, landed} }, "Completed", nil,
			slices.Concat([]string{"extract more", "extract more"}, transformed("gate 0"), loaded())},
		{"wait", func(f *functions) { f.extract = []string{wait, landed} }, "Completed", []time.Duration{55 * time.Minute},
			slices.Concat([]string{"extract more", "extract wait"}, transformed("gate 0"), loaded())},
		{"busy", func(f *functions) { f.extract = []string{busy} }, "Busy", nil, []string{"extract more"}},
		{"done", func(f *functions) { f.extract = []string{done} }, "Done", nil, []string{"extract more"}},
		{"nothing to transform", func(f *functions) { f.extract = []string{strings.Replace(done, `"done"`, `"landed"`, 1)} }, "Completed", nil,
			slices.Concat([]string{"extract more", "gate 0"}, loaded())},
		{"stale", func(f *functions) { f.gate = []string{stale, passed} }, "Completed", nil,
			slices.Concat([]string{"extract more"}, transformed("gate 0"), transformed("gate 1"), loaded())},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFunctions()
			tt.setup(f)
			res := f.run(t)
			if res.Status != asl.Succeeded || res.State != tt.state {
				t.Fatalf("got %s in %s (%s: %s)", res.Status, res.State, res.Error, res.Cause)
			}
			f.wantSteps(t, tt.steps...)
			if !slices.Equal(f.slept, tt.slept) {
				t.Errorf("slept %v, want %v", f.slept, tt.slept)
			}
		})
	}
}

func TestOutputIsTheWholeState(t *testing.T) {
	res := newFunctions().run(t)
	var out struct {
		Execution string
		Request   etl.Request
		Extract   etl.Progress
		Gate      etl.GateOutput
		Settle    etl.SettleOutput
	}
	if err := json.Unmarshal(res.Output, &out); err != nil {
		t.Fatal(err)
	}
	if out.Execution != "arn:x" || out.Request.Pipeline != "orders" || out.Extract.Retries != 2 || out.Gate.Binding.Contract != "ab12cd34" || out.Settle.Counts.Records != 1000 {
		t.Errorf("got %s", res.Output)
	}
}

func TestUnknownStatusFailsLoudly(t *testing.T) { // R11
	f := newFunctions()
	f.extract = []string{strings.Replace(more, `"more"`, `"maybe"`, 1)}
	if res := f.run(t); res.Status != asl.Failed || res.Error != "States.NoChoiceMatched" || res.State != "AfterExtract" {
		t.Errorf("got %+v", res)
	}
}

// TestFailureAndRedrive has each stage fail: the failure is recorded and raised under its own name, and a redrive goes
// back to that stage and no further.
func TestFailureAndRedrive(t *testing.T) { // R11, R28
	before := map[string][]string{"extract": nil}
	before["transform"] = []string{"extract more"}
	before["gate"] = slices.Concat(before["transform"], transformed())
	before["load"] = slices.Concat(before["gate"], []string{"gate 0"})
	before["settle"] = slices.Concat(before["load"], []string{"load 0-2@0", "load 0-2@500"})
	first := map[string]string{"extract": "extract more", "transform": "transform 0-1", "gate": "gate 0", "load": "load 0-2@0", "settle": "settle"}
	whole := slices.Concat(before["settle"], []string{"settle"})
	for stage := range before {
		t.Run(stage, func(t *testing.T) {
			f := newFunctions()
			f.fail[stage] = etl.Errorf(etl.SourceRejected, "no entry") // any kind that is not retried
			res := f.run(t)
			if res.Status != asl.Failed || res.Error != string(etl.SourceRejected) || res.Cause != "no entry" || res.State != "Raise" {
				t.Fatalf("got %+v", res)
			}
			f.wantSteps(t, slices.Concat(before[stage], []string{first[stage], "record " + stage + " SourceRejected", "raise"})...)
			if p := f.failure[0]; p.Execution != "arn:x" || p.Request.ScheduledTime != "2026-11-30T11:05:00Z" || p.Entered == "" {
				t.Errorf("recorded %+v", p)
			}

			f.steps = nil
			if res := f.redrive(t); res.Status != asl.Failed || res.Error != string(etl.SourceRejected) || res.State != "Raise" {
				t.Fatalf("redriven with the cause still there: %+v", res)
			}
			f.wantSteps(t, "raise", first[stage], "record "+stage+" SourceRejected", "raise")
			if f.failure[0].Entered == f.failure[1].Entered {
				t.Error("two failures have one id")
			}

			f.steps = nil
			delete(f.fail, stage)
			if res := f.redrive(t); res.Status != asl.Succeeded || res.State != "Completed" {
				t.Fatalf("redriven with the cause gone: %+v", res)
			}
			f.wantSteps(t, slices.Concat([]string{"raise"}, whole[len(before[stage]):])...)
		})
	}
}

// TestRecordFailureDies needs a redrive more: the first one records, the second goes back.
func TestRecordFailureDies(t *testing.T) {
	f := newFunctions()
	f.fail["gate"] = etl.Errorf(etl.CheckFailed, "too few")
	f.fail["record"] = &asl.Error{Name: "Runtime.ExitError"}
	if res := f.run(t); res.Status != asl.Failed || res.Error != "Runtime.ExitError" || res.State != "RecordFailure" {
		t.Fatalf("got %+v", res)
	}
	delete(f.fail, "record")
	delete(f.fail, "gate")
	if res := f.redrive(t); res.Status != asl.Failed || res.Error != "CheckFailed" || res.State != "Raise" {
		t.Fatalf("got %+v", res)
	}
	if res := f.redrive(t); res.Status != asl.Succeeded {
		t.Fatalf("got %+v", res)
	}
}

// TestRetriedNames counts the calls of each stage under each name.
func TestRetriedNames(t *testing.T) { // R2, R27
	retried := map[string]int{
		"StoreUnavailable": 5, "StoreThrottled": 5, "Lambda.ServiceException": 5, "Lambda.AWSLambdaException": 5, "Lambda.SdkClientException": 5,
		"Lambda.ClientExecutionTimeoutException": 5, "Lambda.TooManyRequestsException": 5,
		"Sandbox.Timedout": 2, "Lambda.Unknown": 2, "Runtime.ExitError": 2, "StageCrashed": 2, "States.Timeout": 2,
	}
	names := slices.Collect(maps.Keys(retried))
	for _, k := range etl.Kinds() {
		if _, ok := retried[string(k.Kind)]; !ok {
			names = append(names, string(k.Kind))
		}
	}
	for _, stage := range []string{"extract", "transform", "gate", "load", "settle"} {
		for _, name := range names {
			t.Run(stage+" "+name, func(t *testing.T) {
				f := newFunctions()
				f.fail[stage] = &asl.Error{Name: name, Cause: "why"}
				if res := f.run(t); res.Status != asl.Failed || res.Error != name || res.State != "Raise" {
					t.Fatalf("got %+v", res)
				}
				wanted := 1 + retried[name]
				if stage == "load" && retried[name] == 5 {
					wanted = 9 // a throttled table takes longer to recover
				}
				calls := 0
				for _, s := range f.steps {
					if strings.HasPrefix(s, stage) {
						calls++
					}
				}
				if calls != wanted {
					t.Errorf("called %d times, want %d", calls, wanted)
				}
			})
		}
	}
}

// TestKilledAnywhere cuts the history after each event of a failing, redriven execution, and redrives it to the end.
func TestKilledAnywhere(t *testing.T) { // R17, R28
	script := func() *functions {
		f := newFunctions()
		f.gate = []string{stale, passed}
		return f
	}
	f := script()
	whole := f.run(t)
	if whole.Status != asl.Succeeded {
		t.Fatalf("got %+v", whole)
	}
	for n := 1; n < len(f.history); n++ {
		g := script()
		g.history = slices.Clone(f.history[:n])
		for _, e := range g.history {
			if e.Type == asl.TaskStateExited && e.State == "Gate" {
				g.gate = []string{passed} // it has said stale
			}
		}
		if res := g.redrive(t); res.Status != asl.Succeeded || string(res.Output) != string(whole.Output) {
			t.Fatalf("cut after %d (%s %s): got %+v\nwant %s", n, f.history[n-1].Type, f.history[n-1].State, res, whole.Output)
		}
		if calls := len(g.steps); calls > len(f.steps) {
			t.Fatalf("cut after %d: %d calls, the whole execution made %d", n, calls, len(f.steps))
		}
	}
}

// TestLargestPayloadsFit runs the most ranges a batch may have, with long ids and the longest cause Step Functions keeps.
func TestLargestPayloadsFit(t *testing.T) {
	f := newFunctions()
	ranges, err := json.Marshal(etl.Ranges(100000 * etl.MaxRanges))
	if err != nil {
		t.Fatal(err)
	}
	f.extract = []string{`{"status":"landed",` + common + `,"ranges":` + string(ranges) + `}`}
	f.gate = []string{`{"status":"passed","stale":0,` + bound + `,"ranges":` + string(ranges) + `}`}
	f.fail["transform"] = &asl.Error{Name: "CheckFailed", Cause: strings.Repeat("\"", 32768)}
	if res := f.run(t); res.State != "Raise" || res.Error != "CheckFailed" {
		t.Fatalf("got %s in %s: %s", res.Status, res.State, res.Error)
	}
	for _, e := range f.history {
		if n := max(len(e.Input), len(e.Output)); n > asl.PayloadLimit/2 {
			t.Fatalf("event %d carries %d bytes", e.ID, n)
		}
	}
}

// TestLargestHistoryFits counts the events of the most ranges, transformed three times more because of stale answers.
func TestLargestHistoryFits(t *testing.T) {
	f := newFunctions()
	ranges := make([]etl.Range, etl.MaxRanges)
	for i := range ranges {
		ranges[i] = etl.Range{First: 2 * i, Last: 2*i + 1} // two calls each
	}
	b, err := json.Marshal(ranges)
	if err != nil {
		t.Fatal(err)
	}
	f.extract = []string{`{"status":"landed",` + common + `,"ranges":` + string(b) + `}`}
	f.gate = []string{stale, stale, stale, `{"status":"passed","stale":0,` + bound + `,"ranges":` + string(b) + `}`}
	if res := f.run(t); res.Status != asl.Succeeded {
		t.Fatalf("got %+v", res)
	}
	if len(f.history) > asl.HistoryLimit*4/5 {
		t.Errorf("%d events", len(f.history))
	}
}
