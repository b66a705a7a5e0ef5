package snapshot_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/snapshot"
	"github.com/onceload/onceload/pkg/store"
)

var window = etl.Window{Start: batch.Slot, End: batch.Slot.Add(time.Hour)}

func manifest(t testing.TB, raw store.Objects) (snapshot.Manifest, []snapshot.Footer) {
	t.Helper()
	second := snapshot.NewPartWriter(batch, 1, 1)
	add(t, second, "three", page("3"))
	f1, _, err := second.Land(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	footers := []snapshot.Footer{land(t, raw, "one", "two"), f1}
	return snapshot.NewManifest(batch, 1, window, "d1", sums(footers)), footers
}

func sums(footers []snapshot.Footer) []snapshot.ManifestPart {
	var out []snapshot.ManifestPart
	for _, f := range footers {
		out = append(out, f.Sum())
	}
	return out
}

// same reports whether both are the same but for the digest, which only a written or read manifest has.
func same(a, b snapshot.Manifest) bool {
	x, xerr := json.Marshal(a)
	y, yerr := json.Marshal(b)
	return xerr == nil && yerr == nil && bytes.Equal(x, y)
}

func TestManifest(t *testing.T) {
	raw := newBucket()
	m, footers := manifest(t, raw)
	if m.Pages != 3 || m.Records != 6 || m.Bytes != 11 || len(m.Parts) != 2 {
		t.Fatalf("manifest %+v", m)
	}
	var digests strings.Builder
	for _, p := range footers[0].Pages {
		digests.WriteString(p.SHA256 + "\n")
	}
	sum := sha256.Sum256([]byte(digests.String()))
	want := snapshot.ManifestPart{Part: 0, Pages: 2, Records: 4, Bytes: 6, SHA256: hex.EncodeToString(sum[:]), Object: int64(len(raw.object(t, part0)))}
	if m.Parts[0] != want {
		t.Errorf("part %+v, want %+v", m.Parts[0], want)
	}

	if _, err := snapshot.ReadManifest(t.Context(), raw, batch, 1); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("before it is written: %v", err)
	}
	written, err := m.Write(t.Context(), raw)
	if err != nil || !same(written, m) {
		t.Fatalf("Write: %+v, %v", written, err)
	}
	read, err := snapshot.ReadManifest(t.Context(), raw, batch, 1)
	if err != nil || !reflect.DeepEqual(read, written) {
		t.Fatalf("ReadManifest: %v\ngot  %+v\nwant %+v", err, read, written)
	}
	if sum := sha256.Sum256(raw.object(t, etl.ManifestKey(batch, 1))); read.Digest() != hex.EncodeToString(sum[:]) {
		t.Errorf("digest %s is not that of the object", read.Digest())
	}
}

func TestManifestIsWrittenOnce(t *testing.T) {
	raw := newBucket()
	m, footers := manifest(t, raw)
	raw.failPut(true)
	_, err := m.Write(t.Context(), raw)
	wantKind(t, err, etl.StoreUnavailable, "_manifest.json")
	raw.OnCall = nil
	if again, err := m.Write(t.Context(), raw); err != nil || !same(again, m) {
		t.Fatalf("again: %+v, %v", again, err)
	}
	late := snapshot.NewManifest(batch, 1, window, "d2", sums(footers[:1]))
	if got, err := late.Write(t.Context(), raw); err != nil || !same(got, m) {
		t.Fatalf("a second manifest: %+v, %v; want the first", got, err)
	}
	raw.replace(t, etl.ManifestKey(batch, 1), []byte("{}"))
	_, err = m.Write(t.Context(), raw)
	wantKind(t, err, etl.RecordsLost, "_manifest.json", "already")

	_, err = snapshot.NewManifest(batch, 1, window, "d1", sums(footers[1:])).Write(t.Context(), newBucket())
	wantKind(t, err, etl.Internal, "part 0")
	_, err = snapshot.Manifest{}.Write(t.Context(), newBucket())
	wantKind(t, err, etl.Internal)
}

func TestManifestTorn(t *testing.T) {
	raw := newBucket()
	m, _ := manifest(t, raw)
	if _, err := m.Write(t.Context(), raw); err != nil {
		t.Fatal(err)
	}
	key := etl.ManifestKey(batch, 1)
	good := string(raw.object(t, key))
	for name, text := range map[string]string{
		"empty":          "",
		"cut":            good[:len(good)/2],
		"no newline":     strings.TrimSuffix(good, "\n"),
		"twice":          good + good,
		"spaced":         strings.Replace(good, ":", ": ", 1),
		"another mark":   strings.Replace(good, `"manifest"`, `"footer"`, 1),
		"another format": strings.Replace(good, `"format":1`, `"format":2`, 1),
		"another batch":  strings.Replace(good, "orders/", "refunds/", 1),
		"unknown name":   strings.Replace(good, `"format":1`, `"format":1,"colour":"red"`, 1),
		"repeated name":  strings.Replace(good, `"format":1`, `"format":1,"format":1`, 1),
		"no array":       strings.Replace(good, `"parts":[`, `"parts":7,"x":[`, 1),
		"totals":         strings.Replace(good, `"pages":3`, `"pages":4`, 1),
		"negative":       strings.Replace(good, `"records":4`, `"records":-4`, 1),
		"digest":         strings.Replace(good, `"sha256":"`, `"sha256":"X`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			if text == good {
				t.Fatal("the case changes nothing")
			}
			raw.replace(t, key, []byte(text))
			_, err := snapshot.ReadManifest(t.Context(), raw, batch, 1)
			wantKind(t, err, etl.RecordsLost, key)
		})
	}
	raw.replace(t, key, []byte(good))
	raw.reader = cut(3, io.ErrUnexpectedEOF)
	_, err := snapshot.ReadManifest(t.Context(), raw, batch, 1)
	wantKind(t, err, etl.StoreUnavailable, key)
}
