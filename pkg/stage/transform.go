package stage

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/snapshot"
	"github.com/onceload/onceload/pkg/store"
)

const (
	topReasons  = 20   // reasons kept in a part's record
	topDrift    = 20   // drifting members kept in a part's record
	maxExamples = 3    // places kept in a part's record
	maxReasons  = 1000 // reasons counted one by one; a source can make up any number of undeclared members
)

// Transform checks the records of landed parts against the contract. It is a pure function of (part bytes, contract):
// whoever calls it, for whatever reason, writes the same objects.
type Transform struct{ *core }

// Run transforms a run of parts under the pipeline file's current contract. A part with a record in the ledger whose
// objects are there is done already.
func (s *Transform) Run(ctx context.Context, in etl.RangeInput) (etl.RangeOutput, error) {
	o, err := owner(in.Batch, in.Execution, in.Fence)
	if err != nil {
		return etl.RangeOutput{}, err
	}
	b, _, err := s.own(ctx, o, etl.StageTransform)
	if err != nil {
		return etl.RangeOutput{}, err
	}
	p, k, err := s.compile(o.Batch.Pipeline)
	if err != nil {
		return etl.RangeOutput{}, err
	}
	// After Gate has looked at the parts their objects are read, not just looked for: it may have found one damaged.
	done := s.objectsThere
	if seen := b.Looked(); seen != nil && *seen == bindingOf(k, in.Extraction) {
		done = s.sound
	}
	for part := in.Range.First; part <= in.Range.Last; part++ {
		if part > in.Range.First && s.short(ctx) {
			return etl.RangeOutput{Status: etl.StatusMore, Range: etl.Range{First: part, Last: in.Range.Last}}, nil
		}
		if err := s.part(ctx, p, k, o.Batch, in.Extraction, part, done); err != nil {
			return etl.RangeOutput{}, err
		}
	}
	return etl.RangeOutput{Status: etl.StatusDone, Range: in.Range}, nil
}

// Part transforms one part, unless its record says it is done and its objects are there.
func (s *Transform) Part(ctx context.Context, p *pipeline.Pipeline, k *contract.Contract, b etl.Batch, extraction, part int) error {
	return s.part(ctx, p, k, b, extraction, part, s.objectsThere)
}

// part is Part with its own idea of whether the objects of a record are there.
func (s *Transform) part(ctx context.Context, p *pipeline.Pipeline, k *contract.Contract, b etl.Batch, extraction, part int,
	done func(context.Context, etl.Batch, etl.Binding, ledger.TransformRecord) (bool, error)) error {
	bind := bindingOf(k, extraction)
	rec, ok, err := s.Ledger.GetTransform(ctx, b, bind, part)
	if err != nil {
		return fmt.Errorf("transform record of part %d of %s: %w", part, b, err)
	}
	if ok {
		there, err := done(ctx, b, bind, rec)
		if err != nil {
			return err
		}
		if there {
			return nil
		}
		// The record is void: what it speaks of is gone or damaged, and is made again from the raw part.
	}
	return s.make(ctx, p, k, b, bind, part)
}

func bindingOf(k *contract.Contract, extraction int) etl.Binding {
	return etl.Binding{Extraction: extraction, Revision: k.Revision(), Contract: k.Short()}
}

// make transforms a part whatever is there.
func (s *Transform) make(ctx context.Context, p *pipeline.Pipeline, k *contract.Contract, b etl.Batch, bind etl.Binding, part int) error {
	made, err := s.transform(ctx, p, k, b, bind, part)
	if errors.Is(err, store.ErrNotFound) {
		err = etl.Errorf(etl.RecordsLost, "what landed is gone from the raw bucket: %w", err)
	}
	if err != nil {
		return fmt.Errorf("transform part %d of %s: %w", part, b, err)
	}
	kept, err := s.Ledger.PutTransform(ctx, b, bind, made)
	if err != nil {
		return fmt.Errorf("transform record of part %d of %s: %w", part, b, err)
	}
	if kept.ValidSHA256 != made.ValidSHA256 || kept.QuarantineSHA256 != made.QuarantineSHA256 || kept.KeysSHA256 != made.KeysSHA256 {
		return etl.Errorf(etl.RecordsLost, "part %d of %s came out otherwise than before under %s: the transform code changed its output without a new engine version", part, b, bind)
	}
	return nil
}

