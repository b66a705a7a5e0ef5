// Package template reads template.yaml as far as others need it: the tests that hold it against the code, the check of
// built functions before a deploy, and the servers on a developer's machine, whose buckets and tables it describes.
package template

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Template is a SAM template with its references resolved.
type Template struct {
	Parameters map[string]Parameter `json:"Parameters"`
	Globals    Globals              `json:"Globals"`
	Resources  map[string]Resource  `json:"Resources"` // by logical id
}

// Globals is what holds for every function; JSON.
type Globals struct {
	Function json.RawMessage `json:"Function"`
}

// Parameter is what a deploy may set.
type Parameter struct {
	Type    string `json:"Type"`
	Default any    `json:"Default"`
}

// Resource is one resource; its properties are JSON.
type Resource struct {
	Type       string          `json:"Type"`
	Metadata   map[string]any  `json:"Metadata"`
	Properties json.RawMessage `json:"Properties"`
}

// Function is what a function's build must fit.
type Function struct {
	ID            string      `json:"-"` // logical id: the name of its folder among the artifacts
	FunctionName  string      `json:"FunctionName"`
	Handler       string      `json:"Handler"`
	Runtime       string      `json:"Runtime"`
	Architectures []string    `json:"Architectures"` // one; x86_64 if the template says nothing
	Timeout       int         `json:"Timeout"`       // seconds
	Environment   Environment `json:"Environment"`
}

// Environment is what a function finds in its environment.
type Environment struct {
	Variables map[string]string `json:"Variables"`
}

// Parse reads a template. Values are what its references come out as: parameters and pseudo parameters by name, such as
// AWS::StackName. The default of a parameter stands in for a value that is not given. A reference to a resource stays a
// reference, as text: `!Ref X` is `${X}`, `!GetAtt X.Arn` is `${X.Arn}`. Of the other functions, like `!Equals`, nothing
// is computed: they are objects with the one member `Fn::Equals`.
func Parse(data []byte, values map[string]string) (*Template, error) {
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	if len(file.Docs) != 1 {
		return nil, fmt.Errorf("template: %d documents, want one", len(file.Docs))
	}
	known := maps.Clone(values)
	if known == nil {
		known = map[string]string{}
	}
	t, err := decode(file.Docs[0].Body, known)
	if err != nil {
		return nil, err
	}
	missing := false
	for name, p := range t.Parameters {
		if _, ok := known[name]; !ok && p.Default != nil {
			known[name], missing = fmt.Sprint(p.Default), true
		}
	}
	if !missing {
		return t, nil
	}
	return decode(file.Docs[0].Body, known)
}

func decode(body ast.Node, values map[string]string) (*Template, error) {
	tree, err := plain(body, values)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	t := new(Template)
	if err := json.Unmarshal(text, t); err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	return t, nil
}

// plain turns a node into what encoding/json writes.
func plain(n ast.Node, values map[string]string) (any, error) {
	switch n := n.(type) {
	case *ast.AnchorNode, *ast.AliasNode:
		return nil, unread(n)
	case *ast.TagNode:
		v, err := plain(n.Value, values)
		if err != nil {
			return nil, err
		}
		return call(n.Start.Value, v, values), nil
	case ast.MapNode:
		out := map[string]any{}
		for it := n.MapRange(); it.Next(); {
			if it.Key().IsMergeKey() {
				return nil, unread(it.Key())
			}
			v, err := plain(it.Value(), values)
			if err != nil {
				return nil, err
			}
			out[it.Key().GetToken().Value] = v // the parser refuses a key that is there twice
		}
		return out, nil
	case *ast.SequenceNode:
		out := make([]any, 0, len(n.Values))
		for _, e := range n.Values {
			v, err := plain(e, values)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		return out, nil
	case *ast.LiteralNode:
		return n.Value.Value, nil
	case ast.ScalarNode:
		return n.GetValue(), nil
	}
	return nil, fmt.Errorf("template: a %T where a value should be", n)
}

func unread(n ast.Node) error {
	p := n.GetToken().Position
	return fmt.Errorf("template: line %d, column %d: CloudFormation reads no anchors, aliases and merges", p.Line, p.Column)
}

// call is what an intrinsic function in its short form comes out as.
func call(tag string, arg any, values map[string]string) any {
	text, isText := arg.(string)
	switch {
	case tag == "!Ref" && isText:
		return substitute("${"+text+"}", values)
	case tag == "!Sub" && isText:
		return substitute(text, values)
	case tag == "!GetAtt" && isText:
		return "${" + text + "}"
	}
	return map[string]any{"Fn::" + strings.TrimPrefix(tag, "!"): arg}
}

var reference = regexp.MustCompile(`\$\{[A-Za-z0-9:.]+\}`)

func substitute(text string, values map[string]string) string {
	return reference.ReplaceAllStringFunc(text, func(m string) string {
		if v, ok := values[m[2:len(m)-1]]; ok {
			return v
		}
		return m
	})
}

// OfType returns the logical ids of a type's resources, sorted.
func (t *Template) OfType(typ string) []string {
	var ids []string
	for id, r := range t.Resources {
		if r.Type == typ {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Decode reads the properties of a resource into into, as encoding/json does.
func (t *Template) Decode(id string, into any) error {
	if err := json.Unmarshal(t.Resources[id].Properties, into); err != nil {
		return fmt.Errorf("template: %s: %w", id, err)
	}
	return nil
}

// Functions returns the functions in the order of their logical ids, completed by Globals.
func (t *Template) Functions() ([]Function, error) {
	var out []Function
	for _, id := range t.OfType("AWS::Serverless::Function") {
		f := Function{ID: id}
		if len(t.Globals.Function) > 0 {
			if err := json.Unmarshal(t.Globals.Function, &f); err != nil {
				return nil, fmt.Errorf("template: Globals: %w", err)
			}
		}
		if err := t.Decode(id, &f); err != nil {
			return nil, err
		}
		if len(f.Architectures) == 0 {
			f.Architectures = []string{"x86_64"}
		}
		out = append(out, f)
	}
	return out, nil
}
