package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/onceload/onceload/pkg/etl"
)

// tooSlow is the cause of an attempt's end by one of our own limits.
type tooSlow struct {
	limit    time.Duration
	what     string
	deadline bool // of the call, not of the attempt
}

func (e *tooSlow) Error() string { return fmt.Sprintf("over the limit of %s for %s", e.limit, e.what) }

// readable refuses by name what we do not read: the source will not change its encoding on a second attempt.
func (c *Client) readable(k call, resp *http.Response) *fault {
	refuse := func(what string) *fault {
		return permanent(etl.Errorf(etl.SourceMalformed, "%s: status %d: %s", k.endpoint(), resp.StatusCode, what))
	}
	switch e := contentEncoding(resp.Header); e {
	case "", "identity", "gzip":
	default:
		return refuse(fmt.Sprintf("content encoding %q, and only gzip was asked for", e))
	}
	// A content type that cannot be parsed says nothing about the charset.
	_, params, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		return nil
	}
	switch cs := strings.ToLower(params["charset"]); cs {
	case "", "utf-8", "utf8", "us-ascii", "ascii":
		return nil
	default:
		return refuse(fmt.Sprintf("charset %q: only UTF-8 is read", cs))
	}
}

func contentEncoding(h http.Header) string {
	e := strings.ToLower(strings.TrimSpace(strings.Join(h.Values("Content-Encoding"), ", ")))
	if e == "x-gzip" {
		return "gzip"
	}
	return e
}

// watched counts what arrives and puts the idle limit off with every byte.
type watched struct {
	r     io.Reader
	n     int64
	idle  time.Duration
	timer *time.Timer
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if n > 0 {
		w.n += int64(n)
		w.timer.Reset(w.idle)
	}
	return n, err
}

// maxGuess bounds the room made for a body before it is there: its Content-Length may lie.
const maxGuess = 8 << 20

// read takes the whole body, gzip undone, at most limit bytes of it.
func (c *Client) read(ctx context.Context, cancel context.CancelCauseFunc, k call, resp *http.Response, limit int64) ([]byte, *fault) {
	idle := c.o.Timeouts.Idle
	wire := &watched{r: resp.Body, idle: idle}
	wire.timer = time.AfterFunc(idle, func() { cancel(&tooSlow{limit: idle, what: "a silence"}) })
	defer wire.timer.Stop()

	failed := func(err error) *fault {
		what := "cut"
		if slow := (*tooSlow)(nil); errors.As(context.Cause(ctx), &slow) {
			what, err = "stalled", slow
		}
		return transient(etl.Errorf(etl.SourceUnavailable, "%s: status %d: body %s after %d bytes: %w", k.endpoint(), resp.StatusCode, what, wire.n, err))
	}
	var in io.Reader = wire
	size := int64(c.sizeWas)
	if contentEncoding(resp.Header) == "gzip" {
		unzip, err := gzip.NewReader(wire)
		switch {
		case errors.Is(err, io.EOF) && wire.n == 0:
			return nil, nil // no body at all: the checks of the page say so
		case err != nil:
			return nil, failed(err)
		}
		in = unzip
	} else if resp.ContentLength > 0 {
		size = resp.ContentLength
	}
	// Room for one read more, so that the end of the body does not double the buffer.
	room := k.room[:0]
	if want := min(size, limit, maxGuess) + bytes.MinRead; int64(cap(room)) < want {
		room = make([]byte, 0, want)
	}
	buf := bytes.NewBuffer(room)
	if _, err := buf.ReadFrom(io.LimitReader(in, limit+1)); err != nil {
		return buf.Bytes(), failed(err)
	}
	if int64(buf.Len()) > limit {
		return buf.Bytes()[:limit], permanent(etl.Errorf(etl.BatchTooLarge, "%s: page over limit of %d bytes: ask for fewer records a page, or raise source.max_bytes", k.endpoint(), limit))
	}
	c.sizeWas = buf.Len()
	return buf.Bytes(), nil
}
