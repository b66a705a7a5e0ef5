package asl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/asl"
)

// cut drops the history after the last event of this type and state, as a killed process leaves it.
func (w *world) cut(t *testing.T, eventType, state string) {
	t.Helper()
	for i, e := range slices.Backward(w.history) {
		if e.Type == eventType && e.State == state {
			w.history = w.history[:i+1]
			return
		}
	}
	t.Fatalf("no %s of %s to cut after", eventType, state)
}

func TestRedriveTask(t *testing.T) { // R28
	m := parse(t, `{"StartAt":"P","States":{"P":{"Type":"Pass","Parameters":{"at.$":"$$.State.EnteredTime"},"ResultPath":"$.p","Next":"A"},
	 "A":{"Type":"Task","Resource":"a","ResultPath":"$.a","Next":"B"},
	 "B":{"Type":"Task","Resource":"b","Parameters":{"a.$":"$.a","at.$":"$$.State.EnteredTime","n.$":"$$.Execution.RedriveCount","start.$":"$$.Execution.StartTime","in.$":"$$.Execution.Input"},"ResultPath":"$.b",
	  "Retry":[{"ErrorEquals":["T"],"MaxAttempts":1}],"End":true}}}`)
	w := newWorld(map[string]function{"a": answer(`1`), "b": inTurn(refuse("T"), refuse("T"), refuse("T"), answer(`2`))})
	wantFailed(t, w.run(t, m, `{"x":1}`), "T", "B")
	w.now = w.now.Add(time.Hour)
	res := w.redrive(t, m)
	want(t, res, asl.Succeeded, `{"a":1,"b":2,"p":{"at":"2026-11-30T10:00:00.000000001Z"},"x":1}`)
	if w.called("a") != 1 || w.called("b") != 4 {
		t.Errorf("a called %d times, b %d: want 1 and 4 (the retry counter starts anew)", w.called("a"), w.called("b"))
	}
	if w.count(asl.PassStateEntered, "P") != 1 || w.count(asl.TaskStateEntered, "B") != 1 {
		t.Error("a state was entered twice")
	}
	var first, last struct {
		A         int
		At, Start string
		N         int
		In        json.RawMessage
	}
	for i, into := range map[int]any{1: &first, len(w.calls) - 1: &last} {
		if err := json.Unmarshal([]byte(strings.TrimPrefix(w.calls[i], "b ")), into); err != nil {
			t.Fatal(err)
		}
	}
	if first.N != 0 || last.N != 1 || first.Start != last.Start || string(last.In) != `{"x":1}` || last.A != 1 {
		t.Errorf("first %+v, after the redrive %+v", first, last)
	}
	if last.At <= first.At || !strings.HasPrefix(last.At, "2026-11-30T11:") {
		t.Errorf("entered %s and again %s: not fresh", first.At, last.At)
	}
	if _, err := m.Redrive(t.Context(), asl.Execution{}, w.history, w.options()); !errors.Is(err, asl.ErrNotRedrivable) {
		t.Errorf("redrive of what succeeded: %v", err)
	}
}

func TestEnteredTimesNeverRepeat(t *testing.T) {
	// The clock stands still: two failures of one task must still be two.
	m := parse(t, one(`"Type":"Task","Resource":"f","Parameters":{"at.$":"$$.State.EnteredTime"},"Next":"E"`))
	w := newWorld(map[string]function{"f": refuse("A")})
	wantFailed(t, w.run(t, m, `{}`), "A", "S")
	wantFailed(t, w.redrive(t, m), "A", "S")
	wantFailed(t, w.redrive(t, m), "A", "S")
	if w.calls[0] == w.calls[1] || w.calls[1] == w.calls[2] {
		t.Errorf("entered at the same time: %v", w.calls)
	}
	if w.count(asl.ExecutionRedriven, "") != 2 {
		t.Error("two redrives are not in the history")
	}
}

