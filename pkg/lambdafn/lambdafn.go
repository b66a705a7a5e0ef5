// Package lambdafn is the boundary between Lambda and a stage: [Wrap] gives a call its request id and its errors their
// names, [Arrivals] and [Ends] tell events of S3 and EventBridge from the payloads of the state machine.
package lambdafn

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambda/messages"
	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/onceload/onceload/pkg/etl"
)

// Handler is a stage behind its JSON boundary: payload in, result out.
type Handler func(ctx context.Context, payload []byte) ([]byte, error)

// Options are what [Wrap] needs beside the handler.
type Options struct {
	Log           *slog.Logger                                         // as [NewLog] makes it
	WithRequestID func(ctx context.Context, id string) context.Context // hands Lambda's request id on to the stage
}

// Wrap makes a stage a Lambda handler. An error is logged once and becomes errorType = its kind, errorMessage = its text,
// at most etl.MaxMessage bytes: what the state machine matches and records. A panic is logged with its stack, becomes
// StageCrashed, and ends the process, since nobody knows what it left behind; what ends the process by itself (a panic of
// another goroutine, no more memory) reads Runtime.ExitError on Lambda.
func Wrap(h Handler, o Options) lambda.Handler { return &wrapped{handler: h, Options: o} }

type wrapped struct {
	handler Handler
	Options
}

// Invoke implements [lambda.Handler].
func (w *wrapped) Invoke(ctx context.Context, payload []byte) (out []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			w.Log.ErrorContext(ctx, "panic", slog.Any("value", p), slog.String("stack", string(debug.Stack())))
			crash := failure(etl.StageCrashed, fmt.Sprintf("panic: %v", p))
			crash.ShouldExit = true
			out, err = nil, crash
		}
	}()
	call := ctx
	if lc, ok := lambdacontext.FromContext(ctx); ok {
		call = w.WithRequestID(ctx, lc.AwsRequestID)
	}
	out, err = w.handler(call, payload)
	if err != nil {
		kind := etl.KindOf(err)
		w.Log.ErrorContext(ctx, "failed", slog.String("kind", string(kind)), slog.Any("cause", err))
		// Lambda names an error by its outermost Go type, and takes the name from this one type alone, by value.
		return nil, failure(kind, err.Error())
	}
	return out, nil
}

func failure(kind etl.Kind, message string) messages.InvokeResponse_Error {
	if len(message) > etl.MaxMessage {
		message = strings.ToValidUTF8(message[:etl.MaxMessage-3], "") + "…"
	}
	return messages.InvokeResponse_Error{Type: string(kind), Message: message}
}
