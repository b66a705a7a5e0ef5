package cloud_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/cloud"
	"github.com/onceload/onceload/pkg/store/storetest"
)

// The servers that TestConformance runs against, where they are set.
const (
	envS3       = "ONCELOAD_TEST_S3"       // endpoint; credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY
	envS3TLS    = "ONCELOAD_TEST_S3_TLS"   // the same over TLS
	envS3CA     = "ONCELOAD_TEST_S3_CA"    // PEM file of the authority behind it
	envDynamoDB = "ONCELOAD_TEST_DYNAMODB" // name=endpoint, comma separated
)

// lacks are the checks that a server cannot pass, and why.
func lacks(server string) storetest.Lacks {
	if server == "dynalite" {
		const none = "it has no TransactWriteItems"
		return storetest.Lacks{"put_all_higher": none, "put_all_higher_race": none,
			"number_sizes": "it counts a byte too many for some numbers"}
	}
	return nil
}

func credentialsFromEnv() aws.CredentialsProvider {
	id, secret := os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY")
	if id == "" {
		id, secret = "test", "test"
	}
	return credentials.NewStaticCredentialsProvider(id, secret, os.Getenv("AWS_SESSION_TOKEN"))
}

// unique makes names that no other check, and no other run against the same server, uses.
func unique(t *testing.T, prefix string) string {
	name := strings.ToLower(t.Name()[strings.LastIndexByte(t.Name(), '/')+1:])
	return fmt.Sprintf("%s-%s-%d", prefix, strings.ReplaceAll(name, "_", "-"), time.Now().UnixNano()%1e12)
}

func TestConformance(t *testing.T) {
	for name, env := range map[string]string{"versitygw": envS3, "versitygw_tls": envS3TLS} {
		t.Run("objects/"+name, func(t *testing.T) {
			endpoint := os.Getenv(env)
			if endpoint == "" {
				t.Skipf("no S3 server: %s is not set", env)
			}
			client := s3Client(t, endpoint)
			storetest.Objects(t, func(t *testing.T) store.Objects {
				bucket := unique(t, "onceload")
				if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &bucket}); err != nil {
					t.Fatal(err)
				}
				return cloud.NewObjects(client, bucket)
			}, lacks(name))
		})
	}
	servers := os.Getenv(envDynamoDB)
	if servers == "" {
		t.Run("table", func(t *testing.T) { t.Skipf("no DynamoDB server: %s is not set", envDynamoDB) })
		return
	}
	for server := range strings.SplitSeq(servers, ",") {
		name, endpoint, _ := strings.Cut(server, "=")
		t.Run("table/"+name, func(t *testing.T) {
			client := dynamodb.New(dynamodb.Options{Region: "us-east-1", BaseEndpoint: &endpoint, Credentials: credentialsFromEnv()})
			storetest.Table(t, func(t *testing.T, s store.Schema) store.Table {
				s.Name = unique(t, s.Name)
				if err := cloud.CreateTable(t.Context(), client, cloud.TableInput(s)); err != nil {
					t.Fatal(err)
				}
				return cloud.NewTable(client, s)
			}, lacks(name))
		})
	}
}

func s3Client(t *testing.T, endpoint string) *s3.Client {
	t.Helper()
	o := s3.Options{Region: "us-east-1", BaseEndpoint: &endpoint, UsePathStyle: true, Credentials: credentialsFromEnv()}
	if ca := os.Getenv(envS3CA); ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			t.Fatalf("%s: no certificate", ca)
		}
		o.HTTPClient = awshttp.NewBuildableClient().WithTransportOptions(func(tr *http.Transport) {
			tr.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		})
	}
	return s3.New(o)
}
