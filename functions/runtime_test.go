package functions_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambda/messages"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/lambdafn"
	storecloud "github.com/onceload/onceload/pkg/store/cloud"
)

// envDie makes this test binary a function that dies as its payload says.
const envDie = "ONCELOAD_TEST_DIE"

func TestMain(m *testing.M) {
	if os.Getenv(envDie) == "" {
		os.Exit(m.Run())
	}
	lambda.Start(lambdafn.Wrap(die, lambdafn.Options{
		Log:           lambdafn.NewLog(os.Stderr),
		WithRequestID: func(ctx context.Context, _ string) context.Context { return ctx },
	}))
}

func die(_ context.Context, payload []byte) ([]byte, error) {
	switch string(payload) {
	case `"panic"`:
		panic("boom")
	case `"exit"`:
		os.Exit(7)
	case `"goroutine"`:
		go func() { panic("nobody recovers this") }()
		select {}
	}
	return payload, nil
}

// runtimeAPI serves Lambda's Runtime API to one function's process on loopback.
type runtimeAPI struct {
	t       *testing.T
	next    chan invocation
	answers chan answered
	exited  chan error // of the process, once
	log     *lockedBuffer
}

type invocation struct {
	id       string
	payload  []byte
	deadline time.Time
}

type answered struct {
	id, kind string // kind: response, error
	body     []byte
}

// lockedBuffer takes a process's output while a test reads it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs a function's process against a Runtime API of its own until the test ends.
func start(t *testing.T, bootstrap string, env ...string) *runtimeAPI {
	t.Helper()
	r := &runtimeAPI{t: t, next: make(chan invocation), answers: make(chan answered, 1), exited: make(chan error, 1), log: &lockedBuffer{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /2018-06-01/runtime/invocation/next", func(w http.ResponseWriter, req *http.Request) {
		select {
		case i := <-r.next:
			w.Header().Set("Lambda-Runtime-Aws-Request-Id", i.id)
			w.Header().Set("Lambda-Runtime-Deadline-Ms", fmt.Sprint(i.deadline.UnixMilli()))
			w.Header().Set("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:eu-central-1:111122223333:function:onceload-test")
			if _, err := w.Write(i.payload); err != nil {
				t.Errorf("next: %v", err)
			}
		case <-req.Context().Done():
		}
	})
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/{kind}", func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Errorf("answer: %v", err)
		}
		w.WriteHeader(http.StatusAccepted)
		r.answers <- answered{id: req.PathValue("id"), kind: req.PathValue("kind"), body: body}
	})
	srv := httptest.NewServer(mux)
	cmd := exec.CommandContext(t.Context(), bootstrap)
	cmd.Env = append(env, "AWS_LAMBDA_RUNTIME_API="+strings.TrimPrefix(srv.URL, "http://"))
	cmd.Stdout, cmd.Stderr = r.log, r.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		r.exited <- cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		srv.CloseClientConnections()
		srv.Close()
	})
	return r
}

// invoke invokes the function once and waits for its answer, or for its end.
func (r *runtimeAPI) invoke(id string, payload []byte, limit time.Duration) (a answered, ended bool) {
	r.t.Helper()
	fail := time.NewTimer(30 * time.Second)
	defer fail.Stop()
	select {
	case r.next <- invocation{id: id, payload: payload, deadline: time.Now().Add(limit)}:
	case err := <-r.exited:
		r.t.Fatalf("the process ended before it took the call: %v\n%s", err, r.log)
	case <-fail.C:
		r.t.Fatalf("the function asked for no call\n%s", r.log)
	}
	select {
	case a = <-r.answers:
		if a.id != id {
			r.t.Errorf("answer to %s, want %s", a.id, id)
		}
		return a, false
	case err := <-r.exited:
		r.t.Logf("the process ended: %v", err)
		return answered{}, true
	case <-fail.C:
		r.t.Fatalf("no answer\n%s", r.log)
		return answered{}, false
	}
}

