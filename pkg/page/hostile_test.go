package page_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/onceload/onceload/pkg/page"
)

// fault is the fault of the text, nil if it is good JSON whatever its shape.
func fault(body []byte) *page.Fault {
	_, err := page.Layout{}.Records(body, nil)
	var f *page.Fault
	if errors.As(err, &f) && f.Malformed() {
		return f
	}
	return nil
}

// oracle is what encoding/json and utf8 say about a text.
func oracle(body string) bool { return json.Valid([]byte(body)) && utf8.ValidString(body) }

// TestHostile holds the scanner against texts that readers of JSON are known to disagree about. Each is tried alone, in an
// array, as a member, and at every distance from a word boundary of the string scanner.
func TestHostile(t *testing.T) {
	nest := func(open, middle, shut string, n int) string {
		return strings.Repeat(open, n) + middle + strings.Repeat(shut, n)
	}
	good := map[string]string{
		"zero":                       `0`,
		"minus zero":                 `-0`,
		"minus zero with a fraction": `-0.0`,
		"fraction":                   `0.1`,
		"long integer":               strings.Repeat("9", 400),
		"long fraction":              "0." + strings.Repeat("0", 400) + "1",
		"exponent":                   `1e5`,
		"capital exponent":           `1E5`,
		"exponent with plus":         `1e+5`,
		"exponent with minus":        `1e-5`,
		"exponent with zeros":        `1e00005`,
		"exponent of zero":           `0e0`,
		"exponent beyond float64":    `1e999999`,
		"fraction and exponent":      `-12.50E-03`,
		"empty string":               `""`,
		"all short escapes":          `"\"\\\/\b\f\n\r\t"`,
		"escaped letter":             `"\u0041"`,
		"mixed hex case":             `"\uAbCd"`,
		"escaped NUL":                `"\u0000"`,
		"escaped pair":               `"\ud83d\ude00"`,
		"lone high surrogate":        `"\ud800"`,
		"lone low surrogate":         `"\udc00"`,
		"surrogates swapped":         `"\udc00\ud800"`,
		"high surrogate twice":       `"\ud800\ud800"`,
		"backslash then u":           `"\\u0041"`,
		"backslash then quote":       `"\\\""`,
		"slash unescaped":            `"a/b"`,
		"DEL unescaped":              "\"\x7f\"",
		"two bytes":                  `"ñ"`,
		"three bytes":                `"€"`,
		"four bytes":                 `"😀"`,
		"lowest two bytes":           "\"\u0080\"",
		"lowest three bytes":         "\"\u0800\"",
		"lowest four bytes":          "\"\U00010000\"",
		"highest":                    "\"\U0010ffff\"",
		"before the surrogates":      "\"\ud7ff\"",
		"after the surrogates":       "\"\ue000\"",
		"noncharacter":               "\"\uffff\"",
		"mark inside a string":       "\"\ufeff\"",
		"line separator unescaped":   "\"\u2028\u2029\"",
		"replacement character":      "\"\ufffd\"",
		"true":                       `true`,
		"false":                      `false`,
		"null":                       `null`,
		"empty array":                `[]`,
		"empty object":               `{}`,
		"arrays in an array":         `[[],[[]],[]]`,
		"all white space":            " \t\r\n[ \t\r\n1 \t\r\n, \t\r\n2 \t\r\n] \t\r\n",
		"white space in an object":   " { \n\"a\" \t: \r1 , \"b\":\n{ } } ",
		"empty name":                 `{"":0}`,
		"name twice":                 `{"a":1,"a":2}`,
		"name with NUL":              `{"\u0000":1}`,
		"name with half a pair":      `{"\udead":1}`,
		"every kind":                 `[null,true,false,0,"",[],{}]`,
		"close brackets in strings":  `["]","}",{"]":"}"}]`,
		"997 arrays":                 nest("[", "", "]", 997),
		"997 objects":                nest(`{"a":`, "1", "}", 997),
		"arrays and objects":         nest(`[{"a":`, "[]", "}]", 498),
	}
	bad := map[string]string{
		"nothing":                       ``,
		"white space alone":             "\n ",
		"no-break space":                "\u00a0[]",
		"form feed":                     "\f[]",
		"vertical tab":                  "[\v]",
		"word joiner":                   "[\u2060]",
		"mark twice":                    "\ufeff\ufeff[]",
		"mark inside":                   "[\ufeff]",
		"NUL after":                     "[]\x00",
		"plus":                          `+1`,
		"leading zero":                  `01`,
		"minus leading zero":            `-01`,
		"two zeros":                     `00`,
		"no integer part":               `.5`,
		"minus no integer part":         `-.5`,
		"no fraction":                   `1.`,
		"no fraction before exponent":   `1.e1`,
		"minus alone":                   `-`,
		"minus minus":                   `--1`,
		"no exponent":                   `1e`,
		"sign alone in the exponent":    `1e+`,
		"fraction in the exponent":      `1e1.5`,
		"two exponents":                 `1e1e1`,
		"two points":                    `1.2.3`,
		"hexadecimal":                   `0x1F`,
		"digit separator":               `1_000`,
		"wide digit":                    `１`,
		"NaN":                           `NaN`,
		"Infinity":                      `Infinity`,
		"minus Infinity":                `-Infinity`,
		"number then letter":            `1a`,
		"half a word":                   `tru`,
		"word and more":                 `trueish`,
		"capital word":                  `True`,
		"nul":                           `nul`,
		"nulL":                          `nulL`,
		"undefined":                     `undefined`,
		"bare word":                     `abc`,
		"single quotes":                 `'a'`,
		"curly quotes":                  `“a”`,
		"no end quote":                  `"abc`,
		"end quote escaped":             `"abc\"`,
		"start quote alone":             `"`,
		"backslash alone":               `"\`,
		"unknown escape":                `"\a"`,
		"escaped single quote":          `"\'"`,
		"octal escape":                  `"\012"`,
		"hex escape":                    `"\x41"`,
		"capital U":                     `"\U0041"`,
		"escaped newline":               "\"\\\n\"",
		"escaped non-ASCII":             `"\é"`,
		"three hex digits":              `"\u004"`,
		"no hex digits":                 `"\u"`,
		"letter past f":                 `"\u00fg"`,
		"hex digits cut off":            `"\u00`,
		"sign in hex digits":            `"\u+041"`,
		"backtick in hex digits":        "\"\\u004`\"",
		"second half cut off":           `"\ud83d\ude0"`,
		"newline in a string":           "\"a\nb\"",
		"tab in a string":               "\"a\tb\"",
		"NUL in a string":               "\"a\x00b\"",
		"unit separator in a string":    "\"\x1f\"",
		"tail byte alone":               "\"\x80\"",
		"two bytes cut off":             "\"\xc3\"",
		"three bytes cut off":           "\"\xe2\x82\"",
		"four bytes cut off":            "\"\xf0\x9f\x98\"",
		"slash too long in two":         "\"\xc0\xaf\"",
		"lowest lead too low":           "\"\xc1\xbf\"",
		"too long in three":             "\"\xe0\x9f\xbf\"",
		"too long in four":              "\"\xf0\x8f\xbf\xbf\"",
		"surrogate in bytes":            "\"\xed\xa0\x80\"",
		"last surrogate in bytes":       "\"\xed\xbf\xbf\"",
		"above the highest":             "\"\xf4\x90\x80\x80\"",
		"lead too high":                 "\"\xf5\x80\x80\x80\"",
		"byte FE":                       "\"\xfe\"",
		"byte FF":                       "\"\xff\"",
		"Latin-1":                       "\"caf\xe9\"",
		"bad tail, third byte":          "\"\xe2\x82\x28\"",
		"bad tail, fourth byte":         "\"\xf0\x9f\x98\x28\"",
		"bad bytes between values":      "[1,\xff2]",
		"array not closed":              `[1,2`,
		"array not opened":              `1]`,
		"object not closed":             `{"a":1`,
		"object cut after a name":       `{"a"`,
		"object cut after a colon":      `{"a":`,
		"object cut after a comma":      `{"a":1,`,
		"array closed by a brace":       `[1}`,
		"object closed by a bracket":    `{"a":1]`,
		"inner close of the wrong kind": `[{"a":[1}]}`,
		"comma at the end, array":       `[1,]`,
		"comma at the end, object":      `{"a":1,}`,
		"comma at the start, array":     `[,1]`,
		"comma at the start, object":    `{,"a":1}`,
		"two commas":                    `[1,,2]`,
		"comma alone":                   `[,]`,
		"no comma, array":               `[1 2]`,
		"no comma, strings":             `["a""b"]`,
		"no comma, object":              `{"a":1 "b":2}`,
		"colon in an array":             `["a":1]`,
		"comma for colon":               `{"a",1}`,
		"no colon":                      `{"a" 1}`,
		"two colons":                    `{"a"::1}`,
		"no value":                      `{"a":}`,
		"no name":                       `{:1}`,
		"value alone in an object":      `{1}`,
		"name without quotes":           `{a:1}`,
		"number for a name":             `{1:1}`,
		"null for a name":               `{null:1}`,
		"name of bad bytes":             "{\"\xff\":1}",
		"two documents":                 `{}{}`,
		"two documents, white space":    `1 2`,
		"bracket too many":              `[]]`,
		"brace too many":                `{}}`,
		"block comment":                 `[1/**/]`,
		"line comment":                  "[1]//x",
		"hash comment":                  "[1]#x",
		"semicolon":                     `[1;2]`,
		"ellipsis":                      `[1,...]`,
		"call":                          `callback({})`,
		"guard prefix":                  ")]}',\n[]",
		"HTML":                          `<!doctype html><p>busy</p>`,
		"999 arrays not closed":         strings.Repeat("[", 999),
		"objects never closed":          strings.Repeat(`[{"a":`, 400),
	}
	check := func(t *testing.T, body string, want bool) {
		t.Helper()
		if f := fault([]byte(body)); (f == nil) != want {
			t.Errorf("%.80q: fault %v, want good = %v", body, f, want)
		}
		if oracle(body) != want {
			t.Errorf("%.80q: the table itself is wrong", body)
		}
	}
	for name, body := range good {
		t.Run("good/"+name, func(t *testing.T) {
			check(t, body, true)
			check(t, "["+body+"]", true)
			check(t, `{"a":`+body+`,"b":[`+body+`,`+body+`]}`, true)
			for pad := range 9 {
				check(t, `["`+strings.Repeat("x", pad)+`",`+body+`,1]`, true)
			}
		})
	}
	for name, body := range bad {
		t.Run("bad/"+name, func(t *testing.T) {
			check(t, body, false)
			for pad := range 9 {
				check(t, `["`+strings.Repeat("x", pad)+`",{"a":`+body, false)
			}
		})
	}
}

