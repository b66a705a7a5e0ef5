package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// ReadPages streams the bodies of a landed part in order, one in memory at a time, and verifies each against the footer
// before it is yielded; a mismatch is an error of kind RecordsLost that names part and page. body is valid until yield
// returns. An error of yield ends the reading and comes back wrapped.
func ReadPages(ctx context.Context, raw store.Objects, f Footer, yield func(p Page, n int, body []byte) error) error {
	key, err := f.Key()
	if err != nil {
		return etl.Errorf(etl.Internal, "read pages: %w", err)
	}
	r, err := raw.Get(ctx, key)
	if err != nil {
		return fmt.Errorf("read pages of %s: %w", key, err)
	}
	defer r.Close() // everything wanted has been read and verified, or another error says why not
	var in inflater
	src := stream{r: r}
	// The buffers are made once: what one outgrows would stay until it is collected.
	var length, size int64
	for _, p := range f.Pages {
		length = max(length, p.Length)
		if plausible(p) {
			size = max(size, p.Size+1)
		}
	}
	member, body := make([]byte, 0, min(length, trusted)), make([]byte, 0, min(size, trusted))
	for n, p := range f.Pages {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read %s: page %d: %w", key, n, err)
		}
		if member, err = src.next(member, p.Length); err != nil {
			return fmt.Errorf("read %s: page %d: %w", key, n, err)
		}
		if body, err = verify(&in, body, member, p); err != nil {
			return fmt.Errorf("read %s: page %d: %w", key, n, err)
		}
		if err := yield(p, n, body); err != nil {
			return fmt.Errorf("%s: page %d: %w", key, n, err)
		}
	}
	return nil
}

// trusted is how much is allocated on a footer's word alone, before the bytes have come.
const trusted = 64 << 20

// plausible reports whether a page of that size can come of so many bytes.
func plausible(p Page) bool { return p.Size >= 0 && p.Size <= p.Length*maxRatio }

// verify inflates a page's member into buf and holds it against size and digest.
func verify(in *inflater, buf, member []byte, p Page) ([]byte, error) {
	if !plausible(p) {
		return buf, lost("%d bytes cannot come of %d", p.Size, p.Length)
	}
	body, err := in.inflate(slices.Grow(buf[:0], int(p.Size)+1), member, p.Size)
	if err != nil {
		return body, lost("%w", err)
	}
	if int64(len(body)) != p.Size {
		return body, lost("the body has %d bytes, %d were landed", len(body), p.Size)
	}
	if sum := digest(body); sum != p.SHA256 {
		return body, lost("the body's sha256 is %s, %s was landed", sum, p.SHA256)
	}
	return body, nil
}

// stream tells a store that fails from an object that ends too early: only the second has lost records.
type stream struct {
	r   io.Reader
	err error // of the store
}

func (s *stream) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// next reads the n bytes of a member into buf.
func (s *stream) next(buf []byte, n int64) ([]byte, error) {
	buf = buf[:0]
	// Grown as bytes arrive: a length that is not true must not cost memory.
	for int64(len(buf)) < n {
		step := int(min(n-int64(len(buf)), 1<<20))
		buf = slices.Grow(buf, step)
		k, err := io.ReadFull(s, buf[len(buf):len(buf)+step])
		buf = buf[:len(buf)+k]
		switch {
		case err == nil:
		case s.err == nil:
			return buf, lost("the object ends %d bytes early", n-int64(len(buf)))
		default:
			return buf, classified(s.err)
		}
	}
	return buf, nil
}

// classified gives an error of a store's reader a kind: what broke off can be read again.
func classified(err error) error {
	var e *etl.Error
	if errors.As(err, &e) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return etl.Errorf(etl.StoreUnavailable, "%w", err)
}
