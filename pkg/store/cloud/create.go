package cloud

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// Create makes the buckets and tables that are not there yet, on servers for tests and trials: on AWS the template makes
// them, with all that a bucket needs there.
func (s *Stores) Create(ctx context.Context, ledger store.Schema, targets ...store.Schema) error {
	for _, bucket := range []string{s.names.RawBucket, s.names.StageBucket} {
		if err := CreateBucket(ctx, s.s3, bucket); err != nil {
			return err
		}
	}
	if err := CreateTable(ctx, s.dynamodb, TableInput(s.Ledger(ledger).schema)); err != nil {
		return err
	}
	for _, t := range targets {
		if err := CreateTable(ctx, s.dynamodb, TableInput(s.Target(t).schema)); err != nil {
			return err
		}
	}
	return nil
}

// CreateBucket makes a bucket, unless it is there.
func CreateBucket(ctx context.Context, client *s3.Client, bucket string) error {
	_, err := client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &bucket})
	var mine *s3types.BucketAlreadyOwnedByYou
	var taken *s3types.BucketAlreadyExists
	if err == nil || errors.As(err, &mine) || errors.As(err, &taken) {
		return nil
	}
	return etl.Errorf(etl.StoreUnavailable, "create bucket %s: %w", bucket, err)
}

// TableInput describes a table as the template does.
func TableInput(s store.Schema) *dynamodb.CreateTableInput {
	in := &dynamodb.CreateTableInput{TableName: &s.Name, BillingMode: types.BillingModePayPerRequest}
	keys := func(pk, sk string) []types.KeySchemaElement {
		out := []types.KeySchemaElement{{AttributeName: &pk, KeyType: types.KeyTypeHash}}
		if sk != "" {
			out = append(out, types.KeySchemaElement{AttributeName: &sk, KeyType: types.KeyTypeRange})
		}
		for _, k := range out {
			known := slices.ContainsFunc(in.AttributeDefinitions, func(d types.AttributeDefinition) bool { return *d.AttributeName == *k.AttributeName })
			if !known {
				in.AttributeDefinitions = append(in.AttributeDefinitions, types.AttributeDefinition{AttributeName: k.AttributeName, AttributeType: types.ScalarAttributeTypeS})
			}
		}
		return out
	}
	sk := ""
	if s.SortKey {
		sk = store.SKName
	}
	in.KeySchema = keys(store.PKName, sk)
	for _, x := range s.Indexes {
		in.GlobalSecondaryIndexes = append(in.GlobalSecondaryIndexes, types.GlobalSecondaryIndex{
			IndexName: aws.String(x.Name), KeySchema: keys(x.PK, x.SK),
			Projection: &types.Projection{ProjectionType: types.ProjectionTypeAll},
		})
	}
	return in
}

// CreateTable makes a table, unless it is there, and returns once it can be used.
func CreateTable(ctx context.Context, client *dynamodb.Client, in *dynamodb.CreateTableInput) error {
	_, err := client.CreateTable(ctx, in)
	var exists *types.ResourceInUseException
	if err != nil && !errors.As(err, &exists) {
		return fmt.Errorf("create table %s: %w", *in.TableName, etl.Errorf(etl.StoreUnavailable, "%w", err))
	}
	wait := dynamodb.NewTableExistsWaiter(client, func(o *dynamodb.TableExistsWaiterOptions) {
		o.MinDelay, o.MaxDelay = 20*time.Millisecond, 2*time.Second
	})
	if err := wait.Wait(ctx, &dynamodb.DescribeTableInput{TableName: in.TableName}, time.Minute); err != nil {
		return etl.Errorf(etl.StoreUnavailable, "wait for table %s: %w", *in.TableName, err)
	}
	return nil
}
