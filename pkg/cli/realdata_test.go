package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

// realData is the folder of recorded responses of public APIs.
func realData(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("ONCELOAD_REAL_DATA")
	if dir == "" {
		t.Skip("ONCELOAD_REAL_DATA is not set: it names a folder of recorded responses, which are not ours to ship")
	}
	return dir
}

func readJSON(t *testing.T, path string) any {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return decodeJSON(t, text)
}

func decodeJSON(t *testing.T, text []byte) any {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// at walks into objects.
func at(v any, path string) any {
	if path == "" {
		return v
	}
	for _, name := range strings.Split(path, ".") {
		object, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = object[name]
	}
	return v
}

// exact makes numbers comparable by value, whatever their spelling.
func exact(v any) any {
	switch v := v.(type) {
	case json.Number:
		r, ok := new(big.Rat).SetString(v.String())
		if !ok {
			return "not a number: " + v.String()
		}
		return "number " + r.RatString()
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = exact(v[i])
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for name := range v {
			out[name] = exact(v[name])
		}
		return out
	}
	return v
}

// realSource is one recorded API with the pipeline that reads it.
type realSource struct {
	name     string
	file     string
	records  string // path in the file
	key      []string
	instants map[string]string // fields that become UTC timestamps, with their unit
	pipeline string
	serve    func(t *testing.T, records []any, body []byte) http.Handler
}

// whole serves the file as it is.
func whole(_ *testing.T, _ []any, body []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_, _ = w.Write(body)
	})
}

// offsets pages the records as `records` by limit and offset, from an offset that names the first.
func offsets(first int, wrap string) func(*testing.T, []any, []byte) http.Handler {
	return func(t *testing.T, records []any, _ []byte) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
			if err != nil {
				t.Errorf("limit: %v", err)
			}
			offset, err := strconv.Atoi(r.URL.Query().Get("offset"))
			if err != nil {
				t.Errorf("offset: %v", err)
			}
			from := min(offset-first, len(records))
			page := records[from:min(from+limit, len(records))]
			var body any = page
			if wrap != "" {
				body = map[string]any{wrap: page}
			}
			writeJSON(t, w, body)
		})
	}
}

// numbered pages by page number, with the total in meta, as OpenAQ does.
func numbered(t *testing.T, records []any, _ []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const size = 30
		page, err := strconv.Atoi(r.URL.Query().Get("page"))
		if err != nil || r.URL.Query().Get("limit") != strconv.Itoa(size) {
			t.Errorf("query %s: %v", r.URL.RawQuery, err)
		}
		from := min((page-1)*size, len(records))
		writeJSON(t, w, map[string]any{
			"meta":    map[string]any{"found": len(records), "page": page, "limit": size, "pages": (len(records) + size - 1) / size},
			"results": records[from:min(from+size, len(records))],
		})
	})
}

func writeJSON(t *testing.T, w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		t.Errorf("serve: %v", err)
	}
}

const quakes = `
source:
  url: https://earthquake.usgs.gov/fdsnws/event/1/query
  query: {format: geojson, starttime: "{window.start}", endtime: "{window.end}"}
  records: features
  paginate: {offset: {param: offset, start: 1, limit_param: limit, limit: 400}}
contract:
  key: [id]
  version: updated
  fields:
    id: {type: string, required: true}
    updated: {type: timestamp, from: properties.updated, unit: ms, required: true}
    properties: {type: document}
  extra: keep
target: {table: rows}
`

