package stage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"strconv"
	"strings"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/snapshot"
	"github.com/onceload/onceload/pkg/store"
)

// maxStale bounds how often a batch goes back to Transform because the contract changed under it.
const maxStale = 3

// Gate decides whether a transformed batch may load: the books balance, quarantine is within its bounds, the declared
// checks hold, the contract is not another one under a number already used. Nothing is loaded before it passes.
type Gate struct{ *core }

// Run answers passed, having bound the batch to one (extraction, revision, contract) and the revision to its contract;
// or stale, when the parts are not transformed under the pipeline file's contract, or what it must read of them is gone or
// damaged.
func (s *Gate) Run(ctx context.Context, in etl.GateInput) (etl.GateOutput, error) {
	o, err := owner(in.Batch, in.Execution, in.Fence)
	if err != nil {
		return etl.GateOutput{}, err
	}
	b, resumed, err := s.own(ctx, o, etl.StageGate)
	if err != nil {
		return etl.GateOutput{}, err
	}
	if b.Extraction != in.Extraction {
		return etl.GateOutput{}, etl.Errorf(etl.Superseded, "gate %s: the batch is at extraction %d, not %d", o.Batch, b.Extraction, in.Extraction)
	}
	if resumed {
		in.Stale = 0
	}
	p, k, err := s.compile(o.Batch.Pipeline)
	if err != nil {
		return etl.GateOutput{}, err
	}
	m, err := snapshot.ReadManifest(ctx, s.Raw, o.Batch, b.Extraction)
	if errors.Is(err, store.ErrNotFound) {
		err = etl.Errorf(etl.RecordsLost, "its manifest is gone from the raw bucket: %w", err)
	}
	if err == nil {
		err = sameManifest(o.Batch, m, b.ManifestDigest)
	}
	if err != nil {
		return etl.GateOutput{}, fmt.Errorf("gate %s: %w", o.Batch, err)
	}
	bind := bindingOf(k, b.Extraction)
	if b.Reload {
		if b.Binding == nil {
			return etl.GateOutput{}, etl.Errorf(etl.Internal, "gate %s: a reload of a batch that is bound to nothing", o.Batch)
		}
		bind = *b.Binding
	}
	parts, err := s.Ledger.Transforms(ctx, o.Batch, bind)
	if err != nil {
		return etl.GateOutput{}, fmt.Errorf("gate %s: %w", o.Batch, err)
	}
	if len(parts) < len(m.Parts) && !b.Reload {
		if in.Stale >= maxStale {
			return etl.GateOutput{}, etl.Errorf(etl.ContractChanged, "gate %s: the contract changed %d times while the batch was transformed: let it rest, then redrive", o.Batch, in.Stale)
		}
		return etl.GateOutput{Status: etl.StatusStale, Stale: in.Stale + 1, Ranges: []etl.Range{}}, nil
	}
	counts, err := balance(o.Batch, m, parts)
	if err != nil {
		return etl.GateOutput{}, err
	}
	// The counts go first: a batch that fails here shows them, and why its records were quarantined.
	b, err = s.Ledger.Update(ctx, o, etl.StageGate, func(b *ledger.Batch) {
		b.Counts = &counts
		if b.Binding == nil {
			b.Tried = &bind
		}
	})
	if err != nil {
		return etl.GateOutput{}, fmt.Errorf("gate %s: %w", o.Batch, err)
	}
	if err := s.sameTable(ctx, o.Batch, b, bind, len(m.Parts), p.Target.Table); err != nil {
		return etl.GateOutput{}, err
	}
	if b.Reload {
		return s.pass(ctx, o, in, bind, m, p)
	}
	rev := revision(p, k)
	if err := s.compareRevision(ctx, p, rev); err != nil {
		return etl.GateOutput{}, err
	}
	err = s.check(ctx, p, o.Batch, bind, counts, parts)
	switch {
	case errors.Is(err, errVoid) && in.Stale < maxStale: // Transform finds in the batch item that Gate has looked at its parts
		s.Log.WarnContext(ctx, "what Transform made is gone or damaged: it makes that again", slog.String("batch", o.Batch.String()), slog.Any("cause", err))
		return etl.GateOutput{Status: etl.StatusStale, Stale: in.Stale + 1, Ranges: []etl.Range{}}, nil
	case errors.Is(err, errVoid):
		return etl.GateOutput{}, etl.Errorf(etl.RecordsLost, "gate %s: what Transform made %d times over does not stay as it is: look at the stage bucket's disk and lifecycle rules, then redrive: %w", o.Batch, in.Stale, err)
	case err != nil:
		return etl.GateOutput{}, err
	}
	kept, err := s.Ledger.BindRevision(ctx, p.Name, rev)
	if err != nil {
		return etl.GateOutput{}, fmt.Errorf("bind revision %d of %s: %w", rev.Revision, p.Name, err)
	}
	if err := sameContract(p, kept, rev); err != nil {
		return etl.GateOutput{}, err
	}
	return s.pass(ctx, o, in, bind, m, p)
}

