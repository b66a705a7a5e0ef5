// Transform is the Lambda function that checks the records of landed parts: input etl.RangeInput, output
// etl.RangeOutput; or an event of S3 that a part has landed.
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
	handler, err := cloud.Function(ctx, etl.StageTransform, os.LookupEnv, log)
	if err != nil {
		log.ErrorContext(ctx, "cannot start", slog.Any("cause", err))
		os.Exit(1)
	}
	lambda.StartWithOptions(handler, lambda.WithContext(ctx))
}
