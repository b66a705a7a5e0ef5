package page

// Find returns the value at p, [Missing] if there is none. Of a name that stands twice the first counts. It reads no
// further than it must: what follows the value is not checked, so a text from outside goes through [Layout.Records]
// first. The error is a [*Fault] of the text. @key is always missing.
func Find(doc []byte, p Path) (Value, error) {
	s := scanner{data: doc}
	i := s.begin()
	found := !p.key
	for k := 0; k < len(p.steps) && i >= 0 && i < len(doc) && found; k++ {
		i, found = s.step(i, p.steps[k])
	}
	if i >= 0 && !found {
		return Value{}, nil
	}
	end := -1
	if i >= 0 {
		end = s.skip(i)
	}
	if end < 0 {
		return Value{}, s.err()
	}
	return Value{Kind: kindOf(doc[i]), Raw: doc[i:end:end]}, nil
}

// step goes from the value at i to the member or element of a step; found is false if there is none.
func (s *scanner) step(i int, st step) (at int, found bool) {
	kind := kindOf(s.data[i])
	if kind == Object && st.index >= 0 || kind == Array && st.index < 0 || kind != Object && kind != Array {
		return s.skip(i), false
	}
	i = s.enter(i)
	for k := 0; i >= 0; k++ {
		var name []byte
		var more, hit bool
		if kind == Object {
			name, at, more = s.name(i, k == 0)
			hit = more && s.same(name, st.name)
		} else {
			at, more = s.element(i, k == 0)
			hit = k == st.index
		}
		if !more || hit {
			return at, more && at >= 0
		}
		i = s.skip(at)
	}
	return -1, false
}
