package source

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/pipeline"
)

// Request asks for one page.
type Request struct {
	Slot      time.Time  // for {slot} placeholders
	Window    etl.Window // for {window.start} and {window.end}
	At        State      // zero = the first page
	Tried     int        // attempts already made at this very request
	WaitBegan time.Time  // when the first wait for this request began; zero = none yet
	Room      []byte     // memory for the body, of a page that is not needed any more; may be nil
}

// call is one HTTP request without credentials.
type call struct {
	method string
	url    *url.URL
	header http.Header
	body   []byte
	print  string // fingerprint
	room   []byte // for the response's body
}

// endpoint names the request in messages: no query, because cursors and keys stand there.
func (k call) endpoint() string {
	return k.method + " " + k.url.Scheme + "://" + k.url.Host + k.url.EscapedPath()
}

// call writes the request for the page.
func (c *Client) call(r Request) (call, error) {
	expand := func(key, s string) (string, error) {
		out, err := pipeline.Expand(s, r.Slot, r.Window)
		if err != nil {
			return "", etl.Errorf(etl.ContractInvalid, "source.%s: %w", key, err)
		}
		return out, nil
	}
	k := call{method: c.src.Method, url: new(*c.base), header: http.Header{}, room: r.Room}
	k.header.Set("Accept", "application/json")
	k.header.Set("User-Agent", "onceload")
	for _, h := range c.src.Headers {
		v, err := expand("headers."+h.Name, h.Value)
		if err != nil {
			return call{}, err
		}
		k.header.Set(h.Name, v)
	}
	k.header.Set("Accept-Encoding", "gzip")

	paging := c.pager.params(r.At)
	if c.src.Body != "" {
		text, err := expand("body", c.src.Body)
		if err != nil {
			return call{}, err
		}
		if k.body, err = setMembers([]byte(text), paging); err != nil {
			return call{}, etl.Errorf(etl.ContractInvalid, "source.body: %w", err)
		}
		paging = nil
		if k.header.Get("Content-Type") == "" {
			k.header.Set("Content-Type", "application/json")
		}
	}
	if r.At.URL != "" { // a link: the source wrote the whole query
		u, err := url.Parse(r.At.URL)
		if err != nil {
			return call{}, etl.Errorf(etl.Internal, "stored next link: %w", err)
		}
		k.url = u
	} else {
		query := make([]pipeline.Param, 0, len(c.src.Query)+len(paging))
		for _, q := range c.src.Query {
			v, err := expand("query."+q.Name, q.Value)
			if err != nil {
				return call{}, err
			}
			query = append(query, pipeline.Param{Name: q.Name, Value: v})
		}
		k.url.RawQuery = encode(setParams(query, paging))
	}
	sum := sha256.Sum256([]byte(k.method + "\n" + k.url.String() + "\n" + string(k.body)))
	k.print = hex.EncodeToString(sum[:])
	if c.src.IdempotencyHeader != "" && k.method != http.MethodGet {
		k.header.Set(c.src.IdempotencyHeader, k.print[:32])
	}
	return k, nil
}

// Print is the fingerprint of the request for a page: of method, URL and body, without credentials. The same file asks for
// the same page of the same window with the same one.
func (c *Client) Print(r Request) (string, error) {
	k, err := c.call(r)
	return k.print, err
}

// setParams puts each of set in place of the parameter of its name, or at the end.
func setParams(query, set []pipeline.Param) []pipeline.Param {
next:
	for _, s := range set {
		for i := range query {
			if query[i].Name == s.Name {
				query[i].Value = s.Value
				continue next
			}
		}
		query = append(query, s)
	}
	return query
}

// encode writes a query in the order of the file; url.Values would sort it.
func encode(params []pipeline.Param) string {
	var b strings.Builder
	for i, p := range params {
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString(url.QueryEscape(p.Name) + "=" + url.QueryEscape(p.Value))
	}
	return b.String()
}

