package store

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/onceload/onceload/pkg/etl"
)

var errBadNumber = errors.New("bad number")

// MaxDepth is how many levels an attribute may have: DynamoDB's limit. The attribute itself is the first, so a number in a
// list in a map stands on the third.
const MaxDepth = 32

// maxNameBytes bounds the name of an attribute or of a member of a map.
const maxNameBytes = 65_535

// Canonical checks that doc is a JSON object that DynamoDB could hold, and returns a copy in the one form in which every
// backend gives it back: no blanks; names unique and sorted by bytes; numbers plain (no exponent, no superfluous zero, at
// most 38 significant digits); in strings only the quote, the backslash and control characters escaped, the shortest way.
func Canonical(doc []byte) ([]byte, error) {
	out, _, err := new(canon).canonical(doc)
	return out, err
}

// canonical is Canonical, and the size of the attributes by DynamoDB's rules. It may be called for one document after
// another.
func (c *canon) canonical(doc []byte) (out []byte, size int, err error) {
	c.in, c.i, c.out, c.members = doc, 0, make([]byte, 0, len(doc)), c.members[:0]
	c.blank()
	if c.peek() != '{' {
		return nil, 0, c.errorf("want a JSON object")
	}
	if size, err = c.object(0); err != nil {
		return nil, 0, err
	}
	if c.blank(); c.i < len(c.in) {
		return nil, 0, c.errorf("text after the object")
	}
	return c.out, size, nil
}

// canon rewrites one JSON text. Every method reads its value at in[i], appends it to out, and returns its size.
type canon struct {
	in      []byte
	i       int
	out     []byte
	members []member // of all the objects under way, outermost first
}

// member is an object's member already in out.
type member struct {
	name       []byte // unescaped
	start, end int    // of `"name":value` in out
}

func (c *canon) errorf(format string, args ...any) error {
	return fmt.Errorf("document, byte %d: "+format, append([]any{c.i}, args...)...)
}

func (c *canon) blank() {
	for c.i < len(c.in) && (c.in[c.i] == ' ' || c.in[c.i] == '\t' || c.in[c.i] == '\n' || c.in[c.i] == '\r') {
		c.i++
	}
}

// peek is the byte at hand, 0 at the end.
func (c *canon) peek() byte {
	if c.i < len(c.in) {
		return c.in[c.i]
	}
	return 0
}

// value reads any value; depth counts the lists and maps around it, the document itself left out.
func (c *canon) value(depth int) (int, error) {
	if depth >= MaxDepth {
		return 0, c.errorf("nested deeper than %d levels", MaxDepth)
	}
	switch b := c.peek(); {
	case b == '[':
		return c.array(depth + 1)
	case b == '{':
		size, err := c.object(depth + 1)
		return size + 3, err
	case b == '"':
		s, err := c.text()
		return len(s), err
	case b == '-' || ('0' <= b && b <= '9'):
		return c.number()
	}
	for _, word := range []string{"true", "false", "null"} {
		if bytes.HasPrefix(c.in[c.i:], []byte(word)) {
			c.i += len(word)
			c.out = append(c.out, word...)
			return 1, nil
		}
	}
	return 0, c.errorf("want a value")
}

func (c *canon) array(depth int) (size int, err error) {
	size = 3
	c.i++
	c.out = append(c.out, '[')
	for c.blank(); c.peek() != ']'; c.blank() {
		if size > 3 {
			if c.peek() != ',' {
				return 0, c.errorf("want , or ]")
			}
			c.i++
			c.out = append(c.out, ',')
			c.blank()
		}
		n, err := c.value(depth)
		if err != nil {
			return 0, err
		}
		size += 1 + n
	}
	c.i++
	c.out = append(c.out, ']')
	return size, nil
}

