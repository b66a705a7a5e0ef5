package snapshot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strconv"

	"github.com/klauspost/compress/gzip"
)

// inflater reads gzip members, keeping its window from one to the next.
type inflater struct {
	src bytes.Reader
	zip gzip.Reader
}

// inflate appends to dst the content of member, which must be exactly one gzip member of at most limit bytes
// uncompressed.
func (in *inflater) inflate(dst, member []byte, limit int64) ([]byte, error) {
	in.src.Reset(member)
	if err := in.zip.Reset(&in.src); err != nil {
		return dst, fmt.Errorf("gzip header: %w", noEOF(err))
	}
	in.zip.Multistream(false)
	start := len(dst)
	for {
		if len(dst) == cap(dst) {
			dst = slices.Grow(dst, 4096)
		}
		n, err := in.zip.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		if int64(len(dst)-start) > limit {
			return dst, fmt.Errorf("gzip: more than %d bytes", limit)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return dst, fmt.Errorf("gzip: %w", noEOF(err))
		}
	}
	if n := in.src.Len(); n > 0 {
		return dst, fmt.Errorf("gzip: %d bytes after the end of the member", n)
	}
	return dst, nil
}

// noEOF keeps an end that came too early from looking like a clean one.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// The end member's line, with the footer's place in 20 decimal digits each.
const (
	endHead   = `{"onceload":"end","footer_offset":"`
	endMiddle = `","footer_length":"`
	endTail   = "\"}\n"
	endDigits = 20

	endLine   = len(endHead) + endDigits + len(endMiddle) + endDigits + len(endTail)
	endPrefix = 10 + 5 // gzip header, header of a stored block

	// endSize is the size of the end member.
	endSize = endPrefix + endLine + 8
)

// appendEnd appends the end member: gzip by RFC 1952 with one stored block, so that its size never changes.
func appendEnd(dst []byte, offset, length int64) []byte {
	line := fmt.Appendf(nil, "%s%0*d%s%0*d%s", endHead, endDigits, offset, endMiddle, endDigits, length, endTail)
	dst = append(dst, 0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff)
	dst = append(dst, 1) // last block, stored
	dst = binary.LittleEndian.AppendUint16(dst, uint16(endLine))
	dst = binary.LittleEndian.AppendUint16(dst, ^uint16(endLine))
	dst = append(dst, line...)
	dst = binary.LittleEndian.AppendUint32(dst, crc32.ChecksumIEEE(line))
	return binary.LittleEndian.AppendUint32(dst, uint32(endLine))
}

// parseEnd reads the end member off the end of an object's tail: where the footer member lies.
func parseEnd(tail []byte) (offset, length int64, err error) {
	if len(tail) < endSize {
		return 0, 0, fmt.Errorf("%d bytes are too few for a part", len(tail))
	}
	end := tail[len(tail)-endSize:]
	number := func(at int) (int64, error) {
		return strconv.ParseInt(string(end[at:at+endDigits]), 10, 64)
	}
	offset, oerr := number(endPrefix + len(endHead))
	length, lerr := number(endPrefix + len(endHead) + endDigits + len(endMiddle))
	if oerr != nil || lerr != nil || !bytes.Equal(end, appendEnd(nil, offset, length)) {
		return 0, 0, errors.New("the object does not end as a part does: torn, or not ours")
	}
	if offset < minMember || offset > maxObject || length < minMember || length > 2*maxFooter {
		return 0, 0, fmt.Errorf("the end member puts the footer at %d, %d bytes", offset, length)
	}
	return offset, length, nil
}