// setMembers puts the paging parameters of a POST into its JSON body, as members of the object; whole numbers as numbers.
func setMembers(body []byte, set []pipeline.Param) ([]byte, error) {
	if len(set) == 0 {
		if !json.Valid(body) {
			return nil, fmt.Errorf("not JSON once its placeholders are filled in")
		}
		return body, nil
	}
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(body, &doc); err != nil {
		return nil, fmt.Errorf("want a JSON object, to put %s into: %w", set[0].Name, err)
	}
	if doc == nil {
		doc = map[string]json.RawMessage{}
	}
	for _, s := range set {
		if n, err := strconv.ParseInt(s.Value, 10, 64); err == nil && strconv.FormatInt(n, 10) == s.Value {
			doc[s.Name] = json.RawMessage(s.Value)
			continue
		}
		text, err := json.Marshal(s.Value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		doc[s.Name] = text
	}
	return json.Marshal(doc)
}

// maxRedirects bounds the hops of one attempt.
const maxRedirects = 10

// exchange sends the call and follows redirects under the same rule as next links.
func (c *Client) exchange(ctx context.Context, k call) (*http.Response, *fault) {
	u := k.url
	for hop := 0; ; hop++ {
		resp, f := c.send(ctx, k, u)
		if f != nil {
			return nil, f
		}
		switch resp.StatusCode {
		case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther:
			if k.method != http.MethodGet {
				return resp, nil // to follow it would turn the POST into a GET
			}
		case http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		default:
			return resp, nil
		}
		to := resp.Header.Get("Location")
		resp.Body.Close()
		switch {
		case to == "":
			return nil, permanent(etl.Errorf(etl.SourceRejected, "%s: status %d without a Location", k.endpoint(), resp.StatusCode))
		case hop == maxRedirects:
			return nil, permanent(etl.Errorf(etl.SourceRejected, "%s: status %d after %d redirects: follow them by hand and correct source.url", k.endpoint(), resp.StatusCode, hop))
		}
		next, err := c.resolve(u, to)
		if err != nil {
			return nil, permanent(fmt.Errorf("%s: redirect: %w", k.endpoint(), err))
		}
		u = next
	}
}

// send makes one request of the call at u. Credentials and the file's headers go along to the source's own origin only.
func (c *Client) send(ctx context.Context, k call, u *url.URL) (*http.Response, *fault) {
	req, err := http.NewRequestWithContext(ctx, k.method, u.String(), bytes.NewReader(k.body))
	if err != nil {
		return nil, permanent(etl.Errorf(etl.SourceRejected, "%s: the request cannot be written", k.endpoint()))
	}
	req.Header = k.header.Clone()
	if origin(u) == origin(c.base) {
		if err = c.authorize(ctx, req); err != nil {
			return nil, faultOf(ctx, k, err)
		}
	} else {
		req.Header = http.Header{"Accept": k.header["Accept"], "Accept-Encoding": {"gzip"}, "User-Agent": k.header["User-Agent"]}
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, faultOf(ctx, k, err)
	}
	return resp, nil
}

// origin is scheme, host and port, comparable.
func origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[strings.ToLower(u.Scheme)]
	}
	return strings.ToLower(u.Scheme) + "://" + strings.ToLower(u.Hostname()) + ":" + port
}

// resolve reads a next link or a redirect's Location as the source wrote it, relative to the URL that was asked. What it
// returns has the origin of source.url or a host of allow_hosts, never leaves https for http, and holds no credentials.
func (c *Client) resolve(from *url.URL, ref string) (*url.URL, error) {
	r, err := url.Parse(strings.TrimSpace(ref))
	if err != nil {
		return nil, etl.Errorf(etl.SourceRejected, "the source gave a link that is no URL")
	}
	u := from.ResolveReference(r)
	u.Fragment, u.RawFragment = "", ""
	switch {
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.Opaque != "":
		return nil, etl.Errorf(etl.SourceRejected, "the source gave a link with scheme %q: want http or https", u.Scheme)
	case u.User != nil:
		return nil, etl.Errorf(etl.SourceRejected, "the source gave a link to %s with a user in it", u.Host)
	case u.Scheme == "http" && c.base.Scheme == "https":
		return nil, etl.Errorf(etl.SourceRejected, "the source gave a link from https down to http://%s", u.Host)
	case origin(u) != origin(c.base) && !c.allowed(u):
		return nil, etl.Errorf(etl.SourceRejected, "the source gave a link to another origin, %s://%s: name the host in source.allow_hosts if it may be followed, without credentials", u.Scheme, u.Host)
	}
	if c.src.Auth.Scheme == "query" {
		u.RawQuery = dropParam(u.RawQuery, c.src.Auth.Name)
	}
	return u, nil
}

// allowed reports whether allow_hosts names the URL's host; without a port the scheme's own is meant.
func (c *Client) allowed(u *url.URL) bool {
	for _, h := range c.src.AllowHosts {
		if origin(&url.URL{Scheme: u.Scheme, Host: h}) == origin(u) {
			return true
		}
	}
	return false
}

// dropParam takes a parameter out of a raw query and leaves the rest as it is written.
func dropParam(query, name string) string {
	kept := strings.Split(query, "&")
	out := kept[:0]
	for _, part := range kept {
		raw, _, _ := strings.Cut(part, "=")
		if n, err := url.QueryUnescape(raw); err == nil && n == name {
			continue
		}
		out = append(out, part)
	}
	return strings.Join(out, "&")
}
