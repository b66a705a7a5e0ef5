package ordersapi_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/onceload/onceload/pkg/ordersapi"
)

type reply struct {
	Data []map[string]any `json:"data"`
	Meta struct {
		NextCursor string `json:"next_cursor"`
	} `json:"meta"`
}

// get asks for one page of an hour; body is nil when it broke off.
func get(t testing.TB, server *httptest.Server, hour int, cursor string) (*http.Response, []byte) {
	t.Helper()
	q := url.Values{"updated_from": {fmt.Sprintf("2026-11-30T%02d:00:00Z", hour)}, "updated_to": {fmt.Sprintf("2026-11-30T%02d:00:00Z", hour+1)}, "limit": {"1000"}}
	if cursor != "" {
		q.Set("cursor", cursor)
	}
	resp, err := server.Client().Get(server.URL + "/v1/orders?" + q.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp, nil
	}
	return resp, body
}

// all walks an hour's pages, asking again until each is whole, and notes what it met on the way.
func all(t testing.TB, server *httptest.Server, hour int) (records []map[string]any, met map[string]int) {
	t.Helper()
	met = map[string]int{}
	for cursor := ""; ; {
		resp, body := get(t, server, hour, cursor)
		if resp.StatusCode != http.StatusOK {
			met[resp.Status]++
			if resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") != "1" {
				t.Fatalf("429 with Retry-After %q", resp.Header.Get("Retry-After"))
			}
			continue
		}
		if body == nil {
			met["cut"]++
			continue
		}
		var r reply
		if err := json.Unmarshal(body, &r); err != nil {
			t.Fatalf("page at %q: %v", cursor, err)
		}
		records = append(records, r.Data...)
		if cursor = r.Meta.NextCursor; cursor == "" {
			return records, met
		}
	}
}

func serve(t testing.TB, cfg ordersapi.Config) (*ordersapi.Handler, *httptest.Server) {
	h := ordersapi.New(cfg)
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return h, s
}

func TestFaultless(t *testing.T) {
	h, s := serve(t, ordersapi.Config{Seed: 7, Rows: 1050, PageSize: 100})
	records, met := all(t, s, 10)
	if len(records) != 1050 || len(met) != 0 || h.Records() != 1050 || h.Bad() != 0 {
		t.Fatalf("%d records, met %v", len(records), met)
	}
	ids, sorted := map[any]bool{}, true
	for i, r := range records {
		ids[r["order_id"]] = true
		if i > 0 && r["order_id"].(string) < records[i-1]["order_id"].(string) {
			sorted = false
		}
	}
	if len(ids) != 1050 || sorted {
		t.Fatalf("%d distinct ids, in key order: %v", len(ids), sorted)
	}
	calls := h.Calls()
	if len(calls) != 11 {
		t.Fatalf("%d pages counted, want 11", len(calls))
	}
	for p, c := range calls {
		if c.Asked != 1 || c.Served != 1 {
			t.Errorf("page %v: %+v", p, c)
		}
	}
	_, body := get(t, s, 10, "")
	if size := len(body) / 100; size < 400 || size > 480 {
		t.Errorf("%d bytes a record, want about 440", size)
	}
	_, other := serve(t, ordersapi.Config{Seed: 7, Rows: 1050, PageSize: 100})
	if _, again := get(t, other, 10, ""); string(again) != string(body) {
		t.Error("the same seed serves other bytes")
	}
	_, seeded := serve(t, ordersapi.Config{Seed: 8, Rows: 1050, PageSize: 100})
	if _, again := get(t, seeded, 10, ""); string(again) == string(body) {
		t.Error("another seed serves the same bytes")
	}
}

func TestMisbehaving(t *testing.T) {
	h, s := serve(t, ordersapi.Config{Seed: 7, Rows: 500, PageSize: 100, Faults: ordersapi.Misbehaving()})
	first, met := all(t, s, 10)
	if met["429 Too Many Requests"] != 1 || met["503 Service Unavailable"] != 4 || met["cut"] != 1 {
		t.Errorf("met %v, want one 429, a cut and two bursts of two 503", met)
	}
	second, met := all(t, s, 11)
	if met["429 Too Many Requests"] != 0 || met["503 Service Unavailable"] != 4 || met["cut"] != 0 {
		t.Errorf("second window met %v, want the bursts alone", met)
	}
	if len(first) != h.Records() || h.Records() != 503 || h.Bad() != 10 {
		t.Fatalf("%d records, Records %d, Bad %d", len(first), h.Records(), h.Bad())
	}
	bad := map[string]int{}
	for _, r := range first {
		_, hasTime := r["updated_at"]
		valor, isNumber := r["valor"].(float64)
		switch {
		case r["order_id"] == nil:
			bad["id"]++
		case !hasTime:
			bad["no time"]++
		case r["updated_at"] == "yesterday":
			bad["time"]++
		case !isNumber:
			bad["N/A"]++
		case valor < 0:
			bad["negative"]++
		}
	}
	if fmt.Sprint(bad) != "map[N/A:2 id:2 negative:2 no time:2 time:2]" {
		t.Errorf("bad rows %v", bad)
	}
	if fmt.Sprint(first[500]) != fmt.Sprint(first[0]) {
		t.Error("record 500 does not repeat record 0")
	}
	late, deleted := second[501], second[502]
	if late["order_id"] != first[1]["order_id"] || late["updated_at"].(string) <= first[1]["updated_at"].(string) || late["valor"] == first[1]["valor"] {
		t.Errorf("late update %v of %v", late, first[1])
	}
	if deleted["order_id"] != first[2]["order_id"] || deleted["status"] != "deleted" {
		t.Errorf("deletion %v of %v", deleted, first[2])
	}
}

func TestRefusals(t *testing.T) {
	_, s := serve(t, ordersapi.Config{Rows: 1, Token: "right"})
	const window = "updated_from=2026-11-30T10:00:00Z&updated_to=2026-11-30T11:00:00Z"
	for _, tc := range []struct {
		name, method, target, token string
		want                        int
	}{
		{"good", "GET", "/v1/orders?" + window, "right", 200},
		{"no token", "GET", "/v1/orders?" + window, "", 401},
		{"other path", "GET", "/v2", "right", 404},
		{"other method", "POST", "/v1/orders?" + window, "right", 405},
		{"no window", "GET", "/v1/orders", "right", 400},
		{"window the wrong way round", "GET", "/v1/orders?updated_from=2026-11-30T11:00:00Z&updated_to=2026-11-30T10:00:00Z", "right", 400},
		{"bad limit", "GET", "/v1/orders?limit=many&" + window, "right", 400},
		{"foreign cursor", "GET", "/v1/orders?cursor=abc&" + window, "right", 400},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req, err := http.NewRequest(tc.method, s.URL+tc.target, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+tc.token)
			resp, err := s.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != tc.want {
				t.Errorf("status %d, want %d", resp.StatusCode, tc.want)
			}
		})
	}
}

func BenchmarkPage(b *testing.B) {
	h := ordersapi.New(ordersapi.Config{Seed: 1, Rows: 200_000, PageSize: 1000})
	r := httptest.NewRequest(http.MethodGet, "/v1/orders?limit=1000&updated_from=2026-11-30T10:00:00Z&updated_to=2026-11-30T11:00:00Z", nil)
	for b.Loop() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		b.SetBytes(int64(w.Body.Len()))
	}
}
