package snapshot_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"testing"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/snapshot"
)

// FuzzFooter reads arbitrary objects. Whatever is accepted must hold together: pages that fill the object up to the
// footer, bodies of the declared size and digest, and the whole a gzip stream that begins with these bodies.
// Everything else is RecordsLost.
func FuzzFooter(f *testing.F) {
	raw := newBucket()
	land(f, raw, `{"data":[1]}`, "", `{"data":[2]}`)
	object := raw.object(f, part0)
	f.Add(object)
	f.Add(object[:len(object)-1])
	f.Add(object[20:])
	f.Add([]byte{})
	f.Add(append(bytes.Clone(object), object...))
	f.Fuzz(func(t *testing.T, object []byte) {
		raw := newBucket()
		raw.replace(t, part0, object)
		footer, err := snapshot.ReadFooter(t.Context(), raw, part0)
		if err != nil {
			wantKind(t, err, etl.RecordsLost, part0)
			return
		}
		next := int64(0)
		for _, p := range footer.Pages {
			if p.Offset != next || p.Size < 0 || p.Records < 0 {
				t.Fatalf("page %+v after %d", p, next)
			}
			next += p.Length
		}
		if next >= int64(len(object)) || footer.Object > int64(len(object)) && len(object) < 64<<10 {
			t.Fatalf("pages end at %d, object %d of %d", next, footer.Object, len(object))
		}
		var all bytes.Buffer
		err = snapshot.ReadPages(t.Context(), raw, footer, func(p snapshot.Page, _ int, body []byte) error {
			if sum := sha256.Sum256(body); p.SHA256 != hex.EncodeToString(sum[:]) || p.Size != int64(len(body)) {
				t.Fatalf("yielded %q for %+v", body, p)
			}
			all.Write(body)
			return nil
		})
		if err != nil {
			wantKind(t, err, etl.RecordsLost, part0)
			return
		}
		zr, err := gzip.NewReader(bytes.NewReader(object))
		if err != nil {
			t.Fatal(err)
		}
		text := make([]byte, all.Len())
		if _, err := io.ReadFull(zr, text); err != nil && !errors.Is(err, io.EOF) || !bytes.Equal(text, all.Bytes()) {
			t.Fatalf("zcat gives %q, the pages are %q (%v)", text, all.Bytes(), err)
		}
	})
}
