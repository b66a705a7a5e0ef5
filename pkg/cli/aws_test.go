package cli_test

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// onAWS points the AWS adapters at an endpoint.
func onAWS(t *testing.T, endpoint string) map[string]string {
	t.Helper()
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL_S3": endpoint, "AWS_ENDPOINT_URL_DYNAMODB": endpoint, "AWS_REGION": "us-east-1",
		"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_MAX_ATTEMPTS": "1",
	} {
		t.Setenv(name, value)
	}
	return map[string]string{"ONCELOAD_RAW_BUCKET": "raw", "ONCELOAD_STAGE_BUCKET": "stage", "ONCELOAD_LEDGER_TABLE": "ledger", "ONCELOAD_TARGET_PREFIX": "my-"}
}

// TestDeadStoreIsTold: while the state machine calls a stage again, standard error says which, why, and when. R8, R11
func TestDeadStoreIsTold(t *testing.T) {
	env := onAWS(t, "http://127.0.0.1:1")
	h, clock := newHome(t), newWall()
	url, _ := answers(t, 200, "application/json", `{"data":[{"id":1}]}`)
	code, stdout, stderr := h.inProcess(clock, env, "run", h.file("shop.yaml", fmt.Sprintf(shop, "")), "--on", "aws", "--slot", slot, "--source", url)
	if code != 1 || !strings.Contains(stdout+stderr, "StoreUnavailable") {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	for _, want := range []string{
		"warn: the stores do not answer: going on, since the run tries again  cause=",
		"warn: a stage failed and is called again  state=Extract  attempt=1  error=StoreUnavailable  next_in=1s  cause=",
		"connection refused",
		"state=Extract  attempt=5", "state=RecordFailure  attempt=1",
	} {
		if !strings.Contains(stderr, want) {
			t.Errorf("standard error does not say %q:\n%s", want, stderr)
		}
	}
}

// emptyAWS answers as S3 and DynamoDB do that hold nothing, and lack what is absent altogether: bucket and table names.
func emptyAWS(t *testing.T, absent ...string) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		_, operation, dynamo := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
		there := !slices.ContainsFunc(absent, func(name string) bool {
			return dynamo && bytes.Contains(body, []byte(`"`+name+`"`)) || !dynamo && strings.HasPrefix(r.URL.Path, "/"+name)
		})
		status, answer := http.StatusForbidden, "" // whatever else a run asks: the tests want to know only how far it came
		switch {
		case dynamo && !there:
			status, answer = http.StatusBadRequest, `{"__type":"com.amazonaws.dynamodb.v20120810#ResourceNotFoundException","message":"Requested resource not found"}`
		case dynamo && operation == "BatchGetItem":
			status, answer = http.StatusOK, `{"Responses":{},"UnprocessedKeys":{}}`
		case dynamo && operation == "GetItem":
			status, answer = http.StatusOK, `{}`
		case !dynamo && !there:
			status, answer = http.StatusNotFound, `<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>`
		case !dynamo && r.Method == http.MethodGet && r.URL.Query().Get("list-type") == "2":
			status, answer = http.StatusOK, `<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>`
		}
		w.Header().Set("X-Amz-Crc32", fmt.Sprint(crc32.ChecksumIEEE([]byte(answer))))
		w.WriteHeader(status)
		fmt.Fprint(w, answer)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// TestMissingStores: a run says at once which buckets and tables are not there, before it asks the source for anything.
func TestMissingStores(t *testing.T) {
	for _, c := range []struct {
		absent, says []string
	}{
		{[]string{"my-shop"}, []string{"the DynamoDB table my-shop does not exist", "ONCELOAD_TARGET_PREFIX", "template.yaml"}},
		{[]string{"ledger"}, []string{"the DynamoDB table ledger does not exist", "ONCELOAD_LEDGER_TABLE"}},
		{[]string{"raw", "stage"}, []string{"the S3 bucket raw does not exist", "ONCELOAD_RAW_BUCKET", "the S3 bucket stage does not exist", "ONCELOAD_STAGE_BUCKET"}},
	} {
		t.Run(c.absent[0], func(t *testing.T) {
			env := onAWS(t, emptyAWS(t, c.absent...))
			h, clock := newHome(t), newWall()
			url, calls := answers(t, 200, "application/json", `{"data":[{"id":1}]}`)
			code, stdout, stderr := h.inProcess(clock, env, "run", h.file("shop.yaml", fmt.Sprintf(shop, "")), "--on", "aws", "--slot", slot, "--source", url)
			if code != 1 || calls.Load() != 0 || len(clock.sleeps) > 0 {
				t.Errorf("exit code %d, %d calls of the source, slept %v\n%s", code, calls.Load(), clock.sleeps, stdout)
			}
			for _, want := range append(c.says, "StoreUnavailable") {
				if !strings.Contains(stderr, want) {
					t.Errorf("standard error does not say %q:\n%s", want, stderr)
				}
			}
		})
	}
	t.Run("all there", func(t *testing.T) {
		env := onAWS(t, emptyAWS(t))
		h, clock := newHome(t), newWall()
		_, _, stderr := h.inProcess(clock, env, "run", h.file("shop.yaml", fmt.Sprintf(shop, "")), "--on", "aws", "--slot", slot)
		if strings.Contains(stderr, "does not exist") || !strings.Contains(stderr, "state=Extract") {
			t.Errorf("the run did not begin:\n%s", stderr)
		}
	})
}
