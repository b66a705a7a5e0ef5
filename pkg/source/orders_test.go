package source_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ordersapi"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/source"
)

// The demo's source: whatever it does, every record comes once, and no page that came is asked for again.
func TestMisbehavingOrders(t *testing.T) {
	api := ordersapi.New(ordersapi.Config{Seed: 1, Rows: 950, PageSize: 100, Token: canary, Faults: ordersapi.Misbehaving()})
	r := newRig(t, api.ServeHTTP)
	s := &r.pipeline.Source
	s.Query = []pipeline.Param{{Name: "updated_from", Value: "{window.start}"}, {Name: "updated_to", Value: "{window.end}"}, {Name: "limit", Value: "100"}}
	s.Paginate = pipeline.Paginate{Style: "cursor", Param: "cursor", Path: "meta.next_cursor"}
	s.Auth = pipeline.Auth{Scheme: "bearer", Secret: "orders-api-token"}
	pages, err := r.walk()
	if err != nil {
		t.Fatal(err)
	}
	records := 0
	for _, p := range pages {
		records += p.Records
	}
	if records != api.Records() || len(pages) != 10 {
		t.Errorf("%d records on %d pages, want %d on 10", records, len(pages), api.Records())
	}
	for p, c := range api.Calls() {
		if c.Served != 1 {
			t.Errorf("page %+v was served %d times", p, c.Served)
		}
	}
	if r.sleeps[0] < time.Second {
		t.Errorf("the first wait of %v is under Retry-After: 1", r.sleeps[0])
	}
	noCanary(t, "log", r.log.String())
}

// A certificate that does not verify is not a matter of time.
func TestCertificate(t *testing.T) {
	r := newRig(t, nil)
	tls := httptest.NewUnstartedServer(http.NotFoundHandler())
	tls.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	tls.StartTLS()
	t.Cleanup(tls.Close)
	r.pipeline.Source.URL = tls.URL
	_, stats, err := r.fetch()
	wantKind(t, err, etl.SourceRejected, "certificate")
	if stats.Attempts != 1 {
		t.Errorf("%d attempts, want 1", stats.Attempts)
	}
}

// From https there is no way down to http, allowed host or not.
func TestDowngrade(t *testing.T) {
	plain := newRig(t, func(w http.ResponseWriter, _ *http.Request) { reply(w, 200, onePage) })
	for _, how := range []string{"redirect", "link"} {
		r := newRig(t, nil)
		tls := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if how == "redirect" {
				reply(w, 302, "", "Location", plain.server.URL)
				return
			}
			reply(w, 200, onePage, "Link", "<"+plain.server.URL+">; rel=next")
		}))
		t.Cleanup(tls.Close)
		r.options.HTTP = tls.Client()
		r.pipeline.Source.URL = tls.URL
		r.pipeline.Source.Paginate.Style = "link"
		r.pipeline.Source.AllowHosts = []string{strings.TrimPrefix(plain.server.URL, "http://")}
		_, _, err := r.fetch()
		wantKind(t, err, etl.SourceRejected, "from https down to http")
	}
	if plain.calls() != 0 {
		t.Errorf("%d requests in the clear", plain.calls())
	}
}

// A paging parameter that the file's query has too stands once, in its place; the rest keeps the file's order.
func TestQueryOrder(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) { reply(w, 200, `{"data":[]}`) })
	r.pipeline.Source.Query = []pipeline.Param{{Name: "z", Value: "{window.start:unix}"}, {Name: "limit", Value: "5"}, {Name: "a[]", Value: "1 2&3"}}
	r.pipeline.Source.Paginate = pipeline.Paginate{Style: "offset", Param: "offset", SizeParam: "limit", Size: 50}
	pg, _, err := r.fetch()
	if err != nil {
		t.Fatal(err)
	}
	if want := r.server.URL + "/v1/orders?z=1796032800&limit=50&a%5B%5D=1+2%263&offset=0"; pg.URL != want {
		t.Errorf("URL %s, want %s", pg.URL, want)
	}
}

// Every option has a default that works.
func TestDefaults(t *testing.T) {
	first := true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if first {
			first = false
			reply(w, 503, "")
			return
		}
		reply(w, 200, onePage)
	}))
	t.Cleanup(server.Close)
	c, err := source.New(&pipeline.Pipeline{Source: pipeline.Source{URL: server.URL, Records: "data",
		Retry: pipeline.Retry{Base: time.Microsecond}}}, source.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pg, stats, err := c.Fetch(t.Context(), source.Request{})
	if err != nil || pg.Records != 2 || stats.Retries != 1 || time.Since(pg.FetchedAt) > time.Minute {
		t.Errorf("%v, page %+v, stats %+v", err, pg, stats)
	}
	if text, err := json.Marshal(pg.After); err != nil || string(text) != "{}" {
		t.Errorf("state %s (%v)", text, err)
	}
}

func BenchmarkFetch(b *testing.B) {
	body := ids(0, 1000, `,"pad":"`+strings.Repeat("x", 430_000)+`"`)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { reply(w, 200, body) }))
	defer server.Close()
	c, err := source.New(&pipeline.Pipeline{Source: pipeline.Source{URL: server.URL, Records: "data"}}, source.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := c.Fetch(b.Context(), source.Request{}); err != nil {
			b.Fatal(err)
		}
	}
}
