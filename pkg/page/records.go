package page

import (
	"bytes"
	"errors"
	"fmt"
)

// Record is one record of a page.
type Record struct {
	Index int // from 0
	// Key is the name of the member when the records are an object map, else empty. Half a surrogate pair in it stands
	// in three bytes that are not UTF-8: utf8.ValidString tells.
	Key string
	Raw []byte // the exact text; aliases the page
}

// Layout says where the records of a page are.
type Layout struct {
	Path   Path // of the array of records
	Map    bool // an object at Path will do as well: its members are the records
	NDJSON bool // one record a line; without Path and Map
}

// Records checks the whole page and calls yield for each record in order; a nil yield only counts. It returns the number
// of records yielded. The error is yield's own, which ends the pass, or a [*Fault]. A fault may come after records have
// been yielded: nothing of a page counts before Records has returned nil. A fault of the text wins over a fault of the
// layout, because a text cut short has no shape.
//
// A byte order mark of UTF-8 before the document is skipped. In NDJSON blank lines are skipped, a line may end in CR LF,
// the last one in nothing, and lines have any length. A line that is no JSON is yielded as it is, unless it is the last and
// has no end, or no line is JSON: [Layout.Scan] tells what is wrong with it.
func (l Layout) Records(body []byte, yield func(Record) error) (int, error) {
	w := newWalk(l, body, yield)
	err := w.run()
	return w.count, err
}

// Split is [Layout.Records] that also returns what stands around the records: the document with their array or map
// emptied, where totals and cursors are found without a second pass over the records. It aliases nothing. For NDJSON
// there is nothing around.
func (l Layout) Split(body []byte, yield func(Record) error) (n int, around []byte, err error) {
	w := newWalk(l, body, yield)
	if err := w.run(); err != nil || w.to == 0 {
		return w.count, nil, err
	}
	around = make([]byte, 0, w.from+len(body)-w.to)
	return w.count, append(append(around, body[:w.from]...), body[w.to:]...), nil
}

// Scan is [Layout.Records] and [Fields.Scan] of each record in one pass: out holds the record's values while yield has
// it, dup and fault are what Fields.Scan says of it. The fault's place is counted from the record's start.
func (l Layout) Scan(body []byte, f *Fields, out []Value, extra func(Extra), yield func(rec Record, dup string, fault error) error) (int, error) {
	var w *walk
	w = newWalk(l, body, func(rec Record) error {
		if w.broken != nil {
			return yield(rec, "", w.broken)
		}
		if fault := f.fault(rec.Raw); fault != nil {
			return yield(rec, f.dup, fault)
		}
		return yield(rec, f.dup, nil)
	})
	w.read = func(i int) int {
		f.begin(&w.scanner, out, extra)
		end := f.value(i, &f.root)
		f.bad = max(f.bad-i, -1) // of a fault, from the record's start
		return end
	}
	err := w.run()
	f.finish()
	return w.count, err
}

// walk is one pass over a page.
type walk struct {
	scanner
	layout  Layout
	yield   func(Record) error
	read    func(i int) int // reads a record as skip does; nil = skip
	broken  *Fault          // of the line that is yielded, from its start; nil = it is good
	count   int
	stopped error // what yield returned

	from, to int // of what stands between the brackets around the records

	shape struct { // the first fault of the layout
		code string
		at   int
		msg  string
	}
}

func newWalk(l Layout, body []byte, yield func(Record) error) *walk {
	return &walk{scanner: scanner{data: body}, layout: l, yield: yield}
}

func (w *walk) run() error {
	l, body := w.layout, w.data
	if l.Path.key || l.NDJSON && (l.Map || len(l.Path.steps) > 0) {
		return errors.New("records: @key is no place of records, and NDJSON has no path to them and no map")
	}
	i := w.begin()
	if l.NDJSON {
		i = w.lines(i)
	} else {
		if i >= 0 {
			i = w.descend(i, 0)
		}
		if i >= 0 {
			i = w.end(i)
		}
	}
	switch {
	case w.stopped != nil:
		return w.stopped
	case i < 0:
		return w.err()
	case w.shape.code != "":
		return newFault(w.shape.code, body, w.shape.at, w.shape.msg)
	}
	return nil
}

// misfit keeps a fault of the layout; the pass goes on, to see whether the text is good.
func (w *walk) misfit(code string, at int, format string, args ...any) {
	if w.shape.code == "" {
		w.shape.code, w.shape.at, w.shape.msg = code, at, fmt.Sprintf(format, args...)
	}
}

// place names the first n steps of the records path, for messages.
func (w *walk) place(n int) string {
	if n == 0 {
		return "the document"
	}
	return Path{steps: w.layout.Path.steps[:n]}.String()
}

// descend reads the value at i, to which the first n steps of the path have led.
func (w *walk) descend(i, n int) int {
	if n == len(w.layout.Path.steps) {
		return w.records(i)
	}
	if i >= len(w.data) {
		return w.skip(i)
	}
	st := w.layout.Path.steps[n]
	switch kind := kindOf(w.data[i]); {
	case kind == Object && st.index < 0:
		return w.intoObject(i, n, st)
	case kind == Array && st.index >= 0:
		return w.intoArray(i, n, st)
	case kind == Null:
		w.misfit(CodeNull, i, "%s is null on the way to the records at %s", w.place(n), w.layout.Path)
	case st.index < 0:
		w.misfit(CodeNotObject, i, "%s is of type %s, want an object on the way to the records at %s", w.place(n), kind, w.layout.Path)
	default:
		w.misfit(CodeNotArray, i, "%s is of type %s, want an array on the way to the records at %s", w.place(n), kind, w.layout.Path)
	}
	return w.skip(i)
}

