package stage_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/snapshot"
	"github.com/onceload/onceload/pkg/source"
)

var largeParts = strings.Replace(rigFile, "part_bytes: 1", "part_bytes: 1000000", 1)

// footers are the landed parts.
func (r *rig) footers(extraction int) []snapshot.Footer {
	r.t.Helper()
	var out []snapshot.Footer
	for info, err := range r.raw.List(r.t.Context(), etl.ExtractionPrefix(r.batch, extraction)+"part-") {
		must(r.t, err)
		f, err := snapshot.ReadFooter(r.t.Context(), r.raw, info.Key)
		must(r.t, err)
		out = append(out, f)
	}
	return out
}

// manifest is the first extraction's, its parts verified.
func (r *rig) manifest() snapshot.Manifest {
	r.t.Helper()
	m, err := snapshot.ReadManifest(r.t.Context(), r.raw, r.batch, 1)
	must(r.t, err)
	for _, f := range r.footers(1) {
		if f.Sum() != m.Parts[f.Part] {
			r.t.Fatalf("part %d is %+v, its manifest says %+v", f.Part, f.Sum(), m.Parts[f.Part])
		}
	}
	return m
}

// fingerprint is that of a GET.
func fingerprint(url string) string {
	sum := sha256.Sum256([]byte("GET\n" + url + "\n"))
	return hex.EncodeToString(sum[:])
}

// rival lands a part of other content under the batch: as an attempt would that saw the source earlier.
func (r *rig) rival(part int, pages ...string) {
	r.t.Helper()
	w := snapshot.NewPartWriter(r.batch, 1, part)
	w.Reset(part)
	for i, records := range pages {
		body := fmt.Sprintf(`{"pages":%d,"data":[%s]}`, len(r.pages), records)
		state := func(page int64) json.RawMessage {
			if page == 0 {
				return json.RawMessage(`{}`)
			}
			b, err := json.Marshal(source.State{Page: page, Number: page})
			must(r.t, err)
			return b
		}
		before := int64(i)
		next := before + 2
		s, err := json.Marshal(source.State{Page: before + 1, Number: next})
		must(r.t, err)
		url := "http://rows.example/rows?page=" + fmt.Sprint(i+1)
		must(r.t, w.Add([]byte(body), snapshot.Page{Records: strings.Count(records, `"id"`), URL: url,
			Status: 200, FetchedAt: r.clock(), Request: fingerprint(url), Before: state(before), After: s, Done: false}))
	}
	_, _, err := w.Land(r.t.Context(), r.raw)
	must(r.t, err)
}

// TestLostWhileLanding: an extraction whose batch is taken over stops with the part it was about to land. B6
func TestLostWhileLanding(t *testing.T) {
	r := newRig(t, rigFile, slices.Repeat([]string{rec("a", 1, "x")}, 8)...)
	taken := false
	r.onCall = func(op, key string) (bool, error) {
		if op == "PutOnce" && strings.HasSuffix(key, "part-00002.json.gz") && !taken {
			taken = true
			_, err := r.ledger.Claim(t.Context(), ledger.ClaimRequest{Batch: r.batch, Execution: "successor",
				Window: r.file.Schedule.Window(r.batch.Slot), Alive: ended{}.Alive})
			must(t, err)
		}
		return true, nil
	}
	_, err := r.extract()
	wantKind(t, err, etl.Superseded)
	if n := len(r.footers(1)); n != 3 {
		t.Errorf("%d parts landed", n)
	}
}

// TestRollForward: what is landed is not fetched again, whatever the ledger knows. R17
func TestRollForward(t *testing.T) {
	r := newRig(t, rigFile, rec("a", 1, "x"), rec("b", 1, "x"), rec("c", 1, "x"))
	r.rival(0, rec("a", 1, "early"), rec("b", 1, "early"))
	_, err := r.extract()
	must(t, err)
	if got := strings.Join(r.asked, " "); got != "3" {
		t.Errorf("asked %s", got)
	}
	if m := r.manifest(); m.Pages != 3 || m.Records != 3 {
		t.Errorf("%+v", m)
	}
	if b, err := r.ledger.Get(t.Context(), r.batch); err != nil || b.Parts != 2 || b.Pages != 3 || b.Records != 3 {
		t.Errorf("%+v, %v", b, err)
	}
}

