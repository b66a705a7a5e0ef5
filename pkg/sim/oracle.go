package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/snapshot"
	"github.com/onceload/onceload/pkg/store"
)

// settle brings every batch to its end in calm weather, and holds what there is against what must be.
func (s *sim) settle() error {
	for _, b := range s.slots {
		if err := s.finish(b, etl.Request{}); err != nil {
			return err
		}
	}
	if err := s.judgeTable(); err != nil {
		return err
	}
	// Everything once more writes nothing. B8
	before := s.target.Items()
	for _, b := range s.slots {
		if err := s.finish(b, etl.Request{Reload: true}); err != nil {
			return err
		}
		got, err := s.books().Get(s.ctx, b)
		if err != nil {
			return err
		}
		if got.Counts.Written != 0 {
			return fmt.Errorf("a reload of %s wrote %d rows", b, got.Counts.Written)
		}
	}
	if !slices.EqualFunc(before, s.target.Items(), func(a, b store.Item) bool {
		return a.Key == b.Key && a.Rank == b.Rank && bytes.Equal(a.Doc, b.Doc)
	}) {
		return errors.New("a reload changed the table")
	}
	s.report.Rows = len(before)
	return errors.Join(s.broken...)
}

func (s *sim) books() *ledger.Ledger { return &ledger.Ledger{Table: s.ledger} }

// finish runs the batch until it is completed.
func (s *sim) finish(b etl.Batch, req etl.Request) error {
	req.Pipeline, req.Slot = b.Pipeline, etl.FormatTime(b.Slot)
	var last string
	for range 3 {
		id := s.start(b, req)
		s.drain()
		got, err := s.books().Get(s.ctx, b)
		if err != nil {
			return fmt.Errorf("after execution %s: %w", id, err)
		}
		if got.State == ledger.StateCompleted {
			return s.judgeBatch(b, got)
		}
		last = fmt.Sprintf("%s in %s, %+v", got.State, got.Stage, got.Failure)
	}
	return fmt.Errorf("%s cannot be completed: %s", b, last)
}

// rows of a bound part's objects.
func (s *sim) lines(kind etl.ObjectKind, b etl.Batch, bind etl.Binding, part int) ([][]byte, error) {
	obj, err := s.stage.Get(s.ctx, etl.StageKey(kind, b, bind, part))
	if err != nil {
		return nil, err
	}
	gz, err := gzip.NewReader(obj)
	if err != nil {
		return nil, err
	}
	var all bytes.Buffer
	if _, err := all.ReadFrom(gz); err != nil {
		return nil, err
	}
	var out [][]byte
	for line := range bytes.Lines(all.Bytes()) {
		out = append(out, bytes.TrimSuffix(line, []byte("\n")))
	}
	return out, nil
}

// judgeBatch counts every record of a completed batch anew (B7), and wants its pages to be those of one listing (R18).
func (s *sim) judgeBatch(b etl.Batch, got ledger.Batch) error {
	m, raw, err := s.landedRecords(b, got.Binding.Extraction)
	if err != nil {
		return err
	}
	valid, quarantined := 0, 0
	for _, t := range m.Parts {
		lines, err := s.lines(etl.Valid, b, *got.Binding, t.Part)
		if err != nil {
			return err
		}
		valid += len(lines)
		lines, err = s.lines(etl.Quarantine, b, *got.Binding, t.Part)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		quarantined += len(lines)
	}
	c := *got.Counts
	if int64(len(raw)) != c.Records || int64(valid) != c.Valid || int64(quarantined) != c.Quarantined || c.Valid != c.Total() || c.Records != c.Valid+c.Quarantined {
		return fmt.Errorf("%s: %d records landed, %d valid and %d quarantined lines, but the ledger counts %+v", b, len(raw), valid, quarantined, c)
	}
	return nil
}

