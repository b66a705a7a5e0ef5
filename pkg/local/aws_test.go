package local_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/local"
	"github.com/onceload/onceload/pkg/ordersapi"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/cloud"
	"github.com/onceload/onceload/pkg/store/disk"
)

const sameFile = `
pipeline: same
every: 1h
source:
  url: https://api.example.com/v1/orders
  query: {updated_from: "{window.start}", updated_to: "{window.end}", limit: 100}
  records: data
  paginate: {cursor: {param: cursor, next: meta.next_cursor}}
  part_bytes: 8000
contract:
  key: [shop, order_id]
  version: updated_at
  fields:
    shop: {type: string, const: eu}
    order_id: {type: string, required: true}
    email: {type: string, from: customer.email, clean: [trim, lower]}
    total: {type: decimal, from: valor, min: 0}
    updated_at: {type: timestamp, required: true}
    items: {type: document}
  delete: {from: status, equals: deleted}
target: {table: same, partition: [shop], sort: [order_id]}
`

// TestSameOnAWS runs two slots, and the second one again, on the embedded stores and on servers that speak S3's and
// DynamoDB's protocols, under one clock: the same keys, the same bytes, the same ledger, the same rows.
func TestSameOnAWS(t *testing.T) {
	s3, dynamo := os.Getenv("ONCELOAD_TEST_S3"), os.Getenv("ONCELOAD_TEST_DYNAMODB")
	if s3 == "" || dynamo == "" {
		t.Skip("no servers: ONCELOAD_TEST_S3 and ONCELOAD_TEST_DYNAMODB are not set")
	}
	api := ordersapi.New(ordersapi.Config{Seed: 9, Rows: 800, PageSize: 100, Faults: ordersapi.Faults{BadEvery: 50, Duplicate: true, Late: true, Delete: true}})
	srv := httptest.NewServer(api)
	defer srv.Close()
	for server := range strings.SplitSeq(dynamo, ",") {
		name, endpoint, _ := strings.Cut(server, "=")
		t.Run(name, func(t *testing.T) {
			t.Setenv("AWS_ENDPOINT_URL_S3", s3)
			t.Setenv("AWS_ENDPOINT_URL_DYNAMODB", endpoint)
			t.Setenv("AWS_REGION", "us-east-1")
			suffix := fmt.Sprint(time.Now().UnixNano())
			names := cloud.Names{RawBucket: "raw-" + suffix, StageBucket: "stage-" + suffix, LedgerTable: "ledger-" + suffix, TargetPrefix: suffix + "-"}
			cfg, err := cloud.Load(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			stores := cloud.Open(cfg, names)
			target := store.Schema{Name: "same", SortKey: true}
			if err := stores.Create(t.Context(), ledger.Schema(), target); err != nil {
				t.Fatal(err)
			}
			environment := map[string]string{
				cloud.EnvRawBucket: names.RawBucket, cloud.EnvStageBucket: names.StageBucket,
				cloud.EnvLedgerTable: names.LedgerTable, cloud.EnvTargetPrefix: names.TargetPrefix,
			}
			embedded, aws := sameHome(t, srv.URL, false, environment), sameHome(t, srv.URL, true, environment)

			db, err := disk.OpenDB(t.Context(), filepath.Join(embedded, "onceload.db"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := db.Close(); err != nil {
					t.Error(err)
				}
			}()
			if _, err := os.Stat(filepath.Join(aws, "raw")); err == nil {
				t.Error("the home of the AWS run holds objects")
			}
			for _, bucket := range []struct {
				name string
				on   store.Objects
			}{{"raw", stores.Raw}, {"stage", stores.Stage}} {
				disk, err := disk.OpenObjects(filepath.Join(embedded, bucket.name))
				if err != nil {
					t.Fatal(err)
				}
				sameObjects(t, disk, bucket.on)
			}
			client := dynamodb.NewFromConfig(cfg)
			sameItems(t, db, ledger.Schema(), stores.Ledger(ledger.Schema()), client, names.LedgerTable)
			sameItems(t, db, target, stores.Target(target), client, names.TargetPrefix+"same")
		})
	}
}

// sameHome runs the slots and returns the home's folder.
func sameHome(t *testing.T, source string, onAWS bool, environment map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "same.yaml")
	if err := os.WriteFile(file, []byte(sameFile), 0o600); err != nil {
		t.Fatal(err)
	}
	ids := 0
	home := filepath.Join(dir, "home")
	h, err := local.Open(t.Context(), local.Options{
		Dir: home, OnAWS: onAWS, Pipeline: file, Source: source,
		Lookup: func(name string) (string, bool) { v, ok := environment[name]; return v, ok },
		Now:    func() time.Time { return time.Date(2026, 1, 5, 13, 0, 0, 0, time.UTC) },
		Sleep:  func(context.Context, time.Duration) error { return nil },
		Rand:   func() float64 { return 0.5 },
		NewID:  func() string { ids++; return fmt.Sprint(ids) },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, slot := range []string{"2026-01-05T10:00:00Z", "2026-01-05T11:00:00Z", "2026-01-05T11:00:00Z"} {
		r, err := h.Run(t.Context(), etl.Request{Slot: slot, Reload: ids == 2})
		if err != nil || r.Failure != nil {
			t.Fatalf("%s: %v %+v", slot, err, r.Failure)
		}
		if ids == 3 && r.Counts.Written != 0 {
			t.Fatalf("the reload wrote %d rows", r.Counts.Written)
		}
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	return home
}

func sameObjects(t *testing.T, want, got store.Objects) {
	t.Helper()
	read := func(from store.Objects, key string) []byte {
		r, err := from.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		return body
	}
	keys := func(from store.Objects) (keys []string) {
		for info, err := range from.List(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, info.Key)
		}
		return keys
	}
	a, b := keys(want), keys(got)
	if !slices.Equal(a, b) || len(a) == 0 {
		t.Fatalf("keys differ, or there are none:\n%q\n%q", a, b)
	}
	for _, key := range a {
		if !bytes.Equal(read(want, key), read(got, key)) {
			t.Errorf("%s differs", key)
		}
	}
}

// sameItems compares a table: the scan gives the keys, the adapter the items.
func sameItems(t *testing.T, db *disk.DB, schema store.Schema, got store.Table, client *dynamodb.Client, name string) {
	t.Helper()
	rows, err := db.SQL().QueryContext(t.Context(), `SELECT pk, sk, rank, item FROM "`+schema.Name+`" ORDER BY pk, sk`)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for rows.Next() {
		var want store.Item
		if err := rows.Scan(&want.PK, &want.SK, &want.Rank, &want.Doc); err != nil {
			t.Fatal(err)
		}
		n++
		item, err := got.Get(t.Context(), want.Key)
		if err != nil {
			t.Errorf("%v: %v", want.Key, err)
			continue
		}
		if item.Rank != want.Rank || !bytes.Equal(item.Doc, want.Doc) {
			t.Errorf("%v differs:\n%s %s\n%s %s", want.Key, want.Rank, want.Doc, item.Rank, item.Doc)
		}
	}
	if err := rows.Close(); err != nil {
		t.Fatal(err)
	}
	count := 0
	for p := dynamodb.NewScanPaginator(client, &dynamodb.ScanInput{TableName: &name, Select: types.SelectCount}); p.HasMorePages(); {
		out, err := p.NextPage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		count += int(out.Count)
	}
	if count != n || n == 0 {
		t.Errorf("table %s has %d items, the embedded one %d", name, count, n)
	}
}
