package asl

import (
	"encoding/json"
	"time"
)

// The types of events.
const (
	ExecutionStarted   = "ExecutionStarted"
	ExecutionSucceeded = "ExecutionSucceeded"
	ExecutionFailed    = "ExecutionFailed"
	ExecutionAborted   = "ExecutionAborted"
	ExecutionTimedOut  = "ExecutionTimedOut"
	ExecutionRedriven  = "ExecutionRedriven"

	PassStateEntered    = "PassStateEntered"
	PassStateExited     = "PassStateExited"
	TaskStateEntered    = "TaskStateEntered"
	TaskStateExited     = "TaskStateExited"
	ChoiceStateEntered  = "ChoiceStateEntered"
	ChoiceStateExited   = "ChoiceStateExited"
	WaitStateEntered    = "WaitStateEntered"
	WaitStateExited     = "WaitStateExited"
	SucceedStateEntered = "SucceedStateEntered"
	SucceedStateExited  = "SucceedStateExited"
	MapStateEntered     = "MapStateEntered"
	MapStateExited      = "MapStateExited"

	TaskScheduled = "TaskScheduled" // Input: what the function gets; Attempt from 1
	TaskSucceeded = "TaskSucceeded" // Output: what it returned
	TaskFailed    = "TaskFailed"    // one try failed; a retry, a Catch or the end follows

	MapStateSucceeded     = "MapStateSucceeded"
	MapStateFailed        = "MapStateFailed"
	MapIterationStarted   = "MapIterationStarted"
	MapIterationSucceeded = "MapIterationSucceeded" // Output: the iteration's
	MapIterationFailed    = "MapIterationFailed"
	MapIterationAborted   = "MapIterationAborted"
)

// Event is one line of an execution's history.
type Event struct {
	ID      int64           `json:"id"`              // from 1, without a gap
	Time    time.Time       `json:"time"`            // strictly rising
	Type    string          `json:"type"`            // one of the constants above
	State   string          `json:"state,omitempty"` // the state it speaks of; of an Execution… event: where the execution ended
	Path    string          `json:"path,omitempty"`  // the Map iteration it happened in, `Transform/3`; empty outside of Maps
	Input   json.RawMessage `json:"input,omitempty"`
	Output  json.RawMessage `json:"output,omitempty"`
	Error   string          `json:"error,omitempty"`
	Cause   string          `json:"cause,omitempty"`
	Attempt int             `json:"attempt,omitempty"` // of a Task… event: the try, from 1
}

// The quotas of Step Functions.
const (
	// PayloadLimit bounds the input and output of an execution, a state and a task, in bytes of JSON.
	PayloadLimit = 262144
	// HistoryLimit is the number of events at which an execution fails.
	HistoryLimit = 25000
)

// weight is how many events Step Functions writes where this package records one: a try of a task has one more there
// (started), and so has a Map.
func weight(eventType string) int {
	switch eventType {
	case TaskScheduled, MapStateEntered:
		return 2
	}
	return 1
}

// The error names of Step Functions itself that this package raises or treats apart.
const (
	errAll           = "States.ALL"
	errTaskFailed    = "States.TaskFailed"
	errTimeout       = "States.Timeout"
	errRuntime       = "States.Runtime"
	errDataLimit     = "States.DataLimitExceeded"
	errParameterPath = "States.ParameterPathFailure"
	errResultPath    = "States.ResultPathMatchFailure"
	errNoChoice      = "States.NoChoiceMatched"
	errLambdaUnknown = "Lambda.Unknown"
)

// Error is how a task, a state and an execution fail: the name that Retry and Catch match, and a text.
type Error struct{ Name, Cause string }

func (e *Error) Error() string {
	if e.Cause == "" {
		return e.Name
	}
	return e.Name + ": " + e.Cause
}
