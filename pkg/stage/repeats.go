package stage

import (
	"context"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
)

// maxRepeats bounds the repeated keys whose ranks are in memory at once, some 13 MiB; a part with more of them is read
// once for each so many.
const maxRepeats = 1 << 16

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

// best is the row of a repeated key with the highest rank so far.
type best struct {
	row  int // 0 = none yet
	rank string
}

// repeats finds the repeated keys in the part's key object, and only if there are any their rows in the part itself.
func (l *load) repeats(ctx context.Context, rec ledger.TransformRecord) (repeats, error) {
	var r repeats
	for from := (digest{}); ; {
		found, next, more, err := l.repeated(ctx, rec, from)
		if err != nil || len(found) == 0 {
			return r, err
		}
		if err := l.compete(ctx, rec, found, &r); err != nil || !more {
			return r, err
		}
		from = next
	}
}

// repeated returns the first repeated keys, as many as may be held, from one on, and the next one if there are more.
func (l *load) repeated(ctx context.Context, rec ledger.TransformRecord, from digest) (found map[digest]best, next digest, more bool, err error) {
	found = map[digest]best{}
	var last digest
	first := true
	keys := keyObject{key: etl.StageKey(etl.Keys, l.batch, l.bind, rec.Part), keys: rec.Valid}
	err = mergeKeys(ctx, l.core.Stage, []keyObject{keys}, func(d digest) {
		if !first && d == last && d.compare(from) >= 0 && !more {
			if _, known := found[d]; !known && len(found) == l.held {
				next, more = d, true
			} else {
				found[d] = best{}
			}
		}
		first, last = false, d
	})
	return found, next, more, err
}

// compete reads the part and marks which rows of these keys lose. Who is in conflict is known once the winners are: a
// second reading finds it, and is needed only if two rows of a key have the same version and other content.
func (l *load) compete(ctx context.Context, rec ledger.TransformRecord, found map[digest]best, r *repeats) error {
	conflicts := false
	err := l.contenders(ctx, rec, found, func(d digest, row int, rank string) {
		b := found[d]
		conflicts = conflicts || etl.Conflict(b.rank, rank)
		switch {
		case b.row == 0:
		case rank > b.rank:
			r.lost.add(b.row)
		default:
			r.lost.add(row)
			return
		}
		found[d] = best{row: row, rank: rank}
	})
	if err != nil || !conflicts {
		return err
	}
	return l.contenders(ctx, rec, found, func(d digest, row int, rank string) {
		if etl.Conflict(found[d].rank, rank) {
			r.conflict.add(row)
		}
	})
}

// contenders yields the rows of these keys.
func (l *load) contenders(ctx context.Context, rec ledger.TransformRecord, found map[digest]best, yield func(d digest, row int, rank string)) error {
	row := 0
	return l.lines(ctx, rec, func(line []byte) error {
		row++
		key, rank, err := contract.ParseRank(line)
		if err != nil {
			return etl.Errorf(etl.RecordsLost, "row %d: %w", row, err)
		}
		d := keyDigest(key)
		if _, repeated := found[d]; repeated {
			yield(d, row, rank)
		}
		return nil
	})
}
