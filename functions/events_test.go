package functions_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/lambda/messages"

	"github.com/onceload/onceload/pkg/asl"
	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/runner"
	"github.com/onceload/onceload/pkg/stage"
)

// Parts of answers.
const (
	landed = `{"status":"landed","batch":"orders/20261130T100000Z","fence":1,"extraction":1,"ranges":[{"first":0,"last":0}],"attempts":0,"idle":0,"calls":1,"restarts":0,`
	counts = `"new":247,"updated":0,"unchanged":0,"stale":0,"duplicate":1`
)

// answer is what the function answers to an event file once the files of after were answered.
type answer struct {
	after []string // "claim": only the claim of an extract that landed nothing
	out   string
}

// answers are the same in memory and of the built functions.
func answers() map[string]answer {
	return map[string]answer{
		"extract.json":               {nil, landed + `"retries":0,"waited_ms":0}`},
		"extract-after-wait.json":    {[]string{"claim"}, landed + `"retries":3,"waited_ms":900000}`},
		"transform.json":             {[]string{"extract.json"}, `{"status":"done","range":{"first":0,"last":0}}`},
		"transform-s3.json":          {[]string{"extract.json"}, `{"done":1,"ignored":0}`},
		"transform-eventbridge.json": {[]string{"extract.json"}, `{"done":1,"ignored":0}`},
		"transform-s3-test.json":     {nil, `{"done":0,"ignored":1}`},
		"gate.json": {[]string{"extract.json", "transform.json"},
			`{"status":"passed","stale":0,"binding":{"extraction":1,"revision":"1.1","contract":"2643174d"},"load":1,"ranges":[{"first":0,"last":0}]}`},
		"load.json": {[]string{"extract.json", "transform.json", "gate.json"},
			`{"status":"done","position":{"range":{"first":1,"last":0},"row":0,"counts":{"new":0,"updated":0,"unchanged":0,"stale":0,"duplicate":0}}}`},
		"settle.json": {[]string{"extract.json", "transform.json", "gate.json", "load.json"},
			`{"status":"completed","counts":{"pages":3,"records":253,"valid":248,"quarantined":5,"written":247,` + counts + `}}`},
		"settle-record-failure.json": {[]string{"extract.json"},
			`{"status":"recorded","pk":"orders/20261130T100000Z","id":"` + execution + `@2026-11-30T11:05:12.345Z","stage":"extract","kind":"SourceRejected","message":"the source answered 401: look at the secret orders-api-token"}`},
		"settle-timed-out.json": {[]string{"extract.json"}, `{"done":1,"ignored":0}`},
		"settle-aborted.json":   {[]string{"extract.json"}, `{"done":1,"ignored":0}`},
		"settle-failed.json":    {[]string{"extract.json"}, `{"done":1,"ignored":0}`},
	}
}

// ends is what Step Functions says of the execution when it sends the event.
func ends(t *testing.T, file string) stage.Described {
	t.Helper()
	var e struct {
		Detail struct{ Status, Error string }
	}
	if err := json.Unmarshal(read(t, file), &e); err != nil {
		t.Fatal(err)
	}
	return stage.Described{Status: e.Detail.Status, Error: e.Detail.Error, Input: string(read(t, "schedule.json"))}
}

// TestEvents feeds every event file to its function.
func TestEvents(t *testing.T) {
	for name, want := range answers() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.must(want.after...)
			w.described = ends(t, name)
			out, err := w.invoke(name)
			if err != nil || out != want.out {
				t.Errorf("%s, error %v\nwant %s", out, err, want.out)
			}
		})
	}
}

// TestEventFilesAreTested finds a file that no test feeds to anything.
func TestEventFilesAreTested(t *testing.T) {
	tested := maps.Collect(maps.All(answers()))
	for _, name := range []string{"schedule.json", "manual.json", "settle-raise.json"} {
		tested[name] = answer{}
	}
	files, err := os.ReadDir("../events")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if _, ok := tested[f.Name()]; !ok {
			t.Errorf("events/%s is fed to no function", f.Name())
		}
		if strings.Contains(string(read(t, f.Name())), "\t") || !json.Valid(read(t, f.Name())) {
			t.Errorf("events/%s is not plain JSON", f.Name())
		}
	}
	if len(files) != len(tested) {
		t.Errorf("%d files, %d tested", len(files), len(tested))
	}
}

