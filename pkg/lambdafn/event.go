package lambdafn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"

	"github.com/onceload/onceload/pkg/etl"
)

// envelope is what tells the shapes of an input apart. A payload of the state machine has none of these members. Events
// are read leniently: AWS adds members to them.
type envelope struct {
	Records    *[]s3Record     `json:"Records"`     // S3 notification
	Event      string          `json:"Event"`       // s3:TestEvent, sent when a notification is configured
	DetailType string          `json:"detail-type"` // EventBridge
	Source     string          `json:"source"`      // likewise
	Detail     json.RawMessage `json:"detail"`      // likewise
}

// s3Record is a record of an S3 notification, its key form-encoded. events.S3Object of aws-lambda-go decodes keys while
// it decodes the event, so that one bad escape loses all the event's records.
type s3Record struct {
	EventName string `json:"eventName"`
	S3        struct {
		Bucket struct {
			Name string `json:"name"`
		} `json:"bucket"`
		Object struct {
			Key string `json:"key"`
		} `json:"object"`
	} `json:"s3"`
}

// objectCreated is the detail of EventBridge's "Object Created". Its key is not encoded.
type objectCreated struct {
	Bucket struct {
		Name string `json:"name"`
	} `json:"bucket"`
	Object struct {
		Key string `json:"key"`
	} `json:"object"`
}

// Handled is the answer to an event, for logs and tests: nobody waits for it.
type Handled struct {
	Done    int `json:"done"`
	Ignored int `json:"ignored"`
}

// Arrivals are events of objects that came into the raw bucket.
type Arrivals struct {
	Bucket string
	// Landed handles the arrival of the object, or says why there is nothing to do.
	Landed func(ctx context.Context, key string) (done bool, reason string, err error)
	Log    *slog.Logger
}

// Or returns the handler of both: S3 notifications and EventBridge events of S3 go to Landed, all else to the stage.
// Every record of an event is handled before the errors of some are returned.
func (a Arrivals) Or(stage Handler) Handler {
	return func(ctx context.Context, payload []byte) ([]byte, error) {
		// What is no JSON object is refused by the stage, in its words.
		var e envelope
		if err := json.Unmarshal(payload, &e); err != nil {
			return stage(ctx, payload)
		}
		switch {
		case e.Records != nil:
			return a.notification(ctx, *e.Records)
		case e.Event == "s3:TestEvent":
			return a.ignored(ctx, "", "a test of the notification's configuration")
		case e.DetailType == "Object Created" && e.Source == "aws.s3":
			var d objectCreated
			if err := json.Unmarshal(e.Detail, &d); err != nil {
				return nil, etl.Errorf(etl.Usage, "event Object Created: detail: %w", err)
			}
			return a.created(ctx, d)
		case e.DetailType != "":
			return a.ignored(ctx, "", fmt.Sprintf("%s is no event of a new object", e.DetailType))
		}
		return stage(ctx, payload)
	}
}

func (a Arrivals) notification(ctx context.Context, records []s3Record) ([]byte, error) {
	var h Handled
	var faults []error
	for i, r := range records {
		name := r.S3.Object.Key
		if !strings.HasPrefix(r.EventName, "ObjectCreated:") {
			a.ignore(ctx, &h, name, fmt.Sprintf("%s is no event of a new object", r.EventName))
			continue
		}
		key, err := url.QueryUnescape(name)
		if err != nil {
			faults = append(faults, etl.Errorf(etl.Usage, "record %d of the S3 notification: key %q: %w", i, name, err))
			continue
		}
		if err := a.landed(ctx, &h, r.S3.Bucket.Name, key); err != nil {
			faults = append(faults, fmt.Errorf("record %d of the S3 notification: %w", i, err))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return json.Marshal(h)
}

func (a Arrivals) created(ctx context.Context, d objectCreated) ([]byte, error) {
	var h Handled
	if err := a.landed(ctx, &h, d.Bucket.Name, d.Object.Key); err != nil {
		return nil, err
	}
	return json.Marshal(h)
}

func (a Arrivals) landed(ctx context.Context, h *Handled, bucket, key string) error {
	if bucket != a.Bucket {
		a.ignore(ctx, h, key, fmt.Sprintf("bucket %s is not %s", bucket, a.Bucket))
		return nil
	}
	done, reason, err := a.Landed(ctx, key)
	switch {
	case err != nil:
		return err
	case done:
		h.Done++
	default:
		a.ignore(ctx, h, key, reason)
	}
	return nil
}

func (a Arrivals) ignore(ctx context.Context, h *Handled, key, reason string) {
	h.Ignored++
	a.Log.InfoContext(ctx, "event ignored", slog.String("key", key), slog.String("reason", reason))
}

func (a Arrivals) ignored(ctx context.Context, key, reason string) ([]byte, error) {
	var h Handled
	a.ignore(ctx, &h, key, reason)
	return json.Marshal(h)
}

// statusChange is the detail of "Step Functions Execution Status Change", as far as it is believed: the rest, like the
// input that may be left out for its size, is asked of Step Functions.
type statusChange struct {
	ExecutionArn string `json:"executionArn"`
	Status       string `json:"status"`
	RedriveCount int    `json:"redriveCount"`
}

// Ends are events of executions that ended.
type Ends struct {
	// Ended handles the end of an execution with that status after that many redrives, or says why there is nothing to do.
	Ended func(ctx context.Context, execution, status string, redrives int) (done bool, reason string, err error)
	Log   *slog.Logger
}

// Or returns the handler of both: EventBridge events of Step Functions go to Ended, all else to the stage.
func (n Ends) Or(stage Handler) Handler {
	return func(ctx context.Context, payload []byte) ([]byte, error) {
		var e envelope
		if err := json.Unmarshal(payload, &e); err != nil || e.DetailType == "" {
			return stage(ctx, payload)
		}
		var d statusChange
		if e.DetailType != "Step Functions Execution Status Change" || e.Source != "aws.states" {
			return nil, etl.Errorf(etl.Usage, "event %q of %q: want a status change of an execution", e.DetailType, e.Source)
		}
		if err := json.Unmarshal(e.Detail, &d); err != nil {
			return nil, etl.Errorf(etl.Usage, "event %s: detail: %w", e.DetailType, err)
		}
		done, reason, err := n.Ended(ctx, d.ExecutionArn, d.Status, d.RedriveCount)
		if err != nil {
			return nil, err
		}
		h := Handled{Done: 1}
		if !done {
			h = Handled{Ignored: 1}
			n.Log.InfoContext(ctx, "event ignored", slog.String("execution", d.ExecutionArn), slog.String("reason", reason))
		}
		return json.Marshal(h)
	}
}
