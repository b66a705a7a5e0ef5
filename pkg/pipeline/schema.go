package pipeline

import (
	"strings"
	"time"
)

const day = 24 * time.Hour

// row is one key of a pipeline file. The rows are all there is to the format: decoding, faults, the JSON Schema and the
// reference table come from them; only rules about several keys together stand in check.go.
//
// A row with keys is a mapping; with pick, a mapping of exactly one of its keys. A row with each is a mapping of free
// names. A row with list is a list of scalars. All others are scalars.
type row struct {
	key       string
	typ       typ
	required  bool
	def       string   // default, as it would stand in a file; decoded if the key is absent
	otherwise string   // what holds without the key, in words, where def cannot say it
	only      []string // types of a column that may have the key, or all
	elements  bool     // a list of such a type may have it too, for its elements
	doc       string
	list      bool
	pick      bool
	keys      []row
	each      *row
	name      func(string) error          // each: what a free name may be
	names     string                      // each: the same as a pattern, as far as one can say it
	enter     func(p *Pipeline, k string) // prepares the target of an optional mapping; without it the mapping's defaults hold always
	into      func(p *Pipeline) any       // pointer to the target of a scalar or list
}

// sample says what a right value is.
func (s row) sample() string {
	switch {
	case s.pick:
		return "a mapping with one of " + strings.Join(keyNames(s), ", ")
	case s.keys != nil:
		return "a mapping with the keys " + strings.Join(keyNames(s), ", ")
	case s.each != nil:
		return "a mapping of names"
	case s.list:
		return "a list, each element " + s.typ.write
	}
	return s.typ.write
}

// field is the column being decoded: the last one.
func (p *Pipeline) field() *Field { return &p.Contract.Fields[len(p.Contract.Fields)-1] }

// schema is the table of every key, in the order of the documentation.
func schema() row {
	return row{doc: "A onceload pipeline.", keys: []row{
		{key: "pipeline", required: true, doc: "Name of the pipeline, part of every key and id.",
			typ:  pipelineName(),
			into: func(p *Pipeline) any { return &p.Name }},
		{key: "every", required: true, doc: "Length of a slot, in UTC: minutes that divide an hour, hours that divide a day, 1d, or 7d from Monday.",
			typ: slotLength(), into: func(p *Pipeline) any { return &p.Schedule.Every }},
		{key: "lag", def: "0s", doc: "How long after its window closed the slot runs; at most 31d.",
			typ: minutes(31 * day), into: func(p *Pipeline) any { return &p.Schedule.Lag }},
		{key: "lookback", def: "0s", doc: "How far the window reaches back before its slot, for records that show up late; at most 366d.",
			typ: minutes(366 * day), into: func(p *Pipeline) any { return &p.Schedule.Lookback }},
		{key: "source", required: true, doc: "The HTTP API: one endpoint a file.", keys: sourceRows()},
		{key: "contract", required: true, doc: "What a record must be.", keys: contractRows()},
		{key: "quarantine", doc: "How much quarantine a batch may have: it fails if at least min_rows are quarantined and max_ratio is passed, or if no record is valid.", keys: []row{
			{key: "max_ratio", def: "0.05", doc: "Highest part of the records that may be quarantined.",
				typ: ratio(), into: func(p *Pipeline) any { return &p.Quarantine.MaxRatio }},
			{key: "min_rows", def: "20", doc: "Quarantined records below which the ratio does not count.",
				typ: integer(0, 1_000_000_000), into: func(p *Pipeline) any { return &p.Quarantine.MinRows }},
		}},
		{key: "checks", doc: "What must hold before a batch loads.", keys: []row{
			{key: "min_records", otherwise: "off", doc: "Fewest records of a batch.",
				typ: integer(0, 1_000_000_000_000), into: func(p *Pipeline) any { return &p.Checks.MinRecords }},
			{key: "max_records", otherwise: "off", doc: "Most records of a batch.",
				typ: integer(0, 1_000_000_000_000), into: func(p *Pipeline) any { return &p.Checks.MaxRecords }},
			{key: "max_duplicate_ratio", otherwise: "off", doc: "Highest part of the valid records that may be duplicates of another.",
				typ: ratio(), into: func(p *Pipeline) any { return &p.Checks.MaxDuplicateRatio }},
			{key: "max_age", otherwise: "off", doc: "Highest age of the newest version at the end of the window; at most 3660d.",
				typ: minutes(3660 * day), into: func(p *Pipeline) any { return &p.Checks.MaxAge }},
		}},
		{key: "target", required: true, doc: "The table the rows go to.", keys: []row{
			{key: "table", required: true, doc: "Name of the table.",
				typ: tableName(), into: func(p *Pipeline) any { return &p.Target.Table }},
			{key: "partition", list: true, otherwise: "all of contract.key", doc: "Key fields that form the partition key.",
				typ: text(), into: func(p *Pipeline) any { return &p.Target.Partition }},
			{key: "sort", list: true, otherwise: "none", doc: "Key fields that form the sort key: the rest of contract.key.",
				typ: text(), into: func(p *Pipeline) any { return &p.Target.Sort }},
			{key: "atomic", def: "false", doc: "Load all rows of a batch or none; at most 100 rows.",
				typ: boolean(), into: func(p *Pipeline) any { return &p.Target.Atomic }},
		}},
	}}
}

