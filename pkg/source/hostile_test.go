package source_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/source"
)

// hostile is a source that does its worst, and what must come of it.
type hostile struct {
	name  string
	edit  func(r *rig)
	serve func(w http.ResponseWriter, req *http.Request, n int) // n counts the requests, from 1

	kind  etl.Kind // "" = every page is fetched
	says  []string
	calls int // 0 = not counted
	pages int // fetched before the end
	slept time.Duration
	check func(t *testing.T, r *rig, pages []source.Page, err error)
}

// cut breaks the connection after some bytes of a body.
func cut(w http.ResponseWriter, headers ...string) {
	reply(w, 200, `{"data":[{"id":1},`, headers...)
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

func zipped(body string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, body)
	_ = z.Close()
	return b.Bytes()
}

// cursors gives every request the page of its cursor and the next one.
func cursors(next func(at int) string) func(http.ResponseWriter, *http.Request, int) {
	return func(w http.ResponseWriter, req *http.Request, _ int) {
		at, _ := strconv.Atoi(req.FormValue("cursor"))
		reply(w, 200, next(at))
	}
}

func withCursor(r *rig) {
	r.pipeline.Source.Paginate = pipeline.Paginate{Style: "cursor", Param: "cursor", Path: "next"}
}

func withLink(r *rig) { r.pipeline.Source.Paginate = pipeline.Paginate{Style: "link"} }

// shortLimits are for sources that do not end by themselves.
func shortLimits(r *rig) {
	r.options.Timeouts = source.Timeouts{Header: 40 * time.Millisecond, Idle: 40 * time.Millisecond, Request: 120 * time.Millisecond}
	r.pipeline.Source.Retry.Attempts = 2
}

// linked answers with a page whose next link is to.
func linked(to string) func(http.ResponseWriter, *http.Request, int) {
	return func(w http.ResponseWriter, _ *http.Request, n int) {
		reply(w, 200, fmt.Sprintf(`{"data":[{"id":%d}]}`, n), "Link", "<"+to+`>; rel="next"`)
	}
}

// upTo serves n answers of one kind, then good pages.
func upTo(n int, bad func(http.ResponseWriter)) func(http.ResponseWriter, *http.Request, int) {
	return func(w http.ResponseWriter, _ *http.Request, i int) {
		if i <= n {
			bad(w)
			return
		}
		reply(w, 200, onePage)
	}
}

func always(bad func(http.ResponseWriter)) func(http.ResponseWriter, *http.Request, int) {
	return upTo(1<<30, bad)
}

func answer(status int, body string, headers ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) { reply(w, status, body, headers...) }
}

// wantWait wants a Wait of some length.
func wantWait(d time.Duration) func(*testing.T, *rig, []source.Page, error) {
	return func(t *testing.T, r *rig, _ []source.Page, err error) {
		t.Helper()
		if wait := (*source.Wait)(nil); !errors.As(err, &wait) || wait.Until.Sub(r.now) != d || wait.Shared {
			t.Errorf("%v, want to wait for %s", err, d)
		}
	}
}

