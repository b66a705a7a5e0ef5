package stage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/store"
)

// Load writes the rows of bound parts by rank: read the ranks that are there, write only what must change.
type Load struct {
	*core
	transform *Transform
	repeats   int // repeated keys whose ranks are in memory at once
}

// Run loads a run of parts from its position on. A part with a load record is loaded already.
func (s *Load) Run(ctx context.Context, in etl.LoadInput) (etl.LoadOutput, error) {
	o, err := owner(in.Batch, in.Execution, in.Fence)
	if err != nil {
		return etl.LoadOutput{}, err
	}
	b, _, err := s.own(ctx, o, etl.StageLoad)
	if err != nil {
		return etl.LoadOutput{}, err
	}
	if b.Binding == nil || *b.Binding != in.Binding || b.Load != in.Load {
		return etl.LoadOutput{}, etl.Errorf(etl.Superseded, "load %s: the batch is bound to something else by now", o.Batch)
	}
	p, k, err := s.compile(o.Batch.Pipeline)
	if err != nil {
		return etl.LoadOutput{}, err
	}
	if b.Table != p.Target.Table { // a redrive does not pass Gate again
		return etl.LoadOutput{}, etl.Errorf(etl.ContractChanged, "load %s: it began in the table %s, and target.table is %s now: restore it and redrive; then --reload loads the whole batch into %s",
			o.Batch, b.Table, p.Target.Table, p.Target.Table)
	}
	target, err := s.Target(ctx, p)
	if err != nil {
		return etl.LoadOutput{}, fmt.Errorf("target of %s: %w", o.Batch, err)
	}
	l := &load{core: s.core, transform: s.transform, held: s.repeats, p: p, k: k, target: target, batch: o.Batch, bind: in.Binding, number: in.Load, rows: store.MaxPutHigher}
	if p.Target.Atomic {
		if err := l.atomic(ctx, in.Position.Range); err != nil {
			return etl.LoadOutput{}, fmt.Errorf("load %s: %w", o.Batch, err)
		}
		return etl.LoadOutput{Status: etl.StatusDone, Position: in.Position}, nil
	}
	pos := in.Position
	for ; pos.Range.First <= pos.Range.Last; pos = (etl.LoadPosition{Range: etl.Range{First: pos.Range.First + 1, Last: pos.Range.Last}}) {
		if pos.Range.First > in.Position.Range.First && s.short(ctx) {
			return etl.LoadOutput{Status: etl.StatusMore, Position: pos}, nil
		}
		done, err := l.part(ctx, &pos)
		if err != nil {
			return etl.LoadOutput{}, fmt.Errorf("load part %d of %s: %w", pos.Range.First, o.Batch, err)
		}
		if !done && pos == in.Position {
			return etl.LoadOutput{}, etl.Errorf(etl.StoreThrottled, "load part %d of %s: the table took not %d rows in the time of a whole call",
				pos.Range.First, o.Batch, l.rows)
		}
		if !done {
			return etl.LoadOutput{Status: etl.StatusMore, Position: pos}, nil
		}
	}
	return etl.LoadOutput{Status: etl.StatusDone, Position: pos}, nil
}

// A chunk is what is written and counted together. Its size follows the table's pace: a chunk that takes longer than
// slowChunk is halved, so that a throttled table still moves the position within a call, one that is faster than
// fastChunk is doubled up to [store.MaxPutHigher].
const (
	minChunk  = 25
	slowChunk = 20 * time.Second
	fastChunk = 5 * time.Second
)

// load is one call's work.
type load struct {
	*core
	transform *Transform
	p         *pipeline.Pipeline
	k         *contract.Contract
	target    store.Table
	batch     etl.Batch
	bind      etl.Binding
	number    int
	held      int // repeated keys whose ranks are in memory at once
	rows      int // of the next chunk
}

// bound returns the part's transform record and makes sure, before any row is written, that its objects are there and are
// what the record says: what a lifecycle rule took away or a disk damaged is made again from the raw part, as long as the
// file still holds the contract the batch is bound to.
func (l *load) bound(ctx context.Context, part int) (ledger.TransformRecord, error) {
	rec, ok, err := l.Ledger.GetTransform(ctx, l.batch, l.bind, part)
	if err != nil {
		return rec, err
	}
	if !ok {
		return rec, etl.Errorf(etl.RecordsLost, "it is bound but has no transform record")
	}
	sound, err := l.transform.sound(ctx, l.batch, l.bind, rec)
	if err != nil || sound {
		return rec, err
	}
	if l.k.Revision() != l.bind.Revision || l.k.Short() != l.bind.Contract {
		return rec, etl.Errorf(etl.ContractChanged, "its stage objects are gone or damaged, and the file no longer holds the contract they were made under (%s): reprocess the batch", l.bind)
	}
	return rec, l.transform.make(ctx, l.p, l.k, l.batch, l.bind, part)
}

