package stage

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
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

// A chunk is rows that are written together. How many follows from the table's pace: a chunk that takes longer than
// slowChunk is halved, so that a throttled table still moves the position within a call, one that is faster than fastChunk
// is doubled up to [store.MaxPutHigher]. However large its rows, it holds not much more than chunkBytes.
const (
	minChunk   = 25
	slowChunk  = 20 * time.Second
	fastChunk  = 5 * time.Second
	chunkBytes = 8 << 20
)

// A look is rows whose ranks are read together, at most [store.MaxBatchGet] or, with the last one, lookBytes of them.
// Several are under way at once, as it waits for the network far longer than it computes.
const (
	looks     = 32
	lookBytes = 256 << 10
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
	w := &walk{load: l, repeats: repeats, from: pos.Row, at: *pos, settled: *pos}
	err = w.walk(ctx, rec)
	*pos = w.settled
	if errors.Is(err, errTimeUp) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, l.record(ctx, rec, pos.Counts, pos.Conflicts)
}

// errTimeUp ends the work of a call that has too little time for another look, or had too little for the last chunk.
var errTimeUp = errors.New("the time of this call is up")

// walk loads one part: it reads the rows ahead of their ranks, decides them in order, and gathers those that must be
// written until they fill a chunk.
type walk struct {
	*load
	repeats repeats
	from    int              // rows that earlier calls have settled
	at      etl.LoadPosition // of what is decided, rows of the chunk that is gathered not counted
	settled etl.LoadPosition // of what is decided and, where it must be, written
	filling *look            // nil when none is begun
	asked   []*look          // under way, oldest first
	idle    []*look          // to be filled again
	chunk   []store.Item
	seen    []string // their ranks in the table
	size    int      // of the chunk in bytes
}

// look is rows of which not more is known than what decides them.
type look struct {
	rows  []row
	text  []byte // their lines
	keys  []store.Key
	ranks map[store.Key]string // when done, unless the looks have failed
	done  chan struct{}
}

// row is a line, and what decides it.
type row struct {
	number   int // in the part, from 1
	key      store.Key
	rank     string // "" where another row has its key: it is not looked for
	from, to int    // of its line in the look's text
}

// walk goes through the part. When it returns, no look is under way.
func (w *walk) walk(ctx context.Context, rec ledger.TransformRecord) error {
	timed, cancel := w.within(ctx, w.Margin/2)
	defer cancel()
	looking, fail := context.WithCancelCause(timed)
	defer func() {
		fail(nil)
		for _, k := range w.asked {
			<-k.done
		}
	}()
	number := 0
	err := w.lines(ctx, rec, func(line []byte) error {
		if number++; number <= w.from {
			return nil
		}
		if err := w.add(number, line); err != nil {
			return err
		}
		if len(w.filling.rows) < store.MaxBatchGet && len(w.filling.text) < lookBytes {
			return nil
		}
		w.ask(looking, fail)
		if len(w.asked) < looks {
			return nil
		}
		return w.decide(ctx, looking)
	})
	if err != nil {
		return err
	}
	if w.filling != nil {
		w.ask(looking, fail)
	}
	for len(w.asked) > 0 {
		if err := w.decide(ctx, looking); err != nil {
			return err
		}
	}
	return w.flush(ctx)
}

// add puts a row into the look that is filled.
func (w *walk) add(number int, line []byte) error {
	if w.filling == nil {
		w.filling = &look{}
		if n := len(w.idle); n > 0 {
			w.filling, w.idle = w.idle[n-1], w.idle[:n-1]
		}
	}
	k := w.filling
	r := row{number: number, from: len(k.text)}
	if !w.repeats.lost.has(number) {
		var err error
		if r.key, r.rank, err = contract.ParseRank(line); err != nil {
			return etl.Errorf(etl.RecordsLost, "row %d: %w", number, err)
		}
		k.keys, k.text = append(k.keys, r.key), append(k.text, line...)
	}
	r.to = len(k.text)
	k.rows = append(k.rows, r)
	return nil
}

// ask begins to read the ranks of the look that is filled. The first look that fails ends the others.
func (w *walk) ask(ctx context.Context, fail context.CancelCauseFunc) {
	k := w.filling
	w.filling, w.asked = nil, append(w.asked, k)
	k.done = make(chan struct{})
	go func() {
		defer close(k.done)
		var err error
		if k.ranks, err = w.ranks(ctx, k.keys); err != nil {
			fail(err)
		}
	}()
}

