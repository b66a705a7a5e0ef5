package sim

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/mem"
)

// fate is what becomes of a call.
type fate int

const (
	pass     fate = iota
	refuse        // an error, and nothing done
	throttle      // likewise
	lose          // done, and an error all the same
	half          // an error, and some of the items done
	numFates
)

func (f fate) String() string { return [...]string{"pass", "refuse", "throttle", "lose", "half"}[f] }

// parked is a call that waits to be let through.
type parked struct {
	actor *actor // nil: its caller has given up, but the call is on its way
	name  string
	do    func() error
	half  func() error // nil: the call has one effect or none
	fate  chan fate
}

// invocation is the key of a context's value that tells the invocations of an execution apart: their calls have one order
// only if each has a name of its own.
type invocation struct{}

// call waits for the scheduler, and does or fails as it says. A caller that is killed, or whose time is up, gives up; the
// call itself may be carried out later all the same.
func (a *actor) call(ctx context.Context, op, key string, do, some func() error) error {
	a.life.Lock()
	dead := a.dead
	a.life.Unlock()
	if dead {
		return errDead
	}
	p := &parked{actor: a, name: fmt.Sprintf("%04d %016x %s %s", a.number, ctx.Value(invocation{}), op, key), do: do, half: some, fate: make(chan fate)}
	a.mu.Lock()
	a.parked = append(a.parked, p)
	a.mu.Unlock()
	var f fate
	select {
	case f = <-p.fate:
	case <-ctx.Done():
		a.mu.Lock()
		p.actor = nil
		a.mu.Unlock()
		return ctx.Err()
	}
	switch f {
	case refuse:
		return etl.Errorf(etl.StoreUnavailable, "%s %s: connection reset", op, key)
	case throttle:
		return etl.Errorf(etl.StoreThrottled, "%s %s: slow down", op, key)
	case half:
		if err := some(); err != nil {
			return err
		}
		return etl.Errorf(etl.StoreThrottled, "%s %s: slow down", op, key)
	}
	err := do()
	if f == lose {
		return etl.Errorf(etl.StoreUnavailable, "%s %s: connection reset", op, key)
	}
	return err
}

// step lets one call through, or time pass if none waits.
func (s *sim) step() {
	s.mu.Lock()
	if len(s.parked) == 0 {
		s.mu.Unlock()
		s.Sleep(time.Duration(1+s.rnd.IntN(30)) * time.Second)
		return
	}
	slices.SortStableFunc(s.parked, func(a, b *parked) int { return cmp.Compare(a.name, b.name) })
	i := s.rnd.IntN(len(s.parked))
	p := s.parked[i]
	s.parked = slices.Delete(s.parked, i, i+1)
	orphan := p.actor == nil
	s.mu.Unlock()
	f := pass
	switch odds := s.rnd.Float64(); {
	case orphan:
		if s.rnd.Float64() < s.odds.late {
			s.note(p.name, "late")
			_ = p.do() // nobody is there to hear of an error
		}
		return
	case !s.calm && odds < s.odds.fault:
		f = fate(1 + s.rnd.IntN(int(numFates)-1))
		if f == half && p.half == nil {
			f = lose
		}
	}
	s.note(p.name, f.String())
	tick := s.odds.tick
	if s.calm {
		tick = time.Millisecond
	}
	s.Sleep(time.Duration(s.rnd.Int64N(int64(tick))))
	s.Quiet()
	s.mu.Lock()
	waits := p.actor != nil
	s.mu.Unlock()
	if !waits { // its time was up just now
		s.mu.Lock()
		s.parked = append(s.parked, p)
		s.mu.Unlock()
		return
	}
	p.fate <- f
}

func (s *sim) note(name, fate string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Trace = hash(s.report.Trace, name, fate, s.Now().UnixNano())
	s.report.Calls++
	s.report.Fates[fate]++
}

// hash draws where the scheduler's own numbers would come in no fixed order.
func hash(of ...any) uint64 {
	h := fnv.New64a()
	h.Write([]byte(fmt.Sprint(of...)))
	return h.Sum64()
}

// objects is a bucket as an actor sees it.
type objects struct {
	a  *actor
	in *mem.Objects
}

