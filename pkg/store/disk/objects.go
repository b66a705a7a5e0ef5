// Package disk keeps objects as files in a folder and tables in a SQLite file, for runs on a laptop. Both withstand
// several processes at once and kill -9 at any moment, and both open with everyday tools: ls, zcat, sqlite3, duckdb.
package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// tempPrefix begins the names of files under way. No key has a ~, so what a killed process leaves behind is never listed.
const tempPrefix = "~"

// Objects is a [store.Objects] in a folder: an object's key is its path there.
type Objects struct{ dir string }

// OpenObjects returns the bucket in dir, which it makes if need be. Errors are of kind StoreUnavailable.
func OpenObjects(dir string) (*Objects, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("open objects: %w", fileError(err))
	}
	return &Objects{dir: dir}, nil
}

// fileError classifies what the operating system says.
func fileError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w (%w)", store.ErrNotFound, err)
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%w (%w)", store.ErrExists, err)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENAMETOOLONG):
		return etl.Errorf(etl.Internal, "an object's key cannot also be a folder, nor be too long for the file system: %w", err)
	}
	return etl.Errorf(etl.StoreUnavailable, "%w", err)
}

func (o *Objects) path(key string) string { return filepath.Join(o.dir, filepath.FromSlash(key)) }

// begin does what every call begins with.
func begin(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return store.CheckObjectKey(key)
}

// PutOnce implements [store.Objects]: a link from a finished file to a name either takes effect or finds the name taken.
func (o *Objects) PutOnce(ctx context.Context, key string, body []byte) error {
	if err := o.putOnce(ctx, key, body); err != nil {
		return fmt.Errorf("put once %s: %w", key, err)
	}
	return nil
}

func (o *Objects) putOnce(ctx context.Context, key string, body []byte) error {
	if err := begin(ctx, key); err != nil {
		return err
	}
	path := o.path(key)
	if err := regular(path); err == nil {
		// Another process may have linked it just now and not yet synced the folder.
		if err := syncDir(filepath.Dir(path)); err != nil {
			return err
		}
		return store.ErrExists
	} else if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	temp, err := o.write(ctx, path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	linkErr := fileError(os.Link(temp, path))
	if err := os.Remove(temp); err != nil {
		return fileError(err)
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return err
	}
	return linkErr
}

// Put implements [store.Objects].
func (o *Objects) Put(ctx context.Context, key string, body io.Reader) error {
	if err := o.put(ctx, key, body); err != nil {
		return fmt.Errorf("put %s: %w", key, err)
	}
	return nil
}

func (o *Objects) put(ctx context.Context, key string, body io.Reader) error {
	if err := begin(ctx, key); err != nil {
		return err
	}
	path := o.path(key)
	temp, err := o.write(ctx, path, body)
	if err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return errors.Join(fileError(err), os.Remove(temp))
	}
	return syncDir(filepath.Dir(path))
}

// write puts body into a synced file beside path and returns its name. After an error there is no such file.
func (o *Objects) write(ctx context.Context, path string, body io.Reader) (name string, err error) {
	dir := filepath.Dir(path)
	if err := makeDir(dir); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return "", fileError(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	if err := copyBody(ctx, f, body); err != nil {
		return "", err
	}
	// CreateTemp makes files that only their owner reads; objects are as readable as the user's other files.
	if err := f.Chmod(0o644); err != nil {
		return "", fileError(err)
	}
	if err := f.Sync(); err != nil {
		return "", fileError(err)
	}
	return f.Name(), fileError(f.Close())
}

// copyBody copies, and keeps an error of body apart from one of the file.
func copyBody(ctx context.Context, f *os.File, body io.Reader) error {
	buf := make([]byte, 256<<10)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := body.Read(buf)
		if n > 0 {
			if _, err := f.Write(buf[:n]); err != nil {
				return fileError(err)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// makeDir makes dir and what is missing above it, each entry synced into its parent.
func makeDir(dir string) error {
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := makeDir(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o777); err != nil {
		// Another writer made it, or a file has its name.
		if info, statErr := os.Stat(dir); statErr == nil && !info.IsDir() {
			return fileError(&fs.PathError{Op: "mkdir", Path: dir, Err: syscall.ENOTDIR})
		} else if !errors.Is(err, fs.ErrExist) {
			return fileError(err)
		}
	}
	return syncDir(parent)
}

// syncDir makes a folder's entries durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fileError(err)
	}
	return errors.Join(fileError(d.Sync()), fileError(d.Close()))
}

// regular is nil if path is an object, ErrNotFound if nothing or only a folder is there.
func regular(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return absentError(err)
	}
	if info.IsDir() {
		return store.ErrNotFound
	}
	return nil
}

// absentError is fileError for reads: below a file there is nothing.
func absentError(err error) error {
	if errors.Is(err, syscall.ENOTDIR) {
		return store.ErrNotFound
	}
	return fileError(err)
}

// open opens an object for reading and tells its size.
func (o *Objects) open(ctx context.Context, key string) (*os.File, int64, error) {
	if err := begin(ctx, key); err != nil {
		return nil, 0, err
	}
	f, err := os.Open(o.path(key))
	if err != nil {
		return nil, 0, absentError(err)
	}
	info, err := f.Stat()
	if err == nil && !info.IsDir() {
		return f, info.Size(), nil
	}
	if err == nil {
		err = store.ErrNotFound
	} else {
		err = fileError(err)
	}
	return nil, 0, errors.Join(err, f.Close())
}

// Get implements [store.Objects].
func (o *Objects) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	f, _, err := o.open(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", key, err)
	}
	return &reader{ctx: ctx, f: f, key: key}, nil
}

