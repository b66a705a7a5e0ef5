package contract

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"github.com/onceload/onceload/pkg/etl"
)

// The range of DynamoDB's numbers: exponents of the first digit.
const (
	minExponent = -130
	maxExponent = 125
)

// maxWritten stops a written exponent from growing past what an int adds up safely; a number near it is far out of range.
const maxWritten = 1 << 30

// number is a decimal number taken apart: ±0.d₁d₂… × 10^exp. digits has no zero at either end; none at all is zero.
type number struct {
	neg    bool
	digits []byte
	exp    int
}

// parseNumber takes a JSON number apart, its digits into buf, which is returned grown. It reports false if lit is none.
func parseNumber(lit, buf []byte) (n number, grown []byte, ok bool) {
	buf = buf[:0]
	i := 0
	if i < len(lit) && lit[i] == '-' {
		n.neg = true
		i++
	}
	start := i
	for ; i < len(lit) && lit[i]-'0' <= 9; i++ {
		if len(buf) > 0 || lit[i] != '0' {
			buf = append(buf, lit[i])
		}
	}
	n.exp = len(buf)
	if i == start || lit[start] == '0' && i > start+1 {
		return n, buf, false
	}
	if i < len(lit) && lit[i] == '.' {
		start = i + 1
		for i = start; i < len(lit) && lit[i]-'0' <= 9; i++ {
			switch {
			case len(buf) > 0 || lit[i] != '0':
				buf = append(buf, lit[i])
			default:
				n.exp--
			}
		}
		if i == start {
			return n, buf, false
		}
	}
	if i < len(lit) && lit[i]|0x20 == 'e' {
		i++
		neg := i < len(lit) && lit[i] == '-'
		if neg || i < len(lit) && lit[i] == '+' {
			i++
		}
		start = i
		written := 0
		for ; i < len(lit) && lit[i]-'0' <= 9; i++ {
			written = min(written*10+int(lit[i]-'0'), maxWritten)
		}
		if i == start {
			return n, buf, false
		}
		if neg {
			written = -written
		}
		n.exp += written
	}
	end := len(buf)
	for end > 0 && buf[end-1] == '0' {
		end--
	}
	if n.digits = buf[:end]; end == 0 {
		n.neg, n.exp = false, 0
	}
	return n, buf, i == len(lit)
}

// isCanonical reports whether lit is a number in canonical form, of at most 38 characters and so within all bounds. Other
// texts may be numbers too.
func isCanonical(lit []byte, integer bool) bool {
	if len(lit) == 0 || len(lit) > etl.MaxDigits {
		return false
	}
	i := 0
	if lit[0] == '-' {
		i++
	}
	start := i
	for i < len(lit) && lit[i]-'0' <= 9 {
		i++
	}
	if i == start || lit[start] == '0' && (i > start+1 || i == len(lit) && start > 0) {
		return false
	}
	if i == len(lit) {
		return true
	}
	if integer || lit[i] != '.' || i+1 == len(lit) || lit[len(lit)-1] == '0' {
		return false
	}
	for _, c := range lit[i+1:] {
		if c-'0' > 9 {
			return false
		}
	}
	return true
}

// separators says how texts write numbers; the zero value is as JSON does.
type separators struct {
	comma     bool // for the decimal point
	thousands byte // '.', ',', ' ' or '\''; 0 = none
}

func compileSeparators(comma bool, thousands string) (separators, error) {
	s := separators{comma: comma}
	switch thousands {
	case "":
	case "point":
		s.thousands = '.'
	case "comma":
		s.thousands = ','
	case "apostrophe":
		s.thousands = '\''
	case "space":
		s.thousands = ' '
	default:
		return s, fmt.Errorf("thousands: %q: want point, comma, apostrophe or space", thousands)
	}
	if s.thousands == '.' && !comma || s.thousands == ',' && comma {
		return s, fmt.Errorf("thousands: the %s is the decimal sign as well; decimal_comma says which it is", thousands)
	}
	return s, nil
}