func realSources() []realSource {
	return []realSource{
		{"usgs week 2018", "usgs_all_week_2018-02-07.geojson.json", "features", []string{"id"}, nil, quakes, offsets(1, "features")},
		{"github issues", "github_issues_duckdb_page5.json", "", []string{"id"}, map[string]string{"updated_at": "rfc3339"}, `
source:
  url: https://api.github.com/repos/duckdb/duckdb/issues
  query: {since: "{window.start}", state: all, per_page: 100}
  records: ""
  paginate: {link: {}}
contract:
  key: [id]
  version: updated_at
  fields:
    id: {type: integer, required: true}
    updated_at: {type: timestamp, required: true}
  extra: keep
target: {table: rows}
`, whole},
		{"gbfs status", "gbfs_station_status.json", "data.stations", []string{"station_id"}, map[string]string{"last_reported": "s"}, `
source:
  url: https://gbfs.example.com/station_status.json
  records: data.stations
  paginate: {none: {}}
contract:
  key: [station_id]
  version: last_reported
  fields:
    station_id: {type: string, required: true}
    last_reported: {type: timestamp, unit: s, required: true}
  extra: keep
target: {table: rows}
`, whole},
		{"gbfs information", "gbfs_station_information.json", "data.stations", []string{"station_id"}, nil, `
source:
  url: https://gbfs.example.com/station_information.json
  records: data.stations
  paginate: {none: {}}
contract:
  key: [station_id]
  fields:
    station_id: {type: string, required: true}
  extra: keep
target: {table: rows}
`, whole},
		{"eonet", "eonet_events.json", "events", []string{"id"}, nil, `
source:
  url: https://eonet.gsfc.nasa.gov/api/v3/events
  records: events
  paginate: {none: {}}
contract:
  key: [id]
  fields:
    id: {type: string, required: true}
  extra: keep
target: {table: rows}
`, whole},
		{"openaq", "openaq_latest_page1.json", "results", []string{"country", "city", "location"}, nil, `
source:
  url: https://api.openaq.org/v1/latest
  records: results
  paginate: {page: {param: page, start: 1, size_param: limit, size: 30, total_pages: meta.pages}}
contract:
  key: [country, city, location]
  fields:
    country: {type: string, required: true}
    city: {type: string, required: true}
    location: {type: string, required: true}
  extra: keep
target: {table: rows, partition: [country, city], sort: [location]}
`, numbered},
		{"socrata", "socrata_bike_counts_page1.json", "", []string{"id", "date"}, nil, `
source:
  url: https://data.cityofnewyork.us/resource/uczf-rk3c.json
  records: ""
  paginate: {offset: {param: offset, start: 0, limit_param: limit, limit: 300}}
contract:
  key: [id, date]
  fields:
    id: {type: string, required: true}
    date: {type: string, required: true}
  extra: keep
target: {table: rows, partition: [id], sort: [date]}
`, offsets(0, "")},
	}
}

// TestRealResponses loads recorded responses of public APIs, paged as the APIs page them: a row a distinct id, every
// value as the source has it, and a reload writes nothing. R14, R15, B8
func TestRealResponses(t *testing.T) {
	dir := realData(t)
	for _, src := range realSources() {
		t.Run(src.name, func(t *testing.T) {
			t.Parallel()
			body, err := os.ReadFile(filepath.Join(dir, src.file))
			if err != nil {
				t.Fatal(err)
			}
			records, ok := at(decodeJSON(t, body), src.records).([]any)
			if !ok {
				t.Fatalf("no records at %q", src.records)
			}
			srv := httptest.NewServer(src.serve(t, records, body))
			defer srv.Close()
			h := newHome(t)
			file := h.file("real.yaml", "pipeline: real\nevery: 1d\n"+src.pipeline)
			args := []string{file, "--slot", "2026-01-05", "--source", srv.URL}
			r := h.run(0, args...)

			want := map[string]map[string]any{} // the last record of each key; versions decide if there are any
			for _, rec := range records {
				record, ok := rec.(map[string]any)
				if !ok {
					t.Fatalf("a record is a %T", rec)
				}
				var key []string
				for _, k := range src.key {
					key = append(key, fmt.Sprint(record[k]))
				}
				want[strings.Join(key, "\x00")] = record
			}
			if int(r.Counts.Records) != len(records) || int(r.Counts.Written) != len(want) || r.Counts.Quarantined != 0 {
				t.Errorf("counts %+v, want %d records, %d written", r.Counts, len(records), len(want))
			}
			rows := h.query(`SELECT item FROM rows`)
			if len(rows) != len(want) {
				t.Errorf("%d rows, want %d", len(rows), len(want))
			}
			for _, row := range rows {
				item, ok := decodeJSON(t, []byte(row[0])).(map[string]any)
				if !ok {
					t.Fatalf("item %s", row[0])
				}
				var key []string
				for _, k := range src.key {
					key = append(key, fmt.Sprint(item[k]))
				}
				sameRow(t, src, want[strings.Join(key, "\x00")], item)
			}
			before := h.table("rows")
			again := h.run(0, append(args, "--reload")...)
			if again.Counts.Written != 0 || again.Counts.Unchanged+again.Counts.Duplicate != int64(len(records)) {
				t.Errorf("reload: %+v", again.Counts)
			}
			if after := h.table("rows"); after != before {
				t.Error("the reload changed the table")
			}
		})
	}
}

