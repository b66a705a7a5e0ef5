package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/page"
)

// Page is one response body that passed every check, and where it stands in the paging.
type Page struct {
	Body      []byte // as the source sent it, gzip undone; the caller's to keep
	Records   int
	URL       string // as asked for, without credentials
	Status    int
	FetchedAt time.Time
	Before    State
	After     State  // of the next page; equal to Before on the last one
	Done      bool   // this is the last page
	Seen      string // digest of the records, as [State] has it of the page before
	Request   string // fingerprint of method, URL and body, without credentials
}

// Stats is what one Fetch cost.
type Stats struct {
	Attempts int           // made at the request under way, those before this Fetch included; 0 after success
	Retries  int           // attempts of this Fetch that repeated an earlier one, of this Fetch or before
	Waited   time.Duration // slept within this Fetch
}

// Wait is the error that says: not now. The next attempt is due at Until, and that is too far away to sleep through.
type Wait struct {
	Until  time.Time
	Reason string
	Shared bool // for the budget or the breaker: no sign that this extraction is stuck
}

// Error is the reason with the time.
func (w *Wait) Error() string { return "wait until " + etl.FormatTime(w.Until) + ": " + w.Reason }

// Fetch asks for a page, trying again within the bounds of retry. Besides a [*Wait] its errors have a kind of the source's
// (SourceUnavailable, SourceThrottled, SourceRejected, SourceMalformed, CursorExpired, BatchTooLarge for a page over
// max_bytes), ContractInvalid, or are the context's own; the last attempt's cause is in the chain.
func (c *Client) Fetch(ctx context.Context, r Request) (Page, Stats, error) {
	k, err := c.call(r)
	if err != nil {
		return Page{}, Stats{Attempts: r.Tried}, err
	}
	stats := Stats{Attempts: r.Tried}
	renewed := false
	for {
		if err := c.admit(ctx, r, &stats); err != nil {
			return Page{}, stats, err
		}
		if stats.Attempts > 0 {
			stats.Retries++
		}
		pg, f := c.attempt(ctx, k, r)
		if err := ctx.Err(); err != nil && f != nil {
			return Page{}, stats, fmt.Errorf("%s: %w", k.endpoint(), err)
		}
		if err := c.observe(ctx, f); err != nil {
			return Page{}, stats, err
		}
		if f == nil {
			stats.Attempts = 0
			return pg, stats, nil
		}
		if f.status == http.StatusUnauthorized && c.src.Auth.Scheme == "oauth2" && !renewed {
			// The token may have been withdrawn before its time: a refusal of it did nothing, so this is no second attempt.
			renewed, c.token = true, token{}
			continue
		}
		if f.ours() {
			// Cut by our own deadline, which says nothing about the source: not counted.
			return Page{}, stats, &Wait{Until: c.o.Now(), Reason: f.err.Error()}
		}
		stats.Attempts++
		switch {
		case !f.transient:
			return Page{}, stats, f.err
		case k.method != http.MethodGet && c.src.IdempotencyHeader == "":
			return Page{}, stats, fmt.Errorf("not tried again, because a %s without source.idempotency_header may have taken effect: %w", k.method, f.err)
		case stats.Attempts >= c.src.Retry.Attempts:
			return Page{}, stats, fmt.Errorf("attempt %d of %d: %w", stats.Attempts, c.src.Retry.Attempts, f.err)
		}
		wait, ceiling := c.backoff(stats.Attempts, f.after)
		c.o.Log.WarnContext(ctx, "source attempt failed",
			slog.Int("attempt", stats.Attempts), slog.Int("attempts", c.src.Retry.Attempts), slog.String("reason", f.err.Error()),
			slog.Duration("ceiling", ceiling), slog.Duration("wait", wait))
		if err := c.pause(ctx, r, wait, f.err, false, &stats); err != nil {
			return Page{}, stats, err
		}
	}
}

