package pipeline

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// MaxFileBytes bounds a pipeline file.
const MaxFileBytes = 256 << 10

// Parse reads a pipeline file; file is its name for messages. The error holds every fault of the file as [Faults] and is of
// kind ContractInvalid.
func Parse(file string, data []byte) (*Pipeline, error) {
	sum := sha256.Sum256(data)
	r := &reader{
		p:      &Pipeline{File: file, Digest: hex.EncodeToString(sum[:])},
		places: map[string]places{},
		bad:    map[string]bool{},
		schema: schema(),
		column: fieldRows(),
	}
	root, err := r.tree(data)
	if err != nil {
		return nil, err
	}
	r.value(r.schema, "", root, place{1, 1})
	r.check()
	if err := r.faults.err(); err != nil {
		return nil, err
	}
	layout, err := r.p.Layout()
	if err != nil {
		return nil, err // never: check has found it
	}
	r.p.Contract.RecordsAt = layout.Path.String()
	if layout.NDJSON {
		r.p.Contract.RecordsAt = "(lines)"
	}
	return r.p, nil
}

// reader walks one file along the schema.
type reader struct {
	p      *Pipeline
	schema row
	column []row // of the schema: the keys of a column
	faults Faults
	places map[string]places // of every key and list element in the file
	bad    map[string]bool   // those that could not be decoded, with all that they stand in
}

// place is a line and column, from 1.
type place struct{ line, column int }

// places is where a key and its value stand; the same for the element of a list.
type places struct{ key, value place }

func at(t *token.Token) place {
	if t == nil || t.Position == nil {
		return place{1, 1}
	}
	return place{max(t.Position.Line, 1), max(t.Position.Column, 1)}
}

// nodeAt is where a node begins. A block mapping begins at its first key; its own token is a colon.
func nodeAt(n ast.Node) place {
	if m, ok := n.(ast.MapNode); ok {
		if mapping, ok := n.(*ast.MappingNode); !ok || !mapping.IsFlowStyle {
			if it := m.MapRange(); it.Next() {
				return at(it.Key().GetToken())
			}
		}
	}
	return at(n.GetToken())
}

func (r *reader) fault(at place, path, instead, what string, args ...any) {
	r.faults = append(r.faults, Fault{File: r.p.File, Line: at.line, Column: at.column, Path: oneLine(shorten(path, 200)), What: oneLine(fmt.Sprintf(what, args...)), Instead: instead})
}

// oneLine keeps a fault one line long, whatever the file has in its keys.
func oneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return '·'
		}
		return c
	}, s)
}

// refuse is fault for what a typ said.
func (r *reader) refuse(at place, path, instead string, err error) {
	var better *refusal
	if errors.As(err, &better) {
		instead = better.instead
	}
	r.fault(at, path, instead, "%s", err)
}

// spoil is fault for a value that cannot be used: rules that look at it are skipped.
func (r *reader) spoil(at place, path, instead, what string, args ...any) {
	r.fault(at, path, instead, what, args...)
	r.bad[path] = true
}

