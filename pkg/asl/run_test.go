package asl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/asl"
)

// one wraps the body of a single state S, which may go on to the end E.
func one(body string) string {
	return `{"StartAt":"S","States":{"S":{` + body + `},"E":{"Type":"Succeed"}}}`
}

func TestPass(t *testing.T) {
	const in = `{"a":{"b":[1,2.50,12345678901234567890]},"t":"<&>","n":null}`
	for _, tt := range []struct{ name, body, output, failure string }{
		{"result replaces", `"Result":{"x":1e3}`, `{"x":1e3}`, ""},
		{"null result", `"Result":null`, `null`, ""},
		{"result into a member", `"Result":true,"ResultPath":"$.r"`, `{"a":{"b":[1,2.50,12345678901234567890]},"n":null,"r":true,"t":"<&>"}`, ""},
		{"result into a new depth", `"Result":1,"ResultPath":"$.x.y"`, `{"a":{"b":[1,2.50,12345678901234567890]},"n":null,"t":"<&>","x":{"y":1}}`, ""},
		{"result over a member", `"Result":1,"ResultPath":"$.a"`, `{"a":1,"n":null,"t":"<&>"}`, ""},
		{"result dropped", `"Result":1,"ResultPath":null`, `{"a":{"b":[1,2.50,12345678901234567890]},"n":null,"t":"<&>"}`, ""},
		{"result at the root", `"Result":1,"ResultPath":"$"`, `1`, ""},
		{"result below text", `"Result":1,"ResultPath":"$.t.x"`, "", "States.ResultPathMatchFailure"},
		{"result below null", `"Result":1,"ResultPath":"$.n.x"`, "", "States.ResultPathMatchFailure"},
		{"paths", `"Parameters":{"x.$":"$.a.b","y":{"z.$":"$.t","k":"$.t"},"l":[{"$":1}]}`, `{"l":[{"$":1}],"x":[1,2.50,12345678901234567890],"y":{"k":"$.t","z":"<&>"}}`, ""},
		{"whole input", `"Parameters":{"r.$":"$"}`, `{"r":{"a":{"b":[1,2.50,12345678901234567890]},"n":null,"t":"<&>"}}`, ""},
		{"a null is there", `"Parameters":{"r.$":"$.n"}`, `{"r":null}`, ""},
		{"path is missing", `"Parameters":{"r.$":"$.x"}`, "", "States.ParameterPathFailure"},
		{"path through text", `"Parameters":{"r.$":"$.t.x"}`, "", "States.ParameterPathFailure"},
		{"context", `"Parameters":{"i.$":"$$.Execution.Id","n.$":"$$.Execution.Name","in.$":"$$.Execution.Input.t","rc.$":"$$.Execution.RedriveCount","st.$":"$$.Execution.StartTime","sn.$":"$$.State.Name","e.$":"$$.State.EnteredTime","m.$":"$$.StateMachine.Name"}`,
			`{"e":"2026-11-30T10:00:00.000000001Z","i":"arn:x","in":"<&>","m":"m","n":"x","rc":0,"sn":"S","st":"2026-11-30T10:00:00.000000000Z"}`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(nil)
			res := w.run(t, parse(t, one(`"Type":"Pass",`+tt.body+`,"Next":"E"`)), in)
			if tt.failure != "" {
				wantFailed(t, res, tt.failure, "S")
				return
			}
			want(t, res, asl.Succeeded, tt.output)
		})
	}
}

func TestInputThatIsNotJSON(t *testing.T) {
	w := newWorld(nil)
	wantFailed(t, w.run(t, parse(t, one(`"Type":"Pass","Result":1,"Next":"E"`)), `{"a":`), "States.Runtime", "")
}

func TestChoice(t *testing.T) {
	m := parse(t, `{"StartAt":"S","States":{"S":{"Type":"Choice","Choices":[{"Variable":"$.a.s","StringEquals":"x","Next":"X"},{"Variable":"$.a.s","StringEquals":"y","Next":"Y"}]},
	 "X":{"Type":"Pass","Result":"X","End":true},"Y":{"Type":"Pass","Result":"Y","End":true}}}`)
	for _, tt := range []struct{ name, input, output, failure string }{
		{"first", `{"a":{"s":"x"}}`, `"X"`, ""},
		{"second", `{"a":{"s":"y"}}`, `"Y"`, ""},
		{"no rule", `{"a":{"s":"z"}}`, "", "States.NoChoiceMatched"},
		{"another case", `{"a":{"s":"X"}}`, "", "States.NoChoiceMatched"},
		{"not text", `{"a":{"s":["x"]}}`, "", "States.NoChoiceMatched"},
		{"missing", `{"a":{}}`, "", "States.Runtime"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res := newWorld(nil).run(t, m, tt.input)
			if tt.failure != "" {
				wantFailed(t, res, tt.failure, "S")
				return
			}
			want(t, res, asl.Succeeded, tt.output)
		})
	}
}

