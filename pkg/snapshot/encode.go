package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/onceload/onceload/pkg/etl"
)

// The marks that tell our lines from anything else under a key of ours.
const (
	footerMark   = "footer"
	manifestMark = "manifest"
)

// format is raised when a reader of the old format could not read a new part or manifest.
const format = 1

// encode writes v as one JSON line. URLs stay readable: no HTML escapes.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// decodeCanonical reads one line that encode wrote and accepts nothing else: a line that does not encode to itself has
// unknown, repeated or misspelt names, or was not written by this format.
func decodeCanonical[T any](line []byte, mark string) (T, error) {
	var (
		v    T
		head struct {
			Onceload string `json:"onceload"`
			Format   int    `json:"format"`
		}
	)
	if err := json.Unmarshal(line, &head); err != nil {
		return v, fmt.Errorf("%s: %w", mark, err)
	}
	if head.Onceload != mark {
		return v, fmt.Errorf("%s: marked %q", mark, head.Onceload)
	}
	if head.Format != format {
		return v, fmt.Errorf("%s: format %d, this version of onceload reads format %d", mark, head.Format, format)
	}
	if err := json.Unmarshal(line, &v); err != nil {
		return v, fmt.Errorf("%s: %w", mark, err)
	}
	again, err := encode(v)
	if err != nil {
		return v, fmt.Errorf("%s: %w", mark, err)
	}
	if !bytes.Equal(line, again) {
		return v, errors.New(mark + ": not in the form this version writes")
	}
	return v, nil
}

// digest is the sha256 of b, hex.
func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// lost is an error of kind RecordsLost: what lies in the raw store is not what was landed.
func lost(f string, args ...any) error { return etl.Errorf(etl.RecordsLost, f, args...) }