// plain appends the number as JSON writes it. It reports false if a separator stands where none may: thousands are in
// groups of three digits, all of them or none. What else is wrong with a number is left to parseNumber.
func (s separators) plain(dst, text []byte) ([]byte, bool) {
	i := 0
	if i < len(text) && text[i] == '-' {
		dst = append(dst, '-')
		i++
	}
	groups, n := 0, 0 // n digits in the group under way
	for i < len(text) {
		if text[i]-'0' <= 9 {
			dst = append(dst, text[i])
			n++
			i++
			continue
		}
		width := s.separator(text[i:])
		if width == 0 {
			break
		}
		if n == 0 || n > 3 || groups > 0 && n < 3 {
			return dst, false
		}
		groups, n, i = groups+1, 0, i+width
	}
	point := byte('.')
	if s.comma {
		point = ','
	}
	switch {
	case groups > 0 && n != 3:
		return dst, false
	case i == len(text):
		return dst, true
	case text[i] == point:
		return append(append(dst, '.'), text[i+1:]...), true
	case text[i]|0x20 == 'e':
		return append(dst, text[i:]...), true
	}
	return dst, false
}

// separator is the length of the thousands separator that text begins with, 0 if it begins with none. The no-break spaces
// that French number formats write are spaces too, the typographic apostrophe of Swiss ones is an apostrophe.
func (s separators) separator(text []byte) int {
	switch {
	case s.thousands == 0:
		return 0
	case text[0] == s.thousands:
		return 1
	case s.thousands == ' ' && (bytes.HasPrefix(text, []byte("\u00a0")) || bytes.HasPrefix(text, []byte("\u202f"))),
		s.thousands == '\'' && bytes.HasPrefix(text, []byte("\u2019")):
		_, n := utf8.DecodeRune(text)
		return n
	}
	return 0
}

// integer reports whether the number has no fraction.
func (n number) integer() bool { return len(n.digits) <= max(n.exp, 0) }

// plain reports whether append writes at most as many zeros as a number in DynamoDB's range can need: a few bytes of
// exponent cannot ask for gigabytes.
func (n number) plain() bool { return n.exp >= minExponent && n.exp-len(n.digits) <= maxExponent }

// check says why DynamoDB would refuse the number.
func (n number) check() fault {
	switch {
	case len(n.digits) == 0:
	case n.exp-1 > maxExponent || n.exp-1 < minExponent:
		return fault{CodeNumberOutOfRange, "want a magnitude from 1E-130 to 9.99E+125"}
	case len(n.digits) > etl.MaxDigits:
		return fault{CodeNumberTooLong, "want at most 38 digits"}
	}
	return fault{}
}

// checkInteger is check for whole numbers of at most 38 digits.
func (n number) checkInteger() fault {
	switch {
	case !n.integer():
		return fault{CodeNotInteger, "want a whole number"}
	case n.exp-1 > maxExponent:
		return fault{CodeNumberOutOfRange, "want a magnitude from 1E-130 to 9.99E+125"}
	case n.exp > etl.MaxDigits:
		return fault{CodeNumberTooLong, "want at most 38 digits"}
	}
	return fault{}
}

// append writes the number without exponent and superfluous zeros.
func (n number) append(dst []byte) []byte {
	if len(n.digits) == 0 {
		return append(dst, '0')
	}
	if n.neg {
		dst = append(dst, '-')
	}
	switch {
	case n.exp <= 0:
		dst = append(dst, '0', '.')
		dst = appendZeros(dst, -n.exp)
		return append(dst, n.digits...)
	case n.exp >= len(n.digits):
		dst = append(dst, n.digits...)
		return appendZeros(dst, n.exp-len(n.digits))
	}
	dst = append(dst, n.digits[:n.exp]...)
	dst = append(dst, '.')
	return append(dst, n.digits[n.exp:]...)
}

func appendZeros(dst []byte, n int) []byte {
	for range n {
		dst = append(dst, '0')
	}
	return dst
}

// compareNumbers compares two numbers in canonical form.
func compareNumbers(a, b []byte) int {
	negA, negB := a[0] == '-', b[0] == '-'
	switch {
	case negA && negB:
		a, b = b[1:], a[1:]
	case negA:
		return -1
	case negB:
		return 1
	}
	if c := wholeLen(a) - wholeLen(b); c != 0 {
		return c
	}
	// Of the same length before the point: it comes before every digit, and no fraction ends in a zero.
	return bytes.Compare(a, b)
}

// wholeLen is the length of a canonical number up to its point.
func wholeLen(lit []byte) int {
	for i, c := range lit {
		if c == '.' {
			return i
		}
	}
	return len(lit)
}
