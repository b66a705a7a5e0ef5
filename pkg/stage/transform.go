package stage

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"

	"github.com/klauspost/compress/gzip"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/page"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/snapshot"
	"github.com/onceload/onceload/pkg/store"
)

const (
	topReasons  = 20 // reasons kept in a part's record
	maxExamples = 3  // places kept in a part's record
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
	if _, _, err := s.own(ctx, o, etl.StageTransform); err != nil {
		return etl.RangeOutput{}, err
	}
	p, k, err := s.compile(o.Batch.Pipeline)
	if err != nil {
		return etl.RangeOutput{}, err
	}
	for part := in.Range.First; part <= in.Range.Last; part++ {
		if part > in.Range.First && s.short(ctx) {
			return etl.RangeOutput{Status: etl.StatusMore, Range: etl.Range{First: part, Last: in.Range.Last}}, nil
		}
		if err := s.Part(ctx, p, k, o.Batch, in.Extraction, part); err != nil {
			return etl.RangeOutput{}, err
		}
	}
	return etl.RangeOutput{Status: etl.StatusDone, Range: in.Range}, nil
}

// Part transforms one part, unless its record says it is done and its objects are there.
func (s *Transform) Part(ctx context.Context, p *pipeline.Pipeline, k *contract.Contract, b etl.Batch, extraction, part int) error {
	bind := etl.Binding{Extraction: extraction, Revision: k.Revision(), Contract: k.Short()}
	rec, ok, err := s.Ledger.GetTransform(ctx, b, bind, part)
	if err != nil {
		return fmt.Errorf("transform record of part %d of %s: %w", part, b, err)
	}
	if ok {
		there, err := s.objectsThere(ctx, b, bind, rec)
		if err != nil {
			return err
		}
		if there {
			return nil
		}
		// The record is void: what it speaks of is gone, and is made again from the raw part.
	}
	made, err := s.transform(ctx, p, k, b, bind, part)
	if err != nil {
		return fmt.Errorf("transform part %d of %s: %w", part, b, err)
	}
	kept, err := s.Ledger.PutTransform(ctx, b, bind, made)
	if err != nil {
		return fmt.Errorf("transform record of part %d of %s: %w", part, b, err)
	}
	if kept.ValidSHA256 != made.ValidSHA256 || kept.QuarantineSHA256 != made.QuarantineSHA256 {
		return etl.Errorf(etl.RecordsLost, "part %d of %s came out otherwise than before under %s: the transform code changed its output without a new engine version", part, b, bind)
	}
	return nil
}

