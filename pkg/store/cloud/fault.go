// Package cloud keeps objects in S3 and tables in DynamoDB, through aws-sdk-go-v2. A table has the string keys `_pk` and
// (with a sort key) `_sk`, the rank in `_rank`, and the members of an item's Doc as attributes of its own types; its
// indexes project all attributes.
//
// The SDK repeats what failed on the way (network, 5xx); what it does not repeat, or not long enough, is repeated here a
// bounded number of times: conflicting conditional writes, throttling, keys a batch left out.
package cloud

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// errConflict marks a write refused because another one to the same place was under way: worth another try.
var errConflict = errors.New("another write was under way")

// Codes of the services. Whatever is not listed is StoreUnavailable: network, permissions, a missing bucket or table,
// credentials that ran out.
func notFound(code string) bool { return slices.Contains([]string{"NoSuchKey", "NotFound"}, code) }

// Missing reports whether an error says that a bucket or table itself does not exist.
func Missing(err error) bool {
	return slices.Contains([]string{"NoSuchBucket", "ResourceNotFoundException"}, errorCode(err))
}

// advice is what a person does about a code that trying again does not help.
func advice(code string) string {
	switch code {
	case "NoSuchBucket":
		return "the bucket does not exist: deploy the stack of template.yaml, or correct its name"
	case "ResourceNotFoundException":
		return "the table does not exist: deploy the stack of template.yaml, or correct its name"
	case "AccessDenied", "AccessDeniedException":
		return "the role may not do this: compare its policy with that of template.yaml"
	}
	return ""
}

func throttled(code string) bool {
	return slices.Contains([]string{"SlowDown", "Throttling", "ThrottlingException", "ThrottledException", "ThrottlingError",
		"ProvisionedThroughputExceededException", "ProvisionedThroughputExceeded", "RequestLimitExceeded",
		"RequestThrottled", "RequestThrottledException", "TooManyRequestsException"}, code)
}

func conflicting(code string) bool {
	return slices.Contains([]string{"ConditionalRequestConflict", "OperationAborted", "TransactionConflictException",
		"TransactionConflict", "TransactionInProgressException"}, code)
}

func ours(code string) bool {
	return slices.Contains([]string{"ValidationException", "ValidationError", "SerializationException",
		"ItemCollectionSizeLimitExceededException", "ItemCollectionSizeLimitExceeded", "IdempotentParameterMismatchException",
		"InvalidArgument", "InvalidRequest", "KeyTooLongError", "EntityTooLarge", "MalformedXML", "NotImplemented",
		"UnknownOperationException"}, code)
}

// classify turns an error of the SDK into one of the store's. The context's own end comes first: the SDK wraps it in
// many ways, and a client's own timeout looks just like it.
func classify(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ended := ctx.Err(); ended != nil {
		return ended
	}
	code, status := errorCode(err), 0
	if response := (*smithyhttp.ResponseError)(nil); errors.As(err, &response) {
		status = response.HTTPStatusCode()
	}
	switch {
	case notFound(code):
		return store.ErrNotFound
	case code == "PreconditionFailed" || status == http.StatusPreconditionFailed:
		return store.ErrExists
	case conflicting(code):
		return etl.Errorf(etl.StoreUnavailable, "%w: %w", errConflict, err)
	case throttled(code) || status == http.StatusTooManyRequests:
		return etl.Errorf(etl.StoreThrottled, "%w", err)
	case ours(code):
		return etl.Errorf(etl.Internal, "%w", err)
	}
	if what := advice(code); what != "" {
		return etl.Errorf(etl.StoreUnavailable, "%s: %w", what, err)
	}
	return etl.Errorf(etl.StoreUnavailable, "%w", err)
}

// Retry is how a store repeats what conflicted or was throttled.
type Retry struct {
	Attempts int           // in all
	Base     time.Duration // ceiling of the first wait; doubles with each
	Cap      time.Duration // ceiling of every wait
	Patience time.Duration // of waits in all before a throttled row, or look at ranks, is given up, after all attempts; a caller's deadline ends it earlier
	Sleep    func(context.Context, time.Duration) error
	Rand     func() float64 // [0, 1)
}

// DefaultRetry waits about 5 seconds in all before it gives up, or 10 minutes where rows are throttled: the stages' own
// retries take over from there.
func DefaultRetry() Retry {
	return Retry{Attempts: 8, Base: 50 * time.Millisecond, Cap: 2 * time.Second, Patience: 10 * time.Minute, Sleep: sleep, Rand: rand.Float64}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// wait sleeps before the attempt after attempt (counted from 0).
func (r Retry) wait(ctx context.Context, attempt int) error { return r.Sleep(ctx, r.delay(attempt)) }

// delay is half the attempt's ceiling and a random part of the other half.
func (r Retry) delay(attempt int) time.Duration {
	ceiling := r.Cap
	if attempt < 20 {
		ceiling = min(ceiling, r.Base<<attempt)
	}
	return ceiling/2 + time.Duration(r.Rand()*float64(ceiling/2))
}

// do runs f until it succeeds, fails for good, or has failed Attempts times. f returns classified errors.
func (r Retry) do(ctx context.Context, f func() error) error {
	for attempt := 0; ; attempt++ {
		err := f()
		if err == nil || attempt+1 >= r.Attempts || (etl.KindOf(err) != etl.StoreThrottled && !errors.Is(err, errConflict)) {
			return err
		}
		if err := r.wait(ctx, attempt); err != nil {
			return err
		}
	}
}

// errorCode is the service's code in an error, "" if it has none.
func errorCode(err error) string {
	if api := smithy.APIError(nil); errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}