func (o objects) PutOnce(ctx context.Context, key string, body []byte) error {
	body = slices.Clone(body)
	return o.a.call(ctx, "PutOnce", key, func() error {
		err := o.in.PutOnce(context.WithoutCancel(ctx), key, body)
		if err == nil {
			o.a.landed(key)
		}
		return err
	}, nil)
}

// landed makes events of a landed part: none, one or two.
func (s *sim) landed(key string) {
	if o, err := etl.ParseKey(key); err != nil || o.Kind != etl.RawPart {
		return
	}
	h := hash(s.seed, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range uint64(2) {
		if float64((h>>(8*n))%256) < 256*s.odds.event {
			s.events = append(s.events, key)
		}
	}
}

// Put reads its body first: a late call has no reader any more.
func (o objects) Put(ctx context.Context, key string, body io.Reader) error {
	all, err := io.ReadAll(body)
	if err != nil {
		return fmt.Errorf("put %s: %w", key, err)
	}
	return o.a.call(ctx, "Put", key, func() error {
		ctx := context.WithoutCancel(ctx)
		var old []byte
		if r, err := o.in.Get(ctx, key); err == nil {
			if old, err = io.ReadAll(r); err != nil {
				return err
			}
		}
		if k, err := etl.ParseKey(key); old != nil && (err != nil || k.Kind != etl.Rejected) && !bytes.Equal(old, all) {
			o.a.wrong("%s was written again with another content", key)
		}
		return o.in.Put(ctx, key, bytes.NewReader(all))
	}, nil)
}

func (o objects) Get(ctx context.Context, key string) (r io.ReadCloser, err error) {
	return r, o.a.call(ctx, "Get", key, func() error { r, err = o.in.Get(ctx, key); return err }, nil)
}

func (o objects) GetRange(ctx context.Context, key string, off, n int64) (b []byte, err error) {
	return b, o.a.call(ctx, "GetRange", key, func() error { b, err = o.in.GetRange(ctx, key, off, n); return err }, nil)
}

func (o objects) Head(ctx context.Context, key string) (i store.Info, err error) {
	return i, o.a.call(ctx, "Head", key, func() error { i, err = o.in.Head(ctx, key); return err }, nil)
}

func (o objects) List(ctx context.Context, prefix string) iter.Seq2[store.Info, error] {
	return seq(ctx, o.a, "List", prefix, o.in.List(ctx, prefix))
}

func seq[T any](ctx context.Context, a *actor, op, key string, in iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var all []T
		err := a.call(ctx, op, key, func() error {
			for v, err := range in {
				if err != nil {
					return err
				}
				all = append(all, v)
			}
			return nil
		}, nil)
		if err != nil {
			var zero T
			yield(zero, err)
			return
		}
		for _, v := range all {
			if !yield(v, nil) {
				return
			}
		}
	}
}

// table is a table as an actor sees it.
type table struct {
	a  *actor
	in *mem.Table
}

func (x table) Get(ctx context.Context, key store.Key) (it store.Item, err error) {
	return it, x.a.call(ctx, "Get", key.Name(), func() error { it, err = x.in.Get(ctx, key); return err }, nil)
}

// Ranks may be stale: what every other look misses is what was put last.
func (x table) Ranks(ctx context.Context, keys []store.Key) (m map[store.Key]string, err error) {
	err = x.a.call(ctx, "Ranks", keys[0].Name(), func() error {
		if m, err = x.in.Ranks(ctx, keys); err != nil {
			return err
		}
		h := hash(x.a.seed, x.a.report.Trace)
		for i, k := range keys {
			if !x.a.calm && (h>>(i%60))&3 == 0 {
				delete(m, k)
			}
		}
		return nil
	}, nil)
	return m, err
}

func (x table) Query(ctx context.Context, q store.Query) iter.Seq2[store.Item, error] {
	return seq(ctx, x.a, "Query", q.PK+" "+q.SKPrefix, x.in.Query(ctx, q))
}

func (x table) PutIf(ctx context.Context, it store.Item, c store.Condition) error {
	it.Doc = slices.Clone(it.Doc)
	return x.a.call(ctx, "PutIf", it.Name(), func() error {
		ctx := context.WithoutCancel(ctx)
		old, err := x.in.Get(ctx, it.Key)
		there := err == nil
		if err := x.in.PutIf(ctx, it, c); err != nil {
			return err
		}
		x.a.judge(x.a.name, there, old, it)
		return nil
	}, nil)
}

