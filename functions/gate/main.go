// Gate is the Lambda function that decides whether a batch may load: input etl.GateInput, output etl.GateOutput.
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
	handler, err := cloud.Function(ctx, etl.StageGate, os.LookupEnv, log)
	if err != nil {
		log.ErrorContext(ctx, "cannot start", slog.Any("cause", err))
		os.Exit(1)
	}
	lambda.StartWithOptions(handler, lambda.WithContext(ctx))
}
