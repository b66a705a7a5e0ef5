package template_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/asl"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/machine"
	"github.com/onceload/onceload/pkg/ordersapi"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/source"
	"github.com/onceload/onceload/pkg/stage"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/mem"
)

// world runs the machine over stores in memory, one function at a time, and notes what each function does that needs a
// permission.
type world struct {
	t          *testing.T
	raw, stage *mem.Objects
	stages     *stage.Stages
	api        string
	token      string
	running    etl.Stage
	calls      int
	described  stage.Described

	mu   sync.Mutex
	used map[string]map[etl.Stage]bool // by action and resource
}

func newWorld(t *testing.T) *world {
	srv := httptest.NewServer(ordersapi.New(ordersapi.Config{Seed: 3, Rows: 250, Token: "token", Faults: ordersapi.Faults{BadEvery: 50}}))
	t.Cleanup(srv.Close)
	w := &world{t: t, raw: mem.NewObjects(), stage: mem.NewObjects(), api: srv.URL, token: "wrong", used: map[string]map[etl.Stage]bool{}}
	note := func(resource string, actions map[string]string) mem.Fault {
		return func(op, _ string) (bool, error) {
			action, ok := actions[op]
			if !ok {
				t.Errorf("%s on %s: which permission is that?", op, resource)
			}
			w.use(action, resource)
			return true, nil
		}
	}
	onObjects := map[string]string{"PutOnce": "s3:PutObject", "Put": "s3:PutObject", "Get": "s3:GetObject", "GetRange": "s3:GetObject", "Head": "s3:GetObject", "List": "s3:ListBucket"}
	onTables := map[string]string{"Get": "dynamodb:GetItem", "Ranks": "dynamodb:BatchGetItem", "Query": "dynamodb:Query", "PutIf": "dynamodb:PutItem", "PutHigher": "dynamodb:PutItem", "PutAllHigher": "dynamodb:PutItem"}
	books, target := mem.NewTable(ledger.Schema()), mem.NewTable(store.Schema{Name: "orders"})
	w.raw.OnCall, w.stage.OnCall = note(rawBucket, onObjects), note(stageBucket, onObjects)
	books.OnCall, target.OnCall = note("shop-ledger", onTables), note("shop-target-", onTables)
	now := time.Date(2026, 11, 30, 11, 5, 0, 0, time.UTC)
	w.stages = stage.New(stage.Deps{
		Raw: w.raw, Stage: w.stage, Ledger: &ledger.Ledger{Table: books, Now: func() time.Time { return now }},
		Target: func(context.Context, *pipeline.Pipeline) (store.Table, error) { return target, nil },
		Pipelines: func(name string) (*pipeline.Pipeline, error) {
			p, err := pipeline.Find(name)
			if err != nil {
				return nil, err
			}
			// Every check that reads something is on, whatever the files that ship declare.
			ratio := 0.5
			p.Checks.MaxDuplicateRatio = &ratio
			return source.Rebase(p, w.api)
		},
		Liveness: w, Alerts: w, Secrets: w, Executions: w,
		Now:   func() time.Time { return now },
		Sleep: func(context.Context, time.Duration) error { return nil },
	})
	return w
}

