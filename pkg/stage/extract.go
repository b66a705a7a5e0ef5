package stage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"github.com/onceload/onceload/pkg/contract"
	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/snapshot"
	"github.com/onceload/onceload/pkg/source"
	"github.com/onceload/onceload/pkg/store"
)

const (
	// maxRestarts bounds the extractions one execution gives up because their cursor expired, or the file changed.
	maxRestarts = 3
	// maxCalls bounds the calls of one execution: a call and its wait are some ten events of a history that may hold
	// 25,000, and the maps behind need their share. An execution that passes that limit dies where no Catch sees it.
	maxCalls = 1500
	// maxIdle bounds the calls in a row that land no page.
	maxIdle = 10
	// grace is how long an interrupted extraction may take to land the pages it holds.
	grace = 5 * time.Second
)

// Extract claims the batch and lands the source's pages as parts of an extraction, closed by a manifest.
type Extract struct{ *core }

// Run claims, goes on after the last landed page, and stops with landed, or more or wait before its time is up. Statuses:
// busy (another live execution has the batch), done (it is completed, and the request asks for nothing more).
func (s *Extract) Run(ctx context.Context, in etl.ExtractInput) (etl.Progress, error) {
	p, k, err := s.compile(in.Request.Pipeline)
	if err != nil {
		return etl.Progress{}, err
	}
	b, err := in.Request.Batch(p.Schedule)
	if err == nil {
		err = p.Schedule.CheckClosed(b.Slot, s.Now())
	}
	if err != nil {
		return etl.Progress{}, err
	}
	if in.Progress.Fence > 0 {
		// An execution that lost its batch must not claim it a second time: its request has taken effect.
		if _, err := s.Ledger.Owned(ctx, ledger.Owner{Batch: b, Execution: in.Execution, Fence: in.Progress.Fence}); err != nil {
			return etl.Progress{}, fmt.Errorf("extract %s: %w", b, err)
		}
	}
	if in.Request.Reload {
		if err := s.reloadable(ctx, p, k, b); err != nil {
			return etl.Progress{}, err
		}
	}
	claim, err := s.claim(ctx, in, p, b)
	if err != nil {
		return etl.Progress{}, err
	}
	out := in.Progress
	out.Batch, out.Ranges, out.ResumeAt = b.String(), []etl.Range{}, ""
	if claim.Status != "" {
		out.Status = claim.Status
		return out, nil
	}
	if in.Request.Reload && !claim.Batch.Reload && in.Progress.Fence == 0 {
		s.Log.WarnContext(ctx, "the batch was not completed: it goes on where it stopped, and the reload has no effect", slog.String("batch", b.String()))
	}
	if claim.Resumed {
		// A redrive begins with fresh bounds: the operator asked for another try.
		out.Attempts, out.Idle, out.Restarts, out.WaitBegan = 0, 0, 0, ""
	}
	out.Fence, out.Extraction = claim.Owner.Fence, claim.Batch.Extraction
	// A call that failed returned no progress: what it counted stands in the batch item alone.
	out.Retries, out.WaitedMS = max(out.Retries, claim.Batch.Retries), max(out.WaitedMS, claim.Batch.WaitedMS)
	if claim.Batch.Reload {
		// The bound objects are loaded as they are: nothing to extract or transform.
		out.Status = etl.StatusLanded
		return out, nil
	}
	if out.Calls++; out.Calls > maxCalls {
		return out, etl.Errorf(etl.BatchTooLarge, "extract %s: %d calls of one execution did not reach the end; what landed is kept: run the batch again, and for the next ones use shorter slots or a longer source.retry.inline_wait", b, maxCalls)
	}
	client, err := s.source(ctx, p, in.Execution)
	if err != nil {
		return out, err
	}
	e := &extraction{core: s.core, p: p, client: client, owner: claim.Owner, window: claim.Batch.Window, manifest: claim.Batch.ManifestDigest, out: out}
	return e.run(ctx)
}

