package contract

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/page"
	"github.com/onceload/onceload/pkg/pipeline"
)

// The types of fields.
const (
	typeString    = "string"
	typeInteger   = "integer"
	typeDecimal   = "decimal"
	typeBoolean   = "boolean"
	typeTimestamp = "timestamp"
	typeDate      = "date"
	typeDocument  = "document"
	typeList      = "list"
)

// The values of `extra`.
const (
	extraKeep       = "keep"
	extraDrop       = "drop"
	extraQuarantine = "quarantine"
)

// Contract is a compiled contract: read-only, for any number of goroutines.
type Contract struct {
	decl      pipeline.Contract
	revision  etl.Revision
	fields    []field // by name
	columns   map[string]bool
	partition []int // of fields, in the order of the target
	sort      []int
	version   int // of fields; -1 = none
	paths     []page.Path
	keyed     bool // a field is from @key
	del       *deletion
	spec      []byte
	digest    string

	partitionName, sortName string // key parts, for reasons
	rankHead, rankMiddle    string // of every rank, around the version
}

// field is one column.
type field struct {
	decl        pipeline.Field
	name        []byte
	scalar      string // the type, of a list that of its elements
	list        bool
	path        page.Path
	slot        int  // of paths; -1 = @key
	key         bool // a key part
	version     bool
	verbatim    bool // a text without escapes is in canonical form as it comes
	constrained bool
	// nullable: null is as good as absent.
	nullable   bool
	separators separators // of numbers in texts
	moment     moment
	clean      []cleaner

	// In canonical form: texts that compare as bytes, except numbers.
	fixed    []byte // const or default; nil = none
	column   []byte // it, rendered, with a comma behind it
	isConst  bool
	enum     map[string]bool
	min, max []byte
	pattern  *regexp.Regexp
	member   []byte // `"name":`
}

// deletion marks a record as the deletion of its key.
type deletion struct {
	path   page.Path
	slot   int // of paths; -1 = @key, or looked up alone
	equals string
	number []byte // equals in canonical form if it is a number
}

