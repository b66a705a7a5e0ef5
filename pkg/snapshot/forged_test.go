package snapshot_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/snapshot"
)

// member is a gzip member that holds text.
func member(tb testing.TB, text []byte) []byte {
	tb.Helper()
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	if _, err := zw.Write(text); err != nil {
		tb.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

// end is the last member of a part, written from the format's description.
func end(offset, length int) []byte {
	line := fmt.Appendf(nil, "{\"onceload\":\"end\",\"footer_offset\":\"%020d\",\"footer_length\":\"%020d\"}\n", offset, length)
	b := []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff, 1}
	b = binary.LittleEndian.AppendUint16(b, uint16(len(line)))
	b = binary.LittleEndian.AppendUint16(b, ^uint16(len(line)))
	b = append(b, line...)
	b = binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(line))
	return binary.LittleEndian.AppendUint32(b, uint32(len(line)))
}

// footerLine is a footer's JSON line.
func footerLine(tb testing.TB, f snapshot.Footer) []byte {
	tb.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(f); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

// R23: parts whose gzip is sound and whose footer says something that is not so.
func TestForgedFooter(t *testing.T) {
	raw := newBucket()
	f := land(t, raw, "one", "two")
	pages := raw.object(t, part0)[:f.Pages[0].Length+f.Pages[1].Length]
	footer := func(change func(*snapshot.Footer)) []byte {
		g := f
		g.Pages = append([]snapshot.Page(nil), f.Pages...)
		change(&g)
		return footerLine(t, g)
	}
	plain := string(footer(func(*snapshot.Footer) {}))
	forge := func(line []byte) []byte {
		m := member(t, line)
		return append(append(bytes.Clone(pages), m...), end(len(pages), len(m))...)
	}

	raw.replace(t, part0, forge([]byte(plain)))
	if _, err := snapshot.ReadFooter(t.Context(), raw, part0); err != nil {
		t.Fatalf("the true footer: %v", err)
	}
	for name, line := range map[string][]byte{
		"of another batch":      footer(func(f *snapshot.Footer) { f.Batch = "refunds/20261130T100000Z" }),
		"of another extraction": footer(func(f *snapshot.Footer) { f.Extraction = 2 }),
		"of another part":       footer(func(f *snapshot.Footer) { f.Part = 1 }),
		"no page":               footer(func(f *snapshot.Footer) { f.Pages = nil }),
		"a page missing":        footer(func(f *snapshot.Footer) { f.Pages = f.Pages[:1] }),
		"a page too many":       footer(func(f *snapshot.Footer) { f.Pages = append(f.Pages, f.Pages[1]) }),
		"a gap":                 footer(func(f *snapshot.Footer) { f.Pages[1].Offset++; f.Pages[1].Length-- }),
		"an overlap":            footer(func(f *snapshot.Footer) { f.Pages[1].Offset--; f.Pages[1].Length++ }),
		"shifted":               footer(func(f *snapshot.Footer) { f.Pages[1].Offset++ }),
		"no length": footer(func(f *snapshot.Footer) {
			f.Pages[1].Offset, f.Pages[1].Length = 0, f.Pages[0].Length+f.Pages[1].Length
			f.Pages[0].Length, f.Pages[0].Size = 0, 0
		}),
		"lengths that wrap": footer(func(f *snapshot.Footer) {
			var around []snapshot.Page
			for i := range 4 {
				p := f.Pages[0]
				p.Offset, p.Length = int64(uint64(i)<<62), 1<<62
				around = append(around, p)
			}
			f.Pages = append(around, f.Pages...)
		}),
		"beyond the footer":  footer(func(f *snapshot.Footer) { f.Pages[1].Length += 1 << 40 }),
		"negative length":    footer(func(f *snapshot.Footer) { f.Pages[0].Length = -f.Pages[0].Length }),
		"negative size":      footer(func(f *snapshot.Footer) { f.Pages[0].Size = -1 }),
		"impossible size":    footer(func(f *snapshot.Footer) { f.Pages[0].Size = 1 << 40 }),
		"negative records":   footer(func(f *snapshot.Footer) { f.Pages[0].Records = -1 }),
		"no digest":          footer(func(f *snapshot.Footer) { f.Pages[0].SHA256 = "" }),
		"digest in capitals": footer(func(f *snapshot.Footer) { f.Pages[0].SHA256 = strings.ToUpper(f.Pages[0].SHA256) }),
		"another format":     footer(func(f *snapshot.Footer) { f.Format = 2 }),
		"another mark":       footer(func(f *snapshot.Footer) { f.Onceload = "end" }),
		"unknown name":       []byte(strings.Replace(plain, `"format":1`, `"format":1,"colour":"red"`, 1)),
		"repeated name":      []byte(strings.Replace(plain, `"part":0`, `"part":9,"part":0`, 1)),
		"another case":       []byte(strings.Replace(plain, `"part"`, `"Part"`, 1)),
		"spaces":             []byte(strings.Replace(plain, `:`, `: `, 1)),
		"two lines":          []byte(plain + plain),
		"no JSON":            []byte("hello\n"),
		"empty":              nil,
	} {
		t.Run(name, func(t *testing.T) {
			raw.replace(t, part0, forge(line))
			f, err := snapshot.ReadFooter(t.Context(), raw, part0)
			if err == nil {
				t.Fatalf("accepted %+v", f)
			}
			wantKind(t, err, etl.RecordsLost, part0)
		})
	}

	// The footer that another object ends in, at a place this one has not.
	m := member(t, []byte(plain))
	for name, object := range map[string][]byte{
		"end elsewhere": append(append(bytes.Clone(pages), m...), end(len(pages)+1, len(m))...),
		"end too short": append(append(bytes.Clone(pages), m...), end(len(pages), len(m)-1)...),
		"end too far":   append(append(bytes.Clone(pages), m...), end(len(pages), 1<<20)...),
		"end unbounded": append(append(bytes.Clone(pages), m...), end(len(pages), 1<<40)...),
		"end negative":  append(append(bytes.Clone(pages), m...), end(-len(pages), len(m))...),
		"the end alone": end(len(pages), len(m)),
		"more members":  append(append(append(bytes.Clone(pages), m...), m...), end(len(pages), 2*len(m))...),
	} {
		t.Run(name, func(t *testing.T) {
			raw.replace(t, part0, object)
			_, err := snapshot.ReadFooter(t.Context(), raw, part0)
			wantKind(t, err, etl.RecordsLost, part0)
		})
	}
}

// Objects too large to be read whole: what their end says is held against what is there, within bounds.
func TestForgedEnd(t *testing.T) {
	const size = 100 << 10
	for _, tc := range []struct {
		name           string
		offset, length int
		reads          int
	}{
		{"footer beyond the end", size - 100, 80 << 10, 2},
		{"footer of no length known to us", 20, 1 << 40, 1},
		{"offset beyond any object", 1 << 40, 80 << 10, 1},
		{"footer in the middle", 20, size - 1000, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			raw := newBucket()
			raw.replace(t, part0, append(make([]byte, size), end(tc.offset, tc.length)...))
			_, err := snapshot.ReadFooter(t.Context(), raw, part0)
			wantKind(t, err, etl.RecordsLost, part0)
			if n := raw.Calls()["GetRange"]; n != tc.reads {
				t.Errorf("%d ranged reads, want %d", n, tc.reads)
			}
		})
	}
	t.Run("bomb", func(t *testing.T) {
		raw, page, bomb := newBucket(), member(t, nil), member(t, make([]byte, 40<<20))
		raw.replace(t, part0, append(append(bytes.Clone(page), bomb...), end(len(page), len(bomb))...))
		_, err := snapshot.ReadFooter(t.Context(), raw, part0)
		wantKind(t, err, etl.RecordsLost, part0, "more than")
	})
}

// A page is one member: two that together give the declared body are not what was landed.
func TestPageOfTwoMembers(t *testing.T) {
	raw := newBucket()
	f := land(t, raw, "onetwo")
	two := append(member(t, []byte("one")), member(t, []byte("two"))...)
	f.Pages[0].Length = int64(len(two))
	m := member(t, footerLine(t, f))
	raw.replace(t, part0, append(append(two, m...), end(len(two), len(m))...))
	g, err := snapshot.ReadFooter(t.Context(), raw, part0)
	if err != nil {
		t.Fatal(err)
	}
	err = snapshot.ReadPages(t.Context(), raw, g, func(snapshot.Page, int, []byte) error {
		t.Error("yielded")
		return nil
	})
	wantKind(t, err, etl.RecordsLost, part0, "page 0")
}