// claim claims the batch, under the file's window. Where the open batch of a dead owner has another one it is
// WindowChanged, unless nothing landed under that: then the file's window is taken, with a new extraction, because what is
// left of the dead owner may yet land a part of the old one. A redrive finds no other window than the one it began with.
func (s *Extract) claim(ctx context.Context, in etl.ExtractInput, p *pipeline.Pipeline, b etl.Batch) (ledger.Claim, error) {
	req := ledger.ClaimRequest{
		Batch: b, Execution: in.Execution, Window: p.Schedule.Window(b.Slot), PipelineDigest: p.Digest, Source: host(p.Source.URL),
		Reload: in.Request.Reload, Refetch: in.Request.Refetch, Reprocess: in.Request.Reprocess,
		Alive: s.Liveness.Alive,
	}
	c, err := s.Ledger.Claim(ctx, req)
	if etl.KindOf(err) == etl.WindowChanged {
		var empty bool
		if empty, err = s.empty(ctx, b, err); empty {
			s.Log.WarnContext(ctx, "the pipeline file gives the batch another window, and nothing had landed under the old one: beginning a new extraction",
				slog.String("batch", b.String()), slog.String("window", req.Window.String()))
			req.Refetch = true
			c, err = s.Ledger.Claim(ctx, req)
		}
	}
	var changed *etl.Error
	if errors.As(err, &changed) && changed.Kind == etl.WindowChanged {
		err = changed // it names the batch: who wanted to claim it does not matter
	}
	if err == nil && c.Resumed && !req.Reprocess {
		err = c.Batch.Keeps(req.Window)
	}
	return c, err
}

// empty reports whether no part of the batch's extraction has landed; if one has, the error stays.
func (s *Extract) empty(ctx context.Context, b etl.Batch, changed error) (bool, error) {
	cur, err := s.Ledger.Get(ctx, b)
	if err != nil {
		return false, err
	}
	_, err = s.Raw.Head(ctx, etl.RawPartKey(b, cur.Extraction, 0))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return cur.State != ledger.StateCompleted, changed
	case err != nil:
		return false, err
	}
	return false, changed
}

// reloadable says why the rows that a batch is bound to do not fit the file's target any more, or nil. It is asked before
// the claim: a completed batch must not be opened for a load that cannot end.
func (s *Extract) reloadable(ctx context.Context, p *pipeline.Pipeline, k *contract.Contract, b etl.Batch) error {
	cur, err := s.Ledger.Get(ctx, b)
	if errors.Is(err, store.ErrNotFound) || err == nil && cur.Binding == nil {
		return nil
	}
	if err != nil {
		return err
	}
	bound, err := s.Ledger.Bound(ctx, p.Name)
	if err != nil {
		return fmt.Errorf("revisions of %s: %w", p.Name, err)
	}
	for _, r := range bound {
		if r.Revision != cur.Binding.Revision.Contract {
			continue
		}
		for _, name := range contract.DiffSpecs(r.Spec, k.Spec()) {
			if name == "key" || name == "partition" || name == "sort" {
				return etl.Errorf(etl.ContractChanged, "%s: the rows of %s are bound under revision %d, whose %s was another: they do not fit the table any more; reprocess the batch instead",
					p.File, b, r.Revision, name)
			}
		}
	}
	return nil
}

// host names the source for people.
func host(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Host
}

// extraction is one call's work on one extraction.
type extraction struct {
	*core
	p      *pipeline.Pipeline
	client *source.Client
	owner  ledger.Owner
	window etl.Window
	out    etl.Progress

	manifest string // digest of the extraction's manifest, "" = none was written yet, as far as the ledger knows

	guard  *source.Guard
	parts  []snapshot.ManifestPart // landed
	at     source.State            // where the next page is
	done   bool                    // there is no next page
	part   *snapshot.PartWriter    // the open part; nil = none
	spare  *snapshot.PartWriter    // the last one that landed, for its memory
	opened time.Time               // when the open part's first page came
	landed int                     // parts landed by this call
}

func (e *extraction) run(ctx context.Context) (etl.Progress, error) {
	for {
		err := e.fetch(ctx)
		var wait *source.Wait
		switch {
		case err == nil:
			return e.out, nil
		case errors.As(err, &wait):
			return e.wait(ctx, wait)
		case (etl.KindOf(err) == etl.CursorExpired || errors.As(err, new(*askedOtherwise))) && e.out.Restarts < maxRestarts:
			if err := e.restart(ctx, err); err != nil {
				return e.out, err
			}
		default:
			return e.out, e.fail(ctx, err)
		}
	}
}