func TestWait(t *testing.T) { // B4
	m := parse(t, one(`"Type":"Wait","TimestampPath":"$.at","Next":"E"`))
	for _, tt := range []struct {
		name, input string
		slept       []time.Duration
		failure     string
	}{
		{"future", `{"at":"2026-11-30T12:00:00.5Z"}`, []time.Duration{2*time.Hour + 500*time.Millisecond}, ""},
		{"another zone", `{"at":"2026-11-30T12:00:00+01:00"}`, []time.Duration{time.Hour}, ""},
		{"past", `{"at":"2020-01-01T00:00:00Z"}`, nil, ""},
		{"missing", `{}`, nil, "States.Runtime"},
		{"not a time", `{"at":"tomorrow"}`, nil, "States.Runtime"},
		{"a number", `{"at":1700000000}`, nil, "States.Runtime"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(nil)
			res := w.run(t, m, tt.input)
			if tt.failure != "" {
				wantFailed(t, res, tt.failure, "S")
				return
			}
			want(t, res, asl.Succeeded, tt.input)
			if !slices.Equal(w.slept, tt.slept) {
				t.Errorf("slept %v, want %v", w.slept, tt.slept)
			}
		})
	}
}

func TestTask(t *testing.T) {
	for _, tt := range []struct {
		name, fields string
		f            function
		call, output string
		failure      string
	}{
		{"whole input and output", ``, answer(`{"r":1}`), `f {"a":{"b":1}}`, `{"r":1}`, ""},
		{"parameters and result path", `"Parameters":{"x.$":"$.a.b"},"ResultPath":"$.r",`, answer(`[1.0]`), `f {"x":1}`, `{"a":{"b":1},"r":[1.0]}`, ""},
		{"result dropped", `"ResultPath":null,`, answer(`{"r":1}`), `f {"a":{"b":1}}`, `{"a":{"b":1}}`, ""},
		{"fails by name", ``, refuse("Boom"), `f {"a":{"b":1}}`, "", "Boom"},
		{"fails by a wrapped name", ``, func(context.Context, string) (string, error) {
			return "", fmt.Errorf("call: %w", &asl.Error{Name: "Boom"})
		}, `f {"a":{"b":1}}`, "", "Boom"},
		{"any other error", ``, func(context.Context, string) (string, error) { return "", errors.New("x") }, `f {"a":{"b":1}}`, "", "Lambda.Unknown"},
		{"output is not JSON", ``, answer(`{"r":`), `f {"a":{"b":1}}`, "", "Lambda.Unknown"},
		{"output is two values", ``, answer(`{} {}`), `f {"a":{"b":1}}`, "", "Lambda.Unknown"},
		{"parameter missing", `"Parameters":{"x.$":"$.nope"},`, answer(`1`), "", "", "States.ParameterPathFailure"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(map[string]function{"f": tt.f})
			res := w.run(t, parse(t, one(`"Type":"Task","Resource":"f",`+tt.fields+`"Next":"E"`)), `{"a":{"b":1}}`)
			if got := strings.Join(w.calls, "\n"); got != tt.call {
				t.Errorf("called %q, want %q", got, tt.call)
			}
			if tt.failure != "" {
				wantFailed(t, res, tt.failure, "S")
				if w.count(asl.TaskStateExited, "S") != 0 {
					t.Error("a failed state has exited")
				}
				return
			}
			want(t, res, asl.Succeeded, tt.output)
		})
	}
}

