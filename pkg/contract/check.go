package contract

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/page"
	"github.com/onceload/onceload/pkg/store"
)

// Place is where a record stands in its extraction. All three count from 0; Page within the part, Index within the page.
type Place struct {
	Part  int `json:"part"`
	Page  int `json:"page"`
	Index int `json:"index"`
}

// Origin is what a record's audit columns say, and its version where the contract has none: functions of the snapshot,
// never of the clock of the transform.
type Origin struct {
	Batch      etl.Batch
	Extraction int
	FetchedAt  time.Time // of the record's page
}

// Reason says why a record is quarantined. Field is the column, or the member's name for one the contract does not
// declare, or "" for the record as a whole. Code is one of [Codes]. Message says what was wanted, never what was there.
type Reason struct {
	Field   string `json:"field"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Result is the outcome of one record: exactly one of Line and Quarantine is set. The slices are valid until the next
// record.
type Result struct {
	Line       []byte   // canonical valid line, without newline
	Quarantine []byte   // quarantine line, without newline
	Reasons    []Reason // of a quarantined record: all of them
	Place      Place
	Key        []byte // of a valid record: pk, U+0000, sk; no key part holds U+0000
	Version    []byte // of a valid record, as its rank has it; empty if the contract has no version field
}

// fault is what is wrong with one value; the zero value is no fault.
type fault struct{ code, message string }

// Checker checks records one at a time and reuses its buffers. It is not for concurrent use.
type Checker struct {
	c      *Contract
	scan   *page.Fields
	values []page.Value
	extra  func(page.Extra) // k.undeclared
	drift  driftTally

	reasons      []Reason
	extraReasons []Reason // of undeclared members; they come last

	out        []byte // `{`, then rendered columns in the order of their names, each with a comma behind it
	head, tail int    // our columns go between out[:head] and out[tail:]; between the two stands _deleted
	extraOut   []byte // rendered undeclared members
	extras     []member
	names      []byte     // of them
	large      bool       // they would make more than any item holds
	mapKey     page.Value // the record's @key

	keyText  []byte   // canonical texts of the key parts
	keySpans [][2]int // of keyText, by field
	version  []byte
	pk, sk   []byte
	line     []byte

	text, other, digits []byte // scratch of scalar
	cleaned             [2][]byte
	empty               bool // scalar was given an empty string
	doc                 documentScratch

	from                 Origin // what the audit columns below were made of
	batch, ingested, run []byte // rendered, each with a comma behind it
	slot                 string // the version of rows without a version field
}

// member is a rendered member of an object: where it stands in its buffer.
type member struct {
	name       []byte
	at         int // among its siblings, in a document
	start, end int
}

func byName(a, b member) int { return bytes.Compare(a.name, b.name) }

// NewChecker makes a checker with buffers of its own.
func (c *Contract) NewChecker() *Checker {
	k := &Checker{
		c:        c,
		scan:     page.NewFields(c.paths),
		values:   make([]page.Value, len(c.paths)),
		keySpans: make([][2]int, len(c.fields)),
	}
	k.extra = k.undeclared
	k.drift.fields = make([]tally, len(c.fields))
	return k
}

// Check decides one record.
func (k *Checker) Check(rec page.Record, at Place, from Origin) Result {
	k.audit(from)
	k.reset()
	dup, fault := k.scan.Scan(rec.Raw, k.values, k.extra)
	return k.decide(rec, dup, fault, at)
}

// Page decides the records of a page, each as Check does, in one pass over its text. It returns the number of records.
// The error is yield's own, or a [*page.Fault] of the page, after which nothing that was yielded counts.
func (k *Checker) Page(l page.Layout, body []byte, part, number int, from Origin, yield func(Result) error) (int, error) {
	k.audit(from)
	k.reset()
	return l.Scan(body, k.scan, k.values, k.extra, func(rec page.Record, dup string, fault error) error {
		err := yield(k.decide(rec, dup, fault, Place{Part: part, Page: number, Index: rec.Index}))
		k.reset()
		return err
	})
}

// reset forgets the last record.
func (k *Checker) reset() {
	k.reasons, k.extraReasons = k.reasons[:0], k.extraReasons[:0]
	k.extraOut, k.extras, k.names = k.extraOut[:0], k.extras[:0], k.names[:0]
	k.keyText, k.version = k.keyText[:0], k.version[:0]
	k.drift.pending, k.drift.pendingBeyond = k.drift.pending[:0], 0
	k.large = false
}

// decide decides a record whose values have been looked up.
func (k *Checker) decide(rec page.Record, dup string, fault error, at Place) Result {
	if k.c.keyed {
		raw := k.mapKey.Raw[:0]
		if k.mapKey = (page.Value{}); rec.Key != "" {
			k.mapKey = page.Value{Kind: page.String, Raw: appendQuoted(raw, []byte(rec.Key))}
		}
	}
	if k.readable(rec, dup, fault) {
		deleted := k.deleted(rec)
		if deleted {
			k.extraReasons, k.extras = k.extraReasons[:0], k.extras[:0]
			k.drift.deleted++
		} else {
			k.tally(at)
		}
		k.columns(deleted)
		k.reasons = append(k.reasons, k.extraReasons...)
		switch {
		case len(k.reasons) > 0:
		case k.large || len(k.out) > maxLine:
			k.fail("", tooLarge())
		default:
			k.finish()
		}
	}
	if len(k.reasons) > 0 {
		return Result{Place: at, Quarantine: k.quarantine(rec, at), Reasons: k.reasons}
	}
	k.pk = append(append(k.pk, 0), k.sk...)
	return Result{Place: at, Line: k.line, Key: k.pk, Version: k.version}
}

// fail keeps a reason, once: a list can be at fault in each of its elements.
func (k *Checker) fail(field string, f fault) {
	for i := len(k.reasons) - 1; i >= 0 && k.reasons[i].Field == field; i-- {
		if k.reasons[i].Code == f.code {
			return
		}
	}
	k.reasons = append(k.reasons, Reason{Field: field, Code: f.code, Message: f.message})
}

// readable keeps what the lookup of a record's values found wrong. It reports false if the record cannot be looked at any
// further.
func (k *Checker) readable(rec page.Record, dup string, err error) bool {
	if err != nil {
		k.unreadable(err)
		return false
	}
	switch {
	case rec.Raw[0] != '{' && bytes.TrimLeft(rec.Raw, " \t\r\n")[0] != '{':
		k.fail("", fault{CodeRecordType, "want a JSON object"})
		return false
	case dup != "":
		k.fail(shortName([]byte(strings.ToValidUTF8(dup, "\ufffd"))), fault{CodeDuplicateName, "the name stands more than once"})
	}
	return true
}

// unreadable keeps the fault of a text in which nothing can be looked up.
func (k *Checker) unreadable(err error) {
	var bad *page.Fault
	switch {
	case errors.As(err, &bad) && bad.Code == page.CodeSurrogate:
		k.fail("", fault{CodeBadName, "a name holds half a surrogate pair"})
	case errors.As(err, &bad) && bad.Code == page.CodeUTF8:
		k.fail("", fault{CodeBadText, "want UTF-8"})
	case errors.As(err, &bad) && bad.Code == page.CodeDepth:
		k.fail("", fault{CodeTooDeep, bad.Msg})
	case errors.As(err, &bad) && bad.Code == page.CodeMembers:
		k.fail("", fault{CodeTooManyMembers, bad.Msg})
	default:
		k.fail("", fault{CodeSyntax, err.Error()})
	}
}

// deleted reports whether the delete rule marks the record.
func (k *Checker) deleted(rec page.Record) bool {
	d := k.c.del
	if d == nil {
		return false
	}
	var v page.Value
	switch {
	case d.path.IsKey():
		return rec.Key == d.equals
	case d.slot >= 0:
		v = k.values[d.slot]
	default:
		v, _ = page.Find(rec.Raw, d.path) // the text is known to be good
	}
	switch v.Kind {
	case page.String:
		if v.Plain {
			return string(v.Raw[1:len(v.Raw)-1]) == d.equals
		}
		var err error
		k.text, err = v.AppendText(k.text[:0])
		return err == nil && string(k.text) == d.equals
	case page.Bool:
		return string(v.Raw) == d.equals
	case page.Number:
		n, digits, _ := parseNumber(v.Raw, k.digits)
		k.digits = digits
		return d.number != nil && n.plain() && string(n.append(k.text[:0])) == string(d.number)
	}
	return false
}

// undeclared takes a member that the contract does not declare.
func (k *Checker) undeclared(e page.Extra) {
	if e.ID < 0 {
		k.drift.pendingBeyond++
	} else {
		k.drift.pending = append(k.drift.pending, met{e.ID, e.Value.Kind})
	}
	if !e.Top || k.c.decl.Extra == extraDrop {
		return
	}
	name, raw := e.Name, e.Value.Raw
	fail := func(f fault) {
		switch n := len(k.extraReasons); {
		case n < maxExtraReasons:
			k.extraReasons = append(k.extraReasons, Reason{Field: shortName(name), Code: f.code, Message: f.message})
		case n == maxExtraReasons:
			k.extraReasons = append(k.extraReasons, Reason{Field: "…", Code: f.code, Message: "and more undeclared members"})
		}
	}
	if k.c.decl.Extra == extraQuarantine {
		fail(fault{CodeExtra, "the contract does not declare this member"})
		return
	}
	if len(name) > 0 && name[0] == '_' || k.c.columns[string(name)] || string(raw) == "null" {
		return
	}
	if bad := checkName(name); bad.code != "" {
		fail(bad)
		return
	}
	start, mark := len(k.extraOut), len(k.names)
	if k.large {
		return
	}
	k.extraOut = append(appendQuoted(k.extraOut, name), ':')
	var bad fault
	if k.extraOut, bad = k.document(k.extraOut, raw); bad.code != "" {
		k.extraOut = k.extraOut[:start]
		if bad.code == CodeItemTooLarge { // the members together
			k.large = true
			return
		}
		fail(bad)
		return
	}
	k.extraOut = append(k.extraOut, ',')
	k.names = append(k.names, name...)
	k.extras = append(k.extras, member{name: k.names[mark:], start: start, end: len(k.extraOut)})
}

// columns checks the fields and renders all columns in the order of their names.
func (k *Checker) columns(deleted bool) {
	slices.SortFunc(k.extras, byName)
	k.out, k.head = append(k.out[:0], '{'), -1
	// No column begins with _, so ours stand together, before the first column with a greater first byte.
	ours := func(next byte) {
		if k.head < 0 && next > '_' {
			k.head = len(k.out)
			if deleted {
				k.out = append(k.out, `"_deleted":true,`...)
			}
			k.tail = len(k.out)
		}
	}
	extras := k.extras
	extra := func() {
		ours(extras[0].name[0])
		k.out = append(k.out, k.extraOut[extras[0].start:extras[0].end]...)
		extras = extras[1:]
	}
	for i := range k.c.fields {
		f := &k.c.fields[i]
		for len(extras) > 0 && bytes.Compare(extras[0].name, f.name) < 0 {
			extra()
		}
		ours(f.name[0])
		if !deleted || f.key || f.version {
			k.field(i, f)
		}
	}
	for len(extras) > 0 {
		extra()
	}
	ours(utf8.RuneSelf)
}

// maxShown bounds the bytes of an undeclared name in a reason, of which the ledger keeps some.
const maxShown = 200

// maxExtraReasons bounds the reasons that a record's undeclared members have; one more says that there are more.
const maxExtraReasons = 1000

// maxLine is more than the line of any item has: a byte of an item takes at most six, a control character's escape. What
// is longer is not written out to its end.
const maxLine = 6*store.MaxItemBytes + 4096

func tooLarge() fault {
	return fault{CodeItemTooLarge, "want at most 409,600 bytes by DynamoDB's size rules"}
}

// shortName is a name as reasons show it.
func shortName(name []byte) string {
	if len(name) <= maxShown {
		return string(name)
	}
	return strings.ToValidUTF8(string(name[:maxShown]), "") + "…"
}

// field checks one field and renders its column, unless it is left out.
func (k *Checker) field(i int, f *field) {
	v := &k.mapKey
	if f.slot >= 0 {
		v = &k.values[f.slot]
	}
	if v.Kind == page.Missing || v.Kind == page.Null {
		k.absent(i, f, v.Kind == page.Null)
		return
	}
	start, before := len(k.out), len(k.reasons)
	k.out = append(k.out, f.member...)
	switch {
	case f.list:
		k.list(f, v)
	case f.scalar == typeDocument:
		var bad fault
		if k.out, bad = k.document(k.out, v.Raw); bad.code != "" {
			k.fail(f.decl.Name, bad)
		}
	default:
		k.value(i, f, v)
	}
	if len(k.reasons) > before {
		k.out = k.out[:start]
		return
	}
	k.out = append(k.out, ',')
}

// absent checks a field without a value, and renders its const or default.
func (k *Checker) absent(i int, f *field, null bool) {
	switch name := f.decl.Name; {
	case f.key && (f.fixed == nil || f.decl.Required):
		k.fail(name, fault{CodeKeyEmpty, "want a value: the field is part of the key"})
	case null && (f.version || !f.nullable):
		k.fail(name, fault{CodeNull, "want a value, not null"})
	case !null && (f.version && f.fixed == nil || f.decl.Required):
		k.fail(name, fault{CodeMissing, "want a value"})
	case f.fixed != nil:
		k.keep(i, f, f.fixed)
		k.out = append(k.out, f.column...)
	}
}

// value checks and renders a single scalar.
func (k *Checker) value(i int, f *field, v *page.Value) {
	name := f.decl.Name
	text, bad := k.scalar(f, v)
	switch {
	case f.key && bad.code == CodeType:
		k.fail(name, fault{CodeKeyType, bad.message})
		return
	case f.key && v.Kind == page.String && k.empty:
		k.fail(name, fault{CodeKeyEmpty, "want a value: the field is part of the key"})
		return
	case bad.code != "":
		k.fail(name, bad)
		return
	}
	if f.key && !v.Plain && bytes.IndexByte(text, 0) >= 0 { // only an escape can write it
		k.fail(name, fault{CodeBadText, "want no U+0000 in a key part"})
	}
	if f.constrained {
		k.constrain(f, text)
	}
	if f.key || f.version {
		k.keep(i, f, text)
	}
}

// keep keeps a canonical text for key and version.
func (k *Checker) keep(i int, f *field, text []byte) {
	if f.key {
		start := len(k.keyText)
		k.keyText = append(k.keyText, text...)
		k.keySpans[i] = [2]int{start, len(k.keyText)}
	}
	if f.version {
		if f.scalar == typeTimestamp {
			k.version = appendVersion(k.version, text)
		} else if v, err := etl.VersionInteger(string(text)); err != nil {
			k.fail(f.decl.Name, fault{CodeNumberTooLong, err.Error()})
		} else {
			k.version = append(k.version, v...)
		}
	}
}

// list renders an array of scalars.
func (k *Checker) list(f *field, v *page.Value) {
	if v.Kind != page.Array {
		k.fail(f.decl.Name, mismatch("a list", v.Kind))
		return
	}
	n := 0
	k.out = append(k.out, '[')
	for e := range elements(v.Raw) {
		n++
		if len(k.out) > maxLine {
			k.fail(f.decl.Name, tooLarge())
			return
		}
		text, bad := k.scalar(f, &e)
		if bad.code != "" {
			k.fail(f.decl.Name, bad)
			continue
		}
		k.constrain(f, text)
		k.out = append(k.out, ',')
	}
	if n > 0 && k.out[len(k.out)-1] == ',' {
		k.out = k.out[:len(k.out)-1]
	}
	k.out = append(k.out, ']')
	k.length(f, n, "elements")
}

// constrain checks a canonical text against what the field declares.
func (k *Checker) constrain(f *field, text []byte) {
	name := f.decl.Name
	if f.isConst && string(text) != string(f.fixed) {
		k.fail(name, fault{CodeConst, "want the declared const"})
	}
	if f.enum != nil && !f.enum[string(text)] {
		k.fail(name, fault{CodeEnum, "want one of the declared values"})
	}
	low, high := fault{CodeMin, "want at least the declared min"}, fault{CodeMax, "want at most the declared max"}
	compare := compareNumbers
	switch f.scalar {
	case typeTimestamp:
		low.code, high.code = CodeTimestampRange, CodeTimestampRange
		compare = bytes.Compare
	case typeDate:
		compare = bytes.Compare
	}
	if f.min != nil && compare(text, f.min) < 0 {
		k.fail(name, low)
	}
	if f.max != nil && compare(text, f.max) > 0 {
		k.fail(name, high)
	}
	if !f.list && (f.decl.MinLen != nil || f.decl.MaxLen != nil && len(text) > *f.decl.MaxLen) { // a character has a byte or more
		k.length(f, utf8.RuneCount(text), "characters")
	}
	if f.pattern != nil && !f.pattern.Match(text) {
		k.fail(name, fault{CodePattern, "want a text that matches the declared pattern"})
	}
}

// length checks a number of characters or elements.
func (k *Checker) length(f *field, n int, what string) {
	if lo := f.decl.MinLen; lo != nil && n < *lo {
		k.fail(f.decl.Name, fault{CodeTooShort, "want at least " + strconv.Itoa(*lo) + " " + what})
	}
	if hi := f.decl.MaxLen; hi != nil && n > *hi {
		k.fail(f.decl.Name, fault{CodeTooLong, "want at most " + strconv.Itoa(*hi) + " " + what})
	}
}

// scalar appends a value to k.out, as JSON in canonical form. It returns its canonical text, valid until the next call.
func (k *Checker) scalar(f *field, v *page.Value) (text []byte, bad fault) {
	k.text, k.empty = k.text[:0], false
	text = v.Raw
	if v.Kind == page.String {
		if v.Plain && f.verbatim {
			k.out = append(k.out, v.Raw...)
			text = v.Raw[1 : len(v.Raw)-1]
			k.empty = len(text) == 0
			return text, fault{}
		}
		if text, bad = k.textOf(f, v); bad.code != "" {
			return nil, bad
		}
		k.empty = len(text) == 0
	}
	switch {
	case f.scalar == typeString && v.Kind == page.String:
		k.out = appendQuoted(k.out, text)
		return text, fault{}
	case f.scalar == typeString && v.Kind == page.Number:
		n, _ := k.number(text)
		if !n.plain() {
			return nil, fault{CodeNumberOutOfRange, "want an exponent that can be written out"}
		}
		k.text = n.append(k.text)
		k.out = appendQuoted(k.out, k.text)
		return k.text, fault{}
	case f.scalar == typeBoolean && v.Kind == page.Bool:
		return k.appendText(text), fault{}
	case f.scalar == typeBoolean && v.Kind == page.Number:
		n, _ := k.number(text)
		switch one := n.exp == 1 && string(n.digits) == "1"; {
		case n.neg || len(n.digits) > 1 || n.exp > 1:
			return nil, fault{CodeBooleanSyntax, "want 0 or 1"}
		case !one && len(n.digits) > 0:
			return nil, notBoolean()
		default:
			return k.truth(one), fault{}
		}
	case f.scalar == typeBoolean && v.Kind == page.String:
		return k.boolean(text)
	case f.scalar == typeDate && v.Kind == page.String:
		k.out = append(k.out, '"')
		start := len(k.out)
		k.out, bad = f.moment.parseDate(k.out, text)
		text = k.out[start:]
		k.out = append(k.out, '"')
		return text, bad
	case f.scalar == typeTimestamp && (v.Kind == page.String || v.Kind == page.Number && f.moment.unit > 0):
		return k.timestamp(f, text)
	case (f.scalar == typeInteger || f.scalar == typeDecimal) && (v.Kind == page.String || v.Kind == page.Number):
		return k.decimal(f, v, text)
	}
	return nil, mismatch(f.want(), v.Kind)
}

// appendText appends a canonical text that stands for itself in JSON, and returns it.
func (k *Checker) appendText(text []byte) []byte {
	k.out = append(k.out, text...)
	return text
}

// timestamp is scalar for timestamps.
func (k *Checker) timestamp(f *field, text []byte) ([]byte, fault) {
	k.out = append(k.out, '"')
	start := len(k.out)
	done := false
	if f.moment.unit == 0 && f.moment.layout == "" {
		k.out, done = appendZulu(k.out, text)
	}
	if !done {
		t, bad := k.instant(f, text)
		if bad.code != "" {
			return nil, bad
		}
		k.out = appendTimestamp(k.out[:start], t)
	}
	text = k.out[start:]
	k.out = append(k.out, '"')
	return text, fault{}
}

// decimal is scalar for integers and decimals.
func (k *Checker) decimal(f *field, v *page.Value, text []byte) ([]byte, fault) {
	if v.Kind == page.String && f.separators != (separators{}) {
		var ok bool
		if k.other, ok = f.separators.plain(k.other[:0], text); !ok {
			return nil, fault{CodeNumberSyntax, "want a number with the declared separators"}
		}
		text = k.other
	}
	if isCanonical(text, f.scalar == typeInteger) {
		return k.appendText(text), fault{}
	}
	n, bad := k.number(text)
	if bad.code == "" && f.scalar == typeInteger {
		bad = n.checkInteger()
	} else if bad.code == "" {
		bad = n.check()
	}
	if bad.code != "" {
		return nil, bad
	}
	start := len(k.out)
	k.out = n.append(k.out)
	return k.out[start:], fault{}
}

// textOf is the cleaned text of a string.
func (k *Checker) textOf(f *field, v *page.Value) ([]byte, fault) {
	var text []byte
	if v.Plain {
		text = v.Raw[1 : len(v.Raw)-1]
	} else {
		var err error
		if k.text, err = v.AppendText(k.text); err != nil {
			return nil, fault{CodeBadText, err.Error()}
		}
		text = k.text
	}
	for i, clean := range f.clean {
		if clean == nil {
			text = bytes.TrimSpace(text)
			continue
		}
		buf := &k.cleaned[i%2]
		*buf = clean((*buf)[:0], text)
		text = *buf
	}
	return text, fault{}
}

// number takes a number apart; its digits are valid until the next call.
func (k *Checker) number(lit []byte) (number, fault) {
	n, digits, ok := parseNumber(lit, k.digits)
	k.digits = digits
	if !ok {
		return n, fault{CodeNumberSyntax, "want a number as JSON writes it"}
	}
	return n, fault{}
}

func (k *Checker) boolean(text []byte) ([]byte, fault) {
	value, ok := parseBoolean(text)
	if !ok {
		return nil, notBoolean()
	}
	return k.truth(value), fault{}
}

func notBoolean() fault {
	return fault{CodeBooleanSyntax, "want one of true false t f yes no y n on off 1 0"}
}

// truth appends a boolean and returns its text.
func (k *Checker) truth(value bool) []byte {
	start := len(k.out)
	k.out = strconv.AppendBool(k.out, value)
	return k.out[start:]
}

func (k *Checker) instant(f *field, text []byte) (time.Time, fault) {
	if f.moment.unit == 0 {
		return f.moment.parse(text)
	}
	n, bad := k.number(text)
	if bad.code != "" {
		return time.Time{}, bad
	}
	return f.moment.epoch(n)
}

// want names what the field takes.
func (f *field) want() string {
	switch {
	case f.scalar == typeInteger:
		return "an integer"
	case f.scalar == typeTimestamp && f.moment.unit > 0:
		return "an epoch number"
	case f.scalar == typeString:
		return "a text"
	}
	return "a " + f.scalar
}

func mismatch(want string, got page.Kind) fault {
	return fault{CodeType, "want " + want + ", got " + got.String()}
}

// audit renders the audit columns, which stay the same for all records of a page.
func (k *Checker) audit(from Origin) {
	if k.batch != nil && from == k.from {
		return
	}
	k.from = from
	id := from.Batch.String()
	render := func(dst []byte, name, value string) []byte {
		dst = append(append(append(dst[:0], '"'), name...), '"', ':')
		return append(appendQuoted(dst, []byte(value)), ',')
	}
	k.batch = render(k.batch, "_batch", id)
	k.ingested = render(k.ingested, "_ingested_at", string(appendTimestamp(nil, from.FetchedAt)))
	k.run = render(k.run, "_run", id+"/"+strconv.Itoa(from.Extraction)+"/"+k.c.revision.String())
	k.slot = etl.VersionSlot(from.Batch, from.Extraction)
}

// finish puts the valid line together, and finds the faults of the item as a whole.
func (k *Checker) finish() {
	k.pk = k.join(k.pk[:0], k.c.partition)
	k.sk = k.join(k.sk[:0], k.c.sort)
	if len(k.pk) > store.MaxPKBytes {
		k.fail(k.c.partitionName, fault{CodeKeyTooLong, "want at most 2,048 bytes"})
	}
	if len(k.sk) > store.MaxSKBytes {
		k.fail(k.c.sortName, fault{CodeKeyTooLong, "want at most 1,024 bytes"})
	}
	// The digest covers the columns as one object. There is at least one: the key.
	last := len(k.out) - 1
	k.out[last] = '}'
	sum := sha256.Sum256(k.out)
	k.out[last] = ','

	k.line = append(k.line[:0], k.out[:k.head]...)
	k.line = append(k.line, k.batch...)
	k.line = append(k.line, k.out[k.head:k.tail]...)
	k.line = append(k.line, k.ingested...)
	k.line = append(appendQuoted(append(k.line, `"_pk":`...), k.pk), ',')
	k.line = append(append(k.line, `"_rank":"`...), k.c.rankHead...)
	if k.c.version >= 0 {
		k.line = append(k.line, k.version...)
	} else {
		k.line = append(k.line, k.slot...)
	}
	k.line = append(k.line, k.c.rankMiddle...)
	k.line = hex.AppendEncode(k.line, sum[:etl.DigestLen/2])
	k.line = append(append(k.line, `",`...), k.run...)
	if len(k.c.sort) > 0 {
		k.line = append(appendQuoted(append(k.line, `"_sk":`...), k.sk), ',')
	}
	k.line = append(k.line, k.out[k.tail:]...)
	k.line[len(k.line)-1] = '}'

	// An item is never twice as large as its line, so most need no counting.
	if 2*len(k.line) > store.MaxItemBytes && itemSize(k.line) > store.MaxItemBytes {
		k.fail("", tooLarge())
	}
}

// join writes the parts of a key as etl.JoinKey does.
func (k *Checker) join(dst []byte, fields []int) []byte {
	for n, i := range fields {
		if n > 0 {
			dst = append(dst, '#')
		}
		dst = appendKeyPart(dst, k.keyText[k.keySpans[i][0]:k.keySpans[i][1]])
	}
	return dst
}

// quarantine puts the quarantine line together. The raw text goes in exactly as it arrived: as JSON under `record` if it
// is valid and on one line, else as a string under `record_text`, or under `record_base64` if it is not even UTF-8; the
// @key likewise under `key` or `key_base64`.
func (k *Checker) quarantine(rec page.Record, at Place) []byte {
	text := func(dst []byte, name, value string) []byte {
		dst = append(append(dst, name...), ':')
		return appendQuoted(dst, []byte(strings.ToValidUTF8(value, "\ufffd")))
	}
	number := func(dst []byte, name string, n int) []byte {
		return strconv.AppendInt(append(append(dst, name...), ':'), int64(n), 10)
	}
	k.line = slices.Grow(k.line[:0], len(rec.Raw)+1024) // a large record is copied once
	b := text(append(k.line, '{'), `"batch"`, k.from.Batch.String())
	b = number(append(b, `,"place":{`...), `"part"`, at.Part)
	b = number(append(b, ','), `"page"`, at.Page)
	b = append(number(append(b, ','), `"index"`, at.Index), '}')
	switch {
	case rec.Key != "" && utf8.ValidString(rec.Key):
		b = text(append(b, ','), `"key"`, rec.Key)
	case rec.Key != "":
		b = append(b, `,"key_base64":"`...)
		b = append(base64.StdEncoding.AppendEncode(b, []byte(rec.Key)), '"')
	}
	b = append(b, `,"reasons":[`...)
	for i, r := range k.reasons {
		if i > 0 {
			b = append(b, ',')
		}
		b = text(append(b, '{'), `"field"`, r.Field)
		b = text(append(b, ','), `"code"`, r.Code)
		b = append(text(append(b, ','), `"message"`, r.Message), '}')
	}
	b = append(b, ']')
	switch {
	case !utf8.Valid(rec.Raw):
		b = append(b, `,"record_base64":"`...)
		b = append(base64.StdEncoding.AppendEncode(b, rec.Raw), '"')
	case bytes.ContainsAny(rec.Raw, "\r\n") || !json.Valid(rec.Raw):
		b = appendQuoted(append(b, `,"record_text":`...), rec.Raw)
	default:
		b = append(append(b, `,"record":`...), rec.Raw...)
	}
	k.line = append(b, '}')
	return k.line
}
