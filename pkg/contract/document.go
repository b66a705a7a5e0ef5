package contract

import (
	"bytes"
	"iter"
	"slices"

	"github.com/onceload/onceload/pkg/page"
)

// The limits of DynamoDB's documents.
const (
	maxLevels = 32 // the column's own value is on level 1
	maxName   = 65_535
)

// documentScratch is what a document is put in order with. The stacks hold the open objects, outermost first.
type documentScratch struct {
	members []member
	names   []byte
	copied  []byte
	bad     fault
	shapes  [maxLevels + 1]shape // by level
}

// shape is what an object's names were. Records of one source are much alike: an object with the names of the last one on
// its level, and with scalars in canonical form, is in order once its members are taken in the order of that one.
type shape struct {
	text  []byte   // of names
	names [][]byte // `"name":`, as they stood
	order []int    // of names, in the order of the canonical form
	spans [][2]int // scratch: where the members stand
}

// maxShape bounds the members of an object whose shape is kept.
const maxShape = 64

// keep makes s the shape of an object of scalars whose members, all of other names and without escapes, are given in order.
func (s *shape) keep(members []member) {
	s.text, s.names, s.order, s.spans = s.text[:0], s.names[:0], s.order[:0], s.spans[:0]
	if len(members) > maxShape {
		return
	}
	for range members {
		s.names, s.spans = append(s.names, nil), append(s.spans, [2]int{})
	}
	for _, m := range members {
		mark := len(s.text)
		s.text = append(append(append(s.text, '"'), m.name...), `":`...)
		s.names[m.at] = s.text[mark:len(s.text):len(s.text)]
		s.order = append(s.order, m.at)
	}
}

// object appends the object at i if it has this shape, and returns the offset behind it; -1 if it has not.
func (s *shape) object(dst, raw []byte, i int) ([]byte, int) {
	for n, name := range s.names {
		i++ // behind the brace or the comma
		if !bytes.HasPrefix(raw[i:], name) {
			return dst, -1
		}
		start := i
		switch i += len(name); raw[i] {
		case '"':
			var plain bool
			if i, plain = skipString(raw, i); !plain {
				return dst, -1
			}
		case 't', 'f', 'n':
			i = skipWord(raw, i)
		default:
			word := i
			if i = skipWord(raw, i); !isCanonical(raw[word:i], false) { // or no number at all
				return dst, -1
			}
		}
		s.spans[n] = [2]int{start, i}
	}
	if len(s.names) == 0 || raw[i] != '}' {
		return dst, -1
	}
	dst = append(dst, '{')
	for _, n := range s.order {
		dst = append(append(dst, raw[s.spans[n][0]:s.spans[n][1]]...), ',')
	}
	dst[len(dst)-1] = '}'
	return dst, i + 1
}

// document appends any JSON value in canonical form: numbers without exponent and superfluous zeros, names sorted as
// bytes, strings with the fewest escapes, no white space. raw is known to be valid JSON.
func (k *Checker) document(dst, raw []byte) ([]byte, fault) {
	k.doc.members, k.doc.names, k.doc.bad = k.doc.members[:0], k.doc.names[:0], fault{}
	dst, _ = k.node(dst, raw, 0, 1)
	return dst, k.doc.bad
}

// refuse keeps a document's fault; the -1 is for the caller to return.
func (k *Checker) refuse(code, message string) int {
	k.doc.bad = fault{code, message}
	return -1
}

// node appends the value at i and returns the offset behind it, -1 if it is refused.
func (k *Checker) node(dst, raw []byte, i, level int) ([]byte, int) {
	switch {
	case level > maxLevels:
		return dst, k.refuse(CodeTooDeep, "want at most 32 levels")
	case len(dst) > maxLine:
		bad := tooLarge()
		return dst, k.refuse(bad.code, bad.message)
	}
	switch raw[i] {
	case '{':
		return k.object(dst, raw, i, level)
	case '[':
		dst = append(dst, '[')
		i = skipSpace(raw, i+1)
		for first := true; raw[i] != ']'; first = false {
			if !first {
				dst = append(dst, ',')
				i = skipSpace(raw, i+1)
			}
			if dst, i = k.node(dst, raw, i, level+1); i < 0 {
				return dst, -1
			}
			i = skipSpace(raw, i)
		}
		return append(dst, ']'), i + 1
	case '"':
		end, plain := skipString(raw, i)
		if plain {
			return append(dst, raw[i:end]...), end
		}
		var err error
		if k.text, err = (page.Value{Kind: page.String, Raw: raw[i:end]}).AppendText(k.text[:0]); err != nil {
			return dst, k.refuse(CodeBadText, err.Error())
		}
		return appendQuoted(dst, k.text), end
	}
	end := skipWord(raw, i)
	if raw[i] == 't' || raw[i] == 'f' || raw[i] == 'n' || isCanonical(raw[i:end], false) {
		return append(dst, raw[i:end]...), end
	}
	n, bad := k.number(raw[i:end])
	if bad.code == "" {
		bad = n.check()
	}
	if bad.code != "" {
		return dst, k.refuse(bad.code, bad.message)
	}
	return n.append(dst), end
}

