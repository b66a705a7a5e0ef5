package stage

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// keyReader walks a part's sorted key digests.
type keyReader struct {
	key string
	obj io.ReadCloser
	buf *bufio.Reader
	at  [16]byte // the current digest, while end is false
	end bool
}

func openKeys(ctx context.Context, from store.Objects, key string) (*keyReader, error) {
	obj, err := from.Get(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	r := &keyReader{key: key, obj: obj, buf: bufio.NewReader(obj)}
	if err := r.next(); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *keyReader) next() error {
	_, err := io.ReadFull(r.buf, r.at[:])
	switch {
	case errors.Is(err, io.EOF):
		r.end = true
	case errors.Is(err, io.ErrUnexpectedEOF):
		return etl.Errorf(etl.RecordsLost, "read %s: it ends inside a key", r.key)
	case err != nil:
		return fmt.Errorf("read %s: %w", r.key, err)
	}
	return nil
}

// close ends reading. What the object was read for is in hand by then, so an error of closing changes nothing.
func (r *keyReader) close() { _ = r.obj.Close() }
