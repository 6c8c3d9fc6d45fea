package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"cbrepl/dtx"
	"cbrepl/router"
)

const (
	copyRows  = 32      // from this many rows on, Insert uses COPY
	copyBytes = 4 << 20 // COPY data kept per segment
)

// Insert inserts rows, each on the segments that the table's policy gives.
func (tx *Tx) Insert(ctx context.Context, table string, rows ...Row) error {
	t, err := tx.src.table(ctx, table)
	if err != nil {
		return err
	}
	return tx.insert(ctx, t, t.insertable(), rows)
}

// InsertColumns inserts rows that hold the named columns only.
func (tx *Tx) InsertColumns(ctx context.Context, table string, columns []string, rows ...Row) error {
	t, err := tx.src.table(ctx, table)
	if err != nil {
		return err
	}
	idx := make([]int, len(columns))
	for i, name := range columns {
		if idx[i] = t.index(name); idx[i] < 0 {
			return opErr("insert", fmt.Errorf("table %s has no column %s", table, name))
		}
	}
	return tx.insert(ctx, t, idx, rows)
}

// insert places and inserts rows that hold the columns idx.
func (tx *Tx) insert(ctx context.Context, t *tableInfo, idx []int, rows []Row) error {
	vals := make([][][]byte, len(rows))
	for i, r := range rows {
		if len(r) != len(idx) {
			return opErr("insert", fmt.Errorf("row %d has %d values, table %s takes %d", i, len(r), t.sql(), len(idx)))
		}
		var err error
		if vals[i], err = texts(r); err != nil {
			return opErr("insert", err)
		}
	}
	keys := make([][][]byte, len(t.key))
	for j, k := range t.key {
		keys[j] = make([][]byte, len(rows))
		at := slices.Index(idx, k)
		if at < 0 {
			return opErr("insert", fmt.Errorf("column %s is in the distribution key: it needs a value", t.cols[k].name))
		}
		for i := range vals {
			keys[j][i] = vals[i][at]
		}
	}
	segs, err := tx.src.place(ctx, t, len(rows), keys)
	if err != nil {
		return err
	}
	if len(rows) >= copyRows {
		return tx.copyIn(ctx, t, idx, vals, segs)
	}
	sql := "insert into " + t.sql() + " (" + columnList(t, idx) + ") values " + placeholders(t, idx)
	for i := range vals {
		for _, c := range segs[i] {
			if _, err := tx.exec(ctx, c, sql, vals[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// placeholders gives "($1::int, $2::text)".
func placeholders(t *tableInfo, idx []int) string {
	var b strings.Builder
	for i, k := range idx {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "$%d::%s", i+1, t.cols[k].typeName)
	}
	return "(" + b.String() + ")"
}

// copyIn sends rows by COPY, one stream per segment, in bounded pieces.
func (tx *Tx) copyIn(ctx context.Context, t *tableInfo, idx []int, vals [][][]byte, segs [][]dtx.Content) error {
	sql := "copy " + t.sql() + " (" + columnList(t, idx) + ") from stdin"
	bufs := make([][]byte, tx.src.Segments())
	flush := func(c dtx.Content) error {
		conn, err := tx.join(ctx, c)
		if err != nil {
			return err
		}
		_, err = conn.PgConn().CopyFrom(ctx, bytes.NewReader(bufs[c]), sql)
		bufs[c] = bufs[c][:0]
		return nodeErr("copy into "+t.sql(), c, err)
	}
	for i, row := range vals {
		for _, c := range segs[i] {
			b := bufs[c]
			for j, v := range row {
				if j > 0 {
					b = append(b, '\t')
				}
				b = copyEscape(b, v)
			}
			if bufs[c] = append(b, '\n'); len(bufs[c]) >= copyBytes {
				if err := flush(c); err != nil {
					return err
				}
			}
		}
	}
	for c, b := range bufs {
		if len(b) > 0 {
			if err := flush(dtx.Content(c)); err != nil {
				return err
			}
		}
	}
	return nil
}

// clause builds "a = $1, b = expr" pieces and their arguments, columns in
// alphabetical order.
type clause struct {
	t    *tableInfo
	args [][]byte
}

func (c *clause) add(v Values, sep string, isNull bool) (string, error) {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(v)) {
		k := c.t.index(name)
		if k < 0 {
			return "", fmt.Errorf("table %s has no column %s", c.t.sql(), name)
		}
		col := pgx.Identifier{name}.Sanitize()
		if e, ok := v[name].(Expr); ok {
			parts = append(parts, col+" = "+string(e))
			continue
		}
		b, err := text(v[name])
		if err != nil {
			return "", err
		}
		if b == nil && isNull {
			parts = append(parts, col+" is null")
			continue
		}
		c.args = append(c.args, b)
		parts = append(parts, fmt.Sprintf("%s = $%d::%s", col, len(c.args), c.t.cols[k].typeName))
	}
	return strings.Join(parts, sep), nil
}

// where builds the condition of a key; an empty key takes every row.
func (c *clause) where(key Values) (string, error) {
	if len(key) == 0 {
		return "", nil
	}
	s, err := c.add(key, " and ", true)
	return " where " + s, err
}

// route gives the segments that may hold rows with these column values: one
// when the distribution key is known, else all of the table's.
func (tx *Tx) route(ctx context.Context, t *tableInfo, key Values) ([]dtx.Content, error) {
	every := tx.src.segmentContents()[:t.policy.NumSegments]
	if t.policy.Kind != router.Hash {
		return every, nil
	}
	keys := make([][][]byte, len(t.key))
	for j, k := range t.key {
		v, ok := key[t.cols[k].name]
		if _, expr := v.(Expr); !ok || expr {
			return every, nil
		}
		b, err := text(v)
		if err != nil {
			return nil, opErr("place row", err)
		}
		keys[j] = [][]byte{b}
	}
	segs, err := tx.src.place(ctx, t, 1, keys)
	if err != nil {
		return nil, err
	}
	return segs[0], nil
}

// Delete deletes the rows that key finds (all rows when it is empty) and
// returns their number; of a replicated table, each row counts once. Without
// the whole distribution key in key, every segment takes part.
func (tx *Tx) Delete(ctx context.Context, table string, key Values) (int64, error) {
	t, err := tx.src.table(ctx, table)
	if err != nil {
		return 0, err
	}
	c := clause{t: t}
	where, err := c.where(key)
	if err != nil {
		return 0, opErr("delete", err)
	}
	return tx.everywhere(ctx, t, key, "delete from "+t.sql()+where, c.args)
}

// everywhere runs a statement where key's rows may be.
func (tx *Tx) everywhere(ctx context.Context, t *tableInfo, key Values, sql string, args [][]byte) (int64, error) {
	segs, err := tx.route(ctx, t, key)
	if err != nil {
		return 0, err
	}
	var total int64
	for _, c := range segs {
		n, err := tx.exec(ctx, c, sql, args)
		if err != nil {
			return 0, err
		}
		if total += n; t.policy.Kind == router.Replicated {
			total = n
		}
	}
	return total, nil
}

// ExecOn runs a statement on the segments that may hold rows of the table with
// these column values. Arguments are text ($1::int).
func (tx *Tx) ExecOn(ctx context.Context, table string, key Values, sql string, args ...any) (int64, error) {
	t, err := tx.src.table(ctx, table)
	if err != nil {
		return 0, err
	}
	vals, err := texts(args)
	if err != nil {
		return 0, opErr("run SQL", err)
	}
	return tx.everywhere(ctx, t, key, sql, vals)
}

// Update updates the rows that key finds and returns their number, as Delete
// does. A value may be an Expr. A row whose distribution key changes so that it
// belongs elsewhere is deleted on its segment and inserted on the other.
func (tx *Tx) Update(ctx context.Context, table string, set, key Values) (int64, error) {
	t, err := tx.src.table(ctx, table)
	if err != nil {
		return 0, err
	}
	moves, err := tx.moves(ctx, t, set, key)
	if err != nil {
		return 0, err
	}
	if moves {
		return tx.move(ctx, t, set, key)
	}
	c := clause{t: t}
	list, err := c.add(set, ", ", false)
	if err != nil {
		return 0, opErr("update", err)
	}
	where, err := c.where(key)
	if err != nil {
		return 0, opErr("update", err)
	}
	return tx.everywhere(ctx, t, key, "update "+t.sql()+" set "+list+where, c.args)
}

// moves reports whether an update may take rows to another segment.
func (tx *Tx) moves(ctx context.Context, t *tableInfo, set, key Values) (bool, error) {
	touched := false
	for _, k := range t.key {
		v, ok := set[t.cols[k].name]
		if _, expr := v.(Expr); expr {
			return false, opErr("update", errors.New("an expression cannot be set on a distribution key column"))
		}
		touched = touched || ok
	}
	if !touched {
		return false, nil
	}
	after := maps.Clone(key)
	if after == nil {
		after = Values{}
	}
	maps.Copy(after, set)
	from, err := tx.route(ctx, t, key)
	if err != nil {
		return false, err
	}
	to, err := tx.route(ctx, t, after)
	if err != nil {
		return false, err
	}
	return len(from) > 1 || len(to) > 1 || from[0] != to[0], nil
}

// move deletes the rows that key finds and inserts their new images.
func (tx *Tx) move(ctx context.Context, t *tableInfo, set, key Values) (int64, error) {
	for name, v := range set {
		if _, ok := v.(Expr); ok {
			return 0, opErr("update", fmt.Errorf("an expression on column %s cannot be set while the row moves to another segment", name))
		}
		if t.index(name) < 0 {
			return 0, opErr("update", fmt.Errorf("table %s has no column %s", t.sql(), name))
		}
	}
	c := clause{t: t}
	where, err := c.where(key)
	if err != nil {
		return 0, opErr("update", err)
	}
	segs, err := tx.route(ctx, t, key)
	if err != nil {
		return 0, err
	}
	idx := t.insertable()
	var rows []Row
	for _, seg := range segs {
		conn, err := tx.join(ctx, seg)
		if err != nil {
			return 0, err
		}
		res := conn.PgConn().ExecParams(ctx, "delete from "+t.sql()+where+" returning "+columnList(t, idx), c.args, nil, nil, nil).Read()
		if res.Err != nil {
			return 0, nodeErr("update", seg, res.Err)
		}
		for _, old := range res.Rows {
			row := make(Row, len(idx))
			for i, k := range idx {
				if v, ok := set[t.cols[k].name]; ok {
					row[i] = v
				} else if old[i] != nil {
					row[i] = string(old[i])
				}
			}
			rows = append(rows, row)
		}
	}
	return int64(len(rows)), tx.insert(ctx, t, idx, rows)
}

// TruncateOptions are TRUNCATE's.
type TruncateOptions struct {
	Cascade         bool
	RestartIdentity bool
}

// Truncate truncates tables, in one statement, on every segment.
func (tx *Tx) Truncate(ctx context.Context, o TruncateOptions, tables ...string) error {
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = split(t).Sanitize()
	}
	sql := "truncate " + strings.Join(names, ", ")
	if o.RestartIdentity {
		sql += " restart identity"
	}
	if o.Cascade {
		sql += " cascade"
	}
	for _, c := range tx.src.segmentContents() {
		if _, err := tx.exec(ctx, c, sql, nil); err != nil {
			return err
		}
	}
	return nil
}
