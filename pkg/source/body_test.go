package source_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/source"
)

func gzipped(t *testing.T, body string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(body)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// raw answers with these bytes on the wire, then closes the connection.
func raw(t *testing.T, w http.ResponseWriter, text string) {
	t.Helper()
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		t.Error(err)
		return
	}
	_, _ = conn.Write([]byte(text))
	_ = conn.Close()
}

// long is a good page of some 40 kB.
func long() string {
	return `{"data":[` + strings.Repeat(`{"id":1,"name":"Straße"},`, 1600) + `{"id":2}]}`
}

// R1, case C06: a body cut short is tried again, and the page that lands is whole.
func TestCutBodies(t *testing.T) {
	body := long()
	zipped := string(gzipped(t, body))
	const head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
	for _, tc := range []struct {
		name, wire, want string
	}{
		{"short of Content-Length", head + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body[:30000]), "body cut after 30000 bytes"},
		{"broken chunk", head + "Transfer-Encoding: chunked\r\n\r\n7530\r\n" + body[:29000], "body cut after 29000 bytes"},
		{"no last chunk", head + "Transfer-Encoding: chunked\r\n\r\n7530\r\n" + body[:30000] + "\r\n", "body cut after 30000 bytes"},
		{"truncated gzip", head + "Content-Encoding: gzip\r\n\r\n" + zipped[:len(zipped)-6], "body cut after"},
		{"truncated gzip header", head + "Content-Encoding: gzip\r\n\r\n" + zipped[:5], "body cut after 5 bytes"},
		{"gzip with another checksum", head + "Content-Encoding: gzip\r\n\r\n" + zipped[:len(zipped)-8] + "XXXX" + zipped[len(zipped)-4:], "body cut after"},
		{"gzip and then something else", head + "Content-Encoding: gzip\r\n\r\n" + zipped + "<html>proxy</html>", "body cut after"},
		{"no gzip", head + "Content-Encoding: gzip\r\n\r\n" + body, "body cut after"},
		{"closed without a word", "", "EOF"},
		{"headers cut", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n", "EOF"},
		{"no HTTP", "SSH-2.0-OpenSSH_9.6\r\n", "malformed HTTP"},
		{"cut within a string, no length", head + "\r\n" + body[:30], "line 1"}, // HTTP cannot tell, JSON can
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			r.handler = func(w http.ResponseWriter, _ *http.Request) {
				if len(r.sleeps) < 2 {
					raw(t, w, tc.wire)
					return
				}
				reply(w, 200, body)
			}
			pg, stats, err := r.fetch()
			if err != nil {
				t.Fatal(err)
			}
			if string(pg.Body) != body || pg.Records != 1601 || stats.Retries != 2 {
				t.Errorf("%d bytes, %d records, stats %+v", len(pg.Body), pg.Records, stats)
			}
			if got := strings.Count(r.log.String(), tc.want); got != 2 {
				t.Errorf("log says %q %d times, want 2:\n%s", tc.want, got, r.log.String())
			}
			r.handler = func(w http.ResponseWriter, _ *http.Request) { raw(t, w, tc.wire) }
			if _, _, err = r.fetch(); etl.KindOf(err) != etl.SourceUnavailable && etl.KindOf(err) != etl.SourceMalformed {
				t.Errorf("kind %s: %v", etl.KindOf(err), err)
			}
		})
	}
}

// Gzip is undone, also in several members, and the body kept is the text itself.
func TestGzip(t *testing.T) {
	body := long()
	for name, wire := range map[string][]byte{
		"one member":  gzipped(t, body),
		"two members": append(gzipped(t, body[:1000]), gzipped(t, body[1000:])...),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
				if req.Header.Get("Accept-Encoding") != "gzip" {
					t.Errorf("Accept-Encoding %q", req.Header.Get("Accept-Encoding"))
				}
				reply(w, 200, string(wire), "Content-Encoding", "gzip")
			})
			pg, _, err := r.fetch()
			if err != nil || string(pg.Body) != body || pg.Records != 1601 {
				t.Fatalf("%v, %d bytes, %d records", err, len(pg.Body), pg.Records)
			}
		})
	}
}

// Case C06 b: over the limit is its own error, after one attempt; the limit itself is fine; a gzip bomb costs no memory.
func TestMaxBytes(t *testing.T) {
	body := long()
	bomb := gzipped(t, strings.Repeat(" ", 32<<20))
	for _, tc := range []struct {
		name, body, encoding string
		limit                int
		fails                bool
	}{
		{"exactly", body, "", len(body), false},
		{"one over", body, "", len(body) - 1, true},
		{"bomb", string(bomb), "gzip", 1 << 20, true},
		{"gzip within", string(gzipped(t, body)), "gzip", len(body), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
				reply(w, 200, tc.body, "Content-Encoding", tc.encoding)
			})
			r.pipeline.Source.MaxBytes = int64(tc.limit)
			_, _, err := r.fetch()
			if !tc.fails {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			wantKind(t, err, etl.BatchTooLarge, fmt.Sprintf("page over limit of %d bytes", tc.limit), "source.max_bytes")
			if r.calls() != 1 {
				t.Errorf("%d calls, want 1", r.calls())
			}
		})
	}
}