// pass binds the batch and tells Load what to do. An atomic load is one call, so that all rows go into one transaction.
func (s *Gate) pass(ctx context.Context, o ledger.Owner, in etl.GateInput, bind etl.Binding, m snapshot.Manifest, p *pipeline.Pipeline) (etl.GateOutput, error) {
	b, err := s.Ledger.Update(ctx, o, etl.StageGate, func(b *ledger.Batch) { b.Binding, b.Tried, b.Table = &bind, nil, p.Target.Table })
	if err != nil {
		return etl.GateOutput{}, fmt.Errorf("bind %s: %w", o.Batch, err)
	}
	ranges := etl.Ranges(len(m.Parts))
	if p.Target.Atomic {
		ranges = []etl.Range{{First: 0, Last: len(m.Parts) - 1}}
	}
	return etl.GateOutput{Status: etl.StatusPassed, Stale: in.Stale, Binding: bind, Load: b.Load, Ranges: ranges}, nil
}

// sameTable warns of a load into another table than the batch's last one. It refuses to finish there what is loaded in
// part elsewhere: the parts that are done would be missing.
func (s *Gate) sameTable(ctx context.Context, id etl.Batch, b ledger.Batch, bind etl.Binding, parts int, now string) error {
	if b.Table == "" || b.Table == now {
		return nil
	}
	loads, err := s.Ledger.Loads(ctx, id, bind, b.Load)
	if err != nil {
		return fmt.Errorf("gate %s: %w", id, err)
	}
	if len(loads) > 0 {
		return etl.Errorf(etl.ContractChanged, "%d of %d parts of %s are loaded into the table %s, and target.table is %s now: restore it and redrive; then --reload loads the whole batch into %s",
			len(loads), parts, id, b.Table, now, now)
	}
	s.Log.WarnContext(ctx, "the batch is loaded into another table than before, where its rows stay",
		slog.String("batch", id.String()), slog.String("before", b.Table), slog.String("now", now))
	return nil
}

// balance checks the conservation law of every part and of the batch (B7).
func balance(b etl.Batch, m snapshot.Manifest, parts []ledger.TransformRecord) (etl.Counts, error) {
	c, elsewhere := etl.Counts{Pages: m.Pages}, false
	if len(parts) != len(m.Parts) {
		return c, etl.Errorf(etl.RecordsLost, "gate %s: the manifest lists %d parts, %d are transformed", b, len(m.Parts), len(parts))
	}
	for i, t := range parts {
		landed := m.Parts[i]
		// Pages hold other records where the file looks for them elsewhere than it did when they landed.
		same := t.RecordsAt == landed.RecordsAt
		elsewhere = elsewhere || !same
		if t.Part != landed.Part || same && t.Records != landed.Records || t.Records != t.Valid+t.Quarantined {
			return c, etl.Errorf(etl.RecordsLost, "gate %s: part %d landed %d records, transform saw %d (valid %d, quarantined %d)",
				b, landed.Part, landed.Records, t.Records, t.Valid, t.Quarantined)
		}
		if t.RawSHA256 != landed.SHA256 {
			return c, etl.Errorf(etl.RecordsLost, "gate %s: part %d was transformed from pages with digest %s, the manifest lists %s",
				b, landed.Part, t.RawSHA256, landed.SHA256)
		}
		c.Records += t.Records
		c.Valid += t.Valid
		c.Quarantined += t.Quarantined
	}
	if !elsewhere && c.Records != m.Records {
		return c, etl.Errorf(etl.RecordsLost, "gate %s: the manifest counts %d records, its parts %d", b, m.Records, c.Records)
	}
	return c, nil
}

