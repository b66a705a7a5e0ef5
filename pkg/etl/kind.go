package etl

import (
	"context"
	"errors"
	"fmt"
)

// Kind names what went wrong. The list is closed: a kind is the error name Step Functions matches, the `failure.kind` of
// the JSON output, and the row of the README's table.
type Kind string

// The kinds. What each means stands in the table of [Kinds].
const (
	SourceUnavailable  Kind = "SourceUnavailable"
	SourceThrottled    Kind = "SourceThrottled"
	SourceRejected     Kind = "SourceRejected"
	SourceMalformed    Kind = "SourceMalformed"
	SourceLoops        Kind = "SourceLoops"
	CursorExpired      Kind = "CursorExpired"
	WindowChanged      Kind = "WindowChanged"
	ContractInvalid    Kind = "ContractInvalid"
	ContractChanged    Kind = "ContractChanged"
	QuarantineExceeded Kind = "QuarantineExceeded"
	CheckFailed        Kind = "CheckFailed"
	BatchTooLarge      Kind = "BatchTooLarge"
	StoreUnavailable   Kind = "StoreUnavailable"
	StoreThrottled     Kind = "StoreThrottled"
	RecordsLost        Kind = "RecordsLost"
	Superseded         Kind = "Superseded"
	StageTimedOut      Kind = "StageTimedOut"
	StageCrashed       Kind = "StageCrashed"
	Busy               Kind = "Busy"
	Interrupted        Kind = "Interrupted"
	Usage              Kind = "Usage"
	Internal           Kind = "Internal"
)

// KindInfo is a kind's row in the table.
type KindInfo struct {
	Kind      Kind
	Transient bool   // the same call may succeed later without anyone doing anything
	Exit      int    // exit code of `onceload`
	Meaning   string // what happened, one sentence
	Hint      string // what an operator does about it
}

// Kinds returns the table in the order of the documentation.
func Kinds() []KindInfo {
	return []KindInfo{
		{SourceUnavailable, true, 4, "The source could not be reached, timed out, or answered 408, 425 or 5xx on every attempt.", "Wait until the source is back, then redrive; pages that landed are kept."},
		{SourceThrottled, true, 4, "The source kept answering 429, or asked for a wait longer than source.retry.max_wait.", "Where the message names a time, wait for it or raise source.retry.max_wait; else lower source.budget.rate; then redrive."},
		{SourceRejected, false, 1, "The source refused the request (a 4xx, bad credentials, or a redirect to a host that is not allowed).", "Fix the URL, query or secret the message names, then redrive."},
		{SourceMalformed, false, 1, "The source answered 200 with something that is not the declared JSON on every attempt.", "Look at the kept body under _rejected/; fix source.records or talk to the provider, then redrive."},
		{SourceLoops, false, 1, "Paging came back to a request already made without a new record, gave the same two or more records on two pages in a row, or passed its limit of pages.", "Check source.paginate against the provider's documentation, the names of its parameters above all, then redrive."},
		{CursorExpired, false, 1, "The source refused its own cursor again after fresh extractions.", "Use shorter slots, so that a whole extraction fits into a cursor's life, then redrive."},
		{WindowChanged, false, 2, "The pipeline file now gives this batch another window than the one its extraction stored.", "Restore every and lookback, or take the file's window with onceload reprocess <batch> --refetch."},
		{ContractInvalid, false, 2, "The pipeline file cannot be used.", "Run onceload check on the file; every fault is listed with line and column."},
		{ContractChanged, false, 2, "The contract differs from the one already loaded under this revision number.", "Raise contract.revision (and contract.epoch where the message says so), then redrive."},
		{QuarantineExceeded, false, 3, "Too many records were quarantined; nothing was loaded.", "Read the reasons in the message and the quarantine objects, fix the contract or the source, then redrive."},
		{CheckFailed, false, 1, "A declared check (checks: in the pipeline file) did not hold; nothing was loaded.", "Compare the batch with the source; adjust the check if the data is right, then redrive."},
		{BatchTooLarge, false, 1, "The batch or one of its pages passes a hard limit (parts, bytes, or rows of an atomic load).", "Do what the message says if it names a key of the pipeline file, then redrive; else use shorter slots (every) and run those."},
		{StoreUnavailable, true, 1, "Object store, table or disk failed.", "Check the store named in the message (network, permissions, disk space), then redrive."},
		{StoreThrottled, true, 1, "The table kept refusing writes for lack of capacity.", "Raise the table's capacity or spread its keys, then redrive."},
		{RecordsLost, false, 1, "The books do not balance: records are missing between two stages, or a checksum differs.", "Do not edit objects by hand; fetch the batch anew with onceload reprocess <batch> --refetch, and report this with the batch id."},
		{Superseded, false, 1, "Another execution took this batch over; this one changed nothing more.", "Nothing: look at the batch's current owner with onceload show."},
		{StageTimedOut, true, 1, "A function ran into its time limit.", "Redrive; if it happens again give the function more time or memory."},
		{StageCrashed, true, 1, "A function ended without an answer (crash, out of memory, or killed).", "Read the function's log, give it more memory if it was killed, then redrive."},
		{Busy, false, 5, "Another run owns this batch and is still alive.", "Wait for it to end, or stop it; then run again."},
		{Interrupted, false, 130, "The run was interrupted.", "Run the same command again: it goes on where it stopped."},
		{Usage, false, 2, "The command or its input cannot be understood.", "See onceload help."},
		{Internal, false, 1, "A fault in onceload itself.", "Report it with the message; a redrive does no harm."},
	}
}

// Info is the kind's row; a kind outside the list has the row of [Internal].
func (k Kind) Info() KindInfo {
	var internal KindInfo
	for _, i := range Kinds() {
		if i.Kind == k {
			return i
		}
		if i.Kind == Internal {
			internal = i
		}
	}
	return internal
}

// Known reports whether the kind is one of the list.
func (k Kind) Known() bool { return k.Info().Kind == k }

// Error is a classified error. Make one with [Errorf] where the fault is born; wrap it with fmt.Errorf on the way up.
type Error struct {
	Kind Kind
	Err  error
}

// Error is the cause's text: the kind travels beside it.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf is fmt.Errorf with a kind.
func Errorf(kind Kind, format string, args ...any) error {
	return &Error{Kind: kind, Err: fmt.Errorf(format, args...)}
}

// KindOf classifies any error: the outermost [Error] decides; else an interruption or a passed deadline; else [Internal].
func KindOf(err error) Kind {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e.Kind
	case errors.Is(err, context.Canceled):
		return Interrupted
	case errors.Is(err, context.DeadlineExceeded):
		return StageTimedOut
	}
	return Internal
}