func (s *Transform) objectsThere(ctx context.Context, b etl.Batch, bind etl.Binding, rec ledger.TransformRecord) (bool, error) {
	kinds := []etl.ObjectKind{etl.Valid, etl.Keys, etl.Drift}
	if rec.Quarantined > 0 {
		kinds = append(kinds, etl.Quarantine)
	}
	for _, kind := range kinds {
		_, err := s.core.Stage.Head(ctx, etl.StageKey(kind, b, bind, rec.Part))
		if errors.Is(err, store.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// sound reports whether what was made of a part is there and is what its record says (R23).
func (s *Transform) sound(ctx context.Context, b etl.Batch, bind etl.Binding, rec ledger.TransformRecord) (bool, error) {
	there, err := s.objectsThere(ctx, b, bind, rec)
	if err != nil || !there {
		return false, err
	}
	for _, o := range []struct {
		kind   etl.ObjectKind
		sha256 string
		zipped bool
	}{{etl.Valid, rec.ValidSHA256, true}, {etl.Keys, rec.KeysSHA256, false}, {etl.Quarantine, rec.QuarantineSHA256, true}} {
		if o.sha256 == "" {
			continue // no record is quarantined
		}
		got, err := contentDigest(ctx, s.core.Stage, etl.StageKey(o.kind, b, bind, rec.Part), o.zipped)
		if err != nil || got != o.sha256 {
			return false, err
		}
	}
	return true, nil
}

// transform streams one part. In memory are a page of raw bodies, compressed and not, and at most maxRun key digests: how
// large the part is does not matter.
func (s *Transform) transform(ctx context.Context, p *pipeline.Pipeline, k *contract.Contract, b etl.Batch, bind etl.Binding, part int) (ledger.TransformRecord, error) {
	f, err := snapshot.ReadFooter(ctx, s.Raw, etl.RawPartKey(b, bind.Extraction, part))
	if err != nil {
		return ledger.TransformRecord{}, err
	}
	layout, err := p.Layout()
	if err != nil {
		return ledger.TransformRecord{}, etl.Errorf(etl.ContractInvalid, "%s: %w", p.File, err)
	}
	valid := newLineWriter(ctx, s.core.Stage, etl.StageKey(etl.Valid, b, bind, part))
	bad := newLineWriter(ctx, s.core.Stage, etl.StageKey(etl.Quarantine, b, bind, part))
	keys := newKeyWriter(ctx, s.core.Stage, etl.StageKey(etl.Keys, b, bind, part), f.Records())
	defer valid.abort()
	defer bad.abort()
	defer keys.abort()

	rec := ledger.TransformRecord{Part: part, RecordsAt: p.Contract.RecordsAt, RawSHA256: f.Sum().SHA256, Pages: len(f.Pages)}
	reasons, codes := reasonCounts{}, map[string]int64{}
	var newest []byte
	checker := k.NewChecker()
	err = snapshot.ReadPages(ctx, s.Raw, f, func(pg snapshot.Page, n int, body []byte) error {
		from := contract.Origin{Batch: b, Extraction: bind.Extraction, FetchedAt: pg.FetchedAt}
		count, err := checker.Page(layout, body, part, n, from, func(res contract.Result) error {
			if res.Line != nil {
				rec.Valid++
				if bytes.Compare(res.Version, newest) > 0 {
					newest = append(newest[:0], res.Version...)
				}
				if err := keys.add(res.Key); err != nil {
					return err
				}
				return valid.line(res.Line)
			}
			rec.Quarantined++
			for i, reason := range res.Reasons {
				reasons.add(reason.Field, reason.Code)
				if !slices.ContainsFunc(res.Reasons[:i], func(r contract.Reason) bool { return r.Code == reason.Code }) {
					codes[reason.Code]++
				}
			}
			if len(rec.Examples) < maxExamples {
				rec.Examples = append(rec.Examples, ledger.Place(res.Place))
			}
			return bad.line(res.Quarantine)
		})
		if err != nil {
			return fmt.Errorf("page %d: %w", n, err)
		}
		rec.Records += int64(count)
		if count != pg.Records && pg.RecordsAt == p.Contract.RecordsAt {
			return etl.Errorf(etl.RecordsLost, "page %d: its footer counts %d records, reading finds %d", n, pg.Records, count)
		}
		s.Watch(Tick{Stage: etl.StageTransform, Batch: b, Pages: 1, Records: int64(count)})
		return nil
	})
	if err != nil {
		return rec, err
	}
	if rec.ValidSHA256, rec.ValidBytes, err = valid.close(); err != nil {
		return rec, err
	}
	if rec.Quarantined > 0 {
		if rec.QuarantineSHA256, rec.QuarantineBytes, err = bad.close(); err != nil {
			return rec, err
		}
	}
	if rec.KeysSHA256, err = keys.close(); err != nil {
		return rec, err
	}
	drift := checker.Drift()
	if err := s.putDrift(ctx, b, bind, part, drift); err != nil {
		return rec, err
	}
	rec.MaxVersion, rec.Codes, rec.Reasons, rec.Drift = string(newest), codes, top(reasons), summary(drift)
	s.Watch(Tick{Stage: etl.StageTransform, Batch: b, Parts: 1})
	return rec, nil
}

// driftReport is a part's drift object.
type driftReport struct {
	Onceload   string `json:"onceload"` // "drift"
	Format     int    `json:"format"`
	Batch      string `json:"batch"`
	Extraction int    `json:"extraction"`
	Part       int    `json:"part"`
	Revision   string `json:"revision"`
	Contract   string `json:"contract"`
	contract.Drift
}

func (s *Transform) putDrift(ctx context.Context, b etl.Batch, bind etl.Binding, part int, d contract.Drift) error {
	report := driftReport{
		Onceload: "drift", Format: 1, Batch: b.String(), Extraction: bind.Extraction, Part: part,
		Revision: bind.Revision.String(), Contract: bind.Contract, Drift: d,
	}
	var doc bytes.Buffer
	enc := json.NewEncoder(&doc)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(report); err != nil {
		return fmt.Errorf("drift: %w", err)
	}
	key := etl.StageKey(etl.Drift, b, bind, part)
	if err := s.core.Stage.Put(ctx, key, &doc); err != nil {
		return fmt.Errorf("write %s: %w", key, err)
	}
	return nil
}

// summary keeps of a part's drift the members that drift most: undeclared and retyped ones before those that are merely
// missing or null.
func summary(d contract.Drift) []ledger.DriftCount {
	var out []ledger.DriftCount
	for _, f := range d.New {
		out = append(out, ledger.DriftCount{Path: cut(f.Path), New: d.Records - f.Missing})
	}
	for _, f := range d.Fields {
		if f.Missing+f.Null+f.Retyped > 0 {
			out = append(out, ledger.DriftCount{Path: cut(f.Path), Missing: f.Missing, Null: f.Null, Retyped: f.Retyped})
		}
	}
	slices.SortStableFunc(out, func(a, b ledger.DriftCount) int {
		return cmp.Or(cmp.Compare(b.New+b.Retyped, a.New+a.Retyped), cmp.Compare(b.Missing+b.Null, a.Missing+a.Null), cmp.Compare(a.Path, b.Path))
	})
	return out[:min(len(out), topDrift)]
}

// cut bounds a path in the ledger: the source chooses the names.
func cut(path string) string {
	const most = 200
	if len(path) <= most {
		return path
	}
	return strings.ToValidUTF8(path[:most], "") + "…"
}

// reasonCounts counts records by reason.
type reasonCounts map[ledger.ReasonCount]int64

func (c reasonCounts) add(field, code string) {
	r := ledger.ReasonCount{Field: field, Code: code}
	if _, known := c[r]; !known && len(c) >= maxReasons {
		r.Field = "…" // one of many more
	}
	c[r]++
}

// top keeps the most frequent reasons, in a fixed order.
func top(reasons reasonCounts) []ledger.ReasonCount {
	out := make([]ledger.ReasonCount, 0, len(reasons))
	for r, n := range reasons {
		r.Count = n
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b ledger.ReasonCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Code, b.Code))
	})
	return out[:min(len(out), topReasons)]
}