// tree parses the YAML into its root node. An error is a fault beyond which nothing can be read.
func (r *reader) tree(data []byte) (root ast.Node, err error) {
	give := func(at place, instead, what string, args ...any) (ast.Node, error) {
		r.fault(at, "", instead, what, args...)
		return nil, r.faults.err()
	}
	if len(data) > MaxFileBytes {
		return give(place{1, 1}, "one pipeline a file", "the file has more than %d bytes", MaxFileBytes)
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if i := invalidUTF8(data); i >= 0 {
		line := 1 + bytes.Count(data[:i], []byte("\n"))
		start := bytes.LastIndexByte(data[:i], '\n') + 1
		return give(place{line, utf8.RuneCount(data[start:i]) + 1}, "the file in UTF-8", "the text is not UTF-8")
	}
	tokens := lexer.Tokenize(string(data))
	if deep := tooDeep(tokens); deep != nil {
		return give(at(deep), "a flatter file", "the YAML is nested more than %d levels deep", maxDepth)
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var broken yaml.Error
		if errors.As(err, &broken) {
			return give(at(broken.GetToken()), "", "the YAML is broken: %s", broken.GetMessage())
		}
		return give(place{1, 1}, "", "the YAML is broken: %s", err)
	}
	for _, doc := range file.Docs {
		switch body := doc.Body.(type) {
		case nil:
		case *ast.DirectiveNode:
			r.fault(at(body.Start), "", "the file without that line", "a YAML directive is not supported")
		default:
			if root != nil {
				r.fault(nodeAt(body), "", "each pipeline into a file of its own", "the file has a second document")
				continue
			}
			root = body
		}
	}
	if root == nil {
		return give(place{1, 1}, "pipeline: and a name to begin with", "the file is empty")
	}
	return root, nil
}

// maxDepth bounds the brackets, dashes and question marks that stand within one another. The format needs five; the time
// the YAML parser takes grows with the square of the depth.
const maxDepth = 50

// tooDeep is the first token that lies deeper, nil if there is none.
func tooDeep(tokens token.Tokens) *token.Token {
	flow, block, line := 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != line {
			line, block = t.Position.Line, 0
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow = max(flow-1, 0)
		case token.SequenceEntryType, token.MappingKeyType:
			block++
		default:
		}
		if flow+block > maxDepth {
			return t
		}
	}
	return nil
}

