package contract

import (
	"bytes"

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
	a, negA := bytes.CutPrefix(a, []byte{'-'})
	b, negB := bytes.CutPrefix(b, []byte{'-'})
	switch {
	case negA && negB:
		a, b = b, a
	case negA:
		return -1
	case negB:
		return 1
	}
	wholeA, fracA, _ := bytes.Cut(a, []byte{'.'})
	wholeB, fracB, _ := bytes.Cut(b, []byte{'.'})
	if len(wholeA) != len(wholeB) {
		return len(wholeA) - len(wholeB)
	}
	if c := bytes.Compare(wholeA, wholeB); c != 0 {
		return c
	}
	return bytes.Compare(fracA, fracB)
}
