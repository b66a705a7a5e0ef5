// Command awslocal creates the buckets and tables of template.yaml on the S3 and DynamoDB servers that the environment
// names, unless they are there, and prints the environment under which `onceload --on aws` and the functions use them. The
// script .ci/aws-local starts such servers.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/onceload/onceload/pkg/store/cloud"
	"github.com/onceload/onceload/pkg/template"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.LookupEnv, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "awslocal:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, lookup func(string) (string, bool), out io.Writer) error {
	if len(args) != 1 {
		return errors.New("usage: awslocal TEMPLATE")
	}
	for _, name := range []string{"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_DYNAMODB"} {
		if v, _ := lookup(name); v == "" {
			return fmt.Errorf("%s is not set: this is for servers on your machine, a deploy is for AWS", name)
		}
	}
	cfg, err := cloud.Load(ctx)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	t, err := template.Parse(data, map[string]string{
		"AWS::StackName": "onceload", "AWS::AccountId": "000000000000", "AWS::Region": cfg.Region, "AWS::Partition": "aws",
	})
	if err != nil {
		return err
	}
	if err := buckets(ctx, s3.NewFromConfig(cfg), t); err != nil {
		return err
	}
	if err := tables(ctx, dynamodb.NewFromConfig(cfg), t); err != nil {
		return err
	}
	return environment(t, out)
}

func buckets(ctx context.Context, client *s3.Client, t *template.Template) error {
	for _, id := range t.OfType("AWS::S3::Bucket") {
		var b struct{ BucketName string }
		if err := t.Decode(id, &b); err != nil {
			return err
		}
		if err := cloud.CreateBucket(ctx, client, b.BucketName); err != nil {
			return err
		}
	}
	return nil
}

// tables relies on CloudFormation naming the properties of a table as the API does.
func tables(ctx context.Context, client *dynamodb.Client, t *template.Template) error {
	for _, id := range t.OfType("AWS::DynamoDB::Table") {
		var in dynamodb.CreateTableInput
		if err := t.Decode(id, &in); err != nil {
			return err
		}
		if err := cloud.CreateTable(ctx, client, &in); err != nil {
			return err
		}
	}
	return nil
}

// environment prints what the functions find in theirs, but for the topic of alerts: no server here has one.
func environment(t *template.Template, out io.Writer) error {
	functions, err := t.Functions()
	if err != nil {
		return err
	}
	variables := map[string]string{}
	for _, f := range functions {
		maps.Copy(variables, f.Environment.Variables)
	}
	delete(variables, "ONCELOAD_ALERTS_TOPIC_ARN")
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		if _, err := fmt.Fprintf(out, "export %s='%s'\n", name, variables[name]); err != nil {
			return err
		}
	}
	return nil
}
