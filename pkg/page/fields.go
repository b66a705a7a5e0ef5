package page

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"unicode/utf8"
)

// MaxExtras is how many undeclared members a Fields tells apart by number.
const MaxExtras = 1000

// MaxBeyond bounds the undeclared members of one record that are not told apart: whatever a source makes up, what they cost
// in memory is small.
const MaxBeyond = 1 << 16

// Fields looks up many paths in one pass over a record. It keeps buffers: not for concurrent use.
type Fields struct {
	scan   *scanner // of the pass under way
	own    scanner  // for Scan
	root   node
	paths  int
	pass   uint64 // number of the record under way: marks what this one has seen
	out    []Value
	extra  func(Extra)
	dup    string
	bad    int    // offset of a top-level name that holds half a surrogate pair; -1 = none
	beyond int    // undeclared members of the record that are not told apart
	text   []byte // unescaped names
	names  nameSet

	extras []Path // of the undeclared members met so far, by their numbers
}

// Extra is a member that no path begins with and none covers: top-level, or in an object that paths lead through. Its
// slices are valid until the callback returns.
type Extra struct {
	Name  []byte // unescaped
	Value Value
	Top   bool // the member is a top-level one
	// ID numbers the members by place and name, in the order in which this Fields met them, from 0; see
	// [Fields.ExtraPath]. Members met after the first [MaxExtras] have -1.
	ID int
}

// node is a place that paths lead to or through, or an undeclared member met before.
type node struct {
	name     string
	quoted   string // as most texts write the name, with its colon; "" if it needs escapes
	path     Path
	paths    []int // that end here
	extra    int   // number of an undeclared member; -1 = none
	covered  bool  // a path ends here or above: what is inside is declared
	members  map[string]*node
	elements map[int]*node
	guess    []*node // by position: the members last met there; records of one source are much alike
	seen     uint64  // the pass that met it last
}

// maxGuess bounds the positions remembered of an object.
const maxGuess = 256

// NewFields prepares the lookup of paths; @key is never found.
func NewFields(paths []Path) *Fields {
	f := &Fields{paths: len(paths), names: nameSet{seed: maphash.MakeSeed()}, root: node{extra: -1}}
	for i, p := range paths {
		if p.key {
			continue
		}
		n := &f.root
		for k, st := range p.steps {
			n = n.child(st, Path{steps: p.steps[:k+1]})
		}
		n.paths = append(n.paths, i)
	}
	f.root.cover(false)
	f.root.covered = false // a path to the record itself does not make its members known
	return f
}

// child finds or makes the node one step on.
func (n *node) child(st step, path Path) *node {
	c := n.members[st.name]
	if st.index >= 0 {
		c = n.elements[st.index]
	}
	switch {
	case c != nil:
		return c
	case n.members == nil:
		n.members, n.elements = map[string]*node{}, map[int]*node{}
	}
	c = &node{name: st.name, path: path, extra: -1}
	if !strings.ContainsFunc(st.name, func(r rune) bool { return r < ' ' || r == '"' || r == '\\' || r == utf8.RuneError }) {
		c.quoted = `"` + st.name + `":`
	}
	if st.index >= 0 {
		n.elements[st.index] = c
	} else {
		n.members[st.name] = c
	}
	return c
}

// cover marks the nodes inside of what a path takes whole.
func (n *node) cover(above bool) {
	n.covered = above || len(n.paths) > 0
	inside := n.covered && len(n.path.steps) > 0
	for _, c := range n.members {
		c.cover(inside)
	}
	for _, c := range n.elements {
		c.cover(inside)
	}
}

// find is the member of that name, which stands at position at of its object; nil if there is none.
func (n *node) find(name []byte, at int) *node {
	if at < len(n.guess) && n.guess[at].name == string(name) {
		return n.guess[at]
	}
	c := n.members[string(name)]
	switch {
	case c == nil || at > len(n.guess) || at == maxGuess:
	case at == len(n.guess):
		n.guess = append(n.guess, c)
	default:
		n.guess[at] = c
	}
	return c
}

