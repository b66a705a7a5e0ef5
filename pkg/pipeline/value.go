package pipeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/page"
)

// typ is what a scalar of a pipeline file may be: one row of the schema names one.
type typ struct {
	name  string         // in the reference table
	write string         // what to write instead of a bad value
	json  map[string]any // the JSON Schema of a value
	// read decodes the text. Its error is a clause that says what is wrong; it may quote the text, but a secret's may not.
	read func(s scalar) (any, error)
}

// scalar is a YAML scalar: quotes and block style are undone, numbers keep their text.
type scalar struct {
	text  string
	plain bool // neither quoted nor a block
}

// refusal is an error of a typ that knows better than the typ what to write instead.
type refusal struct{ what, instead string }

func (r *refusal) Error() string { return r.what }

// quote shows a text in a message, cut where it gets long.
func quote(s string) string { return strconv.Quote(shorten(s, 60)) }

func shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

func text() typ { return textLike("text", "some text", nil) }

// textLike is text that check accepts (nil = any but the empty one). In YAML it may be written as a number or a boolean.
func textLike(name, write string, check func(string) error) typ {
	return typ{name: name, write: write, json: anyScalar(), read: func(s scalar) (any, error) {
		if check == nil {
			if s.text == "" {
				return nil, errors.New("is empty")
			}
			return s.text, nil
		}
		return s.text, check(s.text)
	}}
}

func anyScalar() map[string]any {
	return map[string]any{"type": []string{"string", "number", "boolean"}}
}

// matching is text of a fixed form.
func matching(name, write, pattern, problem string) typ {
	re := regexp.MustCompile(pattern)
	t := textLike(name, write, func(s string) error {
		if !re.MatchString(s) {
			return fmt.Errorf("%s %s", quote(s), problem)
		}
		return nil
	})
	t.json = map[string]any{"type": "string", "pattern": pattern}
	return t
}

// freeText may be empty.
func freeText() typ {
	return textLike("text", "text", func(string) error { return nil })
}

func oneOf(words ...string) typ {
	t := textLike(strings.Join(words, " · "), "one of "+strings.Join(words, ", "), func(s string) error {
		for _, w := range words {
			if s == w {
				return nil
			}
		}
		if near := Nearest(s, words); near != "" {
			return &refusal{quote(s) + " is not known", near}
		}
		return fmt.Errorf("%s is not known", quote(s))
	})
	t.json = map[string]any{"enum": words}
	return t
}

func boolean() typ {
	return typ{name: "true · false", write: "true or false, without quotes,", json: map[string]any{"type": "boolean"}, read: func(s scalar) (any, error) {
		if s.plain && (s.text == "true" || s.text == "false") {
			return s.text == "true", nil
		}
		return nil, fmt.Errorf("%s is no boolean", quote(s.text))
	}}
}

func integer(least, most int64) typ {
	t := typ{name: "integer", write: fmt.Sprintf("a whole number from %d to %d, without quotes,", least, most)}
	t.json = map[string]any{"type": "integer", "minimum": least, "maximum": most}
	t.read = func(s scalar) (any, error) {
		n, err := strconv.ParseInt(s.text, 10, 64)
		switch {
		case !s.plain, err != nil, strconv.FormatInt(n, 10) != s.text:
			return nil, fmt.Errorf("%s is no whole number", quote(s.text))
		case n < least, n > most:
			return nil, fmt.Errorf("%d is out of range", n)
		}
		return n, nil
	}
	return t
}

