package stage

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"

	"github.com/onceload/onceload/pkg/etl"
)

// zippedLines streams the lines of a gzipped stage object, without their newlines, whatever their length; each is valid
// until yield returns. What is read goes to sum too.
func (c *core) zippedLines(ctx context.Context, key string, sum io.Writer, yield func(line []byte) error) (err error) {
	obj, err := c.Deps.Stage.Get(ctx, key)
	if err != nil {
		return fmt.Errorf("read %s: %w", key, err)
	}
	defer func() { err = errors.Join(err, obj.Close()) }()
	gz, err := gzip.NewReader(obj)
	if err != nil {
		return unreadable(ctx, key, err)
	}
	in := bufio.NewReaderSize(io.TeeReader(gz, sum), 64<<10)
	var long []byte
	for {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long, line...)
			continue
		}
		if errors.Is(err, io.EOF) && len(line) == 0 && len(long) == 0 {
			return nil
		}
		if err != nil {
			return unreadable(ctx, key, err)
		}
		if len(long) > 0 {
			line = append(long, line...)
			long = long[:0]
		}
		if err := yield(line[:len(line)-1]); err != nil {
			return err
		}
	}
}

// unreadable classifies why an object's content could not be read: what the store or the context says stands, and may
// pass; all else is the content's own fault.
func unreadable(ctx context.Context, key string, err error) error {
	if errors.As(err, new(*etl.Error)) || ctx.Err() != nil {
		return fmt.Errorf("read %s: %w", key, err)
	}
	return etl.Errorf(etl.RecordsLost, "read %s: %w", key, err)
}
