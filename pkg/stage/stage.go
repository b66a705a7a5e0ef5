// Package stage holds the five stages of a batch, one struct each: [Extract] lands pages, [Transform] checks records
// against the contract, [Gate] decides whether the batch may load, [Load] writes rows by rank, [Settle] closes the batch
// or records why it failed. [New] is the only wiring: a laptop, a Lambda function and the fault simulation differ in
// their [Deps] alone.
//
// Every stage may be called any number of times with the same input, by several callers at once, and killed anywhere:
// objects are write-once or deterministic, part records are immutable, rows are decided by rank, and the batch item is
// written under its owner and fence.
package stage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/source"
	"github.com/onceload/onceload/pkg/store"
)

// Liveness tells whether an execution still runs: Step Functions' DescribeExecution, or a file lock on a laptop.
type Liveness interface {
	// Alive returns the execution's state. Any doubt is an error, never Ended: a live owner must not lose its batch.
	Alive(ctx context.Context, execution string) (ledger.Liveness, error)
}

// Executions tells how executions ended: Step Functions' DescribeExecution.
type Executions interface {
	// Describe returns the execution as it is now. One that does not exist is an error that wraps store.ErrNotFound.
	Describe(ctx context.Context, execution string) (Described, error)
}

// Described is an execution as Step Functions describes it.
type Described struct {
	Status   string // RUNNING, SUCCEEDED, FAILED, TIMED_OUT, ABORTED, PENDING_REDRIVE
	Redrives int
	Input    string // JSON, an etl.Request
	Error    string // of FAILED; may be empty
	Cause    string // likewise
}

// Alert is what an operator is told about a failure.
type Alert struct {
	Batch     string
	Pipeline  string
	Execution string
	Failure   ledger.FailureInfo
	Count     int // failures of this batch so far, this one included: from 2 on the alert is louder
}

// Alerts tells an operator.
type Alerts interface {
	// Alert delivers one failure. It may be called again for the same failure.
	Alert(ctx context.Context, a Alert) error
}

// Secrets looks up credentials by name.
type Secrets interface {
	// Secret returns the value. An unknown name is an error of kind SourceRejected that says where to put the secret.
	Secret(ctx context.Context, name string) (string, error)
}

// Tick reports progress to whoever watches. All figures are increments since the last tick of that stage.
type Tick struct {
	Stage   etl.Stage
	Batch   etl.Batch
	Parts   int
	Pages   int
	Records int64
	Written int64
	Total   int64 // not an increment: the records of the batch, told once by Extract when all have landed
}

// Deps is all a stage needs from outside.
type Deps struct {
	Raw       store.Objects
	Stage     store.Objects
	Ledger    *ledger.Ledger
	Target    func(ctx context.Context, p *pipeline.Pipeline) (store.Table, error) // opens a pipeline's target table
	Pipelines func(name string) (*pipeline.Pipeline, error)                        // finds a pipeline file
	Liveness  Liveness
	Alerts    Alerts // nil: nobody is told
	Secrets   Secrets

	Executions Executions // for [Settle.Ended] alone

	HTTP   *http.Client                               // default: the source's own, with all its timeouts
	Log    *slog.Logger                               // default: discard
	Now    func() time.Time                           // default: time.Now
	Sleep  func(context.Context, time.Duration) error // of the source client; default: its own
	Rand   func() float64                             // default: math/rand/v2
	Margin time.Duration                              // stop this long before the context's deadline; default 10 s
	Watch  func(Tick)                                 // default: nobody
}

// PartAge is how old a part may grow before it is landed although it is small.
const PartAge = 30 * time.Second

// Stages are the wired stages.
type Stages struct {
	Extract   *Extract
	Transform *Transform
	Gate      *Gate
	Load      *Load
	Settle    *Settle
}

// New wires the stages.
func New(d Deps) *Stages {
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Rand == nil {
		d.Rand = rand.Float64
	}
	if d.Margin == 0 {
		d.Margin = 10 * time.Second
	}
	if d.Watch == nil {
		d.Watch = func(Tick) {}
	}
	c := &core{Deps: d}
	t := &Transform{core: c}
	return &Stages{
		Extract:   &Extract{core: c},
		Transform: t,
		Gate:      &Gate{core: c},
		Load:      &Load{core: c, transform: t, repeats: maxRepeats},
		Settle:    &Settle{core: c},
	}
}

