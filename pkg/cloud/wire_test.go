package cloud_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/onceload/onceload/pkg/cloud"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/stage"
	"github.com/onceload/onceload/pkg/store"
)

const execution = "arn:aws:states:eu-central-1:111122223333:execution:onceload:orders-1"

// service is an AWS service that always answers the same.
type service struct {
	mu     sync.Mutex
	status int
	answer string
	target string // X-Amz-Target of the last call
	body   string // of the last call
	calls  int
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.target, s.body = r.Header.Get("X-Amz-Target"), string(b)
	s.calls++
	if s.status == 0 {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(s.status)
	_, _ = io.WriteString(w, s.answer)
}

// now makes the service answer otherwise from now on.
func (s *service) now(status int, answer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.answer = status, answer
}

// asked is the last call, and how many there were.
func (s *service) asked() (target, body string, calls int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.target, s.body, s.calls
}

// config is the SDK's, pointed at the service.
func (s *service) config(t *testing.T) aws.Config {
	t.Helper()
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return aws.Config{
		Region: "eu-central-1", BaseEndpoint: &srv.URL, RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider("id", "key", ""),
	}
}

// TestAlive: every answer of DescribeExecution. Any doubt is an error, never Ended.
func TestAlive(t *testing.T) {
	status := func(s string) string {
		return fmt.Sprintf(`{"executionArn":%q,"status":%q,"startDate":1796036700}`, execution, s)
	}
	fault := func(code string) string { return fmt.Sprintf(`{"__type":%q,"message":"because"}`, code) }
	tests := []struct {
		name   string
		status int
		answer string
		want   ledger.Liveness
		err    string
	}{
		{"RUNNING", 200, status("RUNNING"), ledger.Running, ""},
		{"PENDING_REDRIVE", 200, status("PENDING_REDRIVE"), ledger.Running, ""},
		{"SUCCEEDED", 200, status("SUCCEEDED"), ledger.Ended, ""},
		{"FAILED", 200, status("FAILED"), ledger.Ended, ""},
		{"TIMED_OUT", 200, status("TIMED_OUT"), ledger.Ended, ""},
		{"ABORTED", 200, status("ABORTED"), ledger.Ended, ""},
		{"does not exist", 400, fault("ExecutionDoesNotExist"), ledger.Unknown, ""},
		{"a status of tomorrow", 200, status("PAUSED"), 0, `"PAUSED"`},
		{"no status", 200, `{}`, 0, `""`},
		{"no JSON", 200, `<html>`, 0, "describe execution"},
		{"invalid arn", 400, fault("InvalidArn"), 0, "did not run on Step Functions"},
		{"throttled", 400, fault("ThrottlingException"), 0, "because"},
		{"denied", 400, fault("AccessDeniedException"), 0, "because"},
		{"validation", 400, fault("ValidationException"), 0, "because"},
		{"server error", 500, `{}`, 0, "500"},
		{"broken off", 0, "", 0, "describe execution"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &service{status: tt.status, answer: tt.answer}
			got, err := cloud.NewExecutions(s.config(t)).Alive(t.Context(), execution)
			if got != tt.want {
				t.Errorf("liveness %d, want %d", got, tt.want)
			}
			if target, body, _ := s.asked(); target != "AWSStepFunctions.DescribeExecution" || !strings.Contains(body, execution) {
				t.Errorf("asked %s %s", target, body)
			}
			switch {
			case tt.err == "" && err != nil, tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err) || etl.KindOf(err) != etl.StoreUnavailable):
				t.Errorf("error %v (%s), want %q", err, etl.KindOf(err), tt.err)
			}
		})
	}
}

func TestAliveOfCancelledContext(t *testing.T) {
	s := &service{status: 200, answer: `{}`}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got, err := cloud.NewExecutions(s.config(t)).Alive(ctx, execution)
	if got != 0 || !errors.Is(err, context.Canceled) || etl.KindOf(err) != etl.Interrupted {
		t.Errorf("%d, %v", got, err)
	}
}

