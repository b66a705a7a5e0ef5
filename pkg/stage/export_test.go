package stage

import (
	"context"

	"github.com/onceload/onceload/pkg/store"
)

// MaxRun is how many keys a run of a key object has.
const MaxRun = maxRun

// MergeKeys walks the merged keys of the named objects, which hold so many each, and counts them and those that repeat
// the one before. rises is false if one is less than the one before.
func MergeKeys(ctx context.Context, from store.Objects, held map[string]int64) (keys, repeated int64, rises bool, err error) {
	var objects []keyObject
	for key, n := range held {
		objects = append(objects, keyObject{key: key, keys: n})
	}
	rises = true
	var last digest
	err = mergeKeys(ctx, from, objects, func(d digest) {
		if keys > 0 && d == last {
			repeated++
		}
		rises = rises && d.compare(last) >= 0
		last = d
		keys++
	})
	return keys, repeated, rises, err
}

// VerifyKeys walks the keys of an object that must have that digest.
func VerifyKeys(ctx context.Context, from store.Objects, key string, keys int64, sha256 string) error {
	return mergeKeys(ctx, from, []keyObject{{key: key, keys: keys, sha256: sha256}}, func(digest) {})
}

// HoldRepeats sets how many repeated keys have their ranks in memory at once.
func (s *Load) HoldRepeats(n int) { s.repeats = n }