func sourceRows() []row {
	return []row{
		{key: "url", required: true, doc: "Scheme, host and path of the endpoint.",
			typ: address(), into: func(p *Pipeline) any { return &p.Source.URL }},
		{key: "method", def: "GET", doc: "HTTP method.",
			typ: oneOf("GET", "POST"), into: func(p *Pipeline) any { return &p.Source.Method }},
		{key: "query", doc: "Query parameters of the first page, with placeholders.", name: paramName, each: &row{
			typ: template("text"), doc: "Value of the parameter.",
			enter: func(p *Pipeline, k string) { p.Source.Query = append(p.Source.Query, Param{Name: k}) },
			into:  func(p *Pipeline) any { return &p.Source.Query[len(p.Source.Query)-1].Value }}},
		{key: "headers", doc: "Request headers, with placeholders.", name: headerName, each: &row{
			typ: template("text"), doc: "Value of the header.",
			enter: func(p *Pipeline, k string) { p.Source.Headers = append(p.Source.Headers, Param{Name: k}) },
			into:  func(p *Pipeline) any { return &p.Source.Headers[len(p.Source.Headers)-1].Value }}},
		{key: "body", otherwise: "none", doc: "JSON body of a POST, with placeholders.",
			typ: jsonBody(), into: func(p *Pipeline) any { return &p.Source.Body }},
		{key: "idempotency_header", otherwise: "none", doc: "Header that carries a key of the request, so that a POST may be tried again; without it a POST is tried once.",
			typ: headerText(), into: func(p *Pipeline) any { return &p.Source.IdempotencyHeader }},
		{key: "auth", pick: true, otherwise: "none", doc: "How requests are authorised. A file holds names of secrets, never secrets.", keys: authRows()},
		{key: "records", otherwise: "the body itself", doc: "Path of the array of records, or, if a column is from @key, of an object whose members are the records.",
			typ: path(false), into: func(p *Pipeline) any { return &p.Source.Records }},
		{key: "ndjson", def: "false", doc: "The body is one record a line. A line that is no JSON is quarantined, unless it is the last and cut short, or no line is JSON.",
			typ: boolean(), into: func(p *Pipeline) any { return &p.Source.NDJSON }},
		{key: "paginate", pick: true, otherwise: "none", doc: "How the next page is found. Parameters go into the query, or into the object of a body.", keys: paginateRows()},
		{key: "retry", doc: "How a request is tried again.", keys: []row{
			{key: "attempts", def: "5", doc: "Tries of one request, across waits.",
				typ: integer(1, 100), into: func(p *Pipeline) any { return &p.Source.Retry.Attempts }},
			{key: "base", def: "1s", doc: "Ceiling of the first wait; each further one is twice as high.",
				typ: wait(), into: func(p *Pipeline) any { return &p.Source.Retry.Base }},
			{key: "cap", def: "30s", doc: "Ceiling of every wait that the source did not ask for.",
				typ: wait(), into: func(p *Pipeline) any { return &p.Source.Retry.Cap }},
			{key: "inline_wait", def: "5s", doc: "Longest wait inside a function; longer ones cost nothing in a Wait state.",
				typ: wait(), into: func(p *Pipeline) any { return &p.Source.Retry.InlineWait }},
			{key: "max_wait", def: "6h", doc: "Longest wait the source may ask for; beyond it the batch fails.",
				typ: wait(), into: func(p *Pipeline) any { return &p.Source.Retry.MaxWait }},
		}},
		{key: "cursor_expired", otherwise: "off", doc: "How the source refuses an old cursor: the extraction then starts anew.", keys: []row{
			{key: "status", list: true, required: true, doc: "Status codes of the refusal.",
				typ: integer(400, 599), into: func(p *Pipeline) any { return &p.Source.CursorExpired.Status }},
			{key: "body", otherwise: "any body", doc: "Text that the body of the refusal holds, besides its status.",
				typ: text(), into: func(p *Pipeline) any { return &p.Source.CursorExpired.Body }},
		}},
		{key: "error_when", otherwise: "off", doc: "Path whose presence in a body of status 200 (not null, false or empty) is an error of the source.",
			typ: innerPath(false), into: func(p *Pipeline) any { return &p.Source.ErrorWhen }},
		{key: "allow_hosts", list: true, otherwise: "the URL's own host", doc: "Further hosts that next links and redirects may lead to; credentials never go there.",
			typ: hostName(), into: func(p *Pipeline) any { return &p.Source.AllowHosts }},
		{key: "max_bytes", def: "33554432", doc: "Most bytes of one body, after decompression. A body is held in memory, a few at a time: give the function more when you raise it.",
			typ: integer(1, 1<<30), into: func(p *Pipeline) any { return &p.Source.MaxBytes }},
		{key: "part_bytes", def: "16777216", doc: "Compressed bytes after which a part is closed.",
			typ: integer(1, 1<<30), into: func(p *Pipeline) any { return &p.Source.PartBytes }},
		{key: "budget", doc: "Limits shared by all invocations of all pipelines that use the same name, kept in the ledger; the same name must have the same limits everywhere. Requests beyond them wait, at no cost, up to source.retry.max_wait. A breaker of the same name needs no key: ten failures in a row, whosever, close the source to everyone for a minute; then one request tries it.", keys: []row{
			{key: "name", otherwise: "the URL's host", doc: "Name of the budget.",
				typ: budgetName(), into: func(p *Pipeline) any { return &p.Source.Budget.Name }},
			{key: "rate", otherwise: "unlimited", doc: "Requests a second, minute, hour or day.",
				typ: rate(), into: func(p *Pipeline) any { return &p.Source.Budget.Rate }},
			{key: "daily", otherwise: "unlimited", doc: "Requests a UTC day.",
				typ: integer(1, 1_000_000_000_000), into: func(p *Pipeline) any { return &p.Source.Budget.Daily }},
			{key: "reserve", def: "0", doc: "Requests of daily that are left to others; below daily.",
				typ: integer(0, 1_000_000_000_000), into: func(p *Pipeline) any { return &p.Source.Budget.Reserve }},
		}},
	}
}

