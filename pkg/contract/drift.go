package contract

import (
	"cmp"
	"math"
	"slices"

	"github.com/onceload/onceload/pkg/page"
)

// Drift is how the records that a [Checker] has seen differ from what the contract declares. It holds names, counts and
// places, never a value. Deletions, and records that are no object, are not in it.
type Drift struct {
	Records int64        `json:"records"`
	Deleted int64        `json:"deleted"` // deletions, beside Records
	Fields  []FieldDrift `json:"fields"`  // every declared field, by name
	// New are the members that no field declares, by path: top-level ones, and those beside a declared one in an object
	// that is not declared whole.
	New []FieldDrift `json:"new"`
	// Beyond counts members that are not told apart in New, because they came after its first 1,000.
	Beyond int64 `json:"beyond"`
}

// FieldDrift is what a field or an undeclared member was in the records. Rates are of Drift.Records, to six places.
type FieldDrift struct {
	Field       string           `json:"field,omitempty"` // column; none of an undeclared member
	Path        string           `json:"path"`            // in the record
	Types       map[string]int64 `json:"types"`           // values by JSON type: null, boolean, number, string, array, object
	Missing     int64            `json:"missing"`
	MissingRate float64          `json:"missing_rate"`
	Null        int64            `json:"null"`
	NullRate    float64          `json:"null_rate"`
	// Retyped counts values of another JSON type than the field's own. The contract may have taken them all the same: a
	// number written as text, for one.
	Retyped     int64   `json:"retyped"`
	RetypedRate float64 `json:"retyped_rate"`
	// Example is where the first value of another type stands, or else the first record without the field, or else the
	// first null; of an undeclared member its first place.
	Example *Place `json:"example,omitempty"`
}

// driftTally counts while records are checked.
type driftTally struct {
	records, deleted, beyond int64
	fields                   []tally // by field
	extras                   []tally // by the numbers of page.Extra
	pending                  []met   // undeclared members of the record under way
	pendingBeyond            int64   // and those without a number
}

// tally counts the values of one member by their kind.
type tally struct {
	count [page.Object + 1]int64
	first [page.Object + 1]Place
}

func (t *tally) add(kind page.Kind, at Place) {
	if t.count[kind] == 0 {
		t.first[kind] = at
	}
	t.count[kind]++
}

// met is an undeclared member of a record.
type met struct {
	id   int
	kind page.Kind
}

// tally counts the record under way.
func (k *Checker) tally(at Place) {
	d := &k.drift
	d.records++
	for i := range k.c.fields {
		v := &k.mapKey
		if slot := k.c.fields[i].slot; slot >= 0 {
			v = &k.values[slot]
		}
		d.fields[i].add(v.Kind, at)
	}
	d.beyond += d.pendingBeyond
	for _, m := range d.pending {
		for m.id >= len(d.extras) {
			d.extras = append(d.extras, tally{})
		}
		d.extras[m.id].add(m.kind, at)
	}
}

// Drift sums up the records checked so far.
func (k *Checker) Drift() Drift {
	t := &k.drift
	d := Drift{Records: t.records, Deleted: t.deleted, Beyond: t.beyond, Fields: []FieldDrift{}, New: []FieldDrift{}}
	for i := range k.c.fields {
		f := &k.c.fields[i]
		d.Fields = append(d.Fields, t.fields[i].sum(f.decl.Name, f.path.String(), t.records, f.own))
	}
	for id := range t.extras {
		if e := t.extras[id]; e != (tally{}) {
			d.New = append(d.New, e.sum("", k.scan.ExtraPath(id).String(), t.records, func(page.Kind) bool { return true }))
		}
	}
	slices.SortFunc(d.New, func(a, b FieldDrift) int { return cmp.Compare(a.Path, b.Path) })
	return d
}

// sum turns counts into a report; own tells the JSON types that are the field's own.
func (t *tally) sum(column, path string, records int64, own func(page.Kind) bool) FieldDrift {
	f := FieldDrift{Field: column, Path: path, Types: map[string]int64{}, Missing: t.count[page.Missing], Null: t.count[page.Null]}
	var retyped, present []Place
	for kind := page.Bool; kind <= page.Object; kind++ {
		if t.count[kind] == 0 {
			continue
		}
		f.Types[kind.String()] = t.count[kind]
		present = append(present, t.first[kind])
		if !own(kind) {
			f.Retyped += t.count[kind]
			retyped = append(retyped, t.first[kind])
		}
	}
	if f.Null > 0 {
		f.Types[page.Null.String()] = f.Null
		present = append(present, t.first[page.Null])
	}
	if column == "" {
		var seen int64
		for _, n := range f.Types {
			seen += n
		}
		f.Missing = records - seen
	}
	rate := func(n int64) float64 {
		if records == 0 {
			return 0
		}
		return math.Round(float64(n)/float64(records)*1e6) / 1e6
	}
	f.MissingRate, f.NullRate, f.RetypedRate = rate(f.Missing), rate(f.Null), rate(f.Retyped)
	switch {
	case column == "":
		f.Example = earliest(present)
	case len(retyped) > 0:
		f.Example = earliest(retyped)
	case f.Missing > 0:
		f.Example = &t.first[page.Missing]
	case f.Null > 0:
		f.Example = &t.first[page.Null]
	}
	return f
}

func earliest(places []Place) *Place {
	first := slices.MinFunc(places, func(a, b Place) int {
		return cmp.Or(cmp.Compare(a.Part, b.Part), cmp.Compare(a.Page, b.Page), cmp.Compare(a.Index, b.Index))
	})
	return &first
}

// own reports whether the field's values are meant to come in that JSON type.
func (f *field) own(kind page.Kind) bool {
	switch {
	case f.list:
		return kind == page.Array
	case f.scalar == typeDocument:
		return true
	case f.scalar == typeBoolean:
		return kind == page.Bool
	case f.separators != (separators{}):
		return kind == page.String || kind == page.Number
	case f.scalar == typeInteger || f.scalar == typeDecimal || f.scalar == typeTimestamp && f.moment.unit > 0:
		return kind == page.Number
	}
	return kind == page.String
}