// TestManifestAdopted: an extraction that is complete is complete: nothing is fetched, no part read. R16
func TestManifestAdopted(t *testing.T) {
	r := newRig(t, rigFile, many(1), many(2))
	first, err := r.extract()
	must(t, err)
	r.asked, r.pages = nil, []string{many(5)}
	r.execution = "successor"
	reads := r.raw.Calls()["GetRange"]
	second, err := r.extract()
	must(t, err)
	if len(r.asked) > 0 || r.raw.Calls()["GetRange"] != reads || second.Fence != first.Fence+1 || fmt.Sprint(second.Ranges) != fmt.Sprint(first.Ranges) {
		t.Errorf("asked %v; %+v, then %+v", r.asked, first, second)
	}
}

// TestAskedOtherwise: pages of two queries never become one snapshot. Where the file asks otherwise than it did for what
// landed, a new extraction begins; what has nothing to do with the request changes nothing. R16, R18
func TestAskedOtherwise(t *testing.T) {
	query := func(q string) string { return strings.Replace(rigFile, "  records: data", q+"\n  records: data", 1) }
	for _, tc := range []struct {
		name       string
		from, to   string
		asked      string
		extraction int
	}{
		{"a query", query("  query: {state: open}"), query("  query: {state: closed}"), "1 2 3", 2},
		{"a host", rigFile, strings.Replace(rigFile, "http://rows.example", "http://lines.example", 1), "1 2 3", 2},
		{"the size of a page", strings.Replace(rigFile, "page: {", "page: {size_param: n, size: 5, ", 1),
			strings.Replace(rigFile, "page: {", "page: {size_param: n, size: 6, ", 1), "1 2 3", 2},
		{"retries, headers, contract", rigFile, strings.NewReplacer("attempts: 2", "attempts: 3", "  records: data", "  headers: {X-A: b}\n  records: data", "revision: 1", "revision: 2").Replace(rigFile), "2 3", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, tc.from, many(2), "broken", many(3))
			_, err := r.extract()
			wantKind(t, err, etl.SourceMalformed)
			r.swap(tc.to)
			r.asked, r.pages[1], r.execution = nil, many(1), "successor"
			p, err := r.extract()
			must(t, err)
			m, err := snapshot.ReadManifest(t.Context(), r.raw, r.batch, p.Extraction)
			must(t, err)
			if got := strings.Join(r.asked, " "); got != tc.asked || p.Extraction != tc.extraction || m.Pages != 3 || m.Records != 6 {
				t.Errorf("asked %s, want %s; %+v; %+v", got, tc.asked, p, m)
			}
			if said := strings.Contains(r.lines.String(), "source.query"); said != (tc.extraction == 2) {
				t.Errorf("log %q", r.lines.String())
			}
		})
	}
}