// object reads an object's members. The document itself (depth 0) has no overhead.
func (c *canon) object(depth int) (size int, err error) {
	base, start, sorted := len(c.members), len(c.out), true
	c.i++
	c.out = append(c.out, '{')
	for c.blank(); c.peek() != '}'; c.blank() {
		if len(c.members) > base {
			if c.peek() != ',' {
				return 0, c.errorf("want , or }")
			}
			c.i++
			c.out = append(c.out, ',')
			c.blank()
		}
		m := member{start: len(c.out)}
		if c.peek() != '"' {
			return 0, c.errorf("want a name")
		}
		if m.name, err = c.text(); err != nil {
			return 0, err
		}
		if len(m.name) == 0 || len(m.name) > maxNameBytes {
			return 0, c.errorf("a name of %d bytes: want 1 to %d", len(m.name), maxNameBytes)
		}
		if name := string(m.name); depth == 0 && (name == PKName || name == SKName || name == RankName) {
			return 0, c.errorf("%s is kept beside the document, not in it", name)
		}
		if c.blank(); c.peek() != ':' {
			return 0, c.errorf("want :")
		}
		c.i++
		c.out = append(c.out, ':')
		c.blank()
		n, err := c.value(depth)
		if err != nil {
			return 0, err
		}
		if size += len(m.name) + n; depth > 0 {
			size++
		}
		m.end = len(c.out)
		if len(c.members) > base && bytes.Compare(c.members[len(c.members)-1].name, m.name) >= 0 {
			sorted = false
		}
		c.members = append(c.members, m)
	}
	c.i++
	c.out = append(c.out, '}')
	if !sorted {
		err = c.sort(c.members[base:], start+1)
	}
	c.members = c.members[:base]
	return size, err
}

// sort puts the members, which fill out from start on, in the order of their names.
func (c *canon) sort(members []member, start int) error {
	slices.SortFunc(members, func(a, b member) int { return bytes.Compare(a.name, b.name) })
	old := slices.Clone(c.out[start:])
	c.out = c.out[:start]
	for i, m := range members {
		if i > 0 {
			if bytes.Equal(members[i-1].name, m.name) {
				return c.errorf("name %q stands twice", m.name)
			}
			c.out = append(c.out, ',')
		}
		c.out = append(c.out, old[m.start-start:m.end-start]...)
	}
	c.out = append(c.out, '}')
	return nil
}

// text reads a string and returns it unescaped; the result may alias the input.
func (c *canon) text() ([]byte, error) {
	c.i++
	end := c.i
	for end < len(c.in) && c.in[end] != '"' && c.in[end] != '\\' && c.in[end] >= ' ' {
		end++
	}
	if end < len(c.in) && c.in[end] == '"' {
		s := c.in[c.i:end]
		if !utf8.Valid(s) {
			return nil, c.errorf("invalid UTF-8")
		}
		c.i = end + 1
		c.out = append(c.out, '"')
		c.out = append(c.out, s...)
		c.out = append(c.out, '"')
		return s, nil
	}
	s, err := c.unescape()
	if err != nil {
		return nil, err
	}
	if !utf8.Valid(s) {
		return nil, c.errorf("invalid UTF-8")
	}
	c.out = AppendString(c.out, string(s))
	return s, nil
}

// unescape reads the rest of a string, past its closing quote.
func (c *canon) unescape() ([]byte, error) {
	var s []byte
	for {
		b := c.peek()
		switch {
		case b == '"':
			c.i++
			return s, nil
		case b < ' ':
			return nil, c.errorf("control character or end inside a string")
		case b != '\\':
			s = append(s, b)
			c.i++
			continue
		}
		c.i++
		esc := c.peek()
		if at := strings.IndexByte(`"\/bfnrt`, esc); at >= 0 && esc != 0 {
			s = append(s, "\"\\/\b\f\n\r\t"[at])
			c.i++
			continue
		}
		r, ok := c.hex()
		if ok && utf16.IsSurrogate(r) {
			low, lowOK := c.hex2()
			r = utf16.DecodeRune(r, low)
			ok = lowOK && r != utf8.RuneError
		}
		if !ok {
			return nil, c.errorf("bad escape")
		}
		s = utf8.AppendRune(s, r)
	}
}

// hex reads `uXXXX`.
func (c *canon) hex() (r rune, ok bool) {
	if c.i+5 > len(c.in) || c.in[c.i] != 'u' {
		return 0, false
	}
	for _, b := range c.in[c.i+1 : c.i+5] {
		d := strings.IndexByte("0123456789abcdef", b|0x20)
		if d < 0 || b < '0' {
			return 0, false
		}
		r = r<<4 | rune(d)
	}
	c.i += 5
	return r, true
}

