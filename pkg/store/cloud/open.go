package cloud

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// The environment variables that name the stores.
const (
	EnvRawBucket    = "ONCELOAD_RAW_BUCKET"
	EnvStageBucket  = "ONCELOAD_STAGE_BUCKET"
	EnvLedgerTable  = "ONCELOAD_LEDGER_TABLE"
	EnvTargetPrefix = "ONCELOAD_TARGET_PREFIX" // optional
)

// Names say where the stores are.
type Names struct {
	RawBucket    string
	StageBucket  string
	LedgerTable  string
	TargetPrefix string // what stands before a pipeline's target.table in the name of its DynamoDB table; may be empty
}

// ParseNames reads the names from the environment; all that is missing is one error of kind Usage.
func ParseNames(lookup func(string) (string, bool)) (Names, error) {
	var faults []error
	required := func(name string) string {
		v, _ := lookup(name)
		if v == "" {
			faults = append(faults, etl.Errorf(etl.Usage, "environment variable %s is not set", name))
		}
		return v
	}
	n := Names{RawBucket: required(EnvRawBucket), StageBucket: required(EnvStageBucket), LedgerTable: required(EnvLedgerTable)}
	n.TargetPrefix, _ = lookup(EnvTargetPrefix)
	if n.RawBucket != "" && n.RawBucket == n.StageBucket {
		faults = append(faults, etl.Errorf(etl.Usage, "%s and %s both name %s: raw and stage objects need a bucket each", EnvRawBucket, EnvStageBucket, n.RawBucket))
	}
	return n, errors.Join(faults...)
}

// Load reads region, credentials and endpoints from the SDK's own environment variables and files (AWS_REGION,
// AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL_DYNAMODB and so on). No region is an error of kind Usage.
func Load(ctx context.Context) (aws.Config, error) {
	cfg, err := config.LoadDefaultConfig(ctx, config.WithHTTPClient(httpClient()))
	if err != nil {
		return aws.Config{}, etl.Errorf(etl.Usage, "configuration of the AWS SDK: %w", err)
	}
	if cfg.Region == "" {
		return aws.Config{}, etl.Errorf(etl.Usage, "no AWS region: set the environment variable AWS_REGION")
	}
	return cfg, nil
}

// httpClient bounds what a call may wait for. The whole of a call has no limit of its own: an object is read for as long
// as its bytes flow, and a caller's context ends the rest.
func httpClient() *awshttp.BuildableClient {
	return awshttp.NewBuildableClient().
		WithDialerOptions(func(d *net.Dialer) { d.Timeout = 5 * time.Second }).
		WithTransportOptions(func(t *http.Transport) {
			t.TLSHandshakeTimeout = 5 * time.Second
			t.ResponseHeaderTimeout = 30 * time.Second
			t.MaxIdleConnsPerHost = 64 // one for each write that PutHigher has under way, and some
		})
}

// Stores are the buckets and tables that the names say.
type Stores struct {
	Raw      *Objects
	Stage    *Objects
	names    Names
	s3       *s3.Client
	dynamodb *dynamodb.Client
}

// Open makes the clients; it asks nothing of AWS.
func Open(cfg aws.Config, n Names) *Stores {
	c := s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.DisableLogOutputChecksumValidationSkipped = true // a plain line of the SDK for every part: our digests tell more
	})
	return &Stores{Raw: NewObjects(c, n.RawBucket), Stage: NewObjects(c, n.StageBucket), names: n, s3: c, dynamodb: dynamodb.NewFromConfig(cfg)}
}

// Ledger is the ledger's table, whose keys and indexes the schema gives.
func (s *Stores) Ledger(schema store.Schema) *Table {
	schema.Name = s.names.LedgerTable
	return NewTable(s.dynamodb, schema)
}

// Target is the table of a pipeline, named by its prefix and the schema's name.
func (s *Stores) Target(schema store.Schema) *Table {
	schema.Name = s.names.TargetPrefix + schema.Name
	return NewTable(s.dynamodb, schema)
}
