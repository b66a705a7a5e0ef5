// Settle is the Lambda function that ends a batch: input etl.SettleInput, etl.RecordFailureInput or etl.RaiseInput; or
// an event of EventBridge that an execution has ended.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/onceload/onceload/pkg/cloud"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/lambdafn"
)

func main() {
	ctx := context.Background()
	log := lambdafn.NewLog(os.Stderr)
	handler, err := cloud.Function(ctx, etl.StageSettle, os.LookupEnv, log)
	if err != nil {
		log.ErrorContext(ctx, "cannot start", slog.Any("cause", err))
		os.Exit(1)
	}
	lambda.StartWithOptions(handler, lambda.WithContext(ctx))
}
