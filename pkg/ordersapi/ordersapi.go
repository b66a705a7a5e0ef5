// Package ordersapi is an orders API that misbehaves as real ones do: the source of `onceload demo`, of tests, and of
// measurements. It serves GET /v1/orders?updated_from&updated_to&limit&cursor as
//
//	{"data":[{"shop":"eu","order_id":"ord_…","customer":{…},"valor":12.5,…}],"meta":{"next_cursor":"…"}}
//
// What it serves is a pure function of the configuration and the request: every record is computed from the seed, the
// window and its number, so any number of rows costs no memory. Only the faults remember what was asked before.
package ordersapi

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Config says what is served. The zero value serves empty, faultless pages.
type Config struct {
	Seed     uint64
	Rows     int    // new orders of a window
	PageSize int    // most records a page, whatever the limit asks for; default 100
	Token    string // bearer token that is wanted; "" = none
	Faults   Faults
}

// Faults are what goes wrong. The zero value is a faultless API.
type Faults struct {
	Throttle  int  // this many calls are answered 429 with Retry-After: 1 before the first page is served
	Burst     int  // the first calls of every third page are answered 503, this many
	Cut       bool // the first answer with a second page breaks off in the middle of its body
	BadEvery  int  // every nth order cannot be right (see bad); 0 = none; over 3
	Duplicate bool // one order stands twice
	Late      bool // an order of the window before comes again, changed
	Delete    bool // another order of the window before comes again, deleted
}

// Misbehaving is the lot, as the demo shows it: 2 % of the orders are bad.
func Misbehaving() Faults {
	return Faults{Throttle: 1, Burst: 2, Cut: true, BadEvery: 50, Duplicate: true, Late: true, Delete: true}
}

// Page names one page of one window.
type Page struct {
	From   time.Time // start of the window
	Offset int       // records before the page
}

// Calls counts what became of a page.
type Calls struct {
	Asked  int // requests for it
	Served int // answered in full with 200
}

// Handler is the API. Safe for concurrent use.
type Handler struct {
	cfg Config

	mu        sync.Mutex
	calls     map[Page]Calls
	throttled int
	cut       bool
}

// New makes the API.
func New(cfg Config) *Handler {
	if cfg.PageSize == 0 {
		cfg.PageSize = 100
	}
	return &Handler{cfg: cfg, calls: map[Page]Calls{}}
}

// Calls is how often each page was asked for and served so far.
func (h *Handler) Calls() map[Page]Calls {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.calls)
}

// Records is the number of records of every window.
func (h *Handler) Records() int { return h.cfg.Rows + len(h.extras()) }

// Bad is the number of orders of every window that cannot be right.
func (h *Handler) Bad() int {
	if h.cfg.Faults.BadEvery == 0 {
		return 0
	}
	return h.cfg.Rows / h.cfg.Faults.BadEvery
}

// query is a request that made sense.
type query struct {
	from, to      time.Time
	offset, limit int
}

func (h *Handler) parse(r *http.Request) (query, error) {
	q := query{limit: h.cfg.PageSize}
	v := r.URL.Query()
	var err error
	if q.from, err = time.Parse(time.RFC3339, v.Get("updated_from")); err != nil {
		return q, fmt.Errorf("updated_from: %w", err)
	}
	if q.to, err = time.Parse(time.RFC3339, v.Get("updated_to")); err != nil {
		return q, fmt.Errorf("updated_to: %w", err)
	}
	q.from, q.to = q.from.UTC(), q.to.UTC()
	if !q.from.Before(q.to) {
		return q, fmt.Errorf("updated_from is not before updated_to")
	}
	if s := v.Get("limit"); s != "" {
		if q.limit, err = strconv.Atoi(s); err != nil || q.limit < 1 {
			return q, fmt.Errorf("limit %q is no positive number", s)
		}
		q.limit = min(q.limit, h.cfg.PageSize)
	}
	if s := v.Get("cursor"); s != "" {
		text, err := base64.RawURLEncoding.DecodeString(s)
		if err != nil {
			return q, fmt.Errorf("cursor: %w", err)
		}
		if q.offset, err = strconv.Atoi(strings.TrimPrefix(string(text), "after:")); err != nil || q.offset < 1 {
			return q, fmt.Errorf("cursor is none of ours")
		}
	}
	return q, nil
}

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path != "/v1/orders":
		refuse(w, http.StatusNotFound, "NOT_FOUND", "there is only /v1/orders")
		return
	case r.Method != http.MethodGet:
		refuse(w, http.StatusMethodNotAllowed, "METHOD_NOT_ALLOWED", "only GET")
		return
	case h.cfg.Token != "" && r.Header.Get("Authorization") != "Bearer "+h.cfg.Token:
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "a bearer token is wanted")
		return
	}
	q, err := h.parse(r)
	if err != nil {
		refuse(w, http.StatusBadRequest, "BAD_REQUEST", err.Error())
		return
	}
	status, cut := h.fate(q)
	switch status {
	case http.StatusTooManyRequests:
		w.Header().Set("Retry-After", "1")
		refuse(w, status, "TOO_MANY_REQUESTS", "slow down")
		return
	case http.StatusServiceUnavailable:
		refuse(w, status, "UNAVAILABLE", "try again")
		return
	}
	body := h.body(q)
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	if cut {
		body = body[:len(body)/2]
	}
	if _, err := w.Write(body); err != nil || cut {
		// The only way to break a connection off without a word: net/http closes it and logs nothing.
		panic(http.ErrAbortHandler)
	}
}

