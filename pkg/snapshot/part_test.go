package snapshot_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/snapshot"
	"github.com/onceload/onceload/pkg/store"
)

// R16: what was fetched lies in the store unchanged, and what is read is what was landed.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		raw := newBucket()
		extraction, number := rapid.IntRange(1, 40).Draw(t, "extraction"), rapid.IntRange(0, etl.MaxParts-1).Draw(t, "part")
		w := snapshot.NewPartWriter(batch, extraction, number)
		var want []string
		for range rapid.IntRange(1, 12).Draw(t, "pages") {
			body := rapid.SliceOf(rapid.Byte()).Draw(t, "body")
			meta := snapshot.Page{
				Records: rapid.IntRange(0, 1e9).Draw(t, "records"), URL: rapid.String().Draw(t, "url"), Status: 200,
				FetchedAt: at, Done: rapid.Bool().Draw(t, "done"),
			}
			if rapid.Bool().Draw(t, "state") {
				state, err := json.MarshalIndent(map[string]string{"cursor": rapid.String().Draw(t, "cursor")}, "", "  ")
				if err != nil {
					t.Fatal(err)
				}
				meta.Before, meta.After = state, state
			}
			if err := w.Add(body, meta); err != nil {
				t.Fatal(err)
			}
			want = append(want, string(body))
		}
		atMost := w.Size() + 1000
		landed, adopted, err := w.Land(t.Context(), raw)
		if err != nil || adopted {
			t.Fatalf("Land: adopted %v, %v", adopted, err)
		}
		if landed.Object > atMost || landed.Object != w.Size() {
			t.Fatalf("object of %d bytes, announced %d, size %d", landed.Object, atMost, w.Size())
		}
		read, err := snapshot.ReadFooter(t.Context(), raw, etl.RawPartKey(batch, extraction, number))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(read, landed) {
			t.Fatalf("read   %+v\nlanded %+v", read, landed)
		}
		var got []string
		err = snapshot.ReadPages(t.Context(), raw, read, func(_ snapshot.Page, _ int, body []byte) error {
			got = append(got, string(body))
			return nil
		})
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("ReadPages: %v\ngot  %q\nwant %q", err, got, want)
		}
	})
}

// `zcat part | jq` works: the whole object is one gzip stream of JSON texts, whether or not bodies end their lines.
func TestPartIsJSON(t *testing.T) {
	for _, tc := range []struct {
		name   string
		bodies []string
	}{
		{"no final newline", []string{`{"data":[1]}`, `{"data":[2]}`}},
		{"final newline", []string{"{\"data\":[1]}\n", "{\"data\":[2]}\r\n"}},
		{"ndjson", []string{"{\"a\":1}\n{\"a\":2}", "{\"a\":3}\n"}},
		{"a number last", []string{`[1]`, `2`}},
		{"an empty body last", []string{`[1]`, ``}},
		{"only an empty body", []string{``}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			raw := newBucket()
			land(t, raw, tc.bodies...)
			zr, err := gzip.NewReader(bytes.NewReader(raw.object(t, part0)))
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(zr)
			if err != nil {
				t.Fatal(err)
			}
			bodies := strings.Join(tc.bodies, "")
			rest, ok := strings.CutPrefix(string(text), bodies)
			if !ok {
				t.Fatalf("the bodies do not stand verbatim at the start of %q", text)
			}
			if bodies != "" && !strings.HasSuffix(bodies, "\n") {
				if rest, ok = strings.CutPrefix(rest, "\n"); !ok {
					t.Errorf("the footer is no line of its own: %q", text)
				}
			}
			if lines := strings.SplitAfter(rest, "\n"); len(lines) != 3 || lines[2] != "" || lines[0][0] != '{' {
				t.Errorf("footer and end are not a line each: %q", lines)
			}
			if !strings.Contains(rest, page("").URL) {
				t.Errorf("the URL %s cannot be read in %q", page("").URL, rest)
			}
			var marks []string
			dec := json.NewDecoder(bytes.NewReader(text))
			for {
				var v any
				if err := dec.Decode(&v); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%v in %q", err, text)
				}
				if m, ok := v.(map[string]any); ok && m["onceload"] != nil {
					marks = append(marks, fmt.Sprint(m["onceload"]))
				}
			}
			if want := []string{"footer", "end"}; !reflect.DeepEqual(marks, want) {
				t.Errorf("marked lines %q, want %q", marks, want)
			}
		})
	}
}