func TestHistoryOfATask(t *testing.T) {
	w := newWorld(map[string]function{"f": inTurn(refuse("A"), answer(`2`))})
	m := parse(t, one(`"Type":"Task","Resource":"f","Parameters":{"x":1},"ResultPath":"$.r","Retry":[{"ErrorEquals":["A"]}],"Next":"E"`))
	want(t, w.run(t, m, `{}`), asl.Succeeded, `{"r":2}`)
	var got []string
	for i, e := range w.history {
		got = append(got, fmt.Sprint(e.Type, " ", e.State, " ", string(e.Input), string(e.Output), e.Error, " ", e.Attempt))
		if e.ID != int64(i+1) || i > 0 && !e.Time.After(w.history[i-1].Time) {
			t.Errorf("event %d has id %d and time %v", i, e.ID, e.Time)
		}
	}
	wanted := []string{
		"ExecutionStarted  {} 0", "TaskStateEntered S {} 0", `TaskScheduled S {"x":1} 1`, "TaskFailed S A 1",
		`TaskScheduled S {"x":1} 2`, "TaskSucceeded S 2 2", `TaskStateExited S {"r":2} 0`,
		`SucceedStateEntered E {"r":2} 0`, `SucceedStateExited E {"r":2} 0`, `ExecutionSucceeded E {"r":2} 0`,
	}
	if !slices.Equal(got, wanted) {
		t.Errorf("history:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(wanted, "\n"))
	}
}

func TestRetry(t *testing.T) { // R27
	s := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	for _, tt := range []struct {
		name, retry string
		f           function
		rand        float64
		slept       []time.Duration
		failure     string
	}{
		{"defaults: 1 s, 3 times, doubling", `[{"ErrorEquals":["A"]}]`, refuse("A"), 1, []time.Duration{s(1), s(2), s(4)}, "A"},
		{"own numbers", `[{"ErrorEquals":["A"],"IntervalSeconds":3,"MaxAttempts":4,"BackoffRate":1.5}]`, refuse("A"), 1, []time.Duration{s(3), s(4.5), s(6.75), s(10.125)}, "A"},
		{"bounded", `[{"ErrorEquals":["A"],"IntervalSeconds":2,"MaxAttempts":4,"MaxDelaySeconds":5}]`, refuse("A"), 1, []time.Duration{s(2), s(4), s(5), s(5)}, "A"},
		{"jitter", `[{"ErrorEquals":["A"],"IntervalSeconds":2,"MaxDelaySeconds":6,"JitterStrategy":"FULL"}]`, refuse("A"), 0.25, []time.Duration{s(.5), s(1), s(1.5)}, "A"},
		{"no jitter", `[{"ErrorEquals":["A"],"JitterStrategy":"NONE"}]`, refuse("A"), 0.25, []time.Duration{s(1), s(2), s(4)}, "A"},
		{"never", `[{"ErrorEquals":["A"],"MaxAttempts":0}]`, refuse("A"), 1, nil, "A"},
		{"another name", `[{"ErrorEquals":["B"]}]`, refuse("A"), 1, nil, "A"},
		{"succeeds at last", `[{"ErrorEquals":["A"]}]`, inTurn(refuse("A"), refuse("A"), answer(`1`)), 1, []time.Duration{s(1), s(2)}, ""},
		{"each retrier counts alone", `[{"ErrorEquals":["A"],"IntervalSeconds":1},{"ErrorEquals":["B"],"IntervalSeconds":10,"MaxAttempts":1}]`,
			inTurn(refuse("A"), refuse("B"), refuse("A"), refuse("A"), refuse("B")), 1, []time.Duration{s(1), s(10), s(2), s(4)}, "B"},
		{"the first that matches decides", `[{"ErrorEquals":["A"],"MaxAttempts":1},{"ErrorEquals":["States.ALL"]}]`, refuse("A"), 1, []time.Duration{s(1)}, "A"},
		{"ALL", `[{"ErrorEquals":["States.ALL"],"MaxAttempts":1}]`, refuse("States.Timeout"), 1, []time.Duration{s(1)}, "States.Timeout"},
		{"ALL is not DataLimitExceeded", `[{"ErrorEquals":["States.ALL"]}]`, refuse("States.DataLimitExceeded"), 1, nil, "States.DataLimitExceeded"},
		{"DataLimitExceeded by name", `[{"ErrorEquals":["States.DataLimitExceeded"],"MaxAttempts":1}]`, refuse("States.DataLimitExceeded"), 1, []time.Duration{s(1)}, "States.DataLimitExceeded"},
		{"ALL is not Runtime", `[{"ErrorEquals":["States.ALL"]}]`, refuse("States.Runtime"), 1, nil, "States.Runtime"},
		{"TaskFailed", `[{"ErrorEquals":["States.TaskFailed"],"MaxAttempts":1}]`, refuse("A"), 1, []time.Duration{s(1)}, "A"},
		{"TaskFailed is not Timeout", `[{"ErrorEquals":["States.TaskFailed"]}]`, refuse("States.Timeout"), 1, nil, "States.Timeout"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(map[string]function{"f": tt.f})
			w.rand = tt.rand
			res := w.run(t, parse(t, one(`"Type":"Task","Resource":"f","Retry":`+tt.retry+`,"Next":"E"`)), `{}`)
			if !slices.Equal(w.slept, tt.slept) {
				t.Errorf("slept %v, want %v", w.slept, tt.slept)
			}
			if len(w.calls) != len(tt.slept)+1 {
				t.Errorf("%d calls, want %d", len(w.calls), len(tt.slept)+1)
			}
			if tt.failure != "" {
				wantFailed(t, res, tt.failure, "S")
				return
			}
			want(t, res, asl.Succeeded, `1`)
		})
	}
}