// TestHostileBytes puts every byte at every place of short and long strings: the fast path must not miss one.
func TestHostileBytes(t *testing.T) {
	for _, length := range []int{1, 7, 8, 9, 16, 23} {
		for at := range length {
			for c := range 256 {
				text := []byte(strings.Repeat("x", length))
				text[at] = byte(c)
				body := `["` + string(text) + `","after"]`
				if f := fault([]byte(body)); (f == nil) != oracle(body) {
					t.Fatalf("%q: fault %v, want good = %v", body, f, oracle(body))
				}
			}
		}
	}
}

// TestHostileCut cuts a page at every byte: no part of it may pass.
func TestHostileCut(t *testing.T) {
	body := orders(3)
	for n := range body {
		if fault(body[:n]) == nil {
			t.Errorf("the page cut to %d of %d bytes passes: %.60q", n, len(body), body[max(0, n-60):n])
		}
	}
	if f := fault(body); f != nil {
		t.Error(f)
	}
}

// TestDepth reaches the limit from each way of opening an array or object.
func TestDepth(t *testing.T) {
	nest := func(open, shut string, n int) string { return strings.Repeat(open, n) + strings.Repeat(shut, n) }
	tests := []struct {
		name, path, before, after string
		open, shut                string
		rest                      int // levels left for open
	}{
		{name: "arrays", open: "[", shut: "]", rest: page.MaxDepth},
		{name: "objects", before: `{"a":`, after: "}", open: `{"a":`, shut: "}", rest: page.MaxDepth - 1},
		{name: "behind the path", path: "a[0]", before: `{"a":[`, after: `]}`, open: "[", shut: "]", rest: page.MaxDepth - 2},
		{name: "behind the records", path: "a.b[0]", before: `{"a":{"b":[[1],[]]},"x":`, after: "}", open: "[", shut: "]", rest: page.MaxDepth - 1},
		{name: "beside the path", path: "data", before: `{"x":`, after: `,"data":[]}`, open: "[", shut: "]", rest: page.MaxDepth - 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for extra, want := range map[int]string{0: "", 1: page.CodeDepth} {
				middle := nest(tt.open, tt.shut, tt.rest+extra)
				if tt.open != "[" {
					middle = strings.Repeat(tt.open, tt.rest+extra) + "1" + strings.Repeat(tt.shut, tt.rest+extra)
				}
				_, err := page.Layout{Path: path(t, tt.path)}.Records([]byte(tt.before+middle+tt.after), nil)
				var f *page.Fault
				got := ""
				if errors.As(err, &f) && f.Malformed() {
					got = f.Code
				}
				if got != want {
					t.Errorf("%d levels over: %v, want code %q", extra, err, want)
				}
			}
		})
	}
}