// intoObject follows a name of the path.
func (w *walk) intoObject(i, n int, st step) int {
	start, met := i, false
	if i = w.enter(i); i < 0 {
		return -1
	}
	for first := true; ; first = false {
		name, at, more := w.name(i, first)
		if at < 0 {
			return -1
		}
		if !more {
			if !met {
				w.misfit(CodeMissing, start, "no member %s, where the records should be", w.place(n+1))
			}
			return at
		}
		switch {
		case !w.same(name, st.name):
			i = w.skip(at)
		case met:
			w.misfit(CodeDuplicate, at, "%s stands twice", w.place(n+1))
			i = w.skip(at)
		default:
			met = true
			i = w.descend(at, n+1)
		}
		if i < 0 {
			return -1
		}
	}
}

// intoArray follows an index of the path.
func (w *walk) intoArray(i, n int, st step) int {
	start := i
	if i = w.enter(i); i < 0 {
		return -1
	}
	for k := 0; ; k++ {
		at, more := w.element(i, k == 0)
		if at < 0 {
			return -1
		}
		if !more {
			if k <= st.index {
				w.misfit(CodeMissing, start, "no element %s, where the records should be", w.place(n+1))
			}
			return at
		}
		if k == st.index {
			i = w.descend(at, n+1)
		} else {
			i = w.skip(at)
		}
		if i < 0 {
			return -1
		}
	}
}

// records yields the records in the value at i.
func (w *walk) records(i int) int {
	if i >= len(w.data) {
		return w.skip(i)
	}
	switch kind := kindOf(w.data[i]); {
	case kind == Array:
		w.from = i + 1
		if i = w.enter(i); i < 0 {
			return -1
		}
		for first := true; ; first = false {
			at, more := w.element(i, first)
			if !more {
				w.to = at - 1
				return at
			}
			if i = w.record(at, nil); i < 0 {
				return -1
			}
		}
	case kind == Object && w.layout.Map:
		w.from = i + 1
		if i = w.enter(i); i < 0 {
			return -1
		}
		for first := true; ; first = false {
			name, at, more := w.name(i, first)
			if !more {
				w.to = at - 1
				return at
			}
			if i = w.record(at, name); i < 0 {
				return -1
			}
		}
	case kind == Null:
		w.misfit(CodeNull, i, "%s is null, want an array of records", w.place(len(w.layout.Path.steps)))
	default:
		w.misfit(CodeNotArray, i, "%s is of type %s, want an array of records", w.place(len(w.layout.Path.steps)), kind)
	}
	return w.skip(i)
}

// record checks and yields the record at i; name is the text of its name in an object map.
func (w *walk) record(i int, name []byte) int {
	if i < 0 {
		return -1
	}
	escaped := w.escaped
	end := w.value(i)
	if end < 0 {
		return -1
	}
	rec := Record{Raw: w.data[i:end:end]}
	if len(name) > 0 {
		rec.Key = string(name)
		if escaped {
			b, _, _ := appendUnescaped(nil, name) // checked by name: it cannot fail
			rec.Key = string(b)
		}
	}
	if !w.emit(rec) {
		return -1
	}
	return end
}

// value checks the record at i.
func (w *walk) value(i int) int {
	if w.read != nil {
		return w.read(i)
	}
	return w.skip(i)
}

// emit counts a record and yields it. It reports false if the pass is to end.
func (w *walk) emit(rec Record) bool {
	if w.yield != nil {
		rec.Index = w.count
		if w.stopped = w.yield(rec); w.stopped != nil {
			return false
		}
	}
	w.count++
	return true
}

// lines yields the records of NDJSON from i on. A line that is no JSON is a record all the same: one bad row does not sink
// a page. Two things sink it: a last line that is bad and has no end, since that page was cut short, and not one good line,
// since that page is something else.
func (w *walk) lines(i int) int {
	body, good := w.data, false
	var first struct { // the fault of the first bad line, and where that ends
		code, want string
		at, end    int
	}
	for i >= 0 && i < len(body) {
		line, whole := len(body), false
		if n := bytes.IndexByte(body[i:], '\n'); n >= 0 {
			line, whole = i+n, true
		}
		text := i + len(bytes.TrimRight(body[i:line], " \t\r"))
		w.data = body[:text] // a record ends with its line
		if i = w.space(i); i < text {
			end := w.value(i)
			last := end
			if end >= 0 {
				last = w.end(end)
			}
			switch {
			case last >= 0:
				good, w.broken = true, nil
			case !whole:
				return -1
			default:
				end = text
				if first.code == "" {
					first.code, first.want, first.at, first.end = w.code, w.want, w.at, end
				}
				w.broken = w.err().within(body, i, end)
				w.depth = 0
			}
			if !w.emit(Record{Raw: body[i:end:end]}) {
				return -1
			}
		}
		i = line + 1
	}
	if !good && first.code != "" {
		w.data = body[:first.end]
		return w.fail(first.code, first.at, first.want)
	}
	return i
}

// same reports whether a name in the text, which s.name has just read, stands for want.
func (s *scanner) same(name []byte, want string) bool {
	if !s.escaped {
		return string(name) == want
	}
	var buf [64]byte
	b, _, _ := appendUnescaped(buf[:0], name)
	return string(b) == want
}