// part loads the part at the position and moves the position; false when the time ran out before the part's end.
func (l *load) part(ctx context.Context, pos *etl.LoadPosition) (bool, error) {
	part := pos.Range.First
	_, ok, err := l.Ledger.GetLoad(ctx, l.batch, l.bind, l.number, part)
	if err != nil || ok {
		return ok, err
	}
	rec, err := l.bound(ctx, part)
	if err != nil {
		return false, err
	}
	repeats, err := l.repeats(ctx, rec)
	if err != nil {
		return false, err
	}
	flushed := *pos
	var chunk []store.Item
	flush := func(row int) error {
		if len(chunk) > 0 {
			outcomes, conflicts, err := l.chunk(ctx, chunk)
			if err != nil {
				return err
			}
			for _, o := range outcomes {
				count(&pos.Counts, o)
			}
			pos.Conflicts += conflicts
			l.watch(outcomes)
			chunk = chunk[:0]
		}
		pos.Row = row
		flushed = *pos
		return nil
	}
	row, from := 0, pos.Row
	err = l.lines(ctx, rec, func(line []byte) error {
		row++
		if row <= from {
			return nil
		}
		if len(chunk) == 0 && pos.Row > from && l.short(ctx) {
			return errTimeUp
		}
		if repeats.lost.has(row) {
			pos.Counts.Duplicate++
			if repeats.conflict.has(row) {
				pos.Conflicts++
			}
			return nil
		}
		item, err := contract.ParseLine(line)
		if err != nil {
			return etl.Errorf(etl.RecordsLost, "row %d: %w", row, err)
		}
		chunk = append(chunk, item)
		if len(chunk) >= l.rows {
			return flush(row)
		}
		return nil
	})
	if err == nil {
		err = flush(row)
	}
	if errors.Is(err, errTimeUp) {
		*pos = flushed
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, l.record(ctx, rec, pos.Counts, pos.Conflicts)
}

// errTimeUp ends the work of a call that has too little time for another chunk, or had too little for the last one.
var errTimeUp = errors.New("the time of this call is up")

// chunk writes a chunk by rank and sets the size of the next one. The write is given up shortly before the call's own end.
func (l *load) chunk(ctx context.Context, items []store.Item) ([]store.Outcome, int64, error) {
	began := l.Now()
	within := ctx
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, deadline.Sub(began)-l.Margin/4)
		defer cancel()
	}
	outcomes, conflicts, err := l.write(within, items, l.target.PutHigher)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return nil, 0, errTimeUp
	}
	switch took := l.Now().Sub(began); {
	case took > slowChunk:
		l.rows = max(l.rows/2, minChunk)
	case took < fastChunk:
		l.rows = min(2*l.rows, store.MaxPutHigher)
	}
	return outcomes, conflicts, err
}

// atomic loads all parts in one transaction. A key that occurs in several parts is loaded once, and counted as duplicate
// elsewhere.
func (l *load) atomic(ctx context.Context, parts etl.Range) error {
	type row struct {
		item store.Item
		part int
	}
	var recs []ledger.TransformRecord
	counts, conflicts := map[int]*etl.LoadCounts{}, map[int]int64{}
	winner := map[store.Key]row{}
	var order []store.Key
	for part := parts.First; part <= parts.Last; part++ {
		rec, err := l.bound(ctx, part)
		if err != nil {
			return fmt.Errorf("part %d: %w", part, err)
		}
		recs = append(recs, rec)
		counts[part] = &etl.LoadCounts{}
		err = l.lines(ctx, rec, func(line []byte) error {
			item, err := contract.ParseLine(line)
			if err != nil {
				return etl.Errorf(etl.RecordsLost, "part %d: %w", part, err)
			}
			w, repeated := winner[item.Key]
			if !repeated {
				order = append(order, item.Key)
			}
			if repeated && etl.Conflict(w.item.Rank, item.Rank) {
				conflicts[part]++
			}
			if repeated && w.item.Rank >= item.Rank {
				counts[part].Duplicate++
				return nil
			}
			if repeated {
				counts[w.part].Duplicate++
			}
			winner[item.Key] = row{item, part}
			return nil
		})
		if err != nil {
			return err
		}
	}
	items := make([]store.Item, len(order))
	for i, k := range order {
		items[i] = winner[k].item
	}
	outcomes, met, err := l.write(ctx, items, l.target.PutAllHigher)
	if err != nil {
		return err
	}
	if len(recs) > 0 {
		conflicts[recs[0].Part] += met
	}
	for i, o := range outcomes {
		count(counts[winner[order[i]].part], o)
	}
	l.watch(outcomes)
	for _, rec := range recs {
		if err := l.record(ctx, rec, *counts[rec.Part], conflicts[rec.Part]); err != nil {
			return err
		}
	}
	return nil
}

