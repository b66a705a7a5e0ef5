package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/mem"
)

// This file explores, without omission, all that three executions of one batch can do to each other within a budget of
// faults. A ledger method is a function of the replies it got so far, so a state holds the stored items and each
// execution's replies, and every move is one reply more. The real methods run; only the table is scripted.

const explorers = 3

// The steps of an execution. The third one asks for a reload.
const (
	atClaim = iota
	atBind
	atSettle
	atFail // it records its failure
	atEnd
)

// execState is one execution. All members are comparable: documents and replies are interned.
type execState struct {
	step    int8
	fence   int8
	ended   bool // what liveness says; a ghost goes on all the same
	found   int8 // 1 + the execution that it found ended within this step
	replies int32
	errors  int8 // transient errors of this step
	failed  int8 // 1 + the step that failed
	redrive int8 // how often it was redriven: its failures differ
}

type worldState struct {
	batch    int32 // the batch item
	before   int32 // what it was before its last write: what a stale read gives
	failures [explorers]int32
	execs    [explorers]execState
	faults   int8 // left
	deaths   int8 // left, of executions, ghosts included
	stale    int8 // reads left
	redrives int8 // left
}

// interned gives equal documents one number; 0 is none.
type interned struct {
	ids   map[string]int32
	texts []string
}

func (n *interned) id(s string) int32 {
	if id, ok := n.ids[s]; ok {
		return id
	}
	id := int32(len(n.texts))
	n.ids[s], n.texts = id, append(n.texts, s)
	return id
}

// reply is what a call came to.
type reply struct {
	doc  int32 // what a read found, or what stood in a write's way; 0 = nothing
	live ledger.Liveness
	err  bool // the reply was lost, or the call refused
	no   bool // the condition does not hold
}

// trace is a reply with those before it, 0 = none.
type trace struct {
	before int32
	reply  reply
}

// call is what a method asks for next.
type call struct {
	op   string // get, put, alive
	key  store.Key
	doc  string
	cond store.Condition
	of   string // alive: the execution
}

// script is a table that answers from a list of replies, and then notes the next call.
type script struct {
	store.Table
	docs    []string
	replies []reply
	next    *call
}

var errEnd = errors.New("the script ends here")

func (s *script) reply(c call) (reply, error) {
	if s.next != nil {
		return reply{}, errEnd
	}
	if len(s.replies) == 0 {
		s.next = &c
		return reply{}, errEnd
	}
	r := s.replies[0]
	s.replies = s.replies[1:]
	if r.err {
		return r, errReply
	}
	return r, nil
}

func (s *script) Get(_ context.Context, key store.Key) (store.Item, error) {
	r, err := s.reply(call{op: "get", key: key})
	switch {
	case err != nil:
		return store.Item{}, err
	case r.doc == 0:
		return store.Item{}, store.ErrNotFound
	}
	return store.Item{Key: key, Doc: []byte(s.docs[r.doc])}, nil
}

func (s *script) PutIf(_ context.Context, item store.Item, cond store.Condition) error {
	r, err := s.reply(call{op: "put", key: item.Key, doc: string(item.Doc), cond: cond})
	switch {
	case err != nil:
		return err
	case r.no && r.doc != 0:
		return &store.ConditionError{Old: &store.Item{Key: item.Key, Doc: []byte(s.docs[r.doc])}}
	case r.no:
		return &store.ConditionError{}
	}
	return nil
}

func (s *script) Alive(_ context.Context, execution string) (ledger.Liveness, error) {
	r, err := s.reply(call{op: "alive", of: execution})
	return r.live, err
}

// result is a finished step, or the call that it waits for.
type result struct {
	next   *call
	kind   etl.Kind // "" = no error
	status etl.Status
	fence  int
	batch  ledger.Batch
}

type explorer struct {
	t       *testing.T
	stale   bool // reads may be stale
	docs    interned
	traces  []trace // the first one is that of a step without replies
	ids     map[trace]int32
	results map[[5]int32]result
	judged  map[[5]int32]bool
	healed  map[int32]bool
	seen    map[worldState]bool
	todo    []worldState
	writes  int
	settled int
	ends    int
}