// reader classifies the errors of a file and ends with its context.
type reader struct {
	ctx context.Context
	f   *os.File
	key string
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, fmt.Errorf("read %s: %w", r.key, err)
	}
	n, err := r.f.Read(p)
	if err == io.EOF { //nolint:errorlint // a wrapped EOF is a failure, not the end
		return n, io.EOF
	}
	if err != nil {
		err = fmt.Errorf("read %s: %w", r.key, fileError(err))
	}
	return n, err
}

func (r *reader) Close() error { return r.f.Close() }

// GetRange implements [store.Objects].
func (o *Objects) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	body, err := o.getRange(ctx, key, off, n)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", key, err)
	}
	return body, nil
}

func (o *Objects) getRange(ctx context.Context, key string, off, n int64) (body []byte, err error) {
	if err := store.CheckRange(off, n); err != nil {
		return nil, err
	}
	f, size, err := o.open(ctx, key)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if off < 0 {
		off = max(0, size-n)
	}
	body = make([]byte, min(n, size-min(off, size)))
	if _, err := f.ReadAt(body, off); err != nil && len(body) > 0 {
		return nil, fileError(err)
	}
	return body, nil
}

// Head implements [store.Objects].
func (o *Objects) Head(ctx context.Context, key string) (store.Info, error) {
	if err := begin(ctx, key); err != nil {
		return store.Info{}, fmt.Errorf("head %s: %w", key, err)
	}
	info, err := os.Stat(o.path(key))
	switch {
	case err != nil:
		return store.Info{}, fmt.Errorf("head %s: %w", key, absentError(err))
	case info.IsDir():
		return store.Info{}, fmt.Errorf("head %s: %w", key, store.ErrNotFound)
	}
	return store.Info{Key: key, Size: info.Size()}, nil
}

// List implements [store.Objects].
func (o *Objects) List(ctx context.Context, prefix string) iter.Seq2[store.Info, error] {
	return func(yield func(store.Info, error) bool) {
		err := store.CheckPrefix(prefix)
		if err == nil {
			folder := prefix[:strings.LastIndexByte(prefix, '/')+1]
			err = o.walk(ctx, folder, prefix, yield)
		}
		if err != nil && !errors.Is(err, errStop) {
			yield(store.Info{}, fmt.Errorf("list %s: %w", prefix, err))
		}
	}
}

// errStop ends an iteration whose consumer has seen enough.
var errStop = errors.New("stop")

// walk yields the objects of a folder (a key with a trailing slash, or nothing) that begin with prefix.
func (o *Objects) walk(ctx context.Context, folder, prefix string, yield func(store.Info, error) bool) error {
	entries, err := os.ReadDir(o.path(folder))
	if err != nil {
		if err = absentError(err); errors.Is(err, store.ErrNotFound) {
			return ctx.Err()
		}
		return err
	}
	keys := make([]string, 0, len(entries))
	for _, e := range entries {
		key := folder + e.Name()
		if e.IsDir() {
			key += "/" // sorts as the keys below it do
		}
		if !strings.HasPrefix(e.Name(), tempPrefix) && (strings.HasPrefix(key, prefix) || strings.HasPrefix(prefix, key)) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		if err := ctx.Err(); err != nil {
			return err
		}
		if strings.HasSuffix(key, "/") {
			if err := o.walk(ctx, key, prefix, yield); err != nil {
				return err
			}
			continue
		}
		if !strings.HasPrefix(key, prefix) {
			continue
		}
		info, err := os.Stat(o.path(key))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since
		}
		if err != nil {
			return fileError(err)
		}
		if !yield(store.Info{Key: key, Size: info.Size()}, nil) {
			return errStop
		}
	}
	return nil
}
