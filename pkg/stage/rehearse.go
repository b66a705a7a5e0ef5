package stage

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/page"
	"github.com/onceload/onceload/pkg/store"
)

// Rehearsal is what a reprocess would come to.
type Rehearsal struct {
	Batch       string               `json:"batch"`
	From        etl.Revision         `json:"from"` // the revision that the batch is bound to, or was before a reprocess that has not ended
	To          etl.Revision         `json:"to"`   // the file's
	Quarantined int64                `json:"quarantined"`
	Pass        int64                `json:"pass"`              // of these
	Reasons     []ledger.ReasonCount `json:"reasons,omitempty"` // of those that stay
	Rows        int64                `json:"rows"`              // that would be written, at most: those that pass, and those that the batch holds in the table
	WriteUnits  float64              `json:"write_units"`       // of DynamoDB, for these rows
	ReadUnits   float64              `json:"read_units"`        // likewise, for the look at their ranks
}

// Rehearse runs the file's contract over the batch's quarantined records alone, and reckons what a reprocess would write.
// It changes nothing.
func (s *Load) Rehearse(ctx context.Context, b etl.Batch) (Rehearsal, error) {
	r, err := s.rehearse(ctx, b)
	if err != nil {
		return r, fmt.Errorf("rehearse %s: %w", b, err)
	}
	return r, nil
}

func (s *Load) rehearse(ctx context.Context, b etl.Batch) (Rehearsal, error) {
	out := Rehearsal{Batch: b.String()}
	_, k, err := s.compile(b.Pipeline)
	if err != nil {
		return out, err
	}
	cur, err := s.Ledger.Get(ctx, b)
	if err != nil {
		return out, err
	}
	bind := cur.Basis()
	if bind == nil {
		return out, etl.Errorf(etl.Usage, "it has not come to its gate yet: run or redrive it")
	}
	parts, err := s.Ledger.Transforms(ctx, b, *bind)
	if err != nil {
		return out, err
	}
	out.From, out.To = bind.Revision, k.Revision()
	checker := k.NewChecker()
	still := map[ledger.ReasonCount]int64{}
	bytesOf := int64(0) // of the valid lines that are there, to reckon with
	valid := int64(0)
	for _, t := range parts {
		valid, bytesOf = valid+t.Valid, bytesOf+t.ValidBytes
		if t.Quarantined == 0 {
			continue
		}
		err := s.quarantined(ctx, b, *bind, t.Part, func(rec page.Record, at contract.Place) error {
			out.Quarantined++
			res := checker.Check(rec, at, contract.Origin{Batch: b, Extraction: bind.Extraction, FetchedAt: b.Slot})
			if res.Line == nil {
				for _, reason := range res.Reasons {
					still[ledger.ReasonCount{Field: reason.Field, Code: reason.Code}]++
				}
				return nil
			}
			item, err := contract.ParseLine(res.Line)
			if err != nil {
				return err
			}
			size, err := store.ItemSize(item)
			if err != nil {
				return err
			}
			out.Pass++
			out.WriteUnits += store.WriteUnits(size)
			out.ReadUnits += store.ReadUnits(0)
			return nil
		})
		if err != nil {
			return out, err
		}
	}
	out.Reasons = top(still)
	out.Rows = out.Pass
	if valid > 0 {
		held := valid
		if c := cur.Counts; c != nil && cur.State == ledger.StateCompleted {
			held -= c.Duplicate + c.Stale
		}
		size := int(bytesOf / valid)
		out.Rows += held
		out.WriteUnits += float64(held) * store.WriteUnits(size)
		out.ReadUnits += float64(held) * store.ReadUnits(size)
	}
	return out, nil
}

// quarantined reads a part's quarantine lines back into records.
func (s *Load) quarantined(ctx context.Context, b etl.Batch, bind etl.Binding, part int, yield func(page.Record, contract.Place) error) error {
	key := etl.StageKey(etl.Quarantine, b, bind, part)
	n := 0
	return s.zippedLines(ctx, key, io.Discard, func(line []byte) error {
		n++
		var l struct {
			Place  contract.Place  `json:"place"`
			Key    string          `json:"key"`
			Bytes  *string         `json:"key_base64"`
			Record json.RawMessage `json:"record"`
			Text   *string         `json:"record_text"`
			Base64 *string         `json:"record_base64"`
		}
		if err := json.Unmarshal(bytes.TrimSpace(line), &l); err != nil {
			return etl.Errorf(etl.RecordsLost, "read %s: line %d: %w", key, n, err)
		}
		rec := page.Record{Index: l.Place.Index, Key: l.Key, Raw: l.Record}
		var err error
		switch {
		case l.Text != nil:
			rec.Raw = []byte(*l.Text)
		case l.Base64 != nil:
			rec.Raw, err = base64.StdEncoding.DecodeString(*l.Base64)
		}
		if l.Bytes != nil && err == nil {
			var mapKey []byte
			mapKey, err = base64.StdEncoding.DecodeString(*l.Bytes)
			rec.Key = string(mapKey)
		}
		if err != nil {
			return etl.Errorf(etl.RecordsLost, "read %s: line %d: %w", key, n, err)
		}
		return yield(rec, l.Place)
	})
}
