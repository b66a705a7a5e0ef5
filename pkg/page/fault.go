package page

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// The codes of a [Fault]. The first four are faults of the text; the others mean that the text is good JSON of another
// shape than the layout says.
const (
	CodeSyntax    = "syntax"    // not JSON
	CodeUTF8      = "utf8"      // a string holds bytes that are not UTF-8
	CodeDepth     = "depth"     // nested deeper than MaxDepth
	CodeCharset   = "charset"   // UTF-16 or UTF-32
	CodeMissing   = "missing"   // nothing stands at the records path
	CodeNull      = "null"      // null stands at the records path or on the way to it
	CodeNotArray  = "not_array" // something else than an array stands where an array is wanted
	CodeNotObject = "not_object"
	CodeDuplicate = "duplicate" // a name of the records path stands twice: which records are meant is anyone's guess
	CodeSurrogate = "surrogate" // a name holds half a surrogate pair
	CodeMembers   = "members"   // a record has more undeclared members than MaxBeyond
)

// Fault says what is wrong with a text and where.
type Fault struct {
	Code   string // one of the Code constants
	Offset int    // bytes before the fault, a byte order mark included
	Line   int    // from 1
	Column int    // from 1, in characters
	Msg    string // what was found and what was wanted; holds nothing of the text but one character
}

// Error is the message with its place.
func (f *Fault) Error() string {
	return fmt.Sprintf("line %d, column %d (offset %d): %s", f.Line, f.Column, f.Offset, f.Msg)
}

// Malformed reports whether the text is no good JSON, rather than good JSON of another shape than wanted.
func (f *Fault) Malformed() bool {
	switch f.Code {
	case CodeSyntax, CodeUTF8, CodeDepth, CodeCharset:
		return true
	}
	return false
}

// within is the fault of a text as that of a piece of it.
func (f *Fault) within(text []byte, from, to int) *Fault {
	return newFault(f.Code, text[from:to], min(f.Offset, to)-from, f.Msg)
}

// newFault finds the line and column of an offset.
func newFault(code string, data []byte, at int, msg string) *Fault {
	before := bytes.TrimPrefix(data[:min(at, len(data))], []byte(bom))
	line := 1 + bytes.Count(before, []byte{'\n'})
	return &Fault{
		Code: code, Offset: at, Line: line,
		Column: 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]),
		Msg:    msg,
	}
}
