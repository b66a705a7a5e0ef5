// Package storetest is the conformance suite of the stores: every backend passes the same checks, so that what holds on a
// laptop holds on AWS. Each check is a subtest with a name of its own and opens a store of its own.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// Lacks names checks that a stand-in server cannot pass, each with the reason. They are not run on it, which is logged.
// No backend of our own lacks any.
type Lacks map[string]string

// run runs a check as a subtest, if the server does not lack it.
func (l Lacks) run(t *testing.T, check string, f func(t *testing.T)) {
	t.Helper()
	if reason, ok := l[check]; ok {
		t.Logf("%s is not run on this server: %s", check, reason)
		return
	}
	t.Run(check, f)
}

// Objects runs the checks of [store.Objects] on buckets that open makes, empty ones.
func Objects(t *testing.T, open func(t *testing.T) store.Objects, lacks Lacks) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, store.Objects)
	}{
		{"put_once", putOnce},
		{"put_once_race", putOnceRace},
		{"put_replaces", putReplaces},
		{"put_fails_whole", putFailsWhole},
		{"put_large", putLarge},
		{"empty_objects", emptyObjects},
		{"ranges", ranges},
		{"not_found", objectNotFound},
		{"list_order", listOrder},
		{"list_many", listMany},
		{"keys_refused", objectKeysRefused},
		{"cancelled", objectsCancelled},
	} {
		lacks.run(t, c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantErr checks the error, and that it is not classified as anything a caller would act on differently.
func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

func wantInternal(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil || etl.KindOf(err) != etl.Internal || errors.Is(err, store.ErrCondition) || errors.Is(err, store.ErrNotFound) {
		t.Errorf("%s: got error %v, want it refused as Internal", what, err)
	}
}

// wantCancelled checks that a cancelled context comes back as its own error, unclassified.
func wantCancelled(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, context.Canceled) || etl.KindOf(err) != etl.Interrupted {
		t.Errorf("%s: got error %v of kind %s, want the context's", what, err, etl.KindOf(err))
	}
}

func readAll(t *testing.T, o store.Objects, key string) string {
	t.Helper()
	r, err := o.Get(t.Context(), key)
	must(t, err)
	body, err := io.ReadAll(r)
	must(t, err)
	must(t, r.Close())
	return string(body)
}

func wantBody(t *testing.T, o store.Objects, key, want string) {
	t.Helper()
	if got := readAll(t, o, key); got != want {
		t.Errorf("%s holds %.40q (%d bytes), want %.40q (%d bytes)", key, got, len(got), want, len(want))
	}
}

func keysOf(t *testing.T, o store.Objects, prefix string) []string {
	t.Helper()
	keys := []string{}
	for info, err := range o.List(t.Context(), prefix) {
		must(t, err)
		keys = append(keys, info.Key)
	}
	return keys
}

func putOnce(t *testing.T, o store.Objects) {
	body := []byte("first")
	must(t, o.PutOnce(t.Context(), "raw/a=1/part-00000.json.gz", body))
	copy(body, "XXXXX") // the store keeps a copy
	wantBody(t, o, "raw/a=1/part-00000.json.gz", "first")
	for _, again := range []string{"second", "first", ""} {
		wantErr(t, "put once again", o.PutOnce(t.Context(), "raw/a=1/part-00000.json.gz", []byte(again)), store.ErrExists)
	}
	wantBody(t, o, "raw/a=1/part-00000.json.gz", "first")
	must(t, o.Put(t.Context(), "b", strings.NewReader("put")))
	wantErr(t, "put once over a put", o.PutOnce(t.Context(), "b", []byte("x")), store.ErrExists)
	wantBody(t, o, "b", "put")
}

func putOnceRace(t *testing.T, o store.Objects) {
	const racers = 50
	errs := make([]error, racers)
	body := func(i int) []byte { return bytes.Repeat([]byte{byte('0' + i)}, 10_000+i) }
	race(racers, func(i int) { errs[i] = o.PutOnce(t.Context(), "dir/sub/key", body(i)) })
	winners := []int{}
	for i, err := range errs {
		switch {
		case err == nil:
			winners = append(winners, i)
		case !errors.Is(err, store.ErrExists) && !etl.KindOf(err).Info().Transient:
			t.Errorf("racer %d: %v", i, err)
		}
	}
	if len(winners) != 1 {
		t.Fatalf("winners %v, want one", winners)
	}
	wantBody(t, o, "dir/sub/key", string(body(winners[0])))
	if keys := keysOf(t, o, ""); !slices.Equal(keys, []string{"dir/sub/key"}) {
		t.Errorf("listed %v", keys)
	}
}

// race runs f n times at once.
func race(n int, f func(i int)) {
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	all.Wait()
}

func putReplaces(t *testing.T, o store.Objects) {
	for _, body := range []string{"one", "a longer one", "", "x"} {
		must(t, o.Put(t.Context(), "valid/p", strings.NewReader(body)))
		wantBody(t, o, "valid/p", body)
	}
}

// failing yields some bytes, then an error.
type failing struct {
	n   int
	err error
}

func (f *failing) Read(p []byte) (int, error) {
	if f.n == 0 {
		return 0, f.err
	}
	n := min(f.n, len(p))
	for i := range p[:n] {
		p[i] = 'x'
	}
	f.n -= n
	return n, nil
}

func putFailsWhole(t *testing.T, o store.Objects) {
	must(t, o.Put(t.Context(), "held", strings.NewReader("before")))
	for _, size := range []int{0, 10, 12 << 20} {
		// Bodies that fail with something like an end have failed all the same.
		for _, cause := range []error{errors.New("the body broke off"), io.ErrUnexpectedEOF, fmt.Errorf("inside: %w", io.EOF)} {
			wantErr(t, "put over", o.Put(t.Context(), "held", &failing{size, cause}), cause)
			wantErr(t, "put anew", o.Put(t.Context(), "new", &failing{size, cause}), cause)
		}
	}
	wantBody(t, o, "held", "before")
	if keys := keysOf(t, o, ""); !slices.Equal(keys, []string{"held"}) {
		t.Errorf("listed %v", keys)
	}
}

func putLarge(t *testing.T, o store.Objects) {
	for _, size := range []int{8 << 20, 21<<20 + 7} {
		body := make([]byte, size)
		random := rand.New(rand.NewPCG(1, 2))
		for i := 0; i < size; i += 997 {
			body[i] = byte(random.Uint32())
		}
		// Only a Reader: neither its length nor a way back is known.
		must(t, o.Put(t.Context(), "large", struct{ io.Reader }{bytes.NewReader(body)}))
		if got := readAll(t, o, "large"); got != string(body) {
			t.Errorf("%d bytes came back as other %d bytes", size, len(got))
		}
		must(t, o.PutOnce(t.Context(), fmt.Sprintf("once-%d", size), body))
		if got := readAll(t, o, fmt.Sprintf("once-%d", size)); got != string(body) {
			t.Errorf("%d bytes put once came back as other %d bytes", size, len(got))
		}
		tail, err := o.GetRange(t.Context(), "large", -1, 1000)
		must(t, err)
		if !bytes.Equal(tail, body[size-1000:]) {
			t.Errorf("tail of %d bytes differs", size)
		}
	}
}

func emptyObjects(t *testing.T, o store.Objects) {
	must(t, o.PutOnce(t.Context(), "e/once", nil))
	must(t, o.Put(t.Context(), "e/put", strings.NewReader("")))
	wantErr(t, "put once on an empty object", o.PutOnce(t.Context(), "e/once", []byte("x")), store.ErrExists)
	for _, key := range []string{"e/once", "e/put"} {
		wantBody(t, o, key, "")
		info, err := o.Head(t.Context(), key)
		must(t, err)
		if info != (store.Info{Key: key}) {
			t.Errorf("head %s: %+v", key, info)
		}
		for _, off := range []int64{-1, 0, 5} {
			got, err := o.GetRange(t.Context(), key, off, 10)
			if err != nil || len(got) > 0 {
				t.Errorf("range %d of %s: %q, %v", off, key, got, err)
			}
		}
	}
	if keys := keysOf(t, o, "e/"); len(keys) != 2 {
		t.Errorf("listed %v", keys)
	}
}

func ranges(t *testing.T, o store.Objects) {
	must(t, o.PutOnce(t.Context(), "digits", []byte("0123456789")))
	for _, c := range []struct {
		off, n int64
		want   string
	}{
		{0, 10, "0123456789"}, {0, 1, "0"}, {3, 4, "3456"}, {9, 1, "9"},
		{0, 11, "0123456789"}, {8, 100, "89"}, {0, 1 << 40, "0123456789"},
		{10, 1, ""}, {11, 5, ""}, {1 << 40, 5, ""}, {4, 0, ""},
		{-1, 1, "9"}, {-1, 4, "6789"}, {-1, 10, "0123456789"}, {-1, 500, "0123456789"}, {-1, 0, ""},
	} {
		got, err := o.GetRange(t.Context(), "digits", c.off, c.n)
		if err != nil || string(got) != c.want {
			t.Errorf("%d bytes from %d: %q, %v; want %q", c.n, c.off, got, err, c.want)
		}
	}
	for _, c := range [][2]int64{{-2, 1}, {0, -1}, {-1, -1}} {
		_, err := o.GetRange(t.Context(), "digits", c[0], c[1])
		wantInternal(t, fmt.Sprint("range ", c), err)
	}
}

func objectNotFound(t *testing.T, o store.Objects) {
	must(t, o.PutOnce(t.Context(), "a/b/c", []byte("x")))
	for _, key := range []string{"none", "a", "a/b", "a/b/d", "a/b/c/d", "a/b/"[:3]} {
		_, err := o.Get(t.Context(), key)
		wantErr(t, "get "+key, err, store.ErrNotFound)
		_, err = o.Head(t.Context(), key)
		wantErr(t, "head "+key, err, store.ErrNotFound)
		for _, n := range []int64{0, 3} {
			_, err = o.GetRange(t.Context(), key, 0, n)
			wantErr(t, "range "+key, err, store.ErrNotFound)
			_, err = o.GetRange(t.Context(), key, -1, n)
			wantErr(t, "tail "+key, err, store.ErrNotFound)
		}
	}
}

func listOrder(t *testing.T, o store.Objects) {
	// '-' and '.' sort before '/', '=' and letters after it: a walk by folders must not mix them up.
	keys := []string{"a-b", "a.b/c", "a/b", "a/b.d/e", "a/b/", "a=b", "aB", "ab/_x", "ab/c", "b", "B/x", "a0"}
	for i, k := range keys {
		if strings.HasSuffix(k, "/") {
			k += "z"
			keys[i] = k
		}
		if k == "a/b" {
			k = "a/a"
			keys[i] = k
		}
		must(t, o.Put(t.Context(), k, strings.NewReader(k)))
	}
	slices.Sort(keys)
	for _, prefix := range []string{"", "a", "a/", "a/b", "a/b/", "a.", "ab/_", "b", "B/", "zz", "a/a/", "a/b/z"} {
		want := []string{}
		for _, k := range keys {
			if strings.HasPrefix(k, prefix) {
				want = append(want, k)
			}
		}
		if got := keysOf(t, o, prefix); !slices.Equal(got, want) {
			t.Errorf("prefix %q: listed %v, want %v", prefix, got, want)
		}
	}
	for info, err := range o.List(t.Context(), "") {
		must(t, err)
		if info.Size != int64(len(info.Key)) {
			t.Errorf("%+v: wrong size", info)
		}
	}
}

func listMany(t *testing.T, o store.Objects) {
	const n = 1_105 // more than S3 lists at once
	want := make([]string, n)
	for i := range n {
		want[i] = fmt.Sprintf("raw/d=%d/part-%05d", i/600, i)
	}
	errs := make([]error, 8)
	race(len(errs), func(w int) {
		for i := w; i < n && errs[w] == nil; i += len(errs) {
			errs[w] = o.PutOnce(t.Context(), want[i], []byte{'x'})
		}
	})
	must(t, errors.Join(errs...))
	if got := keysOf(t, o, "raw/"); !slices.Equal(got, want) {
		t.Errorf("listed %d keys, want %d in order", len(got), n)
	}
	if got := keysOf(t, o, "raw/d=1/"); !slices.Equal(got, want[600:]) {
		t.Errorf("listed %d keys, want %d in order", len(got), n-600)
	}
	seen := 0
	for _, err := range o.List(t.Context(), "") {
		must(t, err)
		if seen++; seen == 1_003 {
			break
		}
	}
	if seen != 1_003 {
		t.Errorf("stopped after %d", seen)
	}
}

func objectKeysRefused(t *testing.T, o store.Objects) {
	bad := []string{"", "/a", "a/", "a//b", "../a", "a/../b", "a..b", ".", "./a", "a/./b", "a b", "a+b", "é", "a\x00", "a\\b",
		"~tmp", "a%20b", strings.Repeat("a/", 512) + "a", strings.Repeat("x", 256)}
	for _, key := range bad {
		wantInternal(t, fmt.Sprintf("put once %.20q", key), o.PutOnce(t.Context(), key, []byte("x")))
		wantInternal(t, fmt.Sprintf("put %.20q", key), o.Put(t.Context(), key, strings.NewReader("x")))
		_, err := o.Get(t.Context(), key)
		wantInternal(t, fmt.Sprintf("get %.20q", key), err)
		_, err = o.GetRange(t.Context(), key, 0, 1)
		wantInternal(t, fmt.Sprintf("range %.20q", key), err)
		_, err = o.Head(t.Context(), key)
		wantInternal(t, fmt.Sprintf("head %.20q", key), err)
	}
	for _, prefix := range []string{"/", "a//", "..", "a b", "a/../"} {
		for _, err := range o.List(t.Context(), prefix) {
			wantInternal(t, "list "+prefix, err)
		}
	}
	if keys := keysOf(t, o, ""); len(keys) > 0 {
		t.Errorf("listed %v", keys)
	}
}

func objectsCancelled(t *testing.T, o store.Objects) {
	must(t, o.PutOnce(t.Context(), "a", []byte("x")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantCancelled(t, "put once", o.PutOnce(ctx, "b", []byte("x")))
	wantCancelled(t, "put", o.Put(ctx, "b", strings.NewReader("x")))
	_, err := o.Get(ctx, "a")
	wantCancelled(t, "get", err)
	_, err = o.GetRange(ctx, "a", 0, 1)
	wantCancelled(t, "range", err)
	_, err = o.Head(ctx, "a")
	wantCancelled(t, "head", err)
	yields := 0
	for _, err := range o.List(ctx, "") {
		yields++
		wantCancelled(t, "list", err)
	}
	if yields != 1 {
		t.Errorf("list yielded %d times, want its error once", yields)
	}
	if keys := keysOf(t, o, ""); !slices.Equal(keys, []string{"a"}) {
		t.Errorf("listed %v", keys)
	}
}
