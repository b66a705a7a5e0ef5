package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// TransformRecord is what Transform made of one part. It is a function of the part and the contract.
type TransformRecord struct {
	Part             int              `json:"part"`
	Pages            int              `json:"pages"`
	RawSHA256        string           `json:"raw_sha256"`           // of the landed part it was made from, as the manifest has it
	Records          int64            `json:"records"`              // Valid + Quarantined
	RecordsAt        string           `json:"records_at,omitempty"` // where the pages were taken to hold them, as pipeline.Contract has it
	Valid            int64            `json:"valid"`
	Quarantined      int64            `json:"quarantined"`
	Codes            map[string]int64 `json:"codes,omitempty"`       // records by code of contract.Codes, all of them; one counts once under each of its codes
	Reasons          []ReasonCount    `json:"reasons,omitempty"`     // the 20 most frequent
	Examples         []Place          `json:"examples,omitempty"`    // of quarantined records, at most 3
	Drift            []DriftCount     `json:"drift,omitempty"`       // the 20 members that drift most; all are in the drift object
	MaxVersion       string           `json:"max_version,omitempty"` // highest encoded version of a valid record
	ValidBytes       int64            `json:"valid_bytes"`           // uncompressed, as the digests
	ValidSHA256      string           `json:"valid_sha256"`          // hex
	KeysSHA256       string           `json:"keys_sha256"`           // of the key object
	QuarantineBytes  int64            `json:"quarantine_bytes"`
	QuarantineSHA256 string           `json:"quarantine_sha256"`
}

// Holds reports whether records of the part were quarantined, under the code if one is given.
func (r TransformRecord) Holds(code string) bool {
	switch {
	case r.Quarantined == 0 || code == "":
		return r.Quarantined > 0
	case len(r.Codes) > 0:
		return r.Codes[code] > 0
	}
	// A record from before codes were counted.
	return slices.ContainsFunc(r.Reasons, func(c ReasonCount) bool { return c.Code == code })
}

// ReasonCount is how many records were quarantined for a reason.
type ReasonCount struct {
	Field string `json:"field"`
	Code  string `json:"code"`
	Count int64  `json:"count"`
}

// DriftCount is how many records had a member that the contract does not declare, or had a declared one not, as null, or
// as another JSON type than its own.
type DriftCount struct {
	Path    string `json:"path"`
	New     int64  `json:"new,omitempty"`
	Missing int64  `json:"missing,omitempty"`
	Null    int64  `json:"null,omitempty"`
	Retyped int64  `json:"retyped,omitempty"`
}

// Place is where a record stands in its extraction: part, page within the part, index within the page, from 0.
type Place struct {
	Part  int `json:"part"`
	Page  int `json:"page"`
	Index int `json:"index"`
}

// LoadRecord is what became of one part's valid records in one load.
type LoadRecord struct {
	Part int `json:"part"`
	etl.LoadCounts
	Conflicts int64 `json:"conflicts"` // rows whose version says equal and whose content differs
}

// RevisionRecord is the contract that a revision number of a pipeline stands for, from the first gate it passed on.
type RevisionRecord struct {
	Revision     int             `json:"revision"`      // contract.revision
	Contract     string          `json:"contract"`      // digest, hex
	VersionField string          `json:"version_field"` // "" = none
	VersionType  string          `json:"version_type"`  // "", integer, timestamp
	Epoch        int             `json:"epoch"`
	Spec         json.RawMessage `json:"-"` // the contract's canonical JSON; kept byte for byte
}

// revisionDoc keeps the spec as text, which no store may write in another form.
type revisionDoc struct {
	RevisionRecord
	SpecText string `json:"spec"`
}

// PutTransform records what became of a part, unless that is recorded already; the recorded one is returned.
func (l *Ledger) PutTransform(ctx context.Context, b etl.Batch, bind etl.Binding, r TransformRecord) (TransformRecord, error) {
	return putFact(ctx, l.Table, store.Key{PK: b.String(), SK: etl.TransformSK(bind, r.Part)}, r)
}

// GetTransform reads a part's transform record; false if there is none.
func (l *Ledger) GetTransform(ctx context.Context, b etl.Batch, bind etl.Binding, part int) (TransformRecord, bool, error) {
	return getFact[TransformRecord](ctx, l.Table, store.Key{PK: b.String(), SK: etl.TransformSK(bind, part)})
}

