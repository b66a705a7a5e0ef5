package cloud_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/cloud"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/lambdafn"
	storecloud "github.com/onceload/onceload/pkg/store/cloud"
)

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}
}

func full() map[string]string {
	return map[string]string{
		"ONCELOAD_RAW_BUCKET": "raw", "ONCELOAD_STAGE_BUCKET": "stage", "ONCELOAD_LEDGER_TABLE": "ledger", "ONCELOAD_TARGET_PREFIX": "dev-",
		"ONCELOAD_ALERTS_TOPIC_ARN": "arn:topic", "ONCELOAD_SECRET_PREFIX": "onceload/", "ONCELOAD_MARGIN": "15s",
	}
}

func TestParseConfig(t *testing.T) {
	got, err := cloud.ParseConfig(lookup(full()))
	want := cloud.Config{
		Stores:      storecloud.Names{RawBucket: "raw", StageBucket: "stage", LedgerTable: "ledger", TargetPrefix: "dev-"},
		AlertsTopic: "arn:topic", SecretPrefix: "onceload/", Margin: 15 * time.Second,
	}
	if err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for _, optional := range []string{"ONCELOAD_TARGET_PREFIX", "ONCELOAD_ALERTS_TOPIC_ARN", "ONCELOAD_SECRET_PREFIX", "ONCELOAD_MARGIN"} {
		env := full()
		delete(env, optional)
		if _, err := cloud.ParseConfig(lookup(env)); err != nil {
			t.Errorf("without %s: %v", optional, err)
		}
	}
}

// TestParseConfigFaults: all faults at once.
func TestParseConfigFaults(t *testing.T) {
	tests := []struct {
		name string
		env  map[string]string
		want string
	}{
		{"nothing", nil, "environment variable ONCELOAD_RAW_BUCKET is not set\nenvironment variable ONCELOAD_STAGE_BUCKET is not set\nenvironment variable ONCELOAD_LEDGER_TABLE is not set"},
		{"empty", map[string]string{"ONCELOAD_RAW_BUCKET": "", "ONCELOAD_STAGE_BUCKET": "s", "ONCELOAD_LEDGER_TABLE": "l", "ONCELOAD_MARGIN": "soon"},
			"environment variable ONCELOAD_RAW_BUCKET is not set\nenvironment variable ONCELOAD_MARGIN: \"soon\" is not a time like 10s"},
		{"one bucket", map[string]string{"ONCELOAD_RAW_BUCKET": "b", "ONCELOAD_STAGE_BUCKET": "b", "ONCELOAD_LEDGER_TABLE": "l", "ONCELOAD_MARGIN": "-1s"},
			"ONCELOAD_RAW_BUCKET and ONCELOAD_STAGE_BUCKET both name b: raw and stage objects need a bucket each\nenvironment variable ONCELOAD_MARGIN: \"-1s\" is not a time like 10s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := cloud.ParseConfig(lookup(tt.env))
			if err == nil || err.Error() != tt.want || etl.KindOf(err) != etl.Usage {
				t.Errorf("%v\nwant %s", err, tt.want)
			}
		})
	}
}

func isolate(t *testing.T) {
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
}

// TestDeps: what the configuration asks for is wired, and a path is no pipeline.
func TestDeps(t *testing.T) {
	isolate(t)
	t.Setenv("AWS_REGION", "eu-central-1")
	var log bytes.Buffer
	c, err := cloud.ParseConfig(lookup(full()))
	if err != nil {
		t.Fatal(err)
	}
	d, err := cloud.Deps(t.Context(), c, lambdafn.NewLog(&log))
	if err != nil {
		t.Fatal(err)
	}
	if d.Raw == nil || d.Stage == nil || d.Ledger.Table == nil || d.Liveness == nil || d.Executions == nil || d.Secrets == nil || d.Alerts == nil || d.Margin != 15*time.Second {
		t.Errorf("%+v", d)
	}
	p, err := d.Pipelines("orders")
	if err != nil {
		t.Fatal(err)
	}
	if target, err := d.Target(t.Context(), p); target == nil || err != nil {
		t.Errorf("target %v, %v", target, err)
	}
	for _, name := range []string{"pipelines/orders.yaml", "/etc/passwd", "../orders.yml", "unheard-of"} {
		if _, err := d.Pipelines(name); etl.KindOf(err) != etl.Usage || err == nil {
			t.Errorf("pipeline %q: %v", name, err)
		}
	}
	c.AlertsTopic = ""
	if d, err = cloud.Deps(t.Context(), c, lambdafn.NewLog(&log)); err != nil || d.Alerts != nil {
		t.Errorf("alerts %v without a topic, %v", d.Alerts, err)
	}
}

func TestDepsWithoutRegion(t *testing.T) {
	isolate(t)
	_, err := cloud.Function(t.Context(), etl.StageGate, lookup(full()), lambdafn.NewLog(&bytes.Buffer{}))
	if err == nil || etl.KindOf(err) != etl.Usage || !strings.Contains(err.Error(), "AWS_REGION") {
		t.Errorf("%v", err)
	}
}