// check applies the quarantine rule and the declared checks.
func (s *Gate) check(ctx context.Context, p *pipeline.Pipeline, b etl.Batch, bind etl.Binding, c etl.Counts, parts []ledger.TransformRecord) error {
	q := p.Quarantine
	switch {
	case c.Quarantined >= q.MinRows && passes(c.Quarantined, c.Records, q.MaxRatio):
		return etl.Errorf(etl.QuarantineExceeded, "%d of %d records quarantined (allowed: %s of the records, or fewer than %d): %s; nothing was loaded",
			c.Quarantined, c.Records, decimal(q.MaxRatio), q.MinRows, whatAndWhere(b, bind, parts))
	case c.Valid == 0 && c.Quarantined > 0:
		return etl.Errorf(etl.QuarantineExceeded, "%d of %d records quarantined, none is valid: %s; nothing was loaded",
			c.Quarantined, c.Records, whatAndWhere(b, bind, parts))
	}
	k := p.Checks
	switch {
	case k.MinRecords != nil && c.Records < *k.MinRecords:
		return etl.Errorf(etl.CheckFailed, "%s has %d records, checks.min_records wants at least %d", b, c.Records, *k.MinRecords)
	case k.MaxRecords != nil && c.Records > *k.MaxRecords:
		return etl.Errorf(etl.CheckFailed, "%s has %d records, checks.max_records allows %d", b, c.Records, *k.MaxRecords)
	case p.Target.Atomic && c.Valid > store.MaxPutAllHigher:
		return etl.Errorf(etl.BatchTooLarge, "%s has %d valid records: target.atomic loads at most %d; use shorter slots", b, c.Valid, store.MaxPutAllHigher)
	case p.Target.Atomic && validBytes(parts) > store.MaxAllBytes:
		return etl.Errorf(etl.BatchTooLarge, "%s has %d bytes of valid records: target.atomic loads at most %d; use shorter slots", b, validBytes(parts), store.MaxAllBytes)
	}
	if k.MaxDuplicateRatio != nil && c.Valid > 0 {
		dup, err := s.duplicates(ctx, b, bind, parts)
		if err != nil {
			return err
		}
		if passes(dup, c.Valid, *k.MaxDuplicateRatio) {
			return etl.Errorf(etl.CheckFailed, "%s: %d of %d valid records repeat a key, checks.max_duplicate_ratio allows %s of them", b, dup, c.Valid, decimal(*k.MaxDuplicateRatio))
		}
	}
	if k.MaxAge > 0 {
		return s.fresh(p, b, parts)
	}
	return nil
}

// passes reports whether n of all are more than the ratio, exactly: 29 of 100 do not pass 0.29, whose nearest binary fraction
// is less.
func passes(n, all int64, ratio float64) bool {
	most, ok := new(big.Rat).SetString(decimal(ratio))
	if !ok {
		return true // no number: a pipeline file cannot hold it
	}
	most.Mul(most, new(big.Rat).SetInt64(all))
	return new(big.Rat).SetInt64(n).Cmp(most) > 0
}

// decimal is the ratio as the pipeline file has it.
func decimal(ratio float64) string { return strconv.FormatFloat(ratio, 'f', -1, 64) }

func validBytes(parts []ledger.TransformRecord) int64 {
	sum := int64(0)
	for _, t := range parts {
		sum += t.ValidBytes
	}
	return sum
}

// fresh holds the newest version against checks.max_age, counted back from the end of the window: never from the clock of
// the attempt, so that a late rerun comes to the same answer.
func (s *Gate) fresh(p *pipeline.Pipeline, b etl.Batch, parts []ledger.TransformRecord) error {
	newest := ""
	for _, t := range parts {
		newest = max(newest, t.MaxVersion)
	}
	oldest, err := etl.VersionTimestamp(p.Schedule.Window(b.Slot).End.Add(-p.Checks.MaxAge))
	if err != nil {
		return err
	}
	if newest < oldest {
		return etl.Errorf(etl.CheckFailed, "%s: the newest version is %s, checks.max_age wants one from %s on", b, cmp.Or(newest, "none"), oldest)
	}
	return nil
}