// invalidUTF8 is the offset of the first byte that is not UTF-8, or -1.
func invalidUTF8(data []byte) int {
	for i := 0; i < len(data); {
		c, n := utf8.DecodeRune(data[i:])
		if c == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// bare takes off what YAML may put around a value and we do not: anchors and tags are reported, and reading goes on with
// the value; an alias has none.
func (r *reader) bare(path string, n ast.Node, around place) (ast.Node, bool) {
	for {
		switch x := n.(type) {
		case *ast.AnchorNode:
			r.fault(at(x.Start), path, "the value at each place", "an anchor (&) is not supported")
			n = x.Value
		case *ast.TagNode:
			r.fault(at(x.Start), path, "the value alone", "a tag (%s) is not supported", x.Start.Value)
			n = x.Value
		case *ast.AliasNode:
			r.spoil(at(x.Start), path, "the value at each place", "an alias (*) is not supported")
			return nil, false
		case nil:
			r.spoil(around, path, "a value", "the value is missing")
			return nil, false
		default:
			return n, true
		}
	}
}

// value decodes one node by its row.
func (r *reader) value(spec row, path string, n ast.Node, key place) {
	n, ok := r.bare(path, n, key)
	if !ok {
		return
	}
	r.places[path] = places{key, nodeAt(n)}
	switch {
	case spec.keys != nil:
		if m, ok := r.mapping(spec, path, n); ok {
			r.keys(spec, path, m, key)
		}
	case spec.each != nil:
		if m, ok := r.mapping(spec, path, n); ok {
			r.each(spec, path, m)
		}
	case spec.list:
		r.list(spec, path, n)
	default:
		r.scalar(spec, path, n)
	}
}

// entry is one key of a mapping with its value.
type entry struct {
	key   string
	at    place
	value ast.Node
}

// mapping gives the entries of a mapping; what is none is reported, and so are keys that are not plain names or stand
// there twice.
func (r *reader) mapping(spec row, path string, n ast.Node) ([]entry, bool) {
	m, ok := n.(ast.MapNode)
	if !ok {
		r.spoil(nodeAt(n), path, spec.sample(), "a mapping must stand here, not %s", shapeOf(n))
		return nil, false
	}
	var entries []entry
	seen := map[string]place{}
	for it := m.MapRange(); it.Next(); {
		k := it.Key()
		if anchor, ok := k.(*ast.AnchorNode); ok {
			r.fault(at(anchor.Start), path, "the key alone", "an anchor (&) is not supported")
			if k, ok = anchor.Value.(ast.MapKeyNode); !ok {
				continue
			}
		}
		where := at(k.GetToken())
		switch k.(type) {
		case *ast.MergeKeyNode:
			r.fault(where, path, "the keys themselves", "a merge key (<<) is not supported")
			continue
		case ast.ScalarNode:
		default:
			r.fault(where, path, "key: value", "a key must be a plain word")
			continue
		}
		name := scalarOf(k).text
		if first, again := seen[name]; again {
			r.fault(where, join(path, name), "it once", "the key stands here for the second time, first at %d:%d", first.line, first.column)
			continue
		}
		seen[name] = where
		entries = append(entries, entry{name, where, it.Value()})
	}
	return entries, true
}

// keys decodes a mapping of known keys. A misspelt key is reported once and read as the key it was meant to be, so that
// the faults under it show too.
func (r *reader) keys(spec row, path string, entries []entry, at place) {
	names := keyNames(spec)
	here := map[string]bool{}
	for _, e := range entries {
		here[e.key] = true
	}
	picked := ""
	for _, e := range entries {
		i := slices.Index(names, e.key)
		if i < 0 {
			meant := Nearest(e.key, names)
			r.fault(e.at, join(path, e.key), cmp.Or(meant, r.elsewhere(path, e.key, here), "one of "+strings.Join(names, ", ")), "there is no such key")
			if i = slices.Index(names, meant); i < 0 || here[meant] {
				continue
			}
			here[meant] = true
		}
		k := spec.keys[i]
		if spec.pick && picked != "" {
			r.fault(e.at, join(path, e.key), "one of the two", "there is %s already, and only one can be", picked)
			continue
		}
		picked = k.key
		if k.enter != nil {
			k.enter(r.p, k.key)
		}
		r.value(k, join(path, k.key), e.value, e.at)
	}
	if spec.pick {
		if len(entries) == 0 {
			r.spoil(r.places[path].value, path, spec.sample(), "the mapping is empty")
		}
		return
	}
	for _, k := range spec.keys {
		switch {
		case here[k.key]:
		case k.required:
			r.fault(at, join(path, k.key), "", "the key is missing; write %s: %s", k.key, strings.TrimSuffix(k.sample(), ","))
			r.bad[join(path, k.key)] = true
		default:
			r.defaults(k)
		}
	}
}

// defaults decodes what holds for a key that is not in the file.
func (r *reader) defaults(k row) {
	switch {
	case k.enter != nil, k.pick, k.each != nil:
	case k.keys != nil:
		for _, sub := range k.keys {
			r.defaults(sub)
		}
	case k.def != "":
		v, err := k.typ.read(scalar{k.def, true})
		if err != nil {
			panic(fmt.Sprintf("default of %s: %v", k.key, err)) // a fault of the table, held by a test
		}
		assign(k.into(r.p), v)
	}
}

// each decodes a mapping of free names.
func (r *reader) each(spec row, path string, entries []entry) {
	if len(entries) == 0 && spec.required {
		r.spoil(r.places[path].value, path, spec.sample(), "the mapping is empty")
	}
	for _, e := range entries {
		name := join(path, e.key)
		if err := spec.name(e.key); err != nil {
			r.refuse(e.at, name, "another name", err)
		}
		spec.each.enter(r.p, e.key)
		r.value(*spec.each, name, e.value, e.at)
	}
}

func (r *reader) list(spec row, path string, n ast.Node) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		r.spoil(nodeAt(n), path, spec.sample(), "a list must stand here, not %s", shapeOf(n))
		return
	}
	if len(seq.Values) == 0 && spec.required {
		r.spoil(nodeAt(n), path, "at least one element", "the list is empty")
	}
	seen := map[string]bool{}
	for i, v := range seq.Values {
		name := fmt.Sprintf("%s[%d]", path, i)
		v, ok := r.bare(name, v, nodeAt(seq))
		if !ok {
			r.bad[path] = true
			continue
		}
		r.places[name] = places{nodeAt(v), nodeAt(v)}
		r.scalar(spec, name, v)
		if r.bad[name] {
			r.bad[path] = true
			continue
		}
		if text := scalarOf(v).text; seen[text] {
			r.spoil(nodeAt(v), name, "it once", "%s stands in the list twice", quote(text))
		} else {
			seen[text] = true
		}
	}
}

