package stage_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/stage"
	"github.com/onceload/onceload/pkg/store/mem"
)

// damages are what may become of a stage object. A nil body is one that is gone.
var damages = map[string]func(body []byte) []byte{
	"gone":       func([]byte) []byte { return nil },
	"cut short":  func(body []byte) []byte { return body[:len(body)/2] },
	"empty":      func([]byte) []byte { return []byte{} },
	"a flip":     func(body []byte) []byte { body[len(body)/2] ^= 0x55; return body },
	"other text": func([]byte) []byte { return zipped("[]") },
}

func zipped(text string) []byte {
	return []byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\x01" + string([]byte{byte(len(text)), 0, ^byte(len(text)), 0xff}) + text + "\x00\x00\x00\x00")
}

// damage does to the stage object of a part what may become of it, and returns what it was.
func (r *rig) damage(kind etl.ObjectKind, bind etl.Binding, part int, what func([]byte) []byte) (key string, before []byte) {
	r.t.Helper()
	key = etl.StageKey(kind, r.batch, bind, part)
	before = r.object(key)
	r.stage.Delete(key)
	if body := what(slices.Clone(before)); body != nil {
		must(r.t, r.stage.Put(r.t.Context(), key, bytes.NewReader(body)))
	}
	return key, before
}

func (r *rig) object(key string) []byte {
	r.t.Helper()
	obj, err := r.stage.Get(r.t.Context(), key)
	must(r.t, err)
	body, err := io.ReadAll(obj)
	must(r.t, err)
	return body
}

// TestGateKeysDamaged: keys that are gone, or are not those of the part's record, are made again by Transform, whether the
// execution goes on at its gate or another takes the batch over; Gate counts no duplicates by them. R22, R23
func TestGateKeysDamaged(t *testing.T) {
	const file = rigFile + "checks: {min_records: 1000, max_duplicate_ratio: 0.2}\n"
	const mended = rigFile + "checks: {max_duplicate_ratio: 0.2}\n"
	for name, what := range damages {
		for _, way := range []string{"redrive", "run"} {
			t.Run(name+", "+way, func(t *testing.T) {
				r := newRig(t, file, many(8), join(rec("id0", 2, "x"), rec("c", 1, "x")))
				p := r.landed()
				_, err := r.gate(p, 0)
				wantKind(t, err, etl.CheckFailed)
				b, err := r.ledger.Get(t.Context(), r.batch)
				must(t, err)
				key, before := r.damage(etl.Keys, *b.Tried, 0, what)
				r.swap(mended)
				if way == "run" {
					r.execution = "another"
					p = r.landed()
				} else {
					g, err := r.gate(p, 0)
					must(t, err)
					if g.Status != etl.StatusStale || g.Stale != 1 {
						t.Fatalf("%+v", g)
					}
					r.transform(p)
				}
				if !bytes.Equal(r.object(key), before) {
					t.Error("the keys are not what they were")
				}
				g, err := r.gate(p, 1)
				must(t, err)
				if g.Status != etl.StatusPassed {
					t.Fatalf("%+v", g)
				}
				must(t, r.load(p, g))
				_, err = r.settle(p, g)
				must(t, err)
			})
		}
		t.Run(name+", again and again", func(t *testing.T) {
			r := newRig(t, mended, many(8))
			p := r.landed()
			for stale := range 4 {
				b, err := r.ledger.Transforms(t.Context(), r.batch, r.binding())
				must(t, err)
				r.damage(etl.Keys, r.binding(), b[0].Part, what)
				g, err := r.gate(p, stale)
				if stale == 3 {
					wantKind(t, err, etl.RecordsLost, "made 3 times")
					continue
				}
				must(t, err)
				if g.Status != etl.StatusStale {
					t.Fatalf("%+v", g)
				}
				r.transform(p)
			}
		})
	}
	t.Run("after a load that failed", func(t *testing.T) {
		r := newRig(t, mended, many(8))
		_, g := r.bound()
		r.execution = "another"
		p, err := r.extract()
		must(t, err)
		r.damage(etl.Keys, g.Binding, 0, damages["a flip"])
		g, err = r.gate(p, 0)
		must(t, err)
		if g.Status != etl.StatusStale {
			t.Fatalf("%+v", g)
		}
		r.transform(p)
		if g, err = r.gate(p, 1); err != nil || g.Status != etl.StatusPassed {
			t.Errorf("%+v, %v", g, err)
		}
	})
	t.Run("the store fails", func(t *testing.T) {
		r := newRig(t, mended, many(8))
		p := r.landed()
		r.onCall = func(op, key string) (bool, error) {
			if key == etl.StageKey(etl.Keys, r.batch, r.binding(), 0) {
				return false, errDown
			}
			return true, nil
		}
		_, err := r.gate(p, 0)
		wantKind(t, err, etl.StoreUnavailable)
	})
}