func ratio() typ {
	t := typ{name: "ratio", write: "a number from 0 to 1, like 0.05, without quotes,"}
	t.json = map[string]any{"type": "number", "minimum": 0, "maximum": 1}
	form := regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]{1,9})?$`)
	t.read = func(s scalar) (any, error) {
		f, err := strconv.ParseFloat(s.text, 64)
		if err != nil || !s.plain || !form.MatchString(s.text) || f > 1 {
			return nil, fmt.Errorf("%s is no ratio", quote(s.text))
		}
		return f, nil
	}
	return t
}

// span is a duration read by parse.
func span(name, write string, parse func(string) (time.Duration, error)) typ {
	return typ{name: name, write: write, json: map[string]any{"type": []string{"string", "integer"}, "pattern": `^[0-9.]+([a-zµ]+[0-9.]*)*$`}, read: func(s scalar) (any, error) {
		return parse(s.text)
	}}
}

func slotLength() typ {
	t := span("slot length", "a length like 15m, 1h or 1d", etl.ParseEvery)
	t.json = map[string]any{"type": "string", "pattern": `^([0-9]+[mhs])+$|^[17]d$`}
	return t
}

// minutes is a duration of whole minutes, at most the longest that anybody can mean.
func minutes(most time.Duration) typ {
	return span("whole minutes", "whole minutes like 5m, 2h or 1d", func(s string) (time.Duration, error) {
		d, err := etl.ParseLag(s)
		if err == nil && d > most {
			err = fmt.Errorf("%s is out of range: at most %s", quote(s), etl.FormatSpan(most))
		}
		return d, err
	})
}

// wait is a duration of retry: as time.ParseDuration reads it, at least a millisecond, at most a week.
func wait() typ {
	return span("duration", "a duration like 500ms, 5s or 6h", func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		switch {
		case err != nil:
			return 0, fmt.Errorf("%s is no duration", quote(s))
		case d < time.Millisecond, d > 7*24*time.Hour:
			return 0, fmt.Errorf("%s is out of range: at least 1ms and at most 168h", quote(s))
		}
		return d, nil
	})
}

func rate() typ {
	form := regexp.MustCompile(`^([0-9]{1,9}(?:\.[0-9]{1,9})?)/([smhd])$`)
	return typ{name: "rate", write: "a rate like 10/s, 100/m or 5000/h", json: map[string]any{"type": "string", "pattern": form.String()}, read: func(s scalar) (any, error) {
		m := form.FindStringSubmatch(s.text)
		if m == nil {
			return nil, fmt.Errorf("%s is no rate", quote(s.text))
		}
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("%s is no rate above zero", quote(s.text))
		}
		return n / map[string]float64{"s": 1, "m": 60, "h": 3600, "d": 86400}[m[2]], nil
	}}
}

// path is a place in a document; with atKey, `@key` is one too.
func path(atKey bool) typ {
	t := textLike("path", `names joined by dots, like meta.next or items[0].id (\. is a dot within a name)`, func(s string) error {
		p, err := page.ParsePath(s)
		switch {
		case err != nil:
			return err
		case p.IsKey() && !atKey:
			return errors.New("@key stands for the key of a record, and here is none")
		}
		return nil
	})
	t.json = map[string]any{"type": "string"}
	return t
}

// innerPath is a path that may not be empty: it names something within the document.
func innerPath(atKey bool) typ {
	t, read := path(atKey), path(atKey).read
	t.read = func(s scalar) (any, error) {
		if s.text == "" {
			return nil, errors.New("is empty")
		}
		return read(s)
	}
	return t
}

func pattern() typ {
	t := textLike("RE2 pattern", "a pattern that Go's regexp package (RE2: no look-around, no back references) accepts", func(s string) error {
		_, err := regexp.Compile(s)
		return err
	})
	t.json = map[string]any{"type": "string", "format": "regex"}
	return t
}

// secretName is the name of a secret. Whoever writes the secret itself here must not find it in a log: no message quotes it.
func secretName() typ {
	form := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9/_.-]{0,127}$`)
	t := textLike("secret name", "the name of a secret, like orders-api-token, never the secret itself,", func(s string) error {
		if !form.MatchString(s) {
			return errors.New("the text is not the name of a secret")
		}
		return nil
	})
	t.json = map[string]any{"type": "string", "pattern": form.String()}
	return t
}

// template is text with placeholders. No message quotes more of it than the placeholder: a header may hold anything.
func template(name string) typ {
	return textLike(name, "{window.start}, {window.end} or {slot}, each with :unix, :unix_ms or :date if wanted ({{name}} is the text {name}),", func(s string) error {
		if strings.ContainsAny(s, "\r\n\x00") {
			return &refusal{"the text has a line break", "it in one line"}
		}
		return checkPlaceholders(s, true)
	})
}

// jsonBody is a request body: JSON once its placeholders are filled.
func jsonBody() typ {
	t := textLike("JSON text", "JSON text in single quotes or after |, with placeholders like \"{window.start}\"", func(s string) error {
		if err := checkPlaceholders(s, false); err != nil {
			return err
		}
		filled, err := Expand(s, time.Unix(0, 0), etl.Window{Start: time.Unix(0, 0), End: time.Unix(0, 0)})
		if err != nil {
			return err
		}
		if !json.Valid([]byte(filled)) {
			return errors.New("the text is not valid JSON")
		}
		return nil
	})
	t.json = map[string]any{"type": "string"}
	return t
}