func (w *world) use(action, resource string) {
	if w.running == "" {
		return // the test itself
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	key := action + " " + resource
	if w.used[key] == nil {
		w.used[key] = map[etl.Stage]bool{}
	}
	w.used[key][w.running] = true
}

func (w *world) Alive(context.Context, string) (ledger.Liveness, error) {
	w.use("states:DescribeExecution", "shop")
	return ledger.Ended, nil
}

func (w *world) Describe(context.Context, string) (stage.Described, error) {
	w.use("states:DescribeExecution", "shop")
	return w.described, nil
}

func (w *world) Alert(context.Context, stage.Alert) error {
	w.use("sns:Publish", "shop-alerts")
	return nil
}

func (w *world) Secret(context.Context, string) (string, error) {
	w.use("secretsmanager:GetSecretValue", "shop/")
	return w.token, nil
}

// as runs f as the function of a stage.
func (w *world) as(s etl.Stage, f func(ctx context.Context) error) error {
	w.running = s
	defer func() { w.running = "" }()
	w.calls++
	return f(stage.WithRequestID(w.t.Context(), fmt.Sprint("request-", w.calls)))
}

// execute runs the machine; breakAt makes the first call of a stage fail without an answer, as a crash does.
func (w *world) execute(name, request string, breakAt etl.Stage) asl.Result {
	w.t.Helper()
	values := map[string]string{}
	for _, s := range stages {
		values[id(s)+"Arn"] = string(s)
	}
	def, err := machine.Substitute(machine.Definition(), values)
	if err != nil {
		w.t.Fatal(err)
	}
	m, err := asl.Parse(def)
	if err != nil {
		w.t.Fatal(err)
	}
	result, err := m.Run(w.t.Context(), asl.Execution{ID: name, Name: name, StateMachine: "shop", Input: json.RawMessage(request)}, asl.Options{
		Concurrency: 1,
		Record:      func(context.Context, asl.Event) error { return nil },
		Sleep:       func(context.Context, time.Duration) error { return nil },
		Invoke: func(_ context.Context, resource string, input []byte) (out []byte, err error) {
			s := etl.Stage(resource)
			if s == breakAt {
				return nil, &asl.Error{Name: "Sandbox.Timedout", Cause: "{}"}
			}
			err = w.as(s, func(ctx context.Context) error {
				out, err = w.stages.Handlers()[s](ctx, input)
				return err
			})
			if err != nil {
				return nil, &asl.Error{Name: string(etl.KindOf(err)), Cause: err.Error()}
			}
			return out, nil
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return result
}

// TestPermissions runs a batch through what happens to one, and holds what each function did against what its policy
// allows: nothing is missing, and nothing is there for no reason.
func TestPermissions(t *testing.T) {
	w := newWorld(t)
	const request = `{"pipeline":"orders","slot":"2026-11-30T10:00:00Z"}`
	status := func(r asl.Result, want string) {
		t.Helper()
		if r.Status != want {
			t.Fatalf("%+v, want %s", r, want)
		}
	}
	// Wrong credentials; then another execution takes over, and its load fails; the next one loads.
	status(w.execute("one", request, ""), "FAILED")
	w.token = "token"
	status(w.execute("two", request, etl.StageLoad), "FAILED")
	status(w.execute("three", request, ""), "SUCCEEDED")
	// The event of a landed part, late. A reload, after a lifecycle rule took the stage objects away.
	b := etl.Batch{Pipeline: "orders", Slot: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)}
	for info, err := range w.stage.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		w.stage.Delete(info.Key)
	}
	status(w.execute("four", `{"pipeline":"orders","slot":"2026-11-30T10:00:00Z","reload":true}`, ""), "SUCCEEDED")
	if err := w.as(etl.StageTransform, func(ctx context.Context) error {
		_, _, err := w.stages.Transform.Landed(ctx, etl.RawPartKey(b, 1, 0))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	w.described = stage.Described{Status: "ABORTED", Input: request}
	if err := w.as(etl.StageSettle, func(ctx context.Context) error {
		_, _, err := w.stages.Settle.Ended(ctx, "four", "ABORTED", 0)
		return err
	}); err != nil {
		t.Fatal(err)
	}

	for action, implied := range map[string]string{
		"s3:GetObject":     "s3:ListBucket",           // without it S3 answers 403 for an object that is not there
		"s3:PutObject":     "s3:AbortMultipartUpload", // of a large object, when its upload fails
		"dynamodb:PutItem": "dynamodb:GetItem",        // of the item that a failed condition did not show
	} {
		for key, by := range maps.Clone(w.used) {
			if resource, ok := strings.CutPrefix(key, action+" "); ok {
				for w.running = range by {
					w.use(implied, resource)
				}
			}
		}
	}
	allowed := permissions(t)
	for key, by := range w.used {
		for s := range by {
			if !allowed[key][s] {
				t.Errorf("%s needs %s", id(s), key)
			}
		}
	}
	for key, by := range allowed {
		for s := range by {
			if !w.used[key][s] {
				t.Errorf("%s has %s and does not need it", id(s), key)
			}
		}
	}
	if t.Failed() {
		for _, key := range slices.Sorted(maps.Keys(w.used)) {
			t.Logf("%s: %v", key, slices.Sorted(maps.Keys(w.used[key])))
		}
	}
}