func (r *reader) scalar(spec row, path string, n ast.Node) {
	switch n.(type) {
	case *ast.NullNode:
		r.spoil(nodeAt(n), path, spec.typ.write, "the value is missing")
		return
	case ast.ScalarNode:
	default:
		if word := braced(n); word != "" {
			r.spoil(nodeAt(n), path, strconv.Quote(word), "a placeholder needs quotes")
			return
		}
		r.spoil(nodeAt(n), path, spec.typ.write, "a single value must stand here, not %s", shapeOf(n))
		return
	}
	v, err := spec.typ.read(scalarOf(n))
	if err != nil {
		r.refuse(nodeAt(n), path, spec.typ.write, err)
		r.bad[path] = true
		return
	}
	assign(spec.into(r.p), v)
}

// braced is the placeholder that somebody meant who wrote {window.start} without quotes: YAML reads a mapping.
func braced(n ast.Node) string {
	m, ok := n.(*ast.MappingNode)
	if !ok || len(m.Values) != 1 {
		return ""
	}
	word := m.Values[0].Key.GetToken().Value
	if format, ok := m.Values[0].Value.(*ast.StringNode); ok {
		word += ":" + format.Value
	}
	if word = "{" + word + "}"; !placeholder.MatchString(word) || checkPlaceholders(word, true) != nil {
		return ""
	}
	return word
}

// scalarOf is the text of a scalar node.
func scalarOf(n ast.Node) scalar {
	switch x := n.(type) {
	case *ast.LiteralNode:
		return scalar{text: x.Value.Value}
	case *ast.StringNode:
		quoted := x.Token.Type == token.SingleQuoteType || x.Token.Type == token.DoubleQuoteType
		return scalar{text: x.Value, plain: !quoted}
	}
	return scalar{text: n.GetToken().Value, plain: true}
}

// shapeOf names what stands where something else should.
func shapeOf(n ast.Node) string {
	switch n.(type) {
	case *ast.NullNode:
		return "nothing"
	case ast.MapNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	}
	return "a single value"
}

// assign stores a decoded value: in its variable, in a pointer that tells absent from zero, or at the end of a list.
func assign(into, v any) {
	switch d := into.(type) {
	case *string:
		*d = v.(string)
	case **string:
		s := v.(string)
		*d = &s
	case *[]string:
		*d = append(*d, v.(string))
	case *bool:
		*d = v.(bool)
	case **bool:
		b := v.(bool)
		*d = &b
	case *int64:
		*d = v.(int64)
	case **int64:
		n := v.(int64)
		*d = &n
	case *int:
		*d = int(v.(int64))
	case **int:
		n := int(v.(int64))
		*d = &n
	case *[]int:
		*d = append(*d, int(v.(int64)))
	case *float64:
		*d = v.(float64)
	case **float64:
		f := v.(float64)
		*d = &f
	case *time.Duration:
		*d = v.(time.Duration)
	default:
		panic(fmt.Sprintf("no way to decode into %T", into)) // a fault of the table, held by a test
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// elsewhere says where a key that is not known here belongs: under one of the keys beside it, else at its only home.
func (r *reader) elsewhere(path, key string, beside map[string]bool) string {
	homes := whereIs(r.schema, "", key)
	for _, home := range homes {
		if rest, below := strings.CutPrefix(home, path+"."); below && beside[strings.Split(rest, ".")[0]] {
			return "it as " + home
		}
	}
	if len(homes) != 1 {
		return ""
	}
	return "it as " + homes[0]
}

func keyNames(spec row) []string {
	names := make([]string, len(spec.keys))
	for i, k := range spec.keys {
		names[i] = k.key
	}
	return names
}

// whereIs lists the places of the schema that have the key.
func whereIs(in row, path, key string) []string {
	var found []string
	for _, k := range in.keys {
		if k.key == key {
			found = append(found, join(path, key))
		}
		found = append(found, whereIs(k, join(path, k.key), key)...)
	}
	if in.each != nil {
		found = append(found, whereIs(*in.each, join(path, "<name>"), key)...)
	}
	return found
}
