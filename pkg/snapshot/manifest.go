package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// maxManifest bounds a manifest's object: etl.MaxParts parts with room to spare.
const maxManifest = 64 << 20

// Manifest is an extraction's commit point: with it the snapshot is complete and never changes again.
type Manifest struct {
	Onceload       string         `json:"onceload"` // "manifest"
	Format         int            `json:"format"`
	Batch          string         `json:"batch"` // id
	Extraction     int            `json:"extraction"`
	Window         etl.Window     `json:"window"`          // what was asked for
	PipelineDigest string         `json:"pipeline_digest"` // sha256 of the pipeline file, hex
	Parts          []ManifestPart `json:"parts"`           // 0, 1, 2, …
	Pages          int64          `json:"pages"`
	Records        int64          `json:"records"`
	Bytes          int64          `json:"bytes"` // uncompressed
	digest         string
}

// ManifestPart sums a part up.
type ManifestPart struct {
	Part    int   `json:"part"`
	Pages   int   `json:"pages"`
	Records int64 `json:"records"`
	// RecordsAt is where they were found: a page holds others where the file names another place since.
	RecordsAt string `json:"records_at,omitempty"`
	Bytes     int64  `json:"bytes"`  // uncompressed
	SHA256    string `json:"sha256"` // over the pages' hex digests, a line each
	Object    int64  `json:"object"` // size of the object, bytes
}

// NewManifest lists the landed parts of an extraction, which must be all of them in order.
func NewManifest(b etl.Batch, extraction int, w etl.Window, pipelineDigest string, parts []ManifestPart) Manifest {
	m := Manifest{
		Onceload: manifestMark, Format: format, Batch: b.String(), Extraction: extraction,
		Window:         etl.Window{Start: w.Start.UTC(), End: w.End.UTC()},
		PipelineDigest: pipelineDigest,
		Parts:          append([]ManifestPart{}, parts...),
	}
	m.Pages, m.Records, m.Bytes = m.totals()
	return m
}

// Sum is what the manifest says of the landed part.
func (f Footer) Sum() ManifestPart {
	p := ManifestPart{Part: f.Part, Pages: len(f.Pages), Records: f.Records(), Object: f.Object}
	h := sha256.New()
	for _, page := range f.Pages {
		p.RecordsAt = page.RecordsAt // one call fetched all of a part
		p.Bytes += page.Size
		io.WriteString(h, page.SHA256+"\n")
	}
	p.SHA256 = hex.EncodeToString(h.Sum(nil))
	return p
}

func (m Manifest) totals() (pages, records, bytes int64) {
	for _, p := range m.Parts {
		pages += int64(p.Pages)
		records += p.Records
		bytes += p.Bytes
	}
	return pages, records, bytes
}

// Digest is the sha256 of the manifest's object, hex. It is known once the manifest has been written or read.
func (m Manifest) Digest() string { return m.digest }

// check holds the manifest together, under the key it belongs to.
func (m Manifest) check(b etl.Batch, extraction int) error {
	if m.Batch != b.String() || m.Extraction != extraction {
		return fmt.Errorf("it is that of %s extraction %d", m.Batch, m.Extraction)
	}
	for i, p := range m.Parts {
		if p.Part != i || p.Pages < 1 || p.Records < 0 || p.Bytes < 0 || p.Object < 0 || !isDigest(p.SHA256) {
			return fmt.Errorf("part %d cannot be %+v", i, p)
		}
	}
	pages, records, bytes := m.totals()
	if m.Pages != pages || m.Records != records || m.Bytes != bytes {
		return fmt.Errorf("its totals are %d pages, %d records, %d bytes, those of its parts %d, %d, %d",
			m.Pages, m.Records, m.Bytes, pages, records, bytes)
	}
	return nil
}

// Write commits the extraction, once, and returns what is committed: this manifest, or the one that was there before.
// After a transient error it may be called again.
func (m Manifest) Write(ctx context.Context, raw store.Objects) (Manifest, error) {
	b, err := etl.ParseBatch(m.Batch)
	if err != nil {
		return Manifest{}, etl.Errorf(etl.Internal, "write manifest: %w", err)
	}
	key := etl.ManifestKey(b, m.Extraction)
	if err := m.check(b, m.Extraction); err != nil {
		return Manifest{}, etl.Errorf(etl.Internal, "write %s: %w", key, err)
	}
	line, err := encode(m)
	if err != nil {
		return Manifest{}, etl.Errorf(etl.Internal, "write %s: %w", key, err)
	}
	err = raw.PutOnce(ctx, key, line)
	if err == nil {
		m.digest = digest(line)
		return m, nil
	}
	if !errors.Is(err, store.ErrExists) {
		return Manifest{}, fmt.Errorf("write %s: %w", key, err)
	}
	there, err := ReadManifest(ctx, raw, b, m.Extraction)
	if err != nil {
		return Manifest{}, fmt.Errorf("write %s: something is there already: %w", key, err)
	}
	return there, nil
}

// ReadManifest reads and verifies an extraction's manifest. Without one the extraction is not complete:
// store.ErrNotFound, wrapped. One that does not hold together is an error of kind RecordsLost.
func ReadManifest(ctx context.Context, raw store.Objects, b etl.Batch, extraction int) (Manifest, error) {
	key := etl.ManifestKey(b, extraction)
	r, err := raw.Get(ctx, key)
	if err != nil {
		return Manifest{}, fmt.Errorf("read %s: %w", key, err)
	}
	defer r.Close() // the line is verified whole
	var line bytes.Buffer
	if _, err := line.ReadFrom(io.LimitReader(r, maxManifest+1)); err != nil {
		return Manifest{}, fmt.Errorf("read %s: %w", key, classified(err))
	}
	if line.Len() > maxManifest {
		return Manifest{}, lost("read %s: more than %d bytes", key, maxManifest)
	}
	m, err := decodeCanonical[Manifest](line.Bytes(), manifestMark)
	if err != nil {
		return Manifest{}, lost("read %s: %w", key, err)
	}
	if err := m.check(b, extraction); err != nil {
		return Manifest{}, lost("read %s: %w", key, err)
	}
	m.digest = digest(line.Bytes())
	return m, nil
}