// whatAndWhere names the top reasons with counts, and three places to look.
func whatAndWhere(b etl.Batch, bind etl.Binding, parts []ledger.TransformRecord) string {
	sum := reasonCounts{}
	var places []string
	for _, t := range parts {
		for _, r := range t.Reasons {
			n := r.Count
			r.Count = 0
			sum[r] += n
		}
		for _, e := range t.Examples {
			if len(places) < maxExamples {
				places = append(places, fmt.Sprintf("part %d page %d index %d", t.Part, e.Page, e.Index))
			}
		}
	}
	var reasons []string
	for _, r := range top(sum)[:min(5, len(sum))] {
		reasons = append(reasons, fmt.Sprintf("%s %s ×%d", cmp.Or(r.Field, "(record)"), r.Code, r.Count))
	}
	folder := etl.StageKey(etl.Quarantine, b, bind, 0)
	folder = folder[:strings.LastIndexByte(folder, '/')+1]
	return fmt.Sprintf("%s; for example %s; all in %s", strings.Join(reasons, ", "), strings.Join(places, ", "), folder)
}

func revision(p *pipeline.Pipeline, k *contract.Contract) ledger.RevisionRecord {
	return ledger.RevisionRecord{
		Revision: p.Contract.Revision, Contract: k.Digest(), VersionField: p.Contract.Version, VersionType: k.VersionType(),
		Epoch: p.Contract.Epoch, Spec: json.RawMessage(k.Spec()),
	}
}

// compareRevision holds the file's contract against those that loaded rows before.
func (s *Gate) compareRevision(ctx context.Context, p *pipeline.Pipeline, mine ledger.RevisionRecord) error {
	bound, err := s.Ledger.Bound(ctx, p.Name)
	if err != nil {
		return fmt.Errorf("revisions of %s: %w", p.Name, err)
	}
	for _, r := range bound {
		if r.Epoch > mine.Epoch {
			return etl.Errorf(etl.ContractChanged, "%s: revision %d loaded rows under epoch %d, which win over all of epoch %d: raise contract.revision above %d and set contract.epoch to %d",
				p.File, r.Revision, r.Epoch, mine.Epoch, bound[len(bound)-1].Revision, r.Epoch)
		}
	}
	for _, r := range bound {
		if r.Revision == mine.Revision {
			return sameContract(p, r, mine)
		}
	}
	for _, r := range bound {
		other := r.VersionField != mine.VersionField || r.VersionType != mine.VersionType
		if other && r.Epoch >= mine.Epoch {
			return etl.Errorf(etl.ContractChanged, "%s: revision %d has version %s, revision %d had %s: ranks of the two cannot be compared; raise contract.epoch to %d",
				p.File, mine.Revision, version(mine), r.Revision, version(r), r.Epoch+1)
		}
	}
	return nil
}

func sameContract(p *pipeline.Pipeline, bound, mine ledger.RevisionRecord) error {
	if bound.Contract == mine.Contract {
		return nil
	}
	return etl.Errorf(etl.ContractChanged, "%s: rows are loaded under revision %d with another contract (%s differ): raise contract.revision to %d",
		p.File, mine.Revision, strings.Join(contract.DiffSpecs(bound.Spec, mine.Spec), ", "), mine.Revision+1)
}

func version(r ledger.RevisionRecord) string {
	if r.VersionField == "" {
		return "none (the slot)"
	}
	return r.VersionField + " (" + r.VersionType + ")"
}

// errVoid says that what a part's record speaks of is not there any more.
var errVoid = errors.New("a part is void")

// duplicates counts the valid records whose key another record of the batch has too, less one for each key.
func (s *Gate) duplicates(ctx context.Context, b etl.Batch, bind etl.Binding, parts []ledger.TransformRecord) (int64, error) {
	var objects []keyObject
	for _, t := range parts {
		objects = append(objects, keyObject{key: etl.StageKey(etl.Keys, b, bind, t.Part), keys: t.Valid, sha256: t.KeysSHA256})
	}
	var dup int64
	var last digest
	first := true
	err := mergeKeys(ctx, s.core.Stage, objects, func(d digest) {
		if !first && d == last {
			dup++
		}
		first, last = false, d
	})
	if damaged(err) {
		err = fmt.Errorf("%w: %w", errVoid, err)
	}
	return dup, err
}
