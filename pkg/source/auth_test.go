package source_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/source"
)

// noCanary fails if the secret, in any form a request carries it, stands in a text of ours.
func noCanary(t *testing.T, what, text string) {
	t.Helper()
	for _, form := range []string{canary, url.QueryEscape(canary), url.PathEscape(canary), base64.StdEncoding.EncodeToString([]byte("me:" + canary)), "9f8e7d"} {
		if strings.Contains(text, form) {
			t.Errorf("%s shows the secret as %q: %s", what, form, text)
		}
	}
}

// Each scheme reaches the source, and the secret stands in nothing that we write, though the source echoes it.
func TestSchemes(t *testing.T) {
	for _, tc := range []struct {
		auth pipeline.Auth
		sent func(*http.Request) bool
	}{
		{pipeline.Auth{Scheme: "bearer"}, func(r *http.Request) bool { return r.Header.Get("Authorization") == "Bearer "+canary }},
		{pipeline.Auth{Scheme: "header", Name: "X-Api-Key"}, func(r *http.Request) bool { return r.Header.Get("X-Api-Key") == canary }},
		{pipeline.Auth{Scheme: "query", Name: "api_key"}, func(r *http.Request) bool {
			return len(r.URL.Query()["api_key"]) == 1 && r.URL.Query().Get("api_key") == canary
		}},
		{pipeline.Auth{Scheme: "basic", User: "me"}, func(r *http.Request) bool {
			u, p, ok := r.BasicAuth()
			return ok && u == "me" && p == canary
		}},
	} {
		t.Run(tc.auth.Scheme, func(t *testing.T) {
			echoes := 0
			r := newRig(t, nil)
			r.pipeline.Source.Auth = tc.auth
			r.pipeline.Source.Auth.Secret = "orders-key"
			r.pipeline.Source.Paginate = pipeline.Paginate{Style: "next_url", Path: "next"}
			r.handler = func(w http.ResponseWriter, req *http.Request) {
				if !tc.sent(req) {
					t.Errorf("credentials missing on %s", req.URL)
				}
				switch req.URL.Query().Get("p") {
				case "":
					next := *req.URL
					next.RawQuery = "p=2&" + next.RawQuery // the source repeats our key in its link
					reply(w, 200, ids(0, 1, `,"next":"`+next.String()+`"`))
				case "2":
					http.Redirect(w, req, "/moved?p=3&"+req.URL.RawQuery[4:], http.StatusFound)
				default:
					echo, err := json.Marshal([]string{req.URL.String(), req.Header.Get("Authorization"), req.Header.Get("X-Api-Key")})
					if err != nil {
						t.Error(err)
					}
					echoes++
					reply(w, []int{503, 429, 200, 418}[echoes-1], string(echo))
				}
			}
			pages, err := r.walk()
			if err == nil {
				t.Fatal("no error")
			}
			noCanary(t, "error", err.Error())
			noCanary(t, "log", r.log.String())
			if len(pages) != 1 {
				t.Fatalf("%d pages", len(pages))
			}
			p := pages[0]
			noCanary(t, "page", fmt.Sprint(p.URL, p.Before, p.After, p.Request))
			if p.After.URL == "" {
				t.Error("no next page")
			}
		})
	}
}

func TestSecretTroubles(t *testing.T) {
	for _, tc := range []struct {
		name   string
		secret func() (string, error)
		kind   etl.Kind
		want   string
		calls  int
	}{
		{"unknown", func() (string, error) { return "", errors.New("no such secret") }, etl.SourceRejected, "no such secret", 1},
		{"empty", func() (string, error) { return "\n", nil }, etl.SourceRejected, "empty", 1},
		{"two lines", func() (string, error) { return "a\nb", nil }, etl.SourceRejected, "more than one line", 1},
		{"store away", func() (string, error) { return "", etl.Errorf(etl.StoreUnavailable, "timeout") }, etl.StoreUnavailable, "timeout", 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			r.pipeline.Source.Auth = pipeline.Auth{Scheme: "bearer", Secret: "orders-key"}
			asked := 0
			r.options.Secret = func(_ context.Context, name string) (string, error) {
				asked++
				if name != "orders-key" {
					t.Errorf("asked for %q", name)
				}
				return tc.secret()
			}
			_, _, err := r.fetch()
			wantKind(t, err, tc.kind, "secret orders-key", tc.want)
			if asked != tc.calls || r.calls() != 0 {
				t.Errorf("%d look-ups, %d requests", asked, r.calls())
			}
		})
	}
	r := newRig(t, nil)
	r.options.Secret = nil
	r.pipeline.Source.Auth = pipeline.Auth{Scheme: "bearer", Secret: "orders-key"}
	_, _, err := r.fetch()
	wantKind(t, err, etl.SourceRejected, `"orders-key" is unknown`)
}

