package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/onceload/onceload/pkg/store/cloud"
)

const file = "../../../template.yaml"

func TestRefusesAWS(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  map[string]string
		args []string
		want string
	}{
		{"no endpoint", nil, []string{file}, "AWS_ENDPOINT_URL_S3 is not set: this is for servers on your machine"},
		{"one endpoint", map[string]string{"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1"}, []string{file}, "AWS_ENDPOINT_URL_DYNAMODB is not set"},
		{"no template", nil, nil, "usage: awslocal TEMPLATE"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lookup := func(name string) (string, bool) {
				v, ok := tt.set[name]
				return v, ok
			}
			if err := run(t.Context(), tt.args, lookup, new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// TestCreates runs twice: what is there stays, and the environment printed leads to it.
func TestCreates(t *testing.T) {
	onS3, onDynamoDB := os.Getenv("ONCELOAD_TEST_S3"), os.Getenv("ONCELOAD_TEST_DYNAMODB")
	if onS3 == "" || onDynamoDB == "" {
		t.Skip("no servers: ONCELOAD_TEST_S3 and ONCELOAD_TEST_DYNAMODB are not set")
	}
	for server := range strings.SplitSeq(onDynamoDB, ",") {
		name, endpoint, _ := strings.Cut(server, "=")
		t.Run(name, func(t *testing.T) {
			t.Setenv("AWS_ENDPOINT_URL_S3", onS3)
			t.Setenv("AWS_ENDPOINT_URL_DYNAMODB", endpoint)
			t.Setenv("AWS_REGION", "us-east-1")
			var first, second bytes.Buffer
			for _, out := range []*bytes.Buffer{&first, &second} {
				if err := run(t.Context(), []string{file}, os.LookupEnv, out); err != nil {
					t.Fatal(err)
				}
			}
			if first.String() != second.String() {
				t.Errorf("first %s\nthen %s", &first, &second)
			}
			environment := map[string]string{}
			for line := range strings.Lines(first.String()) {
				name, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
				environment[name] = strings.Trim(value, "'")
			}
			n, err := cloud.ParseNames(func(name string) (string, bool) {
				v, ok := environment[name]
				return v, ok
			})
			if err != nil {
				t.Fatal(err)
			}
			cfg, err := cloud.Load(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, bucket := range []string{n.RawBucket, n.StageBucket} {
				if _, err := s3.NewFromConfig(cfg).HeadBucket(t.Context(), &s3.HeadBucketInput{Bucket: &bucket}); err != nil {
					t.Errorf("bucket %s: %v", bucket, err)
				}
			}
			for table, indexes := range map[string]int{n.LedgerTable: 2, n.TargetPrefix + "orders": 0, n.TargetPrefix + "github-issues": 0} {
				d, err := dynamodb.NewFromConfig(cfg).DescribeTable(t.Context(), &dynamodb.DescribeTableInput{TableName: &table})
				if err != nil || len(d.Table.GlobalSecondaryIndexes) != indexes {
					t.Errorf("table %s: %+v, %v", table, d, err)
				}
			}
		})
	}
}