func TestRedriveChoice(t *testing.T) {
	m := parse(t, `{"StartAt":"S","States":{"S":{"Type":"Choice","Choices":[{"Variable":"$.a","StringEquals":"x","Next":"E"}]},"E":{"Type":"Succeed"}}}`)
	w := newWorld(nil)
	wantFailed(t, w.run(t, m, `{"a":"?"}`), "States.NoChoiceMatched", "S")
	wantFailed(t, w.redrive(t, m), "States.NoChoiceMatched", "S")
	for _, at := range []string{asl.ChoiceStateEntered, asl.ChoiceStateExited} {
		w := newWorld(nil)
		want(t, w.run(t, m, `{"a":"x"}`), asl.Succeeded, "")
		w.cut(t, at, "S")
		want(t, w.redrive(t, m), asl.Succeeded, `{"a":"x"}`)
		if w.count(asl.ChoiceStateExited, "S") != 1 {
			t.Errorf("cut after %s: exited %d times", at, w.count(asl.ChoiceStateExited, "S"))
		}
	}
}

func TestRedriveWait(t *testing.T) {
	m := parse(t, one(`"Type":"Wait","TimestampPath":"$.at","Next":"E"`))
	for _, tt := range []struct {
		name  string
		later time.Duration
		slept []time.Duration
	}{
		{"passed meanwhile", 2 * time.Hour, nil},
		{"still to come", 15 * time.Minute, []time.Duration{45 * time.Minute}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(nil)
			want(t, w.run(t, m, `{"at":"2026-11-30T11:00:00Z"}`), asl.Succeeded, "")
			w.cut(t, asl.WaitStateEntered, "S")
			w.now, w.slept = w.history[0].Time.Add(tt.later), nil
			want(t, w.redrive(t, m), asl.Succeeded, `{"at":"2026-11-30T11:00:00Z"}`)
			if !slices.Equal(w.slept, tt.slept) {
				t.Errorf("slept %v, want %v", w.slept, tt.slept)
			}
		})
	}
}

func TestRedriveAfterTimeLimitAndAbort(t *testing.T) {
	m := parse(t, `{"StartAt":"S","TimeoutSeconds":10,"States":{"S":{"Type":"Wait","TimestampPath":"$.at","End":true}}}`)
	w := newWorld(nil)
	if res := w.run(t, m, `{"at":"2026-11-30T10:00:15Z"}`); res.Status != asl.TimedOut {
		t.Fatalf("got %+v", res)
	}
	want(t, w.redrive(t, m), asl.Succeeded, "") // the limit starts anew
	if !slices.Equal(w.slept, []time.Duration{10 * time.Second, 5 * time.Second}) {
		t.Errorf("slept %v", w.slept)
	}

	ctx, cancel := context.WithCancel(t.Context())
	w = newWorld(map[string]function{"f": inTurn(func(ctx context.Context, _ string) (string, error) { cancel(); return "", ctx.Err() }, answer(`7`))})
	m = parse(t, one(`"Type":"Task","Resource":"f","Next":"E"`))
	if res, err := m.Run(ctx, w.execution(`{}`), w.options()); err != nil || res.Status != asl.Aborted {
		t.Fatalf("got %+v, %v", res, err)
	}
	want(t, w.redrive(t, m), asl.Succeeded, `7`)
}

const raiser = `{"StartAt":"Stage","States":{
 "Stage":{"Type":"Task","Resource":"stage","ResultPath":"$.r","Catch":[{"ErrorEquals":["States.ALL"],"ResultPath":"$.error","Next":"Record"}],"Next":"End"},
 "Record":{"Type":"Task","Resource":"record","Parameters":{"id.$":"$$.State.EnteredTime"},"ResultPath":"$.failure","Next":"Raise"},
 "Raise":{"Type":"Task","Resource":"raise","Parameters":{"failure.$":"$.failure","error.$":"$.error"},"ResultPath":"$.raised","Next":"Stage"},
 "End":{"Type":"Pass","Parameters":{"r.$":"$.r"},"End":true}}}`