// sameRow compares a row with its record: null is absent, numbers are equal as numbers, all else to the letter.
func sameRow(t *testing.T, src realSource, record, item map[string]any) {
	t.Helper()
	for name, v := range record {
		if v == nil {
			if _, ok := item[name]; ok {
				t.Fatalf("%v: %s is null in the source, %v in the row", item, name, item[name])
			}
			continue
		}
		if unit, ok := src.instants[name]; ok {
			sameInstant(t, unit, v, item[name])
			continue
		}
		if !reflect.DeepEqual(exact(v), exact(item[name])) {
			t.Fatalf("%s: source %v, row %v", name, v, item[name])
		}
	}
	for name := range item {
		if _, ok := record[name]; !ok && !strings.HasPrefix(name, "_") && name != "updated" {
			t.Fatalf("column %s is not in the source", name)
		}
	}
}

func sameInstant(t *testing.T, unit string, source, row any) {
	t.Helper()
	got, err := time.Parse(time.RFC3339Nano, fmt.Sprint(row))
	if err != nil {
		t.Errorf("row: %v", err)
	}
	var want time.Time
	if unit == "s" {
		s, err := strconv.ParseInt(fmt.Sprint(source), 10, 64)
		if err != nil {
			t.Errorf("source: %v", err)
		}
		want = time.Unix(s, 0)
	} else if want, err = time.Parse(time.RFC3339, fmt.Sprint(source)); err != nil {
		t.Errorf("source: %v", err)
	}
	if !got.Equal(want) {
		t.Errorf("source %v, row %v", source, row)
	}
}

// TestRealOverlap loads two snapshots of one API that overlap, in both orders: the newer version of a row wins either
// way, and what the source withdrew in between comes back only with the older snapshot. R15, B5
func TestRealOverlap(t *testing.T) {
	dir := realData(t)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		file := "usgs_all_week_2014-04-15.geojson.json"
		if strings.HasPrefix(r.URL.Query().Get("starttime"), "2014-04-14") {
			file = "usgs_all_day_2014-04-14.geojson.json"
		}
		records, ok := at(readJSON(t, filepath.Join(dir, file)), "features").([]any)
		if !ok {
			t.Errorf("%s has no features", file)
		}
		offsets(1, "features")(t, records, nil).ServeHTTP(w, r)
	}))
	defer srv.Close()
	const day, week = "2014-04-14", "2014-04-15"
	type counts struct{ new, updated, unchanged, stale int64 }
	load := func(h *home, slot string) counts {
		c := h.run(0, h.file("quakes.yaml", "pipeline: quakes\nevery: 1d\n"+quakes), "--slot", slot, "--source", srv.URL).Counts
		return counts{c.New, c.Updated, c.Unchanged, c.Stale}
	}
	a, b := newHome(t), newHome(t)
	if got, want := load(a, day), (counts{new: 146}); got != want {
		t.Errorf("day into an empty table: %+v, want %+v", got, want)
	}
	if got, want := load(a, week), (counts{new: 1371, updated: 50, unchanged: 92}); got != want {
		t.Errorf("week after day: %+v, want %+v", got, want)
	}
	if got, want := load(b, week), (counts{new: 1513}); got != want {
		t.Errorf("week into an empty table: %+v, want %+v", got, want)
	}
	if got, want := load(b, day), (counts{new: 4, unchanged: 92, stale: 50}); got != want {
		t.Errorf("day after week: %+v, want %+v", got, want)
	}
	if a.table("rows") != b.table("rows") {
		t.Error("the order of the slots shows in the table")
	}
}

