package cloud_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/cloud"
)

// TestMinutesOfThrottling: a table that refuses every write for four minutes gets fewer and fewer of them at once, and all
// rows in the end; one that refuses for good is given up after the patience, and not before.
func TestMinutesOfThrottling(t *testing.T) {
	for name, c := range map[string]struct {
		refuses time.Duration
		want    error
	}{"four minutes": {4 * time.Minute, nil}, "for good": {1000 * time.Hour, etl.Errorf(etl.StoreThrottled, "slow down")}} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			now := time.Duration(0) // virtual: each wait moves it by its share of the loaders that wait
			w := newWire(t, false, func(int, request) reply {
				mu.Lock()
				defer mu.Unlock()
				if now < c.refuses {
					return dynamoError("ProvisionedThroughputExceededException", "")
				}
				return reply{body: `{}`}
			})
			table, _ := w.table(3)
			table.Retry = cloud.DefaultRetry()
			table.Retry.Rand = func() float64 { return 1 }
			longest := time.Duration(0)
			table.Retry.Sleep = func(ctx context.Context, d time.Duration) error {
				mu.Lock()
				defer mu.Unlock()
				now += d
				longest = max(longest, d)
				return ctx.Err()
			}
			var items []store.Item
			for i := range 40 {
				items = append(items, row(fmt.Sprintf("p%d", i), "1"))
			}
			out, err := table.PutHigher(t.Context(), items)
			switch {
			case c.want == nil && (err != nil || len(out) != len(items)):
				t.Errorf("%d outcomes, %v", len(out), err)
			case c.want != nil && etl.KindOf(err) != etl.StoreThrottled:
				t.Errorf("%v", err)
			case c.want != nil && now < 10*time.Minute:
				t.Errorf("given up after %s", now)
			case longest > 2*time.Second:
				t.Errorf("a wait of %s", longest)
			}
			t.Logf("%d requests in %s of waits", w.requests(), now)
		})
	}
}

// TestPace: throttling halves the writes under way at once, success raises them one by one.
func TestPace(t *testing.T) {
	var mu sync.Mutex
	under, most, phase := 0, map[string]int{}, "begin"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		under++
		most[phase] = max(most[phase], under)
		throttle := phase == "throttled"
		mu.Unlock()
		time.Sleep(2 * time.Millisecond) // so that those that may be under way at once are
		mu.Lock()
		under--
		mu.Unlock()
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		if throttle {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"__type":"com.amazonaws.dynamodb.v20120810#ThrottlingException"}`)
			return
		}
		fmt.Fprint(w, `{}`)
	}))
	defer srv.Close()
	table := cloud.NewTable(dynamodb.New(dynamodb.Options{Region: "us-east-1", BaseEndpoint: &srv.URL, HTTPClient: cloud.HTTPClient(),
		Credentials: credentials.NewStaticCredentialsProvider("id", "secret", "")}), store.Schema{Name: "orders", SortKey: true})
	table.Retry.Attempts, table.Retry.Patience = 4, 0
	table.Retry.Sleep = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	put := func(name string, n int) {
		t.Helper()
		mu.Lock()
		phase = name
		mu.Unlock()
		var items []store.Item
		for i := range n {
			items = append(items, row(fmt.Sprintf("%s%d", name, i), "1"))
		}
		_, err := table.PutHigher(t.Context(), items)
		if (err != nil) != (name == "throttled") {
			t.Fatalf("%s: %v", name, err)
		}
	}
	put("begin", 100)
	put("throttled", 100)
	put("after", 4)
	put("later", 900)
	if most["begin"] > 32 || most["after"] > 8 || most["later"] <= most["after"] {
		t.Errorf("at once: %v", most)
	}
	t.Logf("at once: %v", most)
}