func authRows() []row {
	scheme := func(p *Pipeline, k string) { p.Source.Auth.Scheme = k }
	secret := row{key: "secret", required: true, doc: "Name of the secret.",
		typ: secretName(), into: func(p *Pipeline) any { return &p.Source.Auth.Secret }}
	return []row{
		{key: "bearer", enter: scheme, doc: "Authorization: Bearer, and the secret.", keys: []row{secret}},
		{key: "header", enter: scheme, doc: "The secret in a header.", keys: []row{
			{key: "name", required: true, doc: "Name of the header.",
				typ: headerText(), into: func(p *Pipeline) any { return &p.Source.Auth.Name }},
			secret,
		}},
		{key: "query", enter: scheme, doc: "The secret in a query parameter; it is kept out of logs and landed URLs.", keys: []row{
			{key: "name", required: true, doc: "Name of the parameter.",
				typ: text(), into: func(p *Pipeline) any { return &p.Source.Auth.Name }},
			secret,
		}},
		{key: "basic", enter: scheme, doc: "User and password.", keys: []row{
			{key: "user", required: true, doc: "The user.",
				typ: userName(), into: func(p *Pipeline) any { return &p.Source.Auth.User }},
			secret,
		}},
		{key: "oauth2", enter: scheme, doc: "Client credentials.", keys: []row{
			{key: "token_url", required: true, doc: "URL that gives tokens.",
				typ: address(), into: func(p *Pipeline) any { return &p.Source.Auth.TokenURL }},
			{key: "client_id", required: true, doc: "Id of the client.",
				typ: text(), into: func(p *Pipeline) any { return &p.Source.Auth.ClientID }},
			secret,
			{key: "scopes", list: true, otherwise: "none", doc: "Scopes to ask for.",
				typ: text(), into: func(p *Pipeline) any { return &p.Source.Auth.Scopes }},
		}},
	}
}