// TestRealLinks follows the recorded Link headers of GitHub, whose path changes from page to page on one host, with the
// pipeline that ships. R5, B9
func TestRealLinks(t *testing.T) {
	dir := realData(t)
	exchanges, ok := readJSON(t, filepath.Join(dir, "github_issues_paginate_exchange.json")).([]any)
	if !ok {
		t.Fatal("the recording is no list")
	}
	const host = "https://api.github.com"
	var srv *httptest.Server
	pages := map[string]map[string]any{}
	first := true
	for _, e := range exchanges {
		x, ok := e.(map[string]any)
		if !ok || !strings.EqualFold(fmt.Sprint(x["method"]), "get") {
			continue
		}
		path := fmt.Sprint(x["path"])
		if first {
			path, first = "first", false
		}
		pages[path] = x
	}
	var asked []string
	srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "Bearer secret" {
			t.Errorf("Authorization %q", got)
		}
		asked = append(asked, r.URL.Path)
		x, ok := pages[r.URL.RequestURI()]
		if !ok && r.URL.Path == "/repos/golang/go/issues" {
			x = pages["first"]
		}
		if x == nil {
			http.Error(w, "not recorded: "+r.URL.RequestURI(), http.StatusNotFound)
			return
		}
		headers, ok := x["rawHeaders"].([]any)
		for i := 0; ok && i+1 < len(headers); i += 2 {
			if name := fmt.Sprint(headers[i]); strings.EqualFold(name, "link") {
				w.Header().Set("Link", strings.ReplaceAll(fmt.Sprint(headers[i+1]), host, srv.URL))
			}
		}
		writeJSON(t, w, x["response"])
	}))
	defer srv.Close()
	h := newHome(t, "ONCELOAD_SECRET_GITHUB_TOKEN=secret")
	r := h.run(0, "github-issues", "--slot", slot, "--source", srv.URL)
	if r.Counts.Pages != 5 || r.Counts.Records != 13 || r.Counts.Written != 13 {
		t.Errorf("counts %+v, want 5 pages with 13 issues", r.Counts)
	}
	if len(asked) != 5 || asked[1] == asked[0] {
		t.Errorf("asked %v", asked)
	}
}

// TestRealEarthquakes runs the pipeline that ships on a recorded week. Quarantine would show a column that does not fit.
func TestRealEarthquakes(t *testing.T) {
	dir := realData(t)
	for _, file := range []string{"usgs_all_week_2014-04-15.geojson.json", "usgs_all_week_2018-02-07.geojson.json"} {
		records, ok := at(readJSON(t, filepath.Join(dir, file)), "features").([]any)
		if !ok {
			t.Fatalf("%s has no features", file)
		}
		srv := httptest.NewServer(offsets(1, "features")(t, records, nil))
		defer srv.Close()
		h := newHome(t)
		r := h.run(0, "earthquakes", "--slot", "2018-02-07", "--source", srv.URL)
		if int(r.Counts.Records) != len(records) || int(r.Counts.Written) != len(records) || r.Counts.Pages != 2 {
			t.Errorf("%s: %+v, want %d rows from 2 pages", file, r.Counts, len(records))
		}
	}
}