// binding is what the rig's batch has under its file.
func (r *rig) binding() etl.Binding {
	return etl.Binding{Extraction: 1, Revision: etl.Revision{Contract: r.file.Contract.Revision, Engine: 1}, Contract: r.short()}
}

// TestQuarantineDamaged: a quarantine object that is not what its record says is made again before its part is loaded. R23
func TestQuarantineDamaged(t *testing.T) {
	for name, what := range damages {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rigFile, join(many(3), bad(2)))
			p, g := r.bound()
			key, before := r.damage(etl.Quarantine, g.Binding, 0, what)
			must(t, r.load(p, g))
			if !bytes.Equal(r.object(key), before) {
				t.Error("it is not what it was")
			}
		})
	}
}

// TestMergeVerifies: keys are held against the digest of their record, in one run or in several. R23
func TestMergeVerifies(t *testing.T) {
	for _, keys := range []int{1, 1000, stage.MaxRun, stage.MaxRun + 1} {
		t.Run(fmt.Sprint(keys), func(t *testing.T) {
			body := make([]byte, 16*keys)
			sum := sha256.Sum256(body)
			objects := mem.NewObjects()
			must(t, objects.Put(t.Context(), "good", bytes.NewReader(body)))
			body[len(body)-1] = 1
			must(t, objects.Put(t.Context(), "bad", bytes.NewReader(body)))
			must(t, stage.VerifyKeys(t.Context(), objects, "good", int64(keys), hex.EncodeToString(sum[:])))
			wantKind(t, stage.VerifyKeys(t.Context(), objects, "bad", int64(keys), hex.EncodeToString(sum[:])), etl.RecordsLost, "its digest")
		})
	}
}

// TestManifestChanged: a manifest that holds together and is not the one that was committed stops Gate, and an execution
// that takes the batch over; a new extraction is not held against it. One that is gone may be written anew. R23
func TestManifestChanged(t *testing.T) {
	change := func(r *rig) {
		key := etl.ManifestKey(r.batch, 1)
		obj, err := r.raw.Get(t.Context(), key)
		must(t, err)
		body, err := io.ReadAll(obj)
		must(t, err)
		changed := bytes.Replace(body, []byte("2026-11-30T10:00:00Z"), []byte("2026-11-30T09:00:00Z"), 1)
		if bytes.Equal(body, changed) {
			t.Fatalf("no window in %s", body)
		}
		must(t, r.raw.Put(t.Context(), key, bytes.NewReader(changed)))
	}
	r := newRig(t, rigFile+"checks: {min_records: 10}\n", many(2))
	p := r.landed()
	_, err := r.gate(p, 0)
	wantKind(t, err, etl.CheckFailed)
	change(r)
	_, err = r.gate(p, 0)
	wantKind(t, err, etl.RecordsLost, "_manifest.json", "the ledger says")
	r.execution = "another"
	_, err = r.extract()
	wantKind(t, err, etl.RecordsLost, "_manifest.json", "the ledger says")

	r.raw.Delete(etl.ManifestKey(r.batch, 1))
	r.swap(rigFile) // whose digest is in the new one
	r.execution = "a third"
	p = r.landed()
	g, err := r.gate(p, 0)
	must(t, err)
	must(t, r.load(p, g))
	_, err = r.settle(p, g)
	must(t, err)

	change(r)
	r.execution = "refetch"
	p, err = r.Extract.Run(t.Context(), etl.ExtractInput{Execution: r.execution, Request: etl.Request{Pipeline: "rows", Slot: etl.FormatTime(r.batch.Slot), Refetch: true}})
	must(t, err)
	if p.Status != etl.StatusLanded || p.Extraction != 2 {
		t.Errorf("%+v", p)
	}
}