func (s *Transform) objectsThere(ctx context.Context, b etl.Batch, bind etl.Binding, rec ledger.TransformRecord) (bool, error) {
	kinds := []etl.ObjectKind{etl.Valid, etl.Keys}
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

// transform streams one part: a page of raw bodies is in memory at a time, and 16 bytes for each valid record.
func (s *Transform) transform(ctx context.Context, p *pipeline.Pipeline, k *contract.Contract, b etl.Batch, bind etl.Binding, part int) (ledger.TransformRecord, error) {
	f, err := snapshot.ReadFooter(ctx, s.Raw, etl.RawPartKey(b, bind.Extraction, part))
	if err != nil {
		return ledger.TransformRecord{}, err
	}
	layout, err := p.Layout()
	if err != nil {
		return ledger.TransformRecord{}, etl.Errorf(etl.ContractInvalid, "%s: %w", p.File, err)
	}
	valid := newObjectWriter(ctx, s.core.Stage, etl.StageKey(etl.Valid, b, bind, part))
	bad := newObjectWriter(ctx, s.core.Stage, etl.StageKey(etl.Quarantine, b, bind, part))
	defer valid.abort()
	defer bad.abort()

	rec := ledger.TransformRecord{Part: part, Pages: len(f.Pages)}
	var digests [][16]byte
	reasons := map[ledger.ReasonCount]int64{}
	checker := k.NewChecker()
	err = snapshot.ReadPages(ctx, s.Raw, f, func(pg snapshot.Page, n int, body []byte) error {
		from := contract.Origin{Batch: b, Extraction: bind.Extraction, FetchedAt: pg.FetchedAt}
		count, err := layout.Records(body, func(r page.Record) error {
			at := contract.Place{Part: part, Page: n, Index: r.Index}
			res := checker.Check(r, at, from)
			if res.Line != nil {
				rec.Valid++
				rec.MaxVersion = max(rec.MaxVersion, res.Version)
				sum := sha256.Sum256([]byte(res.Key))
				digests = append(digests, [16]byte(sum[:16]))
				return valid.line(res.Line)
			}
			rec.Quarantined++
			for _, reason := range res.Reasons {
				reasons[ledger.ReasonCount{Field: reason.Field, Code: reason.Code}]++
			}
			if len(rec.Examples) < maxExamples {
				rec.Examples = append(rec.Examples, ledger.Place{Page: at.Page, Index: at.Index})
			}
			return bad.line(res.Quarantine)
		})
		if err != nil {
			return fmt.Errorf("page %d: %w", n, err)
		}
		rec.Records += int64(count)
		if count != pg.Records {
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
	if err := s.putKeys(ctx, etl.StageKey(etl.Keys, b, bind, part), digests); err != nil {
		return rec, err
	}
	rec.Reasons = top(reasons)
	s.Watch(Tick{Stage: etl.StageTransform, Batch: b, Parts: 1})
	return rec, nil
}

// putKeys stores the sorted key digests, 16 bytes each: Gate finds duplicates across parts in them, Load within a part.
func (s *Transform) putKeys(ctx context.Context, key string, digests [][16]byte) error {
	slices.SortFunc(digests, func(a, b [16]byte) int { return slices.Compare(a[:], b[:]) })
	r, w := io.Pipe()
	go func() {
		buf := bufio.NewWriter(w)
		for i := range digests {
			if _, err := buf.Write(digests[i][:]); err != nil {
				break // the reader went away, and says why itself
			}
		}
		w.CloseWithError(buf.Flush())
	}()
	err := s.core.Stage.Put(ctx, key, r)
	r.CloseWithError(io.ErrClosedPipe)
	return err
}

// top keeps the most frequent reasons, in a fixed order.
func top(reasons map[ledger.ReasonCount]int64) []ledger.ReasonCount {
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

// objectWriter streams lines into one gzipped stage object. The object comes into being with the first line or with
// close, so that a part without quarantine has no quarantine object.
type objectWriter struct {
	ctx  context.Context //nolint:containedctx // the writer lives within one call of transform
	into store.Objects
	key  string

	gz   *gzip.Writer
	buf  *bufio.Writer
	pipe *io.PipeWriter
	sum  hash.Hash
	size int64
	done chan error
}

func newObjectWriter(ctx context.Context, into store.Objects, key string) *objectWriter {
	return &objectWriter{ctx: ctx, into: into, key: key}
}

func (w *objectWriter) open() error {
	r, p := io.Pipe()
	gz, err := gzip.NewWriterLevel(p, gzip.BestSpeed)
	if err != nil {
		return fmt.Errorf("gzip: %w", err)
	}
	w.pipe, w.gz, w.sum, w.done = p, gz, sha256.New(), make(chan error, 1)
	w.buf = bufio.NewWriterSize(io.MultiWriter(gz, w.sum), 64<<10)
	go func() {
		err := w.into.Put(w.ctx, w.key, r)
		r.CloseWithError(cmp.Or(err, io.ErrClosedPipe))
		w.done <- err
	}()
	return nil
}

func (w *objectWriter) line(b []byte) error {
	if w.pipe == nil {
		if err := w.open(); err != nil {
			return err
		}
	}
	w.size += int64(len(b)) + 1
	if _, err := w.buf.Write(b); err != nil {
		return fmt.Errorf("write %s: %w", w.key, err)
	}
	if err := w.buf.WriteByte('\n'); err != nil {
		return fmt.Errorf("write %s: %w", w.key, err)
	}
	return nil
}

// close commits the object and returns digest and size of its uncompressed content.
func (w *objectWriter) close() (string, int64, error) {
	if w.pipe == nil {
		if err := w.open(); err != nil {
			return "", 0, err
		}
	}
	err := cmp.Or(w.buf.Flush(), w.gz.Close())
	w.pipe.CloseWithError(err)
	w.pipe = nil
	if perr := <-w.done; perr != nil {
		err = perr
	}
	if err != nil {
		return "", 0, fmt.Errorf("write %s: %w", w.key, err)
	}
	return hex.EncodeToString(w.sum.Sum(nil)), w.size, nil
}

// abort gives an unfinished object up; after close it does nothing.
func (w *objectWriter) abort() {
	if w.pipe == nil {
		return
	}
	w.pipe.CloseWithError(context.Canceled)
	<-w.done //nolint:errcheck // it fails because it is given up, and the reason is on its way up already
	w.pipe = nil
}
