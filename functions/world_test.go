package functions_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/onceload/onceload/pkg/cloud"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/lambdafn"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/ordersapi"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/source"
	"github.com/onceload/onceload/pkg/stage"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/mem"
)

// What the events speak of.
const (
	rawBucket = "onceload-raw-111122223333-eu-central-1"
	execution = "arn:aws:states:eu-central-1:111122223333:execution:onceload:orders-20261130T100000Z-1"
	token     = "example-token"
)

// orders is the source behind the events: three pages, 5 of 253 records bad, one twice.
func orders() *ordersapi.Handler {
	return ordersapi.New(ordersapi.Config{Seed: 3, Rows: 250, Token: token, Faults: ordersapi.Faults{BadEvery: 50, Duplicate: true, Late: true, Delete: true}})
}

func slotOfEvents() etl.Batch {
	return etl.Batch{Pipeline: "orders", Slot: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)}
}

// read reads an event file.
func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "events", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// stageOf is the function that an event file is for: the first word of its name.
func stageOf(name string) etl.Stage {
	word, _, _ := strings.Cut(strings.TrimSuffix(name, ".json"), "-")
	return etl.Stage(word)
}

// world is the five functions over stores in memory.
type world struct {
	t          *testing.T
	raw, stage *mem.Objects
	target     *mem.Table
	ledger     *ledger.Ledger
	stages     *stage.Stages
	log        bytes.Buffer
	described  stage.Described // what Step Functions says of the execution
	alerts     []stage.Alert
	calls      int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	srv := httptest.NewServer(orders())
	t.Cleanup(srv.Close)
	now := func() time.Time { return time.Date(2026, 11, 30, 11, 20, 0, 0, time.UTC) }
	w := &world{t: t, raw: mem.NewObjects(), stage: mem.NewObjects(), target: mem.NewTable(store.Schema{Name: "orders"}),
		ledger: &ledger.Ledger{Table: mem.NewTable(ledger.Schema()), Now: now}}
	w.stages = stage.New(stage.Deps{
		Raw: w.raw, Stage: w.stage, Ledger: w.ledger,
		Target: func(context.Context, *pipeline.Pipeline) (store.Table, error) { return w.target, nil },
		Pipelines: func(name string) (*pipeline.Pipeline, error) {
			p, err := pipeline.Find(name)
			if err != nil {
				return nil, err
			}
			return source.Rebase(p, srv.URL)
		},
		Liveness: w, Alerts: w, Secrets: w, Executions: w, Now: now, Log: lambdafn.NewLog(&w.log),
	})
	return w
}

func (w *world) Alive(context.Context, string) (ledger.Liveness, error) { return ledger.Running, nil }

func (w *world) Describe(_ context.Context, id string) (stage.Described, error) {
	if id != execution {
		return stage.Described{}, store.ErrNotFound
	}
	return w.described, nil
}

func (w *world) Alert(_ context.Context, a stage.Alert) error {
	w.alerts = append(w.alerts, a)
	return nil
}

func (w *world) Secret(_ context.Context, name string) (string, error) {
	if name != "orders-api-token" {
		return "", fmt.Errorf("no secret %s", name)
	}
	return token, nil
}

func (w *world) handler(s etl.Stage) lambda.Handler {
	return cloud.Handler(s, w.stages, rawBucket, lambdafn.NewLog(&w.log))
}

// invoke feeds an event file to its function.
func (w *world) invoke(name string) (string, error) {
	w.calls++
	ctx := lambdacontext.NewContext(w.t.Context(), &lambdacontext.LambdaContext{AwsRequestID: fmt.Sprint("request-", w.calls)})
	out, err := w.handler(stageOf(name)).Invoke(ctx, read(w.t, name))
	return string(out), err
}

// must feeds event files that have to succeed.
func (w *world) must(names ...string) {
	w.t.Helper()
	for _, name := range names {
		if name == "claim" {
			w.claim()
			continue
		}
		if _, err := w.invoke(name); err != nil {
			w.t.Fatalf("%s: %v", name, err)
		}
	}
}

// claim claims the batch for the execution and fetches nothing.
func (w *world) claim() {
	w.t.Helper()
	p, err := pipeline.Find("orders")
	if err != nil {
		w.t.Fatal(err)
	}
	_, err = w.ledger.Claim(w.t.Context(), ledger.ClaimRequest{
		Batch: slotOfEvents(), Execution: execution, Window: p.Schedule.Window(slotOfEvents().Slot), PipelineDigest: p.Digest, Alive: w.Alive,
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) batch() ledger.Batch {
	w.t.Helper()
	b, err := w.ledger.Get(w.t.Context(), slotOfEvents())
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// objects is every object of a store with the digest of its bytes.
func objects(t *testing.T, from store.Objects) map[string]string {
	t.Helper()
	out := map[string]string{}
	for info, err := range from.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		r, err := from.Get(t.Context(), info.Key)
		if err != nil {
			t.Fatal(err)
		}
		h := sha256.New()
		if _, err := io.Copy(h, r); err != nil {
			t.Fatal(err)
		}
		r.Close()
		out[info.Key] = fmt.Sprintf("%x", h.Sum(nil))
	}
	return out
}
