package asl_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/asl"
)

const complete = `{"Comment":"c","StartAt":"P","TimeoutSeconds":100,"States":{
 "P":{"Type":"Pass","Parameters":{"a.$":"$.a","id.$":"$$.Execution.Id","l":[1,{"x":null}]},"ResultPath":"$.p","Next":"T"},
 "T":{"Type":"Task","Resource":"f","Parameters":{"a.$":"$.a"},"ResultPath":"$.t","Retry":[{"ErrorEquals":["A"],"IntervalSeconds":1,"MaxAttempts":2,"BackoffRate":1.5,"MaxDelaySeconds":9,"JitterStrategy":"FULL"}],
  "Catch":[{"ErrorEquals":["States.ALL"],"ResultPath":"$.error","Next":"W"}],"Next":"C"},
 "C":{"Type":"Choice","Choices":[{"Variable":"$.t","StringEquals":"again","Next":"T"},{"Variable":"$.t","StringEquals":"go","Next":"M"}]},
 "W":{"Type":"Wait","TimestampPath":"$.until","Next":"M"},
 "M":{"Type":"Map","ItemsPath":"$.items","MaxConcurrency":2,"ItemSelector":{"v.$":"$$.Map.Item.Value"},"ItemProcessor":{"ProcessorConfig":{"Mode":"INLINE"},"StartAt":"I","States":{"I":{"Type":"Task","Resource":"g","End":true}}},"ResultPath":null,
  "Catch":[{"ErrorEquals":["B"],"Next":"S"}],"Next":"S"},
 "S":{"Type":"Succeed"}}}`

func TestParseNamesWhatItUses(t *testing.T) {
	m := parse(t, complete)
	if got := m.Resources(); !slices.Equal(got, []string{"f", "g"}) {
		t.Errorf("Resources = %v", got)
	}
	if got := m.ErrorNames(); !slices.Equal(got, []string{"A", "B", "States.ALL"}) {
		t.Errorf("ErrorNames = %v", got)
	}
}