// fate counts the request and decides how it ends.
func (h *Handler) fate(q query) (status int, cut bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := Page{From: q.from, Offset: q.offset}
	c := h.calls[at]
	c.Asked++
	defer func() { h.calls[at] = c }()
	f := h.cfg.Faults
	switch number := q.offset / q.limit; {
	case h.throttled < f.Throttle:
		h.throttled++
		return http.StatusTooManyRequests, false
	case number%3 == 2 && c.Asked <= f.Burst:
		return http.StatusServiceUnavailable, false
	case number == 1 && f.Cut && !h.cut:
		h.cut = true
		return http.StatusOK, true
	}
	c.Served++
	return http.StatusOK, false
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	body, err := json.Marshal(map[string]any{"error": map[string]string{"code": code, "message": message}})
	if err != nil {
		panic(err) // two strings in a map
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	// A client that is gone does not need its refusal.
	_, _ = w.Write(body)
}

// body writes one page.
func (h *Handler) body(q query) []byte {
	extras := h.extras()
	end := min(q.offset+q.limit, h.cfg.Rows+len(extras))
	b := make([]byte, 0, 64+450*max(0, end-q.offset))
	b = append(b, `{"data":[`...)
	for n := q.offset; n < end; n++ {
		if n > q.offset {
			b = append(b, ',')
		}
		o := order{number: n}
		if n >= h.cfg.Rows {
			o = extras[n-h.cfg.Rows]
		}
		b = h.order(b, q, o)
	}
	b = append(b, `],"meta":{"next_cursor":`...)
	if end < h.cfg.Rows+len(extras) {
		b = append(b, '"')
		b = base64.RawURLEncoding.AppendEncode(b, []byte("after:"+strconv.Itoa(end)))
		b = append(b, '"')
	} else {
		b = append(b, "null"...)
	}
	return append(b, "}}\n"...)
}

// order says which order stands at a place.
type order struct {
	number  int
	before  bool // it is one of the window before this one, changed in this one
	deleted bool
}

// extras are the records behind the new orders.
func (h *Handler) extras() []order {
	if h.cfg.Rows == 0 {
		return nil
	}
	var out []order
	f := h.cfg.Faults
	if f.Duplicate {
		out = append(out, order{number: 0})
	}
	if f.Late {
		out = append(out, order{number: min(1, h.cfg.Rows-1), before: true})
	}
	if f.Delete {
		out = append(out, order{number: min(2, h.cfg.Rows-1), before: true, deleted: true})
	}
	return out
}

// order appends one record of about 440 bytes.
func (h *Handler) order(b []byte, q query, o order) []byte {
	start := q.from
	length := q.to.Sub(q.from)
	if o.before {
		start = start.Add(-length)
	}
	// The mix is a bijection, so ids are distinct, and their order is nobody's.
	id := mix(h.cfg.Seed ^ uint64(start.Unix())<<24 ^ uint64(o.number))
	die := mix(id ^ h.cfg.Seed)
	roll := func(n uint64) uint64 {
		die = mix(die)
		return die % n
	}
	customer := roll(100_000)
	cents := 100 + roll(99_900)
	status := [...]string{"open", "paid", "packed", "shipped"}[roll(4)]
	at := start.Add(time.Duration(roll(uint64(length)/uint64(time.Millisecond))) * time.Millisecond)
	if o.before {
		at = at.Add(length)
		cents++
	}
	if o.deleted {
		status = "deleted"
	}
	bad := 0
	if every := h.cfg.Faults.BadEvery; every > 0 && !o.before && (o.number+1)%every == 0 {
		bad = 1 + o.number/every%badKinds
	}

	b = append(b, `{"shop":"eu",`...)
	if bad == badNoID {
		b = append(b, `"order_id":null`...)
	} else {
		b = fmt.Appendf(b, `"order_id":"ord_%016x"`, id)
	}
	b = fmt.Appendf(b, `,"customer":{"id":%d,"name":"Zoë Müller-%05d","email":" Customer%d@Example.com"},"valor":`, customer, customer, customer)
	switch bad {
	case badTotal:
		b = append(b, `"N/A"`...)
	case badNegative:
		b = fmt.Appendf(b, "-%d.%02d", cents/100, cents%100)
	default:
		b = fmt.Appendf(b, "%d.%02d", cents/100, cents%100)
	}
	b = fmt.Appendf(b, `,"currency":"EUR","status":%q`, status)
	switch bad {
	case badNoTime:
	case badTime:
		b = append(b, `,"updated_at":"yesterday"`...)
	default:
		b = append(b, `,"updated_at":"`...)
		b = at.AppendFormat(b, "2006-01-02T15:04:05.000Z")
		b = append(b, '"')
	}
	b = append(b, `,"items":[`...)
	for i := range 2 {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"sku":"SKU-%06d","name":"Article number %06d","quantity":%d,"price":%d.%02d}`, roll(1e6), roll(1e6), 1+roll(9), roll(100), roll(100))
	}
	return fmt.Appendf(b, `],"note":"leave it with the neighbours at number %d, second floor"}`, 1+roll(200))
}

// What can be wrong with a bad order, in turn.
const (
	badTotal    = 1 + iota // "valor": "N/A"
	badNoTime              // no updated_at
	badNegative            // a total below zero
	badTime                // an updated_at that is no time
	badNoID                // order_id null
	badKinds    = 5
)

// mix is the finalizer of splitmix64, a bijection of 64-bit numbers.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