// pause sleeps, or returns a Wait for what is too long to sleep through, or fails when the waits pass retry.max_wait.
func (c *Client) pause(ctx context.Context, r Request, wait time.Duration, why error, shared bool, stats *Stats) error {
	if err := c.postpone(r, wait, why, shared); !errors.As(err, new(*Wait)) || wait > c.src.Retry.InlineWait || wait >= c.timeLeft(ctx) {
		return err
	}
	if err := c.o.Sleep(ctx, wait); err != nil {
		return fmt.Errorf("wait before the next attempt: %w", err)
	}
	stats.Waited += wait
	return nil
}

// postpone makes the Wait for what is due after wait, unless all waits for the request together pass retry.max_wait.
func (c *Client) postpone(r Request, wait time.Duration, why error, shared bool) error {
	now := c.o.Now()
	until := now.Add(wait)
	began := r.WaitBegan
	if began.IsZero() {
		began = now
	}
	if total := until.Sub(began); total > c.src.Retry.MaxWait {
		return etl.Errorf(etl.SourceThrottled, "the next attempt is due at %s, %s after the first wait began, and that passes source.retry.max_wait of %s: redrive then, or raise source.retry.max_wait: %w",
			etl.FormatTime(until.Truncate(time.Second)), total.Round(time.Second), c.src.Retry.MaxWait, why)
	}
	return &Wait{Until: until, Reason: why.Error(), Shared: shared}
}

// timeLeft is what the context's deadline leaves, less the margin.
func (c *Client) timeLeft(ctx context.Context) time.Duration {
	if d, ok := ctx.Deadline(); ok {
		return d.Sub(c.o.Now()) - c.o.Margin
	}
	return 1<<63 - 1
}

// admit waits for the limiter's leave and refuses to begin what the deadline would cut.
func (c *Client) admit(ctx context.Context, r Request, stats *Stats) error {
	if c.timeLeft(ctx) <= 0 {
		return &Wait{Until: c.o.Now(), Reason: "too little time left for another attempt"}
	}
	if c.o.Limiter == nil {
		return nil
	}
	began := c.o.Now()
	if r.WaitBegan.IsZero() {
		r.WaitBegan = began
	}
	var slept time.Duration
	for {
		wait, why, err := c.o.Limiter.Admit(ctx)
		if err != nil {
			return fmt.Errorf("ask for a request of the budget: %w", err)
		}
		if wait <= 0 {
			return nil
		}
		reason := errors.New(why)
		// Many short waits are a long one.
		if slept += wait; slept > c.src.Retry.InlineWait {
			return c.postpone(r, wait, reason, true)
		}
		if err := c.pause(ctx, r, wait, reason, true, stats); err != nil {
			return err
		}
	}
}

// observe tells the limiter how the attempt ended, if that says anything about the source.
func (c *Client) observe(ctx context.Context, f *fault) error {
	if c.o.Limiter == nil {
		return nil
	}
	var kind etl.Kind
	var demand time.Duration
	if f != nil {
		kind = etl.KindOf(f.err)
		if f.ours() || !f.answered && kind != etl.SourceUnavailable { // cut by our deadline, or not even asked
			return nil
		}
		if kind == etl.SourceThrottled {
			demand = f.after
		}
	}
	if err := c.o.Limiter.Observe(ctx, kind, demand); err != nil {
		return fmt.Errorf("tell the budget of a request: %w", err)
	}
	return nil
}

// fault is why an attempt failed.
type fault struct {
	err       error // classified
	transient bool
	answered  bool          // the source sent a response
	status    int           // of the response; 0 = none
	after     time.Duration // the wait the source demands; 0 = none
}

// ours reports whether our own deadline cut the attempt.
func (f *fault) ours() bool {
	slow := (*tooSlow)(nil)
	return errors.As(f.err, &slow) && slow.deadline
}

func permanent(err error) *fault { return &fault{err: err} }
func transient(err error) *fault { return &fault{err: err, transient: true} }

// attempt makes one attempt at the call: request, body, checks, next position. It is bounded in time, whatever the source
// does.
func (c *Client) attempt(ctx context.Context, k call, r Request) (Page, *fault) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slow := &tooSlow{limit: c.o.Timeouts.Request, what: "the whole request"}
	if left := c.timeLeft(ctx); left < slow.limit {
		slow = &tooSlow{limit: left, what: "what is left of this call", deadline: true}
	}
	defer time.AfterFunc(slow.limit, func() { cancel(slow) }).Stop()

	resp, f := c.exchange(ctx, k)
	if f != nil {
		return Page{}, f
	}
	defer resp.Body.Close()
	pg, f := c.page(ctx, cancel, k, r, resp)
	if f != nil {
		f.answered = true
	}
	return pg, f
}

