package cli_test

import (
	"fmt"
	"strings"
	"testing"
)

// onDead points the AWS adapters at a port where nobody listens.
func onDead(t *testing.T) map[string]string {
	t.Helper()
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1", "AWS_ENDPOINT_URL_DYNAMODB": "http://127.0.0.1:1", "AWS_REGION": "us-east-1",
		"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_MAX_ATTEMPTS": "1",
	} {
		t.Setenv(name, value)
	}
	return map[string]string{"ONCELOAD_RAW_BUCKET": "raw", "ONCELOAD_STAGE_BUCKET": "stage", "ONCELOAD_LEDGER_TABLE": "ledger"}
}

// TestDeadStoreIsTold: while the state machine calls a stage again, standard error says which, why, and when. R8, R11
func TestDeadStoreIsTold(t *testing.T) {
	env := onDead(t)
	h, clock := newHome(t), newWall()
	url, _ := answers(t, 200, "application/json", `{"data":[{"id":1}]}`)
	code, stdout, stderr := h.inProcess(clock, env, "run", h.file("shop.yaml", fmt.Sprintf(shop, "")), "--on", "aws", "--slot", slot, "--source", url)
	if code != 1 || !strings.Contains(stdout+stderr, "StoreUnavailable") {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	for _, want := range []string{
		"warn: a stage failed and is called again  state=Extract  attempt=1  error=StoreUnavailable  next_in=1s  cause=",
		"connection refused",
		"state=Extract  attempt=5", "state=RecordFailure  attempt=1",
	} {
		if !strings.Contains(stderr, want) {
			t.Errorf("standard error does not say %q:\n%s", want, stderr)
		}
	}
}