// address is the URL of an endpoint. Its query may hold a credential, so no message quotes more than its scheme.
func address() typ {
	t := textLike("URL", "scheme, host and path, like https://api.example.com/v1/orders", func(s string) error {
		u, err := url.Parse(s)
		switch {
		case err != nil: // its text would hold the URL
			return errors.New("the text is no URL")
		case u.Scheme != "http" && u.Scheme != "https":
			return fmt.Errorf("the scheme %s is neither https nor http", quote(u.Scheme))
		case u.Hostname() == "":
			return errors.New("the host is missing")
		case u.User != nil:
			return &refusal{"the URL has a user or password", "them under source.auth"}
		case u.RawQuery != "" || u.ForceQuery:
			return &refusal{"the URL has a query", "it under source.query"}
		case u.Fragment != "" || strings.Contains(s, "#"):
			return &refusal{"the URL has a fragment, which is never sent", "it up to the #"}
		case strings.ContainsAny(s, "{}"):
			return &refusal{"the URL has braces, but placeholders are filled in query, headers and body only", "it without braces"}
		}
		return nil
	})
	t.json = map[string]any{"type": "string", "pattern": "^https?://[^?#{}]+$"}
	return t
}

func hostName() typ {
	return matching("host", "a host, or host:port, like files.example.com", `^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?$`, "is no host in lower case")
}

// exact is a value of a column: its text is kept, and checked against the column's type once that is known.
func exact() typ {
	t := freeText()
	t.name, t.write = "a value of the type", "a value of the column's type"
	return t
}

// columnName is a name of contract.fields.
func columnName(s string) error {
	switch {
	case s == "":
		return errors.New("a column needs a name")
	case strings.HasPrefix(s, "_"):
		return &refusal{"a name that begins with _ is onceload's own", "another name, and from: " + s}
	case strings.EqualFold(s, "onceload"):
		return errors.New("the name onceload is reserved")
	case len(s) > 255:
		return errors.New("a name has at most 255 bytes")
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return errors.New("a name may not hold control characters")
	}
	return nil
}

func pipelineName() typ {
	t := textLike("name", "a lower-case letter and up to 62 of a-z 0-9 _ and -, like orders", func(s string) error {
		switch {
		case !etl.ValidPipeline(s):
			return fmt.Errorf("%s is no pipeline name", quote(s))
		case strings.HasPrefix(s, "onceload"):
			return &refusal{quote(s) + " begins with onceload, which is reserved", "another name"}
		}
		return nil
	})
	t.json = map[string]any{"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,62}$"}
	return t
}

func tableName() typ {
	form := regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{2,254}$`)
	t := textLike("table name", "a name of 3 to 255 letters, digits, _ . and -, like orders", func(s string) error {
		low := strings.ToLower(s)
		switch {
		case !form.MatchString(s):
			return fmt.Errorf("%s is no table name", quote(s))
		case low == "ledger" || strings.HasPrefix(low, "onceload") || strings.HasPrefix(low, "sqlite"):
			return &refusal{quote(s) + " is reserved, like all names that begin with onceload or sqlite", "another name"}
		}
		return nil
	})
	t.json = map[string]any{"type": "string", "pattern": form.String()}
	return t
}

func budgetName() typ {
	return matching("budget name", "lower-case letters, digits, dots and hyphens, like shop-api", `^[a-z0-9][a-z0-9.:_-]{0,127}$`, "is no budget name")
}

func userName() typ {
	t := textLike("text", "a user name without colon and control characters", func(s string) error {
		if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r == ':' || r < ' ' || r == 0x7f }) {
			return errors.New("the text is no user name")
		}
		return nil
	})
	return t
}

func paramName(s string) error {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return errors.New("the text is no parameter name")
	}
	return nil
}

func headerText() typ {
	return textLike("header name", "the name of a header, like X-Api-Key", plainHeader)
}

// headerForm is the token of RFC 9110.
var headerForm = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

func plainHeader(s string) error {
	if !headerForm.MatchString(s) {
		return errors.New("the text is no header name")
	}
	switch strings.ToLower(s) {
	case "host", "connection", "content-length", "transfer-encoding", "accept-encoding", "te", "trailer", "upgrade":
		return &refusal{"the header is set by onceload itself", "the file without it"}
	}
	return nil
}

// headerName is a name of source.headers: what carries credentials belongs under auth, where only names of secrets stand.
func headerName(s string) error {
	switch strings.ToLower(s) {
	case "authorization", "proxy-authorization", "cookie":
		return &refusal{"the header carries credentials", "them under source.auth"}
	}
	return plainHeader(s)
}