// page makes a page of the response.
func (c *Client) page(ctx context.Context, cancel context.CancelCauseFunc, k call, r Request, resp *http.Response) (Page, *fault) {
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return Page{}, c.refused(ctx, cancel, k, r, resp)
	}
	if f := c.readable(k, resp); f != nil {
		return Page{}, f
	}
	body, f := c.read(ctx, cancel, k, resp, c.src.MaxBytes)
	if f != nil {
		return Page{}, f
	}
	if resp.StatusCode == http.StatusPartialContent {
		return Page{}, c.malformed(k, resp, body, errors.New("it says that it is a part of the answer, and no part was asked for"))
	}
	if c.expired(r, resp.StatusCode, body) {
		return Page{}, c.cursorExpired(k, r, resp.StatusCode)
	}
	var last page.Record
	var each func(page.Record) error
	if c.pager.wantsLast() {
		each = func(rec page.Record) error { last = rec; return nil }
	}
	n, around, faulty := c.layout.Split(body, each)
	seen := c.digest(body, around, n)
	if faulty != nil || c.within || c.src.NDJSON {
		around = body
	}
	if c.wrong != nil && !c.src.NDJSON {
		// It stands in a document that need not have any records.
		if v, err := page.Find(around, *c.wrong); err == nil && truthy(v) {
			return Page{}, c.malformed(k, resp, body, fmt.Errorf("an error stands at %s", c.wrong))
		}
	}
	if faulty != nil {
		return Page{}, c.malformed(k, resp, body, faulty)
	}
	next, done, err := c.pager.next(c, r.At, turn{url: resp.Request.URL, header: resp.Header, around: around, records: n, last: last})
	if err != nil {
		if etl.KindOf(err) == etl.SourceRejected {
			return Page{}, permanent(fmt.Errorf("%s: next page: %w", k.endpoint(), err))
		}
		return Page{}, c.malformed(k, resp, body, err)
	}
	if !done {
		next.Records = seen
	}
	return Page{Body: body, Records: n, URL: k.url.String(), Status: resp.StatusCode, FetchedAt: c.o.Now().UTC(),
		Before: r.At, After: next, Done: done, Request: k.print, Seen: seen}, nil
}

// digest tells records apart from those of another page, without what stands around them, like the time of the answer. It
// is "" for fewer than two, and where there is one page only. Two fast checksums, the number and the size do: what is
// compared is one page with the one before it.
func (c *Client) digest(body, around []byte, records int) string {
	if records < 2 || c.pager.Style == "none" {
		return ""
	}
	if !c.src.NDJSON {
		// Where the records stood, around goes on with the bracket that closes them, and a record begins with none.
		from := 0
		for from < len(around) && around[from] == body[from] {
			from++
		}
		body = body[from : from+len(body)-len(around)]
	}
	return fmt.Sprintf("%d-%d-%08x%08x", records, len(body), crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)), crc32.ChecksumIEEE(body))
}

// truthy reports whether a value says yes: not missing, null, false, zero or empty.
func truthy(v page.Value) bool {
	switch v.Kind {
	case page.Missing, page.Null:
		return false
	case page.Array, page.Object:
		return len(strings.TrimSpace(string(v.Raw[1:len(v.Raw)-1]))) > 0
	}
	return !slices.Contains([]string{"false", "0", `""`, `"false"`}, string(v.Raw))
}

// errorBytes is how much of an error's body is read: cursor_expired looks in it, messages quote its start.
const errorBytes = 64 << 10