// Scan sets out[i] to the value of path i, [Missing] if there is none; out is as long as the paths. Of a name that stands
// twice in one object the first counts, and dup is the path of the first such name among the top-level ones and those on
// a path; "" if there is none. extra, if not nil, is called for every undeclared member, once for each name. The error is
// a [*Fault]: of the text, [CodeSurrogate] for a top-level name, or [CodeMembers]. out is of no use then.
func (f *Fields) Scan(raw []byte, out []Value, extra func(Extra)) (dup string, err error) {
	f.own.data, f.own.depth = raw, 0
	f.begin(&f.own, out, extra)
	i := f.own.begin()
	if i >= 0 {
		i = f.value(i, &f.root)
	}
	if i >= 0 {
		i = f.own.end(i)
	}
	if i < 0 {
		err = f.own.err()
	} else if fault := f.fault(raw); fault != nil {
		err = fault
	}
	f.finish()
	f.own.data = nil // the buffers stay, the record may go
	return f.dup, err
}

// ExtraPath is the path of the undeclared member of that number.
func (f *Fields) ExtraPath(id int) Path { return f.extras[id] }

// begin gets ready for a record in the text of s.
func (f *Fields) begin(s *scanner, out []Value, extra func(Extra)) {
	clear(out[:f.paths])
	f.pass++
	f.scan, f.out, f.extra, f.dup, f.bad, f.beyond, f.text = s, out, extra, "", -1, 0, f.text[:0]
	f.names.reset()
}

func (f *Fields) finish() { f.scan, f.out, f.extra = nil, nil, nil }

// fault is what is wrong with the good JSON of a record.
func (f *Fields) fault(raw []byte) *Fault {
	switch {
	case f.bad >= 0:
		return newFault(CodeSurrogate, raw, f.bad, "a name holds half a surrogate pair")
	case f.beyond > MaxBeyond:
		return newFault(CodeMembers, raw, 0, fmt.Sprintf("more than %d members that no path leads to", MaxBeyond))
	}
	return nil
}

// value reads the value at i, which is the one n stands for.
func (f *Fields) value(i int, n *node) (end int) {
	s := f.scan
	if i >= len(s.data) {
		return s.skip(i)
	}
	s.escaped = false
	kind := kindOf(s.data[i])
	switch {
	case kind == Object && (len(n.members) > 0 || n == &f.root):
		end = f.object(i, n)
	case kind == Array && len(n.elements) > 0:
		end = f.array(i, n)
	case kind == String:
		end = s.string(i + 1)
	case kind == Number:
		end = s.number(i)
	default:
		end = s.skip(i)
	}
	if end < 0 {
		return -1
	}
	if len(n.paths) > 0 {
		raw, plain := s.data[i:end:end], kind == String && !s.escaped
		for _, p := range n.paths {
			v := &f.out[p]
			v.Kind, v.Plain, v.Raw = kind, plain, raw
		}
	}
	return end
}

// object reads the members of the object at i.
func (f *Fields) object(i int, n *node) int {
	s := f.scan
	if i = s.enter(i); i < 0 {
		return -1
	}
	for k := 0; ; k++ {
		if k < len(n.guess) {
			if c := n.guess[k]; c.seen != f.pass {
				if name, at := s.expect(i, k == 0, c.quoted); at >= 0 {
					c.seen = f.pass
					if c.extra >= 0 {
						i = f.tell(at, n, name, c.extra)
					} else {
						i = f.value(at, c)
					}
					if i < 0 {
						return -1
					}
					continue
				}
			}
		}
		from := i
		name, at, more := s.name(i, k == 0)
		if at < 0 || !more {
			return at
		}
		if s.escaped {
			mark := len(f.text)
			var whole bool
			f.text, whole, _ = appendUnescaped(f.text, name)
			if !whole && n == &f.root {
				if from = s.space(from); s.data[from] == ',' {
					from = s.space(from + 1)
				}
				if f.bad < 0 {
					f.bad = from
				}
				if i = s.skip(at); i < 0 {
					return -1
				}
				continue
			}
			name = f.text[mark:len(f.text):len(f.text)]
		}
		switch c := n.find(name, k); {
		case c == nil:
			i = f.undeclared(at, n, name)
		case c.seen == f.pass:
			if c.extra < 0 || n == &f.root {
				f.duplicate(c.path)
			}
			i = s.skip(at)
		case c.extra >= 0:
			c.seen = f.pass
			i = f.tell(at, n, name, c.extra)
		default:
			c.seen = f.pass
			i = f.value(at, c)
		}
		if i < 0 {
			return -1
		}
	}
}

