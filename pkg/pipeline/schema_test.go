package pipeline_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/onceload/onceload/pkg/pipeline"
)

// The JSON Schema accepts what Parse accepts, and sees the slips of the keyboard that an editor can see.
func TestSchemaAgreesWithParse(t *testing.T) {
	var schema map[string]any
	if err := json.Unmarshal(pipeline.JSONSchema(), &schema); err != nil {
		t.Fatal(err)
	}
	faultOf := func(text string) error {
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		return conform(schema, v, "")
	}
	for name, data := range validFiles(t) {
		if err := faultOf(string(data)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := faultOf(sound); err != nil {
		t.Errorf("sound file: %v", err)
	}
	seen := []string{
		"unknown key with a near name", "unknown key that belongs into the style", "missing key", "missing mapping",
		"mapping where text is meant", "list where text is meant", "text where a mapping is meant", "text where a list is meant",
		"nothing where text is meant", "empty list", "list with a doublet", "quoted number", "negative number", "fraction",
		"quoted boolean", "ratio over 1", "bad duration", "bad enum", "bad method", "bad pipeline name", "bad table",
		"no columns", "two auth schemes", "no auth scheme", "secret instead of its name", "two paging styles",
		"ftp", "URL with a query", "URL with a fragment", "URL with a placeholder", "revision zero", "status of a success",
		"cursor_expired without status", "host with a scheme", "bad rate", "list of documents", "column that begins with _",
	}
	for _, c := range faultCases() {
		if i := slices.Index(seen, c.name); i >= 0 {
			seen = slices.Delete(seen, i, i+1)
			if faultOf(strings.Replace(sound, c.old, c.new, 1)) == nil {
				t.Errorf("%s: accepted", c.name)
			}
		}
	}
	if len(seen) > 0 {
		t.Errorf("no cases: %q", seen)
	}
}

// conform validates by the keywords that our schema uses, and by no others.
func conform(schema map[string]any, v any, path string) error {
	for word, arg := range schema {
		if err := keyword(schema, word, arg, v, path); err != nil {
			return err
		}
	}
	return nil
}

func keyword(schema map[string]any, word string, arg, v any, path string) error {
	fail := func() error { return fmt.Errorf("%s: %v breaks %s %v", path, v, word, arg) }
	text, isText := v.(string)
	object, _ := v.(map[string]any)
	list, isList := v.([]any)
	number, isNumber := toFloat(v)
	switch word {
	case "$schema", "title", "description", "default", "format":
	case "type":
		types, ok := arg.([]any)
		if !ok {
			types = []any{arg}
		}
		if !slices.ContainsFunc(types, func(want any) bool { return want == typeOf(v) || want == "number" && typeOf(v) == "integer" }) {
			return fail()
		}
	case "enum":
		if !slices.Contains(arg.([]any), v) {
			return fail()
		}
	case "pattern":
		if isText && !regexp.MustCompile(arg.(string)).MatchString(text) {
			return fail()
		}
	case "minimum":
		if isNumber && number < arg.(float64) {
			return fail()
		}
	case "maximum":
		if isNumber && number > arg.(float64) {
			return fail()
		}
	case "minProperties":
		if object != nil && len(object) < int(arg.(float64)) {
			return fail()
		}
	case "maxProperties":
		if object != nil && len(object) > int(arg.(float64)) {
			return fail()
		}
	case "required":
		for _, k := range arg.([]any) {
			if _, ok := object[k.(string)]; object != nil && !ok {
				return fail()
			}
		}
	case "propertyNames":
		for k := range object {
			if err := conform(arg.(map[string]any), k, path+"."+k); err != nil {
				return err
			}
		}
	case "properties":
		for k, sub := range object {
			if s, ok := arg.(map[string]any)[k]; ok {
				if err := conform(s.(map[string]any), sub, path+"."+k); err != nil {
					return err
				}
			}
		}
	case "additionalProperties":
		properties, _ := schema["properties"].(map[string]any)
		for k, sub := range object {
			if _, known := properties[k]; known {
				continue
			}
			each, ok := arg.(map[string]any)
			if !ok {
				return fmt.Errorf("%s: unknown key %s", path, k)
			}
			if err := conform(each, sub, path+"."+k); err != nil {
				return err
			}
		}
	case "items":
		for i, sub := range list {
			if err := conform(arg.(map[string]any), sub, fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	case "minItems":
		if isList && len(list) < int(arg.(float64)) {
			return fail()
		}
	case "uniqueItems":
		for i := range list {
			if slices.ContainsFunc(list[:i], func(o any) bool { return reflect.DeepEqual(o, list[i]) }) {
				return fail()
			}
		}
	default:
		return fmt.Errorf("%s: the test does not know the keyword %s", path, word)
	}
	return nil
}

func toFloat(v any) (float64, bool) {
	switch n := v.(type) {
	case uint64:
		return float64(n), true
	case int64:
		return float64(n), true
	case float64:
		return n, true
	}
	return 0, false
}

func typeOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case string:
		return "string"
	case bool:
		return "boolean"
	case uint64, int64:
		return "integer"
	case float64:
		return "number"
	case []any:
		return "array"
	}
	return "object"
}