// decide waits for the oldest look and decides its rows. Ranks only rise, so a row that loses against what was read loses
// for good, however long ago that was; the others are decided again when they are written. looking is the context of the
// looks, which ends in time for a last write.
func (w *walk) decide(ctx, looking context.Context) error {
	k := w.asked[0]
	<-k.done
	switch late := errors.Is(looking.Err(), context.DeadlineExceeded) && ctx.Err() == nil; {
	case late || w.at.Row > w.from && w.short(ctx):
		return cmp.Or(w.flush(ctx), errTimeUp)
	case looking.Err() != nil:
		return context.Cause(looking)
	}
	w.asked = w.asked[1:]
	decided := int64(0)
	for _, r := range k.rows {
		w.at.Row = r.number
		there := k.ranks[r.key]
		if etl.Conflict(there, r.rank) || w.repeats.conflict.has(r.number) {
			w.at.Conflicts++
		}
		if r.rank == "" {
			w.at.Counts.Duplicate++
			continue
		}
		o := store.Higher(there, r.rank, there != "")
		if !o.Written() {
			count(&w.at.Counts, o)
			decided++
			continue
		}
		item, err := contract.ParseLine(k.text[r.from:r.to])
		if err != nil {
			return etl.Errorf(etl.RecordsLost, "row %d: %w", r.number, err)
		}
		w.chunk, w.seen, w.size = append(w.chunk, item), append(w.seen, there), w.size+r.to-r.from
		if len(w.chunk) >= w.load.rows || w.size >= chunkBytes {
			if err := w.flush(ctx); err != nil {
				return err
			}
		}
	}
	if len(w.chunk) == 0 {
		w.settled = w.at
	}
	w.Watch(Tick{Stage: etl.StageLoad, Batch: w.batch, Records: decided})
	*k = look{rows: k.rows[:0], text: k.text[:0], keys: k.keys[:0]}
	w.idle = append(w.idle, k)
	return nil
}

// flush writes the chunk, and sets the size of the next one. The write is given up shortly before the call's own end.
func (w *walk) flush(ctx context.Context) error {
	if len(w.chunk) > 0 {
		began := w.Now()
		within, cancel := w.within(ctx, w.Margin/4)
		defer cancel()
		outcomes, conflicts, err := w.write(within, w.chunk, w.seen, w.target.PutHigher)
		if err != nil && within.Err() != nil && ctx.Err() == nil {
			return errTimeUp
		}
		if err != nil {
			return err
		}
		switch took := w.Now().Sub(began); {
		case took > slowChunk:
			w.rows = max(w.rows/2, minChunk)
		case took < fastChunk:
			w.rows = min(2*w.rows, store.MaxPutHigher)
		}
		for _, o := range outcomes {
			count(&w.at.Counts, o)
		}
		w.at.Conflicts += conflicts
		w.watch(outcomes)
		w.chunk, w.seen, w.size = w.chunk[:0], w.seen[:0], 0
	}
	w.settled = w.at
	return nil
}

// within ends the context some time before its deadline.
func (l *load) within(ctx context.Context, before time.Duration) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithTimeout(ctx, deadline.Sub(l.Now())-before)
	}
	return context.WithCancel(ctx)
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
	outcomes, met, err := l.all(ctx, items)
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

// all loads the items in one transaction, and returns an outcome for each and the number of conflicts met.
func (l *load) all(ctx context.Context, items []store.Item) ([]store.Outcome, int64, error) {
	keys := make([]store.Key, len(items))
	for i, it := range items {
		keys[i] = it.Key
	}
	ranks, err := l.ranks(ctx, keys)
	if err != nil {
		return nil, 0, err
	}
	conflicts := int64(0)
	out := make([]store.Outcome, len(items))
	var rest []store.Item
	var seen []string
	var at []int // where in items the rest stand
	for i, it := range items {
		there := ranks[it.Key]
		if etl.Conflict(there, it.Rank) {
			conflicts++
		}
		if out[i] = store.Higher(there, it.Rank, there != ""); out[i].Written() {
			rest, seen, at = append(rest, it), append(seen, there), append(at, i)
		}
	}
	if len(rest) == 0 {
		return out, conflicts, nil
	}
	outcomes, more, err := l.write(ctx, rest, seen, l.target.PutAllHigher)
	if err != nil {
		return nil, 0, err
	}
	for i, o := range outcomes {
		out[at[i]] = o
	}
	return out, conflicts + more, nil
}

// write puts items whose ranks in the table were seen to be lower, and returns an outcome for each and the number of
// conflicts that the looks had not shown: rows whose version is that of the row in the table and whose content differs.
func (l *load) write(ctx context.Context, items []store.Item, seen []string, put func(context.Context, []store.Item) ([]store.Outcome, error)) ([]store.Outcome, int64, error) {
	outcomes, err := put(ctx, items)
	if err != nil {
		return nil, 0, fmt.Errorf("write rows: %w", err)
	}
	// Where another loader put a higher rank there meanwhile, or the look was stale: look again whether it is a conflict.
	ranks := map[store.Key]string{}
	var keys []store.Key
	for i, o := range outcomes {
		if o == store.Stale && !etl.Conflict(seen[i], items[i].Rank) {
			ranks[items[i].Key] = items[i].Rank
			keys = append(keys, items[i].Key)
		}
	}
	there, err := l.ranks(ctx, keys)
	if err != nil {
		return nil, 0, err
	}
	conflicts := int64(0)
	for k, rank := range ranks {
		if etl.Conflict(there[k], rank) {
			conflicts++
		}
	}
	return outcomes, conflicts, nil
}

// ranks reads the ranks of any number of keys.
func (l *load) ranks(ctx context.Context, keys []store.Key) (map[store.Key]string, error) {
	var ranks map[store.Key]string
	for some := range slices.Chunk(keys, store.MaxBatchGet) {
		found, err := l.target.Ranks(ctx, some)
		if err != nil {
			return nil, fmt.Errorf("read ranks: %w", err)
		}
		if ranks == nil {
			ranks = found
		} else {
			maps.Copy(ranks, found)
		}
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
	return sameDigest(key, hex.EncodeToString(sum.Sum(nil)), rec.ValidSHA256)
}

func keyDigest(k store.Key) digest { return digestOf([]byte(k.PK + "\x00" + k.SK)) }
