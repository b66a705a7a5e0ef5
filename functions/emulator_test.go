package functions_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/store"
	storecloud "github.com/onceload/onceload/pkg/store/cloud"
)

const (
	envRIE      = "ONCELOAD_TEST_RIE"      // path of aws-lambda-rie
	envS3       = "ONCELOAD_TEST_S3"       // endpoint; credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY
	envDynamoDB = "ONCELOAD_TEST_DYNAMODB" // name=endpoint, comma separated
)

// TestEmulator runs the built functions under AWS's Runtime Interface Emulator, S3 and DynamoDB on loopback: a whole
// batch, and every other event, with the answers that the same files have in memory. The functions are as deployed: they
// ask https://api.example.com for orders, by a proxy that leads to a server of this test.
func TestEmulator(t *testing.T) {
	emulator, s3, dynamodb := os.Getenv(envRIE), os.Getenv(envS3), os.Getenv(envDynamoDB)
	if emulator == "" || s3 == "" || dynamodb == "" {
		t.Skipf("no emulator or no servers: %s, %s and %s are not all set", envRIE, envS3, envDynamoDB)
	}
	bootstraps := build(t, names()...)
	for server := range strings.SplitSeq(dynamodb, ",") {
		name, endpoint, _ := strings.Cut(server, "=")
		t.Run(name, func(t *testing.T) { emulate(t, emulator, bootstraps, s3, endpoint) })
	}
}

func emulate(t *testing.T, emulator string, bootstraps map[etl.Stage]string, s3, dynamodb string) {
	suffix := fmt.Sprint(time.Now().UnixNano())
	where := storecloud.Names{RawBucket: "raw-" + suffix, StageBucket: "stage-" + suffix, LedgerTable: "ledger-" + suffix, TargetPrefix: suffix + "-"}
	t.Setenv("AWS_REGION", "us-east-1")
	t.Setenv("AWS_ENDPOINT_URL_S3", s3)
	t.Setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb)
	cfg, err := storecloud.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stores := storecloud.Open(cfg, where)
	if err := stores.Create(t.Context(), ledger.Schema(), store.Schema{Name: "orders"}); err != nil {
		t.Fatal(err)
	}
	aws := newServices(t)
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(),
		"AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=" + os.Getenv("AWS_ACCESS_KEY_ID"), "AWS_SECRET_ACCESS_KEY=" + os.Getenv("AWS_SECRET_ACCESS_KEY"),
		"AWS_ENDPOINT_URL_S3=" + s3, "AWS_ENDPOINT_URL_DYNAMODB=" + dynamodb, "AWS_ENDPOINT_URL_SECRETS_MANAGER=" + aws.url,
		"AWS_ENDPOINT_URL_SFN=" + aws.url, "AWS_ENDPOINT_URL_SNS=" + aws.url,
		storecloud.EnvRawBucket + "=" + where.RawBucket, storecloud.EnvStageBucket + "=" + where.StageBucket,
		storecloud.EnvLedgerTable + "=" + where.LedgerTable, storecloud.EnvTargetPrefix + "=" + where.TargetPrefix,
		"ONCELOAD_SECRET_PREFIX=onceload/", "ONCELOAD_ALERTS_TOPIC_ARN=arn:aws:sns:us-east-1:111122223333:onceload-alerts",
	}
	env = append(env, internet(t)...)
	rie := map[etl.Stage]*emulated{}
	for _, f := range names() {
		rie[f] = newEmulated(t, emulator, bootstraps[f], env)
	}
	feed := func(name string) string {
		t.Helper()
		payload := bytes.ReplaceAll(read(t, name), []byte(rawBucket), []byte(where.RawBucket))
		return rie[stageOf(name)].invoke(t, name, payload)
	}
	expect := func(name, want string) {
		t.Helper()
		if got := feed(name); got != want {
			t.Errorf("%s: %s\nwant %s", name, got, want)
		}
	}
	const refused = `{"errorMessage":"the source answered 401: look at the secret orders-api-token","errorType":"SourceRejected"}`
	a := answers()
	aws.described(ends(t, "settle-timed-out.json").Status)

	expect("transform-s3-test.json", a["transform-s3-test.json"].out)
	expect("transform-s3.json", `{"done":0,"ignored":1}`) // before anyone claimed the batch
	expect("extract.json", a["extract.json"].out)
	expect("settle-timed-out.json", a["settle-timed-out.json"].out)
	expect("settle-aborted.json", `{"done":0,"ignored":1}`) // Step Functions says TIMED_OUT
	expect("settle-failed.json", `{"done":0,"ignored":1}`)
	expect("settle-record-failure.json", a["settle-record-failure.json"].out)
	expect("settle-raise.json", refused)
	expect("settle-raise.json", `{"status":"raised"}`)
	expect("extract-after-wait.json", landed+`"retries":2,"waited_ms":900000}`) // the manifest is there: nothing to fetch
	for _, name := range []string{"transform-s3.json", "transform-eventbridge.json", "transform.json", "gate.json", "load.json", "settle.json"} {
		expect(name, a[name].out)
	}
	expect("settle.json", a["settle.json"].out)
	expect("settle-timed-out.json", `{"done":0,"ignored":1}`) // COMPLETED

	if got := aws.subjects(); len(got) != 2 || got[0] != "onceload: orders/20261130T100000Z failed: StageTimedOut" || got[1] != "FAILED 2 TIMES: orders/20261130T100000Z: SourceRejected" {
		t.Errorf("alerts %q", got)
	}
	// The same batch in memory: the same objects (their bytes differ in when the pages were fetched) and the same counts.
	w := newWorld(t)
	w.must("extract.json", "transform.json", "gate.json", "load.json", "settle.json")
	got, want := slices.Sorted(maps.Keys(objects(t, stores.Stage))), slices.Sorted(maps.Keys(objects(t, w.stage)))
	if !slices.Equal(got, want) {
		t.Errorf("stage objects %v, want %v", got, want)
	}
	b, err := (&ledger.Ledger{Table: stores.Ledger(ledger.Schema())}).Get(t.Context(), slotOfEvents())
	if err != nil || b.State != ledger.StateCompleted || b.Counts == nil || *b.Counts != *w.batch().Counts {
		t.Errorf("batch %+v, %v; want counts %+v", b, err, w.batch().Counts)
	}
	loaded(t, stores, *b.Binding, b.Counts.Valid)
	for _, f := range names() {
		t.Logf("%-9s cold %3d ms, warm %s", f, rie[f].took[0].Milliseconds(), rie[f].took[1:])
	}
}

