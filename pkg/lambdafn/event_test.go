package lambdafn_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/lambdafn"
)

func s3Record(event, bucket, key string) string {
	return fmt.Sprintf(`{"eventVersion":"2.1","eventSource":"aws:s3","eventName":%q,"s3":{"bucket":{"name":%q},"object":{"key":%q,"size":1,"eTag":"e","versionId":"v","sequencer":"0a"}}}`, event, bucket, key)
}

func notification(records ...string) string {
	return `{"Records":[` + strings.Join(records, ",") + `]}`
}

// TestArrivals: R29. The keys with escapes are those that S3 makes of names with spaces, accents and percent signs.
func TestArrivals(t *testing.T) {
	const put = "ObjectCreated:Put"
	tests := []struct {
		name    string
		payload string
		keys    []string // that Landed is given
		out     string
		err     string
	}{
		{"payload of the machine", `{"execution":"x","range":{}}`, nil, "stage", ""},
		{"no JSON", `nonsense`, nil, "stage", ""},
		{"a list", `[]`, nil, "stage", ""},
		{"decoded once", notification(
			s3Record(put, "raw", "raw/dt%3D2026-11-30/caf%C3%A9+%2B1+%28copy%29.json"), s3Record(put, "raw", "raw/a%252Fb"), s3Record("ObjectCreated:CompleteMultipartUpload", "raw", "plain")),
			[]string{"raw/dt=2026-11-30/café +1 (copy).json", "raw/a%2Fb", "plain"}, `{"done":3,"ignored":0}`, ""},
		{"a bad escape sinks no other record", notification(s3Record(put, "raw", "one"), s3Record(put, "raw", "raw/100%.json"), s3Record(put, "raw", "three")),
			[]string{"one", "three"}, "", `record 1 of the S3 notification: key "raw/100%.json": invalid URL escape "%.j"`},
		{"nor does a failure", notification(s3Record(put, "raw", "fails"), s3Record(put, "raw", "two")),
			[]string{"fails", "two"}, "", "record 0 of the S3 notification: down"},
		{"a bucket of others, a deletion, a key of others", notification(s3Record(put, "other", "one"), s3Record("ObjectRemoved:Delete", "raw", "one"), s3Record(put, "raw", "foreign")),
			[]string{"foreign"}, `{"done":0,"ignored":3}`, ""},
		{"no records", notification(), nil, `{"done":0,"ignored":0}`, ""},
		{"test of the notification", `{"Service":"Amazon S3","Event":"s3:TestEvent","Time":"2026-11-30T00:00:00Z","Bucket":"raw"}`, nil, `{"done":0,"ignored":1}`, ""},
		{"Object Created: not decoded", `{"version":"0","detail-type":"Object Created","source":"aws.s3","detail":{"version":"0","bucket":{"name":"raw","aws-generated-tags":{}},"object":{"key":"raw/a+b%2Fc","version-id":"v"},"event-version":"1.1"}}`,
			[]string{"raw/a+b%2Fc"}, `{"done":1,"ignored":0}`, ""},
		{"Object Created elsewhere", `{"detail-type":"Object Created","source":"aws.s3","detail":{"bucket":{"name":"other"},"object":{"key":"k"}}}`, nil, `{"done":0,"ignored":1}`, ""},
		{"Object Created, failing", `{"detail-type":"Object Created","source":"aws.s3","detail":{"bucket":{"name":"raw"},"object":{"key":"fails"}}}`, []string{"fails"}, "", "down"},
		{"Object Created, malformed", `{"detail-type":"Object Created","source":"aws.s3","detail":7}`, nil, "", "event Object Created: detail: json: cannot unmarshal number into Go value of type lambdafn.objectCreated"},
		{"Object Deleted", `{"detail-type":"Object Deleted","source":"aws.s3","detail":{"bucket":{"name":"raw"},"object":{"key":"k"}}}`, nil, `{"done":0,"ignored":1}`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var keys []string
			var log bytes.Buffer
			h := lambdafn.Arrivals{Bucket: "raw", Log: lambdafn.NewLog(&log), Landed: func(_ context.Context, key string) (bool, string, error) {
				keys = append(keys, key)
				switch key {
				case "fails":
					return false, "", etl.Errorf(etl.StoreUnavailable, "down")
				case "foreign":
					return false, "it is nobody's", nil
				}
				return true, "", nil
			}}.Or(func(context.Context, []byte) ([]byte, error) { return []byte("stage"), nil })
			out, err := h(t.Context(), []byte(tt.payload))
			if got := message(err); string(out) != tt.out || got != tt.err {
				t.Errorf("%s, error %q; want %s, %q", out, got, tt.out, tt.err)
			}
			if !slices.Equal(keys, tt.keys) {
				t.Errorf("keys %q, want %q", keys, tt.keys)
			}
			for _, l := range lines(t, &log) {
				if l["reason"] == "" || l["reason"] == nil {
					t.Errorf("ignored without a reason: %v", l)
				}
			}
		})
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestEnds(t *testing.T) {
	event := func(detailType, source, detail string) string {
		return fmt.Sprintf(`{"version":"0","detail-type":%q,"source":%q,"detail":%s}`, detailType, source, detail)
	}
	const change = "Step Functions Execution Status Change"
	tests := []struct {
		name, payload, out, err string
	}{
		{"payload of the machine", `{"op":"settle"}`, "stage", ""},
		{"no JSON", `nonsense`, "stage", ""},
		{"failed", event(change, "aws.states", `{"executionArn":"arn:x","status":"FAILED","redriveCount":2,"input":null,"inputDetails":{"included":false},"error":null}`), `{"done":1,"ignored":0}`, ""},
		{"ignored", event(change, "aws.states", `{"executionArn":"arn:x","status":"RUNNING","redriveCount":2}`), `{"done":0,"ignored":1}`, ""},
		{"error", event(change, "aws.states", `{"executionArn":"arn:x","status":"ABORTED","redriveCount":2}`), "", "down"},
		{"malformed", event(change, "aws.states", `{"executionArn":7}`), "", "event Step Functions Execution Status Change: detail: json: cannot unmarshal number into Go struct field statusChange.executionArn of type string"},
		{"another event", event("Object Created", "aws.s3", `{}`), "", `event "Object Created" of "aws.s3": want a status change of an execution`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var log bytes.Buffer
			h := lambdafn.Ends{Log: lambdafn.NewLog(&log), Ended: func(_ context.Context, execution, status string, redrives int) (bool, string, error) {
				if execution != "arn:x" || redrives != 2 {
					t.Errorf("%s, %d", execution, redrives)
				}
				if status == "ABORTED" {
					return false, "", errors.New("down")
				}
				return status == "FAILED", "it runs", nil
			}}.Or(func(context.Context, []byte) ([]byte, error) { return []byte("stage"), nil })
			out, err := h(t.Context(), []byte(tt.payload))
			if got := message(err); string(out) != tt.out || got != tt.err {
				t.Errorf("%s, error %q; want %s, %q", out, got, tt.out, tt.err)
			}
			if l := lines(t, &log); (tt.name == "ignored") != (len(l) == 1 && l[0]["reason"] == "it runs") {
				t.Errorf("log %v", l)
			}
		})
	}
}
