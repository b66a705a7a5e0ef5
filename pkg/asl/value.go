package asl

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
)

// path is `$` or `$$` followed by names. Names are plain: no index, wildcard, filter or function.
type path struct {
	context bool // from the context object
	names   []string
}

func (p path) String() string {
	root := "$"
	if p.context {
		root = "$$"
	}
	return strings.Join(append([]string{root}, p.names...), ".")
}

func parsePath(s string) (path, error) {
	rest, ok := strings.CutPrefix(s, "$")
	if !ok {
		return path{}, fmt.Errorf("%q is not a path: want $ or $$ and names, like $.a.b", s)
	}
	var p path
	rest, p.context = strings.CutPrefix(rest, "$")
	if rest != "" {
		names := strings.Split(rest, ".")
		if names[0] != "" {
			return path{}, fmt.Errorf("path %q: not supported; want $ or $$ and names, like $.a.b", s)
		}
		p.names = names[1:]
	}
	for _, n := range p.names {
		if !plainName(n) {
			return path{}, fmt.Errorf("path %q: %q is not supported; names are letters, digits and _", s, n)
		}
	}
	if p.context && !knownContext(p.names) {
		return path{}, fmt.Errorf("path %q: not supported in the context object", s)
	}
	return p, nil
}

func plainName(s string) bool {
	for _, c := range s {
		if c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return s != ""
}

// knownContext reports whether the context object has these names. Execution.Input and Map.Item.Value may go deeper.
func knownContext(names []string) bool {
	switch p := strings.Join(names, "."); p {
	case "Execution.Id", "Execution.Name", "Execution.StartTime", "Execution.RedriveCount",
		"State.EnteredTime", "State.Name", "StateMachine.Name", "Map.Item.Index":
		return true
	default:
		p += "."
		return strings.HasPrefix(p, "Execution.Input.") || strings.HasPrefix(p, "Map.Item.Value.")
	}
}

// find looks the path up in its root.
func (p path) find(root any) (any, bool) {
	for _, n := range p.names {
		object, ok := root.(map[string]any)
		if !ok {
			return nil, false
		}
		if root, ok = object[n]; !ok {
			return nil, false
		}
	}
	return root, true
}

// put returns input with value at the path; input itself is left as it is.
func (p path) put(input, value any) (any, error) {
	if len(p.names) == 0 {
		return value, nil
	}
	object, ok := input.(map[string]any)
	if !ok {
		return nil, &Error{errResultPath, fmt.Sprintf("ResultPath %s: the input is not an object there", p)}
	}
	name := p.names[0]
	inner := object[name]
	if _, there := object[name]; !there && len(p.names) > 1 {
		inner = map[string]any{}
	}
	inner, err := path{names: p.names[1:]}.put(inner, value)
	if err != nil {
		return nil, &Error{errResultPath, fmt.Sprintf("ResultPath %s: the input is not an object there", p)}
	}
	object = maps.Clone(object)
	object[name] = inner
	return object, nil
}

// template is a payload template: JSON whose `name.$` members are paths.
type template struct {
	literal any // when neither of the others
	path    *path
	members map[string]template // names without `.$`
}

// scope is what the paths of a template are looked up in.
type scope struct {
	input   any
	context func() map[string]any
}

func (s scope) find(p path) (any, bool) {
	if p.context {
		return p.find(s.context())
	}
	return p.find(s.input)
}

func (t template) eval(s scope) (any, error) {
	switch {
	case t.path != nil:
		v, ok := s.find(*t.path)
		if !ok {
			return nil, &Error{errParameterPath, fmt.Sprintf("the path %s is not in the input", t.path)}
		}
		return v, nil
	case t.members != nil:
		object := make(map[string]any, len(t.members))
		for name, m := range t.members {
			v, err := m.eval(s)
			if err != nil {
				return nil, err
			}
			object[name] = v
		}
		return object, nil
	}
	return t.literal, nil
}

// maxDepth bounds the nesting of a definition, whose walk is recursive.
const maxDepth = 100

// decodeStrict reads a definition: one JSON value, no name twice in an object. Numbers keep their text.
func decodeStrict(data []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	v, err := decodeValue(dec, "", 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("text after the definition, at byte %d", dec.InputOffset())
	}
	return v, nil
}

func decodeValue(dec *json.Decoder, at string, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%s: nested deeper than %d", at, maxDepth)
	}
	tok, err := dec.Token()
	if err != nil {
		return nil, fmt.Errorf("not JSON, at byte %d: %w", dec.InputOffset(), err)
	}
	switch tok {
	case json.Delim('{'):
		object := map[string]any{}
		for dec.More() {
			name, err := dec.Token()
			if err != nil {
				return nil, fmt.Errorf("not JSON, at byte %d: %w", dec.InputOffset(), err)
			}
			key := name.(string) // the decoder gives nothing else in the place of a name
			if _, twice := object[key]; twice {
				return nil, fmt.Errorf("%s: stands there twice", join(at, key))
			}
			if object[key], err = decodeValue(dec, join(at, key), depth+1); err != nil {
				return nil, err
			}
		}
		return object, closing(dec)
	case json.Delim('['):
		list := []any{}
		for dec.More() {
			v, err := decodeValue(dec, fmt.Sprintf("%s[%d]", at, len(list)), depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, closing(dec)
	}
	return tok, nil
}

func closing(dec *json.Decoder) error {
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("not JSON, at byte %d: %w", dec.InputOffset(), err)
	}
	return nil
}

func join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

// decode reads one payload. Numbers keep their text.
func decode(data []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("text after the value")
	}
	return v, nil
}

// encode writes a payload, and holds it to the quota.
func encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode a payload: %w", err)
	}
	out := bytes.TrimRight(b.Bytes(), "\n")
	if len(out) > PayloadLimit {
		return nil, &Error{errDataLimit, fmt.Sprintf("a payload of %d bytes; the limit is %d", len(out), PayloadLimit)}
	}
	return out, nil
}
