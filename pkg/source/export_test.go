package source

import (
	"net/http"
	"net/url"
	"time"
)

// Opened to the fuzz and table tests.
var (
	NextLink   = nextLink
	RetryAfter = retryAfter
	Origin     = origin
)

func Demanded(h http.Header, now time.Time) time.Duration { return demanded(h, now, true) }

func (c *Client) Resolve(from *url.URL, ref string) (*url.URL, error) { return c.resolve(from, ref) }

func (c *Client) Backoff(n int, demand time.Duration) (wait, ceiling time.Duration) {
	return c.backoff(n, demand)
}