func TestSamePagesGiveSameObject(t *testing.T) {
	one, two := newBucket(), newBucket()
	land(t, one, `{"a":1}`, `{"b":2}`)
	land(t, two, `{"a":1}`, `{"b":2}`)
	if !bytes.Equal(one.object(t, part0), two.object(t, part0)) {
		t.Error("the same pages gave two objects")
	}
}

// R16, R17: what landed first wins, whoever wrote it.
func TestLandOnce(t *testing.T) {
	t.Run("refused, then again", func(t *testing.T) {
		raw, w := newBucket(), part(t, "one", "two")
		raw.failPut(false)
		_, _, err := w.Land(t.Context(), raw)
		wantKind(t, err, etl.StoreUnavailable, part0)
		raw.OnCall = nil
		f, adopted, err := w.Land(t.Context(), raw)
		if err != nil || adopted {
			t.Fatalf("Land: adopted %v, %v", adopted, err)
		}
		if got := bodies(t, raw, f); !reflect.DeepEqual(got, []string{"one", "two"}) {
			t.Errorf("landed %q", got)
		}
	})
	t.Run("reply lost, then again", func(t *testing.T) {
		raw, w := newBucket(), part(t, "one", "two")
		raw.failPut(true)
		_, _, err := w.Land(t.Context(), raw)
		wantKind(t, err, etl.StoreUnavailable, part0)
		raw.OnCall = nil
		f, adopted, err := w.Land(t.Context(), raw)
		if err != nil || adopted || len(f.Pages) != 2 || f.Object != int64(len(raw.object(t, part0))) {
			t.Fatalf("Land: %+v, adopted %v, %v", f, adopted, err)
		}
	})
	t.Run("an earlier attempt's, the same", func(t *testing.T) {
		raw := newBucket()
		land(t, raw, "one")
		w := snapshot.NewPartWriter(batch, 1, 0)
		later := page("one")
		later.FetchedAt = at.Add(1e9)
		if err := w.Add([]byte("one"), later); err != nil {
			t.Fatal(err)
		}
		f, adopted, err := w.Land(t.Context(), raw)
		if err != nil || adopted {
			t.Fatalf("Land: adopted %v, %v", adopted, err)
		}
		if !f.Pages[0].FetchedAt.Equal(at) {
			t.Errorf("fetched at %s, want the landed page's %s", f.Pages[0].FetchedAt, at)
		}
	})
	for name, other := range map[string]func(t *testing.T, w *snapshot.PartWriter){
		"other bodies": func(t *testing.T, w *snapshot.PartWriter) {
			add(t, w, "uno", page("one"))
			add(t, w, "two", page("two"))
		},
		"fewer pages":    func(t *testing.T, w *snapshot.PartWriter) { add(t, w, "one", page("one")) },
		"another cursor": func(t *testing.T, w *snapshot.PartWriter) { add(t, w, "one", page("one")); add(t, w, "two", page("2")) },
		"another end": func(t *testing.T, w *snapshot.PartWriter) {
			last := page("two")
			last.Done = true
			add(t, w, "one", page("one"))
			add(t, w, "two", last)
		},
	} {
		t.Run("an earlier attempt's, "+name, func(t *testing.T) {
			raw := newBucket()
			want := land(t, raw, "one", "two")
			object := raw.object(t, part0)
			w := snapshot.NewPartWriter(batch, 1, 0)
			other(t, w)
			f, adopted, err := w.Land(t.Context(), raw)
			if err != nil || !adopted {
				t.Fatalf("Land: adopted %v, %v", adopted, err)
			}
			if !reflect.DeepEqual(f, want) {
				t.Errorf("adopted %+v, want %+v", f, want)
			}
			if !bytes.Equal(raw.object(t, part0), object) {
				t.Error("the landed part was changed")
			}
		})
	}
	t.Run("foreign content", func(t *testing.T) {
		raw := newBucket()
		raw.replace(t, part0, []byte(`{"hello":"world"}`))
		_, _, err := part(t, "one").Land(t.Context(), raw)
		wantKind(t, err, etl.RecordsLost, part0)
	})
}

