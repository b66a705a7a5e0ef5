package cloud_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	smithyendpoints "github.com/aws/smithy-go/endpoints"

	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/cloud"
)

// writes counts the writes to connections.
type writes struct {
	net.Conn
	n *atomic.Int64
}

func (w writes) Write(b []byte) (int, error) {
	w.n.Add(1)
	return w.Conn.Write(b)
}

// TestOneWriteARequest: headers and body of a request leave in one write.
func TestOneWriteARequest(t *testing.T) {
	w := newWire(t, false, func(int, request) reply { return reply{body: `{}`} })
	var n atomic.Int64
	client := w.Client()
	client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return writes{c, &n}, err
	}
	table, _ := w.table(1)
	for range 5 {
		if _, err := table.PutHigher(t.Context(), []store.Item{row("p", "1")}); err != nil {
			t.Fatal(err)
		}
	}
	if w.wantRequests(t, 5); n.Load() != 5 {
		t.Errorf("%d writes", n.Load())
	}
}

// answering is a client that answers each request at once.
type answering func(*http.Request)

func (a answering) Do(r *http.Request) (*http.Response, error) {
	a(r)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(`{}`)), Request: r}, nil
}

// accounts are credentials of one account after another.
type accounts struct{ id string }

func (a *accounts) Retrieve(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret", SessionToken: "token", AccountID: a.id}, nil
}

// resolutions counts the evaluations of the endpoint rules.
type resolutions struct {
	dynamodb.EndpointResolverV2
	n int
}

func (r *resolutions) ResolveEndpoint(ctx context.Context, p dynamodb.EndpointParameters) (smithyendpoints.Endpoint, error) {
	r.n++
	return r.EndpointResolverV2.ResolveEndpoint(ctx, p)
}

// TestEndpointOfAccount: the endpoint is worked out once, with all that the options say, and again when the credentials
// are of another account.
func TestEndpointOfAccount(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(*dynamodb.Options)
		hosts []string // with an account, with another, with none
	}{
		"region": {func(*dynamodb.Options) {}, []string{"111111111111.ddb.eu-west-1.amazonaws.com", "222222222222.ddb.eu-west-1.amazonaws.com", "dynamodb.eu-west-1.amazonaws.com"}},
		"accounts off": {func(o *dynamodb.Options) { o.AccountIDEndpointMode = aws.AccountIDEndpointModeDisabled },
			[]string{"dynamodb.eu-west-1.amazonaws.com", "dynamodb.eu-west-1.amazonaws.com", "dynamodb.eu-west-1.amazonaws.com"}},
		"FIPS": {func(o *dynamodb.Options) {
			o.Region, o.EndpointOptions.UseFIPSEndpoint = "us-east-1", aws.FIPSEndpointStateEnabled
		}, []string{"dynamodb-fips.us-east-1.amazonaws.com", "dynamodb-fips.us-east-1.amazonaws.com", "dynamodb-fips.us-east-1.amazonaws.com"}},
		"given": {func(o *dynamodb.Options) { o.BaseEndpoint = aws.String("http://127.0.0.1:8000") },
			[]string{"127.0.0.1:8000", "127.0.0.1:8000", "127.0.0.1:8000"}},
	} {
		t.Run(name, func(t *testing.T) {
			var hosts []string
			creds := &accounts{}
			rules := &resolutions{EndpointResolverV2: dynamodb.NewDefaultEndpointResolverV2()}
			o := dynamodb.Options{Region: "eu-west-1", Credentials: creds, EndpointResolverV2: rules, AccountIDEndpointMode: aws.AccountIDEndpointModePreferred,
				HTTPClient: answering(func(r *http.Request) { hosts = append(hosts, r.URL.Host) })}
			c.set(&o)
			table := cloud.NewTable(dynamodb.New(o), store.Schema{Name: "orders", SortKey: true})
			for _, creds.id = range []string{"111111111111", "222222222222", ""} {
				for range 3 {
					if _, err := table.PutHigher(t.Context(), []store.Item{row("p", "1")}); err != nil {
						t.Fatal(err)
					}
				}
			}
			var want []string
			for _, h := range c.hosts {
				want = append(want, h, h, h)
			}
			if !slices.Equal(hosts, want) {
				t.Errorf("%q, want %q", hosts, want)
			}
			if rules.n > 3 {
				t.Errorf("worked out %d times", rules.n)
			}
		})
	}
}

// TestSigned: what is left out of a request is not in its signature, and all that is sent is right by the SDK's own signer.
func TestSigned(t *testing.T) {
	var mu sync.Mutex
	seen := 0
	client := answering(func(r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen++
		body, err := io.ReadAll(r.Body)
		if err != nil || int64(len(body)) != r.ContentLength {
			t.Errorf("%d bytes of %d, %v", len(body), r.ContentLength, err)
		}
		again := r.Clone(t.Context())
		_, rest, _ := strings.Cut(r.Header.Get("Authorization"), "SignedHeaders=")
		signed, _, _ := strings.Cut(rest, ",")
		for name := range again.Header {
			if !slices.Contains(strings.Split(signed, ";"), strings.ToLower(name)) {
				again.Header.Del(name)
			}
		}
		at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
		if err != nil {
			t.Error(err)
		}
		sum := sha256.Sum256(body)
		creds, _ := (&accounts{}).Retrieve(t.Context())
		if err := v4.NewSigner().SignHTTP(t.Context(), creds, again, hex.EncodeToString(sum[:]), "dynamodb", "eu-west-1", at); err != nil {
			t.Error(err)
		}
		if got, want := r.Header.Get("Authorization"), again.Header.Get("Authorization"); got != want {
			t.Errorf("signed %s, want %s", got, want)
		}
		if r.Header.Get("Amz-Sdk-Invocation-Id") != "" || r.Header.Get("User-Agent") == "" || r.Header.Get("Accept-Encoding") != "identity" {
			t.Errorf("headers %v", r.Header)
		}
	})
	table := cloud.NewTable(dynamodb.New(dynamodb.Options{Region: "eu-west-1", Credentials: &accounts{}, HTTPClient: client}), store.Schema{Name: "orders", SortKey: true})
	if _, err := table.PutHigher(t.Context(), []store.Item{row("p", "1"), row("q", "2")}); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Ranks(t.Context(), []store.Key{{PK: "p", SK: "s"}}); err != nil {
		t.Fatal(err)
	}
	if seen != 3 {
		t.Errorf("%d requests", seen)
	}
}
