package store

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// blockSize bounds a block; see the package comment.
const blockSize = 64 << 10

// maxWhole bounds the payload of a row or trunc frame: a larger one is cut into
// pieces, so that blocks stay small and full whatever the rows are.
const maxWhole = 8 << 10

const frameHeader = 4

// blockRoom is what other frames may fill: the end frame always fits.
const blockRoom = blockSize - frameHeader

type frameKind byte

const (
	frameBegin frameKind = iota + 1
	frameRel
	frameRow
	frameTrunc
	frameBig
	frameMore
	frameEnd
)

const (
	beginLen = frameHeader + 1
	relLen   = frameHeader + 4
	bigLen   = frameHeader + 1 + 4
)

// flagStreamed marks a transaction whose messages carry a transaction id.
const flagStreamed = 1

func appendFrameHeader(b []byte, k frameKind, n int) []byte {
	return binary.BigEndian.AppendUint32(b, uint32(k)<<24|uint32(n))
}

func appendBegin(b []byte, flags byte) []byte {
	return append(appendFrameHeader(b, frameBegin, 1), flags)
}

func appendRel(b []byte, v RelVersion) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHeader(b, frameRel, 4), uint32(v))
}

// errCorrupt is wrapped by every error about spooled bytes that do not make sense.
var errCorrupt = errors.New("spooled data is damaged")

// nextFrame takes the first frame off b.
func nextFrame(b []byte) (k frameKind, payload, rest []byte, err error) {
	if len(b) < frameHeader {
		return 0, nil, nil, fmt.Errorf("%w: block ends inside a frame header", errCorrupt)
	}
	h := binary.BigEndian.Uint32(b)
	k, n := frameKind(h>>24), int(h&0xffffff)
	b = b[frameHeader:]
	if n > len(b) {
		return 0, nil, nil, fmt.Errorf("%w: frame of %d bytes in a block with %d left", errCorrupt, n, len(b))
	}
	return k, b[:n:n], b[n:], nil
}
