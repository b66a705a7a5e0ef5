package lambdafn_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/lambda/messages"
	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/lambdafn"
)

type idKey struct{}

func options(log *bytes.Buffer) lambdafn.Options {
	return lambdafn.Options{Log: lambdafn.NewLog(log), WithRequestID: func(ctx context.Context, id string) context.Context {
		return context.WithValue(ctx, idKey{}, id)
	}}
}

func invocation(t *testing.T) context.Context {
	return lambdacontext.NewContext(t.Context(), &lambdacontext.LambdaContext{AwsRequestID: "request-1"})
}

// lines are the log's JSON lines.
func lines(t *testing.T, log *bytes.Buffer) (out []map[string]any) {
	t.Helper()
	for line := range strings.Lines(log.String()) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("log line %q: %v", line, err)
		}
		out = append(out, v)
	}
	return out
}

// TestWrapErrors: an error's name is its kind, whatever wraps it, by value and outermost: Lambda looks at nothing else.
func TestWrapErrors(t *testing.T) {
	long := strings.Repeat("é", etl.MaxMessage)
	tests := []struct {
		name    string
		err     error
		kind    etl.Kind
		message string
	}{
		{"classified", etl.Errorf(etl.SourceRejected, "401"), etl.SourceRejected, "401"},
		{"wrapped", fmt.Errorf("page 3: %w", etl.Errorf(etl.StoreThrottled, "slow down")), etl.StoreThrottled, "page 3: slow down"},
		{"joined", errors.Join(errors.New("a"), etl.Errorf(etl.CheckFailed, "b")), etl.CheckFailed, "a\nb"},
		{"unclassified", errors.New("boom"), etl.Internal, "boom"},
		{"deadline", fmt.Errorf("get: %w", context.DeadlineExceeded), etl.StageTimedOut, "get: context deadline exceeded"},
		{"cancelled", context.Canceled, etl.Interrupted, "context canceled"},
		{"another InvokeResponse_Error", messages.InvokeResponse_Error{Type: "Foreign"}, etl.Internal, messages.InvokeResponse_Error{Type: "Foreign"}.Error()},
		{"too long", etl.Errorf(etl.Usage, "%s", long), etl.Usage, long[:etl.MaxMessage-4] + "…"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var log bytes.Buffer
			h := lambdafn.Wrap(func(context.Context, []byte) ([]byte, error) { return []byte("{}"), tt.err }, options(&log))
			out, err := h.Invoke(invocation(t), nil)
			if out != nil {
				t.Errorf("output %q beside an error", out)
			}
			got, ok := err.(messages.InvokeResponse_Error) //nolint:errorlint // by value and outermost is the point
			if !ok {
				t.Fatalf("a %T", err)
			}
			if got.Type != string(tt.kind) || got.Message != tt.message || got.ShouldExit || len(got.Message) > etl.MaxMessage {
				t.Errorf("%+v, want %s %q", got, tt.kind, tt.message)
			}
			l := lines(t, &log)
			if len(l) != 1 || l[0]["kind"] != string(tt.kind) || l[0]["request_id"] != "request-1" || l[0]["level"] != "ERROR" {
				t.Errorf("log %v", l)
			}
		})
	}
}

func TestWrapPassesThrough(t *testing.T) {
	var log bytes.Buffer
	h := lambdafn.Wrap(func(ctx context.Context, payload []byte) ([]byte, error) {
		return fmt.Appendf(nil, "%v %s", ctx.Value(idKey{}), payload), nil
	}, options(&log))
	out, err := h.Invoke(invocation(t), []byte(`{"a":1}`))
	if err != nil || string(out) != `request-1 {"a":1}` || log.Len() != 0 {
		t.Errorf("%q, %v, log %q", out, err, log.String())
	}
}

// TestWrapPanic: a panic is StageCrashed and ends the process.
func TestWrapPanic(t *testing.T) {
	for name, value := range map[string]any{"text": "boom", "error": errors.New("boom"), "foreign": messages.InvokeResponse_Error{Type: "Usage", Message: "boom"}} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			h := lambdafn.Wrap(func(context.Context, []byte) ([]byte, error) { panic(value) }, options(&log))
			out, err := h.Invoke(invocation(t), nil)
			got, ok := err.(messages.InvokeResponse_Error) //nolint:errorlint // by value and outermost is the point
			if !ok || out != nil || got.Type != string(etl.StageCrashed) || !got.ShouldExit || !strings.HasPrefix(got.Message, "panic: ") || !strings.Contains(got.Message, "boom") {
				t.Errorf("%q, %#v", out, err)
			}
			l := lines(t, &log)
			if len(l) != 1 || !strings.Contains(fmt.Sprint(l[0]["stack"]), "lambdafn_test.go") || l[0]["request_id"] != "request-1" {
				t.Errorf("log %v", l)
			}
		})
	}
}

func TestLogCarriesRequestID(t *testing.T) {
	var log bytes.Buffer
	l := lambdafn.NewLog(&log).With(slog.String("a", "1")).WithGroup("g")
	l.InfoContext(invocation(t), "in", slog.Int("b", 2))
	l.InfoContext(t.Context(), "out")
	got := lines(t, &log)
	if fmt.Sprint(got[0]["g"]) != "map[b:2 request_id:request-1]" || got[0]["a"] != "1" || got[1]["msg"] != "out" {
		t.Error(got)
	}
}
