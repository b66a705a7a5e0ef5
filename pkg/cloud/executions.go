package cloud

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sfn"
	"github.com/aws/aws-sdk-go-v2/service/sfn/types"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/stage"
	"github.com/onceload/onceload/pkg/store"
)

// Executions asks Step Functions about executions. It implements [stage.Liveness] and [stage.Executions].
type Executions struct{ client *sfn.Client }

// NewExecutions makes the client.
func NewExecutions(cfg aws.Config) *Executions { return &Executions{sfn.NewFromConfig(cfg)} }

// Alive implements [stage.Liveness].
func (e *Executions) Alive(ctx context.Context, execution string) (ledger.Liveness, error) {
	d, err := e.Describe(ctx, execution)
	if errors.Is(err, store.ErrNotFound) {
		return ledger.Unknown, nil
	}
	if err != nil {
		return 0, err
	}
	switch types.ExecutionStatus(d.Status) {
	case types.ExecutionStatusRunning, types.ExecutionStatusPendingRedrive:
		return ledger.Running, nil
	case types.ExecutionStatusSucceeded, types.ExecutionStatusFailed, types.ExecutionStatusTimedOut, types.ExecutionStatusAborted:
		return ledger.Ended, nil
	}
	return 0, etl.Errorf(etl.StoreUnavailable, "execution %s: Step Functions gives its status as %q, which is unknown here", execution, d.Status)
}

// Describe implements [stage.Executions]. Every error but that of an execution that does not exist is of kind
// StoreUnavailable.
func (e *Executions) Describe(ctx context.Context, execution string) (stage.Described, error) {
	out, err := e.client.DescribeExecution(ctx, &sfn.DescribeExecutionInput{ExecutionArn: &execution})
	if err != nil {
		return stage.Described{}, fmt.Errorf("describe execution %s: %w", execution, executionError(ctx, err))
	}
	d := stage.Described{
		Status: string(out.Status), Input: aws.ToString(out.Input), Error: aws.ToString(out.Error), Cause: aws.ToString(out.Cause),
	}
	if out.RedriveCount != nil {
		d.Redrives = int(*out.RedriveCount)
	}
	return d, nil
}

func executionError(ctx context.Context, err error) error {
	var absent *types.ExecutionDoesNotExist
	var invalid *types.InvalidArn
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &absent):
		return store.ErrNotFound
	case errors.As(err, &invalid):
		return etl.Errorf(etl.StoreUnavailable, "it did not run on Step Functions, which cannot say whether it is alive: let it end where it runs: %w", err)
	}
	return etl.Errorf(etl.StoreUnavailable, "%w", err)
}
