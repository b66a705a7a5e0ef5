package cloud

import (
	"context"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/stage"
)

// Alerts publishes failures to an SNS topic. It implements [stage.Alerts].
type Alerts struct {
	client *sns.Client
	topic  string
}

// NewAlerts makes the client.
func NewAlerts(cfg aws.Config, topic string) *Alerts {
	return &Alerts{client: sns.NewFromConfig(cfg), topic: topic}
}

// Alert implements [stage.Alerts]. From the second failure of a batch on, the subject says so first.
func (a *Alerts) Alert(ctx context.Context, alert stage.Alert) error {
	subject, message := write(alert)
	_, err := a.client.Publish(ctx, &sns.PublishInput{TopicArn: &a.topic, Subject: &subject, Message: &message})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return etl.Errorf(etl.StoreUnavailable, "publish to %s: %w", a.topic, err)
}

// maxSubject is what SNS takes: ASCII, at most 99 characters.
const maxSubject = 99

func write(a stage.Alert) (subject, message string) {
	subject = fmt.Sprintf("onceload: %s failed: %s", a.Batch, a.Failure.Kind)
	if a.Count >= 2 {
		subject = fmt.Sprintf("FAILED %d TIMES: %s: %s", a.Count, a.Batch, a.Failure.Kind)
	}
	subject = subject[:min(len(subject), maxSubject)]
	var b strings.Builder
	fmt.Fprintf(&b, "%s failed in %s: %s\n\n%s\n\n%s\n\n", a.Batch, a.Failure.Stage, a.Failure.Kind, a.Failure.Message, a.Failure.Hint)
	fmt.Fprintf(&b, "failures so far: %d\nat: %s\nexecution: %s\n", a.Count, a.Failure.At, a.Execution)
	return subject, b.String()
}