// OAuth2 client credentials: one token for many pages, a new one before it ends, and once on a 401.
func TestOAuth2(t *testing.T) {
	tokens, status, inForm := 0, 200, false
	valid := ""
	r := newRig(t, nil)
	r.handler = func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/token" {
			if req.Header.Get("Authorization") != "Bearer "+valid {
				reply(w, 401, `{"token":"`+req.Header.Get("Authorization")+`"}`)
				return
			}
			reply(w, 200, onePage)
			return
		}
		if err := req.ParseForm(); err != nil {
			t.Error(err)
		}
		user, pass, basic := req.BasicAuth()
		if inForm {
			user, pass, basic = url.QueryEscape(req.Form.Get("client_id")), url.QueryEscape(req.Form.Get("client_secret")), !basic
		}
		if !basic || user != "me%3A" || pass != url.QueryEscape(canary) || req.Form.Get("grant_type") != "client_credentials" || req.Form.Get("scope") != "a b" {
			reply(w, 400, `{"error":"invalid_client"}`)
			return
		}
		if status != 200 {
			reply(w, status, `{"error":"`+canary+`"}`)
			return
		}
		tokens++
		valid = fmt.Sprintf("token-%d", tokens)
		reply(w, 200, `{"access_token":"`+valid+`","expires_in":3600}`)
	}
	r.pipeline.Source.Auth = pipeline.Auth{Scheme: "oauth2", Secret: "orders-key", ClientID: "me:", TokenURL: r.server.URL + "/token?x=1", Scopes: []string{"a", "b"}}
	c := r.client()
	ask := func() error {
		t.Helper()
		_, stats, err := c.Fetch(t.Context(), r.request(source.State{}))
		if err == nil && (stats.Retries != 0 || len(r.sleeps) != 0) {
			t.Errorf("stats %+v, slept %v", stats, r.sleeps)
		}
		return err
	}
	for range 3 {
		if err := ask(); err != nil || tokens != 1 {
			t.Fatalf("%v, %d tokens", err, tokens)
		}
	}
	r.now = r.now.Add(59*time.Minute + 31*time.Second)
	if err := ask(); err != nil || tokens != 2 {
		t.Fatalf("near its end: %v, %d tokens", err, tokens)
	}
	valid = "withdrawn"
	if err := ask(); err != nil || tokens != 3 {
		t.Fatalf("withdrawn: %v, %d tokens", err, tokens)
	}
	inForm = true
	valid = "withdrawn"
	if err := ask(); err != nil || tokens != 4 {
		t.Fatalf("credentials in the form: %v, %d tokens", err, tokens)
	}
	inForm = false

	valid, status = "withdrawn", 403
	wantKind(t, ask(), etl.SourceRejected, "token_url "+r.server.URL+"/token: status 403", "orders-key")
	status = 503
	err := ask()
	wantKind(t, err, etl.SourceUnavailable, "token", "503", "attempt 5 of 5")
	noCanary(t, "error", err.Error())
	noCanary(t, "log", r.log.String())

	status = 200
	real := r.handler
	r.handler = func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/token" {
			real(w, req)
			return
		}
		reply(w, 401, "")
	}
	before := tokens
	r.sleeps = nil
	wantKind(t, ask(), etl.SourceRejected, "401", "orders-key (source.auth: oauth2)")
	if tokens != before+2 { // one because the last fetch left none, one on the 401
		t.Errorf("%d tokens for one refused request", tokens-before)
	}
}
