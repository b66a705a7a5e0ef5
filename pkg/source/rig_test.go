package source_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/source"
)

// canary stands for every secret: it may go to the source's origin and nowhere else.
const canary = "canary/9f8e7d&secret"

// rig is a client before a server of ours, with a clock that only sleeping moves.
type rig struct {
	t        *testing.T
	pipeline *pipeline.Pipeline
	options  source.Options
	server   *httptest.Server
	handler  http.HandlerFunc

	mu     sync.Mutex
	asked  []*http.Request
	sleeps []time.Duration
	now    time.Time
	log    bytes.Buffer
}

func newRig(t *testing.T, handler http.HandlerFunc) *rig {
	t.Helper()
	r := &rig{t: t, handler: handler, now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		r.asked = append(r.asked, req)
		r.mu.Unlock()
		r.handler(w, req)
	}))
	t.Cleanup(r.server.Close)
	r.pipeline = &pipeline.Pipeline{Name: "orders", Source: pipeline.Source{
		URL: r.server.URL + "/v1/orders", Method: "GET", Records: "data",
		Query: []pipeline.Param{{Name: "from", Value: "{window.start}"}},
		Retry: pipeline.Retry{InlineWait: time.Hour},
	}}
	r.options = source.Options{
		Log:    slog.New(slog.NewTextHandler(&r.log, nil)),
		Now:    func() time.Time { return r.now },
		Rand:   func() float64 { return 0.5 },
		Secret: func(context.Context, string) (string, error) { return canary + "\n", nil },
		Sleep: func(ctx context.Context, d time.Duration) error {
			r.sleeps = append(r.sleeps, d)
			r.now = r.now.Add(d)
			return ctx.Err()
		},
		Timeouts: source.Timeouts{Idle: time.Minute},
	}
	return r
}

func (r *rig) client() *source.Client {
	r.t.Helper()
	c, err := source.New(r.pipeline, r.options)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *rig) request(at source.State) source.Request {
	start := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	return source.Request{Slot: start, Window: etl.Window{Start: start, End: start.Add(time.Hour)}, At: at}
}

func (r *rig) fetch() (source.Page, source.Stats, error) {
	r.t.Helper()
	return r.client().Fetch(r.t.Context(), r.request(source.State{}))
}

// walk fetches pages under a guard until the last one or an error.
func (r *rig) walk() ([]source.Page, error) {
	r.t.Helper()
	c, g := r.client(), source.NewGuard(r.pipeline.Source.Paginate)
	var pages []source.Page
	for at := (source.State{}); ; {
		pg, _, err := c.Fetch(r.t.Context(), r.request(at))
		if err != nil {
			return pages, err
		}
		if err := g.Add(pg.Request, string(pg.Body), pg.Records, pg.Seen); err != nil {
			return pages, err
		}
		if pg.Before != at {
			r.t.Fatalf("page asked for at %+v says it was at %+v", at, pg.Before)
		}
		pages = append(pages, pg)
		if pg.Done {
			return pages, nil
		}
		at = pg.After
	}
}

// calls is how many requests reached the server.
func (r *rig) calls() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.asked)
}

// wantKind fails unless the error has the kind and its message holds every text.
func wantKind(t *testing.T, err error, kind etl.Kind, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %s", kind)
	}
	if got := etl.KindOf(err); got != kind {
		t.Fatalf("kind %s, want %s: %v", got, kind, err)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not say %q", err, text)
		}
	}
	if strings.Contains(err.Error(), "canary") {
		t.Errorf("error shows the secret: %v", err)
	}
}

// reply writes one response.
func reply(w http.ResponseWriter, status int, body string, headers ...string) {
	w.Header().Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		w.Header().Set(headers[i], headers[i+1])
	}
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
}
