// Package pgbinary turns values from the text that PostgreSQL prints into the
// binary form that the type's receive function reads (the server's *recv and
// *send functions), without a server and without allocating.
//
// Only what a server prints with ISO dates and hexadecimal bytea is known, and
// only types whose two forms hold exactly the same. Most else that a type's input
// function would take (blanks, other date styles) is not guessed at: the caller
// sends text instead.
package pgbinary

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"strconv"

	"cbrepl/router"
)

// Encoder appends the binary form of a printed value to dst. It is false, and
// the result is to be dropped, where the text is none that it knows.
type Encoder func(dst, text []byte) ([]byte, bool)

// Object identifiers of built-in types (pg_type.dat).
const (
	boolOID        = 16
	byteaOID       = 17
	int8OID        = 20
	int2OID        = 21
	int4OID        = 23
	textOID        = 25
	oidOID         = 26
	jsonOID        = 114
	float4OID      = 700
	float8OID      = 701
	bpcharOID      = 1042
	varcharOID     = 1043
	dateOID        = 1082
	timeOID        = 1083
	timestampOID   = 1114
	timestamptzOID = 1184
	numericOID     = 1700
	uuidOID        = 2950
	jsonbOID       = 3802
)

var encoders = map[uint32]Encoder{
	boolOID:        encodeBool,
	byteaOID:       encodeBytea,
	int8OID:        encodeInt8,
	int2OID:        encodeInt2,
	int4OID:        encodeInt4,
	textOID:        encodeText,
	oidOID:         encodeOID,
	jsonOID:        encodeText,
	float4OID:      encodeFloat4,
	float8OID:      encodeFloat8,
	bpcharOID:      encodeText,
	varcharOID:     encodeText,
	dateOID:        encodeDate,
	timeOID:        encodeTime,
	timestampOID:   encodeTimestamp,
	timestamptzOID: encodeTimestamptz,
	numericOID:     encodeNumeric,
	uuidOID:        encodeUUID,
	jsonbOID:       encodeJSONB,
}

// ForType returns the encoder of a built-in type, nil where there is none.
func ForType(oid uint32) Encoder { return encoders[oid] }

// encodeText is the encoder of types whose binary form is their text.
func encodeText(dst, text []byte) ([]byte, bool) { return append(dst, text...), true }

var decoders = map[uint32]func(b []byte) []byte{
	int8OID: func(b []byte) []byte { return strconv.AppendInt(nil, int64(binary.BigEndian.Uint64(b)), 10) },
	int4OID: func(b []byte) []byte { return strconv.AppendInt(nil, int64(int32(binary.BigEndian.Uint32(b))), 10) },
	int2OID: func(b []byte) []byte { return strconv.AppendInt(nil, int64(int16(binary.BigEndian.Uint16(b))), 10) },
	uuidOID: func(b []byte) []byte {
		out := make([]byte, 0, 36)
		for i, n := range []int{4, 2, 2, 2, 6} {
			if i > 0 {
				out = append(out, '-')
			}
			out, b = hex.AppendEncode(out, b[:n]), b[n:]
		}
		return out
	},
	textOID:    rawText,
	bpcharOID:  rawText,
	varcharOID: rawText,
}

func rawText(b []byte) []byte { return b }

// Reversible reports whether Text knows the type: those that keys mostly have.
func Reversible(oid uint32) bool { return decoders[oid] != nil }

// Text prints a value that the type's encoder made.
func Text(oid uint32, b []byte) []byte { return decoders[oid](b) }

func encodeBool(dst, text []byte) ([]byte, bool) {
	if len(text) != 1 || text[0] != 't' && text[0] != 'f' {
		return dst, false
	}
	if text[0] == 't' {
		return append(dst, 1), true
	}
	return append(dst, 0), true
}

func encodeInt8(dst, text []byte) ([]byte, bool) {
	n, err := router.ParseInt(text, math.MinInt64, math.MaxInt64)
	return binary.BigEndian.AppendUint64(dst, uint64(n)), err == nil
}

func encodeInt4(dst, text []byte) ([]byte, bool) {
	n, err := router.ParseInt(text, math.MinInt32, math.MaxInt32)
	return binary.BigEndian.AppendUint32(dst, uint32(n)), err == nil
}

func encodeInt2(dst, text []byte) ([]byte, bool) {
	n, err := router.ParseInt(text, math.MinInt16, math.MaxInt16)
	return binary.BigEndian.AppendUint16(dst, uint16(n)), err == nil
}

func encodeOID(dst, text []byte) ([]byte, bool) {
	n, err := router.ParseOID(text)
	return binary.BigEndian.AppendUint32(dst, n), err == nil
}

func encodeFloat8(dst, text []byte) ([]byte, bool) {
	f, err := router.ParseFloat(text, false)
	return binary.BigEndian.AppendUint64(dst, math.Float64bits(f)), err == nil
}

func encodeFloat4(dst, text []byte) ([]byte, bool) {
	f, err := router.ParseFloat(text, true)
	return binary.BigEndian.AppendUint32(dst, math.Float32bits(float32(f))), err == nil
}

func encodeDate(dst, text []byte) ([]byte, bool) {
	n, err := router.ParseDate(text)
	return binary.BigEndian.AppendUint32(dst, uint32(n)), err == nil
}

func encodeTime(dst, text []byte) ([]byte, bool) {
	n, err := router.ParseTime(text)
	return binary.BigEndian.AppendUint64(dst, uint64(n)), err == nil
}

func encodeTimestamp(dst, text []byte) ([]byte, bool) {
	n, err := router.ParseTimestamp(text, false)
	return binary.BigEndian.AppendUint64(dst, uint64(n)), err == nil
}

func encodeTimestamptz(dst, text []byte) ([]byte, bool) {
	n, err := router.ParseTimestamp(text, true)
	return binary.BigEndian.AppendUint64(dst, uint64(n)), err == nil
}

func encodeUUID(dst, text []byte) ([]byte, bool) {
	u, err := router.ParseUUID(text)
	return append(dst, u[:]...), err == nil
}

func encodeBytea(dst, text []byte) ([]byte, bool) {
	if len(text) < 2 || text[0] != '\\' || text[1] != 'x' {
		return dst, false
	}
	dst, err := hex.AppendDecode(dst, text[2:])
	return dst, err == nil
}

// jsonbVersion begins every value of jsonb_send.
const jsonbVersion = 1

func encodeJSONB(dst, text []byte) ([]byte, bool) {
	return append(append(dst, jsonbVersion), text...), true
}
