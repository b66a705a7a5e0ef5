package pipeline

import (
	"cmp"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // the zones of timestamps mean the same on every machine

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/page"
)

// check holds the rules about several keys together, and sets the defaults that depend on other keys.
func (r *reader) check() {
	r.checkSource()
	r.checkPaginate()
	r.checkRetry()
	for i := range r.p.Contract.Fields {
		r.checkField(&r.p.Contract.Fields[i])
	}
	r.checkContract()
	r.checkChecks()
	r.checkTarget()
}

// has reports whether the key is in the file.
func (r *reader) has(path string) bool { _, ok := r.places[path]; return ok }

// good reports whether none of the values was refused before, so that rules about them make sense.
func (r *reader) good(paths ...string) bool {
	return !slices.ContainsFunc(paths, func(p string) bool { return r.bad[p] })
}

// atKey and atValue report a rule broken at a key of the file, or at its value.
func (r *reader) atKey(path, instead, what string, args ...any) {
	r.fault(r.places[path].key, path, instead, what, args...)
}

func (r *reader) atValue(path, instead, what string, args ...any) {
	r.fault(r.places[path].value, path, instead, what, args...)
}

func (r *reader) checkSource() {
	s := &r.p.Source
	if s.Method == http.MethodGet && r.good("source.method") {
		if r.has("source.body") {
			r.atKey("source.body", "method: POST with it", "a GET has no body")
		}
		if r.has("source.idempotency_header") {
			r.atKey("source.idempotency_header", "method: POST with it", "a GET may be tried again without a key")
		}
	}
	names := map[string]bool{}
	for _, h := range s.Headers {
		path := join("source.headers", h.Name)
		low := strings.ToLower(h.Name)
		if names[low] {
			r.atKey(path, "it once", "the header is there already in other letters")
		}
		names[low] = true
	}
	if h := s.Auth.Name; s.Auth.Scheme == "header" && names[strings.ToLower(h)] {
		r.atValue("source.auth.header.name", "it under source.auth alone", "source.headers sets %s too", h)
	}
	if h := s.IdempotencyHeader; h != "" && names[strings.ToLower(h)] {
		r.atValue("source.idempotency_header", "it here alone", "source.headers sets %s too", h)
	}
	if s.Auth.Scheme == "query" {
		r.queryOnce("source.auth.query.name", s.Auth.Name)
	}
	if s.NDJSON {
		for path, value := range map[string]string{
			"source.records":    s.Records,
			"source.error_when": s.ErrorWhen,
			"source.paginate." + s.Paginate.Style + ".has_more": s.Paginate.HasMore,
			"source.paginate.page.total_pages":                  s.Paginate.Total,
			"source.paginate.offset.total":                      s.Paginate.Total,
			"source.paginate.cursor.next":                       s.Paginate.Path,
			"source.paginate.next_url.path":                     s.Paginate.Path,
		} {
			if value != "" && r.has(path) {
				r.atKey(path, "the file without it", "a body of ndjson has no document around its records to look into")
			}
		}
	}
	r.checkKeyPath()
	if style := s.Paginate.Style; s.Paginate.Param != "" && strings.TrimSpace(s.Body) != "" && !strings.HasPrefix(strings.TrimSpace(s.Body), "{") && r.good("source.body") {
		r.atValue("source.body", "a JSON object", "source.paginate.%s puts %s into the body, which is no object", style, quote(s.Paginate.Param))
	}
	if at, ok := r.places["source.budget"]; ok {
		r.p.budgetLine, r.p.budgetColumn = at.key.line, at.key.column
	}
	if s.Budget.Reserve > 0 && s.Budget.Reserve >= s.Budget.Daily {
		r.atValue("source.budget.reserve", "fewer requests than daily has", "nothing is left of a daily quota of %d", s.Budget.Daily)
	}
	if u, err := url.Parse(s.URL); err == nil && s.Budget.Name == "" {
		s.Budget.Name = strings.ToLower(u.Host)
	}
}

