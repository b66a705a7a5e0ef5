// Package pipeline reads pipeline files. One schema table walks the YAML tree and yields the decoded [Pipeline], every
// fault with its line and column, the JSON Schema for editors, and the reference table of the README.
package pipeline

import (
	"time"

	"github.com/onceload/onceload/pkg/etl"
)

// Pipeline is one pipeline file, decoded and checked. It is read-only.
type Pipeline struct {
	Name       string
	Schedule   etl.Schedule
	Source     Source
	Contract   Contract
	Quarantine Quarantine
	Checks     Checks
	Target     Target
	File       string // path for messages
	Digest     string // sha256 of the file's bytes, hex

	budgetLine, budgetColumn int // of source.budget, for [CheckTogether]
}

// Source is the HTTP API.
type Source struct {
	URL               string // scheme, host, path; no query, no fragment, no user
	Method            string // GET or POST
	Query             []Param
	Headers           []Param
	Body              string // POST: JSON text, may hold window placeholders
	IdempotencyHeader string
	Auth              Auth
	Records           string // path of the records
	NDJSON            bool
	Paginate          Paginate
	Retry             Retry
	CursorExpired     CursorExpired
	ErrorWhen         string // path whose presence (not null, not false, not empty) in a 200 body is an error
	AllowHosts        []string
	MaxBytes          int64 // source.max_bytes: of one body, after decompression; default 32 MiB
	PartBytes         int64 // source.part_bytes: compressed bytes after which a part closes; default 16 MiB
	Budget            Budget
}

// Param is one name and value; values may hold window placeholders. The order is that of the file.
type Param struct{ Name, Value string }

// Auth is at most one scheme. Secret fields hold names, never values.
type Auth struct {
	Scheme   string // "", bearer, header, query, basic, oauth2
	Name     string // header or query parameter
	User     string // basic
	Secret   string
	TokenURL string // oauth2
	ClientID string
	Scopes   []string
}

// Paginate says how the next page is found.
type Paginate struct {
	Style       string // none, page, offset, cursor, link, next_url, keyset
	Param       string // query parameter that carries the page, offset, cursor or key
	Start       int64  // page, offset: first value
	SizeParam   string // page: size_param; offset: limit_param
	Size        int64  // page: size; offset: limit
	Path        string // cursor: next; next_url: path; keyset: from (a path in the last record)
	Total       string // page: total_pages; offset: total
	HasMore     string
	StopOnShort bool
	MaxPages    int64 // default 10,000
}

// Retry bounds how a request is tried again.
type Retry struct {
	Attempts   int           // tries of one request, across waits; default 5
	Base       time.Duration // ceiling of the first wait; default 1s
	Cap        time.Duration // ceiling of every wait of ours; default 30s
	InlineWait time.Duration // longer waits become a Wait state; default 5s
	MaxWait    time.Duration // longer demands of the source fail; default 6h
}

// CursorExpired recognises the refusal of an old cursor.
type CursorExpired struct {
	Status []int
	Body   string
}

// Budget is shared by all invocations that name it.
type Budget struct {
	Name    string
	Rate    float64 // requests a second; 0 = unlimited
	Daily   int64   // requests a UTC day; 0 = unlimited
	Reserve int64   // of Daily, left untouched; below Daily
}

// Contract is what a record must be.
type Contract struct {
	Revision int
	Epoch    int
	Key      []string // field names
	Version  string   // field name, "" = none
	Fields   []Field  // in the order of the file
	Extra    string   // keep, drop, quarantine
	Delete   *Delete
	// RecordsAt is where a page has its records, which decides what is transformed like the rest of the contract:
	// source.records in canonical form, or "(lines)" for source.ndjson.
	RecordsAt string
}

// Field is one column.
type Field struct {
	Name     string
	Type     string // string, integer, decimal, boolean, timestamp, date, document, list
	From     string // path in the raw record; default: the name as one key
	Required bool   // present, and not null unless Nullable says so
	Nullable *bool  // null is as good as absent; default: the opposite of Required
	Default  *string
	Const    *string
	Enum     []string
	Clean    []string // trim, lower, upper, collapse, nfc
	Min, Max *string
	MinLen   *int
	MaxLen   *int
	Pattern  string
	Unit     string // timestamp: rfc3339 (default), s, ms, us, or a Go layout in Layout
	Layout   string
	Zone     string // timestamp without zone: IANA name
	Items    string // list: scalar type of its elements

	DecimalComma bool   // numbers in texts: a comma for the decimal point
	Thousands    string // numbers in texts: what sets off groups of three digits: point, comma, apostrophe, space; "" = nothing
}

// Delete marks a record as the deletion of its key.
type Delete struct {
	From   string
	Equals string
}

// Quarantine is how much quarantine a batch may have.
type Quarantine struct {
	MaxRatio float64 // default 0.05
	MinRows  int64   // default 20
}

// Checks hold before a batch loads. Nil or zero = off.
type Checks struct {
	MinRecords        *int64
	MaxRecords        *int64
	MaxDuplicateRatio *float64
	MaxAge            time.Duration
}

// Target is the table.
type Target struct {
	Table     string
	Partition []string // key fields; default: all of contract.key
	Sort      []string // key fields; default: none
	Atomic    bool
}
