package contract

import (
	"bytes"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// cleaner rewrites a text; the result may alias src or be appended to dst[:0].
type cleaner func(dst, src []byte) []byte

// cleaners returns the functions of `clean` by name.
func cleaners() map[string]cleaner {
	return map[string]cleaner{
		"trim":     func(_, src []byte) []byte { return bytes.TrimSpace(src) },
		"lower":    func(dst, src []byte) []byte { return appendMapped(dst, src, unicode.ToLower) },
		"upper":    func(dst, src []byte) []byte { return appendMapped(dst, src, unicode.ToUpper) },
		"collapse": appendCollapsed,
		"nfc": func(dst, src []byte) []byte {
			if norm.NFC.IsNormal(src) {
				return src
			}
			return norm.NFC.Append(dst, src...)
		},
	}
}

func appendMapped(dst, src []byte, to func(rune) rune) []byte {
	for i := 0; i < len(src); {
		if c := src[i]; c < utf8.RuneSelf {
			dst = append(dst, byte(to(rune(c))))
			i++
			continue
		}
		r, n := utf8.DecodeRune(src[i:])
		dst = utf8.AppendRune(dst, to(r))
		i += n
	}
	return dst
}

// appendCollapsed makes each run of white space one space.
func appendCollapsed(dst, src []byte) []byte {
	space := false
	for i := 0; i < len(src); {
		r, n := utf8.DecodeRune(src[i:])
		switch {
		case !unicode.IsSpace(r):
			dst = append(dst, src[i:i+n]...)
			space = false
		case !space:
			dst = append(dst, ' ')
			space = true
		}
		i += n
	}
	return dst
}

// appendQuoted writes text, which is valid UTF-8, as a canonical JSON string: only what must be escaped is.
func appendQuoted(dst, text []byte) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i, c := range text {
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, text[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	dst = append(dst, text[start:]...)
	return append(dst, '"')
}

// parseBoolean reads the accepted spellings, in any case of ASCII.
func parseBoolean(text []byte) (value, ok bool) {
	var word [5]byte
	if len(text) > len(word) {
		return false, false
	}
	for i, c := range text {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		word[i] = c
	}
	switch string(word[:len(text)]) {
	case "true", "t", "yes", "y", "on", "1":
		return true, true
	case "false", "f", "no", "n", "off", "0":
		return false, true
	}
	return false, false
}

// appendKeyPart writes a key part as etl.JoinKey does.
func appendKeyPart(dst, part []byte) []byte {
	for _, c := range part {
		switch c {
		case '%':
			dst = append(dst, "%25"...)
		case '#':
			dst = append(dst, "%23"...)
		default:
			dst = append(dst, c)
		}
	}
	return dst
}
