// Package ledger keeps the books of every batch: who owns it, how far it is, what became of each part, and how it failed.
// It stands on one [store.Table] and on conditional writes alone.
//
// # The batch item
//
// A batch has one item. Every write of it is conditional on the owner, the fence and the write counter that were read
// before, so a late finisher changes nothing (B6): it gets etl.Superseded. [Ledger.Claim] decides who owns the batch and
// raises the fence whenever the owner changes; [Ledger.Update] and [Ledger.Settle] work under that owner and fence.
// These are all the moves there are; anything else is an error of kind Internal:
//
//	move      from       to
//	claim     -          RUNNING
//	takeover  RUNNING    RUNNING
//	takeover  FAILED     RUNNING
//	resume    FAILED     RUNNING
//	reopen    COMPLETED  RUNNING
//	work      RUNNING    RUNNING
//	work      FAILED     RUNNING
//	fail      RUNNING    FAILED
//	fail      FAILED     FAILED
//	settle    RUNNING    COMPLETED
//	settle    FAILED     COMPLETED
//
// A write whose reply was lost is harmless: sent again by the client under the store, it finds its own content in its way
// and counts as done; called again, the method finds nothing left to change.
//
// # Facts
//
// Part records (transform and load) and bound revisions are immutable: put if absent, unfenced, the first finisher wins
// and everyone reads what it wrote. Failures are recorded once an id.
package ledger