// record notes that a part is loaded, once its books balance.
func (l *load) record(ctx context.Context, rec ledger.TransformRecord, c etl.LoadCounts, conflicts int64) error {
	if c.Total() != rec.Valid {
		return etl.Errorf(etl.RecordsLost, "part %d: %d valid records, %d accounted for", rec.Part, rec.Valid, c.Total())
	}
	if _, err := l.Ledger.PutLoad(ctx, l.batch, l.bind, l.number, ledger.LoadRecord{Part: rec.Part, LoadCounts: c, Conflicts: conflicts}); err != nil {
		return fmt.Errorf("load record of part %d: %w", rec.Part, err)
	}
	l.Watch(Tick{Stage: etl.StageLoad, Batch: l.batch, Parts: 1})
	return nil
}

func (l *load) watch(outcomes []store.Outcome) {
	written := int64(0)
	for _, o := range outcomes {
		if o == store.New || o == store.Updated {
			written++
		}
	}
	l.Watch(Tick{Stage: etl.StageLoad, Batch: l.batch, Records: int64(len(outcomes)), Written: written})
}

func count(c *etl.LoadCounts, o store.Outcome) {
	switch o {
	case store.New:
		c.New++
	case store.Updated:
		c.Updated++
	case store.Unchanged:
		c.Unchanged++
	case store.Stale:
		c.Stale++
	}
}

// write decides each item by rank, and returns an outcome for each and the number of conflicts met: rows whose version is
// that of the row in the table and whose content differs. Ranks are read first, and may be stale: they only rise, so an
// item that loses against what was read loses for good, and all others are decided again by put.
func (l *load) write(ctx context.Context, items []store.Item, put func(context.Context, []store.Item) ([]store.Outcome, error)) ([]store.Outcome, int64, error) {
	ranks, err := l.ranks(ctx, items)
	if err != nil {
		return nil, 0, err
	}
	conflicts := int64(0)
	out := make([]store.Outcome, len(items))
	var rest []store.Item
	var at []int // where in items the rest stand
	for i, it := range items {
		there := ranks[it.Key]
		if etl.Conflict(there, it.Rank) {
			conflicts++
		}
		switch {
		case there == it.Rank:
			out[i] = store.Unchanged
		case there > it.Rank:
			out[i] = store.Stale
		default:
			rest, at = append(rest, it), append(at, i)
		}
	}
	if len(rest) == 0 {
		return out, conflicts, nil
	}
	outcomes, err := put(ctx, rest)
	if err != nil {
		return nil, 0, fmt.Errorf("write rows: %w", err)
	}
	var overtaken []store.Item
	for i, o := range outcomes {
		out[at[i]] = o
		if o == store.Stale && !etl.Conflict(ranks[rest[i].Key], rest[i].Rank) {
			overtaken = append(overtaken, rest[i])
		}
	}
	// Another loader put a higher rank there meanwhile, or the look was stale: look again whether it is a conflict.
	if ranks, err = l.ranks(ctx, overtaken); err != nil {
		return nil, 0, err
	}
	for _, it := range overtaken {
		if etl.Conflict(ranks[it.Key], it.Rank) {
			conflicts++
		}
	}
	return out, conflicts, nil
}

// looks bounds the looks at ranks under way at once: a look waits for the network far longer than it computes.
const looks = 8

// ranks reads the ranks of any number of items.
func (l *load) ranks(ctx context.Context, items []store.Item) (map[store.Key]string, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ranks := make(map[store.Key]string, len(items))
	var mu sync.Mutex
	var all sync.WaitGroup
	free := make(chan struct{}, looks)
	for batch := range slices.Chunk(items, store.MaxBatchGet) {
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			keys := make([]store.Key, len(batch))
			for i, it := range batch {
				keys[i] = it.Key
			}
			found, err := l.target.Ranks(ctx, keys)
			if err != nil {
				cancel(fmt.Errorf("read ranks: %w", err)) // the first one counts
				return
			}
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(ranks, found)
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return ranks, nil
}

// lines streams the part's valid lines and verifies their digest at the end.
func (l *load) lines(ctx context.Context, rec ledger.TransformRecord, yield func([]byte) error) error {
	key := etl.StageKey(etl.Valid, l.batch, l.bind, rec.Part)
	sum := sha256.New()
	if err := l.zippedLines(ctx, key, sum, yield); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != rec.ValidSHA256 {
		return etl.Errorf(etl.RecordsLost, "read %s: its digest is %s, its record says %s", key, got, rec.ValidSHA256)
	}
	return nil
}

func keyDigest(k store.Key) digest { return digestOf([]byte(k.PK + "\x00" + k.SK)) }