func paginateRows() []row {
	param := func(doc string) row {
		return row{key: "param", required: true, doc: doc, typ: text(), into: func(p *Pipeline) any { return &p.Source.Paginate.Param }}
	}
	start := func(def, doc string) row {
		return row{key: "start", def: def, doc: doc, typ: integer(0, 1_000_000_000), into: func(p *Pipeline) any { return &p.Source.Paginate.Start }}
	}
	sizeParam := func(key string) row {
		return row{key: key, otherwise: "none", doc: "Parameter that carries the size of a page.", typ: text(), into: func(p *Pipeline) any { return &p.Source.Paginate.SizeParam }}
	}
	size := func(key string) row {
		return row{key: key, otherwise: "unknown", doc: "Records of a full page.", typ: integer(1, 1_000_000), into: func(p *Pipeline) any { return &p.Source.Paginate.Size }}
	}
	at := func(key, doc string, required, atKey bool) row {
		return row{key: key, required: required, doc: doc, otherwise: "none", typ: innerPath(atKey), into: func(p *Pipeline) any { return &p.Source.Paginate.Path }}
	}
	total := func(key, doc string) row {
		return row{key: key, doc: doc, otherwise: "unknown", typ: innerPath(false), into: func(p *Pipeline) any { return &p.Source.Paginate.Total }}
	}
	style := func(key, doc string, own ...row) row {
		r := row{key: key, doc: doc, keys: append([]row{}, own...), enter: func(p *Pipeline, k string) { p.Source.Paginate.Style = k }}
		if key == "none" {
			return r
		}
		r.keys = append(r.keys,
			row{key: "has_more", otherwise: "none", doc: "Path that is true while there are more pages.",
				typ: innerPath(false), into: func(p *Pipeline) any { return &p.Source.Paginate.HasMore }},
			row{key: "stop_on_short", def: "false", doc: "A page of fewer records than a full one is the last.",
				typ: boolean(), into: func(p *Pipeline) any { return &p.Source.Paginate.StopOnShort }},
			row{key: "max_pages", def: "10000", doc: "Most pages of an extraction.",
				typ: integer(1, 1_000_000), into: func(p *Pipeline) any { return &p.Source.Paginate.MaxPages }})
		return r
	}
	return []row{
		style("page", "A page number as a parameter; ends at total_pages if that is set, at has_more, or at an empty page.",
			param("Parameter that carries the page number."), start("1", "Number of the first page."),
			sizeParam("size_param"), size("size"), total("total_pages", "Path of the number of pages. Every page must give it, but for one that says has_more, or an empty first page: one without it, or with null, is SourceMalformed.")),
		style("offset", "A record offset as a parameter; ends at total if that is set, at has_more, or at an empty page. Once a page was full the offset moves by limit, over short pages too: a source that cuts pages by their size in bytes needs another style, or it skips records.",
			param("Parameter that carries the offset."), start("0", "Offset of the first record."),
			sizeParam("limit_param"), size("limit"), total("total", "Path of the number of records. Every page must give it, as with total_pages.")),
		style("cursor", "A cursor from the body as a parameter; ends when there is none.",
			param("Parameter that carries the cursor."), at("next", "Path of the next cursor.", true, false), size("size")),
		style("link", "The Link header's rel=\"next\"; ends when there is none.", size("size")),
		style("next_url", "The next URL from the body; ends when there is none.", at("path", "Path of the next URL.", true, false), size("size")),
		style("keyset", "A value of the last record as a parameter; ends at an empty page. The source must order by it and answer with records beyond it: one that repeats the record of the value (>=) fails as SourceLoops at its last page.",
			param("Parameter that carries the value."), at("from", "Path of the value in a record.", true, true), size("size")),
		style("none", "One page."),
	}
}

