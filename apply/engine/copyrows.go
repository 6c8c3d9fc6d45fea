package engine

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgbinary"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/router"
)

// layout is which columns the rows of a COPY have.
type layout struct {
	cols []int // target columns
	// encode turns each column's values into their binary form; nil where rows go
	// as text.
	encode []pgbinary.Encoder
}

// encoders returns, per column, what turns its values into binary form. It is
// nil where the rows of a COPY are read again as text: to find those that violate
// a constraint.
func (e *Engine) encoders(t *catalog.Table) []pgbinary.Encoder {
	if !e.opt.BinaryCopy || e.opt.OnConflict == apply.ConflictLog ||
		slices.ContainsFunc(t.Uniques, func(u catalog.Unique) bool { return u.Deferrable }) {
		return nil
	}
	out := make([]pgbinary.Encoder, len(t.Columns))
	for i := range t.Columns {
		// Other kinds have an OID of their own on every server, by which the backend
		// could not tell that the column is still what it was.
		if typ := t.Columns[i].Type; typ != nil && typ.Kind == router.BaseType && typ.Extension == "" {
			out[i] = pgbinary.ForType(typ.OID)
		}
	}
	return out
}

// layoutOf lays rows of the given columns out: in binary form where all columns
// have one, and the identity can be printed again for an error.
func (t *table) layoutOf(cols, key []int) layout {
	l := layout{cols: cols}
	if t.encode == nil || len(cols) == 0 {
		return l
	}
	for _, c := range key {
		if t.encode[c] == nil || !pgbinary.Reversible(t.Columns[c].Type.OID) {
			return l
		}
	}
	encode := make([]pgbinary.Encoder, len(cols))
	for i, c := range cols {
		if encode[i] = t.encode[c]; encode[i] == nil {
			return l
		}
	}
	l.encode = encode
	return l
}

// copyBuf is one segment's pending inserts, as the body of a COPY in text or
// binary format.
type copyBuf struct {
	data   []byte
	rows   int64
	binary bool
	// marks say which part rows come from, by the first row of each run.
	marks []mark
}

type mark struct {
	row  int64
	part int32
}

func (b *copyBuf) mark(part int32) {
	if n := len(b.marks); n == 0 || b.marks[n-1].part != part {
		b.marks = append(b.marks, mark{b.rows, part})
	}
}

// partOf finds the part that a row of a copy buffer came from.
func partOf(marks []mark, row int64) int32 {
	i, found := slices.BinarySearchFunc(marks, row, func(m mark, row int64) int {
		switch {
		case m.row < row:
			return -1
		case m.row > row:
			return 1
		}
		return 0
	})
	if !found {
		i--
	}
	if i < 0 {
		return none
	}
	return marks[i].part
}

const (
	// binaryHeader begins a COPY in binary format: signature, flags, length of an
	// extension (PostgreSQL manual, COPY, "Binary Format").
	binaryHeader  = "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	binaryTrailer = "\xff\xff"
)

// body ends what was collected and returns it.
func (b *copyBuf) body() []byte {
	if b.binary {
		return append(b.data, binaryTrailer...)
	}
	return b.data
}

// addCopy appends a row to the inserts pending for a place, and sends them when
// they fill a chunk. From the second chunk on a table's rows have binary form,
// which the backend has to prepare for; once a value turns out to have none, the
// table goes on as text.
func (r *run) addCopy(t *table, place int, l *layout, vals []pgoutput.Value, part int32) error {
	if t.bufs == nil {
		t.bufs = make([]copyBuf, len(t.segs)+1)
	}
	b := t.buf(place)
	inBinary := l.encode != nil && t.long && !t.textOnly
	switch {
	case b.rows == 0 || b.binary == inBinary:
	case b.binary: // and the row is to be text
		if err := r.sendCopy(t, place, l); err != nil {
			return err
		}
	default: // what began as text goes on so
		inBinary = false
	}
	if b.data == nil {
		b.data = r.e.pool.buf()
	}
	before := len(b.data)
	data, ok := b.data, false
	if inBinary {
		if before == 0 {
			data = append(data, binaryHeader...)
		}
		if data, ok = appendBinaryRow(data, l.encode, vals); !ok {
			t.textOnly = true
			return r.addCopy(t, place, l, vals, part)
		}
	} else if data, ok = appendCopyRow(data, vals); !ok {
		return r.missingValue(t, vals, part)
	}
	if !inBinary && len(data)-before > r.e.maxLine {
		return r.rowTooLong(t, l, vals, len(data)-before, part)
	}
	b.mark(part)
	b.data, b.binary = data, inBinary
	b.rows++
	if t.mode == modePass {
		r.hold(t, int64(len(data)-before), 0)
	}
	if len(data) >= r.e.opt.ChunkBytes {
		t.long = true
		return r.sendCopy(t, place, l)
	}
	return nil
}

