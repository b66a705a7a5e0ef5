package pipeline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// JSONSchema is the format as a JSON Schema (draft 2020-12) for editors, with every key described. It accepts every file
// that [Parse] accepts; rules about several keys together are Parse's alone.
func JSONSchema() []byte {
	root := schema().json()
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "onceload pipeline"
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(root); err != nil {
		panic(err) // maps, slices, texts and numbers only
	}
	return b.Bytes()
}

// json is the JSON Schema of a row's value.
func (s row) json() map[string]any {
	var out map[string]any
	switch {
	case s.keys != nil:
		properties := map[string]any{}
		var required []string
		for _, k := range s.keys {
			properties[k.key] = k.json()
			if k.required {
				required = append(required, k.key)
			}
		}
		out = map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
		if s.pick {
			out["minProperties"], out["maxProperties"] = 1, 1
		}
		if required != nil {
			out["required"] = required
		}
	case s.each != nil:
		out = map[string]any{"type": "object", "additionalProperties": s.each.json()}
		if s.names != "" {
			out["propertyNames"] = map[string]any{"pattern": s.names}
		}
		if s.required {
			out["minProperties"] = 1
		}
	case s.list:
		out = map[string]any{"type": "array", "items": s.typ.json, "uniqueItems": true}
		if s.required {
			out["minItems"] = 1
		}
	default:
		out = s.typ.json
		if s.def != "" {
			v, err := s.typ.read(scalar{s.def, true})
			if err != nil {
				panic(fmt.Sprintf("default of %s: %v", s.key, err)) // a fault of the table, held by a test
			}
			switch v.(type) {
			case int64, float64, bool:
				out["default"] = json.RawMessage(s.def)
			default:
				out["default"] = s.def
			}
		}
	}
	out["description"] = s.doc
	return out
}

// ReferenceTable is the format as a Markdown table: one line a key, in the order of a file.
func ReferenceTable() string {
	var b strings.Builder
	b.WriteString("| Key | Value | Default | Meaning |\n|---|---|---|---|\n")
	schema().reference(&b, "")
	return b.String()
}

func (s row) reference(b *strings.Builder, path string) {
	if path != "" {
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", path, cell(s.valueCell()), cell(s.defaultCell()), cell(s.doc))
	}
	for _, k := range s.keys {
		k.reference(b, join(path, k.key))
	}
	if s.each != nil {
		s.each.reference(b, join(path, "<name>"))
	}
}

// valueCell says what may stand at the key.
func (s row) valueCell() string {
	value := s.typ.name
	switch {
	case s.pick:
		value = "one of the keys below"
	case s.keys != nil:
		value = "mapping"
		if len(s.keys) == 0 {
			value = "`{}`"
		}
	case s.each != nil:
		value = "mapping of names"
	case s.list:
		value = "list of " + value
	}
	if s.only != nil {
		value += " (" + strings.Join(s.only, ", ")
		if s.elements {
			value += ", and lists of them"
		}
		value += ")"
	}
	return value
}

func (s row) defaultCell() string {
	switch {
	case s.required:
		return "**required**"
	case s.def != "":
		return "`" + s.def + "`"
	}
	return s.otherwise
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