// TestHostile holds the client against sources at their worst: none hangs, none loops, none loses a page or invents the
// end, and each error says what to do.
func TestHostile(t *testing.T) {
	const attempts = 5 // the default
	foreign := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		t.Errorf("another host was asked for %s", req.URL)
	}))
	defer foreign.Close()

	cases := []hostile{
		// Connections.
		{name: "a reset before the headers", serve: always(func(http.ResponseWriter) { panic(http.ErrAbortHandler) }),
			kind: etl.SourceUnavailable, says: []string{"attempt 5 of 5", "/v1/orders"}, calls: attempts},
		{name: "a reset in the middle of a body, once", serve: upTo(1, func(w http.ResponseWriter) { cut(w) }), calls: 2, pages: 1},
		{name: "a reset in the middle of every body", serve: always(func(w http.ResponseWriter) { cut(w) }),
			kind: etl.SourceUnavailable, says: []string{"body cut after 18 bytes"}, calls: attempts},
		{name: "fewer bytes than Content-Length", serve: always(func(w http.ResponseWriter) { cut(w, "Content-Length", "4000") }),
			kind: etl.SourceUnavailable, says: []string{"body cut after 18 bytes"}, calls: attempts},
		{name: "silence before the headers", edit: shortLimits,
			serve: func(_ http.ResponseWriter, req *http.Request, _ int) { <-req.Context().Done() },
			kind:  etl.SourceUnavailable, says: []string{"awaiting response headers"}, calls: 2},
		{name: "silence after the headers", edit: shortLimits,
			serve: func(w http.ResponseWriter, req *http.Request, _ int) {
				reply(w, 200, "{")
				_ = http.NewResponseController(w).Flush()
				<-req.Context().Done()
			},
			kind: etl.SourceUnavailable, says: []string{"body stalled after 1 bytes", "a silence"}, calls: 2},
		{name: "one byte at a time, for ever", edit: func(r *rig) {
			shortLimits(r)
			r.options.Timeouts.Idle, r.options.Timeouts.Header = time.Minute, time.Minute
		},
			serve: func(w http.ResponseWriter, req *http.Request, _ int) {
				for req.Context().Err() == nil {
					_, _ = io.WriteString(w, " ")
					_ = http.NewResponseController(w).Flush()
					time.Sleep(time.Millisecond)
				}
			},
			kind: etl.SourceUnavailable, says: []string{"body stalled after", "the whole request"}, calls: 2},
		{name: "a header without end", edit: shortLimits,
			serve: func(w http.ResponseWriter, _ *http.Request, _ int) {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
				for i := 0; err == nil; i++ {
					_, err = fmt.Fprintf(conn, "X-%d: %s\r\n", i, strings.Repeat("x", 1000))
				}
			},
			kind: etl.SourceUnavailable, calls: 2},
		// Bodies.
		{name: "an endless chunked body", edit: func(r *rig) { r.pipeline.Source.MaxBytes = 1 << 20 },
			serve: func(w http.ResponseWriter, req *http.Request, _ int) {
				for err := error(nil); err == nil && req.Context().Err() == nil; {
					_, err = io.WriteString(w, strings.Repeat(" ", 1<<16))
				}
			},
			kind: etl.BatchTooLarge, says: []string{"page over limit of 1048576 bytes", "source.max_bytes", "fewer records a page"}, calls: 1},
		{name: "a gzip bomb", edit: func(r *rig) { r.pipeline.Source.MaxBytes = 1 << 20 },
			serve: always(answer(200, string(zipped(strings.Repeat(" ", 64<<20))), "Content-Encoding", "gzip")),
			kind:  etl.BatchTooLarge, says: []string{"page over limit of 1048576 bytes"}, calls: 1},
		{name: "gzip in several members", serve: always(answer(200, string(zipped(`{"data":[`))+string(zipped(`{"id":1}]}`)), "Content-Encoding", "gzip")),
			calls: 1, pages: 1},
		{name: "gzip with a false checksum", serve: upTo(1, func(w http.ResponseWriter) {
			z := zipped(onePage)
			z[len(z)-8]++
			reply(w, 200, string(z), "Content-Encoding", "gzip")
		}), calls: 2, pages: 1},
		{name: "gzip cut short", serve: always(func(w http.ResponseWriter) {
			z := zipped(onePage)
			reply(w, 200, string(z[:len(z)-9]), "Content-Encoding", "gzip")
		}), kind: etl.SourceUnavailable, says: []string{"cut after"}, calls: attempts},
		{name: "an encoding that was not asked for", serve: always(answer(200, "x", "Content-Encoding", "br")),
			kind: etl.SourceMalformed, says: []string{`content encoding "br"`}, calls: 1},
		{name: "another charset", serve: always(answer(200, onePage, "Content-Type", "application/json; charset=utf-16")),
			kind: etl.SourceMalformed, says: []string{`charset "utf-16"`}, calls: 1},
		{name: "an error's body without end", edit: func(r *rig) { r.pipeline.Source.Retry.Attempts = 1 },
			serve: func(w http.ResponseWriter, req *http.Request, _ int) {
				w.WriteHeader(500)
				for err := error(nil); err == nil && req.Context().Err() == nil; {
					_, err = io.WriteString(w, strings.Repeat("x", 1<<16))
				}
			},
			kind: etl.SourceUnavailable, says: []string{"status 500"}, calls: 1},
		{name: "HTML with status 200, once", serve: upTo(1, answer(200, "<html>", "Content-Type", "text/html")), calls: 2, pages: 1},
		{name: "nothing with status 204", serve: always(answer(204, "")),
			kind: etl.SourceMalformed, says: []string{"status 204", "the body is empty"}, calls: attempts},
		{name: "an error object with status 200", edit: func(r *rig) { r.pipeline.Source.ErrorWhen = "error" },
			serve: upTo(2, answer(200, `{"error":{"code":"BUSY"}}`)), calls: 3, pages: 1},
		{name: "nested a million deep", serve: always(answer(200, `{"data":[`+strings.Repeat("[", 1_000_000))),
			kind: etl.SourceMalformed, says: []string{"deep"}, calls: attempts},
		{name: "the records twice", serve: always(answer(200, `{"data":[],"data":[{"id":1}]}`)),
			kind: etl.SourceMalformed, says: []string{"data stands twice"}, calls: attempts},
		// Redirects.
		{name: "redirects in a circle", serve: func(w http.ResponseWriter, req *http.Request, _ int) {
			http.Redirect(w, req, "/v1/orders?again", http.StatusFound)
		}, kind: etl.SourceRejected, says: []string{"10 redirects", "source.url"}, calls: 11},
		{name: "a redirect to another host", serve: func(w http.ResponseWriter, req *http.Request, _ int) {
			http.Redirect(w, req, foreign.URL+"/v1/orders", http.StatusMovedPermanently)
		}, kind: etl.SourceRejected, says: []string{"source.allow_hosts"}, calls: 1},
		{name: "a redirect to nowhere", serve: always(answer(302, "")),
			kind: etl.SourceRejected, says: []string{"without a Location"}, calls: 1},
		// Paging.
		{name: "a next link to itself", edit: withLink, serve: func(w http.ResponseWriter, req *http.Request, _ int) {
			reply(w, 200, onePage, "Link", "<"+req.URL.String()+`>; rel="next"`)
		}, kind: etl.SourceLoops, says: []string{"page 1 repeats the request of page 0"}, calls: 2, pages: 1},
		{name: "a next link to the first page", edit: withLink, serve: func(w http.ResponseWriter, req *http.Request, n int) {
			to := []string{"/v1/orders?p=2", "/v1/orders?p=3", "/v1/orders?from=2026-11-30T10%3A00%3A00Z"}[(n-1)%3]
			reply(w, 200, fmt.Sprintf(`{"data":[{"id":%d}]}`, (n-1)%3), "Link", "<"+to+`>; rel="next"`)
		}, kind: etl.SourceLoops, says: []string{"page 3 repeats the request of page 0"}, calls: 4, pages: 3},
		{name: "a next link down to http", edit: func(r *rig) {
			withLink(r)
			r.pipeline.Source.URL = "https://api.example.com/v1/orders"
			r.options.HTTP = &http.Client{Transport: toServer{r.server.URL}}
		}, serve: linked("http://api.example.com/v1/orders?p=2"), kind: etl.SourceRejected, says: []string{"from https down to http"}, calls: 1},
		{name: "a next link to another host", edit: withLink, serve: linked(foreign.URL + "/v1/orders?p=2"),
			kind: etl.SourceRejected, says: []string{"another origin", "source.allow_hosts"}, calls: 1},
		{name: "a next link with a user in it", edit: withLink, serve: func(w http.ResponseWriter, req *http.Request, _ int) {
			linked("http://user:word@"+req.Host+"/v1/orders?p=2")(w, req, 1)
		}, kind: etl.SourceRejected, says: []string{"with a user in it"}, calls: 1},
		{name: "a next link that is a script", edit: withLink, serve: linked("javascript:alert(1)"),
			kind: etl.SourceRejected, says: []string{`scheme "javascript"`}, calls: 1},
		{name: "a next link that is no URL", edit: withLink, serve: linked("http://[::1"),
			kind: etl.SourceRejected, says: []string{"no URL"}, calls: 1},
		{name: "empty pages with fresh cursors, for ever", edit: func(r *rig) {
			withCursor(r)
			r.pipeline.Source.Paginate.MaxPages = 50
		}, serve: cursors(func(at int) string { return fmt.Sprintf(`{"data":[],"next":%d}`, at+1) }),
			kind: etl.SourceLoops, says: []string{"page 50", "max_pages of 50", "51 of the pages were empty"}, calls: 51, pages: 50},
		{name: "one cursor for ever, while records arrive", edit: withCursor,
			serve: func(w http.ResponseWriter, _ *http.Request, n int) {
				next := `"same"`
				if n == 9 {
					next = "null"
				}
				reply(w, 200, fmt.Sprintf(`{"data":[{"id":%d}],"next":%s}`, n, next))
			}, calls: 9, pages: 9},
		{name: "a cursor expiring at page 7", edit: func(r *rig) {
			withCursor(r)
			r.pipeline.Source.CursorExpired = pipeline.CursorExpired{Status: []int{400}, Body: "CURSOR_EXPIRED"}
		}, serve: func(w http.ResponseWriter, _ *http.Request, n int) {
			if n == 8 {
				reply(w, 400, `{"errors":[{"code":"CURSOR_EXPIRED"}]}`)
				return
			}
			reply(w, 200, fmt.Sprintf(`{"data":[{"id":%d}],"next":"c%d"}`, n, n))
		}, kind: etl.CursorExpired, says: []string{"page 7"}, calls: 8, pages: 7},
		{name: "a cursor of a megabyte", edit: withCursor, serve: func(w http.ResponseWriter, _ *http.Request, _ int) {
			reply(w, 200, `{"data":[{"id":1}],"next":"`+strings.Repeat("c", 2<<20)+`"}`)
		}, check: func(t *testing.T, r *rig, pages []source.Page, err error) {
			// The server of this test refuses such a header with 431, or hangs up.
			if kind := etl.KindOf(err); len(pages) != 1 || kind != etl.SourceRejected && kind != etl.SourceUnavailable || len(err.Error()) > 4000 {
				t.Errorf("%d pages, %.300v", len(pages), err)
			}
		}},
		{name: "rows shifting under offset paging", edit: func(r *rig) {
			r.pipeline.Source.Paginate = pipeline.Paginate{Style: "offset", Param: "offset", SizeParam: "limit", Size: 10}
		}, serve: func(w http.ResponseWriter, req *http.Request, n int) {
			// One row comes in at the front with every request: each page begins with the last row of the one before.
			offset, _ := strconv.Atoi(req.FormValue("offset"))
			var rows []string
			for i := offset; i < offset+10 && i < 30+n; i++ {
				rows = append(rows, fmt.Sprintf(`{"id":%d}`, i-n))
			}
			reply(w, 200, `{"data":[`+strings.Join(rows, ",")+`]}`)
		}, check: func(t *testing.T, r *rig, pages []source.Page, err error) {
			got := map[int]bool{}
			for _, p := range pages {
				var body struct{ Data []struct{ ID int } }
				if err := json.Unmarshal(p.Body, &body); err != nil {
					t.Fatal(err)
				}
				for _, row := range body.Data {
					got[row.ID] = true
				}
			}
			// No row that was there at the start is missed; those that repeat are the load's to tell apart.
			for i := range 30 {
				if !got[i] {
					t.Errorf("row %d is missing in %v", i, got)
				}
			}
			if err != nil || r.calls() != 5 {
				t.Errorf("%d calls, %v", r.calls(), err)
			}
		}},
		{name: "a total that shrinks", edit: func(r *rig) {
			r.pipeline.Source.Paginate = pipeline.Paginate{Style: "page", Param: "page", Start: 1, Total: "pages"}
		}, serve: func(w http.ResponseWriter, _ *http.Request, n int) {
			reply(w, 200, fmt.Sprintf(`{"data":[{"id":%d}],"pages":%d}`, n, max(0, 6-2*n)))
		}, calls: 2, pages: 2},
		// Throttling.
		{name: "429 for an hour", edit: func(r *rig) { r.pipeline.Source.Retry.InlineWait = 5 * time.Second },
			serve: always(answer(429, "", "Retry-After", "3600")), calls: 1, check: wantWait(time.Hour)},
		{name: "429 for ever", serve: always(answer(429, "", "Retry-After", "2")),
			kind: etl.SourceThrottled, says: []string{"attempt 5 of 5", "429"}, calls: attempts},
		{name: "Retry-After: 0, for ever", serve: always(answer(503, "", "Retry-After", "0")),
			kind: etl.SourceUnavailable, calls: attempts, slept: 11*time.Second + 250*time.Millisecond},
		{name: "Retry-After of 55 years", serve: always(answer(429, "", "Retry-After", "1743440400")),
			kind: etl.SourceThrottled, says: []string{"retry.max_wait of 6h"}, calls: 1},
		{name: "Retry-After that is a list", serve: upTo(1, answer(429, "", "Retry-After", "50, 53")), calls: 2, pages: 1, slept: 53 * time.Second},
		{name: "Retry-After by a clock an hour fast", serve: upTo(1, answer(429, "",
			"Date", "Mon, 30 Nov 2026 13:00:00 GMT", "Retry-After", "Mon, 30 Nov 2026 13:00:40 GMT")), calls: 2, pages: 1, slept: 40 * time.Second},
		{name: "Retry-After in the past", serve: upTo(1, answer(503, "", "Retry-After", "Mon, 30 Nov 2020 13:00:40 GMT")),
			calls: 2, pages: 1, slept: 750 * time.Millisecond},
	}
	if len(cases) < 30 {
		t.Fatalf("%d cases", len(cases))
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			r.handler = func(w http.ResponseWriter, req *http.Request) { tc.serve(w, req, r.calls()) }
			r.pipeline.Source.Auth = pipeline.Auth{Scheme: "bearer", Secret: "orders"}
			if tc.edit != nil {
				tc.edit(r)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			done := make(chan struct{})
			var pages []source.Page
			var err error
			go func() {
				defer close(done)
				pages, err = r.walk()
			}()
			select {
			case <-done:
			case <-ctx.Done():
				t.Fatal("it hangs")
			}
			if tc.check != nil {
				tc.check(t, r, pages, err)
			} else if tc.kind != "" {
				wantKind(t, err, tc.kind, tc.says...)
			} else if err != nil {
				t.Fatal(err)
			}
			if tc.check == nil && len(pages) != tc.pages {
				t.Errorf("%d pages, want %d", len(pages), tc.pages)
			}
			if tc.calls > 0 && r.calls() != tc.calls {
				t.Errorf("%d calls, want %d", r.calls(), tc.calls)
			}
			var slept time.Duration
			for _, d := range r.sleeps {
				slept += d
			}
			if tc.slept > 0 && slept != tc.slept {
				t.Errorf("slept %s (%v), want %s", slept, r.sleeps, tc.slept)
			}
			if strings.Contains(r.log.String(), "canary") {
				t.Errorf("the log shows the secret: %s", r.log.String())
			}
			if err == nil && slices.ContainsFunc(pages, func(p source.Page) bool { return strings.Contains(p.URL, "canary") }) {
				t.Error("a page's URL shows the secret")
			}
		})
	}
}

// toServer sends every request to one server, whatever its URL.
type toServer struct{ url string }

func (s toServer) RoundTrip(req *http.Request) (*http.Response, error) {
	u, err := url.Parse(s.url)
	if err != nil {
		return nil, err
	}
	req = req.Clone(req.Context())
	req.URL.Scheme, req.URL.Host = u.Scheme, u.Host
	return http.DefaultTransport.RoundTrip(req)
}