func contractRows() []row {
	return []row{
		{key: "revision", def: "1", doc: "Number of the contract: raise it when the contract changes after rows were loaded under it.",
			typ: integer(1, 9999), into: func(p *Pipeline) any { return &p.Contract.Revision }},
		{key: "epoch", def: "1", doc: "Raise it when the meaning of version itself was wrong: every row of a higher epoch wins.",
			typ: integer(1, 9999), into: func(p *Pipeline) any { return &p.Contract.Epoch }},
		{key: "key", list: true, required: true, doc: "Fields that identify a record.",
			typ: text(), into: func(p *Pipeline) any { return &p.Contract.Key }},
		{key: "version", otherwise: "a later slot or extraction wins", doc: "Field, timestamp or integer, whose higher value wins. A version that does not change with the content is none: leave it out.",
			typ: text(), into: func(p *Pipeline) any { return &p.Contract.Version }},
		{key: "fields", required: true, doc: "The columns.", name: columnName, names: "^[^_]", each: &row{
			doc:   "A column.",
			enter: func(p *Pipeline, k string) { p.Contract.Fields = append(p.Contract.Fields, Field{Name: k}) },
			keys:  fieldRows()}},
		{key: "extra", def: "drop", doc: "What becomes of fields of the record that no column reads: keep them as columns, drop them, or quarantine the record.",
			typ: oneOf("keep", "drop", "quarantine"), into: func(p *Pipeline) any { return &p.Contract.Extra }},
		{key: "delete", otherwise: "off", doc: "Which records are deletions of their key.",
			enter: func(p *Pipeline, _ string) { p.Contract.Delete = new(Delete) }, keys: []row{
				{key: "from", required: true, doc: "Path in the raw record.",
					typ: innerPath(true), into: func(p *Pipeline) any { return &p.Contract.Delete.From }},
				{key: "equals", required: true, doc: "Text, number or boolean that stands there.",
					typ: freeText(), into: func(p *Pipeline) any { return &p.Contract.Delete.Equals }},
			}},
	}
}

