// Package runner runs the state machine over the stages on this machine: the deployed definition, the functions in
// process behind the same JSON boundary and error names as on Lambda, and a history that a redrive goes on from.
package runner

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/onceload/onceload/pkg/asl"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/machine"
	"github.com/onceload/onceload/pkg/stage"
)

// Execution is one run of the state machine.
type Execution struct {
	ID         string    // unique; the owner of the batches it claims
	Batch      string    // batch id
	Input      []byte    // the etl.Request
	StartTime  time.Time // stays the same over redrives
	Definition []byte    // frozen at the start: a redrive runs this one
}

// History keeps executions and their events, so that a run that was killed can be redriven.
type History interface {
	// Begin stores a new execution. It is there before the first event.
	Begin(ctx context.Context, e Execution) error
	// Append stores the execution's next event, durably enough to outlive this process.
	Append(ctx context.Context, execution string, e asl.Event) error
	// Load returns an execution with its events in order; an error of kind Usage if there is none.
	Load(ctx context.Context, execution string) (Execution, []asl.Event, error)
}

// Runner runs executions.
type Runner struct {
	Handlers    map[etl.Stage]stage.Handler
	History     History
	Now         func() time.Time                           // default: time.Now
	Sleep       func(context.Context, time.Duration) error // default: asl's
	Rand        func() float64                             // default: asl's
	RequestID   func() string                              // default: random
	Log         *slog.Logger                               // told of what is tried again, and of panics; default: discard
	Timeout     time.Duration                              // time limit of one function call; 0 = none
	Concurrency int                                        // cap on a Map's concurrency; 0 = the definition's
}

// resources are the substitutions of the machine's placeholders: on this machine a function's name is its stage.
func resources() map[string]string {
	return map[string]string{
		"ExtractFunctionArn":   string(etl.StageExtract),
		"TransformFunctionArn": string(etl.StageTransform),
		"GateFunctionArn":      string(etl.StageGate),
		"LoadFunctionArn":      string(etl.StageLoad),
		"SettleFunctionArn":    string(etl.StageSettle),
	}
}

// Start runs a new execution to its end. The result's Error is a failure kind. An error is a trouble of our own, like a
// history that cannot be written; a cancelled context ends as status ABORTED.
func (r *Runner) Start(ctx context.Context, id string, b etl.Batch, req etl.Request) (asl.Result, error) {
	input, err := json.Marshal(req)
	if err != nil {
		return asl.Result{}, fmt.Errorf("execution %s: %w", id, err)
	}
	e := Execution{ID: id, Batch: b.String(), Input: input, StartTime: r.now(), Definition: machine.Definition()}
	m, err := parse(e.Definition)
	if err != nil {
		return asl.Result{}, err
	}
	if err := r.History.Begin(ctx, e); err != nil {
		return asl.Result{}, fmt.Errorf("begin execution %s: %w", id, err)
	}
	return m.Run(ctx, e.asl(), r.options(id))
}

// Redrive lets an execution that failed, or was killed, go on at the state that was entered and not exited.
func (r *Runner) Redrive(ctx context.Context, id string) (asl.Result, error) {
	e, events, err := r.History.Load(ctx, id)
	if err != nil {
		return asl.Result{}, fmt.Errorf("history of execution %s: %w", id, err)
	}
	m, err := parse(e.Definition)
	if err != nil {
		return asl.Result{}, err
	}
	return m.Redrive(ctx, e.asl(), events, r.options(id))
}

func parse(definition []byte) (*asl.Machine, error) {
	def, err := machine.Substitute(definition, resources())
	if err != nil {
		return nil, err
	}
	m, err := asl.Parse(def)
	if err != nil {
		return nil, fmt.Errorf("state machine: %w", err)
	}
	return m, nil
}

func (e Execution) asl() asl.Execution {
	return asl.Execution{ID: e.ID, Name: e.ID, Input: e.Input, StartTime: e.StartTime}
}

func (r *Runner) options(id string) asl.Options {
	return asl.Options{
		Invoke:      r.invoke,
		Record:      func(ctx context.Context, ev asl.Event) error { return r.History.Append(ctx, id, ev) },
		Now:         r.now,
		Sleep:       r.Sleep,
		Rand:        r.Rand,
		Concurrency: r.Concurrency,
		Retrying:    r.retrying,
	}
}

// retrying tells people why nothing seems to happen.
func (r *Runner) retrying(ctx context.Context, again asl.Retry) {
	attrs := []slog.Attr{slog.String("state", again.State)}
	if again.Path != "" {
		attrs = append(attrs, slog.String("iteration", again.Path))
	}
	attrs = append(attrs, slog.Int("attempt", again.Attempt), slog.String("error", again.Error.Name),
		slog.String("next_in", again.Wait.Round(100*time.Millisecond).String()), slog.String("cause", etl.CauseMessage(again.Error.Cause)))
	r.log().LogAttrs(ctx, slog.LevelWarn, "a stage failed and is called again", attrs...)
}

func (r *Runner) log() *slog.Logger {
	if r.Log != nil {
		return r.Log
	}
	return slog.New(slog.DiscardHandler)
}

func (r *Runner) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

func (r *Runner) requestID() string {
	if r.RequestID != nil {
		return r.RequestID()
	}
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// invoke calls a function as Lambda does: JSON in, JSON out, an error as its kind.
func (r *Runner) invoke(ctx context.Context, function string, payload []byte) ([]byte, error) {
	h, ok := r.Handlers[etl.Stage(function)]
	if !ok {
		return nil, etl.Errorf(etl.Internal, "there is no function %q", function)
	}
	call := stage.WithRequestID(ctx, r.requestID())
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		call, cancel = context.WithTimeout(call, r.Timeout)
		defer cancel()
	}
	out, err := r.survive(call, h, payload)
	if err == nil {
		return out, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	name := string(etl.KindOf(err))
	if errors.Is(call.Err(), context.DeadlineExceeded) {
		name = "Sandbox.Timedout"
	}
	cause, merr := json.Marshal(etl.FunctionError{Message: err.Error(), Type: name})
	if merr != nil {
		return nil, fmt.Errorf("encode error of %s: %w", function, merr)
	}
	return nil, &asl.Error{Name: name, Cause: string(cause)}
}

// survive calls a function, and turns its panic into StageCrashed, as the boundary on Lambda does.
func (r *Runner) survive(ctx context.Context, h stage.Handler, payload []byte) (out []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			r.log().ErrorContext(ctx, "panic", slog.Any("value", p), slog.String("stack", string(debug.Stack())))
			out, err = nil, etl.Errorf(etl.StageCrashed, "panic: %v", p)
		}
	}()
	return h(ctx, payload)
}