// TestRetryIsTold: whoever waits for the execution learns which try failed, why, and when the next one is due.
func TestRetryIsTold(t *testing.T) { // R8
	m := parse(t, `{"StartAt":"M","States":{"M":{"Type":"Map","ItemsPath":"$","MaxConcurrency":1,"ItemProcessor":{"ProcessorConfig":{"Mode":"INLINE"},"StartAt":"S","States":{
	  "S":{"Type":"Task","Resource":"f","Retry":[{"ErrorEquals":["A"],"MaxAttempts":1},{"ErrorEquals":["B"],"IntervalSeconds":7}],"End":true}}},"End":true}}}`)
	w := newWorld(map[string]function{"f": inTurn(answer(`1`), refuse("A"), refuse("B"), refuse("A"))})
	o := w.options()
	var told []asl.Retry
	o.Retrying = func(_ context.Context, r asl.Retry) { told = append(told, r) }
	res, err := m.Run(t.Context(), w.execution(`[1,2]`), o)
	if err != nil {
		t.Fatal(err)
	}
	wantFailed(t, res, "A", "M")
	want := []asl.Retry{
		{State: "S", Path: "M/1", Attempt: 1, Wait: time.Second, Error: asl.Error{Name: "A", Cause: "why"}},
		{State: "S", Path: "M/1", Attempt: 2, Wait: 7 * time.Second, Error: asl.Error{Name: "B", Cause: "why"}},
	}
	if !slices.Equal(told, want) {
		t.Errorf("told %+v, want %+v", told, want)
	}
}

func TestRetryCountersStartAnewWithEachVisit(t *testing.T) {
	m := parse(t, `{"StartAt":"S","States":{"S":{"Type":"Task","Resource":"f","ResultPath":"$.r","Retry":[{"ErrorEquals":["A"],"MaxAttempts":1}],"Next":"C"},
	 "C":{"Type":"Choice","Choices":[{"Variable":"$.r","StringEquals":"again","Next":"S"},{"Variable":"$.r","StringEquals":"end","Next":"E"}]},"E":{"Type":"Succeed"}}}`)
	w := newWorld(map[string]function{"f": inTurn(refuse("A"), answer(`"again"`), refuse("A"), answer(`"end"`))})
	want(t, w.run(t, m, `{}`), asl.Succeeded, `{"r":"end"}`)
}

func TestCatch(t *testing.T) { // R27
	const rescue = `,"R":{"Type":"Pass","Result":1,"ResultPath":"$.rescued","Next":"E"}}}`
	for _, tt := range []struct{ name, fields, failure, output string }{
		{"by name", `"Catch":[{"ErrorEquals":["A"],"ResultPath":"$.error","Next":"R"}]`, "A", `{"a":1,"error":{"Cause":"why","Error":"A"},"rescued":1}`},
		{"by ALL", `"Catch":[{"ErrorEquals":["B"],"Next":"E"},{"ErrorEquals":["States.ALL"],"ResultPath":"$.error","Next":"R"}]`, "A", `{"a":1,"error":{"Cause":"why","Error":"A"},"rescued":1}`},
		{"the error replaces the input", `"Catch":[{"ErrorEquals":["A"],"Next":"R"}]`, "A", `{"Cause":"why","Error":"A","rescued":1}`},
		{"the error is dropped", `"Catch":[{"ErrorEquals":["A"],"ResultPath":null,"Next":"R"}]`, "A", `{"a":1,"rescued":1}`},
		{"after the retries", `"Retry":[{"ErrorEquals":["A"]}],"Catch":[{"ErrorEquals":["A"],"ResultPath":null,"Next":"R"}]`, "A", `{"a":1,"rescued":1}`},
		{"not by another name", `"Catch":[{"ErrorEquals":["B"],"Next":"R"}]`, "A", ""},
		{"not Runtime", `"Catch":[{"ErrorEquals":["States.ALL"],"Next":"R"}]`, "States.Runtime", ""},
		{"not DataLimitExceeded", `"Catch":[{"ErrorEquals":["States.ALL"],"Next":"R"}]`, "States.DataLimitExceeded", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(map[string]function{"f": refuse(tt.failure)})
			def := strings.TrimSuffix(one(`"Type":"Task","Resource":"f","ResultPath":null,`+tt.fields+`,"Next":"E"`), "}}") + rescue
			res := w.run(t, parse(t, def), `{"a":1}`)
			if tt.output == "" {
				wantFailed(t, res, tt.failure, "S")
				return
			}
			want(t, res, asl.Succeeded, tt.output)
			if w.count(asl.TaskStateExited, "S") != 1 {
				t.Error("a caught state has not exited")
			}
		})
	}
}