func execID(i int) string { return fmt.Sprint("e", i+1) }

// run plays a step with the replies it has.
func (x *explorer) run(i int, e execState) result {
	key := [5]int32{int32(i), int32(e.step), int32(e.fence), e.replies, int32(e.redrive)}
	if r, ok := x.results[key]; ok {
		return r
	}
	s := &script{docs: x.docs.texts}
	for at := e.replies; at > 0; at = x.traces[at].before {
		s.replies = append(s.replies, x.traces[at].reply)
	}
	slices.Reverse(s.replies)
	l := &ledger.Ledger{Table: s, Now: func() time.Time { return began }}
	owner := ledger.Owner{Batch: batch, Execution: execID(i), Fence: int(e.fence)}
	var r result
	var err error
	switch e.step {
	case atClaim:
		var c ledger.Claim
		c, err = l.Claim(context.Background(), ledger.ClaimRequest{Batch: batch, Execution: execID(i), Window: window, Reload: i == explorers-1, Alive: s.Alive})
		r = result{status: c.Status, fence: c.Owner.Fence, batch: c.Batch}
	case atBind:
		r.batch, err = l.Update(context.Background(), owner, etl.StageGate, func(b *ledger.Batch) {
			if b.Binding == nil {
				v := bound
				b.Binding = &v
			}
			b.Records = 6
		})
	case atSettle:
		r.batch, err = l.Settle(context.Background(), owner, balanced)
	case atFail:
		err = l.RecordFailure(context.Background(), batch.String(), &batch, execID(i), failure(fmt.Sprint(execID(i), "@", e.redrive)))
	}
	if r.next = s.next; s.next == nil && err != nil {
		r.kind = etl.KindOf(err)
	}
	x.results[key] = r
	return r
}

// add notes a state that is new. Steps that have all their replies are finished first: nobody else can tell when. What
// cannot matter any more is forgotten, so that states which differ in nothing else are one.
func (x *explorer) add(w worldState) {
	for i, e := range w.execs {
		for ; e.step != atEnd; e = w.execs[i] {
			r := x.run(i, e)
			if r.next != nil {
				break
			}
			w = x.finish(w, i, r)
		}
		if e.step == atEnd && (w.redrives == 0 || e.failed == 0) {
			w.execs[i], w.failures[i] = execState{step: atEnd, ended: true}, 0
		}
	}
	if w.stale == 0 {
		w.before = 0
	}
	if !x.seen[w] {
		x.seen[w] = true
		x.todo = append(x.todo, w)
	}
}

// moves adds every state that one move leads to.
func (x *explorer) moves(w worldState) {
	over := true
	for i, e := range w.execs {
		if e.step == atEnd {
			if e.failed > 0 && w.redrives > 0 {
				// A redrive, at the stage that failed.
				n := w
				n.redrives--
				n.execs[i] = execState{step: e.failed - 1, fence: e.fence, redrive: e.redrive + 1}
				x.add(n)
			}
			continue
		}
		over = false
		x.step(w, i)
		if w.deaths > 0 && !e.ended {
			dead, ghost := w, w
			dead.deaths, ghost.deaths = w.deaths-1, w.deaths-1
			dead.execs[i] = execState{step: atEnd, fence: e.fence, ended: true, failed: failedStep(e) + 1, redrive: e.redrive}
			ghost.execs[i].ended = true
			x.add(dead)
			x.add(ghost)
		}
	}
	if over {
		x.ends++
	}
	x.heal(w.batch)
}

// failedStep is where a redrive goes back to.
func failedStep(e execState) int8 {
	if e.step == atFail {
		return max(e.failed-1, atClaim)
	}
	return e.step
}

