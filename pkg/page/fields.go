package page

import (
	"hash/maphash"
)

// Fields looks up many paths in one pass over a record. It keeps buffers: not for concurrent use.
type Fields struct {
	scan  scanner
	root  node
	paths int
	pass  uint64 // number of the Scan under way: marks what this one has seen
	out   []Value
	extra func(name, raw []byte)
	dup   string
	text  []byte // unescaped names
	names nameSet
}

// node is a place that paths lead to or through.
type node struct {
	path     Path
	paths    []int // that end here
	members  map[string]*node
	elements map[int]*node
	seen     uint64 // the pass that met it last
}

// NewFields prepares the lookup of paths; @key is never found.
func NewFields(paths []Path) *Fields {
	f := &Fields{paths: len(paths), names: nameSet{seed: maphash.MakeSeed()}}
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
	c = &node{path: path}
	if st.index >= 0 {
		n.elements[st.index] = c
	} else {
		n.members[st.name] = c
	}
	return c
}

// Scan sets out[i] to the value of path i, [Missing] if there is none; out is as long as the paths. Of a name that stands
// twice in one object the first counts, and dup is the path of the first such name among the top-level ones and those on
// a path; "" if there is none. extra, if not nil, is called for every top-level member that no path begins with; name is
// the unescaped name, and both slices are valid until it returns. The error is a [*Fault]: of the text, or
// [CodeSurrogate] for a top-level name. out is of no use then.
func (f *Fields) Scan(raw []byte, out []Value, extra func(name, raw []byte)) (dup string, err error) {
	clear(out[:f.paths])
	f.pass++
	f.out, f.extra, f.dup, f.text = out, extra, "", f.text[:0]
	f.names.reset()
	f.scan.data, f.scan.depth = raw, 0
	i := f.scan.begin()
	if i >= 0 {
		i = f.value(i, &f.root)
	}
	if i >= 0 {
		i = f.scan.end(i)
	}
	if i < 0 {
		err = f.scan.err()
	}
	f.out, f.extra, f.scan.data = nil, nil, nil // the buffers stay, the record may go
	return f.dup, err
}

// value reads the value at i, which is the one n stands for.
func (f *Fields) value(i int, n *node) (end int) {
	s := &f.scan
	if i >= len(s.data) {
		return s.skip(i)
	}
	kind := kindOf(s.data[i])
	switch {
	case kind == Object && (len(n.members) > 0 || n == &f.root):
		end = f.object(i, n)
	case kind == Array && len(n.elements) > 0:
		end = f.array(i, n)
	default:
		end = s.skip(i)
	}
	if end < 0 {
		return -1
	}
	for _, p := range n.paths {
		f.out[p] = Value{Kind: kind, Raw: s.data[i:end:end]}
	}
	return end
}

// object reads the members of the object at i.
func (f *Fields) object(i int, n *node) int {
	s := &f.scan
	if i = s.enter(i); i < 0 {
		return -1
	}
	for first := true; ; first = false {
		name, at, more := s.name(i, first)
		if at < 0 || !more {
			return at
		}
		if s.escaped {
			mark := len(f.text)
			var whole bool
			f.text, whole, _ = appendUnescaped(f.text, name)
			if !whole && n == &f.root {
				if i = s.space(i); s.data[i] == ',' {
					i = s.space(i + 1)
				}
				return s.fail(CodeSurrogate, i, "a name holds half a surrogate pair")
			}
			name = f.text[mark:len(f.text):len(f.text)]
		}
		switch c := n.members[string(name)]; {
		case c != nil && c.seen == f.pass:
			f.duplicate(c.path)
			i = s.skip(at)
		case c != nil:
			c.seen = f.pass
			i = f.value(at, c)
		case n != &f.root:
			i = s.skip(at)
		case !f.names.add(name):
			f.duplicate(Member(string(name)))
			i = s.skip(at)
		default:
			if i = s.skip(at); i >= 0 && f.extra != nil {
				f.extra(name, s.data[at:i:i])
			}
		}
		if i < 0 {
			return -1
		}
	}
}

// array reads the elements of the array at i.
func (f *Fields) array(i int, n *node) int {
	s := &f.scan
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
	if f.dup == "" {
		f.dup = p.String()
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
