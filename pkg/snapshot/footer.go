package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

const (
	// maxFooter bounds the footer's JSON, and so what a reader holds in memory.
	maxFooter = 16 << 20
	// maxRatio is more than deflate can expand: 258 bytes from 2 bits.
	maxRatio = 1032
	// minMember is the size of an empty gzip member.
	minMember = 20
	// tailBytes is the first ranged read of ReadFooter: the whole footer of most parts, hundreds of pages.
	tailBytes = 64 << 10
)

// Page is what the footer knows of one response body.
type Page struct {
	Offset    int64           `json:"offset"`               // of the gzip member in the object
	Length    int64           `json:"length"`               // of the gzip member
	Size      int64           `json:"size"`                 // of the body, uncompressed bytes
	SHA256    string          `json:"sha256"`               // of the body, hex
	Records   int             `json:"records"`              // in the body
	RecordsAt string          `json:"records_at,omitempty"` // where they were found, as pipeline.Contract has it
	URL       string          `json:"url"`                  // without our auth parameters
	Status    int             `json:"status"`               // HTTP status
	FetchedAt time.Time       `json:"fetched_at"`           // UTC
	Request   string          `json:"request"`              // fingerprint of the request
	Before    json.RawMessage `json:"before,omitempty"`     // the paginator's resume state for this page
	After     json.RawMessage `json:"after,omitempty"`      // the paginator's resume state for the next page
	Done      bool            `json:"done"`                 // no page follows
}

// Footer describes a landed part.
type Footer struct {
	Onceload   string `json:"onceload"` // "footer"
	Format     int    `json:"format"`
	Batch      string `json:"batch"` // id
	Extraction int    `json:"extraction"`
	Part       int    `json:"part"`
	Pages      []Page `json:"pages"` // in the order they were fetched, without gaps in the object
	Object     int64  `json:"-"`     // size of the whole object, known once it has landed
}

// Key is the key of the part's object. It fails on a footer that names no batch.
func (f Footer) Key() (string, error) {
	b, err := etl.ParseBatch(f.Batch)
	if err != nil {
		return "", fmt.Errorf("footer of part %d: %w", f.Part, err)
	}
	return etl.RawPartKey(b, f.Extraction, f.Part), nil
}

// Records is the number of records in the part.
func (f Footer) Records() int64 {
	var n int64
	for _, p := range f.Pages {
		n += int64(p.Records)
	}
	return n
}

// sameProgress reports whether both parts hold the same bodies and lead to the same next request, page by page. What
// was fetched after one is then what would have been fetched after the other.
func (f Footer) sameProgress(o Footer) bool {
	if len(f.Pages) != len(o.Pages) {
		return false
	}
	for i, p := range f.Pages {
		q := o.Pages[i]
		if p.SHA256 != q.SHA256 || p.Done != q.Done || !bytes.Equal(p.After, q.After) {
			return false
		}
	}
	return true
}

// ReadFooter reads and verifies the footer of the part under key, with one ranged read, or two if it is large. An object
// that is not a whole part of that key is an error of kind RecordsLost; no object is store.ErrNotFound, wrapped.
func ReadFooter(ctx context.Context, raw store.Objects, key string) (Footer, error) {
	o, err := etl.ParseKey(key)
	if err != nil {
		return Footer{}, etl.Errorf(etl.Internal, "read footer: %w", err)
	}
	if o.Kind != etl.RawPart {
		return Footer{}, etl.Errorf(etl.Internal, "read footer of %s: not the key of a part", key)
	}
	tail, err := raw.GetRange(ctx, key, -1, tailBytes)
	if err != nil {
		return Footer{}, fmt.Errorf("read footer of %s: %w", key, err)
	}
	offset, length, err := parseEnd(tail)
	if err != nil {
		return Footer{}, lost("read footer of %s: %w", key, err)
	}
	size := offset + length + int64(endSize)
	if len(tail) < tailBytes && int64(len(tail)) != size {
		return Footer{}, lost("read footer of %s: the object has %d bytes, its end speaks of %d", key, len(tail), size)
	}
	if size-offset > int64(len(tail)) {
		end := tail[len(tail)-endSize:]
		tail, err = raw.GetRange(ctx, key, offset, size-offset)
		if err != nil {
			return Footer{}, fmt.Errorf("read footer of %s: %w", key, err)
		}
		if int64(len(tail)) != size-offset || !bytes.HasSuffix(tail, end) {
			return Footer{}, lost("read footer of %s: the object does not end where its end member says", key)
		}
	}
	member := tail[len(tail)-int(size-offset) : len(tail)-endSize]
	f, err := parseFooter(member, o, offset)
	if err != nil {
		return Footer{}, lost("read footer of %s: %w", key, err)
	}
	f.Object = size
	return f, nil
}

// parseFooter decodes a footer member and holds it against the key it was found under and the offset it was found at.
func parseFooter(member []byte, o etl.Object, offset int64) (Footer, error) {
	var in inflater
	line, err := in.inflate(nil, member, min(maxFooter, int64(len(member))*maxRatio))
	if err != nil {
		return Footer{}, fmt.Errorf("footer: %w", err)
	}
	line = bytes.TrimPrefix(line, []byte("\n"))
	f, err := decodeCanonical[Footer](line, footerMark)
	if err != nil {
		return Footer{}, err
	}
	if f.Batch != o.Batch.String() || f.Extraction != o.Binding.Extraction || f.Part != o.Part {
		return Footer{}, fmt.Errorf("footer is that of %s extraction %d part %d", f.Batch, f.Extraction, f.Part)
	}
	return f, checkPages(f.Pages, offset)
}

// checkPages holds the pages' places and sizes together: they fill the object up to the footer, in order.
func checkPages(pages []Page, end int64) error {
	if len(pages) == 0 {
		return fmt.Errorf("footer lists no page")
	}
	next := int64(0)
	for i, p := range pages {
		switch {
		case p.Offset != next, p.Length < minMember, p.Length > end-next:
			return fmt.Errorf("footer: page %d at %d, %d bytes, is out of place", i, p.Offset, p.Length)
		case !plausible(p), p.Records < 0:
			return fmt.Errorf("footer: page %d cannot have %d bytes and %d records", i, p.Size, p.Records)
		case !isDigest(p.SHA256):
			return fmt.Errorf("footer: page %d: %q is not a sha256", i, p.SHA256)
		}
		next += p.Length
	}
	if next != end {
		return fmt.Errorf("footer: the pages end at %d, the footer begins at %d", next, end)
	}
	return nil
}

func isDigest(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == sha256.Size && hex.EncodeToString(b) == s
}