// loaded holds every valid line of the batch's only part against the target table.
func loaded(t *testing.T, stores *storecloud.Stores, bind etl.Binding, valid int64) {
	t.Helper()
	object, err := stores.Stage.Get(t.Context(), etl.StageKey(etl.Valid, slotOfEvents(), bind, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer object.Close()
	lines, err := gzip.NewReader(object)
	if err != nil {
		t.Fatal(err)
	}
	target := stores.Target(store.Schema{Name: "orders"})
	n, seen := int64(0), map[store.Key]bool{}
	for scan := bufio.NewScanner(lines); scan.Scan(); n++ {
		want, err := contract.ParseLine(scan.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if seen[want.Key] {
			continue // the one record that stands twice, of equal rank
		}
		seen[want.Key] = true
		got, err := target.Get(t.Context(), want.Key)
		if err != nil || got.Rank != want.Rank || string(got.Doc) != string(want.Doc) {
			t.Errorf("row %s: %s, %v; want %s", want.PK, got.Doc, err, want.Doc)
		}
	}
	if n != valid {
		t.Errorf("%d valid lines, want %d", n, valid)
	}
}

// emulated is one function under an emulator of its own, which takes one call at a time.
type emulated struct {
	url  string
	log  *lockedBuffer
	took []time.Duration
}

func newEmulated(t *testing.T, emulator, bootstrap string, env []string) *emulated {
	t.Helper()
	listen, api := strings.TrimPrefix(closedPort(t), "http://"), strings.TrimPrefix(closedPort(t), "http://")
	e := &emulated{url: "http://" + listen + "/2015-03-31/functions/function/invocations", log: &lockedBuffer{}}
	cmd := exec.CommandContext(t.Context(), emulator, "--runtime-interface-emulator-address", listen, "--runtime-api-address", api, bootstrap)
	cmd.Dir, cmd.Env = filepath.Dir(bootstrap), env
	cmd.Stdout, cmd.Stderr = e.log, e.log
	cmd.WaitDelay = time.Second // the function's process holds the emulator's output open for a moment
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Interrupted, the emulator ends its function too.
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Errorf("%s: %v", bootstrap, err)
		}
		_ = cmd.Wait()
	})
	for range 500 {
		if c, err := net.Dial("tcp", listen); err == nil {
			c.Close()
			return e
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("the emulator does not listen\n%s", e.log)
	return nil
}

// invoke invokes the function. The emulator answers 200 for a function's error too.
func (e *emulated) invoke(t *testing.T, name string, payload []byte) string {
	t.Helper()
	began := time.Now()
	r, err := http.Post(e.url, "application/json", bytes.NewReader(payload))
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, e.log)
	}
	defer r.Body.Close()
	out, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %s, %v\n%s", name, r.Status, out, err, e.log)
	}
	e.took = append(e.took, time.Since(began).Round(time.Millisecond/10))
	return string(out)
}