func fieldRows() []row {
	return []row{
		{key: "type", required: true, doc: "Type of the column.",
			typ:  oneOf("string", "integer", "decimal", "boolean", "timestamp", "date", "document", "list"),
			into: func(p *Pipeline) any { return &p.field().Type }},
		{key: "from", otherwise: "the member of the column's name", doc: "Path in the raw record; @key is the name under which the record stands in an object.",
			typ: innerPath(true), into: func(p *Pipeline) any { return &p.field().From }},
		{key: "required", def: "false", doc: "The value must be there and not null. Fields of the key and the version are so by themselves.",
			typ: boolean(), into: func(p *Pipeline) any { return &p.field().Required }},
		{key: "nullable", otherwise: "the opposite of required", doc: "null is as good as none; false: null is a fault, none is not; true with required: the member must be there and may be null.",
			typ: boolean(), into: func(p *Pipeline) any { return &p.field().Nullable }},
		{key: "default", otherwise: "none", only: []string{"string", "integer", "decimal", "boolean", "timestamp", "date"}, doc: "Value where the record has none or null.",
			typ: exact(), into: func(p *Pipeline) any { return &p.field().Default }},
		{key: "const", otherwise: "none", only: []string{"string", "integer", "decimal", "boolean", "timestamp", "date"}, doc: "The one value of the column: a record without it gets it, one with another is quarantined.",
			typ: exact(), into: func(p *Pipeline) any { return &p.field().Const }},
		{key: "enum", list: true, otherwise: "any", only: []string{"string", "integer", "decimal", "timestamp", "date"}, elements: true, doc: "The values the column may have.",
			typ: exact(), into: func(p *Pipeline) any { return &p.field().Enum }},
		{key: "clean", list: true, otherwise: "as it is", only: []string{"string"}, elements: true, doc: "What is done to the text first, in this order.",
			typ: oneOf("trim", "lower", "upper", "collapse", "nfc"), into: func(p *Pipeline) any { return &p.field().Clean }},
		{key: "decimal_comma", def: "false", only: []string{"integer", "decimal"}, elements: true, doc: "Numbers that come as text have a comma for the decimal point, like 1234,5. The values of this file keep the point.",
			typ: boolean(), into: func(p *Pipeline) any { return &p.field().DecimalComma }},
		{key: "thousands", otherwise: "none", only: []string{"integer", "decimal"}, elements: true, doc: "What may set off groups of three digits in numbers that come as text, like the points of 1.234.567,5.",
			typ: oneOf("point", "comma", "apostrophe", "space"), into: func(p *Pipeline) any { return &p.field().Thousands }},
		{key: "min", otherwise: "none", only: []string{"integer", "decimal", "timestamp", "date"}, elements: true, doc: "Lowest value.",
			typ: exact(), into: func(p *Pipeline) any { return &p.field().Min }},
		{key: "max", otherwise: "none", only: []string{"integer", "decimal", "timestamp", "date"}, elements: true, doc: "Highest value.",
			typ: exact(), into: func(p *Pipeline) any { return &p.field().Max }},
		{key: "min_length", otherwise: "none", only: []string{"string", "list"}, doc: "Fewest characters or elements.",
			typ: integer(0, 1_000_000), into: func(p *Pipeline) any { return &p.field().MinLen }},
		{key: "max_length", otherwise: "none", only: []string{"string", "list"}, doc: "Most characters or elements.",
			typ: integer(0, 1_000_000), into: func(p *Pipeline) any { return &p.field().MaxLen }},
		{key: "pattern", otherwise: "any", only: []string{"string"}, elements: true, doc: "Pattern that the text matches; it matches anywhere unless it has ^ and $.",
			typ: pattern(), into: func(p *Pipeline) any { return &p.field().Pattern }},
		{key: "unit", otherwise: "rfc3339", only: []string{"timestamp"}, elements: true, doc: "How the instant is written: RFC 3339, or a number of seconds, milliseconds or microseconds since 1970.",
			typ: oneOf("rfc3339", "s", "ms", "us"), into: func(p *Pipeline) any { return &p.field().Unit }},
		{key: "layout", otherwise: "none", only: []string{"timestamp", "date"}, elements: true, doc: "How it is written, as Go's time package writes 2006-01-02 15:04:05; instead of unit.",
			typ: text(), into: func(p *Pipeline) any { return &p.field().Layout }},
		{key: "zone", otherwise: "none", only: []string{"timestamp"}, elements: true, doc: "IANA name of the time zone of texts without an offset. A layout without one needs it.",
			typ: text(), into: func(p *Pipeline) any { return &p.field().Zone }},
		{key: "items", otherwise: "string", only: []string{"list"}, doc: "Type of the elements.",
			typ: oneOf("string", "integer", "decimal", "boolean", "timestamp", "date"), into: func(p *Pipeline) any { return &p.field().Items }},
	}
}
