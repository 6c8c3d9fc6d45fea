package store

import (
	"encoding/binary"

	"cbrepl/dtx"
)

// Key prefixes; see the package comment.
const (
	prefixData     = 'd'
	prefixPart     = 'p'
	prefixEmpty    = 'e'
	prefixRecord   = 'c'
	prefixPosition = 's'
	prefixRelation = 'r'
	prefixMeta     = 'm'
)

// chainNum numbers a chain; its lowest bit is its class.
type chainNum uint64

type class uint8

const (
	classLog class = 0
	classOwn class = 1
	classes        = 2
)

func (n chainNum) class() class { return class(n & 1) }

const offsetBits = 16

func spoolID(n chainNum, off int) dtx.SpoolID {
	return dtx.SpoolID(uint64(n)<<offsetBits | uint64(off))
}

func splitID(id dtx.SpoolID) (chainNum, int) {
	return chainNum(id >> offsetBits), int(id & (1<<offsetBits - 1))
}

func appendContent(b []byte, c dtx.Content) []byte {
	return binary.BigEndian.AppendUint16(b, uint16(c)^0x8000)
}

func contentAt(b []byte) dtx.Content {
	return dtx.Content(binary.BigEndian.Uint16(b) ^ 0x8000)
}

// appendChainKey appends the prefix, content, class and chain: the lower bound
// of everything of one chain in a keyspace.
func appendChainKey(b []byte, prefix byte, c dtx.Content, n chainNum) []byte {
	b = append(b, prefix)
	b = appendContent(b, c)
	b = append(b, byte(n.class()))
	return binary.BigEndian.AppendUint64(b, uint64(n))
}

func appendDataKey(b []byte, c dtx.Content, n chainNum, off uint64) []byte {
	return binary.BigEndian.AppendUint64(appendChainKey(b, prefixData, c, n), off)
}

const (
	chainKeyLen = 1 + 2 + 1 + 8
	dataKeyLen  = chainKeyLen + 8
	txnKeyLen   = chainKeyLen + 2
)

// appendTxnKey appends a key of the part keyspace.
func appendTxnKey(b []byte, prefix byte, c dtx.Content, id dtx.SpoolID) []byte {
	n, off := splitID(id)
	return binary.BigEndian.AppendUint16(appendChainKey(b, prefix, c, n), uint16(off))
}

// parseTxnKey reads what appendTxnKey wrote.
func parseTxnKey(k []byte) (dtx.Content, dtx.SpoolID, bool) {
	if len(k) != txnKeyLen {
		return 0, 0, false
	}
	n := chainNum(binary.BigEndian.Uint64(k[4:]))
	return contentAt(k[1:]), spoolID(n, int(binary.BigEndian.Uint16(k[12:]))), true
}

func appendEmptyKey(b []byte, c dtx.Content, lsn dtx.LSN) []byte {
	b = appendContent(append(b, prefixEmpty), c)
	return binary.BigEndian.AppendUint64(b, uint64(lsn))
}

func appendRecordKey(b []byte, lsn dtx.LSN) []byte {
	return binary.BigEndian.AppendUint64(append(b, prefixRecord), uint64(lsn))
}

func appendPositionKey(b []byte, c dtx.Content) []byte {
	return appendContent(append(b, prefixPosition), c)
}

func appendRelationKey(b []byte, v RelVersion) []byte {
	return binary.BigEndian.AppendUint32(append(b, prefixRelation), uint32(v))
}

func metaKey(name string) []byte { return append([]byte{prefixMeta}, name...) }

// rangeBound is appendChainKey for a number that only bounds a range of class k.
func rangeBound(prefix byte, c dtx.Content, k class, n chainNum) []byte {
	b := append(appendContent([]byte{prefix}, c), byte(k))
	return binary.BigEndian.AppendUint64(b, uint64(n))
}

// tableEnd tells Pebble where to cut tables: at every content and class, and
// behind a long own chain, so that tables of one content follow each other
// without overlap and a freed range covers whole tables.
func tableEnd(start []byte) []byte {
	if len(start) < chainKeyLen || start[0] != prefixData {
		return nil
	}
	end := append([]byte(nil), start[:chainKeyLen]...)
	if class(start[3]) == classOwn && len(start) >= dataKeyLen &&
		binary.BigEndian.Uint64(start[chainKeyLen:]) >= longChain {
		return successor(end)
	}
	return successor(end[:4])
}

// longChain is the offset from which on an own chain gets tables of its own.
const longChain = 1 << 20

// successor returns the least key behind every key that has prefix b, in place.
func successor(b []byte) []byte {
	for i := len(b) - 1; i >= 0; i-- {
		b[i]++
		if b[i] != 0 {
			return b[:i+1]
		}
	}
	return nil
}
