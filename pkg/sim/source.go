package sim

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onceload/onceload/pkg/etl"
)

// record is what the source serves.
type record struct {
	ID      string `json:"id"`
	Version any    `json:"version"` // an integer, or a text that the contract refuses
	Text    string `json:"text"`
	Status  string `json:"status"`
}

// source is an API whose content changes while it is read. A listing is a session: its pages show what there was when it
// began. Sessions expire.
type source struct {
	mu       sync.Mutex
	hours    map[time.Time][]record
	sessions map[string][]record
	made     int
	expired  map[string]bool
}

const pageSize = 4

func newSource(rnd *rand.Rand, batches []etl.Batch) *source {
	s := &source{hours: map[time.Time][]record{}, sessions: map[string][]record{}, expired: map[string]bool{}}
	for _, b := range batches {
		for range 3 + rnd.IntN(12) {
			s.hours[b.Slot] = append(s.hours[b.Slot], draw(rnd))
		}
	}
	return s
}

func draw(rnd *rand.Rand) record {
	r := record{ID: fmt.Sprintf("o-%d", rnd.IntN(9)), Version: 1 + rnd.IntN(4), Text: fmt.Sprintf("Text %d", rnd.IntN(50)), Status: "open"}
	if rnd.IntN(8) == 0 {
		r.Status = "deleted"
	}
	if rnd.IntN(9) == 0 {
		r.Version = "none"
	}
	return r
}

// change adds a record, writes a newer version of one, edits one without a new version, or lets all sessions expire.
func (s *source) change(rnd *rand.Rand) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hours := make([]time.Time, 0, len(s.hours))
	for h := range s.hours {
		hours = append(hours, h)
	}
	slices.SortFunc(hours, time.Time.Compare)
	h := hours[rnd.IntN(len(hours))]
	all := slices.Clone(s.hours[h])
	r := &all[rnd.IntN(len(all))]
	switch rnd.IntN(4) {
	case 0:
		all = append(all, draw(rnd))
	case 1:
		if v, ok := r.Version.(int); ok {
			r.Version, r.Text = v+1, r.Text+" changed"
		}
	case 2:
		r.Text += " edited"
	case 3:
		for id := range s.sessions {
			s.expired[id] = true
		}
	}
	s.hours[h] = all
}

func (s *source) serve(r *http.Request) *http.Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	reply := func(status int, body any) *http.Response {
		text, err := json.Marshal(body)
		if err != nil {
			status, text = http.StatusInternalServerError, nil
		}
		return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
			Body: io.NopCloser(strings.NewReader(string(text))), ContentLength: int64(len(text)), ProtoMajor: 1, ProtoMinor: 1}
	}
	id, offset := cursor(r.URL.Query().Get("cursor"))
	if id == "" {
		from, to, err := window(r)
		if err != nil {
			return reply(http.StatusBadRequest, err.Error())
		}
		s.made++
		id = fmt.Sprintf("s%d", s.made)
		list := []record{}
		for h := from; h.Before(to); h = h.Add(time.Hour) {
			list = append(list, s.hours[h.UTC()]...)
		}
		s.sessions[id] = list
	}
	if s.expired[id] {
		return reply(http.StatusGone, "this cursor has expired")
	}
	list := s.sessions[id]
	end := min(offset+pageSize, len(list))
	page := map[string]any{"data": list[offset:end], "session": id}
	if end < len(list) {
		page["next"] = fmt.Sprintf("%s.%d", id, end)
	}
	return reply(http.StatusOK, page)
}