// undeclared reads the value at i of a member of n that no path begins with and that was not met before.
func (f *Fields) undeclared(i int, n *node, name []byte) int {
	switch {
	case n.covered:
		return f.scan.skip(i)
	case len(f.extras) < MaxExtras && utf8.Valid(name):
		st := step{name: string(name), index: -1}
		c := n.child(st, Path{steps: append(slices.Clone(n.path.steps), st)})
		c.extra, c.seen = len(f.extras), f.pass
		f.extras = append(f.extras, c.path)
		return f.tell(i, n, name, c.extra)
	}
	if f.beyond++; f.beyond > MaxBeyond {
		return f.scan.skip(i)
	}
	if n == &f.root && !f.names.add(name) {
		f.duplicate(Member(string(name)))
		return f.scan.skip(i)
	}
	return f.tell(i, n, name, -1)
}

// tell hands out the undeclared member whose value is at i.
func (f *Fields) tell(i int, n *node, name []byte, id int) int {
	s := f.scan
	s.escaped = false
	end := s.skip(i)
	if end >= 0 && f.extra != nil {
		kind := kindOf(s.data[i])
		v := Value{Kind: kind, Plain: kind == String && !s.escaped, Raw: s.data[i:end:end]}
		f.extra(Extra{Name: name, Value: v, Top: n == &f.root, ID: id})
	}
	return end
}

// array reads the elements of the array at i.
func (f *Fields) array(i int, n *node) int {
	s := f.scan
	if i = s.enter(i); i < 0 {
		return -1
	}
	for k := 0; ; k++ {
		at, more := s.element(i, k == 0)
		if at < 0 || !more {
			return at
		}
		if c := n.elements[k]; c != nil {
			i = f.value(at, c)
		} else {
			i = s.skip(at)
		}
		if i < 0 {
			return -1
		}
	}
}

func (f *Fields) duplicate(p Path) {
	if f.dup != "" {
		return
	}
	if f.dup = p.String(); f.dup == "" {
		f.dup = `""` // the empty name
	}
}

// nameSet is a set of names that is emptied often and refilled without allocating. Names come from outside, so the hash
// is seeded: nobody can choose names that collide.
type nameSet struct {
	seed  maphash.Seed
	slots []nameSlot // a power of two
	used  int
	pass  uint64
}

type nameSlot struct {
	pass uint64 // the slot is free unless this is the set's
	name []byte
}

func (t *nameSet) reset() { t.used, t.pass = 0, t.pass+1 }

// add reports whether the name was not in the set yet.
func (t *nameSet) add(name []byte) bool {
	if 2*t.used >= len(t.slots) {
		t.grow()
	}
	for i := maphash.Bytes(t.seed, name); ; i++ {
		slot := &t.slots[i&uint64(len(t.slots)-1)]
		if slot.pass != t.pass {
			slot.pass, slot.name = t.pass, name
			t.used++
			return true
		}
		if string(slot.name) == string(name) {
			return false
		}
	}
}

func (t *nameSet) grow() {
	old := t.slots
	t.slots, t.used = make([]nameSlot, max(32, 2*len(old))), 0
	for _, s := range old {
		if s.pass == t.pass {
			t.add(s.name)
		}
	}
}