func TestMissingParameterIsCaught(t *testing.T) {
	w := newWorld(nil)
	m := parse(t, one(`"Type":"Task","Resource":"f","Parameters":{"x.$":"$.x"},"Catch":[{"ErrorEquals":["States.ParameterPathFailure"],"ResultPath":null,"Next":"E"}],"Next":"E"`))
	want(t, w.run(t, m, `{"a":1}`), asl.Succeeded, `{"a":1}`)
}

func mapOf(fields string) string {
	return one(`"Type":"Map","ItemsPath":"$.items","MaxConcurrency":3,"ItemProcessor":{"ProcessorConfig":{"Mode":"INLINE"},"StartAt":"I","States":{
	 "I":{"Type":"Task","Resource":"f","End":true}}},` + fields + `"Next":"E"`)
}

func TestMap(t *testing.T) {
	echo := func(_ context.Context, in string) (string, error) { return in, nil }
	for _, tt := range []struct {
		name, fields, input string
		f                   function
		output, failure     string
	}{
		{"results in the order of the items", `"ResultPath":"$.r",`, `{"items":[3,1,2]}`, echo, `{"items":[3,1,2],"r":[3,1,2]}`, ""},
		{"results replace", ``, `{"items":["x"]}`, echo, `["x"]`, ""},
		{"results dropped", `"ResultPath":null,`, `{"items":[1]}`, echo, `{"items":[1]}`, ""},
		{"no items", ``, `{"items":[]}`, echo, `[]`, ""},
		{"selector", `"ItemSelector":{"i.$":"$$.Map.Item.Index","v.$":"$$.Map.Item.Value.x","k.$":"$.k"},`, `{"items":[{"x":1},{"x":2}],"k":"K"}`, echo, `[{"i":0,"k":"K","v":1},{"i":1,"k":"K","v":2}]`, ""},
		{"selector misses", `"ItemSelector":{"v.$":"$$.Map.Item.Value.x"},`, `{"items":[{"y":1}]}`, echo, "", "States.ParameterPathFailure"},
		{"items missing", ``, `{}`, echo, "", "States.Runtime"},
		{"items not an array", ``, `{"items":{"a":1}}`, echo, "", "States.Runtime"},
		{"an iteration fails", ``, `{"items":[1,2]}`, refuse("A"), "", "A"},
		{"a failure is caught", `"ResultPath":null,"Catch":[{"ErrorEquals":["States.ALL"],"ResultPath":"$.error","Next":"E"}],`, `{"items":[1]}`, refuse("A"), `{"error":{"Cause":"why","Error":"A"},"items":[1]}`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(map[string]function{"f": tt.f})
			res := w.run(t, parse(t, mapOf(tt.fields)), tt.input)
			if tt.failure != "" {
				wantFailed(t, res, tt.failure, "S")
				return
			}
			want(t, res, asl.Succeeded, tt.output)
		})
	}
}

func TestIterationsLeaveTheInputAlone(t *testing.T) {
	def := strings.Replace(mapOf(`"ResultPath":null,`), `"Resource":"f",`, `"Resource":"f","ResultPath":"$.r",`, 1)
	w := newWorld(map[string]function{"f": answer(`1`)})
	want(t, w.run(t, parse(t, def), `{"items":[{"a":1},{"a":2}]}`), asl.Succeeded, `{"items":[{"a":1},{"a":2}]}`)
}

