package stage

import (
	"bytes"
	"context"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
)

// maxRepeats bounds the repeated keys whose ranks are in memory at once, some 10 MiB; a part with more of them is read
// once for each so many.
const maxRepeats = 1 << 17

// repeats marks the rows of a part that are not loaded because another row has their key: the highest rank is loaded, of
// equal ranks the first. It costs two bits a row, whatever the keys.
type repeats struct {
	lost     rowSet
	conflict rowSet // of those lost: the same version as the row that is loaded, and other content
}

// rowSet is a set of rows, which count from 1.
type rowSet []uint64

func (s rowSet) has(row int) bool { return row/64 < len(s) && s[row/64]>>(row%64)&1 == 1 }

func (s *rowSet) add(row int) {
	for row/64 >= len(*s) {
		*s = append(*s, 0)
	}
	(*s)[row/64] |= 1 << (row % 64)
}

// repeats finds the repeated keys in the part's key object, and only if there are any their rows in the part itself.
func (l *load) repeats(ctx context.Context, rec ledger.TransformRecord) (repeats, error) {
	var r repeats
	var c contest
	for from := (digest{}); ; {
		next, more, err := l.repeated(ctx, rec, from, &c)
		if err != nil || len(c.keys) == 0 {
			return r, err
		}
		if err := l.compete(ctx, rec, &c, &r); err != nil || !more {
			return r, err
		}
		from = next
	}
}

// contest is the rows of repeated keys with the highest ranks so far. It holds no pointer for each key: the garbage
// collector has little to look at.
type contest struct {
	keys  []digest // in order
	rows  []int    // of each key; 0 = none yet
	ranks []byte   // of these rows, packed
	width int      // of a packed rank
}

// repeated makes c the contest for the first repeated keys from one on, as many as may be held, and returns the next key if
// there are more.
func (l *load) repeated(ctx context.Context, rec ledger.TransformRecord, from digest, c *contest) (next digest, more bool, err error) {
	c.keys = c.keys[:0]
	var last digest
	first := true
	keys := keyObject{key: etl.StageKey(etl.Keys, l.batch, l.bind, rec.Part), keys: rec.Valid}
	err = mergeKeys(ctx, l.core.Stage, []keyObject{keys}, func(d digest) {
		n := len(c.keys)
		switch {
		case first || d != last || d.compare(from) < 0 || more || n > 0 && d == c.keys[n-1]:
		case n == l.held:
			next, more = d, true
		default:
			c.keys = append(c.keys, d)
		}
		first, last = false, d
	})
	c.rows = append(c.rows[:0], make([]int, len(c.keys))...)
	return next, more, err
}

// compete reads the part and marks which rows of these keys lose. Who is in conflict is known once the winners are: a
// second reading finds it, and is needed only if two rows of a key have the same version and other content.
func (l *load) compete(ctx context.Context, rec ledger.TransformRecord, c *contest, r *repeats) error {
	conflicts := false
	err := l.contenders(ctx, rec, c, func(key, row int, rank []byte) {
		best := c.ranks[key*c.width:][:c.width]
		switch {
		case c.rows[key] == 0:
		case bytes.Compare(rank, best) > 0:
			r.lost.add(c.rows[key])
			conflicts = conflicts || inConflict(rank, best)
		default:
			r.lost.add(row)
			conflicts = conflicts || inConflict(rank, best)
			return
		}
		c.rows[key] = row
		copy(best, rank)
	})
	if err != nil || !conflicts {
		return err
	}
	return l.contenders(ctx, rec, c, func(key, row int, rank []byte) {
		if inConflict(rank, c.ranks[key*c.width:][:c.width]) {
			r.conflict.add(row)
		}
	})
}

// contenders yields the rows of these keys, with their packed ranks.
func (l *load) contenders(ctx context.Context, rec ledger.TransformRecord, c *contest, yield func(key, row int, rank []byte)) error {
	row := 0
	var packed []byte
	return l.lines(ctx, rec, func(line []byte) error {
		row++
		key, rank, err := contract.ParseRank(line)
		if err != nil {
			return etl.Errorf(etl.RecordsLost, "row %d: %w", row, err)
		}
		at, repeated := slices.BinarySearchFunc(c.keys, keyDigest(key), digest.compare)
		if !repeated {
			return nil
		}
		var ok bool
		packed, ok = pack(packed[:0], rank)
		if c.width == 0 {
			c.width = len(packed)
			c.ranks = make([]byte, len(c.keys)*c.width) // a later contest is no larger
		}
		if !ok || len(packed) != c.width {
			return etl.Errorf(etl.RecordsLost, "row %d: its rank %q is none of this part", row, rank)
		}
		yield(at, row, packed)
		return nil
	})
}

// packedDigest is how many bytes the digest of a rank has when packed.
const packedDigest = etl.DigestLen / 2

// pack writes a rank shorter, so that packed ranks of one length compare as the ranks do. The ranks of a part have one
// length: their versions are of one type.
func pack(dst []byte, rank string) ([]byte, bool) {
	i := strings.LastIndexByte(rank, '|') + 1
	dst = append(dst, rank[:i]...)
	dst, err := hex.AppendDecode(dst, []byte(rank[i:]))
	return dst, err == nil && len(rank)-i == etl.DigestLen
}

// inConflict is [etl.Conflict] of two packed ranks.
func inConflict(a, b []byte) bool {
	n := len(a) - packedDigest
	return bytes.Equal(a[:n], b[:n]) && !bytes.Equal(a[n:], b[n:])
}
