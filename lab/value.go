package lab

import (
	"context"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"cbrepl/dtx"
	"cbrepl/router"
)

// Row holds values for a table's columns, in table order, generated columns left
// out. A value is nil for NULL, a string in the type's text form, or a number,
// bool, time.Time (timestamptz), []byte (bytea) or fmt.Stringer.
type Row []any

// Values names columns: the set list of an update, or the columns that find
// rows by equality.
type Values map[string]any

// Expr is a value that is an SQL expression over the row.
type Expr string

// text gives a value's text form, nil for NULL.
func text(v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case string:
		return []byte(v), nil
	case []byte:
		if v == nil {
			return nil, nil
		}
		return append([]byte(`\x`), hex.EncodeToString(v)...), nil
	case bool:
		return strconv.AppendBool(nil, v)[:1], nil
	case int:
		return strconv.AppendInt(nil, int64(v), 10), nil
	case int16:
		return strconv.AppendInt(nil, int64(v), 10), nil
	case int32:
		return strconv.AppendInt(nil, int64(v), 10), nil
	case int64:
		return strconv.AppendInt(nil, v, 10), nil
	case uint32:
		return strconv.AppendUint(nil, uint64(v), 10), nil
	case uint64:
		return strconv.AppendUint(nil, v, 10), nil
	case float64:
		return strconv.AppendFloat(nil, v, 'g', -1, 64), nil
	case time.Time:
		return v.AppendFormat(nil, "2006-01-02 15:04:05.999999-07:00"), nil
	case fmt.Stringer:
		return []byte(v.String()), nil
	}
	return nil, fmt.Errorf("a value of Go type %T has no text form here", v)
}

// texts gives the text form of every value.
func texts(vs []any) ([][]byte, error) {
	out := make([][]byte, len(vs))
	for i, v := range vs {
		b, err := text(v)
		if err != nil {
			return nil, err
		}
		out[i] = b
	}
	return out, nil
}

// asIs are the types whose text form, as a caller gives it, is the one that the
// server prints; a text of any other type is sent through the server before it
// is hashed.
var asIs = map[uint32]bool{
	20: true, 21: true, 23: true, // int8, int2, int4
	25: true, 1043: true, 1042: true, // text, varchar, bpchar (without its padding)
	2950: true, // uuid
}

// canonical replaces column k of every row by the text that the server prints
// for it, because only that form may be hashed.
func (c *nodes) canonical(ctx context.Context, t *tableInfo, k int, vals [][]byte) ([][]byte, error) {
	if asIs[t.cols[k].typeOID] {
		return vals, nil
	}
	s, err := c.session(ctx, dtx.Coordinator)
	if err != nil {
		return nil, err
	}
	defer s.release()
	in := []byte{'{'}
	for i, v := range vals {
		if i > 0 {
			in = append(in, ',')
		}
		in = arrayElement(in, v)
	}
	// format_type quotes the type's name. The result is in text format: a cast to
	// text is not always what the server prints.
	res := s.PgConn().ExecParams(ctx, "select v::"+t.cols[k].typeName+" from unnest($1::text[]) with ordinality u(v, n) order by n",
		[][]byte{append(in, '}')}, nil, nil, nil).Read()
	if res.Err != nil {
		return nil, nodeErr("place rows", dtx.Coordinator, res.Err)
	}
	out := make([][]byte, len(res.Rows))
	for i, r := range res.Rows {
		out[i] = r[0]
	}
	return out, nil
}

// arrayElement writes an element of a text array.
func arrayElement(b []byte, v []byte) []byte {
	if v == nil {
		return append(b, "NULL"...)
	}
	b = append(b, '"')
	for _, ch := range v {
		if ch == '"' || ch == '\\' {
			b = append(b, '\\')
		}
		b = append(b, ch)
	}
	return append(b, '"')
}

// place gives the segments of every row of a table. keys holds, per key column,
// the rows' texts.
func (c *nodes) place(ctx context.Context, t *tableInfo, n int, keys [][][]byte) ([][]dtx.Content, error) {
	out := make([][]dtx.Content, n)
	switch t.policy.Kind {
	case router.Replicated:
		every := c.segmentContents()[:t.policy.NumSegments]
		for i := range out {
			out[i] = every
		}
	case router.Random:
		for i := range out {
			out[i] = []dtx.Content{dtx.Content(c.intN(t.policy.NumSegments))}
		}
	default:
		for j, k := range t.key {
			var err error
			if keys[j], err = c.canonical(ctx, t, k, keys[j]); err != nil {
				return nil, err
			}
		}
		key := make([][]byte, len(t.key))
		for i := range out {
			for j := range key {
				key[j] = keys[j][i]
			}
			seg, err := t.router.Segment(key)
			if err != nil {
				return nil, err
			}
			out[i] = []dtx.Content{seg}
		}
	}
	return out, nil
}

// SegmentOf tells on which segment a row with this distribution key (values in
// key order) lives.
func (c *nodes) SegmentOf(ctx context.Context, table string, key ...any) (dtx.Content, error) {
	t, err := c.table(ctx, table)
	if err != nil {
		return 0, err
	}
	if t.router == nil || len(key) != len(t.key) {
		return 0, opErr("place row", fmt.Errorf("table %s has no distribution key of %d columns", table, len(key)))
	}
	vals, err := texts(key)
	if err != nil {
		return 0, opErr("place row", err)
	}
	keys := make([][][]byte, len(vals))
	for i, v := range vals {
		keys[i] = [][]byte{v}
	}
	segs, err := c.place(ctx, t, 1, keys)
	if err != nil {
		return 0, err
	}
	return segs[0][0], nil
}

// intN draws from the cluster's seeded source.
func (c *nodes) intN(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rnd.IntN(n)
}

// shuffle puts contents into a random order.
func (c *nodes) shuffle(cs []dtx.Content) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rnd.Shuffle(len(cs), func(i, j int) { cs[i], cs[j] = cs[j], cs[i] })
}

// copyEscape writes a value in COPY's text format.
func copyEscape(b []byte, v []byte) []byte {
	if v == nil {
		return append(b, `\N`...)
	}
	for _, ch := range v {
		switch ch {
		case '\\':
			b = append(b, `\\`...)
		case '\t':
			b = append(b, `\t`...)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		default:
			b = append(b, ch)
		}
	}
	return b
}

// columnList quotes column names for SQL.
func columnList(t *tableInfo, idx []int) string {
	var b strings.Builder
	for i, k := range idx {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(pgx.Identifier{t.cols[k].name}.Sanitize())
	}
	return b.String()
}