func TestMapConcurrency(t *testing.T) {
	for _, tt := range []struct{ bound, want int }{{0, 3}, {2, 2}, {1, 1}, {9, 3}} {
		t.Run(fmt.Sprint(tt.bound), func(t *testing.T) {
			var running, most atomic.Int32
			full := make(chan struct{}) // closed once as many run as may
			var once sync.Once
			w := newWorld(map[string]function{"f": func(ctx context.Context, in string) (string, error) {
				n := running.Add(1)
				defer running.Add(-1)
				for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
				}
				if int(n) == tt.want {
					once.Do(func() {
						time.Sleep(3 * time.Millisecond) // room for one too many
						close(full)
					})
				}
				select {
				case <-full:
				case <-ctx.Done():
				}
				return in, nil
			}})
			o := w.options()
			o.Concurrency = tt.bound
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			res, err := parse(t, mapOf("")).Run(ctx, w.execution(`{"items":[0,1,2,3,4,5,6,7,8,9]}`), o)
			if err != nil {
				t.Fatal(err)
			}
			want(t, res, asl.Succeeded, `[0,1,2,3,4,5,6,7,8,9]`)
			if int(most.Load()) != tt.want {
				t.Errorf("%d ran at once, want %d", most.Load(), tt.want)
			}
		})
	}
}

// TestMapFailureAbortsTheOthers has one iteration fail while two are under way and others have not begun.
func TestMapFailureAbortsTheOthers(t *testing.T) {
	var begun sync.WaitGroup
	begun.Add(3)
	w := newWorld(map[string]function{"f": func(ctx context.Context, in string) (string, error) {
		begun.Done()
		begun.Wait()
		if in == "1" {
			return "", &asl.Error{Name: "A"}
		}
		<-ctx.Done()
		return "", ctx.Err()
	}})
	wantFailed(t, w.run(t, parse(t, mapOf("")), `{"items":[0,1,2,3,4,5]}`), "A", "S")
	for _, c := range []struct {
		eventType string
		want      int
	}{{asl.MapIterationStarted, 3}, {asl.MapIterationFailed, 1}, {asl.MapIterationAborted, 2}, {asl.MapStateFailed, 1}, {asl.TaskFailed, 1}, {asl.MapStateExited, 0}} {
		if got := w.count(c.eventType, ""); got != c.want {
			t.Errorf("%d %s, want %d", got, c.eventType, c.want)
		}
	}
}

// big is a JSON string of n bytes, quotes included.
func big(n int) string { return `"` + strings.Repeat("x", n-2) + `"` }

func TestPayloadQuota(t *testing.T) {
	task := one(`"Type":"Task","Resource":"f","ResultPath":"$.r","Catch":[{"ErrorEquals":["States.ALL"],"ResultPath":null,"Next":"E"}],"Next":"E"`)
	whole := one(`"Type":"Task","Resource":"f","Next":"E"`)
	const limit = asl.PayloadLimit
	for _, tt := range []struct {
		name, def, input, answer string
		state                    string // where it fails; empty: it succeeds
	}{
		{"output just fits", whole, `{}`, big(limit), ""},
		{"output one byte over", whole, `{}`, big(limit + 1), "S"},
		{"two-byte letters count twice", whole, `{}`, `"` + strings.Repeat("é", limit/2) + `"`, "S"},
		{"output fits, the state's does not, nor does ALL catch it", task, `{"a":` + big(limit-100) + `}`, big(200), "S"},
		{"input just fits", whole, big(limit), `1`, ""},
		{"input one byte over", whole, big(limit + 1), `1`, "-"},
		{"template grows over", one(`"Type":"Pass","Parameters":{"a.$":"$","b.$":"$"},"Next":"E"`), big(limit/2 + 1), ``, "S"},
		{"map results", mapOf(""), `{"items":[1,2,3]}`, big(limit / 2), "S"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(map[string]function{"f": answer(tt.answer)})
			res := w.run(t, parse(t, tt.def), tt.input)
			if tt.state == "" {
				want(t, res, asl.Succeeded, "")
				return
			}
			wantFailed(t, res, "States.DataLimitExceeded", strings.Trim(tt.state, "-"))
		})
	}
}

func TestHistoryLimit(t *testing.T) {
	m := parse(t, `{"StartAt":"S","States":{"S":{"Type":"Task","Resource":"f","Catch":[{"ErrorEquals":["States.ALL"],"Next":"C"}],"Next":"C"},
	 "C":{"Type":"Choice","Choices":[{"Variable":"$.a","StringEquals":"x","Next":"S"},{"Variable":"$.a","StringEquals":"y","Next":"E"}]},"E":{"Type":"Succeed"}}}`)
	w := newWorld(map[string]function{"f": answer(`{"a":"x"}`)})
	res := w.run(t, m, `{"a":"x"}`)
	if res.Status != asl.Failed || res.Error != "States.Runtime" || !strings.Contains(res.Cause, "25000") {
		t.Fatalf("got %+v", res)
	}
	// Step Functions has one event more for each call, and the last one says that the execution failed.
	if n := len(w.history) + w.count(asl.TaskScheduled, ""); n < asl.HistoryLimit-1 || n > asl.HistoryLimit {
		t.Errorf("%d events", n)
	}
	if _, err := m.Redrive(t.Context(), asl.Execution{}, w.history, w.options()); !errors.Is(err, asl.ErrNotRedrivable) {
		t.Errorf("Redrive of a full history: %v", err)
	}
}