// checkKeyPath holds the uses of @key together: a column from @key is what says that records stand in an object.
func (r *reader) checkKeyPath() {
	s, key := r.p.Source, "@key"
	column := slices.IndexFunc(r.p.Contract.Fields, func(f Field) bool { return f.From == key })
	if column >= 0 {
		if s.NDJSON {
			r.atValue(join("contract.fields", r.p.Contract.Fields[column].Name)+".from", "a path in the record", "a line of ndjson has no key")
		}
		return
	}
	for path, value := range map[string]string{"contract.delete.from": deleteFrom(r.p.Contract.Delete), "source.paginate.keyset.from": s.Paginate.Path} {
		if value == key {
			r.atValue(path, "a column from @key with it", "only a column from @key says that the records stand in an object")
		}
	}
}

func deleteFrom(d *Delete) string {
	if d == nil {
		return ""
	}
	return d.From
}

// queryOnce reports a query parameter that two keys would set.
func (r *reader) queryOnce(path, name string) {
	for _, q := range r.p.Source.Query {
		if q.Name == name && name != "" {
			r.atValue(path, "it in one place", "source.query sets %s too", quote(name))
		}
	}
}

func (r *reader) checkPaginate() {
	g := &r.p.Source.Paginate
	if g.Style == "" {
		g.Style = "none"
	}
	if g.MaxPages == 0 {
		g.MaxPages = 10_000
	}
	base := "source.paginate." + g.Style + "."
	sizeParam, size := base+"size_param", base+"size"
	if g.Style == "offset" {
		sizeParam, size = base+"limit_param", base+"limit"
	}
	r.queryOnce(base+"param", g.Param)
	r.queryOnce(sizeParam, g.SizeParam)
	if g.Param != "" && g.Param == g.SizeParam {
		r.atValue(sizeParam, "two parameters", "%s carries the position already", quote(g.Param))
	}
	if a := r.p.Source.Auth; a.Scheme == "query" && a.Name != "" && (a.Name == g.Param || a.Name == g.SizeParam) {
		r.atValue("source.auth.query.name", "another parameter", "source.paginate sets %s too", quote(a.Name))
	}
	if !r.good(size) {
		return
	}
	last := size[strings.LastIndexByte(size, '.')+1:]
	if g.SizeParam != "" && g.Size == 0 {
		r.atKey(sizeParam, last+" with it", "the size of a page is missing")
	}
	if g.StopOnShort && g.Size == 0 {
		r.atKey(base+"stop_on_short", last+" with it", "nothing says how many records a full page has")
	}
}

func (r *reader) checkRetry() {
	t := r.p.Source.Retry
	if t.Cap < t.Base && r.good("source.retry.cap", "source.retry.base") {
		at := "source.retry.cap"
		if !r.has(at) {
			at = "source.retry.base"
		}
		r.atValue(at, "a cap of at least base", "cap (%s) is less than base (%s)", etl.FormatSpan(t.Cap), etl.FormatSpan(t.Base))
	}
	if t.MaxWait < t.InlineWait && r.good("source.retry.max_wait", "source.retry.inline_wait") {
		at := "source.retry.max_wait"
		if !r.has(at) {
			at = "source.retry.inline_wait"
		}
		r.atValue(at, "a max_wait of at least inline_wait", "max_wait (%s) is less than inline_wait (%s)", etl.FormatSpan(t.MaxWait), etl.FormatSpan(t.InlineWait))
	}
}

