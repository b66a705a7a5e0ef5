package ledger

import "github.com/onceload/onceload/pkg/etl"

// State is where a batch stands.
type State string

// The states. An open batch is one that is not COMPLETED.
const (
	StateAbsent    State = "" // no batch item: never claimed
	StateRunning   State = "RUNNING"
	StateFailed    State = "FAILED"
	StateCompleted State = "COMPLETED"
)

// Move is a reason to write the batch item.
type Move string

// The moves.
const (
	MoveClaim    Move = "claim"    // the first claim of all
	MoveTakeover Move = "takeover" // another execution claims the open batch of a dead one
	MoveResume   Move = "resume"   // the owner claims its failed batch again: a redrive
	MoveReopen   Move = "reopen"   // reload, reprocess or refetch of a completed batch
	MoveWork     Move = "work"     // the owner notes progress
	MoveFail     Move = "fail"     // a failure of the owner is recorded
	MoveSettle   Move = "settle"   // the owner's last write
)

// Legal is one row of the table of moves.
type Legal struct {
	Move Move
	From State
	To   State
}

// Moves returns the table of legal moves, the one in the package comment.
func Moves() []Legal {
	return []Legal{
		{MoveClaim, StateAbsent, StateRunning},
		{MoveTakeover, StateRunning, StateRunning},
		{MoveTakeover, StateFailed, StateRunning},
		{MoveResume, StateFailed, StateRunning},
		{MoveReopen, StateCompleted, StateRunning},
		{MoveWork, StateRunning, StateRunning},
		{MoveWork, StateFailed, StateRunning},
		{MoveFail, StateRunning, StateFailed},
		{MoveFail, StateFailed, StateFailed},
		{MoveSettle, StateRunning, StateCompleted},
		{MoveSettle, StateFailed, StateCompleted},
	}
}

// Next is the state that the move leads to; an illegal move is an error of kind Internal.
func (s State) Next(m Move) (State, error) {
	for _, row := range Moves() {
		if row.Move == m && row.From == s {
			return row.To, nil
		}
	}
	return s, etl.Errorf(etl.Internal, "ledger: illegal move %q from state %q", m, s)
}