// hex2 reads `\uXXXX`, the second half of a pair.
func (c *canon) hex2() (rune, bool) {
	if c.peek() != '\\' {
		return 0, false
	}
	c.i++
	return c.hex()
}

// AppendString appends s, valid UTF-8, as a canonical JSON string.
func AppendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := range len(s) {
		switch b := s[i]; {
		case b == '"' || b == '\\':
			dst = append(dst, '\\', b)
		case b >= ' ':
			dst = append(dst, b)
		default:
			if at := strings.IndexByte("\b\f\n\r\t", b); at >= 0 {
				dst = append(dst, '\\', "bfnrt"[at])
			} else {
				dst = append(dst, '\\', 'u', '0', '0', hex[b>>4], hex[b&15])
			}
		}
	}
	return append(dst, '"')
}

// number reads a number.
func (c *canon) number() (int, error) {
	start := c.i
	for c.i < len(c.in) && strings.IndexByte("+-.0123456789eE", c.in[c.i]) >= 0 {
		c.i++
	}
	out, size, err := appendNumber(c.out, c.in[start:c.i])
	if err != nil {
		c.i = start
		return 0, c.errorf("%w", err)
	}
	c.out = out
	return size, nil
}

// appendNumber appends the JSON number s in canonical form.
func appendNumber(dst, s []byte) (out []byte, size int, err error) {
	rest, neg := bytes.CutPrefix(s, []byte("-"))
	digits, rest := cutDigits(rest)
	if len(digits) == 0 || (len(digits) > 1 && digits[0] == '0') {
		return nil, 0, errBadNumber
	}
	point := len(digits) // value = 0.digits × 10^point
	if len(rest) > 0 && rest[0] == '.' {
		var frac []byte
		if frac, rest = cutDigits(rest[1:]); len(frac) == 0 {
			return nil, 0, errBadNumber
		}
		digits = append(slices.Clip(digits), frac...)
	}
	if len(rest) > 0 {
		exp, err := exponent(rest)
		if err != nil {
			return nil, 0, err
		}
		point += exp
	}
	for len(digits) > 0 && digits[0] == '0' {
		digits = digits[1:]
		point--
	}
	digits = bytes.TrimRight(digits, "0")
	n := len(digits)
	switch {
	case n == 0:
		return append(dst, '0'), 1, nil
	case n > etl.MaxDigits:
		return nil, 0, fmt.Errorf("a number of %d digits: at most %d are kept exactly", n, etl.MaxDigits)
	case point > 126 || point < -129:
		return nil, 0, fmt.Errorf("a number out of range: want 1E-130 to 9.9E+125")
	}
	// Two digits take a byte, counted apart before and after the point.
	if size = 1 + (n+1)/2; 0 < point && point < n {
		size = 1 + (point+1)/2 + (n-point+1)/2
	}
	if neg {
		size++
		dst = append(dst, '-')
	}
	switch {
	case point <= 0:
		dst = append(dst, '0', '.')
		dst = append(dst, bytes.Repeat([]byte{'0'}, -point)...)
		dst = append(dst, digits...)
	case point >= n:
		dst = append(dst, digits...)
		dst = append(dst, bytes.Repeat([]byte{'0'}, point-n)...)
	default:
		dst = append(dst, digits[:point]...)
		dst = append(dst, '.')
		dst = append(dst, digits[point:]...)
	}
	return dst, size, nil
}

func cutDigits(s []byte) (digits, rest []byte) {
	n := 0
	for n < len(s) && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	return s[:n], s[n:]
}

// exponent reads `e+12`, kept within ±100,000: what lies beyond is out of range whatever the digits.
func exponent(s []byte) (int, error) {
	if s[0]|0x20 != 'e' {
		return 0, errBadNumber
	}
	s = s[1:]
	neg := len(s) > 0 && s[0] == '-'
	if neg || (len(s) > 0 && s[0] == '+') {
		s = s[1:]
	}
	digits, rest := cutDigits(s)
	if len(digits) == 0 || len(rest) > 0 {
		return 0, errBadNumber
	}
	n := 0
	for _, d := range digits {
		n = min(n*10+int(d-'0'), 1_000_000)
	}
	if neg {
		n = -n
	}
	return n, nil
}