func TestDescribe(t *testing.T) {
	s := &service{status: 200, answer: `{"executionArn":"x","status":"FAILED","startDate":1796036700,"redriveCount":3,"input":"{\"pipeline\":\"orders\"}","error":"States.Runtime","cause":"why"}`}
	e := cloud.NewExecutions(s.config(t))
	got, err := e.Describe(t.Context(), execution)
	if want := (stage.Described{Status: "FAILED", Redrives: 3, Input: `{"pipeline":"orders"}`, Error: "States.Runtime", Cause: "why"}); got != want || err != nil {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	s.now(200, `{"status":"ABORTED","input":null,"error":null,"redriveCount":null}`)
	if got, err := e.Describe(t.Context(), execution); got != (stage.Described{Status: "ABORTED"}) || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	s.now(400, `{"__type":"ExecutionDoesNotExist"}`)
	if _, err := e.Describe(t.Context(), execution); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func TestSecret(t *testing.T) {
	s := &service{status: 200, answer: `{"Name":"onceload/api-token","SecretString":"hush"}`}
	secrets := cloud.NewSecrets(s.config(t), "onceload/")
	now := time.Date(2026, 11, 30, 11, 0, 0, 0, time.UTC)
	secrets.Now = func() time.Time { return now }
	get := func(want string, calls int) {
		t.Helper()
		got, err := secrets.Secret(t.Context(), "api-token")
		if _, _, n := s.asked(); got != want || err != nil || n != calls {
			t.Errorf("%q, %v after %d calls; want %q after %d", got, err, n, want, calls)
		}
	}
	get("hush", 1)
	if target, body, _ := s.asked(); target != "secretsmanager.GetSecretValue" || body != `{"SecretId":"onceload/api-token"}` {
		t.Errorf("asked %s %s", target, body)
	}
	s.now(200, `{"SecretString":"rotated"}`)
	now = now.Add(5*time.Minute - 1)
	get("hush", 1)
	now = now.Add(1)
	get("rotated", 2)
}

func TestSecretErrors(t *testing.T) {
	tests := []struct {
		name   string
		status int
		answer string
		kind   etl.Kind
		say    string
	}{
		{"unknown", 400, `{"__type":"ResourceNotFoundException","Message":"gone"}`, etl.SourceRejected, "no secret onceload/api-token in Secrets Manager: create it"},
		{"denied", 400, `{"__type":"AccessDeniedException","Message":"no"}`, etl.SourceRejected, "secretsmanager:GetSecretValue"},
		{"deleted", 400, `{"__type":"InvalidRequestException","Message":"marked for deletion"}`, etl.SourceRejected, "marked for deletion"},
		{"key", 400, `{"__type":"DecryptionFailure","Message":"kms"}`, etl.SourceRejected, "kms"},
		{"binary", 200, `{"SecretBinary":"aHVzaA=="}`, etl.SourceRejected, "is binary"},
		{"throttled", 400, `{"__type":"ThrottlingException","Message":"slow"}`, etl.StoreUnavailable, "onceload/api-token"},
		{"server error", 500, `{"__type":"InternalServiceError"}`, etl.StoreUnavailable, "onceload/api-token"},
		{"broken off", 0, "", etl.StoreUnavailable, "onceload/api-token"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &service{status: tt.status, answer: tt.answer}
			secrets := cloud.NewSecrets(s.config(t), "onceload/")
			got, err := secrets.Secret(t.Context(), "api-token")
			if got != "" || err == nil || etl.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.say) || strings.Contains(err.Error(), "aHVzaA") {
				t.Errorf("%q, %v (%s); want %s %q", got, err, etl.KindOf(err), tt.kind, tt.say)
			}
			// A failure is not kept.
			s.now(200, `{"SecretString":"hush"}`)
			if got, err := secrets.Secret(t.Context(), "api-token"); got != "hush" || err != nil {
				t.Errorf("then %q, %v", got, err)
			}
		})
	}
}

func alert(batch string, count int) stage.Alert {
	return stage.Alert{Batch: batch, Pipeline: "orders", Execution: execution, Count: count, Failure: ledger.FailureInfo{
		Stage: etl.StageExtract, Kind: etl.SourceRejected, Message: "401 & no words", Hint: "Fix the secret.", At: "2026-11-30T11:00:00Z",
	}}
}

func TestAlert(t *testing.T) {
	const ok = `<PublishResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><PublishResult><MessageId>1</MessageId></PublishResult></PublishResponse>`
	long := strings.Repeat("a", 63) + "/20261130T100000Z"
	for _, tt := range []struct {
		name, subject string
		alert         stage.Alert
	}{
		{"first", "onceload: orders/20261130T100000Z failed: SourceRejected", alert("orders/20261130T100000Z", 1)},
		{"again", "FAILED 3 TIMES: orders/20261130T100000Z: SourceRejected", alert("orders/20261130T100000Z", 3)},
		{"cut", ("onceload: " + long + " failed: SourceRejected")[:99], alert(long, 1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &service{status: 200, answer: ok}
			if err := cloud.NewAlerts(s.config(t), "arn:topic").Alert(t.Context(), tt.alert); err != nil {
				t.Fatal(err)
			}
			_, body, _ := s.asked()
			form, err := url.ParseQuery(body)
			if err != nil {
				t.Fatal(err)
			}
			if form.Get("Action") != "Publish" || form.Get("TopicArn") != "arn:topic" || form.Get("Subject") != tt.subject {
				t.Errorf("sent %v", form)
			}
			for _, want := range []string{tt.alert.Batch, "extract", "401 & no words", "Fix the secret.", execution, fmt.Sprintf("failures so far: %d", tt.alert.Count)} {
				if !strings.Contains(form.Get("Message"), want) {
					t.Errorf("%q is not in the message:\n%s", want, form.Get("Message"))
				}
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		s := &service{status: 404, answer: `<ErrorResponse><Error><Type>Sender</Type><Code>NotFound</Code><Message>Topic does not exist</Message></Error></ErrorResponse>`}
		err := cloud.NewAlerts(s.config(t), "arn:topic").Alert(t.Context(), alert("orders/20261130T100000Z", 1))
		if err == nil || etl.KindOf(err) != etl.StoreUnavailable || !strings.Contains(err.Error(), "publish to arn:topic") || !strings.Contains(err.Error(), "Topic does not exist") {
			t.Errorf("%v", err)
		}
	})
}
