package source

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/onceload/onceload/pkg/etl"
)

// token is an OAuth2 access token.
type token struct {
	value   string
	expires time.Time // zero = not told
}

// authorize puts the credentials on the request. The error may be classified already.
func (c *Client) authorize(ctx context.Context, req *http.Request) error {
	a := c.src.Auth
	if a.Scheme == "" {
		return nil
	}
	if c.secret == "" {
		s, err := c.o.Secret(ctx, a.Secret)
		if err != nil {
			if classified := (*etl.Error)(nil); errors.As(err, &classified) {
				return fmt.Errorf("secret %s: %w", a.Secret, err)
			}
			return etl.Errorf(etl.SourceRejected, "secret %s: %w", a.Secret, err)
		}
		s = strings.TrimRight(s, "\r\n") // one kept in a file ends in a line break
		if s == "" || strings.ContainsAny(s, "\r\n\x00") {
			return etl.Errorf(etl.SourceRejected, "secret %s is empty or has more than one line", a.Secret)
		}
		c.secret = s
		c.hide(s)
	}
	switch a.Scheme {
	case "bearer":
		req.Header.Set("Authorization", "Bearer "+c.secret)
	case "header":
		req.Header.Set(a.Name, c.secret)
	case "query":
		if req.URL.RawQuery != "" {
			req.URL.RawQuery += "&"
		}
		req.URL.RawQuery += url.QueryEscape(a.Name) + "=" + url.QueryEscape(c.secret)
	case "basic":
		c.hide(base64.StdEncoding.EncodeToString([]byte(a.User + ":" + c.secret)))
		req.SetBasicAuth(a.User, c.secret)
	case "oauth2":
		if err := c.freshToken(ctx); err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+c.token.value)
	default:
		return etl.Errorf(etl.ContractInvalid, "source.auth: unknown scheme %q", a.Scheme)
	}
	return nil
}

// tokenLeeway is how long before its end a token is not used any more.
const tokenLeeway = 30 * time.Second

// freshToken fetches an access token by the client credentials grant (RFC 6749 §4.4) unless the one at hand still holds.
func (c *Client) freshToken(ctx context.Context) error {
	if c.token.value != "" && (c.token.expires.IsZero() || c.o.Now().Add(tokenLeeway).Before(c.token.expires)) {
		return nil
	}
	form := url.Values{"grant_type": {"client_credentials"}}
	if s := c.src.Auth.Scopes; len(s) > 0 {
		form.Set("scope", strings.Join(s, " "))
	}
	status, body, err := c.askToken(ctx, form, true)
	if err == nil && (status == http.StatusBadRequest || status == http.StatusUnauthorized) {
		// Some servers take the client's credentials only as fields of the form.
		form.Set("client_id", c.src.Auth.ClientID)
		form.Set("client_secret", c.secret)
		status, body, err = c.askToken(ctx, form, false)
	}
	if err != nil {
		return err
	}
	what := "source.auth.oauth2.token_url " + bare(c.src.Auth.TokenURL)
	switch {
	case status == http.StatusTooManyRequests:
		return etl.Errorf(etl.SourceThrottled, "%s: status %d", what, status)
	case status >= 500 || status == http.StatusRequestTimeout:
		return etl.Errorf(etl.SourceUnavailable, "%s: status %d", what, status)
	case status != http.StatusOK:
		return etl.Errorf(etl.SourceRejected, "%s: status %d: check source.auth.oauth2.client_id and the secret %s", what, status, c.src.Auth.Secret)
	}
	var reply struct {
		AccessToken string  `json:"access_token"`
		ExpiresIn   float64 `json:"expires_in"`
	}
	if err := json.Unmarshal(body, &reply); err != nil || reply.AccessToken == "" {
		return etl.Errorf(etl.SourceUnavailable, "%s: status %d without an access_token", what, status)
	}
	c.token = token{value: reply.AccessToken}
	if reply.ExpiresIn > 0 {
		c.token.expires = c.o.Now().Add(time.Duration(min(reply.ExpiresIn, 1e9)) * time.Second)
	}
	c.hide(reply.AccessToken)
	return nil
}

// askToken posts the form once, the client's credentials in the Authorization header if basic.
func (c *Client) askToken(ctx context.Context, form url.Values, basic bool) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.src.Auth.TokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return 0, nil, etl.Errorf(etl.ContractInvalid, "source.auth.oauth2.token_url is no URL")
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	if basic {
		req.SetBasicAuth(url.QueryEscape(c.src.Auth.ClientID), url.QueryEscape(c.secret))
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("source.auth.oauth2.token_url %s: %w", bare(c.src.Auth.TokenURL), cause(err))
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(io.LimitReader(resp.Body, 1<<20)); err != nil {
		return 0, nil, fmt.Errorf("source.auth.oauth2.token_url %s: %w", bare(c.src.Auth.TokenURL), err)
	}
	return resp.StatusCode, body, nil
}

// bare is a URL for messages: without query and user.
func bare(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "(no URL)"
	}
	return u.Scheme + "://" + u.Host + u.EscapedPath()
}

// hide notes a secret and the forms in which a source might echo it.
func (c *Client) hide(secret string) {
	forms := []string{secret, url.QueryEscape(secret), url.PathEscape(secret), strings.ReplaceAll(secret, "/", `\/`)}
	if quoted, err := json.Marshal(secret); err == nil { // & is \u0026 there
		inner := string(quoted[1 : len(quoted)-1])
		forms = append(forms, inner, strings.ReplaceAll(inner, "/", `\/`))
	}
	for _, form := range forms {
		if !slices.Contains(c.scrubs, form) {
			c.scrubs = append(c.scrubs, form, "***")
		}
	}
}

// scrub takes known secrets out of a text that the source wrote.
func (c *Client) scrub(text []byte) []byte {
	if len(c.scrubs) == 0 {
		return text
	}
	return []byte(strings.NewReplacer(c.scrubs...).Replace(string(text)))
}

// hint says what to check when the source refuses our credentials.
func (c *Client) hint(status int) string {
	if status != http.StatusUnauthorized && status != http.StatusForbidden {
		return ""
	}
	if c.src.Auth.Scheme == "" {
		return "; the pipeline file sends no credentials: set source.auth"
	}
	return fmt.Sprintf("; check the secret %s (source.auth: %s): wrong, expired, or without the right to read this", c.src.Auth.Secret, c.src.Auth.Scheme)
}
