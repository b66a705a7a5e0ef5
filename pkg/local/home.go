// Package local runs pipelines on this machine: a home folder with raw/ and stage/ for objects and onceload.db for the
// ledger, the targets and the history of executions, file locks for liveness, and secrets from the environment. With
// the stores of AWS instead, the home keeps locks and history alone.
package local

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
	"github.com/onceload/onceload/pkg/pipeline"
	"github.com/onceload/onceload/pkg/runner"
	"github.com/onceload/onceload/pkg/source"
	"github.com/onceload/onceload/pkg/stage"
	"github.com/onceload/onceload/pkg/store"
	"github.com/onceload/onceload/pkg/store/cloud"
	"github.com/onceload/onceload/pkg/store/disk"
)

// Options open a home. All but Dir may be zero.
type Options struct {
	Dir      string                      // made if need be
	OnAWS    bool                        // objects, ledger and targets in S3 and DynamoDB, named and reached by the environment
	Pipeline string                      // name or path of the pipeline file the commands speak of
	Source   string                      // replaces scheme and host of its source
	Lookup   func(string) (string, bool) // environment; default os.LookupEnv
	Watch    func(stage.Tick)
	Log      *slog.Logger
	HTTP     *http.Client
	Now      func() time.Time
	Sleep    func(context.Context, time.Duration) error
	Rand     func() float64
	NewID    func() string // last part of execution ids; default random
}

// Home is an open home folder.
type Home struct {
	opts    Options
	db      *disk.DB // locks and history; with the embedded stores ledger and targets too
	raw     store.Objects
	stage   store.Objects
	target  func(context.Context, store.Schema) (store.Table, error)
	names   cloud.Names // of the stores on AWS
	ledger  *ledger.Ledger
	history *history
	locks   *locks
}

// Open opens the home folder, which it makes if need be. The caller closes it.
func Open(ctx context.Context, o Options) (_ *Home, err error) {
	if o.Lookup == nil {
		o.Lookup = os.LookupEnv
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.NewID == nil {
		o.NewID = newID
	}
	h := &Home{opts: o}
	defer func() {
		if err != nil && h.db != nil {
			err = errors.Join(err, h.db.Close())
		}
		if err != nil {
			err = cmp.Or(readOnly(o.Dir), err)
		}
	}()
	if err := makeDirs(o.Dir, "locks"); err != nil {
		return nil, err
	}
	if h.db, err = disk.OpenDB(ctx, filepath.Join(o.Dir, "onceload.db")); err != nil {
		return nil, err
	}
	open := h.openDisk
	if o.OnAWS {
		open = h.openAWS
	}
	if err := open(ctx); err != nil {
		return nil, err
	}
	if h.history, err = openHistory(ctx, h.db.SQL()); err != nil {
		return nil, err
	}
	h.locks = &locks{dir: filepath.Join(o.Dir, "locks"), history: h.history, shared: o.OnAWS}
	return h, nil
}

// openDisk opens the embedded stores.
func (h *Home) openDisk(ctx context.Context) error {
	if err := makeDirs(h.opts.Dir, "raw", "stage"); err != nil {
		return err
	}
	raw, err := disk.OpenObjects(filepath.Join(h.opts.Dir, "raw"))
	if err != nil {
		return err
	}
	staged, err := disk.OpenObjects(filepath.Join(h.opts.Dir, "stage"))
	if err != nil {
		return err
	}
	table, err := h.db.Table(ctx, ledger.Schema())
	if err != nil {
		return err
	}
	h.raw, h.stage, h.ledger = raw, staged, &ledger.Ledger{Table: table, Now: h.opts.Now}
	h.target = once(h.db)
	return nil
}

// once opens each target once, and keeps it until the database is closed: every item of a Map asks for it.
func once(db *disk.DB) func(context.Context, store.Schema) (store.Table, error) {
	type key struct {
		name string
		sort bool
	}
	var mu sync.Mutex
	open := map[key]store.Table{}
	return func(ctx context.Context, s store.Schema) (store.Table, error) {
		mu.Lock()
		defer mu.Unlock()
		k := key{s.Name, s.SortKey}
		if t, ok := open[k]; ok {
			return t, nil
		}
		t, err := db.Table(ctx, s)
		if err != nil {
			return nil, err
		}
		open[k] = t
		return t, nil
	}
}

// openAWS opens the stores that the environment names.
func (h *Home) openAWS(ctx context.Context) error {
	names, err := cloud.ParseNames(h.opts.Lookup)
	if err != nil {
		return err
	}
	cfg, err := cloud.Load(ctx)
	if err != nil {
		return err
	}
	s := cloud.Open(cfg, names)
	h.names = names
	h.raw, h.stage, h.ledger = s.Raw, s.Stage, &ledger.Ledger{Table: s.Ledger(ledger.Schema()), Now: h.opts.Now}
	h.target = func(_ context.Context, schema store.Schema) (store.Table, error) { return s.Target(schema), nil }
	return nil
}

// readOnly says that the home may be read and not written, if that is so. Its database cannot be opened then: SQLite keeps a
// log beside it, for readers too.
func readOnly(home string) error {
	f, err := os.CreateTemp(home, "")
	if err == nil {
		return errors.Join(f.Close(), os.Remove(f.Name()))
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return etl.Errorf(etl.StoreUnavailable, "the folder may not be written, which even looking into its database needs: copy the folder to where you may write, and name the copy with --home (%w)", err)
	}
	return nil
}

func makeDirs(home string, names ...string) error {
	for _, name := range names {
		if err := os.MkdirAll(filepath.Join(home, name), 0o755); err != nil {
			return etl.Errorf(etl.StoreUnavailable, "open home: %w", err)
		}
	}
	return nil
}

// Close closes the home.
func (h *Home) Close() error { return h.db.Close() }

// find reads an origin's pipeline file.
func find(from origin) (*pipeline.Pipeline, error) {
	p, err := pipeline.Find(from.Pipeline)
	if err != nil || from.Source == "" {
		return p, err
	}
	return source.Rebase(p, from.Source)
}

// openTarget opens a pipeline's target table.
func (h *Home) openTarget(ctx context.Context, p *pipeline.Pipeline) (store.Table, error) {
	return h.target(ctx, store.Schema{Name: p.Target.Table, SortKey: len(p.Target.Sort) > 0})
}

// stages wires the stages over this home. The pipeline file is read once: what a run began with, it ends with.
func (h *Home) stages(p *pipeline.Pipeline) *stage.Stages {
	return stage.New(stage.Deps{
		Raw: h.raw, Stage: h.stage, Ledger: h.ledger,
		Target: h.openTarget,
		Pipelines: func(name string) (*pipeline.Pipeline, error) {
			if name != p.Name {
				return nil, etl.Errorf(etl.Usage, "this run is of pipeline %s, not of %s", p.Name, name)
			}
			return p, nil
		},
		Liveness: h.locks, Secrets: environment{h.opts.Lookup},
		HTTP: h.opts.HTTP, Log: h.opts.Log, Now: h.opts.Now, Sleep: h.opts.Sleep, Rand: h.opts.Rand, Watch: h.opts.Watch,
	})
}

// runner runs the state machine over the stages.
func (h *Home) runner(p *pipeline.Pipeline) *runner.Runner {
	return &runner.Runner{
		Handlers: h.stages(p).Handlers(), History: h.history,
		Log: h.opts.Log, Now: h.opts.Now, Sleep: h.opts.Sleep, Rand: h.opts.Rand,
		// A function is a goroutine here, not a machine of its own: more of them than processors gain nothing.
		Concurrency: runtime.GOMAXPROCS(0),
	}
}