// raising records failures, and raises each just once.
func raising(stage function) map[string]function {
	raised := map[string]bool{}
	return map[string]function{
		"stage":  stage,
		"record": func(_ context.Context, in string) (string, error) { return in, nil },
		"raise": func(_ context.Context, in string) (string, error) {
			var p struct {
				Failure struct{ ID string }
				Error   struct{ Error, Cause string }
			}
			if err := json.Unmarshal([]byte(in), &p); err != nil {
				return "", err
			}
			if raised[p.Failure.ID] {
				return `"raised"`, nil
			}
			raised[p.Failure.ID] = true
			return "", &asl.Error{Name: p.Error.Error, Cause: p.Error.Cause}
		},
	}
}

// TestRedriveRaise is why a Catch here ends in a task that fails, and not in Fail: the redrive goes back to the stage.
func TestRedriveRaise(t *testing.T) { // R28
	m := parse(t, raiser)
	w := newWorld(raising(inTurn(refuse("A"), refuse("B"), answer(`1`))))
	wantFailed(t, w.run(t, m, `{}`), "A", "Raise")
	wantFailed(t, w.redrive(t, m), "B", "Raise") // another failure is raised again
	want(t, w.redrive(t, m), asl.Succeeded, `{"r":1}`)
	for resource, n := range map[string]int{"stage": 3, "record": 2, "raise": 4} {
		if w.called(resource) != n {
			t.Errorf("%s called %d times, want %d", resource, w.called(resource), n)
		}
	}
}

func TestRedriveCaughtTaskLeavesByItsCatch(t *testing.T) {
	m := parse(t, raiser)
	w := newWorld(raising(inTurn(refuse("A"), answer(`1`))))
	wantFailed(t, w.run(t, m, `{}`), "A", "Raise")
	w.cut(t, asl.TaskStateExited, "Stage") // killed between the Catch and what follows
	wantFailed(t, w.redrive(t, m), "A", "Raise")
	if w.called("stage") != 1 || w.called("record") != 2 {
		t.Errorf("the stage was called %d times, record %d: want 1 and 2", w.called("stage"), w.called("record"))
	}
	want(t, w.redrive(t, m), asl.Succeeded, `{"r":1}`)
}

func TestRedriveRetriedTaskLeavesByItsNext(t *testing.T) {
	m := parse(t, raiserWithRetry())
	w := newWorld(raising(inTurn(refuse("A"), answer(`1`))))
	want(t, w.run(t, m, `{}`), asl.Succeeded, `{"r":1}`)
	w.cut(t, asl.TaskStateExited, "Stage")
	want(t, w.redrive(t, m), asl.Succeeded, `{"r":1}`)
	if w.called("stage") != 2 || w.called("record") != 0 {
		t.Errorf("the stage was called %d times, record %d: want 2 and 0", w.called("stage"), w.called("record"))
	}
}

func raiserWithRetry() string {
	return strings.Replace(raiser, `"Catch"`, `"Retry":[{"ErrorEquals":["A"]}],"Catch"`, 1)
}

const mapping = `{"StartAt":"M","States":{"M":{"Type":"Map","ItemsPath":"$.items","MaxConcurrency":1,"ItemSelector":{"v.$":"$$.Map.Item.Value"},"ItemProcessor":{"ProcessorConfig":{"Mode":"INLINE"},"StartAt":"A","States":{
 "A":{"Type":"Task","Resource":"a","Parameters":{"v.$":"$.v"},"ResultPath":"$.a","Next":"B"},
 "B":{"Type":"Task","Resource":"b","Parameters":{"v.$":"$.v"},"ResultPath":"$.b","End":true}}},"ResultPath":"$.r","End":true}}}`

