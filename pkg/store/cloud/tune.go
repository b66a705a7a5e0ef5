package cloud

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	smithyendpoints "github.com/aws/smithy-go/endpoints"
	"github.com/aws/smithy-go/middleware"
)

// tune makes a table's client fit for many small requests, by the SDK's own options. What guards a request stays as it is:
// its signature, the correction of a wrong clock, the checksum of the reply, the retries of what failed on the way.
func tune(o *dynamodb.Options) {
	o.Retryer = unshared{o.Retryer}
	o.EndpointResolverV2 = &sameEndpoint{EndpointResolverV2: o.EndpointResolverV2}
	o.HTTPClient = inOnePiece{o.HTTPClient}
	o.APIOptions = append(o.APIOptions, withoutInvocationID)
}

// unshared is a retryer that leaves throttling alone and has no bucket. The SDK's retries draw on one that all requests
// of a client share; once throttling has emptied it they fail at once, those for other reasons too. So throttling is left
// to the table's own pace, and the others need no token.
type unshared struct{ aws.Retryer }

// IsErrorRetryable implements aws.Retryer.
func (u unshared) IsErrorRetryable(err error) bool {
	return !throttled(errorCode(err)) && u.Retryer.IsErrorRetryable(err)
}

// GetRetryToken implements aws.Retryer.
func (unshared) GetRetryToken(context.Context, error) (func(error) error, error) {
	return func(error) error { return nil }, nil
}

// GetInitialToken implements aws.Retryer.
func (unshared) GetInitialToken() func(error) error { return func(error) error { return nil } }

// sameEndpoint evaluates the endpoint rules once, not for each request. All that they look at is fixed for a table's
// client, but the account: it comes with the credentials, and these change.
type sameEndpoint struct {
	dynamodb.EndpointResolverV2
	last atomic.Pointer[accountEndpoint]
}

type accountEndpoint struct {
	account  string
	endpoint smithyendpoints.Endpoint
}

// ResolveEndpoint implements dynamodb.EndpointResolverV2.
func (s *sameEndpoint) ResolveEndpoint(ctx context.Context, p dynamodb.EndpointParameters) (smithyendpoints.Endpoint, error) {
	account := aws.ToString(p.AccountId)
	if last := s.last.Load(); last != nil && last.account == account {
		return last.endpoint, nil
	}
	e, err := s.EndpointResolverV2.ResolveEndpoint(ctx, p)
	if err == nil {
		s.last.Store(&accountEndpoint{account, e})
	}
	return e, err
}

// inOnePiece hands net/http each body as what it is, bytes in memory. It cannot see that through the SDK's wrapping, and
// would send the headers by themselves first, in case the body is slow to come: twice the system calls, TLS records and
// packets of a request of half a KiB.
type inOnePiece struct{ dynamodb.HTTPClient }

// Do implements dynamodb.HTTPClient.
func (c inOnePiece) Do(r *http.Request) (*http.Response, error) {
	if r.Body != nil && r.ContentLength > 0 {
		body := make([]byte, r.ContentLength)
		_, err := io.ReadFull(r.Body, body)
		if err == nil {
			err = r.Body.Close()
		}
		if err != nil {
			return nil, fmt.Errorf("body of a request: %w", err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	return c.HTTPClient.Do(r)
}

// withoutInvocationID leaves out the header that numbers the SDK's calls: a random number to draw, and to sign, for each.
// DynamoDB does not ask for it, and names every request itself.
func withoutInvocationID(s *middleware.Stack) error {
	_, _ = s.Build.Remove((*awsmiddleware.ClientRequestID)(nil).ID()) // not there: nothing to leave out
	return nil
}
