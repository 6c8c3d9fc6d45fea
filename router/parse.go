package router

// The values that are hashed are read here from the text that a server prints,
// and from some that only its input functions take. Package apply writes them in
// binary form by the same readers. An error means: not understood, or out of range.

// ParseInt reads a decimal integer between lo and hi.
func ParseInt(v []byte, lo, hi int64) (int64, error) { return parseInt(v, lo, hi) }

// ParseOID reads an oid.
func ParseOID(v []byte) (uint32, error) { return parseOID(v) }

// ParseFloat reads a float8, or with single a float4.
func ParseFloat(v []byte, single bool) (float64, error) { return parseFloat(v, single) }

// ParseUUID reads a uuid.
func ParseUUID(v []byte) ([16]byte, error) { return parseUUID(v) }

// ParseDate reads a date of DateStyle ISO as days from 2000-01-01; the ends of the
// range of int32 stand for the infinities.
func ParseDate(v []byte) (int32, error) { return parseDate(v) }

// ParseTime reads a time without time zone as microseconds since midnight.
func ParseTime(v []byte) (int64, error) { return parseTime(v) }

// ParseTimestamp reads a timestamp of DateStyle ISO as microseconds since
// 2000-01-01, UTC with a zone, which must be there then. The ends of the range of
// int64 stand for the infinities.
func ParseTimestamp(v []byte, zone bool) (int64, error) {
	if zone {
		return parseTimestamp(v, zoneRequired)
	}
	return parseTimestamp(v, zoneNone)
}
