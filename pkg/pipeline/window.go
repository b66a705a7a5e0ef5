package pipeline

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/onceload/onceload/pkg/etl"
)

// placeholder finds `{name}`, `{name:format}`, and the same in doubled braces, which stand for the text itself. Any other
// brace is text, so JSON needs no escapes.
var placeholder = regexp.MustCompile(`\{\{[A-Za-z][A-Za-z0-9_.:]*\}\}|\{[A-Za-z][A-Za-z0-9_.:]*\}`)

// Expand fills the placeholders of a query value, header or body: `{window.start}`, `{window.end}` and `{slot}`, each with
// an optional format `:unix`, `:unix_ms` or `:date`, by default RFC 3339 in UTC with whole seconds. `{{slot}}` is the text
// `{slot}`. Braces around anything else stay as they are. A misspelt placeholder is an error; [Parse] refuses it before.
func Expand(text string, slot time.Time, w etl.Window) (string, error) {
	var bad error
	out := placeholder.ReplaceAllStringFunc(text, func(m string) string {
		if strings.HasPrefix(m, "{{") {
			return m[1 : len(m)-1]
		}
		name, format, _ := strings.Cut(m[1:len(m)-1], ":")
		if !ours(name) {
			return m
		}
		s, err := expandOne(m, name, format, slot, w)
		if err != nil && bad == nil {
			bad = err
		}
		return s
	})
	if bad != nil {
		return "", bad
	}
	return out, nil
}

// ours reports whether a name in braces can only be meant as a placeholder: it is one, or it has a dot. Names without a
// dot occur in bodies of their own right, as in a GraphQL selection.
func ours(name string) bool { return name == "slot" || name == "window" || strings.Contains(name, ".") }

func expandOne(m, name, format string, slot time.Time, w etl.Window) (string, error) {
	var t time.Time
	switch name {
	case "window.start":
		t = w.Start
	case "window.end":
		t = w.End
	case "slot":
		t = slot
	default:
		return "", fmt.Errorf("%s is no placeholder", m)
	}
	t = t.UTC()
	switch {
	case format == "unix":
		return strconv.FormatInt(t.Unix(), 10), nil
	case format == "unix_ms":
		return strconv.FormatInt(t.UnixMilli(), 10), nil
	case format == "date":
		return t.Format(time.DateOnly), nil
	case format == "" && !strings.Contains(m, ":"):
		return t.Format(time.RFC3339), nil
	}
	return "", fmt.Errorf("%s has a format that is not unix, unix_ms or date", m)
}

// checkPlaceholders says what is wrong with the placeholders of a text. In strict text (query, headers) any name in single
// braces must be a placeholder.
func checkPlaceholders(text string, strict bool) error {
	if strict {
		for _, m := range placeholder.FindAllString(text, -1) {
			name, _, _ := strings.Cut(strings.Trim(m, "{}"), ":")
			if !strings.HasPrefix(m, "{{") && !ours(name) {
				return fmt.Errorf("%s is no placeholder", m)
			}
		}
	}
	_, err := Expand(text, time.Unix(0, 0), etl.Window{})
	return err
}
