package cloud_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/cloud"
)

// request is what came over the wire.
type request struct {
	*http.Request
	body []byte
}

// target is the operation of a DynamoDB request.
func (r request) target() string { return r.Header.Get("X-Amz-Target")[len("DynamoDB_20120810."):] }

// json decodes a DynamoDB request.
func (r request) json(t *testing.T) (in map[string]any) {
	t.Helper()
	if err := json.Unmarshal(r.body, &in); err != nil {
		t.Fatalf("%s: %v", r.body, err)
	}
	return in
}

// reply is what goes back. drop cuts the connection instead: the work was done, the reply is lost.
type reply struct {
	status int
	header map[string]string
	body   string
	drop   bool
	cut    bool // announces more than it sends
}

// wire is a server that answers request after request from a function.
type wire struct {
	*httptest.Server
	mu   sync.Mutex
	seen []request
}

func newWire(t *testing.T, secure bool, answer func(n int, r request) reply) *wire {
	w := &wire{}
	handler := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("read a request: %v", err)
		}
		req := request{r, body}
		w.mu.Lock()
		n := len(w.seen)
		w.seen = append(w.seen, req)
		a := answer(n, req)
		w.mu.Unlock()
		if a.drop {
			panic(http.ErrAbortHandler)
		}
		for k, v := range a.header {
			rw.Header().Set(k, v)
		}
		if a.cut {
			rw.Header().Set("Content-Length", "1000")
		}
		rw.WriteHeader(max(a.status, http.StatusOK))
		if _, err := io.WriteString(rw, a.body); err != nil {
			t.Errorf("answer: %v", err)
		}
	})
	if secure {
		w.Server = httptest.NewTLSServer(handler)
	} else {
		w.Server = httptest.NewServer(handler)
	}
	t.Cleanup(w.Close)
	return w
}

// sleeps records waits instead of waiting.
type sleeps struct {
	mu    sync.Mutex
	waits []time.Duration
}

func (s *sleeps) retry() cloud.Retry {
	r := cloud.DefaultRetry()
	r.Attempts, r.Patience = 4, 0
	r.Rand = func() float64 { return 1 }
	r.Sleep = func(ctx context.Context, d time.Duration) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.waits = append(s.waits, d)
		return ctx.Err()
	}
	return r
}

// retryer is the SDK's own, without its waits.
func retryer(attempts int) aws.Retryer {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts = attempts
		o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return 0, nil })
	})
}

func (w *wire) objects(attempts int) (*cloud.Objects, *sleeps) {
	o := cloud.NewObjects(s3.New(s3.Options{
		Region: "eu-west-1", BaseEndpoint: &w.URL, UsePathStyle: true, HTTPClient: w.Client(), Retryer: retryer(attempts),
		Credentials: credentials.NewStaticCredentialsProvider("id", "secret", ""),
		// What config.LoadDefaultConfig sets.
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenSupported,
	}), "bucket")
	s := &sleeps{}
	o.Retry = s.retry()
	return o, s
}

func (w *wire) table(attempts int) (*cloud.Table, *sleeps) {
	t := cloud.NewTable(dynamodb.New(dynamodb.Options{
		Region: "eu-west-1", BaseEndpoint: &w.URL, HTTPClient: w.Client(), Retryer: retryer(attempts),
		Credentials: credentials.NewStaticCredentialsProvider("id", "secret", ""),
	}), store.Schema{Name: "orders", SortKey: true, Indexes: []store.Index{{Name: "by_slot", PK: "pipeline", SK: "slot"}}})
	s := &sleeps{}
	t.Retry = s.retry()
	return t, s
}

// wantKind checks an error's kind, and that nobody takes it for one of the store's conditions.
func wantKind(t *testing.T, err error, want etl.Kind) {
	t.Helper()
	if err == nil || etl.KindOf(err) != want {
		t.Errorf("error %v of kind %s, want %s", err, etl.KindOf(err), want)
	}
	wantPlain(t, err)
}

func wantPlain(t *testing.T, err error) {
	t.Helper()
	if is(err, store.ErrExists) || is(err, store.ErrNotFound) || is(err, store.ErrCondition) {
		t.Errorf("error %v reads as a condition", err)
	}
}

// wantWaits checks how long was waited: ceilings of 50, 100, 200 ms, as the random part is pinned to the most.
func (s *sleeps) want(t *testing.T, ms ...int) {
	t.Helper()
	var got []int
	for _, w := range s.waits {
		got = append(got, int(w/time.Millisecond))
	}
	if !slices.Equal(got, ms) {
		t.Errorf("waited %v ms, want %v", got, ms)
	}
}

func (w *wire) requests() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.seen)
}

func (w *wire) wantRequests(t *testing.T, n int) {
	t.Helper()
	if got := w.requests(); got != n {
		t.Errorf("%d requests, want %d", got, n)
	}
}
