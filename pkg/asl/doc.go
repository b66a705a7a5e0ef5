// Package asl runs a state machine of the Amazon States Language in process, the way Step Functions runs a STANDARD
// execution: history, Retry, Catch, Wait, inline Map, the payload and history quotas, and redrive.
//
// It knows just what the machine of this project uses, in JSONPath: Pass (Parameters or Result), Task (Parameters,
// ResultPath, Retry, Catch), Choice (Variable and StringEquals), Wait (TimestampPath), Map (ItemsPath, ItemSelector,
// MaxConcurrency, an INLINE ItemProcessor, Catch) and Succeed; paths are names after `$` or `$$`. [Parse] refuses
// everything else with its place, so a definition that parses here runs here as it runs there.
//
// # History
//
// Each event is handed to [Options.Record] before the execution goes on; one that cannot be recorded ends the run with
// an error. A state that was entered and not exited is where [Machine.Redrive] goes on, whether its execution failed,
// was aborted, timed out, or stopped in mid-history because its process was killed:
//
//   - results of exited states are kept, and a state whose error was caught has exited;
//   - Task is scheduled again with the same input, its retry counters at zero and a fresh `$$.State.EnteredTime`;
//   - Choice is evaluated again, Wait goes on at once when its time has passed, Pass is exited with its result;
//   - Map runs just the iterations that did not succeed, each from its own state that was entered and not exited; all
//     of them when the cause was States.DataLimitExceeded;
//   - the time limit of the machine starts anew, and an execution that succeeded is refused.
//
// As on Step Functions, the state gone on with is not entered a second time in the history.
//
// # Differences
//
// A Task's function runs in process, so a Task has no time limit of its own, and the machine's is looked at between
// calls and during waits: a call under way is not cut short. `$$` times carry nanoseconds and never repeat within one
// execution. A redrive has no last day.
package asl