// upload streams one stage object. The store is called when the first bytes come, or at the end: one call at a time, in an
// order that does not depend on the scheduler.
type upload struct {
	key  string
	put  func(io.Reader) error
	pipe *io.PipeWriter // nil = the store is not called yet
	done chan error
}

func newUpload(ctx context.Context, into store.Objects, key string) *upload {
	return &upload{key: key, done: make(chan error, 1), put: func(r io.Reader) error { return into.Put(ctx, key, r) }}
}

func (u *upload) begin() {
	r, w := io.Pipe()
	u.pipe = w
	go func() {
		err := u.put(r)
		r.CloseWithError(cmp.Or(err, io.ErrClosedPipe))
		u.done <- err
	}()
}

// Write implements io.Writer.
func (u *upload) Write(b []byte) (int, error) {
	if u.pipe == nil {
		u.begin()
	}
	return u.pipe.Write(b)
}

// end commits the object, or gives it up if err is not nil.
func (u *upload) end(err error) error {
	if u.pipe == nil && err == nil {
		u.begin()
	}
	if u.pipe != nil {
		u.pipe.CloseWithError(err)
		if perr := <-u.done; perr != nil {
			err = perr
		}
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", u.key, err)
	}
	return nil
}

// lineWriter streams lines into one gzipped stage object. The object comes into being with the first line or with close,
// so that a part without quarantine has no quarantine object.
type lineWriter struct {
	start func() *upload
	to    *upload // nil before the first line and after the end
	gz    *gzip.Writer
	buf   *bufio.Writer
	sum   hash.Hash
	size  int64
}