func TestTimeLimit(t *testing.T) {
	head := `{"StartAt":"S","TimeoutSeconds":10,"States":{"S":{`
	for _, tt := range []struct {
		name, def string
		f         func(w *world) function
		slept     []time.Duration
		state     string
	}{
		{"in a wait", head + `"Type":"Wait","TimestampPath":"$.at","End":true}}}`, nil, []time.Duration{10 * time.Second}, "S"},
		{"in a retry", head + `"Type":"Task","Resource":"f","Retry":[{"ErrorEquals":["A"],"IntervalSeconds":6}],"Catch":[{"ErrorEquals":["States.ALL"],"Next":"E"}],"End":true},"E":{"Type":"Succeed"}}}`,
			func(*world) function { return refuse("A") }, []time.Duration{6 * time.Second, 4 * time.Second}, "S"},
		{"after a call", head + `"Type":"Task","Resource":"f","Next":"E"},"E":{"Type":"Succeed"}}}`, func(w *world) function {
			return func(context.Context, string) (string, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.now = w.now.Add(11 * time.Second)
				return `1`, nil
			}
		}, nil, "S"},
		{"in a map", head + `"Type":"Map","ItemsPath":"$.items","MaxConcurrency":2,"ItemProcessor":{"ProcessorConfig":{"Mode":"INLINE"},"StartAt":"I","States":{"I":{"Type":"Wait","TimestampPath":"$.at","End":true}}},"End":true}}}`, nil, nil, "S"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(map[string]function{})
			if tt.f != nil {
				w.functions["f"] = tt.f(w)
			}
			res := w.run(t, parse(t, tt.def), `{"at":"2027-01-01T00:00:00Z","items":[{"at":"2027-01-01T00:00:00Z"},{"at":"2027-01-01T00:00:00Z"}]}`)
			if res.Status != asl.TimedOut || res.State != tt.state {
				t.Fatalf("got %+v", res)
			}
			if tt.slept != nil && !slices.Equal(w.slept, tt.slept) {
				t.Errorf("slept %v, want %v", w.slept, tt.slept)
			}
			if begun, aborted := w.count(asl.MapIterationStarted, ""), w.count(asl.MapIterationAborted, ""); begun != aborted {
				t.Errorf("%d iterations began, %d were aborted", begun, aborted)
			}
			if last := w.history[len(w.history)-1]; last.Type != asl.ExecutionTimedOut {
				t.Errorf("the last event is %s", last.Type)
			}
		})
	}
}

func TestTimeLimitThoughTheSleeperWakesEarly(t *testing.T) {
	w := newWorld(nil)
	o := w.options()
	o.Sleep = func(context.Context, time.Duration) error { return nil } // and the clock stands still
	m := parse(t, `{"StartAt":"S","TimeoutSeconds":10,"States":{"S":{"Type":"Wait","TimestampPath":"$.at","End":true}}}`)
	res, err := m.Run(t.Context(), w.execution(`{"at":"2027-01-01T00:00:00Z"}`), o)
	if err != nil || res.Status != asl.TimedOut {
		t.Fatalf("got %+v, %v: a wait that the limit cuts short has not passed", res, err)
	}
}

func TestSleepFails(t *testing.T) {
	w := newWorld(nil)
	o := w.options()
	o.Sleep = func(context.Context, time.Duration) error { return errDisk }
	_, err := parse(t, one(`"Type":"Wait","TimestampPath":"$.at","Next":"E"`)).Run(t.Context(), w.execution(`{"at":"2027-01-01T00:00:00Z"}`), o)
	if !errors.Is(err, errDisk) {
		t.Fatalf("got %v", err)
	}
}

