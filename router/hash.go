package router

import (
	"encoding/binary"
	"math/bits"
)

// hashInit is the start value of PostgreSQL's hash_bytes before the length is
// added: Bob Jenkins's golden ratio plus the fixed seed 3923095 (hashfn.c).
const hashInit = 0x9e3779b9 + 3923095

// hashBytes is PostgreSQL's hash_bytes (hash_any) on a little-endian server:
// Bob Jenkins's lookup3 hashlittle, whose result depends on byte order only
// through the words it reads.
func hashBytes(k []byte) uint32 {
	a := uint32(len(k)) + hashInit
	b, c := a, a
	for len(k) >= 12 {
		a += binary.LittleEndian.Uint32(k)
		b += binary.LittleEndian.Uint32(k[4:])
		c += binary.LittleEndian.Uint32(k[8:])
		a -= c
		a ^= bits.RotateLeft32(c, 4)
		c += b
		b -= a
		b ^= bits.RotateLeft32(a, 6)
		a += c
		c -= b
		c ^= bits.RotateLeft32(b, 8)
		b += a
		a -= c
		a ^= bits.RotateLeft32(c, 16)
		c += b
		b -= a
		b ^= bits.RotateLeft32(a, 19)
		a += c
		c -= b
		c ^= bits.RotateLeft32(b, 4)
		b += a
		k = k[12:]
	}
	// The lowest byte of c is reserved for the length.
	switch len(k) {
	case 11:
		c += uint32(k[10]) << 24
		fallthrough
	case 10:
		c += uint32(k[9]) << 16
		fallthrough
	case 9:
		c += uint32(k[8]) << 8
		fallthrough
	case 8:
		b += binary.LittleEndian.Uint32(k[4:])
		a += binary.LittleEndian.Uint32(k)
	case 7:
		b += uint32(k[6]) << 16
		fallthrough
	case 6:
		b += uint32(k[5]) << 8
		fallthrough
	case 5:
		b += uint32(k[4])
		fallthrough
	case 4:
		a += binary.LittleEndian.Uint32(k)
	case 3:
		a += uint32(k[2]) << 16
		fallthrough
	case 2:
		a += uint32(k[1]) << 8
		fallthrough
	case 1:
		a += uint32(k[0])
	}
	return hashFinal(a, b, c)
}

// hashFinal is lookup3's final mixing.
func hashFinal(a, b, c uint32) uint32 {
	c ^= b
	c -= bits.RotateLeft32(b, 14)
	a ^= c
	a -= bits.RotateLeft32(c, 11)
	b ^= a
	b -= bits.RotateLeft32(a, 25)
	c ^= b
	c -= bits.RotateLeft32(b, 16)
	a ^= c
	a -= bits.RotateLeft32(c, 4)
	b ^= a
	b -= bits.RotateLeft32(a, 14)
	c ^= b
	c -= bits.RotateLeft32(b, 24)
	return c
}

// hashUint32 is PostgreSQL's hash_bytes_uint32 (hash_uint32).
func hashUint32(k uint32) uint32 {
	const init = uint32((hashInit + 4) & 0xffffffff)
	return hashFinal(init+k, init, init)
}

// hashInt8 is PostgreSQL's hashint8: the halves are folded so that a value
// that fits int4 hashes as it does there.
func hashInt8(v int64) uint32 {
	lo, hi := uint32(v), uint32(v>>32)
	if v < 0 {
		hi = ^hi
	}
	return hashUint32(lo ^ hi)
}

// hashUint64Bytes is hashBytes of v's eight little-endian bytes.
func hashUint64Bytes(v uint64) uint32 {
	const init = uint32((hashInit + 8) & 0xffffffff)
	return hashFinal(init+uint32(v), init+uint32(v>>32), init)
}

// Constants of the legacy family (cdblegacyhash.c of Greenplum 6).
const (
	fnvInit    = 0x811c9dc5 // FNV-1, 32 bits
	fnvPrime   = 0x01000193
	legacyNull = 0xf0f0f0f1 // hashed, as 4 bytes, for NULL
	legacyNaN  = 0xe0e0e0e1 // hashed, as 4 bytes, for a numeric NaN
)

// fnv adds b to the FNV-1 hash h.
func fnv(h uint32, b []byte) uint32 {
	for _, c := range b {
		h = h*fnvPrime ^ uint32(c)
	}
	return h
}

// fnv32 and fnv64 add the little-endian bytes of v.
func fnv32(h, v uint32) uint32 {
	for range 4 {
		h = h*fnvPrime ^ v&0xff
		v >>= 8
	}
	return h
}

func fnv64(h uint32, v uint64) uint32 {
	return fnv32(fnv32(h, uint32(v)), uint32(v>>32))
}

// JumpHash is the jump consistent hash of John Lamping and Eric Veach ("A Fast,
// Minimal Memory, Consistent Hash Algorithm", 2014): the bucket, 0 to n-1, of
// key. n must be at least 1. Going from n to n+1 buckets moves only the keys
// that land in the new one.
func JumpHash(key uint64, n int) int {
	if n <= MaxSegments {
		return jumpSmall(key, n)
	}
	b, j := int64(-1), int64(0)
	for j < int64(n) {
		b = j
		key = key*jumpStep + 1
		j = int64(float64(b+1) * (float64(int64(1)<<31) / float64((key>>33)+1)))
	}
	return int(b)
}

// jumpStep is the multiplier of the generator inside the jump hash.
const jumpStep = 2862933555777941757

// jumpSmall is JumpHash for n up to MaxSegments without the division of the
// last step, which only finds out that j is n or more. That is so when
// (b+1)*2^31 > n*k: both sides are integers below 2^53, so the quotient exceeds n
// by at least 1/k >= 2^-31, and the rounding of the floating-point formula is
// below 2^-38 there. Every other step is the formula's own.
func jumpSmall(key uint64, n int) int {
	b, j := uint64(0), uint64(0)
	for j < uint64(n) {
		b = j
		key = key*jumpStep + 1
		k := key>>33 + 1
		if (b+1)<<31 > uint64(n)*k {
			break
		}
		j = uint64(float64(b+1) * (float64(int64(1)<<31) / float64(k)))
	}
	return int(b)
}

// Reduce turns a row's folded hash into a content id, 0 to n-1: jump consistent
// hash in the default family, and in the legacy one the remainder (which
// servers compute as a bit mask when n is a power of two: the same number).
func Reduce(folded uint32, n int, legacy bool) int {
	if legacy {
		return int(folded % uint32(n))
	}
	return JumpHash(uint64(folded), n)
}

// fold adds one column's hash to a row's in the default family.
func fold(row, col uint32) uint32 { return bits.RotateLeft32(row, 1) ^ col }
