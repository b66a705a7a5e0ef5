package contract

import (
	"bytes"
	"encoding/json"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/page"
	"github.com/onceload/onceload/pkg/store"
)

// ParseLine reads a valid line back: its key, its rank, and as Doc the line without those. The item holds nothing of
// line. A line that is not one of ours is an error of kind RecordsLost.
func ParseLine(line []byte) (store.Item, error) {
	var item store.Item
	fail := func(at int, want string) (store.Item, error) {
		return store.Item{}, etl.Errorf(etl.RecordsLost, "valid line, byte %d: want %s", at, want)
	}
	if v, err := page.Find(line, page.Path{}); err != nil || v.Kind != page.Object || len(v.Raw) != len(line) {
		return fail(0, "one JSON object and nothing else")
	}
	doc := make([]byte, 1, len(line))
	doc[0] = '{'
	for i := 1; line[i] != '}'; {
		if line[i] == ',' {
			i++
		}
		if line[i] != '"' {
			return fail(i, "a name in canonical form")
		}
		nameEnd, _ := skipString(line, i)
		name := line[i:nameEnd]
		at := i + len(name) + 1
		if line[at-1] != ':' {
			return fail(at-1, "a colon")
		}
		end := skipValue(line, at)
		if into := place(name, &item.Key, &item.Rank); into == nil {
			if len(doc) > 1 {
				doc = append(doc, ',')
			}
			doc = append(doc, line[i:end]...)
		} else if err := unquote(line[at:end], into); err != nil {
			return fail(at, "a string")
		}
		i = end
	}
	if item.PK == "" || item.Rank == "" {
		return fail(0, "_pk and _rank")
	}
	item.Doc = append(doc, '}')
	return item, nil
}

// ParseRank reads no more of a valid line than its key and its rank, which stand near its beginning: most lines that are
// loaded again need nothing else. What follows is not looked at; [ParseLine] does. A line where they do not stand is an
// error of kind RecordsLost.
func ParseRank(line []byte) (key store.Key, rank string, err error) {
	fail := func(at int, want string) (store.Key, string, error) {
		return store.Key{}, "", etl.Errorf(etl.RecordsLost, "valid line, byte %d: want %s", at, want)
	}
	if len(line) == 0 || line[0] != '{' {
		return fail(0, "an object")
	}
	// Names are sorted, and only ours begin with _: none of them follows one that is higher.
	for i := 0; ; {
		name := i + 1 // behind the opening brace, or the comma
		at := stringEnd(line, name) + 1
		if at == 0 || line[name+1] > '_' {
			break
		}
		end := valueEnd(line, at)
		if end < 0 || line[at-1] != ':' {
			return fail(i, "a member")
		}
		if into := place(line[name:at-1], &key, &rank); into != nil {
			if err := unquote(line[at:end], into); err != nil {
				return fail(at, "a string")
			}
		}
		i = end
	}
	if key.PK == "" || rank == "" {
		return fail(0, "_pk and _rank")
	}
	return key, rank, nil
}

// place is where the value of a quoted name of ours goes that is no part of Doc; nil for all other names.
func place(name []byte, key *store.Key, rank *string) *string {
	switch string(name) {
	case `"_pk"`:
		return &key.PK
	case `"_sk"`:
		return &key.SK
	case `"_rank"`:
		return rank
	}
	return nil
}

// unquote reads a string of canonical JSON.
func unquote(raw []byte, into *string) error {
	if len(raw) > 1 && raw[0] == '"' && bytes.IndexByte(raw, '\\') < 0 {
		*into = string(raw[1 : len(raw)-1])
		return nil
	}
	return json.Unmarshal(raw, into)
}

// stringEnd returns the offset behind the string at i of any text, and −1 where none is.
func stringEnd(b []byte, i int) int {
	if i < 0 || i >= len(b) || b[i] != '"' {
		return -1
	}
	for i++; i < len(b); i += 2 { // a backslash and what it stands before
		if i += plainLen(b[i:]); i < len(b) && b[i] == '"' {
			return i + 1
		}
	}
	return -1
}

// valueEnd returns the offset behind the value at i of any text, and −1 where none ends.
func valueEnd(b []byte, i int) int {
	for depth := 0; i >= 0 && i < len(b); {
		switch b[i] {
		case '"':
			i = stringEnd(b, i)
			continue
		case '{', '[':
			depth++
		case '}', ']', ',':
			if depth == 0 {
				return i
			}
			if b[i] != ',' {
				depth--
			}
		}
		i++
	}
	return -1
}

// itemSize is the size of a canonical line as an item by DynamoDB's rules: names and strings in UTF-8 bytes; a number one
// byte and one for every two of its significant digits (aligned at the point), and one if negative; true, false and null
// one; a list or map three, and one more for each element.
func itemSize(line []byte) int {
	size, _ := valueSize(line, 0)
	return size - 3 - countMembers(line) // the item itself is no map
}

// countMembers counts the members of the object that line is.
func countMembers(line []byte) (n int) {
	for i := 1; line[i] != '}'; n++ {
		if line[i] == ',' {
			i++
		}
		end, _ := skipString(line, i)
		i = skipValue(line, end+1)
	}
	return n
}

// valueSize returns the size of the value at i of canonical JSON, and the offset behind it.
func valueSize(b []byte, i int) (size, end int) {
	switch b[i] {
	case '"':
		end, _ = skipString(b, i)
		return textSize(b[i+1 : end-1]), end
	case 't', 'f', 'n':
		return 1, skipWord(b, i)
	case '{', '[':
		object := b[i] == '{'
		size = 3
		for i++; b[i] != '}' && b[i] != ']'; {
			if b[i] == ',' {
				i++
			}
			if object {
				end, _ = skipString(b, i)
				size += textSize(b[i+1 : end-1])
				i = end + 1
			}
			n, next := valueSize(b, i)
			size += n + 1
			i = next
		}
		return size, i + 1
	}
	end = skipWord(b, i)
	return numberSize(b[i:end]), end
}

// textSize is the number of bytes a canonical JSON string stands for.
func textSize(escaped []byte) int {
	n := len(escaped)
	for i := 0; i < len(escaped); i++ {
		if escaped[i] != '\\' {
			continue
		}
		skip := 1
		if escaped[i+1] == 'u' { // only control characters are written so
			skip = 5
		}
		n -= skip
		i += skip
	}
	return n
}

// numberSize is the size of a canonical number.
func numberSize(lit []byte) int {
	var buf [maxExponent + 3]byte
	n, _, _ := parseNumber(lit, buf[:0])
	if len(n.digits) == 0 {
		return 1
	}
	// The digits fill whole pairs, counted from the point.
	floor := func(x int) int { return x >> 1 }
	size := 1 + floor(n.exp+1) - floor(n.exp-len(n.digits))
	if n.neg {
		size++
	}
	return size
}