// Transforms reads all transform records of a binding, in the order of their parts.
func (l *Ledger) Transforms(ctx context.Context, b etl.Batch, bind etl.Binding) ([]TransformRecord, error) {
	return facts[TransformRecord](ctx, l.Table, b.String(), etl.TransformPrefix(bind))
}

// PutLoad records what became of a part in a load, unless that is recorded already; the recorded one is returned.
func (l *Ledger) PutLoad(ctx context.Context, b etl.Batch, bind etl.Binding, load int, r LoadRecord) (LoadRecord, error) {
	return putFact(ctx, l.Table, store.Key{PK: b.String(), SK: etl.LoadSK(bind, load, r.Part)}, r)
}

// GetLoad reads a part's load record; false if there is none.
func (l *Ledger) GetLoad(ctx context.Context, b etl.Batch, bind etl.Binding, load, part int) (LoadRecord, bool, error) {
	return getFact[LoadRecord](ctx, l.Table, store.Key{PK: b.String(), SK: etl.LoadSK(bind, load, part)})
}

// Loads reads all load records of one load of a binding, in the order of their parts.
func (l *Ledger) Loads(ctx context.Context, b etl.Batch, bind etl.Binding, load int) ([]LoadRecord, error) {
	return facts[LoadRecord](ctx, l.Table, b.String(), etl.LoadPrefix(bind, load))
}

// BindRevision binds a revision number of the pipeline to a contract, unless it is bound already; the bound one is
// returned, and the caller compares.
func (l *Ledger) BindRevision(ctx context.Context, pipeline string, r RevisionRecord) (RevisionRecord, error) {
	key := store.Key{PK: etl.PipelinePK(pipeline), SK: etl.RevisionSK(r.Revision)}
	doc, err := putFact(ctx, l.Table, key, revisionDoc{r, string(r.Spec)})
	return doc.record(), err
}

// Bound reads the pipeline's bound revisions, lowest number first.
func (l *Ledger) Bound(ctx context.Context, pipeline string) ([]RevisionRecord, error) {
	docs, err := facts[revisionDoc](ctx, l.Table, etl.PipelinePK(pipeline), etl.RevisionPrefix)
	if err != nil {
		return nil, err
	}
	out := make([]RevisionRecord, len(docs))
	for i, d := range docs {
		out[i] = d.record()
	}
	slices.SortFunc(out, func(a, b RevisionRecord) int { return a.Revision - b.Revision })
	return out, nil
}

func (d revisionDoc) record() RevisionRecord {
	r := d.RevisionRecord
	if d.SpecText != "" {
		r.Spec = json.RawMessage(d.SpecText)
	}
	return r
}

// putFact stores v under a key that holds nothing, and returns what the key holds then.
func putFact[T any](ctx context.Context, table store.Table, key store.Key, v T) (T, error) {
	var zero T
	doc, err := encode(v)
	if err != nil {
		return zero, err
	}
	err = table.PutIf(ctx, store.Item{Key: key, Doc: doc}, store.Condition{Absent: true})
	if err == nil {
		return v, nil
	}
	if !errors.Is(err, store.ErrCondition) {
		return zero, fmt.Errorf("put %s %s: %w", key.PK, key.SK, err)
	}
	var inWay *store.ConditionError
	if errors.As(err, &inWay) && inWay.Old != nil {
		return decode[T](*inWay.Old)
	}
	item, err := table.Get(ctx, key)
	if err != nil {
		return zero, fmt.Errorf("get %s %s, which is in the way: %w", key.PK, key.SK, err)
	}
	return decode[T](item)
}

func getFact[T any](ctx context.Context, table store.Table, key store.Key) (T, bool, error) {
	var zero T
	item, err := table.Get(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return zero, false, nil
	}
	if err != nil {
		return zero, false, fmt.Errorf("get %s %s: %w", key.PK, key.SK, err)
	}
	v, err := decode[T](item)
	return v, err == nil, err
}

func facts[T any](ctx context.Context, table store.Table, pk, prefix string) ([]T, error) {
	var out []T
	for item, err := range table.Query(ctx, store.Query{PK: pk, SKPrefix: prefix}) {
		if err != nil {
			return nil, fmt.Errorf("query %s %s: %w", pk, prefix, err)
		}
		v, err := decode[T](item)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}