// TestEventsNameTheContract: the binding in the events is that of the pipeline file as it is.
func TestEventsNameTheContract(t *testing.T) {
	p, err := pipeline.Find("orders")
	if err != nil {
		t.Fatal(err)
	}
	k, err := contract.Compile(p.Contract, p.Target)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"load.json", "settle.json"} {
		var e struct{ Binding etl.Binding }
		if err := json.Unmarshal(read(t, name), &e); err != nil {
			t.Fatal(err)
		}
		if want := (etl.Binding{Extraction: 1, Revision: k.Revision(), Contract: k.Short()}); e.Binding != want {
			t.Errorf("events/%s binds to %s: orders.yaml and the engine now make %s, put that into the events and into answers", name, e.Binding, want)
		}
	}
}

// TestEventPathsAgree: R29, the S3 event, the EventBridge event and the state machine write the same bytes, alone and one
// after another.
func TestEventPathsAgree(t *testing.T) {
	var want map[string]string
	for _, path := range [][]string{
		{"transform.json"}, {"transform-s3.json"}, {"transform-eventbridge.json"},
		{"transform-s3.json", "transform-s3.json", "transform.json", "transform-eventbridge.json"},
	} {
		w := newWorld(t)
		w.must("extract.json")
		w.must(path...)
		got := objects(t, w.stage)
		if want == nil {
			want = got
		}
		if len(got) != 4 || !maps.Equal(got, want) {
			t.Errorf("%v wrote %v, want %v", path, got, want)
		}
	}
}

// TestRecordAndRaise: the first Raise fails with the original error, a later one lets through, the same one fails again.
func TestRecordAndRaise(t *testing.T) {
	w := newWorld(t)
	w.must("extract.json", "settle-record-failure.json")
	if b := w.batch(); b.State != ledger.StateFailed || b.Failure.Kind != etl.SourceRejected || b.Failures != 1 {
		t.Errorf("batch %+v", b)
	}
	if len(w.alerts) != 1 || w.alerts[0].Count != 1 || w.alerts[0].Batch != "orders/20261130T100000Z" || w.alerts[0].Execution != execution {
		t.Errorf("alerts %+v", w.alerts)
	}
	out, err := w.invoke("settle-raise.json")
	var e messages.InvokeResponse_Error
	if !errors.As(err, &e) || e.Type != "SourceRejected" || e.Message != "the source answered 401: look at the secret orders-api-token" {
		t.Errorf("%s, %v", out, err)
	}
	w.calls-- // its reply was lost: the same request once more
	if out, err := w.invoke("settle-raise.json"); err == nil {
		t.Errorf("again: %s", out)
	}
	if out, err := w.invoke("settle-raise.json"); err != nil || out != `{"status":"raised"}` {
		t.Errorf("redriven: %s, %v", out, err)
	}
}

// TestEnds: what an event of an ended execution leaves behind.
func TestEnds(t *testing.T) {
	for name, kind := range map[string]etl.Kind{"settle-timed-out.json": etl.StageTimedOut, "settle-aborted.json": etl.Interrupted, "settle-failed.json": etl.Internal} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.must("extract.json")
			w.described = ends(t, name)
			w.must(name)
			if b := w.batch(); b.State != ledger.StateFailed || b.Failure.Kind != kind || b.Failure.Stage != etl.StageExtract || b.Failure.Message == "" {
				t.Errorf("batch %+v, failure %+v", b, b.Failure)
			}
			// The event comes again: nothing more happens.
			if out, err := w.invoke(name); err != nil || out != `{"done":0,"ignored":1}` || len(w.alerts) != 1 {
				t.Errorf("%s, %v, %d alerts", out, err, len(w.alerts))
			}
			// A redrive goes on: the batch is RUNNING again.
			w.must("transform.json", "gate.json", "load.json", "settle.json")
			if b := w.batch(); b.State != ledger.StateCompleted {
				t.Errorf("batch %s", b.State)
			}
		})
	}
}

// TestRequests runs the state machine on its two inputs: they mean the same batch.
func TestRequests(t *testing.T) {
	for _, name := range []string{"schedule.json", "manual.json"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			req, err := etl.Decode[etl.Request](read(t, name))
			if err != nil {
				t.Fatal(err)
			}
			r := runner.Runner{Handlers: w.stages.Handlers(), History: noHistory{}, RequestID: rand.Text}
			res, err := r.Start(t.Context(), execution, slotOfEvents(), req)
			if err != nil || res.Status != asl.Succeeded || w.batch().State != ledger.StateCompleted || w.batch().Counts.Written != 247 {
				t.Errorf("%+v, %v, batch %+v", res, err, w.batch())
			}
		})
	}
}

type noHistory struct{}

func (noHistory) Begin(context.Context, runner.Execution) error   { return nil }
func (noHistory) Append(context.Context, string, asl.Event) error { return nil }
func (noHistory) Load(context.Context, string) (runner.Execution, []asl.Event, error) {
	return runner.Execution{}, nil, errors.New("nothing is kept")
}
