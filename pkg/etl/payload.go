package etl

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// The payloads of the state machine: ids, ranges and counts, never data. Each input is decoded strictly by [Decode].

// Stage is one of the five steps of a batch.
type Stage string

// The stages in their order.
const (
	StageExtract   Stage = "extract"
	StageTransform Stage = "transform"
	StageGate      Stage = "gate"
	StageLoad      Stage = "load"
	StageSettle    Stage = "settle"
)

// Request starts an execution. Exactly one of ScheduledTime and Slot is set; at most one of Reload, Reprocess, Refetch.
type Request struct {
	Pipeline      string `json:"pipeline"`
	ScheduledTime string `json:"scheduled_time,omitempty"` // from the scheduler; the slot follows from it
	Slot          string `json:"slot,omitempty"`           // from a person; RFC 3339
	Reload        bool   `json:"reload,omitempty"`         // load a completed batch's bound objects once more
	Reprocess     bool   `json:"reprocess,omitempty"`      // the landed snapshot under a newer revision
	Refetch       bool   `json:"refetch,omitempty"`        // a new extraction, under the file's window
}

// Batch finds the request's batch by the pipeline's schedule.
func (r Request) Batch(s Schedule) (Batch, error) {
	if !ValidPipeline(r.Pipeline) {
		return Batch{}, Errorf(Usage, "request: %q is not a pipeline name", r.Pipeline)
	}
	if (r.ScheduledTime == "") == (r.Slot == "") {
		return Batch{}, Errorf(Usage, "request for %s: give scheduled_time or slot, one of the two", r.Pipeline)
	}
	if r.Reload && r.Reprocess || r.Reload && r.Refetch || r.Reprocess && r.Refetch {
		return Batch{}, Errorf(Usage, "request for %s: give at most one of reload, reprocess and refetch", r.Pipeline)
	}
	var slot time.Time
	if r.Slot != "" {
		t, err := ParseTime(r.Slot)
		if err != nil {
			return Batch{}, fmt.Errorf("request for %s: slot: %w", r.Pipeline, err)
		}
		slot = t
	} else {
		t, err := ParseTime(r.ScheduledTime)
		if err != nil {
			return Batch{}, fmt.Errorf("request for %s: scheduled_time: %w", r.Pipeline, err)
		}
		slot = s.Slot(t)
	}
	if err := s.CheckSlot(slot); err != nil {
		return Batch{}, fmt.Errorf("request for %s: %w", r.Pipeline, err)
	}
	return Batch{Pipeline: r.Pipeline, Slot: slot}, nil
}

// Status is what a stage tells the state machine to do next.
type Status string

// The statuses. Not every stage returns every one.
const (
	StatusMore      Status = "more"      // call me again: there is work left and too little time
	StatusWait      Status = "wait"      // call me again at resume_at
	StatusBusy      Status = "busy"      // another live execution owns the batch
	StatusDone      Status = "done"      // the batch is completed already; or: this range is finished
	StatusLanded    Status = "landed"    // every page is in the raw bucket, under a manifest
	StatusPassed    Status = "passed"    // Gate lets the batch load
	StatusStale     Status = "stale"     // Gate wants the parts transformed again under the file's contract
	StatusCompleted Status = "completed" // the ledger says COMPLETED
	StatusRecorded  Status = "recorded"  // the failure is in the ledger
	StatusRaised    Status = "raised"    // the failure was raised before: go back to the stage
)

// Range is a run of parts, both ends included.
type Range struct {
	First int `json:"first"`
	Last  int `json:"last"`
}

// MaxRanges bounds the iterations of a Map: an execution's history holds 25,000 events.
const MaxRanges = 200

// Ranges splits parts 0 to n−1 into at most [MaxRanges] even runs.
func Ranges(n int) []Range {
	if n <= 0 {
		return []Range{}
	}
	k := min(n, MaxRanges)
	out := make([]Range, k)
	for i := range out {
		out[i] = Range{First: i * n / k, Last: (i+1)*n/k - 1}
	}
	return out
}

