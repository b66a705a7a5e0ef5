package stage

import (
	"bufio"
	"cmp"
	"container/heap"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// A part's key object holds the digest of each valid record's key, 16 bytes each, in sorted runs of maxRun, the last one
// shorter. Gate finds duplicates across parts in them, Load within a part.
const (
	digestSize = 16
	maxRun     = 1 << 19 // 8 MiB
)

// digest is the first half of the sha256 of a key, as two numbers that compare as its bytes do.
type digest struct{ hi, lo uint64 }

func (a digest) compare(b digest) int {
	if a.hi != b.hi {
		return cmp.Compare(a.hi, b.hi)
	}
	return cmp.Compare(a.lo, b.lo)
}

// digestOf is the digest of a key: pk, U+0000, sk.
func digestOf(key []byte) digest {
	sum := sha256.Sum256(key)
	return digest{binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:])}
}

// keyWriter writes a key object.
type keyWriter struct {
	start func() *upload
	to    *upload // nil before the first run and after the end
	run   []digest
	sum   hash.Hash
}

// newKeyWriter writes at most so many digests, for which it makes room at once.
func newKeyWriter(ctx context.Context, into store.Objects, key string, most int64) *keyWriter {
	return &keyWriter{
		start: func() *upload { return newUpload(ctx, into, key) },
		run:   make([]digest, 0, max(min(most, maxRun), 0)),
		sum:   sha256.New(),
	}
}

func (w *keyWriter) add(key []byte) error {
	if len(w.run) == maxRun {
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.run = append(w.run, digestOf(key))
	return nil
}

// flush writes the run under way.
func (w *keyWriter) flush() error {
	if w.to == nil {
		w.to = w.start()
	}
	slices.SortFunc(w.run, digest.compare)
	buf := bufio.NewWriterSize(io.MultiWriter(w.to, w.sum), 64<<10)
	var b [digestSize]byte
	for _, d := range w.run {
		binary.BigEndian.PutUint64(b[:], d.hi)
		binary.BigEndian.PutUint64(b[8:], d.lo)
		if _, err := buf.Write(b[:]); err != nil {
			return fmt.Errorf("write %s: %w", w.to.key, err)
		}
	}
	if err := buf.Flush(); err != nil {
		return fmt.Errorf("write %s: %w", w.to.key, err)
	}
	w.run = w.run[:0]
	return nil
}

// close commits the object and returns its digest.
func (w *keyWriter) close() (string, error) {
	err := w.flush()
	u := w.to
	w.to = nil
	return hex.EncodeToString(w.sum.Sum(nil)), u.end(err)
}

// abort gives an unfinished object up; after close it does nothing.
func (w *keyWriter) abort() {
	if w.to != nil {
		_ = w.to.end(context.Canceled) // it fails because it is given up, and the reason is on its way up already
		w.to = nil
	}
}

// keyObject names a key object and how many digests it must hold.
type keyObject struct {
	key    string
	keys   int64
	sha256 string // of its content, hex; "" if it is known to be sound
}

// mergeKeys yields the digests of key objects in order: a merge of their runs, each read a piece at a time, so that memory
// and open connections do not grow with the number of keys. What is not in an object any more, or is not what its digest
// says, is an error that damaged tells.
func mergeKeys(ctx context.Context, from store.Objects, objects []keyObject, yield func(digest)) error {
	runs := 0
	for _, o := range objects {
		runs += int((o.keys + maxRun - 1) / maxRun)
	}
	if runs == 0 {
		return nil
	}
	// All pieces together have 16 MiB, unless that would be many small requests.
	piece := min(max(16<<20/runs, 4<<10), 1<<20) / digestSize * digestSize
	var merge runHeap
	for _, o := range objects {
		var check *keyCheck
		switch {
		case o.sha256 == "":
		case o.keys > maxRun: // its runs are read in turn
			if err := o.verify(ctx, from); err != nil {
				return err
			}
		default:
			check = &keyCheck{sum: sha256.New(), want: o.sha256}
		}
		for first := int64(0); first < o.keys; first += maxRun {
			r := &keyRun{from: from, key: o.key, off: first * digestSize, end: min(first+maxRun, o.keys) * digestSize, piece: int64(piece), check: check}
			if err := r.next(ctx); err != nil {
				return err
			}
			merge = append(merge, r)
		}
	}
	heap.Init(&merge)
	for len(merge) > 0 {
		r := merge[0]
		yield(r.at)
		if r.done() {
			heap.Pop(&merge)
			continue
		}
		if err := r.next(ctx); err != nil {
			return err
		}
		heap.Fix(&merge, 0)
	}
	return nil
}

// damaged reports whether the error says that an object is gone or is not what it should be.
func damaged(err error) bool {
	return err != nil && (errors.Is(err, store.ErrNotFound) || etl.KindOf(err) == etl.RecordsLost)
}

// keyCheck holds what is read of an object against its digest.
type keyCheck struct {
	sum  hash.Hash
	want string
}

// end says whether all that was read is what it should be.
func (c *keyCheck) end(key string) error {
	return sameDigest(key, hex.EncodeToString(c.sum.Sum(nil)), c.want)
}

// verify reads the whole object.
func (o keyObject) verify(ctx context.Context, from store.Objects) error {
	got, err := contentDigest(ctx, from, o.key, false)
	if err != nil {
		return err
	}
	return sameDigest(o.key, got, o.sha256)
}

// keyRun walks one sorted run.
type keyRun struct {
	from     store.Objects
	key      string
	off, end int64 // of what is not read yet
	piece    int64
	buf      []byte
	at       digest // the current one
	check    *keyCheck
}

func (r *keyRun) done() bool { return len(r.buf) == 0 && r.off == r.end }

// next goes on to the next digest, of which there is one.
func (r *keyRun) next(ctx context.Context) error {
	if len(r.buf) == 0 {
		n := min(r.piece, r.end-r.off)
		buf, err := r.from.GetRange(ctx, r.key, r.off, n)
		if err != nil {
			return fmt.Errorf("read %s: %w", r.key, err)
		}
		if int64(len(buf)) != n {
			return etl.Errorf(etl.RecordsLost, "read %s: it ends %d bytes early", r.key, n-int64(len(buf)))
		}
		r.buf, r.off = buf, r.off+n
		if r.check != nil {
			r.check.sum.Write(buf)
			if r.off == r.end {
				if err := r.check.end(r.key); err != nil {
					return err
				}
			}
		}
	}
	r.at = digest{binary.BigEndian.Uint64(r.buf), binary.BigEndian.Uint64(r.buf[8:])}
	r.buf = r.buf[digestSize:]
	return nil
}

// runHeap has the run with the least current digest on top.
type runHeap []*keyRun

func (h runHeap) Len() int           { return len(h) }
func (h runHeap) Less(i, j int) bool { return h[i].at.compare(h[j].at) < 0 }
func (h runHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *runHeap) Push(x any)        { *h = append(*h, x.(*keyRun)) }
func (h *runHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
