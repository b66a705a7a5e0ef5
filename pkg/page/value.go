package page

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// Kind is what a value is.
type Kind uint8

// The kinds of values.
const (
	Missing Kind = iota
	Null
	Bool
	Number
	String
	Array
	Object
)

// String is the kind's name, for messages.
func (k Kind) String() string {
	switch k {
	case Null:
		return "null"
	case Bool:
		return "boolean"
	case Number:
		return "number"
	case String:
		return "string"
	case Array:
		return "array"
	case Object:
		return "object"
	}
	return "missing"
}

// Value is a piece of JSON text as it arrived.
type Value struct {
	Raw   []byte // aliases the input; a string has its quotes; nil when missing
	Kind  Kind
	Plain bool // from [Fields]: a string without escapes, which stands for the very text between its quotes
}

// kindOf tells the kind of a valid value by its first byte.
func kindOf(first byte) Kind {
	switch first {
	case '{':
		return Object
	case '[':
		return Array
	case '"':
		return String
	case 't', 'f':
		return Bool
	case 'n':
		return Null
	}
	return Number
}

// Text is the string that a value of kind [String] stands for. A half surrogate pair and bytes that are not UTF-8 are
// errors: replaced characters would make two different strings the same.
func (v Value) Text() (string, error) {
	var buf [128]byte // keeps short strings to one allocation
	b, err := v.AppendText(buf[:0])
	if err != nil {
		return "", err
	}
	return string(b), nil
}

// AppendText is [Value.Text] into a buffer. On an error dst comes back as it was.
func (v Value) AppendText(dst []byte) ([]byte, error) {
	if v.Kind != String || len(v.Raw) < 2 {
		return dst, fmt.Errorf("want a string, not %s", v.Kind)
	}
	raw := v.Raw[1 : len(v.Raw)-1]
	if !utf8.Valid(raw) {
		return dst, errors.New("the string is not UTF-8")
	}
	if bytes.IndexByte(raw, '\\') < 0 {
		return append(dst, raw...), nil
	}
	b, whole, err := appendUnescaped(dst, raw)
	switch {
	case err != nil:
		return dst, err
	case !whole:
		return dst, errors.New("the string holds half a surrogate pair (a \\u escape without its other half)")
	}
	return b, nil
}

// appendUnescaped appends what raw, the text between the quotes, stands for. Half a surrogate pair is appended in the
// three bytes it would have, which are not UTF-8, and makes whole false.
func appendUnescaped(dst, raw []byte) (b []byte, whole bool, err error) {
	whole = true
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...), whole, nil
		}
		dst = append(dst, raw[:i]...)
		raw = raw[i:]
		if len(raw) < 2 {
			return dst, false, errors.New("the string ends in a backslash")
		}
		if raw[1] != 'u' {
			c := unescape(raw[1])
			if c == 0 {
				return dst, false, errors.New("the string holds an unknown escape")
			}
			dst, raw = append(dst, c), raw[2:]
			continue
		}
		r, ok := hex4(raw)
		if !ok {
			return dst, false, errors.New("the string holds a \\u escape without four hexadecimal digits")
		}
		raw = raw[6:]
		if !utf16.IsSurrogate(r) {
			dst = utf8.AppendRune(dst, r)
			continue
		}
		if low, ok := hex4(raw); ok {
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				dst, raw = utf8.AppendRune(dst, pair), raw[6:]
				continue
			}
		}
		whole = false
		dst = append(dst, 0xe0|byte(r>>12), 0x80|byte(r>>6)&0x3f, 0x80|byte(r)&0x3f)
	}
}

// unescape is the character of a one-letter escape, 0 if there is none.
func unescape(c byte) byte {
	switch c {
	case '"', '\\', '/':
		return c
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return 0
}

// hex4 reads the \uXXXX that b begins with.
func hex4(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range b[2:6] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
