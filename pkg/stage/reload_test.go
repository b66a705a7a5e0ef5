//go:build unix

package stage_test

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/cloud"
)

// TestReloadTime holds the time of an unchanged reload, and of an overlapping slot, against the first load's, through the
// real SDK. B8
//
// The stub answers after DynamoDB's few milliseconds and costs next to nothing: there it shows what the loader does. The
// servers run on the machine's own processors, one request after another, and a key that is read costs dynoxide a tenth of
// one that is written, dynalite an eighth: there the looks alone, with nothing decided, are the least that a reload can
// take, and it must take hardly more.
func TestReloadTime(t *testing.T) {
	if os.Getenv("ONCELOAD_BENCH") == "" {
		t.Skip("it measures: set ONCELOAD_BENCH=1 on a machine with nothing else to do")
	}
	const rows = 100_000
	h := history{versioned: true, epochs: map[int]int{1: 1}}
	first := loaded{Slot: 0, Extraction: 1, Revision: 1}
	for n := range rows {
		first.Rows = append(first.Rows, record{Key: n, Version: 1, Text: fmt.Sprintf("Text %d", n), Status: "open"})
	}
	later := first
	later.Slot = 1
	loads := map[string]*prepared{"first load": h.prepare(t, first), "overlap": h.prepare(t, later)}
	loads["reload"] = loads["first load"]
	measure := func(t *testing.T, target store.Table) {
		load := func(name string) func() {
			return func() {
				counts, _, err := loads[name].run(target)
				if err != nil || (counts.New == rows) != (name == "first load") || counts.Total() != rows {
					t.Fatalf("%s: %+v, %v", name, counts, err)
				}
			}
		}
		look := func() {
			var all sync.WaitGroup
			for some := range slices.Chunk(loads["reload"].items, rows/32) {
				all.Go(func() {
					for batch := range slices.Chunk(some, store.MaxBatchGet) {
						keys := make([]store.Key, len(batch))
						for i, it := range batch {
							keys[i] = it.Key
						}
						if found, err := target.Ranks(t.Context(), keys); err != nil || len(found) != len(keys) {
							t.Errorf("looked for %d ranks, found %d: %v", len(keys), len(found), err)
						}
					}
				})
			}
			all.Wait()
		}
		took, used := map[string]time.Duration{}, map[string]time.Duration{}
		timed := func(name string, do func()) {
			began, before := time.Now(), processorTime(t)
			do()
			took[name] = min(cmp.Or(took[name], time.Hour), time.Since(began))
			used[name] = min(cmp.Or(used[name], time.Hour), processorTime(t)-before)
		}
		timed("first load", load("first load"))
		for range 3 { // in turn, as others may want the processors too
			timed("reload", load("reload"))
			timed("overlap", load("overlap"))
			timed("looks", look)
		}
		for _, name := range []string{"first load", "reload", "overlap", "looks"} {
			t.Logf("%-10s %6.2f s, 1/%4.1f of the first load, %5.1f µs of CPU a row", name, took[name].Seconds(),
				took["first load"].Seconds()/took[name].Seconds(), float64(used[name].Microseconds())/rows)
		}
		for _, name := range []string{"reload", "overlap"} {
			if 15*took[name] > took["first load"] && 10*took[name] > 13*took["looks"] {
				t.Errorf("%s: want at most 1/15 of the first load, or little more than the looks", name)
			}
		}
	}
	client := func(endpoint string) *dynamodb.Client {
		return dynamodb.New(dynamodb.Options{Region: "us-east-1", BaseEndpoint: &endpoint, Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
			HTTPClient: awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) { t.MaxIdleConnsPerHost = 64 })}) // as in production
	}
	t.Run("stub", func(t *testing.T) {
		out, _ := child(t, childTable)
		url, err := out.ReadString('\n')
		ok(t, err)
		measure(t, cloud.NewTable(client(strings.TrimSpace(url)), store.Schema{Name: "orders"}))
	})
	for server := range strings.SplitSeq(os.Getenv("ONCELOAD_TEST_DYNAMODB"), ",") {
		name, endpoint, set := strings.Cut(server, "=")
		if !set {
			continue
		}
		t.Run(name, func(t *testing.T) {
			schema := store.Schema{Name: fmt.Sprint("reload-", time.Now().UnixNano())}
			ok(t, cloud.CreateTable(t.Context(), client(endpoint), cloud.TableInput(schema)))
			measure(t, cloud.NewTable(client(endpoint), schema))
		})
	}
}

// processorTime is what this process has used so far.
func processorTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	ok(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// serveTable prints its address, and then keeps keys and ranks as DynamoDB would, of a table without sort key. It answers
// after 5 ms.
func serveTable(t *testing.T) {
	var mu sync.Mutex
	ranks := map[string]string{}
	// strings are the values of an attribute of type string, in the order of the request.
	strings := func(body []byte, name string) (out []string) {
		for mark := []byte(`"` + name + `":{"S":"`); ; {
			_, rest, found := bytes.Cut(body, mark)
			if !found {
				return out
			}
			value, _, _ := bytes.Cut(rest, []byte{'"'})
			out, body = append(out, string(value)), rest
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	fmt.Printf("http://%s\n", l.Addr())
	t.Fatal(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answered := time.Now().Add(5 * time.Millisecond)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client is gone
		}
		keys, reply := strings(body, store.PKName), []byte("{}")
		mu.Lock()
		if rank := strings(body, store.RankName); len(rank) > 0 {
			ranks[keys[0]] = rank[0]
		} else {
			reply = []byte(`{"Responses":{"orders":[`)
			for _, k := range keys {
				if rank, there := ranks[k]; there {
					reply = fmt.Appendf(reply, `{"_pk":{"S":"%s"},"_rank":{"S":"%s"}},`, k, rank)
				}
			}
			reply = append(bytes.TrimSuffix(reply, []byte{','}), `]},"UnprocessedKeys":{}}`...)
		}
		mu.Unlock()
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		time.Sleep(time.Until(answered))
		_, _ = w.Write(reply)
	})))
}
