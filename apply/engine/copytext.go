package engine

import (
	"encoding/binary"
	"math/bits"

	"cbrepl/pgoutput"
)

// copyEscape holds, per byte, the letter that stands for it behind a backslash
// in COPY's text format; 0 for bytes that stand for themselves. A field holding
// only `\.` becomes `\\.` and cannot end the data.
var copyEscape = [256]byte{'\\': '\\', '\n': 'n', '\r': 'r', '\t': 't'}

// appendCopyField appends one field of a COPY in text format.
func appendCopyField(dst []byte, v pgoutput.Value) []byte {
	if v.Kind == pgoutput.ValueNull {
		return append(dst, '\\', 'N')
	}
	return appendCopyText(dst, v.Data)
}

// appendCopyText appends b with its special bytes escaped. Eight bytes at a
// time are looked at for anything below 0x0e or a backslash.
func appendCopyText(dst, b []byte) []byte {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	start, i := 0, 0
	for i < len(b) {
		if i+8 <= len(b) {
			w := binary.LittleEndian.Uint64(b[i:])
			low := (w - ones*0x0e) & ^w
			x := w ^ ones*'\\'
			back := (x - ones) & ^x
			m := (low | back) & highs
			if m == 0 {
				i += 8
				continue
			}
			// The lowest flagged byte is exact; borrows disturb only those above.
			i += bits.TrailingZeros64(m) / 8
		}
		if e := copyEscape[b[i]]; e != 0 {
			dst = append(dst, b[start:i]...)
			dst = append(dst, '\\', e)
			start = i + 1
		}
		i++
	}
	return append(dst, b[start:]...)
}