func newLineWriter(ctx context.Context, into store.Objects, key string) *lineWriter {
	return &lineWriter{start: func() *upload { return newUpload(ctx, into, key) }}
}

func (w *lineWriter) open() error {
	w.to = w.start()
	gz, err := gzip.NewWriterLevel(w.to, gzip.BestSpeed)
	if err != nil {
		return fmt.Errorf("gzip: %w", err)
	}
	w.gz, w.sum = gz, sha256.New()
	w.buf = bufio.NewWriterSize(io.MultiWriter(gz, w.sum), 64<<10)
	return nil
}

func (w *lineWriter) line(b []byte) error {
	if w.to == nil {
		if err := w.open(); err != nil {
			return err
		}
	}
	w.size += int64(len(b)) + 1
	if _, err := w.buf.Write(b); err != nil {
		return fmt.Errorf("write %s: %w", w.to.key, err)
	}
	if err := w.buf.WriteByte('\n'); err != nil {
		return fmt.Errorf("write %s: %w", w.to.key, err)
	}
	return nil
}

// close commits the object and returns digest and size of its uncompressed content.
func (w *lineWriter) close() (string, int64, error) {
	if w.to == nil {
		if err := w.open(); err != nil {
			return "", 0, err
		}
	}
	u := w.to
	w.to = nil
	if err := u.end(cmp.Or(w.buf.Flush(), w.gz.Close())); err != nil {
		return "", 0, err
	}
	return hex.EncodeToString(w.sum.Sum(nil)), w.size, nil
}

// abort gives an unfinished object up; after close it does nothing.
func (w *lineWriter) abort() {
	if w.to != nil {
		_ = w.to.end(context.Canceled) // it fails because it is given up, and the reason is on its way up already
		w.to = nil
	}
}
