package etl

import (
	"fmt"
	"strings"
	"time"
)

// MaxDigits is the most decimal digits a number may have: what DynamoDB's N holds.
const MaxDigits = 38

// DigestLen is the length of the digest part of a rank: 128 bits in hex.
const DigestLen = 32

// Rank decides which write of a row wins: the higher one, compared as bytes. Its parts compare in the order epoch,
// version, revision, digest. Within one epoch of a pipeline all versions are of one type, so all ranks have one width.
type Rank struct {
	Epoch    int      // contract.epoch, 1..9999
	Version  string   // from VersionInteger, VersionTimestamp or VersionSlot
	Revision Revision // of the contract that made the row
	Digest   string   // DigestLen lower-case hex digits over the row's content
}

// String is the stored form, `0001|<version>|0003.0001|<digest>`.
func (r Rank) String() string {
	return fmt.Sprintf("%04d|%s|%04d.%04d|%s", r.Epoch, r.Version, r.Revision.Contract, r.Revision.Engine, r.Digest)
}

// Conflict reports whether two stored ranks differ in their digests alone: two contents under one version.
func Conflict(a, b string) bool {
	i := strings.LastIndexByte(a, '|')
	return i >= 0 && a != b && len(a) == len(b) && a[:i+1] == b[:i+1]
}

// VersionInteger encodes a decimal integer of at most [MaxDigits] digits (no leading zeros, optional leading minus) at a
// fixed width of 39 bytes whose byte order is the numbers' order: `1` and 38 digits, or `0` and the nines' complement.
func VersionInteger(s string) (string, error) {
	digits, neg := strings.CutPrefix(s, "-")
	if digits == "" || len(digits) > MaxDigits || (len(digits) > 1 && digits[0] == '0') {
		return "", fmt.Errorf("version %q: want an integer of at most %d digits", s, MaxDigits)
	}
	out := make([]byte, 1+MaxDigits)
	for i := range out {
		out[i] = '0'
	}
	copy(out[len(out)-len(digits):], digits)
	for i := 1; i < len(out); i++ {
		if out[i] < '0' || out[i] > '9' {
			return "", fmt.Errorf("version %q: want an integer of at most %d digits", s, MaxDigits)
		}
	}
	if neg && digits == "0" {
		neg = false
	}
	if !neg {
		out[0] = '1'
		return string(out), nil
	}
	for i := 1; i < len(out); i++ {
		out[i] = '9' - (out[i] - '0')
	}
	return string(out), nil
}

// VersionTimestamp encodes an instant of the years 1 to 9999 as `YYYYMMDDhhmmssnnnnnnnnn` in UTC, 23 bytes.
func VersionTimestamp(t time.Time) (string, error) {
	t = t.UTC()
	if t.Year() < 1 || t.Year() > 9999 {
		return "", fmt.Errorf("version year %d: want 1 to 9999", t.Year())
	}
	return fmt.Sprintf("%s%09d", t.Format("20060102150405"), t.Nanosecond()), nil
}

// VersionSlot is the version of rows whose contract declares none: a later slot or extraction wins.
func VersionSlot(b Batch, extraction int) string {
	return fmt.Sprintf("%s.%06d", b.SlotID(), extraction)
}
