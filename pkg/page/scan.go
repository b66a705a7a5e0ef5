package page

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// MaxDepth bounds the nesting of arrays and objects.
const MaxDepth = 1000

// bom is the byte order mark of UTF-8.
const bom = "\ufeff"

// scanner checks JSON text. Its methods take an offset and return the offset after what they read, or -1 with the fault
// kept: one place to test, no error value on the way of good text.
type scanner struct {
	data  []byte
	depth int // open arrays and objects around the offset
	// escaped is set by string and cleared by its callers: whether a backslash was met.
	escaped bool

	code string // of the fault
	at   int
	want string

	objects [MaxDepth]bool // of the open arrays and objects that skip entered: which are objects
}

// fail keeps a fault.
func (s *scanner) fail(code string, at int, want string) int {
	s.code, s.at, s.want = code, at, want
	return -1
}

// err is the kept fault, told in full.
func (s *scanner) err() *Fault {
	msg := s.want
	if s.code == CodeSyntax {
		msg = fmt.Sprintf("the text ends, want %s", s.want)
		if s.at < len(s.data) {
			msg = fmt.Sprintf("%s, want %s", found(s.data[s.at]), s.want)
		}
	}
	return newFault(s.code, s.data, s.at, msg)
}

// found names a byte.
func found(c byte) string {
	if c < ' ' || c >= 0x7f {
		return fmt.Sprintf("byte 0x%02x", c)
	}
	return fmt.Sprintf("%q", c)
}

// begin returns the offset of the document's value.
func (s *scanner) begin() int {
	d := s.data
	if len(d) >= 2 && (d[0] == 0 || d[1] == 0 || d[0] == 0xfe && d[1] == 0xff || d[0] == 0xff && d[1] == 0xfe) {
		return s.fail(CodeCharset, 0, "the text is UTF-16 or UTF-32, want UTF-8")
	}
	i := 0
	if len(d) >= len(bom) && string(d[:len(bom)]) == bom {
		i = len(bom)
	}
	return s.space(i)
}

// end checks that nothing follows the document's value.
func (s *scanner) end(i int) int {
	if i = s.space(i); i < len(s.data) {
		return s.fail(CodeSyntax, i, "nothing after the document")
	}
	return i
}

// space skips white space.
func (s *scanner) space(i int) int {
	d := s.data
	for i < len(d) && d[i] <= ' ' && (d[i] == ' ' || d[i] == '\n' || d[i] == '\r' || d[i] == '\t') {
		i++
	}
	return i
}

// enter opens an array or object at i and returns the offset behind its bracket.
func (s *scanner) enter(i int) int {
	if s.depth == MaxDepth {
		return s.fail(CodeDepth, i, fmt.Sprintf("nested deeper than %d arrays and objects", MaxDepth))
	}
	s.depth++
	return i + 1
}

// name goes on in an object, behind its brace (first) or behind a member. It returns the text between the quotes of the
// next name and the offset of its value; at the end of the object more is false and i stands behind the brace.
func (s *scanner) name(i int, first bool) (name []byte, at int, more bool) {
	d := s.data
	i = s.space(i)
	switch {
	case i < len(d) && d[i] == '}':
		s.depth--
		return nil, i + 1, false
	case first:
	case i == len(d) || d[i] != ',':
		return nil, s.fail(CodeSyntax, i, "',' or '}' after a member"), false
	default:
		i = s.space(i + 1)
	}
	if i == len(d) || d[i] != '"' {
		return nil, s.fail(CodeSyntax, i, "a name in quotes"), false
	}
	s.escaped = false
	end := s.string(i + 1)
	if end < 0 {
		return nil, -1, false
	}
	name = d[i+1 : end-1]
	if i = s.space(end); i == len(d) || d[i] != ':' {
		return nil, s.fail(CodeSyntax, i, "':' after a name"), false
	}
	return name, s.space(i + 1), true
}