// TestRedriveMap has iteration 1 of 4 fail in its second state.
func TestRedriveMap(t *testing.T) {
	m := parse(t, mapping)
	broken := true
	w := newWorld(map[string]function{"a": answer(`"a"`), "b": func(_ context.Context, in string) (string, error) {
		if broken && in == `{"v":1}` {
			return "", &asl.Error{Name: "A"}
		}
		return `"b"`, nil
	}})
	wantFailed(t, w.run(t, m, `{"items":[0,1,2,3]}`), "A", "M")
	wantFailed(t, w.redrive(t, m), "A", "M")
	broken, w.calls = false, nil
	want(t, w.redrive(t, m), asl.Succeeded, `{"items":[0,1,2,3],"r":[{"a":"a","b":"b","v":0},{"a":"a","b":"b","v":1},{"a":"a","b":"b","v":2},{"a":"a","b":"b","v":3}]}`)
	wanted := []string{`b {"v":1}`, `a {"v":2}`, `b {"v":2}`, `a {"v":3}`, `b {"v":3}`}
	if !slices.Equal(w.calls, wanted) {
		t.Errorf("called %q, want %q: succeeded iterations are kept, the failed one goes on where it failed", w.calls, wanted)
	}
	if w.count(asl.MapStateEntered, "M") != 1 || w.count(asl.MapIterationStarted, "M") != 4 {
		t.Error("the Map or an iteration was started twice")
	}
}

func TestRedriveMapAnewAfterDataLimit(t *testing.T) {
	m := parse(t, mapping)
	w := newWorld(map[string]function{"a": answer(`"a"`), "b": inTurn(answer(`"b"`), answer(big(asl.PayloadLimit+1)), answer(`"b"`))})
	wantFailed(t, w.run(t, m, `{"items":[0,1]}`), "States.DataLimitExceeded", "M")
	w.calls = nil
	want(t, w.redrive(t, m), asl.Succeeded, "")
	if wanted := []string{`a {"v":0}`, `b {"v":0}`, `a {"v":1}`, `b {"v":1}`}; !slices.Equal(w.calls, wanted) {
		t.Errorf("called %q, want %q: the whole state runs again", w.calls, wanted)
	}
}

// TestCaughtMapRunsAllItemsAgain is the other way a Map comes to run after a redrive: its failure was caught, so it has
// exited, and going back to it enters it anew.
func TestCaughtMapRunsAllItemsAgain(t *testing.T) {
	m := parse(t, `{"StartAt":"M","States":{"M":{"Type":"Map","ItemsPath":"$.items","MaxConcurrency":1,"ItemProcessor":{"ProcessorConfig":{"Mode":"INLINE"},"StartAt":"A","States":{"A":{"Type":"Task","Resource":"stage","End":true}}},
	 "ResultPath":null,"Catch":[{"ErrorEquals":["States.ALL"],"ResultPath":"$.error","Next":"Record"}],"Next":"E"},
	 "Record":{"Type":"Task","Resource":"record","Parameters":{"id.$":"$$.State.EnteredTime"},"ResultPath":"$.failure","Next":"Raise"},
	 "Raise":{"Type":"Task","Resource":"raise","Parameters":{"failure.$":"$.failure","error.$":"$.error"},"ResultPath":"$.raised","Next":"M"},"E":{"Type":"Succeed"}}}`)
	w := newWorld(raising(inTurn(answer(`1`), refuse("A"), answer(`1`))))
	wantFailed(t, w.run(t, m, `{"items":[0,1]}`), "A", "Raise")
	want(t, w.redrive(t, m), asl.Succeeded, "")
	if w.called("stage") != 4 || w.count(asl.MapStateEntered, "M") != 2 {
		t.Errorf("called %d times, entered %d", w.called("stage"), w.count(asl.MapStateEntered, "M"))
	}
	// Killed in the second visit: what the first visit knew does not count.
	w.cut(t, asl.MapStateEntered, "M")
	want(t, w.redrive(t, m), asl.Succeeded, "")
	if w.called("stage") != 6 {
		t.Errorf("called %d times, want 6", w.called("stage"))
	}
}