// step adds what becomes of an execution's next call.
func (x *explorer) step(w worldState, i int) {
	e := w.execs[i]
	r := x.run(i, e)
	answer := func(w worldState, rep reply) {
		tr := trace{e.replies, rep}
		id, known := x.ids[tr]
		if !known {
			id = int32(len(x.traces))
			x.traces, x.ids[tr] = append(x.traces, tr), id
		}
		w.execs[i].replies = id
		x.add(w)
	}
	c := r.next
	refused := w
	refused.faults--
	if w.faults > 0 {
		answer(refused, reply{err: true})
	}
	slot := &w.batch
	if c.key.SK != etl.BatchSK {
		slot = &w.failures[i]
	}
	switch c.op {
	case "alive":
		other := slices.Index([]string{execID(0), execID(1), execID(2)}, c.of)
		live := ledger.Running
		if w.execs[other].ended {
			live = ledger.Ended
			w.execs[i].found = int8(other + 1)
		}
		answer(w, reply{live: live})
	case "get":
		answer(w, reply{doc: *slot})
		if w.stale > 0 && slot == &w.batch && w.before != w.batch {
			w.stale--
			answer(w, reply{doc: w.before})
		}
	case "put":
		var old *store.Item
		if doc := x.docs.texts[*slot]; doc != "" {
			old = &store.Item{Key: c.key, Doc: []byte(doc)}
		}
		if !c.cond.Holds(old) {
			answer(w, reply{no: true, doc: *slot})
			return
		}
		now := x.docs.id(c.doc)
		if slot == &w.batch {
			x.judge(w, i, now)
			w.before = w.batch
		}
		*slot = now
		answer(w, reply{})
		if w.faults > 0 {
			w.faults--
			answer(w, reply{err: true}) // written, the reply lost
		}
	}
}

// finish moves an execution on behind a finished step.
func (x *explorer) finish(w worldState, i int, r result) worldState {
	e := w.execs[i]
	n := execState{step: e.step + 1, fence: e.fence, ended: e.ended, redrive: e.redrive, failed: e.failed}
	end := func() { n.step, n.ended, n.failed = atEnd, true, 0 }
	switch {
	case r.kind == etl.StoreUnavailable && e.errors == 0: // Step Functions tries again
		n.step, n.errors = e.step, 1
	case r.kind != "" && e.step == atFail:
		end()
		n.failed = e.failed
	case r.kind != "":
		unbound := x.stale && e.step == atSettle && r.kind == etl.Internal // a stale read did not show the binding yet
		if !unbound && !slices.Contains([]etl.Kind{etl.StoreUnavailable, etl.Superseded}, r.kind) {
			x.t.Fatalf("step %d of %s ends in %s", e.step, execID(i), r.kind)
		}
		n.step, n.failed = atFail, e.step+1
	case e.step == atClaim && r.status != "":
		end()
	case e.step == atClaim:
		if r.batch.Owner != execID(i) || r.batch.State != ledger.StateRunning {
			x.t.Fatalf("%s claimed %s", execID(i), show(r.batch))
		}
		n.fence = int8(r.fence)
	case e.step == atSettle:
		x.settled++
		if r.batch.State != ledger.StateCompleted || r.batch.Owner != execID(i) || r.batch.Fence != int(e.fence) {
			x.t.Fatalf("%s settled %s", execID(i), show(r.batch))
		}
		end()
	case e.step == atFail:
		end()
		n.failed = e.failed
	}
	w.execs[i] = n
	return w
}

func (x *explorer) decode(id int32) (b ledger.Batch) {
	if doc := x.docs.texts[id]; doc != "" {
		if err := json.Unmarshal([]byte(doc), &b); err != nil {
			x.t.Fatal(err)
		}
	}
	return b
}