// internet is the environment of a process for which https://api.example.com is the orders API of these tests.
func internet(t *testing.T) []string {
	t.Helper()
	api := httptest.NewTLSServer(orders())
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Host != "api.example.com:443" {
			http.Error(w, "there is only api.example.com", http.StatusForbidden)
			return
		}
		up, err := net.Dial("tcp", api.Listener.Addr().String())
		if err != nil {
			t.Errorf("proxy: %v", err)
			return
		}
		defer up.Close()
		down, begun, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Errorf("proxy: %v", err)
			return
		}
		defer down.Close()
		if _, err := io.WriteString(down, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
			t.Errorf("proxy: %v", err)
			return
		}
		go func() {
			_, _ = io.Copy(up, begun) // ends with either connection
			up.Close()
		}()
		_, _ = io.Copy(down, up)
	}))
	t.Cleanup(func() {
		api.CloseClientConnections()
		api.Close()
		proxy.Close()
	})
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"HTTPS_PROXY=" + proxy.URL, "SSL_CERT_FILE=" + ca}
}

// services are Secrets Manager, Step Functions and SNS, as far as the functions ask them.
type services struct {
	url string

	mu     sync.Mutex
	status string // of the execution
	sent   []string
}

func newServices(t *testing.T) *services {
	t.Helper()
	s := &services{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("AWS: %v", err)
		}
		switch r.Header.Get("X-Amz-Target") {
		case "secretsmanager.GetSecretValue":
			if string(body) != `{"SecretId":"onceload/orders-api-token"}` {
				t.Errorf("Secrets Manager was asked %s", body)
			}
			_, _ = io.WriteString(w, `{"SecretString":"`+token+`"}`)
		case "AWSStepFunctions.DescribeExecution":
			answer := map[string]any{"executionArn": execution, "status": s.status, "redriveCount": 0, "input": string(read(t, "schedule.json"))}
			if err := json.NewEncoder(w).Encode(answer); err != nil {
				t.Errorf("AWS: %v", err)
			}
		default:
			form, err := url.ParseQuery(string(body))
			if err != nil || form.Get("Action") != "Publish" {
				t.Errorf("AWS was asked %s: %s", r.Header.Get("X-Amz-Target"), body)
			}
			s.sent = append(s.sent, form.Get("Subject"))
			_, _ = io.WriteString(w, `<PublishResponse><PublishResult><MessageId>1</MessageId></PublishResult></PublishResponse>`)
		}
	}))
	t.Cleanup(srv.Close)
	s.url = srv.URL
	return s
}

// described sets what Step Functions says of the execution.
func (s *services) described(status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

// subjects are those of the alerts sent.
func (s *services) subjects() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.sent...)
}