// expect is name for a guess: want, a name in quotes and its colon, comes next. at is -1 if it does not, which is no fault.
func (s *scanner) expect(i int, first bool, want string) (name []byte, at int) {
	d := s.data
	if !first {
		if i == len(d) || d[i] != ',' {
			return nil, -1
		}
		i = s.space(i + 1)
	}
	end := i + len(want)
	if len(want) == 0 || end > len(d) || string(d[i:end]) != want {
		return nil, -1
	}
	return d[i+1 : end-2], s.space(end)
}

// element goes on in an array as name does in an object.
func (s *scanner) element(i int, first bool) (at int, more bool) {
	d := s.data
	i = s.space(i)
	switch {
	case i < len(d) && d[i] == ']':
		s.depth--
		return i + 1, false
	case first:
		return i, true
	case i == len(d) || d[i] != ',':
		return s.fail(CodeSyntax, i, "',' or ']' after an element"), false
	}
	return s.space(i + 1), true
}

// skip checks the value at i, however deep, without recursion.
func (s *scanner) skip(i int) int {
	d := s.data
	base := s.depth
	inObject := false

value:
	if i >= len(d) {
		return s.fail(CodeSyntax, i, "a value")
	}
	switch d[i] {
	case '"':
		i = s.string(i + 1)
	case '{':
		if i = s.enter(i); i < 0 {
			return -1
		}
		inObject = true
		s.objects[s.depth-1] = true
		if i = s.space(i); i == len(d) || d[i] != '}' {
			goto name
		}
		i++
		goto leave
	case '[':
		if i = s.enter(i); i < 0 {
			return -1
		}
		inObject = false
		s.objects[s.depth-1] = false
		if i = s.space(i); i == len(d) || d[i] != ']' {
			goto value
		}
		i++
		goto leave
	case 't':
		i = s.literal(i, "true")
	case 'f':
		i = s.literal(i, "false")
	case 'n':
		i = s.literal(i, "null")
	default:
		i = s.number(i)
	}
	if i < 0 {
		return -1
	}

after: // a value ended before i
	if s.depth == base {
		return i
	}
	i = s.space(i)
	if inObject {
		switch {
		case i < len(d) && d[i] == ',':
			i = s.space(i + 1)
			goto name
		case i == len(d) || d[i] != '}':
			return s.fail(CodeSyntax, i, "',' or '}' after a member")
		}
		i++
		goto leave
	}
	switch {
	case i < len(d) && d[i] == ',':
		i = s.space(i + 1)
		goto value
	case i == len(d) || d[i] != ']':
		return s.fail(CodeSyntax, i, "',' or ']' after an element")
	}
	i++

leave:
	if s.depth--; s.depth > base {
		inObject = s.objects[s.depth-1]
	}
	goto after

name:
	if i == len(d) || d[i] != '"' {
		return s.fail(CodeSyntax, i, "a name in quotes")
	}
	if i = s.string(i + 1); i < 0 {
		return -1
	}
	if i = s.space(i); i == len(d) || d[i] != ':' {
		return s.fail(CodeSyntax, i, "':' after a name")
	}
	i = s.space(i + 1)
	goto value
}

// literal checks one of the three words.
func (s *scanner) literal(i int, word string) int {
	if end := i + len(word); end <= len(s.data) && string(s.data[i:end]) == word {
		return end
	}
	for k := 0; ; k++ {
		if i+k == len(s.data) || s.data[i+k] != word[k] {
			return s.fail(CodeSyntax, i+k, word)
		}
	}
}

// number checks a number.
func (s *scanner) number(i int) int {
	d := s.data
	if d[i] == '-' {
		i++
	}
	switch {
	case i < len(d) && d[i] == '0':
		i++
	case i < len(d) && '1' <= d[i] && d[i] <= '9':
		i = s.digits(i)
	case i > 0 && d[i-1] == '-':
		return s.fail(CodeSyntax, i, "a digit")
	default:
		return s.fail(CodeSyntax, i, "a value")
	}
	if i < len(d) && d[i] == '.' {
		start := i + 1
		if i = s.digits(start); i == start {
			return s.fail(CodeSyntax, i, "a digit after the decimal point")
		}
	}
	if i < len(d) && d[i]|0x20 == 'e' {
		start := i + 1
		if start < len(d) && (d[start] == '+' || d[start] == '-') {
			start++
		}
		if i = s.digits(start); i == start {
			return s.fail(CodeSyntax, i, "a digit in the exponent")
		}
	}
	return i
}

