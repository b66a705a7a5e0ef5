package page

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Path names a place in a document. The zero value is the document itself.
type Path struct {
	steps []step
	key   bool
}

// step goes to a member, or to an element if index is not negative.
type step struct {
	name  string
	index int
}

// keyPath stands for the name under which a record stood in an object map.
const keyPath = "@key"

// maxIndexDigits bounds an index, so that it fits an int anywhere.
const maxIndexDigits = 9

// ParsePath reads a path: names joined by dots, [n] for an element of an array, `a.b[0].c`. A backslash takes the meaning
// from a dot, a bracket, an at sign and a backslash: `customer\.email` is one name. The empty path is the document itself,
// and `@key` is the name under which a record stood in an object map (`\@key` is a member of that name).
func ParsePath(s string) (Path, error) {
	switch {
	case s == "":
		return Path{}, nil
	case s == keyPath:
		return Path{key: true}, nil
	case !utf8.ValidString(s):
		return Path{}, fmt.Errorf("path %q: not UTF-8", s)
	}
	var p Path
	for i := 0; i < len(s); {
		switch {
		case s[i] == '[':
			n, end, err := parseIndex(s, i)
			if err != nil {
				return Path{}, err
			}
			p.steps = append(p.steps, step{index: n})
			i = end
			continue
		case len(p.steps) == 0:
		case s[i] != '.':
			return Path{}, fmt.Errorf("path %q: want '.' or '[' at position %d, after an index", s, i+1)
		default:
			i++
		}
		name, end, err := parseName(s, i)
		if err != nil {
			return Path{}, err
		}
		p.steps = append(p.steps, step{name: name, index: -1})
		i = end
	}
	return p, nil
}

// parseIndex reads `[n]` at i.
func parseIndex(s string, i int) (n, end int, err error) {
	digits, _, closed := strings.Cut(s[i+1:], "]")
	n, err = strconv.Atoi(digits)
	if err != nil || !closed || len(digits) > maxIndexDigits || strconv.Itoa(n) != digits || n < 0 {
		return 0, 0, fmt.Errorf("path %q: want an index like [0] at position %d (write \\[ for a bracket in a name)", s, i+1)
	}
	return n, i + len(digits) + 2, nil
}

// parseName reads one name at i, up to a dot, a bracket or the end.
func parseName(s string, i int) (name string, end int, err error) {
	var b strings.Builder
	for end = i; end < len(s) && s[end] != '.' && s[end] != '['; end++ {
		if s[end] == '\\' {
			end++
			if end == len(s) || !strings.ContainsRune(`.[@\`, rune(s[end])) {
				return "", 0, fmt.Errorf("path %q: a backslash at position %d takes the meaning from '.', '[', '@' or '\\' only; write \\\\ for a backslash", s, end)
			}
		}
		b.WriteByte(s[end])
	}
	if b.Len() == 0 {
		return "", 0, fmt.Errorf("path %q: a name is missing at position %d", s, i+1)
	}
	return b.String(), end, nil
}

// Member is the path of the top-level member of that name, whatever characters the name has.
func Member(name string) Path { return Path{steps: []step{{name: name, index: -1}}} }

// String is the form [ParsePath] reads.
func (p Path) String() string {
	if p.key {
		return keyPath
	}
	var b strings.Builder
	for i, st := range p.steps {
		if st.index >= 0 {
			fmt.Fprintf(&b, "[%d]", st.index)
			continue
		}
		if i > 0 {
			b.WriteByte('.')
		}
		if st.name == keyPath && len(p.steps) == 1 {
			b.WriteByte('\\')
		}
		for j := range len(st.name) {
			if c := st.name[j]; c == '.' || c == '[' || c == '\\' {
				b.WriteByte('\\')
			}
			b.WriteByte(st.name[j])
		}
	}
	return b.String()
}

// IsKey reports whether the path is @key: the value is [Record.Key], not a part of the record.
func (p Path) IsKey() bool { return p.key }