// everything loops, waits, catches a task's and a Map's failure, and maps; its functions are pure.
const everything = `{"StartAt":"P","States":{
 "P":{"Type":"Pass","Result":"0","ResultPath":"$.n","Next":"T"},
 "T":{"Type":"Task","Resource":"next","Parameters":{"n.$":"$.n"},"ResultPath":"$.n","Retry":[{"ErrorEquals":["R"],"MaxAttempts":1}],"Catch":[{"ErrorEquals":["States.ALL"],"ResultPath":"$.error","Next":"F"}],"Next":"C"},
 "F":{"Type":"Pass","Result":"3","ResultPath":"$.n","Next":"C"},
 "C":{"Type":"Choice","Choices":[{"Variable":"$.n","StringEquals":"1","Next":"T"},{"Variable":"$.n","StringEquals":"2","Next":"W"},{"Variable":"$.n","StringEquals":"3","Next":"M"}]},
 "W":{"Type":"Wait","TimestampPath":"$.at","Next":"T"},
 "M":{"Type":"Map","ItemsPath":"$.items","MaxConcurrency":2,"ItemSelector":{"n.$":"$$.Map.Item.Value"},"ItemProcessor":{"ProcessorConfig":{"Mode":"INLINE"},"StartAt":"I","States":{
  "I":{"Type":"Task","Resource":"next","ResultPath":"$.n","Next":"J"},
  "J":{"Type":"Choice","Choices":[{"Variable":"$.n","StringEquals":"1","Next":"I"},{"Variable":"$.n","StringEquals":"2","Next":"K"}]},
  "K":{"Type":"Pass","Parameters":{"k.$":"$.n"},"End":true}}},"ResultPath":"$.m","Next":"N"},
 "N":{"Type":"Map","ItemsPath":"$.items","MaxConcurrency":1,"ItemSelector":{"n":"2"},"ItemProcessor":{"ProcessorConfig":{"Mode":"INLINE"},"StartAt":"O","States":{"O":{"Type":"Task","Resource":"next","End":true}}},
  "Catch":[{"ErrorEquals":["X"],"ResultPath":null,"Next":"E"}],"End":true},
 "E":{"Type":"Succeed"}}}`

func next(_ context.Context, in string) (string, error) {
	var p struct{ N string }
	if err := json.Unmarshal([]byte(in), &p); err != nil {
		return "", err
	}
	switch p.N {
	case "0":
		return `"1"`, nil
	case "1":
		return `"2"`, nil
	}
	return "", &asl.Error{Name: "X", Cause: "n is " + p.N}
}

// stays counts how often each state was entered and exited, by iteration.
func stays(history []asl.Event) map[string]int {
	n := map[string]int{}
	for _, e := range history {
		if strings.Contains(e.Type, "StateE") || e.Type == asl.MapIterationStarted || e.Type == asl.MapIterationSucceeded {
			n[e.Path+" "+e.State+" "+e.Type]++
		}
	}
	return n
}