func add(t testing.TB, w *snapshot.PartWriter, body string, meta snapshot.Page) {
	t.Helper()
	if err := w.Add([]byte(body), meta); err != nil {
		t.Fatal(err)
	}
}

func TestWriterMisused(t *testing.T) {
	raw := newBucket()
	_, _, err := part(t).Land(t.Context(), raw)
	wantKind(t, err, etl.Internal, "without pages")
	if raw.Calls()["PutOnce"] != 0 {
		t.Error("an empty part landed")
	}

	w := part(t, "one")
	bad := page("two")
	bad.After = []byte(`{"cursor":`)
	wantKind(t, w.Add([]byte("two"), bad), etl.Internal, "page 1", "state after")
	bad = page("two")
	bad.FetchedAt = bad.FetchedAt.AddDate(9000, 0, 0)
	wantKind(t, w.Add([]byte("two"), bad), etl.Internal, "page 1")
	f, _, err := w.Land(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	if got := bodies(t, raw, f); !reflect.DeepEqual(got, []string{"one"}) {
		t.Errorf("after refused pages the part holds %q", got)
	}
	wantKind(t, w.Add([]byte("two"), page("two")), etl.Internal, "closed")
}

// The writer never makes a part that the reader refuses: page after page of nothing but state ends in BatchTooLarge.
func TestFooterTooLarge(t *testing.T) {
	w := snapshot.NewPartWriter(batch, 1, 0)
	meta := page("x")
	meta.After = []byte(`"` + strings.Repeat("x", 1<<20) + `"`)
	var err error
	for err == nil && w.Len() < 100 {
		err = w.Add(nil, meta)
	}
	wantKind(t, err, etl.BatchTooLarge, "part_bytes")
	raw := newBucket()
	if _, _, err := w.Land(t.Context(), raw); err != nil {
		t.Fatal(err)
	}
	f, err := snapshot.ReadFooter(t.Context(), raw, part0)
	if err != nil || len(f.Pages) != w.Len() {
		t.Fatalf("%d pages read of %d: %v", len(f.Pages), w.Len(), err)
	}
}

func TestReadFooterIsTwoReadsAtMost(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, tc := range []struct {
		pages, reads int
	}{{1, 1}, {300, 1}, {3000, 2}} {
		t.Run(fmt.Sprint(tc.pages), func(t *testing.T) {
			raw, w := newBucket(), snapshot.NewPartWriter(batch, 1, 0)
			for range tc.pages {
				add(t, w, fmt.Sprint(rnd.Uint64()), page("x"))
			}
			want, _, err := w.Land(t.Context(), raw)
			if err != nil {
				t.Fatal(err)
			}
			got, err := snapshot.ReadFooter(t.Context(), raw, part0)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("another footer, %v", err)
			}
			if calls := raw.Calls(); calls["GetRange"] != tc.reads || calls["Get"]+calls["Head"] != 0 {
				t.Errorf("calls %v, want %d ranged reads", calls, tc.reads)
			}
		})
	}
}

func TestReadFooterMissing(t *testing.T) {
	_, err := snapshot.ReadFooter(t.Context(), newBucket(), part0)
	if !errors.Is(err, store.ErrNotFound) || !strings.Contains(err.Error(), part0) {
		t.Errorf("error %v", err)
	}
	_, err = snapshot.ReadFooter(t.Context(), newBucket(), etl.ManifestKey(batch, 1))
	wantKind(t, err, etl.Internal, "not the key of a part")
	_, err = snapshot.ReadFooter(t.Context(), newBucket(), "elsewhere")
	wantKind(t, err, etl.Internal, "elsewhere")
}