// fetch rolls forward over what is landed, then lands pages until there are no more or the time is up.
func (e *extraction) fetch(ctx context.Context) error {
	m, err := snapshot.ReadManifest(ctx, e.Raw, e.owner.Batch, e.out.Extraction)
	if err == nil {
		if err := sameManifest(e.owner.Batch, m, e.manifest); err != nil {
			return err
		}
		return e.finish(ctx, m)
	}
	if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if err := e.rollForward(ctx); err != nil {
		return err
	}
	// More than once only where a part that was there already leads elsewhere than ours did.
	for !e.done {
		err := e.gather(ctx)
		if errors.As(err, new(*timeUp)) {
			return e.more(ctx)
		}
		if err != nil {
			return err
		}
		if _, err := e.land(ctx); err != nil {
			return err
		}
	}
	m, err = snapshot.NewManifest(e.owner.Batch, e.out.Extraction, e.window, e.p.Digest, e.parts).Write(ctx, e.Raw)
	if err != nil {
		return err
	}
	return e.finish(ctx, m)
}

// askedOtherwise is the error of an extraction whose landed pages the pipeline file would not ask for any more: pages of
// two queries must not become one snapshot.
type askedOtherwise struct {
	part, page int
	url        string // asked for then
}

func (e *askedOtherwise) Error() string {
	return fmt.Sprintf("the pipeline file asks the source otherwise than it did for part %d page %d (%s)", e.part, e.page, e.url)
}

// rollForward rebuilds position, counts and loop guard from the footers of the parts that are there: the raw bucket is
// the truth, the ledger's checkpoint a hint.
func (e *extraction) rollForward(ctx context.Context) error {
	e.guard = source.NewGuard(e.p.Source.Paginate)
	e.parts, e.at, e.done, e.part, e.spare = nil, source.State{}, false, nil, nil
	for n := range etl.MaxParts {
		f, err := snapshot.ReadFooter(ctx, e.Raw, etl.RawPartKey(e.owner.Batch, e.out.Extraction, n))
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := e.adopt(f); err != nil {
			return err
		}
	}
	return nil
}

// adopt moves the position behind a landed part.
func (e *extraction) adopt(f snapshot.Footer) error {
	for i, p := range f.Pages {
		print, err := e.client.Print(source.Request{Slot: e.owner.Batch.Slot, Window: e.window, At: e.at})
		if err != nil {
			return err
		}
		if print != p.Request {
			return etl.Errorf(etl.Superseded, "extract %s: %w", e.owner.Batch, &askedOtherwise{f.Part, i, p.URL})
		}
		var at source.State
		if err := json.Unmarshal(p.After, &at); err != nil {
			return etl.Errorf(etl.RecordsLost, "part %d of %s: the position in its footer cannot be read: %w", f.Part, e.owner.Batch, err)
		}
		seen := at.Records
		if p.Done {
			seen = "" // no page follows that could be the same
		}
		if err := e.guard.Add(p.Request, p.SHA256, p.Records, seen); err != nil {
			return err
		}
		e.at, e.done = at, p.Done
	}
	e.parts = append(e.parts, f.Sum())
	return nil
}

// gather fetches pages into the open part and lands each part that is full or old, until the last page is in the open
// part, or something goes wrong, or a part that was there already leads elsewhere.
func (e *extraction) gather(ctx context.Context) error {
	f, err := e.fetcher()
	if err != nil {
		return err
	}
	// One goroutine fetches while this one compresses and lands. It is never more than a page ahead, and has ended before
	// anything else happens to the extraction.
	ctx, cancel := context.WithCancel(ctx)
	arrivals := make(chan arrival)
	var fetching sync.WaitGroup
	fetching.Go(func() {
		defer close(arrivals)
		f.run(ctx, func(a arrival) bool {
			select {
			case arrivals <- a:
				return true
			case <-ctx.Done():
				return false
			}
		})
	})
	defer fetching.Wait()
	defer cancel()

	// A part gets old also while no page comes.
	age := time.NewTimer(PartAge)
	defer age.Stop()
	for !e.done {
		var full bool
		select {
		case a, ok := <-arrivals:
			if !ok {
				return fmt.Errorf("extract %s: %w", e.owner.Batch, ctx.Err())
			}
			if e.part == nil {
				age.Reset(PartAge)
			}
			if err := e.add(a); err != nil {
				return err
			}
			f.recycle(a.page.Body)
			full = e.part.Size() >= e.p.Source.PartBytes || e.Now().Sub(e.opened) >= PartAge
		case <-age.C:
			full = true
		}
		if full {
			if adopted, err := e.land(ctx); err != nil || adopted {
				return err
			}
		}
	}
	return nil
}