// core is what the stages share.
type core struct{ Deps }

// compile finds the pipeline and compiles its contract.
func (c *core) compile(name string) (*pipeline.Pipeline, *contract.Contract, error) {
	p, err := c.Pipelines(name)
	if err != nil {
		return nil, nil, fmt.Errorf("pipeline %s: %w", name, err)
	}
	k, err := contract.Compile(p.Contract, p.Target)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", p.File, err)
	}
	return p, k, nil
}

// source makes the API client of a pipeline for one invocation of an execution.
func (c *core) source(ctx context.Context, p *pipeline.Pipeline, execution string) (*source.Client, error) {
	b := p.Source.Budget
	limits := ledger.Limits{Name: b.Name, Rate: b.Rate, Daily: b.Daily, Reserve: b.Reserve}
	if limits.Name == "" {
		limits.Name = host(p.Source.URL)
	}
	holder := execution
	if id, err := requestID(ctx); err == nil { // two invocations of one execution may overlap
		holder += " " + id
	}
	return source.New(p, source.Options{
		HTTP: c.HTTP, Log: c.Log, Now: c.Now, Sleep: c.Sleep, Rand: c.Rand, Margin: c.Margin,
		Secret:  c.Secrets.Secret,
		Limiter: c.Ledger.Limiter(limits, p.Name, holder, c.Rand),
	})
}

// short reports whether the context's deadline is nearer than the margin.
func (c *core) short(ctx context.Context) bool {
	d, ok := ctx.Deadline()
	return ok && d.Sub(c.Now()) < c.Margin
}

// own checks that the execution still owns the batch, and moves the batch item into the stage if it is not there yet.
// Work that is not fenced itself begins with it. Resumed says that the batch was FAILED: a redrive is under way.
func (c *core) own(ctx context.Context, o ledger.Owner, s etl.Stage) (b ledger.Batch, resumed bool, err error) {
	b, err = c.Ledger.Owned(ctx, o)
	if err != nil || (b.State == ledger.StateRunning && b.Stage == s) {
		return b, false, err
	}
	resumed = b.State == ledger.StateFailed
	b, err = c.Ledger.Update(ctx, o, s, func(*ledger.Batch) {})
	return b, resumed, err
}

// owner reads the identity that every payload carries.
func owner(batch, execution string, fence int) (ledger.Owner, error) {
	b, err := etl.ParseBatch(batch)
	if err != nil {
		return ledger.Owner{}, err
	}
	return ledger.Owner{Batch: b, Execution: execution, Fence: fence}, nil
}

// Handler is a stage behind its JSON boundary, as Lambda and the local runner call it.
type Handler func(ctx context.Context, payload []byte) ([]byte, error)

// Handlers returns the stages by the name of their function, which is the stage's.
func (s *Stages) Handlers() map[etl.Stage]Handler {
	return map[etl.Stage]Handler{
		etl.StageExtract:   handle(s.Extract.Run),
		etl.StageTransform: handle(s.Transform.Run),
		etl.StageGate:      handle(s.Gate.Run),
		etl.StageLoad:      handle(s.Load.Run),
		etl.StageSettle:    s.Settle.handle,
	}
}

func handle[In, Out any](run func(context.Context, In) (Out, error)) Handler {
	return func(ctx context.Context, payload []byte) ([]byte, error) {
		in, err := etl.Decode[In](payload)
		if err != nil {
			return nil, err
		}
		out, err := run(ctx, in)
		if err != nil {
			return nil, err
		}
		return json.Marshal(out)
	}
}

type requestIDKey struct{}

// WithRequestID gives an invocation its id: Lambda's request id, or the local runner's. Raise tells its own lost reply
// from a redrive by it.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

func requestID(ctx context.Context) (string, error) {
	id, ok := ctx.Value(requestIDKey{}).(string)
	if !ok || id == "" {
		return "", errors.New("the invocation has no request id")
	}
	return id, nil
}
