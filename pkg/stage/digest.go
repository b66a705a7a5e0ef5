package stage

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// contentDigest is the sha256 of an object's content, uncompressed; "" if that is no gzip.
func contentDigest(ctx context.Context, from store.Objects, key string, zipped bool) (_ string, err error) {
	obj, err := from.Get(ctx, key)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", key, err)
	}
	defer func() { err = errors.Join(err, obj.Close()) }()
	var content io.Reader = bufio.NewReaderSize(obj, 64<<10)
	if zipped {
		if content, err = gzip.NewReader(content); err != nil {
			return "", unlessDamaged(ctx, key, err)
		}
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, content); err != nil {
		return "", unlessDamaged(ctx, key, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// unlessDamaged passes on what the store or the context says, and no word of content that is damaged.
func unlessDamaged(ctx context.Context, key string, err error) error {
	if err := unreadable(ctx, key, err); etl.KindOf(err) != etl.RecordsLost {
		return err
	}
	return nil
}

// sameDigest holds what was read of an object against its record (R23).
func sameDigest(key, got, want string) error {
	if got == want {
		return nil
	}
	return etl.Errorf(etl.RecordsLost, "read %s: its digest is %s, its record says %s", key, got, want)
}