// R4, case C11: headers and then silence, and one byte now and then, both end.
func TestStalls(t *testing.T) {
	for _, tc := range []struct {
		name     string
		timeouts source.Timeouts
		drip     time.Duration
		want     []string
	}{
		{"silence", source.Timeouts{Idle: 15 * time.Millisecond}, 0, []string{"body stalled after 1 bytes", "15ms for a silence"}},
		{"slow drip", source.Timeouts{Idle: time.Second, Request: 30 * time.Millisecond}, 5 * time.Millisecond, []string{"body stalled after", "30ms for the whole request"}},
		{"no headers", source.Timeouts{Header: 15 * time.Millisecond}, -1, []string{"timeout awaiting response headers"}},
		{"no headers, whole request", source.Timeouts{Request: 15 * time.Millisecond}, -1, []string{"15ms for the whole request"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ended := make(chan bool, 1)
			r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
				defer func() { ended <- true }()
				if tc.drip >= 0 {
					reply(w, 200, "{")
				}
				flush := http.NewResponseController(w)
				for req.Context().Err() == nil {
					if tc.drip <= 0 {
						if tc.drip == 0 {
							_ = flush.Flush()
						}
						<-req.Context().Done()
						return
					}
					_, _ = io.WriteString(w, " ")
					_ = flush.Flush()
					time.Sleep(tc.drip)
				}
			})
			r.options.Timeouts = tc.timeouts
			r.pipeline.Source.Retry.Attempts = 1
			_, _, err := r.fetch()
			wantKind(t, err, etl.SourceUnavailable, tc.want...)
			select {
			case <-ended:
			case <-time.After(5 * time.Second):
				t.Error("the connection stayed open")
			}
		})
	}
}

// Slow is not stalled: the idle limit begins anew with every byte.
func TestSlowBody(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
		flush := http.NewResponseController(w)
		for _, piece := range strings.SplitAfter(onePage, "1") {
			for range 6 {
				_, _ = io.WriteString(w, " ")
				_ = flush.Flush()
				time.Sleep(10 * time.Millisecond)
			}
			_, _ = io.WriteString(w, piece)
		}
	})
	r.options.Timeouts.Idle = 100 * time.Millisecond
	pg, stats, err := r.fetch()
	if err != nil || pg.Records != 2 || stats.Retries != 0 {
		t.Errorf("%v, %d records, stats %+v", err, pg.Records, stats)
	}
}

// A body without end is left at the limit.
func TestEndlessBody(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
		for chunk := make([]byte, 64<<10); req.Context().Err() == nil; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	r.pipeline.Source.MaxBytes = 1 << 20
	_, _, err := r.fetch()
	wantKind(t, err, etl.BatchTooLarge, "page over limit of 1048576 bytes")
}

// Connect has its limit too.
func TestConnectTimeout(t *testing.T) {
	r := newRig(t, nil)
	r.options.HTTP = &http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{Timeout: time.Nanosecond}).DialContext}}
	_, _, err := r.fetch()
	wantKind(t, err, etl.SourceUnavailable, "timeout")
}