// ExtractInput calls Extract. Progress is what the last call of this execution returned, zero at first.
type ExtractInput struct {
	Execution string   `json:"execution"`
	Request   Request  `json:"request"`
	Progress  Progress `json:"progress"`
}

// Progress is what Extract returns and gets back.
type Progress struct {
	Status     Status  `json:"status"`               // more, wait, busy, done, landed
	Batch      string  `json:"batch"`                // id
	Fence      int     `json:"fence"`                // of the claim
	Extraction int     `json:"extraction"`           // current extraction, from 1
	Ranges     []Range `json:"ranges"`               // with landed: what Transform has to do; empty for a reload
	ResumeAt   string  `json:"resume_at,omitempty"`  // with wait: RFC 3339 UTC
	Attempts   int     `json:"attempts"`             // tries of the request that is under way
	Idle       int     `json:"idle"`                 // calls in a row that landed nothing
	Calls      int     `json:"calls"`                // of this execution so far
	Restarts   int     `json:"restarts"`             // extractions given up because their cursor expired
	Retries    int     `json:"retries"`              // of this batch since it was opened
	WaitedMS   int64   `json:"waited_ms"`            // likewise, inline and in Wait states
	WaitBegan  string  `json:"wait_began,omitempty"` // when the first wait for this request began, RFC 3339 UTC
}

// RangeInput calls Transform for a run of parts.
type RangeInput struct {
	Execution  string `json:"execution"`
	Batch      string `json:"batch"`
	Fence      int    `json:"fence"`
	Extraction int    `json:"extraction"`
	Range      Range  `json:"range"`
}

// RangeOutput says whether the run is finished, or what is left of it.
type RangeOutput struct {
	Status Status `json:"status"` // more, done
	Range  Range  `json:"range"`
}

// GateInput calls Gate. Stale counts how often it answered so before.
type GateInput struct {
	Execution  string `json:"execution"`
	Batch      string `json:"batch"`
	Fence      int    `json:"fence"`
	Extraction int    `json:"extraction"`
	Stale      int    `json:"stale"`
}

// GateOutput carries what the batch is bound to.
type GateOutput struct {
	Status  Status  `json:"status"` // passed, stale
	Stale   int     `json:"stale"`
	Binding Binding `json:"binding"`
	Load    int     `json:"load"`   // number of this load, from 1
	Ranges  []Range `json:"ranges"` // what Load has to do
}

// LoadInput calls Load for a run of parts, from a row of its first part on.
type LoadInput struct {
	Execution string       `json:"execution"`
	Batch     string       `json:"batch"`
	Fence     int          `json:"fence"`
	Binding   Binding      `json:"binding"`
	Load      int          `json:"load"`
	Position  LoadPosition `json:"position"`
}

// LoadPosition is where a load stands: rows before Row of part Range.First are in the table and counted in Counts.
type LoadPosition struct {
	Range  Range      `json:"range"`
	Row    int        `json:"row"`
	Counts LoadCounts `json:"counts"`
	// Conflicts are rows of that part whose version another content has too, in the part or in the table.
	Conflicts int64 `json:"conflicts,omitempty"`
}

// LoadOutput says whether the run is finished, or what is left of it.
type LoadOutput struct {
	Status   Status       `json:"status"` // more, done
	Position LoadPosition `json:"position"`
}

// LoadCounts says what became of valid records. Each record is in exactly one of the five.
type LoadCounts struct {
	New       int64 `json:"new"`       // written: the key was absent
	Updated   int64 `json:"updated"`   // written: the row had a lower rank
	Unchanged int64 `json:"unchanged"` // the row has this very rank
	Stale     int64 `json:"stale"`     // the row has a higher rank
	Duplicate int64 `json:"duplicate"` // not the highest rank of its key within its part
}

// Total is the number of records the counts speak of.
func (c LoadCounts) Total() int64 { return c.New + c.Updated + c.Unchanged + c.Stale + c.Duplicate }