// object appends the object at i with its members in order.
func (k *Checker) object(dst, raw []byte, i, level int) ([]byte, int) {
	d := &k.doc
	last := &d.shapes[level]
	if dst, end := last.object(dst, raw, i); end >= 0 {
		return dst, end
	}
	base, names, start := len(d.members), len(d.names), len(dst)
	ordered := true // the names rise, so none stands twice
	flat := true    // names without escapes, and scalars
	dst = append(dst, '{')
	i = skipSpace(raw, i+1)
	for n := 0; raw[i] != '}'; n++ {
		if n > 0 {
			dst = append(dst, ',')
			i = skipSpace(raw, i+1)
		}
		end, whole := skipString(raw, i)
		m := member{name: raw[i+1 : end-1], at: n, start: len(dst)}
		if whole {
			dst = append(dst, raw[i:end]...)
		} else {
			flat = false
			mark := len(d.names)
			var err error
			if d.names, err = (page.Value{Kind: page.String, Raw: raw[i:end]}).AppendText(d.names); err != nil {
				return dst, k.refuse(CodeBadName, err.Error())
			}
			m.name = d.names[mark:]
			dst = appendQuoted(dst, m.name)
		}
		if bad := checkName(m.name); bad.code != "" {
			return dst, k.refuse(bad.code, bad.message)
		}
		dst = append(dst, ':')
		i = skipSpace(raw, skipSpace(raw, end)+1)
		flat = flat && raw[i] != '{' && raw[i] != '['
		if dst, i = k.node(dst, raw, i, level+1); i < 0 {
			return dst, -1
		}
		m.end = len(dst)
		ordered = ordered && (n == 0 || less(d.members[len(d.members)-1].name, m.name))
		d.members = append(d.members, m)
		i = skipSpace(raw, i)
	}
	dst = append(dst, '}')

	members := d.members[base:]
	if !ordered {
		sortMembers(members)
		for n := 1; n < len(members); n++ {
			if bytes.Equal(members[n-1].name, members[n].name) {
				return dst, k.refuse(CodeDuplicateName, "a name stands more than once in an object of the document")
			}
		}
		d.copied = append(d.copied[:0], dst[start:]...)
		dst = dst[:start+1]
		for n, m := range members {
			if n > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, d.copied[m.start-start:m.end-start]...)
		}
		dst = append(dst, '}')
	}
	if flat {
		last.keep(members)
	}
	d.members, d.names = d.members[:base], d.names[:names]
	return dst, i + 1
}

// sortMembers sorts by name; most objects have few members.
func sortMembers(members []member) {
	if len(members) > 16 {
		slices.SortFunc(members, byName)
		return
	}
	for i := 1; i < len(members); i++ {
		for j := i; j > 0 && less(members[j].name, members[j-1].name); j-- {
			members[j], members[j-1] = members[j-1], members[j]
		}
	}
}

// less compares names, which have at least one byte.
func less(a, b []byte) bool {
	if a[0] != b[0] {
		return a[0] < b[0]
	}
	return bytes.Compare(a, b) < 0
}

// checkName says why DynamoDB would refuse a name. No name that passes is nil.
func checkName(name []byte) fault {
	if len(name) == 0 || len(name) > maxName {
		return fault{CodeBadName, "want names of 1 to 65,535 bytes"}
	}
	return fault{}
}

// elements yields the values of an array of valid JSON.
func elements(raw []byte) iter.Seq[page.Value] {
	return func(yield func(page.Value) bool) {
		for i := skipSpace(raw, 1); raw[i] != ']'; {
			if raw[i] == ',' {
				i = skipSpace(raw, i+1)
			}
			v := page.Value{Kind: kindOf(raw[i])}
			var end int
			if v.Kind == page.String {
				end, v.Plain = skipString(raw, i)
			} else {
				end = skipValue(raw, i)
			}
			v.Raw = raw[i:end]
			if !yield(v) {
				return
			}
			i = skipSpace(raw, end)
		}
	}
}

func kindOf(first byte) page.Kind {
	switch first {
	case '"':
		return page.String
	case '{':
		return page.Object
	case '[':
		return page.Array
	case 't', 'f':
		return page.Bool
	case 'n':
		return page.Null
	}
	return page.Number
}

// The functions below walk text that is known to be valid JSON.

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// skipString returns the offset behind the string at i, and whether it has no escapes: then it is in canonical form and
// stands for what is between its quotes.
func skipString(b []byte, i int) (end int, plain bool) {
	i++
	for plain = true; ; {
		if i += plainLen(b[i:]); b[i] == '"' {
			return i + 1, plain
		}
		plain = false
		i += 2
	}
}

// skipWord returns the offset behind the number or literal at i.
func skipWord(b []byte, i int) int {
	for i < len(b) && b[i] != ',' && b[i] != ']' && b[i] != '}' && b[i] > ' ' {
		i++
	}
	return i
}

// skipValue returns the offset behind the value at i.
func skipValue(b []byte, i int) int {
	for depth := 0; ; {
		switch b[i] {
		case '"':
			i, _ = skipString(b, i)
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\n', '\r', '\t':
			i++
			continue
		default:
			i = skipWord(b, i)
		}
		if depth == 0 {
			return i
		}
	}
}
