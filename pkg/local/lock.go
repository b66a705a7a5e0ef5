package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofrs/flock"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/ledger"
)

// locks tell who is alive: a runner holds the file of its execution locked, and the operating system lets go of it
// however the process ends. It implements stage.Liveness.
type locks struct {
	dir     string
	history *history
	shared  bool // the ledger is shared with other homes and with deployed executions
}

func (l *locks) path(execution string) string {
	return filepath.Join(l.dir, strings.NewReplacer(":", "_", "/", "_").Replace(execution)+".lock")
}

// hold locks an execution for this process. It fails with kind Busy if another process holds it.
func (l *locks) hold(execution string) (release func() error, err error) {
	path := l.path(execution)
	for {
		f := flock.New(path)
		ok, err := f.TryLock()
		if err != nil {
			return nil, etl.Errorf(etl.StoreUnavailable, "lock %s: %w", execution, err)
		}
		if !ok {
			return nil, etl.Errorf(etl.Busy, "execution %s is running in another process", execution)
		}
		same, err := stillThere(f)
		if err != nil {
			return nil, errors.Join(err, f.Unlock())
		}
		if same {
			// Removed while it is held: whoever asks from now on finds no file, which means that nobody holds it.
			return func() error { return errors.Join(removeFile(path), f.Unlock()) }, nil
		}
		// Its last holder removed the file between our opening and our locking it: that lock binds nobody.
		if err := f.Unlock(); err != nil {
			return nil, etl.Errorf(etl.StoreUnavailable, "lock %s: %w", execution, err)
		}
	}
}

// stillThere reports whether the locked file is the one its path names.
func stillThere(f *flock.Flock) (bool, error) {
	held, err := f.Stat()
	if err != nil {
		return false, etl.Errorf(etl.StoreUnavailable, "lock: %w", err)
	}
	named, err := os.Stat(f.Path())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, etl.Errorf(etl.StoreUnavailable, "lock: %w", err)
	}
	return os.SameFile(held, named), nil
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return etl.Errorf(etl.StoreUnavailable, "remove lock: %w", err)
	}
	return nil
}

// Alive says whether a process holds the execution's lock.
func (l *locks) Alive(ctx context.Context, execution string) (ledger.Liveness, error) {
	_, known, err := l.history.origin(ctx, execution)
	if err != nil {
		return 0, err
	}
	if !known && l.shared {
		return 0, etl.Errorf(etl.StoreUnavailable, "execution %s did not begin in this home, so it cannot be told here whether it still runs: let it end, or stop it where it runs and redrive it there", execution)
	}
	if !known {
		return ledger.Unknown, nil
	}
	if _, err := os.Stat(l.path(execution)); errors.Is(err, fs.ErrNotExist) {
		return ledger.Ended, nil
	}
	f := flock.New(l.path(execution))
	ok, err := f.TryRLock() // shared: two that ask at once must not take each other for the holder
	if err != nil {
		return 0, etl.Errorf(etl.StoreUnavailable, "ask for the lock of %s: %w", execution, err)
	}
	if !ok {
		return ledger.Running, nil
	}
	if err := f.Unlock(); err != nil {
		return 0, etl.Errorf(etl.StoreUnavailable, "ask for the lock of %s: %w", execution, err)
	}
	return ledger.Ended, nil
}