// judge holds a write of a ledger item against the rules: facts never change but for the mark of a failure, a batch item
// is written by its owner alone until another raises the fence, no load is completed twice. B6
func (s *sim) judge(writer string, there bool, old, now store.Item) {
	decode := func(it store.Item) (b ledger.Batch) {
		if err := json.Unmarshal(it.Doc, &b); err != nil {
			s.wrong("batch item %s: %w", it.Doc, err)
		}
		return b
	}
	switch {
	case strings.HasPrefix(now.PK, "source#"):
	case there && strings.HasPrefix(now.SK, etl.FailurePrefix):
		var f ledger.FailureInfo
		if err := json.Unmarshal(old.Doc, &f); err != nil || f.Raised != "" {
			s.wrong("failure %s was written twice", now.Name())
		}
	case there && now.SK != etl.BatchSK && !bytes.Equal(old.Doc, now.Doc):
		s.wrong("fact %s changed from %s to %s", now.Name(), old.Doc, now.Doc)
	case now.SK == etl.BatchSK:
		b := decode(now)
		if b.Binding != nil {
			s.bound(b.ID, fmt.Sprintf("%s/%d/%s", b.ID, b.Binding.Extraction, b.Binding.Revision))
		}
		if !there {
			return
		}
		a := decode(old)
		switch {
		case b.Owner != writer:
			s.wrong("%s wrote the batch item of %s", writer, b.Owner)
		case a.Owner == b.Owner && a.Fence != b.Fence, a.Owner != b.Owner && b.Fence != a.Fence+1:
			s.wrong("owner %s fence %d became %s fence %d", a.Owner, a.Fence, b.Owner, b.Fence)
		case a.State == ledger.StateCompleted && (a.Owner == b.Owner || b.Load <= a.Load):
			s.wrong("the completed load %d of %s was changed by %s, load %d", a.Load, a.Owner, b.Owner, b.Load)
		}
	}
}

// bound notes what a batch was bound to.
func (s *sim) bound(batch, run string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bindings[batch] == nil {
		s.bindings[batch] = map[string]bool{}
	}
	s.bindings[batch][run] = true
}

func (x table) PutHigher(ctx context.Context, items []store.Item) (out []store.Outcome, err error) {
	items = slices.Clone(items)
	put := func(items []store.Item) func() error {
		return func() error {
			x.a.put(items)
			out, err = x.in.PutHigher(context.WithoutCancel(ctx), items)
			return err
		}
	}
	err = x.a.call(ctx, "PutHigher", items[0].Name(), put(items), put(items[:len(items)/2]))
	if err != nil {
		return nil, err
	}
	return out, nil
}

// put notes rows that are being written: nothing may be before the gate has bound its batch to it.
func (s *sim) put(items []store.Item) {
	for _, it := range items {
		var doc struct {
			Batch string `json:"_batch"`
			Run   string `json:"_run"`
		}
		if err := json.Unmarshal(it.Doc, &doc); err != nil {
			s.wrong("row %s: %w", it.Doc, err)
		}
		s.mu.Lock()
		bound := s.bindings[doc.Batch][doc.Run]
		s.applied = append(s.applied, it)
		s.mu.Unlock()
		if !bound {
			s.wrong("row %s of %s was written, which its batch was never bound to", it.Name(), doc.Run)
		}
	}
}

func (x table) PutAllHigher(ctx context.Context, items []store.Item) (out []store.Outcome, err error) {
	items = slices.Clone(items)
	err = x.a.call(ctx, "PutAllHigher", items[0].Name(), func() error {
		x.a.put(items)
		out, err = x.in.PutAllHigher(context.WithoutCancel(ctx), items)
		return err
	}, nil)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// RoundTrip asks the source in process.
func (a *actor) RoundTrip(r *http.Request) (res *http.Response, err error) {
	err = a.call(r.Context(), "request", r.URL.String(), func() error {
		res = a.source.serve(r) //nolint:bodyclose // the client that asked closes it
		return nil
	}, nil)
	if err != nil {
		return nil, err
	}
	return res, nil
}
