// Package mem keeps objects and tables in memory, with a hook that makes any call fail the way a network does: refused,
// or carried out with its reply lost. Tests and the fault simulation stand on it.
package mem

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/onceload/onceload/pkg/store"
)

// Fault is a hook consulted before every call, with the method's name and the key at hand: an object's key or prefix,
// an item's `pk` or `pk/sk`. PutHigher asks once an item, so that it can fail half-way; PutAllHigher asks once, with its
// first item's key. (true, nil) lets the call pass. (false, err) refuses it. (true, err) carries it out and loses the reply.
type Fault func(op, key string) (apply bool, err error)

// calls counts the calls and consults the hook.
type calls struct {
	mu    sync.Mutex
	count map[string]int
}

func (c *calls) add(ctx context.Context, op string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count == nil {
		c.count = make(map[string]int)
	}
	c.count[op]++
	return ctx.Err()
}

// Calls is how often each method was called.
func (c *calls) Calls() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.count)
}

func (f Fault) ask(op, key string) (apply bool, err error) {
	if f == nil {
		return true, nil
	}
	apply, err = f(op, key)
	if err != nil {
		err = fmt.Errorf("%s %s: %w", op, key, err)
	}
	return apply || err == nil, err
}

// Objects is a [store.Objects] in memory. Set OnCall before the first call. It is safe for concurrent use.
type Objects struct {
	OnCall Fault
	calls

	mu   sync.RWMutex
	held map[string][]byte
}

// NewObjects returns an empty bucket.
func NewObjects() *Objects { return &Objects{held: make(map[string][]byte)} }

// begin does what every call begins with.
func (o *Objects) begin(ctx context.Context, op, key string) (apply bool, err error) {
	check := store.CheckObjectKey
	if op == "List" {
		check = store.CheckPrefix
	}
	if err := o.add(ctx, op); err != nil {
		return false, fmt.Errorf("%s %s: %w", op, key, err)
	}
	if err := check(key); err != nil {
		return false, fmt.Errorf("%s: %w", op, err)
	}
	return o.OnCall.ask(op, key)
}

// PutOnce implements [store.Objects].
func (o *Objects) PutOnce(ctx context.Context, key string, body []byte) error {
	apply, err := o.begin(ctx, "PutOnce", key)
	if !apply {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.held[key]; ok {
		if err == nil {
			err = fmt.Errorf("put once %s: %w", key, store.ErrExists)
		}
		return err
	}
	o.held[key] = append([]byte{}, body...)
	return err
}

// Put implements [store.Objects].
func (o *Objects) Put(ctx context.Context, key string, body io.Reader) error {
	apply, err := o.begin(ctx, "Put", key)
	if !apply {
		return err
	}
	all, readErr := io.ReadAll(body)
	if readErr != nil {
		return fmt.Errorf("put %s: %w", key, readErr)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held[key] = all
	return err
}

func (o *Objects) get(ctx context.Context, op, key string) ([]byte, error) {
	if _, err := o.begin(ctx, op, key); err != nil {
		return nil, err
	}
	o.mu.RLock()
	defer o.mu.RUnlock()
	body, ok := o.held[key]
	if !ok {
		return nil, fmt.Errorf("%s %s: %w", op, key, store.ErrNotFound)
	}
	return body, nil
}

// Get implements [store.Objects].
func (o *Objects) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	body, err := o.get(ctx, "Get", key)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(body)), nil
}

// GetRange implements [store.Objects].
func (o *Objects) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	if err := store.CheckRange(off, n); err != nil {
		return nil, fmt.Errorf("get %s: %w", key, err)
	}
	body, err := o.get(ctx, "GetRange", key)
	if err != nil {
		return nil, err
	}
	size := int64(len(body))
	if off < 0 {
		off = max(0, size-n)
	}
	off = min(off, size)
	return bytes.Clone(body[off : off+min(n, size-off)]), nil
}

// Head implements [store.Objects].
func (o *Objects) Head(ctx context.Context, key string) (store.Info, error) {
	body, err := o.get(ctx, "Head", key)
	if err != nil {
		return store.Info{}, err
	}
	return store.Info{Key: key, Size: int64(len(body))}, nil
}

// List implements [store.Objects].
func (o *Objects) List(ctx context.Context, prefix string) iter.Seq2[store.Info, error] {
	return func(yield func(store.Info, error) bool) {
		if _, err := o.begin(ctx, "List", prefix); err != nil {
			yield(store.Info{}, err)
			return
		}
		var found []store.Info
		o.mu.RLock()
		for key, body := range o.held {
			if strings.HasPrefix(key, prefix) {
				found = append(found, store.Info{Key: key, Size: int64(len(body))})
			}
		}
		o.mu.RUnlock()
		slices.SortFunc(found, func(a, b store.Info) int { return strings.Compare(a.Key, b.Key) })
		for _, info := range found {
			if err := ctx.Err(); err != nil {
				yield(store.Info{}, fmt.Errorf("list %s: %w", prefix, err))
				return
			}
			if !yield(info, nil) {
				return
			}
		}
	}
}

// Delete removes an object, as a lifecycle rule or a person would.
func (o *Objects) Delete(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.held, key)
}