// landedRecords reads the records of an extraction from its raw parts.
func (s *sim) landedRecords(b etl.Batch, extraction int) (snapshot.Manifest, []record, error) {
	ctx := s.ctx
	m, err := snapshot.ReadManifest(ctx, s.raw, b, extraction)
	if err != nil {
		return m, nil, err
	}
	var out []record
	session := ""
	for _, part := range m.Parts {
		f, err := snapshot.ReadFooter(ctx, s.raw, etl.RawPartKey(b, extraction, part.Part))
		if err != nil {
			return m, nil, err
		}
		err = snapshot.ReadPages(ctx, s.raw, f, func(_ snapshot.Page, _ int, body []byte) error {
			var page struct {
				Data    []record `json:"data"`
				Session string   `json:"session"`
			}
			if err := json.Unmarshal(body, &page); err != nil {
				return err
			}
			if session == "" {
				session = page.Session
			}
			if page.Session != session {
				return fmt.Errorf("extraction %d of %s mixes the listings %s and %s", extraction, b, session, page.Session)
			}
			out = append(out, page.Data...)
			return nil
		})
		if err != nil {
			return m, nil, err
		}
	}
	if want := len(s.source.sessions[session]); session != "" && len(out) != want {
		return m, nil, fmt.Errorf("extraction %d of %s holds %d records, its listing has %d", extraction, b, len(out), want)
	}
	return m, out, nil
}

// judgeTable wants each row to be the highest of all that were loaded: the rows of what each batch is bound to now, and
// those that earlier loads wrote; and the highest to be what a reader of the design would choose. B5
func (s *sim) judgeTable() error {
	best := map[store.Key]store.Item{}
	take := func(it store.Item) {
		if it.Rank > best[it.Key].Rank {
			best[it.Key] = it
		}
	}
	for _, it := range s.applied {
		take(it)
	}
	for _, b := range s.slots {
		got, err := s.books().Get(s.ctx, b)
		if err != nil {
			return err
		}
		for part := range got.Parts {
			lines, err := s.lines(etl.Valid, b, *got.Binding, part)
			if err != nil {
				return err
			}
			for _, line := range lines {
				it, err := contract.ParseLine(line)
				if err != nil {
					return err
				}
				take(it)
			}
		}
		if err := s.judgeRows(b, got); err != nil {
			return err
		}
	}
	rows := s.target.Items()
	if len(rows) != len(best) {
		return fmt.Errorf("the table has %d rows, want %d", len(rows), len(best))
	}
	for _, row := range rows {
		if want := best[row.Key]; row.Rank != want.Rank || columns(row) != columns(want) {
			return fmt.Errorf("row %s is %s %s, want %s %s", row.Name(), row.Rank, row.Doc, want.Rank, want.Doc)
		}
	}
	return nil
}

// judgeRows wants the table to hold, for each record that a batch loaded, that record or a better one, by the record's own
// version and the contract's revision.
func (s *sim) judgeRows(b etl.Batch, got ledger.Batch) error {
	_, records, err := s.landedRecords(b, got.Binding.Extraction)
	if err != nil {
		return err
	}
	versioned := s.files[0].Contract.Version != ""
	for _, r := range records {
		version, ok := r.Version.(float64)
		if !ok {
			continue // quarantined
		}
		row, err := s.target.Get(s.ctx, store.Key{PK: r.ID})
		if err != nil {
			return fmt.Errorf("record %+v of %s: %w", r, b, err)
		}
		var doc struct {
			Version *float64 `json:"version"`
			Text    *string  `json:"text"`
			Deleted bool     `json:"_deleted"`
			Run     string   `json:"_run"`
		}
		if err := json.Unmarshal(row.Doc, &doc); err != nil {
			return err
		}
		revision := doc.Run[strings.LastIndexByte(doc.Run, '/')+1:]
		if versioned && doc.Version != nil && *doc.Version < version {
			return fmt.Errorf("row %s has version %v, %s loaded version %v", r.ID, *doc.Version, b, version)
		}
		if versioned && doc.Version != nil && *doc.Version == version && revision < got.Binding.Revision.String() {
			return fmt.Errorf("row %s is of revision %s, %s loaded the same version under %s", r.ID, revision, b, got.Binding.Revision)
		}
		if !versioned && doc.Run < b.String() {
			return fmt.Errorf("row %s is of %s, %s is later", r.ID, doc.Run, b)
		}
		if doc.Text != nil {
			want := strings.ToLower(*doc.Text)
			if strings.HasPrefix(revision, "2.") {
				want = strings.ToUpper(*doc.Text)
			}
			if *doc.Text != want {
				return fmt.Errorf("row %s holds %q under revision %s", r.ID, *doc.Text, revision)
			}
		}
	}
	return nil
}

// columns are what B5 speaks of.
func columns(it store.Item) string {
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(it.Doc, &doc); err != nil {
		return err.Error()
	}
	for name := range doc {
		if name[0] == '_' && name != "_deleted" {
			delete(doc, name)
		}
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