func TestAbort(t *testing.T) {
	wait := `{"StartAt":"S","States":{"S":{"Type":"Wait","TimestampPath":"$.at","End":true}}}`
	caught := one(`"Type":"Task","Resource":"f","Retry":[{"ErrorEquals":["States.ALL"]}],"Catch":[{"ErrorEquals":["States.ALL"],"Next":"E"}],"Next":"E"`)
	for _, tt := range []struct {
		name, def string
		f         func(cancel func()) function
		exited    int
	}{
		{"in a call", caught, func(cancel func()) function {
			return func(ctx context.Context, _ string) (string, error) { cancel(); return "", ctx.Err() }
		}, 0},
		{"in a call that fails by a name", caught, func(cancel func()) function {
			return func(context.Context, string) (string, error) { cancel(); return "", &asl.Error{Name: "Interrupted"} }
		}, 0},
		{"in a call that succeeds all the same", caught, func(cancel func()) function {
			return func(context.Context, string) (string, error) { cancel(); return "1", nil }
		}, 1},
		{"in a map whose iterations succeed all the same", mapOf(`"Catch":[{"ErrorEquals":["States.ALL"],"Next":"E"}],`), func(cancel func()) function {
			return func(_ context.Context, in string) (string, error) { cancel(); return in, nil }
		}, 0},
		{"in a map", mapOf(`"Catch":[{"ErrorEquals":["States.ALL"],"Next":"E"}],`), func(cancel func()) function {
			return func(ctx context.Context, _ string) (string, error) { cancel(); return "", ctx.Err() }
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w := newWorld(map[string]function{"f": tt.f(cancel)})
			o := w.options()
			o.Concurrency = 1
			res, err := parse(t, tt.def).Run(ctx, w.execution(`{"items":[1,2,3,4,5]}`), o)
			if err != nil || res.Status != asl.Aborted || res.State != "S" {
				t.Fatalf("got %+v, %v", res, err)
			}
			if last := w.history[len(w.history)-1]; last.Type != asl.ExecutionAborted {
				t.Errorf("the last event is %s", last.Type)
			}
			if got := w.count(asl.TaskStateExited, "S") + w.count(asl.MapStateExited, "S"); got != tt.exited {
				t.Errorf("exited %d times, want %d", got, tt.exited)
			}
			if w.count(asl.TaskFailed, "") != 0 {
				t.Error("an interruption is recorded as a failure")
			}
		})
	}
	t.Run("in a wait, by the timer", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWorld(nil)
		o := w.options()
		o.Sleep, o.Now = nil, nil
		record := o.Record
		o.Record = func(ctx context.Context, e asl.Event) error {
			if e.Type == asl.WaitStateEntered {
				cancel()
			}
			return record(ctx, e)
		}
		res, err := parse(t, wait).Run(ctx, w.execution(`{"at":"2999-01-01T00:00:00Z"}`), o)
		if err != nil || res.Status != asl.Aborted || w.count(asl.ExecutionAborted, "S") != 1 {
			t.Fatalf("got %+v, %v", res, err)
		}
	})
}

// TestRecordFails refuses each event in turn: the run must end with that error and do nothing more.
func TestRecordFails(t *testing.T) {
	m := parse(t, complete)
	newRun := func() *world {
		return newWorld(map[string]function{"f": inTurn(refuse("A"), answer(`"again"`), refuse("Z")), "g": answer(`1`)})
	}
	const input = `{"a":1,"items":[1,2,3],"until":"2026-11-30T10:00:30Z"}`
	whole := newRun()
	want(t, whole.run(t, m, input), asl.Succeeded, "")
	if len(whole.history) < 40 {
		t.Fatalf("only %d events", len(whole.history))
	}
	for n := int64(1); n <= int64(len(whole.history)); n++ {
		w := newRun()
		w.failAt = n
		res, err := m.Run(t.Context(), w.execution(input), w.options())
		if !errors.Is(err, errDisk) || res.Status != "" {
			t.Fatalf("event %d refused: got %+v, %v", n, res, err)
		}
		if !strings.Contains(err.Error(), fmt.Sprintf("record event %d", n)) || !strings.Contains(err.Error(), "arn:x") {
			t.Errorf("the error does not say which event of what: %v", err)
		}
		if int64(len(w.history)) != n-1 {
			t.Fatalf("event %d refused, and yet %d are recorded", n, len(w.history))
		}
		if int64(len(w.calls)) > n {
			t.Fatalf("event %d refused: %d calls", n, len(w.calls))
		}
	}
}

func TestEventJSONRoundTrip(t *testing.T) {
	e := asl.Event{ID: 3, Time: time.Date(2026, 11, 30, 1, 2, 3, 4, time.UTC), Type: asl.TaskFailed, State: "S", Path: "M/1", Input: json.RawMessage(`{}`), Error: "A", Cause: "c", Attempt: 2}
	b, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	const golden = `{"id":3,"time":"2026-11-30T01:02:03.000000004Z","type":"TaskFailed","state":"S","path":"M/1","input":{},"error":"A","cause":"c","attempt":2}`
	if string(b) != golden {
		t.Errorf("got  %s\nwant %s", b, golden)
	}
}
