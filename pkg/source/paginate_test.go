package source_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/source"
)

// ids writes records first to last−1 with the members around them.
func ids(first, last int, more string) string {
	var b strings.Builder
	for n := first; n < last; n++ {
		if n > first {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"id":%d}`, n)
	}
	return `{"data":[` + b.String() + `]` + more + `}`
}

func number(t *testing.T, req *http.Request, name string) int {
	t.Helper()
	n, err := strconv.Atoi(req.URL.Query().Get(name))
	if err != nil {
		t.Errorf("%s: %v", req.URL, err)
	}
	return n
}

// Every style by its stop rules: which values were asked for, and how many records came.
func TestPaging(t *testing.T) {
	for _, tc := range []struct {
		name     string
		paginate pipeline.Paginate
		answer   func(t *testing.T, req *http.Request) (body string, link string)
		asked    string // the paging parameter of each request
		records  int
	}{
		{"none", pipeline.Paginate{Style: "none"},
			func(*testing.T, *http.Request) (string, string) { return ids(0, 3, ""), `</p2>; rel=next` }, "", 3},
		{"page until empty", pipeline.Paginate{Style: "page", Param: "p", Start: 1},
			func(t *testing.T, req *http.Request) (string, string) {
				n := number(t, req, "p")
				return ids(0, max(0, 3-n), ""), ""
			}, "1 2 3", 3},
		{"page with total_pages goes on over an empty page", pipeline.Paginate{Style: "page", Param: "p", Start: 0, Total: "pages"},
			func(t *testing.T, req *http.Request) (string, string) {
				n := number(t, req, "p")
				return ids(0, n%2, `,"pages":4`), ""
			}, "0 1 2 3", 2},
		{"page with has_more", pipeline.Paginate{Style: "page", Param: "p", Start: 1, HasMore: "more"},
			func(t *testing.T, req *http.Request) (string, string) {
				n := number(t, req, "p")
				return ids(2*n, 2*n+2, fmt.Sprintf(`,"more":%v`, n < 3)), ""
			}, "1 2 3", 6},
		{"page with stop_on_short", pipeline.Paginate{Style: "page", Param: "p", Start: 1, Size: 3, StopOnShort: true},
			func(t *testing.T, req *http.Request) (string, string) {
				n := number(t, req, "p")
				return ids(0, 4-n, ""), ""
			}, "1 2", 5},
		{"has_more beats stop_on_short", pipeline.Paginate{Style: "page", Param: "p", Start: 1, Size: 3, StopOnShort: true, HasMore: "more"},
			func(t *testing.T, req *http.Request) (string, string) {
				n := number(t, req, "p")
				return ids(0, 1, fmt.Sprintf(`,"more":%v`, n < 3)), ""
			}, "1 2 3", 3},
		// Case C03 a: row 150 is hidden after the limit, so a page is short and not the last.
		{"offset without total", pipeline.Paginate{Style: "offset", Param: "offset", SizeParam: "limit", Size: 100},
			func(t *testing.T, req *http.Request) (string, string) {
				n := number(t, req, "offset")
				if number(t, req, "limit") != 100 {
					t.Error("limit is not 100")
				}
				return []string{ids(0, 100, ""), ids(101, 200, ""), ids(200, 300, ""), ids(0, 0, "")}[n/100], ""
			}, "0 100 200 300", 299},
		{"offset when the source caps the limit", pipeline.Paginate{Style: "offset", Param: "offset", Size: 500},
			func(t *testing.T, req *http.Request) (string, string) {
				n := number(t, req, "offset")
				return ids(n, min(n+100, 250), ""), ""
			}, "0 100 200 250", 250},
		{"offset from 1 with total", pipeline.Paginate{Style: "offset", Param: "offset", Start: 1, Size: 2, Total: "meta.total"},
			func(t *testing.T, req *http.Request) (string, string) {
				n := number(t, req, "offset")
				return ids(n, min(n+2, 6), `,"meta":{"total":"5"}`), ""
			}, "1 3 5", 5},
		{"offset with total over an empty page", pipeline.Paginate{Style: "offset", Param: "offset", Size: 2, Total: "total"},
			func(t *testing.T, req *http.Request) (string, string) {
				n := number(t, req, "offset")
				if n == 2 {
					return ids(0, 0, `,"total":5`), ""
				}
				return ids(n, n+1, `,"total":5`), ""
			}, "0 1 2 4", 3},
		{"no total on an empty first page", pipeline.Paginate{Style: "page", Param: "p", Start: 1, Total: "pages"},
			func(*testing.T, *http.Request) (string, string) { return ids(0, 0, `,"pages":null`), "" }, "1", 0},
		{"no total where has_more speaks", pipeline.Paginate{Style: "page", Param: "p", Start: 1, Total: "pages", HasMore: "more"},
			func(t *testing.T, req *http.Request) (string, string) {
				return ids(0, 1, fmt.Sprintf(`,"pages":null,"more":%v`, number(t, req, "p") < 2)), ""
			}, "1 2", 2},
		{"offset with total 0", pipeline.Paginate{Style: "offset", Param: "offset", Size: 2, Total: "total"},
			func(*testing.T, *http.Request) (string, string) { return ids(0, 0, `,"total":0`), "" }, "0", 0},
		{"cursor", pipeline.Paginate{Style: "cursor", Param: "after", Path: "next"},
			func(_ *testing.T, req *http.Request) (string, string) {
				switch req.URL.Query().Get("after") {
				case "":
					return ids(0, 2, `,"next":"a+b&c=/ü"`), ""
				case "a+b&c=/ü":
					return ids(0, 0, `,"next":12345678901234567890`), ""
				}
				return ids(0, 1, `,"next":null`), ""
			}, " a+b&c=/ü 12345678901234567890", 3},
		{"cursor with has_more false", pipeline.Paginate{Style: "cursor", Param: "after", Path: "next", HasMore: "more"},
			func(*testing.T, *http.Request) (string, string) {
				return ids(0, 2, `,"next":"x","more":false`), ""
			}, "", 2},
		{"cursor that is always there, with stop_on_short", pipeline.Paginate{Style: "cursor", Param: "after", Path: "next", Size: 2, StopOnShort: true},
			func(_ *testing.T, req *http.Request) (string, string) {
				if req.URL.Query().Get("after") == "" {
					return ids(0, 2, `,"next":"x"`), ""
				}
				return ids(0, 1, `,"next":"x"`), ""
			}, " x", 3},
		{"keyset", pipeline.Paginate{Style: "keyset", Param: "since", Path: "id"},
			func(_ *testing.T, req *http.Request) (string, string) {
				n, _ := strconv.Atoi(req.URL.Query().Get("since"))
				return ids(n+1, min(n+3, 6), ""), ""
			}, " 2 4 5", 5},
		// Case C03 b: an empty page with a next link is not the last.
		{"link", pipeline.Paginate{Style: "link"},
			func(_ *testing.T, req *http.Request) (string, string) {
				switch req.URL.Query().Get("t") {
				case "":
					return ids(0, 50, ""), `</v1/orders?t=first>; rel="first", <?t=p2>; title="a, b"; rel="next last"`
				case "p2":
					return ids(0, 0, ""), `<p3?t=p3>; rel=next`
				}
				return ids(0, 12, ""), `</v1/orders?t=p2>; rel="prev"`
			}, "", 62},
		{"next_url", pipeline.Paginate{Style: "next_url", Path: "links[0].href"},
			func(_ *testing.T, req *http.Request) (string, string) {
				if req.URL.Query().Get("t") == "" {
					return ids(0, 2, `,"links":[{"href":"http://`+req.Host+`/other/path?t=2#here"}]`), ""
				}
				return ids(0, 1, `,"links":[]`), ""
			}, "", 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			var asked []string
			r.handler = func(w http.ResponseWriter, req *http.Request) {
				asked = append(asked, req.URL.Query().Get(tc.paginate.Param))
				body, link := tc.answer(t, req)
				reply(w, 200, body, "Link", link)
			}
			r.pipeline.Source.Paginate = tc.paginate
			pages, err := r.walk()
			if err != nil {
				t.Fatal(err)
			}
			records := 0
			for i, p := range pages {
				records += p.Records
				if p.Before.Page != int64(i) || p.Before.First() != (i == 0) {
					t.Errorf("page %d says it is %+v", i, p.Before)
				}
				if i > 0 && p.Request == pages[i-1].Request {
					t.Errorf("page %d has the fingerprint of the one before", i)
				}
			}
			if records != tc.records || strings.Join(asked, " ") != tc.asked && tc.asked != "" {
				t.Errorf("asked %q, %d records; want %q, %d", strings.Join(asked, " "), records, tc.asked, tc.records)
			}
			if last := pages[len(pages)-1]; last.After != last.Before {
				t.Errorf("after the last page: %+v", last.After)
			}
		})
	}
}

// R17: the state is all one needs to go on, through JSON and in another process.
func TestStateRoundTrip(t *testing.T) {
	for _, s := range []source.State{{}, {Page: 3, Number: 300, Full: true}, {Page: 1, Value: "ü&"}, {Page: 1, URL: "https://x/?a=b"}} {
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back source.State
		if err := json.Unmarshal(text, &back); err != nil || back != s {
			t.Errorf("%+v → %s → %+v (%v)", s, text, back, err)
		}
	}
}

// A page that contradicts itself is malformed.
func TestContradictions(t *testing.T) {
	for _, tc := range []struct {
		name, body string
		paginate   pipeline.Paginate
		want       string
	}{
		{"more without a cursor", ids(0, 1, `,"more":true`), pipeline.Paginate{Style: "cursor", Param: "c", Path: "next", HasMore: "more"}, "no next cursor"},
		{"total is text", ids(0, 1, `,"total":"many"`), pipeline.Paginate{Style: "offset", Param: "o", Total: "total"}, "not a whole number"},
		{"no total on a page with records", ids(0, 1, ""), pipeline.Paginate{Style: "offset", Param: "o", Total: "total"}, "no total at total"},
		{"null total_pages on a page with records", ids(0, 1, `,"pages":null`), pipeline.Paginate{Style: "page", Param: "p", Total: "pages"}, "leave source.paginate.page.total_pages out"},
		{"last record without the key", `{"data":[{"id":1},{}]}`, pipeline.Paginate{Style: "keyset", Param: "since", Path: "id"}, "last record has no id"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, func(w http.ResponseWriter, _ *http.Request) { reply(w, 200, tc.body) })
			r.pipeline.Source.Paginate = tc.paginate
			_, _, err := r.fetch()
			wantKind(t, err, etl.SourceMalformed, tc.want)
		})
	}
}

// A total that an earlier page gave, and a later empty one leaves out: that page is no end, it may be cut short.
func TestTotalGoesMissing(t *testing.T) {
	r := newRig(t, nil)
	r.handler = func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Query().Get("p") == "0" {
			reply(w, 200, ids(0, 2, `,"pages":3`))
			return
		}
		reply(w, 200, ids(0, 0, ""))
	}
	r.pipeline.Source.Paginate = pipeline.Paginate{Style: "page", Param: "p", Total: "pages"}
	pages, err := r.walk()
	wantKind(t, err, etl.SourceMalformed, "no total at pages")
	if len(pages) != 1 {
		t.Errorf("%d pages, want the first one", len(pages))
	}
}

// The paging parameters of a POST stand in its body.
func TestPostPaging(t *testing.T) {
	var bodies []string
	r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
		b, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		bodies = append(bodies, string(b))
		reply(w, 200, []string{ids(0, 1, `,"next":"n\"2"`), ids(0, 1, "")}[len(bodies)-1])
	})
	r.pipeline.Source.Method, r.pipeline.Source.Body = "POST", `{"from":"{window.start}","big":12345678901234567890}`
	r.pipeline.Source.Paginate = pipeline.Paginate{Style: "cursor", Param: "after", Path: "next"}
	if _, err := r.walk(); err != nil {
		t.Fatal(err)
	}
	want := []string{`{"from":"2026-11-30T10:00:00Z","big":12345678901234567890}`, `{"after":"n\"2","big":12345678901234567890,"from":"2026-11-30T10:00:00Z"}`}
	if !slices.Equal(bodies, want) {
		t.Errorf("bodies %q", bodies)
	}
}

// B9: what goes round in circles ends, what only looks like it goes on.
func TestLoops(t *testing.T) {
	for _, tc := range []struct {
		name   string
		link   func(n int) string
		body   func(n int) string
		max    int64
		calls  int
		want   []string // none: it is fine
		method string
	}{
		{"to itself", func(int) string { return "</v1/orders?t=2>; rel=next" }, func(n int) string { return ids(min(n, 1), 9, "") }, 0, 3, []string{"page 2 repeats the request of page 1"}, ""},
		{"to the first page", func(n int) string { return fmt.Sprintf("</v1/orders?t=%d>; rel=next", (n+1)%3) },
			func(n int) string { return ids(n%3, 9, "") }, 0, 5, []string{"page 4 repeats the request of page 1"}, ""},
		{"empty under one cursor", func(int) string { return "</v1/orders?t=2>; rel=next" }, func(n int) string { return ids(0, 0, fmt.Sprintf(`,"at":%d`, n)) }, 0, 3, []string{"repeats"}, ""},
		// Case C03 c: every page empty, every link fresh.
		{"empty for ever", func(n int) string { return fmt.Sprintf("</v1/orders?t=%d>; rel=next", n+1) }, func(int) string { return ids(0, 0, "") }, 20, 21, []string{"max_pages of 20", "21 of the pages were empty"}, ""},
		{"one cursor, new records", func(n int) string {
			if n == 6 {
				return ""
			}
			return "</v1/orders?t=next>; rel=next"
		}, func(n int) string { return ids(n, n+2, "") }, 0, 7, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := 0
			r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
				reply(w, 200, tc.body(n), "Link", tc.link(n))
				n++
			})
			r.pipeline.Source.Paginate = pipeline.Paginate{Style: "link", MaxPages: tc.max}
			_, err := r.walk()
			if tc.want == nil && err != nil {
				t.Fatal(err)
			}
			if tc.want != nil {
				wantKind(t, err, etl.SourceLoops, tc.want...)
			}
			if n != tc.calls {
				t.Errorf("%d calls, want %d", n, tc.calls)
			}
		})
	}
}

// R18: the fingerprint of a request is what the source is asked for, and not with what credentials or how often.
func TestPrint(t *testing.T) {
	print := func(edit func(*pipeline.Source)) string {
		r := newRig(t, nil)
		r.pipeline.Source.URL = "https://api.example.com/v1/orders"
		r.pipeline.Source.Paginate = pipeline.Paginate{Style: "offset", Param: "offset", SizeParam: "limit", Size: 10}
		edit(&r.pipeline.Source)
		p, err := r.client().Print(r.request(source.State{}))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	as := print(func(*pipeline.Source) {})
	for name, edit := range map[string]func(*pipeline.Source){
		"query credentials":  func(s *pipeline.Source) { s.Auth = pipeline.Auth{Scheme: "query", Name: "key", Secret: "k"} },
		"bearer credentials": func(s *pipeline.Source) { s.Auth = pipeline.Auth{Scheme: "bearer", Secret: "k"} },
		"headers":            func(s *pipeline.Source) { s.Headers = []pipeline.Param{{Name: "X-A", Value: "b"}} },
		"retries":            func(s *pipeline.Source) { s.Retry.Attempts = 9 },
	} {
		if print(edit) != as {
			t.Errorf("%s change it", name)
		}
	}
	for name, edit := range map[string]func(*pipeline.Source){
		"url":       func(s *pipeline.Source) { s.URL += "s" },
		"query":     func(s *pipeline.Source) { s.Query = nil },
		"limit":     func(s *pipeline.Source) { s.Paginate.Size = 20 },
		"parameter": func(s *pipeline.Source) { s.Paginate.Param = "skip" },
		"body":      func(s *pipeline.Source) { s.Method, s.Body = "POST", `{"a":1}` },
	} {
		if print(edit) == as {
			t.Errorf("%s does not change it", name)
		}
	}
}

// B9: a source that ignores the parameter of the paging answers with one page for ever; so may one beyond its end.
func TestIgnoredParameter(t *testing.T) {
	first := func(string) string { return ids(0, 9, `,"total":90,"next":"c"`) }
	n := 0
	for _, tc := range []struct {
		name  string
		p     pipeline.Paginate
		body  func(at string) string
		calls int
		want  []string // none: it is fine
	}{
		{"offset", pipeline.Paginate{Style: "offset", Param: "offfset", Size: 9, Total: "total"}, first, 2,
			[]string{"page 1 has the same 9 records as page 0", "ignore the parameter offfset", "source.paginate.offset.param"}},
		{"page", pipeline.Paginate{Style: "page", Param: "p"}, first, 2, []string{"the parameter p (source.paginate.page.param)"}},
		{"cursor", pipeline.Paginate{Style: "cursor", Param: "c", Path: "next"}, first, 2, []string{"source.paginate.cursor.param"}},
		{"next URL", pipeline.Paginate{Style: "next_url", Path: "next"}, first, 2, []string{"the link it gave itself (source.paginate.next_url)"}},
		{"the last page beyond the end", pipeline.Paginate{Style: "page", Param: "p"}, func(at string) string {
			if at == "1" {
				return ids(0, 9, "")
			}
			return ids(9, 12, "")
		}, 3, []string{"page 2 has the same 3 records as page 1", "its last page beyond the end"}},
		{"in an envelope that changes", pipeline.Paginate{Style: "offset", Param: "o", Size: 9, Total: "total"}, func(string) string {
			n++
			return fmt.Sprintf(`{"request":%d,`, n*999) + ids(0, 9, fmt.Sprintf(`,"total":90,"at":%d`, n))[1:]
		}, 2, []string{"page 1 has the same 9 records as page 0"}},
		{"one record may stand twice", pipeline.Paginate{Style: "page", Param: "p", Total: "total"},
			func(string) string { return ids(0, 1, `,"total":3`) }, 3, nil},
		{"pages in turn", pipeline.Paginate{Style: "page", Param: "p", Total: "total"}, func(at string) string {
			if at == "2" {
				return ids(3, 6, `,"total":3`)
			}
			return ids(0, 3, `,"total":3`)
		}, 3, nil},
		{"empty ones", pipeline.Paginate{Style: "page", Param: "p", Total: "total"}, func(string) string { return ids(0, 0, `,"total":3`) }, 3, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, func(w http.ResponseWriter, req *http.Request) { reply(w, 200, tc.body(req.FormValue("p"))) })
			r.pipeline.Source.Paginate = tc.p
			if tc.p.Style == "page" {
				r.pipeline.Source.Paginate.Start = 1
			}
			_, err := r.walk()
			if tc.want == nil && err != nil {
				t.Fatal(err)
			}
			if tc.want != nil {
				wantKind(t, err, etl.SourceLoops, tc.want...)
			}
			if n := r.calls(); n != tc.calls {
				t.Errorf("%d calls, want %d", n, tc.calls)
			}
		})
	}
}

// R18, case C02: an expired cursor is its own kind, at once and only as declared.
func TestCursorExpired(t *testing.T) {
	const refusal = `{"errors":[{"code":"CURSOR_EXPIRED","field":"cursor"}]}`
	paginate := pipeline.Paginate{Style: "cursor", Param: "cursor", Path: "next"}
	for _, tc := range []struct {
		name   string
		at     source.State
		status int
		body   string
		want   etl.Kind
	}{
		{"declared", source.State{Page: 1, Value: "AAA"}, 400, refusal, etl.CursorExpired},
		{"declared with 200", source.State{Page: 1, Value: "AAA"}, 200, refusal, etl.CursorExpired},
		{"another body", source.State{Page: 1, Value: "AAA"}, 400, `{"errors":[{"code":"BAD_LIMIT"}]}`, etl.SourceRejected},
		{"another status", source.State{Page: 1, Value: "AAA"}, 404, refusal, etl.SourceRejected},
		{"the first page has no cursor", source.State{}, 400, refusal, etl.SourceRejected},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, func(w http.ResponseWriter, _ *http.Request) { reply(w, tc.status, tc.body) })
			r.pipeline.Source.Paginate = paginate
			r.pipeline.Source.CursorExpired = pipeline.CursorExpired{Status: []int{400, 200}, Body: "CURSOR_EXPIRED"}
			_, _, err := r.client().Fetch(t.Context(), r.request(tc.at))
			wantKind(t, err, tc.want)
			if r.calls() != 1 {
				t.Errorf("%d calls, want 1", r.calls())
			}
		})
	}
}

// B9, R13: another host gets no request, unless the file names it, and then no credentials.
func TestOrigins(t *testing.T) {
	var foreign []*http.Request
	other := newRig(t, func(w http.ResponseWriter, req *http.Request) {
		foreign = append(foreign, req)
		reply(w, 200, ids(0, 1, ""))
	})
	there := other.server.URL + "/elsewhere?x=1"
	for _, tc := range []struct {
		name   string
		answer func(w http.ResponseWriter, req *http.Request)
		allow  bool
		want   string // none: followed
	}{
		{"next link", func(w http.ResponseWriter, _ *http.Request) {
			reply(w, 200, ids(0, 1, ""), "Link", "<"+there+">; rel=next")
		}, false, "another origin"},
		{"next link, allowed", func(w http.ResponseWriter, _ *http.Request) {
			reply(w, 200, ids(0, 1, ""), "Link", "<"+there+">; rel=next")
		}, true, ""},
		{"redirect", func(w http.ResponseWriter, _ *http.Request) { reply(w, 302, "", "Location", there) }, false, "another origin"},
		{"redirect, allowed", func(w http.ResponseWriter, _ *http.Request) { reply(w, 307, "", "Location", there) }, true, ""},
		{"user in the link", func(w http.ResponseWriter, req *http.Request) {
			reply(w, 200, ids(0, 1, ""), "Link", "<http://me:"+"pw@"+req.Host+"/>; rel=next")
		}, false, "with a user in it"},
		{"file", func(w http.ResponseWriter, _ *http.Request) {
			reply(w, 200, ids(0, 1, ""), "Link", "<file:///etc/passwd>; rel=next")
		}, true, `scheme "file"`},
		{"redirect without end", func(w http.ResponseWriter, req *http.Request) {
			reply(w, 308, "", "Location", fmt.Sprintf("/r?n=%d", number(t, req, "n")+1))
		}, false, "status 308 after 10 redirects"},
		{"redirect to nowhere", func(w http.ResponseWriter, _ *http.Request) { reply(w, 301, "") }, false, "status 301 without a Location"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			foreign = nil
			r := newRig(t, tc.answer)
			s := &r.pipeline.Source
			s.Paginate = pipeline.Paginate{Style: "link"}
			s.Auth = pipeline.Auth{Scheme: "bearer", Secret: "token"}
			s.Headers = []pipeline.Param{{Name: "X-Key", Value: "of the file"}}
			s.Query = []pipeline.Param{{Name: "n", Value: "0"}}
			if tc.allow {
				s.AllowHosts = []string{strings.TrimPrefix(other.server.URL, "http://")}
			}
			_, err := r.walk()
			if tc.want != "" {
				wantKind(t, err, etl.SourceRejected, tc.want)
				if len(foreign) != 0 {
					t.Errorf("%d requests to the other host", len(foreign))
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(foreign) != 1 || foreign[0].Header.Get("Authorization") != "" || foreign[0].Header.Get("X-Key") != "" {
				t.Errorf("the other host got %d requests: %v", len(foreign), foreign)
			}
			if r.asked[0].Header.Get("Authorization") == "" || r.asked[0].Header.Get("X-Key") == "" {
				t.Error("the source itself got no credentials")
			}
		})
	}
}

// A POST is not turned into a GET by a redirect.
func TestRedirectedPost(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/moved" {
			b, err := io.ReadAll(req.Body)
			if err != nil || req.Method != "POST" || string(b) != `{}` {
				t.Errorf("%s with body %q (%v)", req.Method, b, err)
			}
			reply(w, 200, onePage)
			return
		}
		status, err := strconv.Atoi(req.Header.Get("X-Status"))
		if err != nil {
			t.Error(err)
		}
		reply(w, status, "", "Location", "/moved")
	})
	r.pipeline.Source.Method, r.pipeline.Source.Body = "POST", "{}"
	for _, status := range []int{301, 302, 303, 307, 308} {
		r.pipeline.Source.Headers = []pipeline.Param{{Name: "X-Status", Value: strconv.Itoa(status)}}
		_, _, err := r.fetch()
		if status < 307 {
			wantKind(t, err, etl.SourceRejected, fmt.Sprintf("status %d", status))
		} else if err != nil {
			t.Errorf("%d: %v", status, err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(*pipeline.Source)
		want string
	}{
		{"url with a query", func(s *pipeline.Source) { s.URL = "https://x/?a=b" }, "source.url"},
		{"url with a user", func(s *pipeline.Source) { s.URL = "https://a@x/" }, "source.url"},
		{"ftp", func(s *pipeline.Source) { s.URL = "ftp://x/" }, "source.url"},
		{"records", func(s *pipeline.Source) { s.Records = "a..b" }, "source.records"},
		{"style", func(s *pipeline.Source) { s.Paginate.Style = "tide" }, `unknown style "tide"`},
		{"path", func(s *pipeline.Source) { s.Paginate = pipeline.Paginate{Style: "cursor", Path: "["} }, "source.paginate"},
		{"error_when", func(s *pipeline.Source) { s.ErrorWhen = "[" }, "source.error_when"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			tc.edit(&r.pipeline.Source)
			_, err := source.New(r.pipeline, r.options)
			wantKind(t, err, etl.ContractInvalid, "pipeline orders: ", tc.want)
		})
	}
}

func TestRebase(t *testing.T) {
	p := &pipeline.Pipeline{Name: "orders", Source: pipeline.Source{URL: "https://api.example.com/v1/orders",
		Auth: pipeline.Auth{TokenURL: "https://api.example.com:443/token"}}}
	got, err := source.Rebase(p, "http://127.0.0.1:8080/")
	if err != nil || got.Source.URL != "http://127.0.0.1:8080/v1/orders" || got.Source.Auth.TokenURL != "http://127.0.0.1:8080/token" {
		t.Fatalf("%v, %+v", err, got)
	}
	if p.Source.URL != "https://api.example.com/v1/orders" {
		t.Error("the pipeline itself was changed")
	}
	p.Source.Auth.TokenURL = "https://login.example.com/token"
	if got, err = source.Rebase(p, "http://127.0.0.1:8080"); err != nil || got.Source.Auth.TokenURL != p.Source.Auth.TokenURL {
		t.Errorf("%v, a token URL of another origin became %s", err, got.Source.Auth.TokenURL)
	}
	for _, bad := range []string{"", "127.0.0.1:8080", "ftp://x", "http://x/path", "http://u@x", "http://x?q=1"} {
		if _, err := source.Rebase(p, bad); etl.KindOf(err) != etl.Usage {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestWaitMessage(t *testing.T) {
	r := newRig(t, nil)
	err := error(&source.Wait{Until: r.now, Reason: "status 429"})
	if err.Error() != "wait until 2026-11-30T12:00:00Z: status 429" || errors.Unwrap(err) != nil {
		t.Error(err)
	}
}