// TestParseRefuses changes the complete machine in one place and wants the fault with its path.
func TestParseRefuses(t *testing.T) {
	for _, tt := range []struct{ name, old, new, want string }{
		{"not JSON", `{"Comment"`, `{Comment`, "not JSON, at byte"},
		{"cut off", `"S":{"Type":"Succeed"}}}`, `"S":{"Type":"Succeed"}`, "not JSON, at byte"},
		{"text after", `"S":{"Type":"Succeed"}}}`, `"S":{"Type":"Succeed"}}} x`, "after"},
		{"a second value", `"S":{"Type":"Succeed"}}}`, `"S":{"Type":"Succeed"}}} {}`, "text after the definition"},
		{"name twice", `"StartAt":"P",`, `"StartAt":"P","StartAt":"P",`, "StartAt: stands there twice"},
		{"state twice", `"S":{"Type":"Succeed"}`, `"S":{"Type":"Succeed"},"S":{"Type":"Succeed"}`, "States.S: stands there twice"},
		{"too deep", `[1,{"x":null}]`, strings.Repeat("[", 200) + strings.Repeat("]", 200), "nested deeper than 100"},
		{"comment", `"Comment":"c"`, `"Comment":1`, "Comment: want a string"},
		{"no StartAt", `"StartAt":"P",`, ``, "StartAt: missing"},
		{"StartAt dangling", `"StartAt":"P"`, `"StartAt":"Q"`, `StartAt: there is no state "Q"`},
		{"top-level field", `"Comment":"c"`, `"QueryLanguage":"JSONata"`, "QueryLanguage: not supported"},
		{"version field", `"Comment":"c"`, `"Version":"1.0"`, "Version: not supported"},
		{"timeout zero", `"TimeoutSeconds":100`, `"TimeoutSeconds":0`, "TimeoutSeconds: want a number from 1"},
		{"timeout text", `"TimeoutSeconds":100`, `"TimeoutSeconds":"100"`, "TimeoutSeconds: want a number"},
		{"timeout broken", `"TimeoutSeconds":100`, `"TimeoutSeconds":1.5`, "TimeoutSeconds: want a whole number"},
		{"state not an object", `"S":{"Type":"Succeed"}`, `"S":[]`, "States.S: want an object"},
		{"no type", `"S":{"Type":"Succeed"}`, `"S":{}`, "States.S.Type: missing"},
		{"Fail", `"S":{"Type":"Succeed"}`, `"S":{"Type":"Fail","Error":"x"}`, `States.S.Type: "Fail" is not supported`},
		{"Parallel", `"S":{"Type":"Succeed"}`, `"S":{"Type":"Parallel"}`, `States.S.Type: "Parallel" is not supported`},
		{"slash in a name", `"StartAt":"P"`, `"StartAt":"P/1"`, `StartAt: there is no state "P/1"`},
		{"long name", `"S":{"Type":"Succeed"}`, `"S":{"Type":"Succeed"},"` + strings.Repeat("x", 81) + `":{"Type":"Succeed"}`, "1 to 80 characters"},
		{"unreachable", `"S":{"Type":"Succeed"}`, `"S":{"Type":"Succeed"},"X":{"Type":"Succeed"}`, "States.X: nothing leads to this state"},
		{"Next dangling", `"Next":"T"}`, `"Next":"X"}`, `States.P.Next: there is no state "X"`},
		{"Next and End", `"ResultPath":"$.p","Next":"T"`, `"ResultPath":"$.p","Next":"T","End":true`, "States.P: want Next or End, one of the two"},
		{"neither Next nor End", `"ResultPath":"$.p","Next":"T"`, `"ResultPath":"$.p"`, "States.P: want Next or End, one of the two"},
		{"End false", `"Resource":"g","End":true`, `"Resource":"g","End":false`, "States.M.ItemProcessor.States.I.End: want true"},
		{"InputPath", `"ResultPath":"$.p"`, `"InputPath":"$.p"`, "States.P.InputPath: not supported"},
		{"OutputPath", `"ResultPath":"$.t"`, `"OutputPath":"$.t"`, "States.T.OutputPath: not supported"},
		{"ResultSelector", `"ResultPath":"$.t"`, `"ResultSelector":{}`, "States.T.ResultSelector: not supported"},
		{"Assign", `"ResultPath":"$.t"`, `"Assign":{}`, "States.T.Assign: not supported"},
		{"ResultPath index", `"ResultPath":"$.p"`, `"ResultPath":"$.p[0]"`, `States.P.ResultPath: path "$.p[0]": "p[0]" is not supported`},
		{"ResultPath context", `"ResultPath":"$.p"`, `"ResultPath":"$$.Execution.Id"`, "States.P.ResultPath: path \"$$.Execution.Id\": the context object is not supported here"},
		{"ResultPath number", `"ResultPath":"$.p"`, `"ResultPath":1`, "States.P.ResultPath: want a string"},
		{"Pass with both", `"ResultPath":"$.p"`, `"Result":1`, "States.P.Result: not supported beside Parameters"},
		{"Pass with neither", `"Parameters":{"a.$":"$.a","id.$":"$$.Execution.Id","l":[1,{"x":null}]},`, ``, "States.P: a Pass needs Parameters or Result"},
		{"Parameters not an object", `"Parameters":{"a.$":"$.a"}`, `"Parameters":[]`, "States.T.Parameters: want an object"},
		{"wildcard", `{"a.$":"$.a"}`, `{"a.$":"$.a[*]"}`, "States.T.Parameters.a.$: path"},
		{"deep scan", `{"a.$":"$.a"}`, `{"a.$":"$..a"}`, "States.T.Parameters.a.$: path"},
		{"no dot", `{"a.$":"$.a"}`, `{"a.$":"$a"}`, "States.T.Parameters.a.$: path"},
		{"empty name", `{"a.$":"$.a"}`, `{"a.$":"$."}`, "States.T.Parameters.a.$: path"},
		{"intrinsic function", `{"a.$":"$.a"}`, `{"a.$":"States.UUID()"}`, `States.T.Parameters.a.$: "States.UUID()" is not a path`},
		{"path not text", `{"a.$":"$.a"}`, `{"a.$":1}`, "States.T.Parameters.a.$: want a path"},
		{"path in an array", `[1,{"x":null}]`, `[1,{"x.$":"$.x"}]`, "States.P.Parameters.l: a path inside an array is not supported"},
		{"member twice", `{"a.$":"$.a"}`, `{"a.$":"$.a","a":1}`, "stands there twice, with and without .$"},
		{"whole context", `"$$.Execution.Id"`, `"$$"`, "States.P.Parameters.id.$: path"},
		{"unknown context", `"$$.Execution.Id"`, `"$$.Execution.RoleArn"`, `path "$$.Execution.RoleArn": not supported in the context object`},
		{"Map item outside", `"$$.Execution.Id"`, `"$$.Map.Item.Value"`, `States.P.Parameters.id.$: path "$$.Map.Item.Value": there is no Map item here`},
		{"no resource", `"Resource":"f",`, ``, "States.T.Resource: missing"},
		{"empty resource", `"Resource":"f"`, `"Resource":""`, "States.T.Resource: want a string"},
		{"task timeout", `"Resource":"f"`, `"Resource":"f","TimeoutSeconds":5`, "States.T.TimeoutSeconds: not supported"},
		{"heartbeat", `"Resource":"f"`, `"Resource":"f","HeartbeatSeconds":5`, "States.T.HeartbeatSeconds: not supported"},
		{"retry field", `"IntervalSeconds":1`, `"Foo":1`, "States.T.Retry[0].Foo: not supported"},
		{"retry empty", `"Retry":[{"ErrorEquals":["A"],"IntervalSeconds":1,"MaxAttempts":2,"BackoffRate":1.5,"MaxDelaySeconds":9,"JitterStrategy":"FULL"}]`, `"Retry":[]`, "States.T.Retry: want an array that is not empty"},
		{"retry not an object", `"Retry":[{`, `"Retry":[1,{`, "States.T.Retry[0]: want an object"},
		{"interval zero", `"IntervalSeconds":1`, `"IntervalSeconds":0`, "States.T.Retry[0].IntervalSeconds: want a number from 1"},
		{"negative attempts", `"MaxAttempts":2`, `"MaxAttempts":-1`, "States.T.Retry[0].MaxAttempts: want a number from 0"},
		{"backoff below one", `"BackoffRate":1.5`, `"BackoffRate":0.5`, "States.T.Retry[0].BackoffRate: want a number from 1"},
		{"delay not above interval", `"MaxDelaySeconds":9`, `"MaxDelaySeconds":1`, "States.T.Retry[0].MaxDelaySeconds: must be more than IntervalSeconds"},
		{"jitter", `"JitterStrategy":"FULL"`, `"JitterStrategy":"HALF"`, `States.T.Retry[0].JitterStrategy: "HALF" is not supported`},
		{"no names", `"ErrorEquals":["A"]`, `"ErrorEquals":[]`, "States.T.Retry[0].ErrorEquals: want an array that is not empty"},
		{"name not text", `"ErrorEquals":["A"]`, `"ErrorEquals":[1]`, "States.T.Retry[0].ErrorEquals[0]: want a string"},
		{"ALL not alone", `"ErrorEquals":["States.ALL"]`, `"ErrorEquals":["A","States.ALL"]`, "States.T.Catch[0].ErrorEquals[1]: States.ALL must stand alone"},
		{"ALL not last", `"Catch":[{"ErrorEquals":["States.ALL"]`, `"Catch":[{"ErrorEquals":["States.ALL"],"Next":"S"},{"ErrorEquals":["B"]`, "States.T.Catch[0].ErrorEquals[0]: States.ALL must stand alone"},
		{"Runtime named", `"ErrorEquals":["A"]`, `"ErrorEquals":["States.Runtime"]`, "States.T.Retry[0].ErrorEquals[0]: States.Runtime can be neither retried nor caught"},
		{"catch field", `"ResultPath":"$.error"`, `"Output":1`, "States.T.Catch[0].Output: not supported"},
		{"catch dangling", `"ResultPath":"$.error","Next":"W"`, `"ResultPath":"$.error","Next":"X"`, `States.T.Catch[0].Next: there is no state "X"`},
		{"choice default", `"C":{"Type":"Choice"`, `"C":{"Type":"Choice","Default":"S"`, "States.C.Default: not supported"},
		{"choice operator", `"StringEquals":"again"`, `"StringMatches":"a*"`, "States.C.Choices[0].StringMatches: not supported"},
		{"choice And", `{"Variable":"$.t","StringEquals":"again","Next":"T"}`, `{"And":[],"Next":"T"}`, "States.C.Choices[0].And: not supported"},
		{"choice dangling", `"StringEquals":"go","Next":"M"`, `"StringEquals":"go","Next":"X"`, `States.C.Choices[1].Next: there is no state "X"`},
		{"choice context", `{"Variable":"$.t","StringEquals":"again"`, `{"Variable":"$$.State.Name","StringEquals":"again"`, "States.C.Choices[0].Variable: path"},
		{"wait seconds", `"TimestampPath":"$.until"`, `"Seconds":5`, "States.W.Seconds: not supported"},
		{"wait without", `"TimestampPath":"$.until",`, ``, "States.W.TimestampPath: missing"},
		{"succeed with Next", `"S":{"Type":"Succeed"}`, `"S":{"Type":"Succeed","Next":"S"}`, "States.S.Next: not supported"},
		{"map retry", `"MaxConcurrency":2`, `"Retry":[]`, "States.M.Retry: not supported"},
		{"map legacy", `"ItemProcessor"`, `"Iterator"`, "States.M.Iterator: not supported"},
		{"map no processor", `"ItemProcessor"`, `"Iterator"`, "States.M.ItemProcessor: missing"},
		{"map tolerance", `"MaxConcurrency":2`, `"ToleratedFailureCount":2`, "States.M.ToleratedFailureCount: not supported"},
		{"map no concurrency", `"MaxConcurrency":2`, `"MaxConcurrency":0`, "States.M.MaxConcurrency: want a number from 1"},
		{"map distributed", `"INLINE"`, `"DISTRIBUTED"`, `States.M.ItemProcessor.ProcessorConfig.Mode: "DISTRIBUTED" is not supported`},
		{"map config field", `{"Mode":"INLINE"}`, `{"Mode":"INLINE","ExecutionType":"EXPRESS"}`, "ProcessorConfig.ExecutionType: not supported"},
		{"map no config", `"ProcessorConfig":{"Mode":"INLINE"},`, ``, "States.M.ItemProcessor.ProcessorConfig: missing"},
		{"map leaves its iterations", `"Resource":"g","End":true`, `"Resource":"g","Next":"S"`, `States.M.ItemProcessor.States.I.Next: there is no state "S"`},
		{"map in map", `{"Type":"Task","Resource":"g","End":true}`, `{"Type":"Map","End":true}`, "States.M.ItemProcessor.States.I: a Map inside a Map is not supported"},
		{"no states", `"States":{"I":{"Type":"Task","Resource":"g","End":true}}`, `"x":1`, "States.M.ItemProcessor.States: missing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !strings.Contains(complete, tt.old) {
				t.Fatalf("the complete machine has no %s", tt.old)
			}
			_, err := asl.Parse([]byte(strings.Replace(complete, tt.old, tt.new, 1)))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestParseReportsAllFaults(t *testing.T) {
	_, err := asl.Parse([]byte(strings.NewReplacer(`"MaxAttempts":2`, `"Max":2`, `"TimestampPath"`, `"Seconds"`).Replace(complete)))
	for _, want := range []string{"States.T.Retry[0].Max: not supported", "States.W.Seconds: not supported", "States.W.TimestampPath: missing"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}

// FuzzParse wants no panic, neither in Parse nor in the first steps of what parses.
func FuzzParse(f *testing.F) {
	f.Add([]byte(complete), []byte(`{"a":1,"items":[1,2],"until":"2026-11-30T10:00:00Z"}`))
	f.Add([]byte(`{"StartAt":"P","States":{"P":{"Type":"Pass","Result":null,"ResultPath":"$.a.b","End":true}}}`), []byte(`{"a":1}`))
	f.Add([]byte(`{"States":{"":{"Type":""}}}`), []byte(`null`))
	f.Add([]byte(`[[[`), []byte(``))
	f.Fuzz(func(t *testing.T, def, input []byte) {
		m, err := asl.Parse(def)
		if err != nil {
			if m != nil {
				t.Fatal("a machine and an error")
			}
			return
		}
		m.Resources()
		m.ErrorNames()
		w := newWorld(nil)
		w.failAt = 40
		o := w.options()
		o.Sleep = func(context.Context, time.Duration) error { return nil }
		o.Invoke = func(_ context.Context, _ string, in []byte) ([]byte, error) { return in, nil }
		if _, err := m.Run(t.Context(), asl.Execution{Input: json.RawMessage(input)}, o); err == nil && w.history[len(w.history)-1].State == "" && len(w.history) > 2 {
			t.Fatal("ended nowhere")
		}
	})
}