// add puts what arrived into the open part.
func (e *extraction) add(a arrival) error {
	e.out.Retries += a.stats.Retries
	e.out.WaitedMS += a.stats.Waited.Milliseconds()
	e.out.Attempts = a.stats.Attempts
	if a.err != nil {
		return a.err
	}
	e.out.WaitBegan = ""
	pg := a.page
	before, err := json.Marshal(pg.Before)
	if err != nil {
		return fmt.Errorf("position before page: %w", err)
	}
	after, err := json.Marshal(pg.After)
	if err != nil {
		return fmt.Errorf("position after page: %w", err)
	}
	if e.part == nil {
		if len(e.parts) == etl.MaxParts {
			return etl.Errorf(etl.BatchTooLarge, "extraction %d of %s passes %d parts", e.out.Extraction, e.owner.Batch, etl.MaxParts)
		}
		if e.spare == nil {
			e.spare = snapshot.NewPartWriter(e.owner.Batch, e.out.Extraction, 0)
		}
		e.part, e.spare, e.opened = e.spare, nil, e.Now()
		e.part.Reset(len(e.parts))
	}
	err = e.part.Add(pg.Body, snapshot.Page{
		SHA256: a.digest, Records: pg.Records, RecordsAt: e.p.Contract.RecordsAt, URL: pg.URL, Status: pg.Status, FetchedAt: pg.FetchedAt.UTC(),
		Request: pg.Request, Before: before, After: after, Done: pg.Done,
	})
	if err != nil {
		return err
	}
	e.at, e.done = pg.After, pg.Done
	e.Watch(Tick{Stage: etl.StageExtract, Batch: e.owner.Batch, Pages: 1, Records: int64(pg.Records)})
	return nil
}

// land puts the open part. If another attempt's part is there, that one counts: everything beyond it is dropped, and the
// position is behind it.
func (e *extraction) land(ctx context.Context) (adopted bool, err error) {
	if e.part == nil {
		return false, nil
	}
	f, adopted, err := e.part.Land(ctx, e.Raw)
	if err != nil {
		return false, err
	}
	e.part, e.spare = nil, e.part
	e.landed++
	e.Watch(Tick{Stage: etl.StageExtract, Batch: e.owner.Batch, Parts: 1})
	if adopted {
		e.Log.WarnContext(ctx, "another attempt had landed this part: going on behind it",
			slog.String("batch", e.owner.Batch.String()), slog.Int("part", f.Part))
		if err := e.rollForward(ctx); err != nil {
			return false, err
		}
	} else {
		e.parts = append(e.parts, f.Sum())
	}
	return adopted, e.checkpoint(ctx)
}

// checkpoint notes in the ledger how far the extraction is: a hint for people, and the fence's test that we still own it.
func (e *extraction) checkpoint(ctx context.Context) error {
	_, err := e.Ledger.Update(ctx, e.owner, etl.StageExtract, func(b *ledger.Batch) {
		b.Parts = len(e.parts)
		b.Pages, b.Records, b.Bytes = 0, 0, 0
		for _, p := range e.parts {
			b.Pages += int64(p.Pages)
			b.Records += p.Records
			b.Bytes += p.Bytes
		}
		b.Retries, b.WaitedMS = e.out.Retries, e.out.WaitedMS
	})
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", e.owner.Batch, err)
	}
	return nil
}

// sameManifest holds a manifest against the digest that the ledger knows, if it knows one (R23).
func sameManifest(b etl.Batch, m snapshot.Manifest, known string) error {
	if known == "" || known == m.Digest() {
		return nil
	}
	return etl.Errorf(etl.RecordsLost, "read %s: its sha256 is %s, the ledger says %s: it is not the manifest that was written", etl.ManifestKey(b, m.Extraction), m.Digest(), known)
}

// finish answers landed.
func (e *extraction) finish(ctx context.Context, m snapshot.Manifest) error {
	_, err := e.Ledger.Update(ctx, e.owner, etl.StageExtract, func(b *ledger.Batch) {
		b.Parts, b.Pages, b.Records, b.Bytes = len(m.Parts), m.Pages, m.Records, m.Bytes
		b.ManifestDigest = m.Digest()
		b.Retries, b.WaitedMS = e.out.Retries, e.out.WaitedMS
	})
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", e.owner.Batch, err)
	}
	e.Watch(Tick{Stage: etl.StageExtract, Batch: e.owner.Batch, Total: m.Records})
	e.out.Status, e.out.Ranges = etl.StatusLanded, etl.Ranges(len(m.Parts))
	e.out.Attempts, e.out.Idle, e.out.WaitBegan = 0, 0, ""
	return nil
}