// rowTooLong refuses a row that no server takes, before it is sent.
func (r *run) rowTooLong(t *table, l *layout, vals []pgoutput.Value, size int, part int32) error {
	longest := 0
	for i := range vals {
		if len(vals[i].Data) > len(vals[longest].Data) {
			longest = i
		}
	}
	return r.at(part, &dtx.Error{
		Op: "apply rows", Relation: t.String(), Class: dtx.ClassStop,
		Msg: fmt.Sprintf("a row takes %d bytes as COPY writes it, where backslash, tab and line break take two each, and a server takes %d; the longest value, of column %q, has %d",
			size, r.e.maxLine, t.Columns[l.cols[longest]].Name, len(vals[longest].Data)),
		Hint: "Make the value smaller on the source and make a new initial copy of the table, or take the table out of the publication",
	})
}

// appendCopyRow appends values as a line of COPY; false when one is missing.
func appendCopyRow(dst []byte, vals []pgoutput.Value) ([]byte, bool) {
	for i, v := range vals {
		if i > 0 {
			dst = append(dst, '\t')
		}
		if v.Kind == pgoutput.ValueUnchanged {
			return dst, false
		}
		dst = appendCopyField(dst, v)
	}
	return append(dst, '\n'), true
}

// appendBinaryRow appends values as a row of a COPY in binary format; false when
// one has no such form.
func appendBinaryRow(dst []byte, encode []pgbinary.Encoder, vals []pgoutput.Value) ([]byte, bool) {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(vals)))
	for i, v := range vals {
		switch v.Kind {
		case pgoutput.ValueNull:
			dst = binary.BigEndian.AppendUint32(dst, nullLength)
		case pgoutput.ValueText:
			at := len(dst) + 4
			var ok bool
			if dst, ok = encode[i](append(dst, 0, 0, 0, 0), v.Data); !ok {
				return dst, false
			}
			binary.BigEndian.PutUint32(dst[at-4:], uint32(len(dst)-at))
		default:
			return dst, false
		}
	}
	return dst, true
}

// nullLength stands where the length of a field would.
const nullLength = ^uint32(0)

// copyKey reads the identity of a row back from the body of a COPY.
func copyKey(sh *shape, op *apply.CopyOp, row int) [][]byte {
	field := textField(op, row)
	if op.Binary {
		field = binaryField(op, row)
	}
	var key [][]byte
	for _, c := range sh.keyTarget {
		i := slices.Index(op.Cols, c)
		if i < 0 {
			return nil
		}
		v, ok := field(i)
		if !ok {
			return nil
		}
		key = append(key, v)
	}
	return key
}

// textField returns what reads the fields of a row.
func textField(op *apply.CopyOp, row int) func(i int) ([]byte, bool) {
	var fields []string
	if lines := strings.Split(string(op.Data), "\n"); row < len(lines) {
		fields = strings.Split(lines[row], "\t")
	}
	return func(i int) ([]byte, bool) {
		if i >= len(fields) {
			return nil, false
		}
		return []byte(copyUnescaper.Replace(fields[i])), true
	}
}

var copyUnescaper = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\r`, "\r", `\t`, "\t")

func binaryField(op *apply.CopyOp, row int) func(i int) ([]byte, bool) {
	b := op.Data[len(binaryHeader):]
	fields := make([][]byte, len(op.Cols))
	for range row + 1 {
		b = b[2:]
		for i := range fields {
			n := binary.BigEndian.Uint32(b)
			b = b[4:]
			if fields[i] = nil; n != nullLength {
				fields[i], b = b[:n], b[n:]
			}
		}
	}
	return func(i int) ([]byte, bool) {
		return pgbinary.Text(op.Table.Columns[op.Cols[i]].Type.OID, fields[i]), fields[i] != nil
	}
}
