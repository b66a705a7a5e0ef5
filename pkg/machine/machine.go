// Package machine holds the state machine of onceload: one file, deployed by template.yaml as it is and run on a laptop
// by package asl.
package machine

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
)

//go:embed onceload.asl.json
var definition []byte

// Definition is the state machine in the Amazon States Language (JSONPath). Its resources are placeholders like
// `${ExtractFunctionArn}`; [Substitute] replaces them. The caller owns the copy.
func Definition() []byte { return slices.Clone(definition) }

// placeholder is what DefinitionSubstitutions replaces.
var placeholder = regexp.MustCompile(`\$\{[A-Za-z0-9]+\}`)

// Substitute replaces each `${Name}` of a definition by the value of that name, as DefinitionSubstitutions does on a
// deploy. A placeholder without a value, and a value that nothing asks for, are errors; all of them are reported.
func Substitute(def []byte, values map[string]string) ([]byte, error) {
	var faults []error
	used := make(map[string]bool, len(values))
	out := placeholder.ReplaceAllFunc(def, func(m []byte) []byte {
		name := string(m[2 : len(m)-1])
		v, ok := values[name]
		if !ok && !used[name] {
			faults = append(faults, fmt.Errorf("state machine: no value for ${%s}", name))
		}
		used[name] = true
		return quoted(v)
	})
	for name := range values {
		if !used[name] {
			faults = append(faults, fmt.Errorf("state machine: there is no ${%s} to replace", name))
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return out, nil
}

// quoted is s as it stands inside a JSON string.
func quoted(s string) []byte {
	b, _ := json.Marshal(s) // a string always marshals
	return b[1 : len(b)-1]
}
