package cli_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/onceload/onceload/pkg/etl"
)

// rows serves 1,000 rows in four pages, of which bad have a price that is no number, and counts its calls.
func rows(t *testing.T, bad int) (string, *atomic.Int64) {
	t.Helper()
	const size = 250
	var calls atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		var page int
		if _, err := fmt.Sscan(r.URL.Query().Get("page"), &page); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		var out []string
		for i := (page - 1) * size; i < min(page*size, 1000); i++ {
			valor := fmt.Sprintf(`"%d.50"`, i)
			if i%(1000/bad) == 7 && i/(1000/bad) < bad {
				valor = fmt.Sprintf(`"%d,50"`, i)
			}
			out = append(out, fmt.Sprintf(`{"id":%d,"valor":%s,"seen":%d}`, i, valor, 10+i))
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"data":[%s],"pages":4}`, strings.Join(out, ","))
	}))
	t.Cleanup(srv.Close)
	return srv.URL, &calls
}

// prices is the pipeline of rows; what %s stands for says more of the price.
const prices = `
pipeline: prices
every: 1h
source:
  url: http://api.example.com/prices
  records: data
  paginate: {page: {param: page, total_pages: pages}}
contract:
  key: [id]
  fields:
    id: {type: integer, required: true}
    valor: {type: decimal%s}
target: {table: prices}
`

// TestFourPercentBad: the bad rows stand in quarantine with their text and place, the others are loaded, and show says
// what drifted. R9, B12
func TestFourPercentBad(t *testing.T) {
	h := newHome(t)
	url, _ := rows(t, 40)
	r := h.run(0, h.file("prices.yaml", fmt.Sprintf(prices, "")), "--slot", slot, "--source", url)
	if c := r.Counts; c.Records != 1000 || c.Valid != 960 || c.Quarantined != 40 || c.New != 960 {
		t.Errorf("%+v", c)
	}
	if got := h.query(`SELECT count(*) FROM prices`)[0][0]; got != "960" {
		t.Errorf("%s rows", got)
	}
	shown := h.exec("show", r.BatchID, "--home", h.dir)
	for _, want := range []string{"quarantined: valor number_syntax ×40", "drift: seen is new in 1,000 of 1,000", "drift: valor of another type in 1,000"} {
		if !strings.Contains(shown.stdout, want) {
			t.Errorf("show does not say %q:\n%s", want, shown.stdout)
		}
	}

	// The drift object of the part holds names, counts and places, never a value.
	found, err := filepath.Glob(filepath.Join(h.dir, "*", "valid", "pipeline=prices", "*", "*", "*", "*", "*", "_part-00000.drift.json"))
	if err != nil || len(found) != 1 {
		t.Fatalf("drift objects %v, %v", found, err)
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	var drift struct {
		Onceload string
		Records  int
		New      []struct {
			Path  string
			Types map[string]int
		}
		Fields []struct {
			Field   string
			Retyped int
			Example *struct{ Part, Page, Index int }
		}
	}
	if err := json.Unmarshal(text, &drift); err != nil {
		t.Fatal(err)
	}
	if drift.Onceload != "drift" || drift.Records != 1000 || len(drift.New) != 1 || drift.New[0].Path != "seen" || drift.New[0].Types["number"] != 1000 ||
		len(drift.Fields) != 2 || drift.Fields[1].Field != "valor" || drift.Fields[1].Retyped != 1000 || drift.Fields[1].Example == nil {
		t.Errorf("drift %s", text)
	}
	if strings.Contains(string(text), ",50") || strings.Contains(string(text), ".50") {
		t.Errorf("drift holds a value: %s", text)
	}
}

// TestSixPercentBad: nothing is loaded; once the contract takes the rows, a redrive loads all, without a new revision and
// without a page fetched again; from then on the contract changes only with its revision. R10, R16, R28
func TestSixPercentBad(t *testing.T) {
	h := newHome(t)
	url, calls := rows(t, 60)
	file := h.file("prices.yaml", fmt.Sprintf(prices, ""))
	r := h.run(3, file, "--slot", slot, "--source", url)
	if r.Failure.Kind != etl.QuarantineExceeded || r.Failure.Stage != etl.StageGate {
		t.Fatalf("%+v", r)
	}
	for _, want := range []string{"60 of 1000", "valor number_syntax ×60", "part 0 page 0 index 7", "quarantine/pipeline=prices/"} {
		if !strings.Contains(r.Failure.Message, want) {
			t.Errorf("the failure does not say %q: %s", want, r.Failure.Message)
		}
	}
	if strings.Count(r.Failure.Message, "part 0 page") != 3 {
		t.Errorf("not three places: %s", r.Failure.Message)
	}
	shown := h.exec("show", r.BatchID, "--home", h.dir)
	for _, want := range []string{"quarantined: valor number_syntax ×60", "drift: seen is new in 1,000 of 1,000", "the gate tried revision 1.", "  failure 20"} {
		if !strings.Contains(shown.stdout, want) {
			t.Errorf("show does not say %q:\n%s", want, shown.stdout)
		}
	}
	if tables := h.query(`SELECT count(*) FROM sqlite_master WHERE name = 'prices'`)[0][0]; tables != "0" {
		if got := h.query(`SELECT count(*) FROM prices`)[0][0]; got != "0" {
			t.Fatalf("%s rows are loaded", got)
		}
	}
	fetched := calls.Load()

	h.file("prices.yaml", fmt.Sprintf(prices, ", decimal_comma: true, thousands: point"))
	if r = h.report(3, "redrive", r.BatchID); r.Failure.Kind != etl.QuarantineExceeded {
		t.Errorf("points for thousands that set off two digits: %+v", r) // a fix that is none
	}
	h.file("prices.yaml", strings.Replace(fmt.Sprintf(prices, ""), "valor: {type: decimal", `valor: {type: string, pattern: "^[0-9]+[.,][0-9]{2}$"`, 1))
	if r = h.report(0, "redrive", r.BatchID); r.Counts.New != 1000 || r.Counts.Quarantined != 0 {
		t.Errorf("redriven: %+v", r)
	}
	if calls.Load() != fetched {
		t.Errorf("%d pages fetched, then %d", fetched, calls.Load())
	}
	// What it failed with is history now, and reads so.
	shown = h.exec("show", r.BatchID, "--home", h.dir)
	if !strings.Contains(shown.stdout, "  mended failure 20") || strings.Contains(shown.stdout, "  failure 20") || strings.Contains(shown.stdout, "→") {
		t.Errorf("show of a completed batch:\n%s", shown.stdout)
	}
	var view struct {
		Batch    map[string]json.RawMessage
		Failures []struct{ Kind etl.Kind }
	}
	shown = h.exec("show", r.BatchID, "--home", h.dir, "--json")
	if err := json.Unmarshal([]byte(shown.stdout), &view); err != nil || len(view.Failures) != 2 || view.Batch["last_failure"] == nil || view.Batch["failure"] != nil {
		t.Errorf("show --json of a completed batch, %v:\n%s", err, shown.stdout)
	}

	// Rows are loaded under revision 1 now.
	h.file("prices.yaml", fmt.Sprintf(prices, ", min: 0"))
	r = h.run(2, file, "--slot", "2026-01-05T11:00:00Z", "--source", url)
	if r.Failure.Kind != etl.ContractChanged || !strings.Contains(r.Failure.Message, "fields.valor") || !strings.Contains(r.Failure.Message, "raise contract.revision to 2") {
		t.Errorf("a contract changed under its number: %+v", r.Failure)
	}
}

// TestReasonsInOrder: show sums the reasons of all parts up, the most frequent first.
func TestReasonsInOrder(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data := `{"id":1},{"id":2,"valor":"1,5"}`
		if r.FormValue("page") == "2" {
			data = `{"id":"a"},{"id":"b"},{"id":"c"},{"id":3,"valor":"1,5"}`
		}
		fmt.Fprintf(w, `{"data":[%s],"pages":2}`, data)
	}))
	defer srv.Close()
	h := newHome(t)
	text := strings.Replace(fmt.Sprintf(prices, ""), "  records: data\n", "  records: data\n  part_bytes: 1\n", 1)
	r := h.run(0, h.file("prices.yaml", text), "--slot", slot, "--source", srv.URL)
	if shown := h.exec("show", r.BatchID, "--home", h.dir); !strings.Contains(shown.stdout, "×3\n  quarantined: valor number_syntax ×2\n") {
		t.Errorf("show:\n%s", shown.stdout)
	}
}