// Add sums two counts.
func (c LoadCounts) Add(o LoadCounts) LoadCounts {
	return LoadCounts{c.New + o.New, c.Updated + o.Updated, c.Unchanged + o.Unchanged, c.Stale + o.Stale, c.Duplicate + o.Duplicate}
}

// Counts is a batch's balance. Records = Valid + Quarantined, and once loaded Valid = the total of the load counts.
type Counts struct {
	Pages       int64 `json:"pages"`
	Records     int64 `json:"records"`
	Valid       int64 `json:"valid"`
	Quarantined int64 `json:"quarantined"`
	Written     int64 `json:"written"` // New + Updated
	LoadCounts
}

// SettleInput calls Settle at the end of the good way.
type SettleInput struct {
	Op        string  `json:"op"` // "settle"
	Execution string  `json:"execution"`
	Batch     string  `json:"batch"`
	Fence     int     `json:"fence"`
	Binding   Binding `json:"binding"`
	Load      int     `json:"load"`
}

// SettleOutput is the batch's end.
type SettleOutput struct {
	Status Status `json:"status"` // completed
	Counts Counts `json:"counts"`
}

// The operations of the settle function, the value of `op`.
const (
	OpSettle        = "settle"
	OpRecordFailure = "record_failure"
	OpRaise         = "raise"
)

// RecordFailureInput is what a Catch hands on.
type RecordFailureInput struct {
	Op        string     `json:"op"` // "record_failure"
	Execution string     `json:"execution"`
	Entered   string     `json:"entered"` // when the state was entered: with Execution the failure's id
	Request   Request    `json:"request"`
	Stage     Stage      `json:"stage"`
	Error     StateError `json:"error"`
}

// StateError is what Step Functions gives a Catch.
type StateError struct {
	Error string `json:"Error"`
	Cause string `json:"Cause"`
}

// Failure is a recorded failure as it travels on to Raise, with all that Raise needs when the ledger cannot be reached.
type Failure struct {
	Status  Status `json:"status"` // recorded
	PK      string `json:"pk"`     // where it is recorded
	ID      string `json:"id"`
	Stage   Stage  `json:"stage"`
	Kind    Kind   `json:"kind"`
	Message string `json:"message"` // at most MaxMessage bytes
}

// MaxMessage bounds a failure's message in payloads and ledger items, in bytes.
const MaxMessage = 2048

// FailureID identifies one entry into RecordFailure.
func FailureID(execution, entered string) string { return execution + "@" + entered }

// RaiseInput calls Raise.
type RaiseInput struct {
	Op        string  `json:"op"` // "raise"
	Execution string  `json:"execution"`
	Failure   Failure `json:"failure"`
}

// RaiseOutput is returned when the failure was raised before: a redrive is under way.
type RaiseOutput struct {
	Status Status `json:"status"` // raised
}

// FunctionError is how a function's failure reads on Lambda: the Cause of Step Functions is this as JSON.
type FunctionError struct {
	Message string `json:"errorMessage"`
	Type    string `json:"errorType"`
}

// CauseMessage is the text of a Cause for people: the message of a [FunctionError], else the Cause as it is.
func CauseMessage(cause string) string {
	var fe FunctionError
	if json.Unmarshal([]byte(cause), &fe) == nil && fe.Message != "" {
		return fe.Message
	}
	return cause
}

// Decode reads one payload strictly: anything but one JSON object of known fields is an error of kind [Usage].
func Decode[T any](data []byte) (T, error) {
	var v T
	if !bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{")) {
		return v, Errorf(Usage, "payload %T: want a JSON object", v)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		return v, Errorf(Usage, "payload %T: %w", v, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return v, Errorf(Usage, "payload %T: text after the value", v)
	}
	return v, nil
}

// FormatTime is how payloads and ledger items write an instant: RFC 3339 in UTC, nanoseconds without trailing zeros.
func FormatTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