// Case C07: what is not the declared JSON is tried again, then fails with all that one needs to see.
func TestMalformed(t *testing.T) {
	const html = "<!doctype html>\n<html><head><title>Checking your browser</title></head></html>"
	for _, tc := range []struct {
		name, contentType, body string
		edit                    func(*pipeline.Source)
		want                    []string
		calls                   int
	}{
		{name: "HTML", contentType: "text/html; charset=utf-8", body: html, want: []string{"HTML or XML instead of JSON", "text/html", `<!doctype html>`}},
		{name: "HTML called JSON", body: "\r\n " + html, want: []string{"HTML or XML", "application/json"}},
		{name: "nothing", body: "", want: []string{"the body is empty"}},
		{name: "white space", body: strings.Repeat(" \n", 1000), want: []string{"the body is empty"}},
		{name: "broken", body: `{"data":[{"id":1},`, want: []string{"line 1, column 19"}},
		{name: "two documents", body: onePage + onePage, want: []string{"line 1"}},
		{name: "no records path", body: `{"orders":[]}`, want: []string{"data"}},
		{name: "records null", body: `{"data":null}`, want: []string{"null"}},
		{name: "records an object", body: `{"data":{"a":{}}}`, want: []string{"object"}},
		{name: "an error in a 200", body: `{"data":[],"error":{"code":"QUOTA"}}`, edit: func(s *pipeline.Source) { s.ErrorWhen = "error" }, want: []string{"an error stands at error", "QUOTA"}},
		{name: "UTF-16", body: "\xff\xfe{\x00}\x00", want: []string{"UTF-16"}, calls: 1},
		{name: "two marks", body: "\ufeff\ufeff" + onePage, want: []string{"line 1"}},
		{name: "latin-1", contentType: "application/json; charset=ISO-8859-1", body: onePage, want: []string{`charset "iso-8859-1"`}, calls: 1},
		{name: "cursor is an object", body: `{"data":[],"next":{}}`, edit: func(s *pipeline.Source) {
			s.Paginate = pipeline.Paginate{Style: "cursor", Param: "c", Path: "next"}
		}, want: []string{"next cursor at next is a JSON object"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
				headers := []string{}
				if tc.contentType != "" {
					headers = []string{"Content-Type", tc.contentType}
				}
				reply(w, 200, tc.body, headers...)
			})
			if tc.edit != nil {
				tc.edit(&r.pipeline.Source)
			}
			pg, _, err := r.fetch()
			wantKind(t, err, etl.SourceMalformed, append(tc.want, "GET "+r.server.URL+"/v1/orders: status 200")...)
			if strings.Contains(err.Error(), "from=") || pg.Body != nil {
				t.Errorf("page %+v, error %v", pg, err)
			}
			if want := max(tc.calls, 1); tc.calls == 0 && r.calls() != 5 || tc.calls > 0 && r.calls() != want {
				t.Errorf("%d calls", r.calls())
			}
			var m *source.MalformedError
			if errors.As(err, &m) != (tc.name != "latin-1") || m != nil && string(m.Body) != tc.body {
				t.Errorf("the body to keep: %+v", m)
			}
		})
	}
}

// Other encodings are refused by name, at once.
func TestForeignEncoding(t *testing.T) {
	for _, e := range []string{"br", "deflate", "gzip, gzip"} {
		r := newRig(t, func(w http.ResponseWriter, _ *http.Request) { reply(w, 200, onePage, "Content-Encoding", e) })
		_, _, err := r.fetch()
		wantKind(t, err, etl.SourceMalformed, fmt.Sprintf("content encoding %q", e))
		if r.calls() != 1 {
			t.Errorf("%s: %d calls, want 1", e, r.calls())
		}
	}
}

// One byte order mark is tolerated and kept (case C18); the good values of error_when are no errors.
func TestGoodPages(t *testing.T) {
	for _, tc := range []struct {
		name, body string
		records    int
		edit       func(*pipeline.Pipeline)
	}{
		{"plain", onePage, 2, nil},
		{"empty array", `{"data":[]}`, 0, nil},
		{"byte order mark", "\ufeff" + onePage, 2, nil},
		{"whole body", `[1,2,3]`, 3, func(p *pipeline.Pipeline) { p.Source.Records = "" }},
		{"lines", "{\"id\":1}\r\n\n{\"id\":2}", 2, func(p *pipeline.Pipeline) { p.Source.Records, p.Source.NDJSON = "", true }},
		{"object map", `{"data":{"a":{"id":1},"b":{"id":2}}}`, 2, func(p *pipeline.Pipeline) {
			p.Contract.Fields = []pipeline.Field{{Name: "id", From: "@key"}}
		}},
		{"error null", `{"data":[],"error":null}`, 0, func(p *pipeline.Pipeline) { p.Source.ErrorWhen = "error" }},
		{"error false", `{"data":[],"error":false}`, 0, func(p *pipeline.Pipeline) { p.Source.ErrorWhen = "error" }},
		{"error empty", `{"data":[],"error":{ }}`, 0, func(p *pipeline.Pipeline) { p.Source.ErrorWhen = "error" }},
		{"error missing", `{"data":[]}`, 0, func(p *pipeline.Pipeline) { p.Source.ErrorWhen = "error" }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, func(w http.ResponseWriter, _ *http.Request) { reply(w, 200, tc.body) })
			if tc.edit != nil {
				tc.edit(r.pipeline)
			}
			pg, stats, err := r.fetch()
			if err != nil {
				t.Fatal(err)
			}
			if pg.Records != tc.records || string(pg.Body) != tc.body || !pg.Done || pg.Status != 200 || stats.Attempts != 0 {
				t.Errorf("page %+v, stats %+v", pg, stats)
			}
			if want := r.server.URL + "/v1/orders?from=2026-11-30T10%3A00%3A00Z"; pg.URL != want {
				t.Errorf("URL %s, want %s", pg.URL, want)
			}
			if !pg.FetchedAt.Equal(r.now) {
				t.Errorf("fetched at %v", pg.FetchedAt)
			}
		})
	}
}
