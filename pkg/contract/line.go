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
		var into *string
		switch string(name) {
		case `"_pk"`:
			into = &item.PK
		case `"_sk"`:
			into = &item.SK
		case `"_rank"`:
			into = &item.Rank
		}
		switch {
		case into == nil:
			if len(doc) > 1 {
				doc = append(doc, ',')
			}
			doc = append(doc, line[i:end]...)
		case bytes.IndexByte(line[at:end], '\\') < 0 && line[at] == '"':
			*into = string(line[at+1 : end-1])
		default:
			if err := json.Unmarshal(line[at:end], into); err != nil {
				return fail(at, "a string")
			}
		}
		i = end
	}
	if item.PK == "" || item.Rank == "" {
		return fail(0, "_pk and _rank")
	}
	item.Doc = append(doc, '}')
	return item, nil
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
