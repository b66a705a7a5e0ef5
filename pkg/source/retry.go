package source

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/onceload/onceload/pkg/etl"
)

// backoff is the wait after the nth attempt: uniform in [ceiling/2, ceiling], where the ceiling doubles from base up to
// cap, so that waits never shrink before the cap. A demand of the source only makes it longer.
func (c *Client) backoff(n int, demand time.Duration) (wait, ceiling time.Duration) {
	ceiling = c.src.Retry.Cap
	if f := float64(c.src.Retry.Base) * math.Pow(2, float64(n-1)); f < float64(ceiling) {
		ceiling = time.Duration(f)
	}
	wait = ceiling/2 + time.Duration(c.o.Rand()*float64(ceiling-ceiling/2))
	return max(wait, demand), ceiling
}

// faultOf classifies the error of a request that got no response.
func faultOf(ctx context.Context, k call, err error) *fault {
	err = cause(err)
	var classified *etl.Error
	if errors.As(err, &classified) {
		return &fault{err: fmt.Errorf("%s: %w", k.endpoint(), err), transient: classified.Kind.Info().Transient}
	}
	if slow := (*tooSlow)(nil); errors.As(context.Cause(ctx), &slow) {
		err = slow
	}
	kind := etl.SourceUnavailable
	// A certificate that does not verify will not do so a second later.
	if cert := (*tls.CertificateVerificationError)(nil); errors.As(err, &cert) {
		kind = etl.SourceRejected
	}
	return &fault{err: etl.Errorf(kind, "%s: %w", k.endpoint(), err), transient: kind == etl.SourceUnavailable}
}

// cause takes off net/http's wrapping, which quotes the URL with its query.
func cause(err error) error {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err
	}
	return err
}

// throttles reports whether a 403 is a rate limit in truth, as GitHub answers it.
func throttles(h http.Header) bool {
	return h.Get("Retry-After") != "" || strings.TrimSpace(h.Get("X-RateLimit-Remaining")) == "0"
}

// demanded is the wait the response asks for: Retry-After, else (when throttled) the reset of its rate limit. Zero means
// none that makes sense. A response may well demand more than retry.max_wait: what becomes of it is the caller's rule.
func demanded(h http.Header, now time.Time, throttled bool) time.Duration {
	// Dates are read against the source's own clock where it tells it, so that a skewed clock does no harm.
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	var longest time.Duration
	for _, v := range h.Values("Retry-After") {
		longest = max(longest, retryAfter(v, now))
	}
	if longest > 0 || !throttled {
		return longest
	}
	for _, name := range []string{"RateLimit-Reset", "X-RateLimit-Reset", "X-Rate-Limit-Reset"} {
		if s, ok := seconds(h.Get(name)); ok {
			longest = max(longest, untilReset(s, now))
		}
	}
	// The drafts' single field: `limit=100, remaining=0, reset=30`, later `"default";r=0;t=30`.
	for _, item := range strings.FieldsFunc(strings.Join(h.Values("RateLimit"), ","), func(r rune) bool { return r == ',' || r == ';' }) {
		name, value, _ := strings.Cut(strings.TrimSpace(item), "=")
		if s, ok := seconds(value); ok && (name == "reset" || name == "t") {
			longest = max(longest, untilReset(s, now))
		}
	}
	return longest
}

// retryAfter reads one field value: seconds, or a date in any of the three forms of RFC 9110 §5.6.7. Real servers also send
// fractions and lists of seconds. Anything else, zero and the past give 0.
func retryAfter(v string, now time.Time) time.Duration {
	if t, err := http.ParseTime(strings.TrimSpace(v)); err == nil {
		return max(0, t.Sub(now))
	}
	var longest time.Duration
	for part := range strings.SplitSeq(v, ",") {
		if s, ok := seconds(part); ok {
			longest = max(longest, span(s))
		}
	}
	return longest
}

// seconds reads a plain decimal number that is not negative.
func seconds(s string) (float64, bool) {
	s = strings.TrimSpace(s)
	if s == "" || strings.Trim(s, "0123456789.") != "" {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil || errors.Is(err, strconv.ErrRange)
}

// span is seconds as a duration, at most a hundred years: far over any max_wait, and safe to add to a time.
func span(s float64) time.Duration {
	const most = 100 * 365 * 24 * time.Hour
	if s >= most.Seconds() {
		return most
	}
	return time.Duration(s * float64(time.Second))
}

// untilReset reads a reset that some APIs give in seconds from now, others as seconds or milliseconds since 1970.
func untilReset(s float64, now time.Time) time.Duration {
	const epochSeconds, epochMillis = 1e9, 1e12
	switch {
	case s >= epochMillis:
		return max(0, span(s/1e3-float64(now.Unix())))
	case s >= epochSeconds:
		return max(0, span(s-float64(now.Unix())))
	}
	return span(s)
}
