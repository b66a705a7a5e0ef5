package snapshot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/klauspost/compress/gzip"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// maxObject is the most bytes S3 stores in one put.
const maxObject = 5 << 30

// footerFrame is room for what a footer holds besides its pages.
const footerFrame = 1 << 10

// The memory of a part: usualRoom holds one that closes at 16 MiB, with its last page.
const (
	firstRoom = 1 << 20
	usualRoom = 17 << 20
)

// PartWriter gathers pages in memory and lands them as one object. It is for one goroutine. The same pages give the same
// object: no clock, no random.
type PartWriter struct {
	batch  etl.Batch
	key    string
	footer Footer
	object bytes.Buffer // page members; once closed, the whole object
	zip    *gzip.Writer
	meta   int64 // bytes of the footer's pages as JSON
	open   bool  // the last body did not end its line
	closed bool
}

// NewPartWriter starts a part of an extraction.
func NewPartWriter(b etl.Batch, extraction, part int) *PartWriter {
	w := &PartWriter{batch: b, footer: Footer{Onceload: footerMark, Format: format, Batch: b.String(), Extraction: extraction}}
	// The level is a constant the package accepts, the only thing NewWriterLevel can refuse.
	w.zip, _ = gzip.NewWriterLevel(&w.object, gzip.BestSpeed)
	w.Reset(part)
	return w
}

// Reset starts another part of the same extraction in the memory of this one, which has landed or is given up.
func (w *PartWriter) Reset(part int) {
	w.key = etl.RawPartKey(w.batch, w.footer.Extraction, part)
	w.footer.Part, w.footer.Pages, w.footer.Object = part, nil, 0
	w.object.Reset()
	w.meta, w.open, w.closed = 0, false, false
}

// Len is the number of pages so far.
func (w *PartWriter) Len() int { return len(w.footer.Pages) }

// Size is the most bytes the object would have if it landed now: the compressed pages and the footer uncompressed.
func (w *PartWriter) Size() int64 {
	if w.closed {
		return int64(w.object.Len())
	}
	return int64(w.object.Len()) + w.meta
}

// Add compresses one body into the part. Offset, Length and Size of meta are set here, SHA256 too unless the caller has
// computed it already; the rest is the caller's. The body is not kept. A part that would become too large to read back is an error of kind BatchTooLarge.
func (w *PartWriter) Add(body []byte, meta Page) error {
	at := fmt.Sprintf("%s: page %d", w.key, w.Len())
	if w.closed {
		return etl.Errorf(etl.Internal, "%s: the part is closed", at)
	}
	var err error
	if meta.Before, err = compact(meta.Before); err != nil {
		return etl.Errorf(etl.Internal, "%s: state before: %w", at, err)
	}
	if meta.After, err = compact(meta.After); err != nil {
		return etl.Errorf(etl.Internal, "%s: state after: %w", at, err)
	}
	if meta.SHA256 == "" {
		meta.SHA256 = digest(body)
	}
	meta.Size = int64(len(body))
	// What the footer would not read back as it was given must not differ between a landed and a read footer.
	meta.URL = strings.ToValidUTF8(meta.URL, "\uFFFD")
	meta.Request = strings.ToValidUTF8(meta.Request, "\uFFFD")
	meta.FetchedAt = meta.FetchedAt.Round(0).UTC()

	w.makeRoom(len(body) / 4)
	meta.Offset = int64(w.object.Len())
	w.zip.Reset(&w.object)
	if err := w.deflate(body); err != nil {
		w.object.Truncate(int(meta.Offset))
		return etl.Errorf(etl.Internal, "%s: compress: %w", at, err)
	}
	meta.Length = int64(w.object.Len()) - meta.Offset

	line, err := encode(meta)
	if err != nil {
		w.object.Truncate(int(meta.Offset))
		return etl.Errorf(etl.Internal, "%s: %w", at, err)
	}
	if w.meta+int64(len(line)) > maxFooter-footerFrame || w.object.Len() > maxObject-maxFooter {
		w.object.Truncate(int(meta.Offset))
		return etl.Errorf(etl.BatchTooLarge, "%s: the part would be too large; lower source.part_bytes", at)
	}
	w.meta += int64(len(line))
	if len(body) > 0 {
		w.open = body[len(body)-1] != '\n'
	}
	w.footer.Pages = append(w.footer.Pages, meta)
	return nil
}

// makeRoom grows the memory in two steps, to a first piece and to the size of most parts: a buffer by itself would double
// it again and again, and leave as much garbage as it holds.
func (w *PartWriter) makeRoom(n int) {
	if w.object.Available() >= n {
		return
	}
	size := w.object.Len() + w.object.Len()/4
	switch {
	case size < firstRoom:
		size = firstRoom
	case size < usualRoom:
		size = usualRoom
	}
	grown := make([]byte, w.object.Len(), size+n)
	copy(grown, w.object.Bytes())
	w.object = *bytes.NewBuffer(grown)
}

// deflate writes one gzip member.
func (w *PartWriter) deflate(content []byte) error {
	if _, err := w.zip.Write(content); err != nil {
		return err
	}
	return w.zip.Close()
}

// compact gives raw the form in which a footer reads back, and a copy of its own. Empty stays empty.
func compact(raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// close appends the footer and the end. It is done once: a second Land puts the same bytes.
func (w *PartWriter) close() error {
	if w.closed {
		return nil
	}
	if w.Len() == 0 {
		return etl.Errorf(etl.Internal, "%s: a part without pages", w.key)
	}
	line, err := encode(w.footer)
	if err != nil {
		return etl.Errorf(etl.Internal, "%s: footer: %w", w.key, err)
	}
	if w.open {
		line = append([]byte("\n"), line...) // the footer is a line of its own in `zcat`
	}
	offset := w.object.Len()
	w.zip.Reset(&w.object)
	if err := w.deflate(line); err != nil {
		w.object.Truncate(offset)
		return etl.Errorf(etl.Internal, "%s: footer: %w", w.key, err)
	}
	w.object.Write(appendEnd(nil, int64(offset), int64(w.object.Len()-offset)))
	w.footer.Object = int64(w.object.Len())
	w.closed = true
	return nil
}

// Land writes the part, once. Whatever is returned as landed is what lies under the key from now on, and what to go on
// from. If something was there already it is read back: the part of an earlier attempt, or this one whose reply was lost.
// adopted says that the landed part leads elsewhere than this one (other bodies, or another state after them): drop
// everything fetched beyond it and resume from landed. Anything there that is no whole part is an error of kind
// RecordsLost. After a transient error Land may be called again.
func (w *PartWriter) Land(ctx context.Context, raw store.Objects) (landed Footer, adopted bool, err error) {
	if err := w.close(); err != nil {
		return Footer{}, false, err
	}
	err = raw.PutOnce(ctx, w.key, w.object.Bytes())
	if err == nil {
		return w.footer, false, nil
	}
	if !errors.Is(err, store.ErrExists) {
		return Footer{}, false, fmt.Errorf("land %s: %w", w.key, err)
	}
	landed, err = ReadFooter(ctx, raw, w.key)
	if err != nil {
		return Footer{}, false, fmt.Errorf("land %s: something is there already: %w", w.key, err)
	}
	return landed, !landed.sameProgress(w.footer), nil
}