// R23: every byte of a part is covered. One changed, lost or added anywhere is noticed, and nothing wrong is yielded.
func TestEveryByteCounts(t *testing.T) {
	raw := newBucket()
	want := []string{`{"data":[{"id":1}]}`, `{"data":[{"id":2},{"id":3}]}`}
	land(t, raw, want...)
	object := raw.object(t, part0)
	read := func(changed []byte) ([]string, error) {
		torn := newBucket()
		torn.replace(t, part0, changed)
		f, err := snapshot.ReadFooter(t.Context(), torn, part0)
		if err != nil {
			return nil, err
		}
		var got []string
		err = snapshot.ReadPages(t.Context(), torn, f, func(_ snapshot.Page, _ int, body []byte) error {
			got = append(got, string(body))
			return nil
		})
		return got, err
	}
	for i := range object {
		for _, changed := range [][]byte{
			object[:i],
			append(bytes.Clone(object[:i]), object[i+1:]...),
			append(append(bytes.Clone(object[:i]), 'x'), object[i:]...),
			flipped(object, i),
		} {
			got, err := read(changed)
			if len(got) > len(want) || !reflect.DeepEqual(got, want[:len(got)]) && len(got) > 0 {
				t.Fatalf("byte %d: yielded %q", i, got)
			}
			if err == nil {
				// A few bits of gzip say nothing of the content (time, system, padding); all else must be noticed.
				if !reflect.DeepEqual(got, want) || len(changed) != len(object) {
					t.Errorf("byte %d: not noticed", i)
				}
				continue
			}
			wantKind(t, err, etl.RecordsLost, part0)
		}
	}
	if _, err := read(append(bytes.Clone(object), 0)); err == nil {
		t.Error("a byte more at the end was not noticed")
	}
}

func flipped(b []byte, i int) []byte {
	c := bytes.Clone(b)
	c[i] ^= 0x20
	return c
}

// R23: a footer that speaks of other bodies than those in the object.
func TestReadPagesVerifies(t *testing.T) {
	raw := newBucket()
	f := land(t, raw, "one", "two")
	for name, change := range map[string]func(*snapshot.Page){
		"digest":         func(p *snapshot.Page) { p.SHA256 = strings.Repeat("0", 64) },
		"too small":      func(p *snapshot.Page) { p.Size-- },
		"too large":      func(p *snapshot.Page) { p.Size++ },
		"huge":           func(p *snapshot.Page) { p.Size = 1 << 60 },
		"negative":       func(p *snapshot.Page) { p.Size = -1 },
		"length short":   func(p *snapshot.Page) { p.Length-- },
		"length long":    func(p *snapshot.Page) { p.Length++ },
		"length huge":    func(p *snapshot.Page) { p.Length = 1 << 60 },
		"length missing": func(p *snapshot.Page) { p.Length = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			g := f
			g.Pages = append([]snapshot.Page(nil), f.Pages...)
			change(&g.Pages[1])
			yielded := 0
			err := snapshot.ReadPages(t.Context(), raw, g, func(snapshot.Page, int, []byte) error { yielded++; return nil })
			wantKind(t, err, etl.RecordsLost, part0, "page 1")
			if yielded != 1 {
				t.Errorf("%d pages yielded", yielded)
			}
		})
	}
}

func TestReadPagesFails(t *testing.T) {
	raw := newBucket()
	f := land(t, raw, "one", "two")
	nothing := func(snapshot.Page, int, []byte) error { return nil }

	stop := errors.New("stop")
	err := snapshot.ReadPages(t.Context(), raw, f, func(_ snapshot.Page, n int, _ []byte) error {
		if n == 1 {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) || !strings.Contains(err.Error(), "page 1") {
		t.Errorf("error of yield: %v", err)
	}

	// A connection that breaks is no lost record: it is tried again.
	raw.reader = cut(f.Pages[0].Length+3, io.ErrUnexpectedEOF)
	wantKind(t, snapshot.ReadPages(t.Context(), raw, f, nothing), etl.StoreUnavailable, part0, "page 1")
	raw.reader = cut(3, etl.Errorf(etl.StoreThrottled, "slow down"))
	wantKind(t, snapshot.ReadPages(t.Context(), raw, f, nothing), etl.StoreThrottled, part0, "page 0")
	raw.reader = func(r io.Reader) io.Reader { return io.LimitReader(r, 3) }
	wantKind(t, snapshot.ReadPages(t.Context(), raw, f, nothing), etl.RecordsLost, part0, "page 0")

	raw.Delete(part0)
	if err := snapshot.ReadPages(t.Context(), raw, f, nothing); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("missing part: %v", err)
	}
	wantKind(t, snapshot.ReadPages(t.Context(), raw, snapshot.Footer{Batch: "?"}, nothing), etl.Internal)
}