// TestKilledAnywhere cuts the history after each event, redrives, kills that again and redrives to the end. The output
// and the stays in states are always those of the undisturbed execution: nothing exited runs again, nothing is left out.
func TestKilledAnywhere(t *testing.T) { // R17, R28
	m := parse(t, everything)
	functions := map[string]function{"next": next}
	const input = `{"at":"2026-11-30T10:30:00Z","items":["0","1","0"]}`
	whole := newWorld(functions)
	res := whole.run(t, m, input)
	want(t, res, asl.Succeeded, "")
	for n := 1; n < len(whole.history); n++ {
		w := newWorld(functions)
		w.history = slices.Clone(whole.history[:n])
		w.failAt = int64(n + 1 + n%11) // the second death
		_, err := m.Redrive(t.Context(), asl.Execution{ID: "arn:x"}, slices.Clone(w.history), w.options())
		if err != nil && !errors.Is(err, errDisk) {
			t.Fatalf("cut after %d: %v", n, err)
		}
		if err != nil {
			w.failAt = 0
			again := w.redrive(t, m)
			want(t, again, asl.Succeeded, string(res.Output))
			if again.State != res.State {
				t.Fatalf("cut after %d: ended in %q, want %q", n, again.State, res.State)
			}
		}
		if got, wanted := stays(w.history), stays(whole.history); !maps.Equal(got, wanted) {
			t.Fatalf("cut after event %d (%s %s):\n got %v\nwant %v", n, whole.history[n-1].Type, whole.history[n-1].State, got, wanted)
		}
		for i, e := range w.history {
			if e.ID != int64(i+1) || i > 0 && !e.Time.After(w.history[i-1].Time) {
				t.Fatalf("cut after %d: event %d has id %d and time %v", n, i, e.ID, e.Time)
			}
		}
	}
}

func TestRedriveRefusesABrokenHistory(t *testing.T) {
	m := parse(t, raiser)
	started := asl.Event{ID: 1, Type: asl.ExecutionStarted, Input: json.RawMessage(`{}`)}
	entered := asl.Event{ID: 2, Type: asl.TaskStateEntered, State: "Stage", Input: json.RawMessage(`{}`)}
	for _, tt := range []struct {
		name    string
		history []asl.Event
		want    string
		broken  bool
	}{
		{"input lost at the start", []asl.Event{{ID: 1, Type: asl.ExecutionStarted}}, "not JSON", true},
		{"empty", nil, "does not begin with ExecutionStarted", false},
		{"no beginning", []asl.Event{entered}, "does not begin with ExecutionStarted", false},
		{"succeeded", []asl.Event{started, {ID: 2, Type: asl.ExecutionSucceeded}}, "it succeeded", false},
		{"a state of another machine", []asl.Event{started, {ID: 2, Type: asl.TaskStateEntered, State: "X"}}, `event 2: the state machine has no state "X"`, true},
		{"input lost", []asl.Event{started, {ID: 2, Type: asl.TaskStateEntered, State: "Stage"}}, "event 2: payload", true},
		{"output lost", []asl.Event{started, entered, {ID: 3, Type: asl.TaskStateExited, State: "Stage"}}, "event 3: payload", true},
		{"an exit without a catch", []asl.Event{started, {ID: 2, Type: asl.TaskStateEntered, State: "Raise", Input: json.RawMessage(`{}`)},
			{ID: 3, Type: asl.TaskFailed, State: "Raise", Error: "A"}, {ID: 4, Type: asl.TaskStateExited, State: "Raise", Output: json.RawMessage(`{}`)}}, "event 4: state Raise exited after A", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(nil)
			_, err := m.Redrive(t.Context(), asl.Execution{ID: "arn:x"}, tt.history, w.options())
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "arn:x") {
				t.Fatalf("got %v, want %q", err, tt.want)
			}
			if errors.Is(err, asl.ErrNotRedrivable) == tt.broken {
				t.Errorf("%v: ErrNotRedrivable is wrong", err)
			}
			if len(w.calls) != 0 || len(w.history) != 0 {
				t.Errorf("called %v, recorded %v", w.calls, w.history)
			}
		})
	}
}

func TestRedriveRecordFails(t *testing.T) {
	m := parse(t, raiser)
	w := newWorld(raising(refuse("A")))
	wantFailed(t, w.run(t, m, `{}`), "A", "Raise")
	w.failAt = int64(len(w.history) + 1)
	_, err := m.Redrive(t.Context(), asl.Execution{ID: "arn:x"}, w.history, w.options())
	if !errors.Is(err, errDisk) {
		t.Fatal(err)
	}
	if fmt.Sprint(w.called("raise")) != "1" {
		t.Error("the redrive went on without its event")
	}
}