// refused classifies a response whose status is not 2xx.
func (c *Client) refused(ctx context.Context, cancel context.CancelCauseFunc, k call, r Request, resp *http.Response) *fault {
	// The status is answer enough: an error's body that cannot be read is left out of the message.
	body, _ := c.read(ctx, cancel, k, resp, errorBytes)
	if c.expired(r, resp.StatusCode, body) {
		return c.cursorExpired(k, r, resp.StatusCode)
	}
	status, kind := resp.StatusCode, etl.SourceRejected
	switch {
	case status == http.StatusTooManyRequests, status == http.StatusForbidden && throttles(resp.Header):
		kind = etl.SourceThrottled
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status >= 500:
		kind = etl.SourceUnavailable
	}
	text := fmt.Sprintf("%s: status %d %s", k.endpoint(), status, http.StatusText(status))
	if kind == etl.SourceRejected {
		text += c.hint(status)
	}
	if len(body) > 0 {
		text += fmt.Sprintf("; the answer begins %q", excerpt(c.scrub(body)))
	}
	f := &fault{err: etl.Errorf(kind, "%s", text), transient: kind != etl.SourceRejected, status: status}
	if f.transient {
		f.after = demanded(resp.Header, c.o.Now(), kind == etl.SourceThrottled)
	}
	return f
}

// expired reports whether this is the declared refusal of an old cursor. The first page has no cursor to refuse.
func (c *Client) expired(r Request, status int, body []byte) bool {
	e := c.src.CursorExpired
	return !r.At.First() && slices.Contains(e.Status, status) && strings.Contains(string(body), e.Body)
}

func (c *Client) cursorExpired(k call, r Request, status int) *fault {
	return permanent(etl.Errorf(etl.CursorExpired, "%s: status %d: the source refused its own cursor at page %d", k.endpoint(), status, r.At.Page))
}

// MalformedError is a response that is not the declared JSON. It stands in the chain of an error of kind SourceMalformed.
type MalformedError struct {
	Body        []byte // as far as it is worth keeping under _rejected/; our credentials taken out
	Status      int
	ContentType string
	Err         error // what is wrong with it
}

// Error names status, content type, what is wrong and how the body begins.
func (e *MalformedError) Error() string {
	return fmt.Sprintf("status %d, content type %q: %s; the body begins %q", e.Status, e.ContentType, e.Err, excerpt(e.Body))
}

// Unwrap gives what is wrong.
func (e *MalformedError) Unwrap() error { return e.Err }

// malformed is a 2xx that is not a page. It may be a proxy's error page or a deployment half done, so it is tried again,
// but for a charset that we do not read.
func (c *Client) malformed(k call, resp *http.Response, body []byte, why error) *fault {
	var text *page.Fault
	known := errors.As(why, &text)
	switch start := bytes.TrimLeft(body, "\ufeff \t\r\n"); {
	case len(start) == 0:
		why = errors.New("the body is empty")
	case start[0] == '<':
		why = errors.New("HTML or XML instead of JSON")
	}
	if known && text.Code == page.CodeMissing {
		why = fmt.Errorf("%w; %s", why, c.scrub([]byte(c.members(body))))
	}
	err := etl.Errorf(etl.SourceMalformed, "%s: %w", k.endpoint(), &MalformedError{
		Body: c.scrub(body), Status: resp.StatusCode, ContentType: resp.Header.Get("Content-Type"), Err: why})
	return &fault{err: err, transient: !known || text.Code != page.CodeCharset, status: resp.StatusCode}
}

// maxMembers bounds the members that a message names.
const maxMembers = 10

// members names what a document has on the way to where its records should be.
func (c *Client) members(body []byte) string {
	f := page.NewFields([]page.Path{c.layout.Path})
	var names []string
	_, err := f.Scan(body, make([]page.Value, 1), func(e page.Extra) {
		if len(names) == maxMembers {
			names = append(names, "…")
		}
		if e.ID < 0 || len(names) > maxMembers {
			return
		}
		name := string(excerpt([]byte(f.ExtraPath(e.ID).String())))
		if e.Value.Kind == page.Array {
			name += " (array)"
		}
		names = append(names, name)
	})
	if err != nil || len(names) == 0 {
		return "there are no members"
	}
	return "there are the members " + strings.Join(names, ", ")
}

// excerpt is how a body begins, for a message.
func excerpt(body []byte) []byte { return body[:min(len(body), 120)] }