// TestRejectedBody: a body that is no page is kept for people, where no event and no reader takes it for a part. R1, R6
func TestRejectedBody(t *testing.T) {
	r := newRig(t, rigFile, many(1))
	r.body = `{"data":{"surprise":true}}`
	_, err := r.extract()
	wantKind(t, err, etl.SourceMalformed, "attempt 2 of 2", "_rejected/page-")
	var kept []string
	for info, err := range r.raw.List(t.Context(), etl.ExtractionPrefix(r.batch, 1)) {
		must(t, err)
		kept = append(kept, info.Key)
	}
	if len(kept) != 1 || !strings.Contains(kept[0], "/_rejected/") || strings.HasSuffix(kept[0], ".json.gz") {
		t.Fatalf("objects %v", kept)
	}
	if info, err := r.raw.Head(t.Context(), kept[0]); err != nil || info.Size != int64(len(r.body)) {
		t.Errorf("%+v, %v", info, err)
	}
	r.body = ""
	if p, err := r.extract(); err != nil || p.Status != etl.StatusLanded {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestFailureKeepsPages: the pages before a failure are landed. R17
func TestFailureKeepsPages(t *testing.T) {
	r := newRig(t, largeParts, many(1), rec("b", 1, "x"), "broken")
	_, err := r.extract()
	wantKind(t, err, etl.SourceMalformed)
	if f := r.footers(1); len(f) != 1 || len(f[0].Pages) != 2 {
		t.Errorf("%+v", f)
	}
	if b, err := r.ledger.Get(t.Context(), r.batch); err != nil || b.Parts != 1 || b.Pages != 2 || b.Records != 2 || b.Bytes == 0 || b.Retries != 1 {
		t.Errorf("%+v, %v", b, err)
	}
	r.asked, r.pages[2] = nil, rec("c", 1, "x")
	_, err = r.extract()
	must(t, err)
	if got := strings.Join(r.asked, " "); got != "3" {
		t.Errorf("asked %s", got)
	}
}

// TestIgnoredParameter: a page that is the one before it ends the extraction, also where that one landed long ago. B9
func TestIgnoredParameter(t *testing.T) {
	r := newRig(t, rigFile, many(2), many(2), many(2))
	for _, asked := range []string{"1 2", "2"} {
		r.asked = nil
		_, err := r.extract()
		wantKind(t, err, etl.SourceLoops, "page 1 has the same 2 records as page 0", "source.paginate.page.param")
		if got := strings.Join(r.asked, " "); got != asked {
			t.Errorf("asked %s, want %s", got, asked)
		}
	}
	r.pages[1], r.pages[2] = rec("c", 1, "x"), rec("d", 1, "x")
	p, err := r.extract()
	must(t, err)
	if m := r.manifest(); p.Status != etl.StatusLanded || m.Pages != 3 {
		t.Errorf("%+v, %+v", p, m)
	}
}

// TestInterruptedExtract: what was fetched before an interruption is landed, and not fetched again. R17
func TestInterruptedExtract(t *testing.T) {
	for _, down := range []bool{false, true} {
		r := newRig(t, largeParts, many(1), many(2), many(3))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r.onAsk = func(page string) {
			if page == "3" {
				cancel()
			}
		}
		r.onCall = func(op, _ string) (bool, error) {
			if down && op == "PutOnce" {
				return false, errDown
			}
			return true, nil
		}
		_, err := r.Extract.Run(ctx, etl.ExtractInput{Execution: r.execution, Request: r.request()})
		wantKind(t, err, etl.Interrupted)
		if said := strings.Contains(r.lines.String(), "pages=2"); said != down {
			t.Errorf("down %v: log %q", down, r.lines.String())
		}
		r.onAsk, r.onCall, r.asked = nil, nil, nil
		b, err := r.ledger.Get(t.Context(), r.batch)
		if must(t, err); !down && (b.Pages != 2 || b.Records != 3) {
			t.Errorf("%+v", b)
		}
		_, err = r.extract()
		must(t, err)
		if got := strings.Join(r.asked, " "); got != map[bool]string{false: "3", true: "1 2 3"}[down] {
			t.Errorf("down %v: asked %s", down, got)
		}
	}
}

// TestRetriesAddUp: what a call that failed has counted is not lost on the next one, redriven or by another execution, and
// nothing is counted twice. R8
func TestRetriesAddUp(t *testing.T) {
	r := newRig(t, rigFile, "broken")
	in := etl.ExtractInput{Execution: r.execution, Request: r.request()}
	for try := 1; try <= 3; try++ {
		_, err := r.Extract.Run(t.Context(), in)
		wantKind(t, err, etl.SourceMalformed)
		if b, err := r.ledger.Get(t.Context(), r.batch); err != nil || b.Retries != try || b.WaitedMS != int64(try)*750 {
			t.Errorf("try %d: %d retries, %d ms waited, %v", try, b.Retries, b.WaitedMS, err)
		}
		must(t, r.ledger.RecordFailure(t.Context(), r.batch.String(), &r.batch, r.execution, ledger.FailureInfo{ID: fmt.Sprint(try)}))
	}
	in.Execution, r.pages = "successor", []string{many(1)}
	p, err := r.Extract.Run(t.Context(), in)
	if must(t, err); p.Retries != 3 || p.WaitedMS != 2250 {
		t.Errorf("%+v", p)
	}
}

var wider = strings.Replace(rigFile, "every: 1h", "every: 1h\nlookback: 1h", 1)

// TestWindowChanged: an open batch keeps the window that it landed pages under, whoever goes on with it. R13
func TestWindowChanged(t *testing.T) {
	r := newRig(t, rigFile, many(1), "broken")
	in := etl.ExtractInput{Execution: r.execution, Request: r.request()}
	_, err := r.extract()
	wantKind(t, err, etl.SourceMalformed)
	must(t, r.ledger.RecordFailure(t.Context(), r.batch.String(), &r.batch, r.execution, ledger.FailureInfo{ID: "f"}))
	r.swap(wider)
	_, err = r.Extract.Run(t.Context(), in) // a redrive
	wantKind(t, err, etl.WindowChanged, "onceload reprocess rows/20261130T100000Z --refetch")
	r.execution = "successor"
	_, err = r.extract()
	wantKind(t, err, etl.WindowChanged, "onceload reprocess rows/20261130T100000Z --refetch")
	req := r.request()
	req.Refetch = true
	r.pages = []string{many(1)}
	p, err := r.Extract.Run(t.Context(), etl.ExtractInput{Execution: r.execution, Request: req})
	must(t, err)
	m, err := snapshot.ReadManifest(t.Context(), r.raw, r.batch, 2)
	must(t, err)
	if p.Extraction != 2 || m.Window.Start != r.batch.Slot.Add(-time.Hour) {
		t.Errorf("%+v, window %s", p, m.Window)
	}
}

// TestWindowTaken: where nothing has landed, another run takes the file's window; a page of the old one that lands late is
// in no manifest. R13, B6
func TestWindowTaken(t *testing.T) {
	r := newRig(t, rigFile, "broken")
	_, err := r.extract()
	wantKind(t, err, etl.SourceMalformed)
	r.swap(wider)
	r.execution, r.pages = "successor", []string{many(3)}
	p, err := r.extract()
	must(t, err)
	r.rival(0, many(9))
	m, err := snapshot.ReadManifest(t.Context(), r.raw, r.batch, 2)
	must(t, err)
	if p.Extraction != 2 || m.Window.Start != r.batch.Slot.Add(-time.Hour) || m.Records != 3 {
		t.Errorf("%+v, manifest %+v", p, m)
	}
	if !strings.Contains(r.lines.String(), "nothing had landed under the old one") {
		t.Errorf("log %q", r.lines.String())
	}
}

// TestExtractRefuses: what can never be a batch of the pipeline is refused before anything is claimed. R12, R26
func TestExtractRefuses(t *testing.T) {
	r := newRig(t, rigFile, many(1))
	for name, req := range map[string]etl.Request{
		"no slot":       {Pipeline: "rows"},
		"odd slot":      {Pipeline: "rows", Slot: "2026-11-30T10:30:00Z"},
		"open window":   {Pipeline: "rows", Slot: "2026-11-30T12:00:00Z"},
		"two wishes":    {Pipeline: "rows", Slot: "2026-11-30T10:00:00Z", Reload: true, Refetch: true},
		"two schedules": {Pipeline: "rows", Slot: "2026-11-30T10:00:00Z", ScheduledTime: "2026-11-30T11:00:00Z"},
	} {
		_, err := r.Extract.Run(t.Context(), etl.ExtractInput{Execution: "mine", Request: req})
		if etl.KindOf(err) != etl.Usage {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(r.table.Items()) + len(r.asked); n > 0 {
		t.Errorf("%d items and requests", n)
	}
}

// TestForeignPart: a part that is no part stops the extraction instead of being overwritten or passed over. R23
func TestForeignPart(t *testing.T) {
	r := newRig(t, rigFile, many(1))
	must(t, r.raw.PutOnce(t.Context(), etl.RawPartKey(r.batch, 1, 0), []byte("nonsense")))
	_, err := r.extract()
	wantKind(t, err, etl.RecordsLost, "part-00000.json.gz")
	if _, err := snapshot.ReadManifest(t.Context(), r.raw, r.batch, 1); err == nil {
		t.Error("there is a manifest")
	}
}

// TestExtractCalls: an extraction that waits and waits ends before the execution's history is full.
func TestExtractCalls(t *testing.T) {
	r := newRig(t, rigFile, many(1))
	in := etl.ExtractInput{Execution: r.execution, Request: r.request(), Progress: etl.Progress{Calls: 1500}}
	_, err := r.Extract.Run(t.Context(), in)
	wantKind(t, err, etl.BatchTooLarge, "1500 calls", "run the batch again")
	in.Progress.Calls = 1499
	p, err := r.Extract.Run(t.Context(), in)
	must(t, err)
	if p.Status != etl.StatusLanded || p.Calls != 1500 {
		t.Errorf("%+v", p)
	}
}

// TestReloadOfAnOpenBatch: a batch that is not completed goes on where it stopped, and a reload it was asked for is said
// to have no effect; an open reload goes on as one. R20
func TestReloadOfAnOpenBatch(t *testing.T) {
	r := newRig(t, rigFile, many(2))
	claim := func(execution string) {
		t.Helper()
		in := etl.ExtractInput{Execution: execution, Request: r.request()}
		in.Request.Reload = true
		p, err := r.Extract.Run(t.Context(), in)
		must(t, err)
		if p.Status != etl.StatusLanded {
			t.Fatalf("%+v", p)
		}
		in.Progress = p
		_, err = r.Extract.Run(t.Context(), in) // a later call of the same execution does not say it again
		must(t, err)
		r.execution = execution
	}
	says := func(what string, want bool) {
		t.Helper()
		n := strings.Count(r.lines.String(), "reload has no effect")
		if want && n != 1 || !want && n > 0 {
			t.Errorf("%s: it said %q", what, r.lines.String())
		}
		r.lines.Reset()
	}
	claim("first")
	says("a batch that was never run", true)
	claim("second")
	says("an open batch", true)
	p, g := r.bound()
	must(t, r.load(p, g))
	_, err := r.settle(p, g)
	must(t, err)
	claim("third")
	says("a completed batch", false)
	claim("fourth")
	says("an open reload", false)
}