// number is how integers and decimals stand in a pipeline file: without exponent and superfluous zeros in front.
var number = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`)

// order gives the place of a value among those of its type, or says why it is none. Texts and booleans have no order.
func order(typ, text string) (*big.Rat, error) {
	switch typ {
	case "integer", "decimal":
		if !number.MatchString(text) || typ == "integer" && strings.Contains(text, ".") {
			return nil, fmt.Errorf("%s is no %s", quote(text), typ)
		}
		if digits := strings.Trim(strings.Replace(text, ".", "", 1), "-0"); len(digits) > etl.MaxDigits {
			return nil, fmt.Errorf("%s has more than %d digits", quote(text), etl.MaxDigits)
		}
		n, _ := new(big.Rat).SetString(text) // the form is a decimal's, so it is one
		return n, nil
	case "timestamp", "date":
		layout := time.RFC3339Nano
		if typ == "date" {
			layout = time.DateOnly
		}
		t, err := time.Parse(layout, text)
		if err != nil {
			return nil, fmt.Errorf("%s is no %s", quote(text), typ)
		}
		n := big.NewRat(int64(t.Nanosecond()), int64(time.Second))
		return n.Add(n, new(big.Rat).SetInt64(t.Unix())), nil
	case "boolean":
		if text != "true" && text != "false" {
			return nil, fmt.Errorf("%s is neither true nor false", quote(text))
		}
	}
	return nil, nil
}

// valueLike says how a value of a type stands in a pipeline file.
func valueLike(typ string) string {
	switch typ {
	case "timestamp":
		return "a timestamp like 2026-11-30T10:00:00Z"
	case "date":
		return "a date like 2026-11-30"
	case "boolean":
		return "true or false"
	}
	return "a plain " + typ + " of at most 38 digits"
}

func (r *reader) checkField(f *Field) {
	base := join("contract.fields", f.Name)
	if f.From == "" {
		f.From = page.Member(f.Name).String()
	}
	if f.Type == "list" && f.Items == "" {
		f.Items = "string"
	}
	if !r.good(base, base+".type", base+".items") {
		return
	}
	for _, k := range r.column {
		path := join(base, k.key)
		if k.only == nil || !r.has(path) || slices.Contains(k.only, f.Type) || k.elements && slices.Contains(k.only, f.Items) {
			continue
		}
		r.atKey(path, "it for "+strings.Join(k.only, ", ")+" only", "%s has no %s", f.typeName(), k.key)
		r.bad[path] = true
	}
	r.checkValues(f, base)
	if f.MinLen != nil && f.MaxLen != nil && *f.MinLen > *f.MaxLen {
		r.atValue(base+".max_length", "at least min_length", "max_length is less than min_length")
	}
	if slices.Contains(f.Clean, "lower") && slices.Contains(f.Clean, "upper") {
		r.atValue(base+".clean", "one of them", "lower and upper undo each other")
	}
	switch thousands := base + ".thousands"; {
	case !r.good(thousands, base+".decimal_comma"):
	case f.Thousands == "comma" && f.DecimalComma:
		r.atValue(thousands, "another separator, like point,", "the comma is the decimal sign already")
	case f.Thousands == "point" && !f.DecimalComma:
		r.atValue(thousands, "decimal_comma: true with it", "the point is the decimal sign already")
	}
	if f.Required && f.Default != nil {
		r.atKey(base+".default", "one of the two", "a required value has no default")
	}
	if t := cmp.Or(f.Items, f.Type); t == "timestamp" || t == "date" {
		r.checkTime(f, base, t)
	}
}

// typeName names the type in a message.
func (f *Field) typeName() string {
	if f.Type == "list" {
		return "a list of " + f.Items
	}
	return "a column of type " + f.Type
}

// checkValues holds const, default, enum, min and max against the type and one another.
func (r *reader) checkValues(f *Field, base string) {
	if f.Const != nil {
		for _, k := range []string{"default", "enum", "min", "max"} {
			if r.has(base+"."+k) && r.good(base+"."+k) {
				r.atKey(base+"."+k, "const alone", "a constant has no %s", k)
			}
		}
	}
	t := cmp.Or(f.Items, f.Type)
	values := map[string]*big.Rat{}
	for _, v := range []struct {
		key  string
		text *string
	}{{"const", f.Const}, {"default", f.Default}, {"min", f.Min}, {"max", f.Max}} {
		path := base + "." + v.key
		if v.text == nil || !r.good(path) {
			continue
		}
		n, err := order(t, *v.text)
		if err != nil {
			r.atValue(path, valueLike(t), "%s", err)
			continue
		}
		values[v.key] = n
	}
	for i, text := range f.Enum {
		if _, err := order(t, text); err != nil && r.good(base+".enum") {
			r.atValue(fmt.Sprintf("%s.enum[%d]", base, i), valueLike(t), "%s", err)
		}
	}
	less := func(a, b string) bool {
		return values[a] != nil && values[b] != nil && values[a].Cmp(values[b]) < 0
	}
	if less("max", "min") {
		r.atValue(base+".max", "at least min", "max (%s) is less than min (%s)", *f.Max, *f.Min)
	}
	if less("default", "min") || less("max", "default") {
		r.atValue(base+".default", "a value within min and max", "the default is out of range")
	}
	if f.Default != nil && f.Enum != nil && !slices.Contains(f.Enum, *f.Default) {
		r.atValue(base+".default", "one of enum's values", "the default is none of enum's values")
	}
}

// checkTime holds unit, layout and zone of timestamps, and the layout of dates, against one another.
func (r *reader) checkTime(f *Field, base, typ string) {
	layout, zone, unit := base+".layout", base+".zone", base+".unit"
	if !r.good(layout, zone, unit) {
		return
	}
	offset := strings.Contains(f.Layout, "Z07") || strings.Contains(f.Layout, "-07")
	switch {
	case f.Layout != "" && f.Unit != "":
		r.atKey(layout, "one of the two", "unit says already how the instant is written")
	case strings.Contains(f.Layout, "MST"):
		r.atValue(layout, "-07:00, or zone", "%s has the letters of a zone, which are ambiguous", quote(f.Layout))
	case f.Layout != "" && !datedLayout(f.Layout):
		r.atValue(layout, "a layout like 2006-01-02 15:04:05", "%s does not give year, month and day", quote(f.Layout))
	case typ == "date":
	case f.Layout != "" && !offset && f.Zone == "":
		r.atValue(layout, "zone with it, like zone: Europe/Berlin", "%s has no offset", quote(f.Layout))
	case f.Zone != "" && offset:
		r.atKey(zone, "one of the two", "the layout has an offset already")
	case f.Zone != "" && f.Unit != "" && f.Unit != "rfc3339":
		r.atKey(zone, "one of the two", "a number of %s since 1970 has no zone", f.Unit)
	}
	if _, err := time.LoadLocation(f.Zone); err != nil || f.Zone == "Local" {
		r.atValue(zone, "an IANA name like Europe/Berlin", "%s is no time zone", quote(f.Zone))
	}
	if typ == "timestamp" && f.Layout == "" {
		f.Unit = cmp.Or(f.Unit, "rfc3339")
	}
}

// datedLayout reports whether a layout of Go's time package keeps the day.
func datedLayout(layout string) bool {
	then := time.Date(1987, 10, 24, 21, 43, 56, 0, time.UTC)
	got, err := time.Parse(layout, then.Format(layout))
	return err == nil && got.UTC().Format(time.DateOnly) == then.Format(time.DateOnly)
}

func (r *reader) field(name string) *Field {
	i := slices.IndexFunc(r.p.Contract.Fields, func(f Field) bool { return f.Name == name })
	if i < 0 {
		return nil
	}
	return &r.p.Contract.Fields[i]
}

// declared finds the column that a key names, or reports that there is none.
func (r *reader) declared(path, name string) *Field {
	f := r.field(name)
	if f != nil || !r.good("contract.fields") || !r.has("contract.fields") {
		return f
	}
	names := make([]string, len(r.p.Contract.Fields))
	for i, f := range r.p.Contract.Fields {
		names[i] = f.Name
	}
	r.atValue(path, cmp.Or(Nearest(name, names), "a name that stands under contract.fields"), "%s is not among contract.fields", quote(name))
	return nil
}

func (r *reader) checkContract() {
	c := r.p.Contract
	if r.good("contract.key") {
		for i, name := range c.Key {
			path := fmt.Sprintf("contract.key[%d]", i)
			f := r.declared(path, name)
			if f == nil || !r.good(join("contract.fields", name)+".type") {
				continue
			}
			if f.Type == "document" || f.Type == "list" {
				r.atValue(path, "a field of another type", "a %s cannot be part of a key", f.Type)
			}
			r.always(name, "the key")
		}
	}
	if c.Version != "" && r.good("contract.version") {
		if f := r.declared("contract.version", c.Version); f != nil && r.good(join("contract.fields", c.Version)+".type") {
			if f.Type != "timestamp" && f.Type != "integer" {
				r.atValue("contract.version", "a field of type timestamp or integer, or no version,", "%s is a %s", quote(c.Version), f.Type)
			}
			r.always(c.Version, "the version")
		}
	}
}

// always reports a field of key or version that says it may be missing.
func (r *reader) always(name, of string) {
	path := join("contract.fields", name) + ".required"
	if f := r.field(name); r.has(path) && r.good(path) && !f.Required {
		r.atValue(path, "true, or leave it out,", "a field of %s is always required", of)
	}
	path = join("contract.fields", name) + ".nullable"
	if f := r.field(name); r.has(path) && r.good(path) && *f.Nullable {
		r.atValue(path, "false, or leave it out,", "a field of %s is never null", of)
	}
}

func (r *reader) checkChecks() {
	c := r.p.Checks
	if c.MinRecords != nil && c.MaxRecords != nil && *c.MinRecords > *c.MaxRecords {
		r.atValue("checks.max_records", "at least min_records", "max_records is less than min_records")
	}
	if f := r.field(r.p.Contract.Version); c.MaxAge > 0 && r.good("contract.version") && (f == nil || f.Type != "timestamp") {
		r.atKey("checks.max_age", "the file without it, or a contract.version of type timestamp,", "without a timestamp as contract.version nothing has an age")
	}
}

func (r *reader) checkTarget() {
	t, key := r.p.Target, r.p.Contract.Key
	if !r.good("contract.key", "target.partition", "target.sort") || len(key) == 0 {
		return
	}
	if len(t.Partition) == 0 {
		if len(t.Sort) > 0 {
			r.atKey("target.sort", "partition with it", "sort without partition")
		}
		if r.has("target.partition") {
			r.atValue("target.partition", "at least one element", "the list is empty")
		}
		return
	}
	for _, list := range []struct {
		path  string
		names []string
	}{{"target.partition", t.Partition}, {"target.sort", t.Sort}} {
		for i, name := range list.names {
			path := fmt.Sprintf("%s[%d]", list.path, i)
			switch {
			case !slices.Contains(key, name):
				r.atValue(path, cmp.Or(Nearest(name, key), "fields of contract.key only"), "%s is not part of contract.key", quote(name))
			case list.path == "target.sort" && slices.Contains(t.Partition, name):
				r.atValue(path, "it in one of the two", "%s is in partition already", quote(name))
			}
		}
	}
	for _, name := range key {
		if !slices.Contains(t.Partition, name) && !slices.Contains(t.Sort, name) {
			r.atKey("target.partition", "every field of contract.key into partition or sort", "%s of contract.key is in neither partition nor sort", quote(name))
		}
	}
}

// CheckTogether holds the rules between pipeline files: no two pipelines have one name, and a budget of one name has the
// same limits everywhere. A pipeline without limits takes no part in the latter. The error is as that of [Parse].
func CheckTogether(pipelines []*Pipeline) error {
	var faults Faults
	named, budgets, tables := map[string]*Pipeline{}, map[string]*Pipeline{}, map[string]*Pipeline{}
	for _, p := range pipelines {
		if first, again := named[p.Name]; again {
			faults = append(faults, Fault{p.File, 1, 1, "pipeline", fmt.Sprintf("%s has a pipeline %s too", first.File, p.Name), "another name"})
		} else {
			named[p.Name] = p
		}
		table := strings.ToLower(p.Target.Table) // SQLite does not tell cases apart
		if first, again := tables[table]; again {
			for _, what := range sharing(first, p) {
				faults = append(faults, Fault{p.File, 1, 1, "target.table", fmt.Sprintf("%s loads into the table %s too, with another %s", first.File, first.Target.Table, what), "a table of its own, or the same " + what + ","})
			}
		} else {
			tables[table] = p
		}
		b := p.Source.Budget
		if b.Rate == 0 && b.Daily == 0 {
			continue
		}
		if first, again := budgets[b.Name]; again && first.Source.Budget != b {
			faults = append(faults, Fault{p.File, p.budgetLine, p.budgetColumn, "source.budget",
				fmt.Sprintf("%s gives the budget %s other limits", first.File, b.Name), "the same limits, or another name,"})
		} else if !again {
			budgets[b.Name] = p
		}
	}
	return faults.err()
}

// sharing says in what two pipelines differ that must be equal where they load into one table: rows find each other by
// their keys, and win by ranks that only compare if their versions are of one kind.
func sharing(a, b *Pipeline) []string {
	var out []string
	if a.Target.Table != b.Target.Table {
		out = append(out, "spelling")
	}
	if (len(a.Target.Sort) > 0) != (len(b.Target.Sort) > 0) {
		out = append(out, "sort key")
	}
	kind := func(p *Pipeline) string {
		for _, f := range p.Contract.Fields {
			if f.Name == p.Contract.Version {
				return f.Type
			}
		}
		return ""
	}
	if kind(a) != kind(b) {
		out = append(out, "type of version")
	}
	return out
}
