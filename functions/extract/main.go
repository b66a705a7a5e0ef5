// Extract is the Lambda function that lands the pages of a batch: input etl.ExtractInput, output etl.Progress.
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
	handler, err := cloud.Function(ctx, etl.StageExtract, os.LookupEnv, log)
	if err != nil {
		log.ErrorContext(ctx, "cannot start", slog.Any("cause", err))
		os.Exit(1)
	}
	lambda.StartWithOptions(handler, lambda.WithContext(ctx))
}