// logs waits until the process's log has a text, and says if it has it more than once: the log comes by a pipe.
func (r *runtimeAPI) logs(want string) {
	r.t.Helper()
	n := 0
	for range 1000 {
		if n = strings.Count(r.log.String(), want); n > 0 {
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	if n != 1 {
		r.t.Errorf("%d times %s in the log:\n%s", n, want, r.log)
	}
}

// environment is what the functions are configured with, the stores at these endpoints.
func environment(s3, dynamodb string) []string {
	return []string{
		"AWS_REGION=eu-central-1", "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test", "AWS_MAX_ATTEMPTS=1", "AWS_EC2_METADATA_DISABLED=true",
		"AWS_ENDPOINT_URL_S3=" + s3, "AWS_ENDPOINT_URL_DYNAMODB=" + dynamodb,
		storecloud.EnvRawBucket + "=" + rawBucket, storecloud.EnvStageBucket + "=onceload-stage", storecloud.EnvLedgerTable + "=onceload-ledger",
	}
}

// closedPort is an address where nobody answers.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

// TestErrorNames: what a built function tells Lambda when it fails, over the Runtime API.
func TestErrorNames(t *testing.T) {
	bootstrap := build(t, etl.StageGate)[etl.StageGate]
	release := make(chan struct{})
	hanging := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer hanging.Close()
	defer close(release)
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"__type":"com.amazonaws.dynamodb.v20120810#ResourceNotFoundException","message":"no such table"}`)
	}))
	defer refusing.Close()
	empty := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) }))
	defer empty.Close()

	tests := []struct {
		name     string
		dynamodb string
		payload  string
		limit    time.Duration
		kind     etl.Kind
		message  string
	}{
		{"no JSON", empty.URL, `nonsense`, time.Minute, etl.Usage, "want a JSON object"},
		{"an unknown member", empty.URL, `{"executions":"x"}`, time.Minute, etl.Usage, `unknown field "executions"`},
		{"no batch item", empty.URL, string(read(t, "gate.json")), time.Minute, etl.Superseded, "nobody claimed the batch"},
		{"nobody at the endpoint", closedPort(t), string(read(t, "gate.json")), time.Minute, etl.StoreUnavailable, "connection refused"},
		{"no table", refusing.URL, string(read(t, "gate.json")), time.Minute, etl.StoreUnavailable, "no such table"},
		{"out of time", hanging.URL, string(read(t, "gate.json")), 300 * time.Millisecond, etl.StageTimedOut, "deadline exceeded"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, bootstrap, environment(closedPort(t), tt.dynamodb)...)
			for n := range 2 { // the process lives on after an error
				id := fmt.Sprint("request-", n)
				a, ended := r.invoke(id, []byte(tt.payload), tt.limit)
				if ended {
					t.Fatalf("the process ended\n%s", r.log)
				}
				var e messages.InvokeResponse_Error
				if err := json.Unmarshal(a.body, &e); err != nil || a.kind != "error" {
					t.Fatalf("%s %s: %v", a.kind, a.body, err)
				}
				if e.Type != string(tt.kind) || !strings.Contains(e.Message, tt.message) || len(e.StackTrace) != 0 {
					t.Errorf("%s %q, want %s … %q", e.Type, e.Message, tt.kind, tt.message)
				}
				r.logs(fmt.Sprintf(`"request_id":%q`, id))
			}
		})
	}
}

// TestDeaths: a panic answers StageCrashed and ends the process; what cannot answer ends it, which Lambda reports as
// Runtime.ExitError.
func TestDeaths(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("panic", func(t *testing.T) {
		r := start(t, self, envDie+"=yes")
		a, ended := r.invoke("request-1", []byte(`"panic"`), time.Minute)
		var e messages.InvokeResponse_Error
		if err := json.Unmarshal(a.body, &e); ended || err != nil || a.kind != "error" || e.Type != "StageCrashed" || e.Message != "panic: boom" {
			t.Errorf("ended %v, %s %s", ended, a.kind, a.body)
		}
		if err := <-r.exited; err == nil {
			t.Error("the process ended as if nothing had happened")
		}
		r.logs(`"msg":"panic"`)
		r.logs(`functions_test.die(`)
	})
	for _, payload := range []string{`"exit"`, `"goroutine"`} {
		t.Run(payload, func(t *testing.T) {
			r := start(t, self, envDie+"=yes")
			if a, ended := r.invoke("request-1", []byte(`"alive"`), time.Minute); ended || a.kind != "response" || string(a.body) != `"alive"` {
				t.Errorf("ended %v, %s %s", ended, a.kind, a.body)
			}
			if a, ended := r.invoke("request-2", []byte(payload), time.Minute); !ended {
				t.Errorf("%s %s", a.kind, a.body)
			}
		})
	}
}

// TestBadConfiguration: a function that is not configured does not start, and says all that is missing.
func TestBadConfiguration(t *testing.T) {
	r := start(t, build(t, etl.StageLoad)[etl.StageLoad], "AWS_REGION=eu-central-1", "ONCELOAD_MARGIN=soon")
	if err := <-r.exited; err == nil {
		t.Error("it ended as if nothing had happened")
	}
	for _, want := range []string{"cannot start", "ONCELOAD_RAW_BUCKET", "ONCELOAD_STAGE_BUCKET", "ONCELOAD_LEDGER_TABLE", "ONCELOAD_MARGIN"} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("%s is not in the log:\n%s", want, r.log)
		}
	}
}