// judge holds a write of the batch item against the rules.
func (x *explorer) judge(w worldState, i int, now int32) {
	e := w.execs[i]
	key := [5]int32{w.batch, now, int32(i), int32(e.step)<<8 | int32(e.fence), int32(e.found)}
	if x.judged[key] {
		return
	}
	x.judged[key] = true
	x.writes++
	a, b := x.decode(w.batch), x.decode(now)
	bad := func(what string) {
		x.t.Fatalf("step %d of %s: %s\nbefore %s\nafter  %s", e.step, execID(i), what, show(a), show(b))
	}
	if !slices.ContainsFunc(ledger.Moves(), func(l ledger.Legal) bool { return l.From == a.State && l.To == b.State }) {
		bad("no move leads there")
	}
	if b.Owner != execID(i) || b.Write != a.Write+1 {
		bad("the writer is not the owner, or a write is missed")
	}
	if e.step != atClaim && a.Owner != execID(i) || (e.step == atBind || e.step == atSettle) && a.Fence != int(e.fence) {
		bad("a superseded execution wrote")
	}
	if (a.Owner == b.Owner) != (a.Fence == b.Fence) || b.Fence-a.Fence > 1 || b.Fence < a.Fence {
		bad("the fence does not rise with the owner alone")
	}
	open := a.State == ledger.StateRunning || a.State == ledger.StateFailed
	if open && a.Owner != b.Owner && (e.found == 0 || execID(int(e.found-1)) != a.Owner) {
		bad("the owner was not found ended")
	}
	if a.State == ledger.StateCompleted && b.Load <= a.Load || b.Load < a.Load {
		bad("a completed load was opened again") // hence no load is settled twice
	}
}

// heal lets a fresh execution have the batch once all others have ended: it completes it.
func (x *explorer) heal(item int32) {
	if x.healed[item] {
		return
	}
	x.healed[item] = true
	f := newFixture()
	f.table = mem.NewTable(ledger.Schema())
	f.Table = f.table
	if doc := x.docs.texts[item]; doc != "" {
		if err := f.table.PutIf(x.t.Context(), store.Item{Key: store.Key{PK: batch.String(), SK: etl.BatchSK}, Doc: []byte(doc)}, store.Condition{}); err != nil {
			x.t.Fatal(err)
		}
	}
	for i := range explorers {
		f.live[execID(i)] = ledger.Ended
	}
	c, err := f.Claim(x.t.Context(), f.request("heir"))
	if err == nil && c.Status == etl.StatusDone && c.Batch.State == ledger.StateCompleted {
		return
	}
	if err != nil || c.Status != "" {
		x.t.Fatalf("stuck: claim says %q, %v: %s", c.Status, err, show(x.decode(item)))
	}
	f.bind(x.t, c.Owner)
	if _, err := f.Settle(x.t.Context(), c.Owner, balanced); err != nil {
		x.t.Fatalf("stuck: %v: %s", err, show(x.decode(item)))
	}
}

// TestExplore visits every state that three executions can reach: claiming, binding, settling, failing and being redriven
// in any interleaving of their calls, with calls refused, replies lost, stale reads, executions that die between any two
// calls, and ghosts that go on after they were taken for dead. No two owners settle one load, a superseded one changes
// nothing, and from every state a fresh execution can complete the batch. R20, R21, B6
func TestExplore(t *testing.T) {
	for _, budget := range []worldState{
		{faults: 1, deaths: 1},
		{faults: 2},
		{faults: 1, redrives: 1},
		{deaths: 2},
		{deaths: 1, redrives: 1},
		{faults: 1, stale: 1},
		{deaths: 1, stale: 1},
	} {
		name := fmt.Sprintf("%d faults, %d deaths, %d stale reads, %d redrives", budget.faults, budget.deaths, budget.stale, budget.redrives)
		t.Run(name, func(t *testing.T) {
			x := &explorer{t: t, stale: budget.stale > 0, docs: interned{map[string]int32{"": 0}, []string{""}},
				traces: make([]trace, 1), ids: map[trace]int32{}, results: map[[5]int32]result{},
				judged: map[[5]int32]bool{}, healed: map[int32]bool{}, seen: map[worldState]bool{}}
			x.add(budget)
			for len(x.todo) > 0 {
				w := x.todo[len(x.todo)-1]
				x.todo = x.todo[:len(x.todo)-1]
				x.moves(w)
			}
			t.Logf("%d states, %d of them ends; %d different writes, %d batch items", len(x.seen), x.ends, x.writes, len(x.healed))
			if x.settled == 0 || x.ends == 0 {
				t.Error("nothing happened")
			}
		})
	}
}