// digits skips digits.
func (s *scanner) digits(i int) int {
	d := s.data
	for i < len(d) && d[i]-'0' <= 9 {
		i++
	}
	return i
}

// The bytes of a word, all the same.
const (
	ones   = 0x0101010101010101
	highs  = 0x8080808080808080
	spaces = ' ' * ones
	quotes = '"' * ones
	slants = '\\' * ones
)

// string checks a string from behind its opening quote and returns the offset behind its closing one.
func (s *scanner) string(i int) int {
	d := s.data
	for {
		// Eight bytes at a time. A byte's high bit ends up set if the byte is a control character (the first
		// subtraction borrows), a quote or a backslash (the exclusive or leaves 0, its subtraction borrows), or not
		// ASCII (two exclusive ors keep the high bit, and no byte loses it to both subtractions). A borrow can spoil only
		// the bytes above the one that caused it, so the lowest high bit is always a true one.
		for i+8 <= len(d) {
			w := binary.LittleEndian.Uint64(d[i:])
			if hit := ((w - spaces) | ((w ^ quotes) - ones) | ((w ^ slants) - ones)) & highs; hit != 0 {
				if i += bits.TrailingZeros64(hit) >> 3; d[i] == '"' {
					return i + 1
				}
				break
			}
			i += 8
		}
		for i < len(d) && d[i] >= ' ' && d[i] < 0x80 && d[i] != '"' && d[i] != '\\' {
			i++
		}
		if i >= len(d) {
			return s.fail(CodeSyntax, len(d), "'\"' at the end of a string")
		}
		switch c := d[i]; {
		case c == '"':
			return i + 1
		case c == '\\':
			s.escaped = true
			if i = s.escape(i); i < 0 {
				return -1
			}
		case c < ' ':
			return s.fail(CodeSyntax, i, "an escape for a control character in a string")
		default:
			n := runeLen(d[i:])
			if n == 0 {
				return s.fail(CodeUTF8, i, found(c)+" in a string is not UTF-8")
			}
			i += n
		}
	}
}

// escape checks the escape at i.
func (s *scanner) escape(i int) int {
	d := s.data
	switch {
	case i+1 < len(d) && d[i+1] == 'u':
		for k := i + 2; k < i+6; k++ {
			if k >= len(d) || !(d[k]-'0' <= 9 || d[k]|0x20-'a' <= 5) {
				return s.fail(CodeSyntax, min(k, len(d)), "four hexadecimal digits after \\u")
			}
		}
		return i + 6
	case i+1 == len(d) || unescape(d[i+1]) == 0:
		return s.fail(CodeSyntax, i+1, "an escape, one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u")
	}
	return i + 2
}

// runeLen is the length of the UTF-8 sequence that b begins with, 0 if it is none. b does not begin with ASCII.
func runeLen(b []byte) int {
	tail := func(i int) bool { return b[i]&0xc0 == 0x80 }
	switch c := b[0]; {
	case c < 0xc2:
	case c < 0xe0:
		if len(b) >= 2 && tail(1) {
			return 2
		}
	case c < 0xf0: // no longer than need be, no surrogates
		if len(b) >= 3 && tail(1) && tail(2) && !(c == 0xe0 && b[1] < 0xa0) && !(c == 0xed && b[1] >= 0xa0) {
			return 3
		}
	case c < 0xf5: // no longer than need be, nothing beyond U+10FFFF
		if len(b) >= 4 && tail(1) && tail(2) && tail(3) && !(c == 0xf0 && b[1] < 0x90) && !(c == 0xf4 && b[1] >= 0x90) {
			return 4
		}
	}
	return 0
}
