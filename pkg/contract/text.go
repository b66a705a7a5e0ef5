package contract

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// cleaner appends the rewritten text to dst; nil stands for trim, which needs no copy.
type cleaner func(dst, src []byte) []byte

// cleaners returns the functions of `clean` by name.
func cleaners() map[string]cleaner {
	return map[string]cleaner{
		"trim":     nil,
		"lower":    func(dst, src []byte) []byte { return appendMapped(dst, src, 'A', unicode.ToLower) },
		"upper":    func(dst, src []byte) []byte { return appendMapped(dst, src, 'a', unicode.ToUpper) },
		"collapse": appendCollapsed,
		"nfc":      func(dst, src []byte) []byte { return norm.NFC.Append(dst, src...) },
	}
}

// appendMapped changes the case; of ASCII the 26 letters from first on have another.
func appendMapped(dst, src []byte, first byte, to func(rune) rune) []byte {
	start := len(dst)
	dst = append(dst, src...)
	for i, c := range dst[start:] {
		if c >= utf8.RuneSelf {
			return appendMappedRunes(dst[:start+i], src[i:], to)
		}
		if c-first < 26 {
			dst[start+i] = c ^ 0x20
		}
	}
	return dst
}

func appendMappedRunes(dst, src []byte, to func(rune) rune) []byte {
	for len(src) > 0 {
		r, n := utf8.DecodeRune(src)
		dst = utf8.AppendRune(dst, to(r))
		src = src[n:]
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
	for {
		n := plainLen(text)
		dst = append(dst, text[:n]...)
		if n == len(text) {
			return append(dst, '"')
		}
		c := text[n]
		text = text[n+1:]
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
}

// plainLen is the length of the text up to its first control character, quote or backslash.
func plainLen(text []byte) int {
	const (
		ones   = 0x0101010101010101
		highs  = 0x8080808080808080
		spaces = ' ' * ones
		quotes = '"' * ones
		slants = '\\' * ones
	)
	i := 0
	// Eight bytes at a time: the lowest high bit that is set belongs to the first such byte.
	for ; i+8 <= len(text); i += 8 {
		w := binary.LittleEndian.Uint64(text[i:])
		q, s := w^quotes, w^slants
		if hit := ((w-spaces)&^w | (q-ones)&^q | (s-ones)&^s) & highs; hit != 0 {
			return i + bits.TrailingZeros64(hit)/8
		}
	}
	for i < len(text) && text[i] >= ' ' && text[i] != '"' && text[i] != '\\' {
		i++
	}
	return i
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
	if bytes.IndexByte(part, '%') < 0 && bytes.IndexByte(part, '#') < 0 {
		return append(dst, part...)
	}
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