// more lands what there is and asks for another call.
func (e *extraction) more(ctx context.Context) error {
	if _, err := e.land(ctx); err != nil {
		return err
	}
	if err := e.idle(); err != nil {
		return err
	}
	e.out.Status = etl.StatusMore
	return nil
}

// wait lands what there is and asks to be called again when the source allows it.
func (e *extraction) wait(ctx context.Context, w *source.Wait) (etl.Progress, error) {
	if _, err := e.land(ctx); err != nil {
		return e.out, err
	}
	e.Log.WarnContext(ctx, "source has to wait", slog.String("batch", e.owner.Batch.String()),
		slog.Time("until", w.Until), slog.String("reason", w.Reason))
	if !w.Shared { // retry.max_wait bounds a wait in a queue with others
		if err := e.idle(); err != nil {
			return e.out, fmt.Errorf("%w (last: %s)", err, w.Reason)
		}
	}
	if e.out.WaitBegan == "" {
		e.out.WaitBegan = etl.FormatTime(e.Now())
	}
	e.out.Status, e.out.ResumeAt = etl.StatusWait, etl.FormatTime(w.Until)
	if d := w.Until.Sub(e.Now()); d > 0 {
		e.out.WaitedMS += d.Milliseconds()
	}
	return e.out, e.checkpoint(ctx)
}

// idle counts this call if it landed nothing, and ends an extraction that does not move.
func (e *extraction) idle() error {
	if e.landed > 0 {
		e.out.Idle = 0
		return nil
	}
	e.out.Idle++
	if e.out.Idle > maxIdle {
		return etl.Errorf(etl.SourceUnavailable, "extract %s: %d calls in a row landed no page", e.owner.Batch, e.out.Idle)
	}
	return nil
}

// restart gives the extraction up and begins the next one from the first page. The pages of the old one stay where they
// are and belong to no manifest.
func (e *extraction) restart(ctx context.Context, cause error) error {
	e.out.Restarts++
	e.out.Attempts, e.out.WaitBegan = 0, ""
	b, err := e.Ledger.Update(ctx, e.owner, etl.StageExtract, func(b *ledger.Batch) {
		b.Extraction = e.out.Extraction + 1
		b.Parts, b.Pages, b.Records, b.Bytes = 0, 0, 0, 0
		b.ManifestDigest = ""
	})
	if err != nil {
		return fmt.Errorf("begin extraction %d of %s: %w", e.out.Extraction+1, e.owner.Batch, err)
	}
	why := "its cursor expired"
	if errors.As(cause, new(*askedOtherwise)) {
		why = "source.url, source.query, source.body or the paging has changed since pages landed"
	}
	e.Log.WarnContext(ctx, "beginning a new extraction", slog.String("because", why), slog.String("batch", e.owner.Batch.String()),
		slog.Int("extraction", b.Extraction), slog.Any("cause", cause))
	e.out.Extraction, e.manifest = b.Extraction, ""
	return nil
}

// fail keeps what is worth keeping before the error goes up: landed pages, the refused body, the figures.
func (e *extraction) fail(ctx context.Context, cause error) error {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return e.interrupted(ctx, cause)
	case ctx.Err() != nil:
		return cause
	}
	var malformed *source.MalformedError
	if errors.As(cause, &malformed) {
		sum := sha256.Sum256(malformed.Body)
		key := etl.RejectedKey(e.owner.Batch, e.out.Extraction, "page-"+hex.EncodeToString(sum[:4])+".body")
		if err := e.Raw.Put(ctx, key, bytes.NewReader(malformed.Body)); err != nil {
			return errors.Join(cause, fmt.Errorf("keep the refused body: %w", err))
		}
		cause = fmt.Errorf("%w (body kept as %s)", cause, key)
	}
	if etl.KindOf(cause) == etl.Superseded {
		return cause
	}
	if _, err := e.land(ctx); err != nil {
		return errors.Join(cause, err)
	}
	if err := e.checkpoint(ctx); err != nil {
		return errors.Join(cause, err)
	}
	return cause
}

// interrupted lands the pages that were fetched before somebody interrupted, if that is soon done.
func (e *extraction) interrupted(ctx context.Context, cause error) error {
	if e.part == nil {
		return cause
	}
	pages := e.part.Len()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if _, err := e.land(ctx); err != nil {
		e.Log.WarnContext(ctx, "interrupted: the last pages could not be landed, and are fetched again", slog.String("batch", e.owner.Batch.String()),
			slog.Int("pages", pages), slog.Any("cause", err))
	}
	return cause
}
