package source

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/page"
	"github.com/onceload/onceload/pkg/pipeline"
)

// Options are what a [Client] needs of its surroundings. Every field has a default.
type Options struct {
	HTTP     *http.Client                                           // default: a transport with Timeouts; its redirect rule and cookie jar are not used
	Log      *slog.Logger                                           // default: discards
	Now      func() time.Time                                       // default: time.Now
	Sleep    func(ctx context.Context, d time.Duration) error       // default: a timer; returns the context's error when that ends first
	Rand     func() float64                                         // uniform in [0, 1); default: math/rand/v2
	Secret   func(ctx context.Context, name string) (string, error) // default: every secret is unknown
	Limiter  Limiter                                                // default: none
	Margin   time.Duration                                          // kept free before the context's deadline; default 10 s
	Timeouts Timeouts
}

// Timeouts bound one attempt, so that nothing hangs. Zero fields have the default.
type Timeouts struct {
	Connect time.Duration // default 10 s
	TLS     time.Duration // default 10 s
	Header  time.Duration // from the request sent to the response's headers; default 30 s
	Idle    time.Duration // between two reads of the body; default 30 s
	Request time.Duration // the whole attempt, body included; default 60 s
}

// Limiter lets requests through: the budget and the breaker that all invocations of a source share.
type Limiter interface {
	// Admit asks to make one request now. A positive wait means not yet, and why: ask again after it.
	Admit(ctx context.Context) (wait time.Duration, why string, err error)
	// Observe tells how an admitted request ended: "" or the kind of its failure; and the wait the source demands of
	// everyone, 0 = none. An end that says nothing about the source is not told.
	Observe(ctx context.Context, kind etl.Kind, demand time.Duration) error
}

// Client asks one pipeline's source for pages. Not for concurrent use: it keeps the secret and the token it was given.
type Client struct {
	src     pipeline.Source
	o       Options
	http    *http.Client
	base    *url.URL
	layout  page.Layout
	pager   pager
	wrong   *page.Path // error_when
	within  bool       // a path of the paging or of error_when leads into the records
	secret  string
	token   token
	scrubs  []string // what must not stand in a message
	sizeWas int      // of the last body: the next one is likely as big
}

// New makes the client of the pipeline's source. Faults of the pipeline are of kind [etl.ContractInvalid].
func New(p *pipeline.Pipeline, o Options) (*Client, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Sleep == nil {
		o.Sleep = sleep
	}
	if o.Rand == nil {
		o.Rand = rand.Float64
	}
	if o.Secret == nil {
		o.Secret = func(_ context.Context, name string) (string, error) {
			return "", etl.Errorf(etl.SourceRejected, "no secrets here: %q is unknown", name)
		}
	}
	o.Margin = orElse(o.Margin, 10*time.Second)
	o.Timeouts = Timeouts{
		Connect: orElse(o.Timeouts.Connect, 10*time.Second),
		TLS:     orElse(o.Timeouts.TLS, 10*time.Second),
		Header:  orElse(o.Timeouts.Header, 30*time.Second),
		Idle:    orElse(o.Timeouts.Idle, 30*time.Second),
		Request: orElse(o.Timeouts.Request, 60*time.Second),
	}
	c := &Client{src: p.Source, o: o, http: &http.Client{Transport: transport(o.Timeouts)}}
	if o.HTTP != nil {
		c.http.Transport = o.HTTP.Transport
	}
	// Each hop of a redirect is a request of its own, so that credentials are decided on anew; see exchange.
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

	invalid := func(key string, err error) error {
		return etl.Errorf(etl.ContractInvalid, "pipeline %s: source.%s: %w", p.Name, key, err)
	}
	var err error
	if c.base, err = url.Parse(p.Source.URL); err != nil {
		return nil, invalid("url", err)
	}
	if (c.base.Scheme != "http" && c.base.Scheme != "https") || c.base.Host == "" || c.base.User != nil || c.base.RawQuery != "" || c.base.Fragment != "" {
		return nil, invalid("url", fmt.Errorf("want http(s)://host/path, parameters under source.query, credentials under source.auth"))
	}
	records, err := page.ParsePath(p.Source.Records)
	if err != nil {
		return nil, invalid("records", err)
	}
	c.layout = page.Layout{Path: records, NDJSON: p.Source.NDJSON,
		Map: slices.ContainsFunc(p.Contract.Fields, func(f pipeline.Field) bool { return f.From == "@key" })}
	if c.wrong, err = optionalPath(p.Source.ErrorWhen); err != nil {
		return nil, invalid("error_when", err)
	}
	if c.pager, err = newPager(p.Source.Paginate); err != nil {
		return nil, invalid("paginate", err)
	}
	c.within = c.pager.leadsInto(records) || (c.wrong != nil && within(*c.wrong, records))
	if c.src.Method == "" {
		c.src.Method = http.MethodGet
	}
	c.src.MaxBytes = orElse(c.src.MaxBytes, 32<<20)
	r := &c.src.Retry
	*r = pipeline.Retry{
		Attempts:   orElse(r.Attempts, 5),
		Base:       orElse(r.Base, time.Second),
		Cap:        orElse(r.Cap, 30*time.Second),
		InlineWait: orElse(r.InlineWait, 5*time.Second),
		MaxWait:    orElse(r.MaxWait, 6*time.Hour),
	}
	return c, nil
}

// transport is one with every wait before the body bounded. It does not undo gzip: that is done under max_bytes.
func transport(t Timeouts) *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: t.Connect, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   t.TLS,
		ResponseHeaderTimeout: t.Header,
		IdleConnTimeout:       90 * time.Second,
		MaxIdleConnsPerHost:   4,
		ForceAttemptHTTP2:     true,
		DisableCompression:    true,
	}
}

func orElse[T ~int | ~int64](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

func optionalPath(s string) (*page.Path, error) {
	if s == "" {
		return nil, nil
	}
	p, err := page.ParsePath(s)
	return &p, err
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Rebase is the pipeline with another scheme and host for its source, and for its token URL where that has the same
// origin: how a run is pointed at a local server. base is scheme://host[:port].
func Rebase(p *pipeline.Pipeline, base string) (*pipeline.Pipeline, error) {
	to, err := url.Parse(base)
	if err != nil || (to.Scheme != "http" && to.Scheme != "https") || to.Host == "" || to.User != nil || strings.Trim(to.Path, "/") != "" || to.RawQuery != "" || to.Fragment != "" {
		return nil, etl.Errorf(etl.Usage, "source %q: want scheme and host alone, like http://127.0.0.1:8080", base)
	}
	from, err := url.Parse(p.Source.URL)
	if err != nil {
		return nil, etl.Errorf(etl.ContractInvalid, "pipeline %s: source.url: %w", p.Name, err)
	}
	out := *p
	if t, err := url.Parse(p.Source.Auth.TokenURL); err == nil && origin(t) == origin(from) {
		t.Scheme, t.Host = to.Scheme, to.Host
		out.Source.Auth.TokenURL = t.String()
	}
	from.Scheme, from.Host = to.Scheme, to.Host
	out.Source.URL = from.String()
	return &out, nil
}