// Compile checks a contract and makes it ready. All faults are reported at once, each an error of kind ContractInvalid;
// what the pipeline package checks with line and column is checked here again only where a wrong value would do harm.
func Compile(decl pipeline.Contract, target pipeline.Target) (*Contract, error) {
	c := &Contract{
		decl:     decl,
		revision: etl.Revision{Contract: max(decl.Revision, 1), Engine: EngineVersion},
		version:  -1,
		columns:  map[string]bool{},
	}
	var faults []error
	fail := func(format string, args ...any) {
		faults = append(faults, etl.Errorf(etl.ContractInvalid, "contract: "+format, args...))
	}
	c.decl.Epoch = max(decl.Epoch, 1)
	if c.decl.Extra == "" {
		c.decl.Extra = extraDrop
	}
	if !slices.Contains([]string{extraKeep, extraDrop, extraQuarantine}, c.decl.Extra) {
		fail("extra: %q: want keep, drop or quarantine", c.decl.Extra)
	}
	for _, d := range decl.Fields {
		f := field{decl: d, name: []byte(d.Name), key: slices.Contains(decl.Key, d.Name), version: d.Name == decl.Version, nullable: !d.Required}
		if d.Nullable != nil {
			f.nullable = *d.Nullable
		}
		switch {
		case d.Name == "" || strings.HasPrefix(d.Name, "_"):
			fail("field %q: a column's name is not empty and does not begin with _; rename it with from", d.Name)
			continue
		case c.columns[d.Name]:
			fail("field %s stands twice", d.Name)
			continue
		}
		c.columns[d.Name] = true
		if (f.key || f.version) && d.Nullable != nil && *d.Nullable {
			fail("field %s: nullable: a field of the key and the version are never null", d.Name)
		}
		for _, err := range f.compile() {
			fail("field %s: %w", d.Name, err)
		}
		f.slot = c.slot(f.path)
		c.keyed = c.keyed || f.path.IsKey()
		c.fields = append(c.fields, f)
	}
	slices.SortFunc(c.fields, func(a, b field) int { return strings.Compare(a.decl.Name, b.decl.Name) })

	c.compileKey(target, fail)
	if decl.Version != "" {
		c.version = c.index(decl.Version)
		if c.version < 0 {
			fail("version: %s is not a field", decl.Version)
		} else if t := c.fields[c.version].decl.Type; t != typeInteger && t != typeTimestamp {
			fail("version: field %s is of type %s: want integer or timestamp", decl.Version, t)
		}
	}
	if d := decl.Delete; d != nil {
		path, err := page.ParsePath(d.From)
		if err != nil {
			fail("delete: %w", err)
		}
		c.del = &deletion{path: path, slot: -1, equals: d.Equals}
		// Looked up alone where a lookup with the fields would take the member away from those to keep.
		if c.decl.Extra != extraKeep {
			c.del.slot = c.slot(path)
		}
		if n, _, ok := parseNumber([]byte(d.Equals), nil); ok && n.plain() {
			c.del.number = n.append(nil)
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	// The parts of a rank that are the same for all rows, as etl writes them.
	c.rankHead, c.rankMiddle, _ = strings.Cut(etl.Rank{Epoch: c.decl.Epoch, Version: "/", Revision: c.revision}.String(), "/")
	if err := c.describe(); err != nil {
		return nil, err
	}
	return c, nil
}

// slot adds a path to those looked up.
func (c *Contract) slot(p page.Path) int {
	if p.IsKey() {
		return -1
	}
	c.paths = append(c.paths, p)
	return len(c.paths) - 1
}

// index finds a field by name, -1 if there is none.
func (c *Contract) index(name string) int {
	return slices.IndexFunc(c.fields, func(f field) bool { return f.decl.Name == name })
}

// compileKey finds the fields of the target's key.
func (c *Contract) compileKey(target pipeline.Target, fail func(string, ...any)) {
	key := c.decl.Key
	if len(key) == 0 {
		fail("key: at least one field is needed")
	}
	partition := target.Partition
	if len(partition) == 0 {
		for _, name := range key {
			if !slices.Contains(target.Sort, name) {
				partition = append(partition, name)
			}
		}
	}
	if len(partition) == 0 && len(key) > 0 {
		fail("target.partition: at least one key field is needed")
	}
	all, want := slices.Concat(partition, target.Sort), slices.Clone(key)
	slices.Sort(all)
	slices.Sort(want)
	if !slices.Equal(all, want) || len(slices.Compact(want)) != len(key) {
		fail("target.partition and target.sort together must hold each field of key exactly once: key is %s", strings.Join(key, ", "))
	}
	find := func(names []string) (fields []int) {
		for _, name := range names {
			i := c.index(name)
			if i < 0 {
				fail("key: %s is not a field", name)
				continue
			}
			if f := c.fields[i]; f.list || f.decl.Type == typeDocument {
				fail("key: field %s is of type %s: want a single value", name, f.decl.Type)
			}
			fields = append(fields, i)
		}
		return fields
	}
	c.partition, c.sort = find(partition), find(target.Sort)
	c.partitionName, c.sortName = strings.Join(partition, ","), strings.Join(target.Sort, ",")
}

// compile makes the field ready.
func (f *field) compile() (faults []error) {
	d := f.decl
	fail := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	f.path = page.Member(d.Name)
	if d.From != "" {
		p, err := page.ParsePath(d.From)
		if err != nil {
			fail("from: %w", err)
		}
		f.path = p
	}
	f.member = append(appendQuoted(nil, []byte(d.Name)), ':')
	f.scalar = d.Type
	if d.Type == typeList {
		f.list, f.scalar = true, d.Items
		if d.Items == "" {
			f.scalar = typeString
		}
	} else if d.Items != "" {
		fail("items: only a list has items")
	}
	switch f.scalar {
	case typeString, typeInteger, typeDecimal, typeBoolean:
		if d.Unit != "" || d.Layout != "" || d.Zone != "" {
			fail("unit, layout and zone: only timestamps have them, and dates a layout")
		}
	case typeTimestamp, typeDate:
		m, err := compileMoment(f.scalar == typeTimestamp, d.Unit, d.Layout, d.Zone)
		if err != nil {
			faults = append(faults, err)
		}
		f.moment = m
	case typeDocument:
		if f.list {
			fail("items: %s: want a scalar type", d.Items)
		}
		if d.Default != nil || d.Const != nil || len(d.Enum) > 0 || len(d.Clean) > 0 {
			fail("default, const, enum and clean do not go with a document")
		}
	default:
		fail("type %q: want string, integer, decimal, boolean, timestamp, date, document or list", f.scalar)
		return faults
	}
	for _, name := range d.Clean {
		fn, ok := cleaners()[name]
		if !ok {
			fail("clean: %q: want trim, lower, upper, collapse or nfc", name)
			continue
		}
		f.clean = append(f.clean, fn)
	}
	if d.DecimalComma || d.Thousands != "" {
		s, err := compileSeparators(d.DecimalComma, d.Thousands)
		switch {
		case f.scalar != typeInteger && f.scalar != typeDecimal:
			fail("decimal_comma and thousands: only numbers have them")
		case err != nil:
			faults = append(faults, err)
		}
		f.separators = s
	}
	if f.scalar != typeString && d.Pattern != "" {
		fail("pattern: only texts have one")
	}
	if f.scalar != typeString && !f.list && (d.MinLen != nil || d.MaxLen != nil) {
		fail("min_length and max_length: only texts and lists have them")
	}
	if (f.scalar == typeString || f.scalar == typeBoolean || f.scalar == typeDocument) && (d.Min != nil || d.Max != nil) {
		fail("min and max: only numbers, timestamps and dates have them")
	}
	if d.Pattern != "" {
		re, err := regexp.Compile(d.Pattern)
		if err != nil {
			fail("pattern: %w", err)
		}
		f.pattern = re
	}
	if len(faults) == 0 {
		faults = f.compileLiterals()
	}
	f.verbatim = f.scalar == typeString && len(f.clean) == 0
	f.constrained = f.isConst || f.enum != nil || f.min != nil || f.max != nil || d.MinLen != nil || d.MaxLen != nil || f.pattern != nil
	return faults
}

// compileLiterals brings the values the contract itself holds into canonical form. They are written as the type's plain
// texts: timestamps in RFC 3339 whatever the unit of the source.
func (f *field) compileLiterals() (faults []error) {
	d := f.decl
	plain := field{decl: pipeline.Field{Name: d.Name, Type: f.scalar}, scalar: f.scalar, slot: -1}
	var k Checker
	canonical := func(what, text string) []byte {
		k.out = append(k.out[:0], f.member...)
		out, bad := k.scalar(&plain, &page.Value{Kind: page.String, Raw: appendQuoted(nil, []byte(text))})
		if bad.code != "" {
			faults = append(faults, fmt.Errorf("%s: %q: %s", what, text, bad.message))
		}
		return slices.Concat([]byte{}, out) // never nil
	}
	if d.Min != nil {
		f.min = canonical("min", *d.Min)
	}
	if d.Max != nil {
		f.max = canonical("max", *d.Max)
	}
	if len(d.Enum) > 0 {
		f.enum = map[string]bool{}
		for _, text := range d.Enum {
			f.enum[string(canonical("enum", text))] = true
		}
	}
	if (d.Default != nil || d.Const != nil) && f.list {
		return append(faults, errors.New("default and const do not go with a list"))
	}
	switch {
	case d.Default != nil && d.Const != nil:
		return append(faults, errors.New("default and const exclude each other"))
	case d.Default != nil && d.Required:
		return append(faults, errors.New("default and required exclude each other"))
	case d.Default != nil:
		f.fixed = canonical("default", *d.Default)
	case d.Const != nil:
		f.fixed, f.isConst = canonical("const", *d.Const), true
	default:
		return faults
	}
	f.column = append(slices.Clone(k.out), ',') // of the last literal
	if f.key && bytes.IndexByte(f.fixed, 0) >= 0 {
		faults = append(faults, errors.New("default or const: a key part holds no U+0000"))
	}
	if len(faults) == 0 {
		k.reasons = k.reasons[:0]
		k.constrain(f, f.fixed)
		for _, r := range k.reasons {
			faults = append(faults, fmt.Errorf("default or const %q breaks %s", f.fixed, r.Code))
		}
	}
	return faults
}

// Revision is the number of the contract and of the engine.
func (c *Contract) Revision() etl.Revision { return c.revision }

// VersionType is the type of the version field, integer or timestamp; "" without one.
func (c *Contract) VersionType() string {
	if c.version < 0 {
		return ""
	}
	return c.fields[c.version].decl.Type
}
