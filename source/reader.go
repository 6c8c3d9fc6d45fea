package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/source/stream/repl"
)

// closeTimeout bounds the farewell to a server.
const closeTimeout = time.Second

// ErrRewritten is wrapped by the error for a table whose file was replaced since the
// cut: by a TRUNCATE, or a statement that writes the table anew. Its rows of the cut
// may be gone. It can be copied under another cut.
var ErrRewritten = errors.New("the table was truncated, written anew or dropped since the cut was taken")

// Reader reads tables of one segment as a cut has them. It is used by one goroutine
// at a time.
type Reader struct {
	content  dtx.Content
	snapshot string
	conn     *pgconn.PgConn
}

// readerSettings are those of the sessions that read, beside those that decide how
// values are printed.
var readerSettings = map[string]string{
	"row_security":                        "off", // rows that are hidden from the role are an error
	"idle_in_transaction_session_timeout": "0",
	"lock_timeout":                        "60s",
	"max_parallel_workers_per_gather":     "0",
	"jit":                                 "off",
	"synchronize_seqscans":                "off",
	"enable_tidscan":                      "on",
}

// Reader opens a session on a segment.
func (c *Cut) Reader(ctx context.Context, content dtx.Content) (*Reader, error) {
	const op = "connect to source"
	pc, err := repl.ParseDSN(content, c.nodes[content].DSN)
	if err != nil {
		return nil, err
	}
	for _, settings := range []map[string]string{repl.TextSettings(), readerSettings} {
		for k, v := range settings {
			pc.RuntimeParams[k] = v
		}
	}
	conn, err := pgconn.ConnectConfig(ctx, pc)
	if err != nil {
		return nil, repl.Fault(op, content, "", "", err)
	}
	return &Reader{content, c.snapshots[content], conn}, nil
}

// Close ends the session.
func (r *Reader) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = r.conn.Close(ctx)
}

// Piece is a range of pages of a table on one segment, or of one of its partitions.
type Piece struct {
	Content dtx.Content
	// From and To are pages: To is behind the last; 0 is the end, wherever it is.
	From, To int64
	// Blocks and Rows are estimates of its size.
	Blocks, Rows int64

	name catalog.Name // the partition's, or the table's
	oid  uint32
	file uint32
}

// piecesSQL lists the tables that hold a published table's rows, as the snapshot has
// them: itself, or its partitions. Their sizes are the present ones.
const piecesSQL = `WITH RECURSIVE t(oid) AS (
  SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2
  UNION ALL
  SELECT i.inhrelid FROM t JOIN pg_catalog.pg_class p ON p.oid = t.oid AND p.relkind = 'p' JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid)
SELECT n.nspname, c.relname, c.oid, c.relfilenode, c.reltuples::int8, c.relpages,
 coalesce(pg_catalog.pg_relation_size(c.oid), 0) / pg_catalog.current_setting('block_size')::int8
FROM t JOIN pg_catalog.pg_class c ON c.oid = t.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' ORDER BY 1, 2`

// Pieces divides a table's pages on this segment into pieces of so many blocks, at
// least one piece per partition.
func (r *Reader) Pieces(ctx context.Context, t *catalog.PublishedTable, blocks int64) ([]Piece, error) {
	var rows [][][]byte
	err := r.inSnapshot(ctx, t.QualifiedName(), func() error {
		res := r.conn.ExecParams(ctx, piecesSQL, [][]byte{[]byte(t.Schema), []byte(t.Name)}, nil, nil, nil).Read()
		rows = res.Rows
		return res.Err
	})
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, r.rewritten(t.QualifiedName())
	}
	var out []Piece
	for _, f := range rows {
		num := func(i int) int64 {
			v, _ := strconv.ParseInt(string(f[i]), 10, 64) // the server's numbers
			return v
		}
		size, tuples, pages := num(6), num(4), num(5)
		density := 50.0 // rows on a page of a table that was never analyzed
		if tuples > 0 && pages > 0 {
			density = float64(tuples) / float64(pages)
		}
		p := Piece{Content: r.content, name: catalog.Name{Schema: string(f[0]), Table: string(f[1])}, oid: uint32(num(2)), file: uint32(num(3))}
		for from := int64(0); from == 0 || from < size; from += blocks {
			p.From, p.To, p.Blocks = from, from+blocks, min(blocks, size-from)
			if p.To >= size {
				p.To = 0
			}
			p.Rows = int64(density * float64(p.Blocks))
			out = append(out, p)
		}
	}
	return out, nil
}

// Copy writes the rows of a piece to w, as COPY prints them in text format: one call
// of Write per row. columns are in the order of the fields.
func (r *Reader) Copy(ctx context.Context, t *catalog.PublishedTable, p *Piece, columns []string, w io.Writer) error {
	return r.inSnapshot(ctx, p.name, func() error {
		if err := r.lock(ctx, p); err != nil {
			return err
		}
		_, err := r.conn.CopyTo(ctx, w, copySQL(t, p, columns))
		return err
	})
}

// lock locks a piece's table against TRUNCATE and all that replaces its file, until
// the end of the transaction, and makes sure that this has not happened since the
// snapshot: the rows that it had are gone then, whatever the snapshot is. Writers are
// not held up.
func (r *Reader) lock(ctx context.Context, p *Piece) error {
	name := pgx.Identifier{p.name.Schema, p.name.Table}.Sanitize()
	res, err := r.conn.Exec(ctx, fmt.Sprintf(`LOCK TABLE ONLY %[1]s IN ACCESS SHARE MODE;
		SELECT pg_catalog.to_regclass(%[2]s)::oid = %[3]d AND pg_catalog.pg_relation_filenode(%[3]d) = %[4]d`,
		name, quoteLiteral(name), p.oid, p.file)).ReadAll()
	var pe *pgconn.PgError
	switch {
	case errors.As(err, &pe) && (pe.Code == "42P01" || pe.Code == "3F000"): // no such table, no such schema
		return r.rewritten(p.name)
	case err != nil:
		return err
	case len(res) != 2 || len(res[1].Rows) != 1 || string(res[1].Rows[0][0]) != "t":
		return r.rewritten(p.name)
	}
	return nil
}

func (r *Reader) rewritten(n catalog.Name) error {
	return &dtx.Error{
		Op: "copy table", Content: dtx.AtContent(r.content), Relation: n.String(), Class: dtx.ClassRetry, Err: ErrRewritten,
		Hint: "Run the command again when the table is not truncated or rewritten all the time",
	}
}

// copySQL is the statement that reads a piece.
func copySQL(t *catalog.PublishedTable, p *Piece, columns []string) string {
	cols := make([]string, len(columns))
	for i, c := range columns {
		cols[i] = pgx.Identifier{c}.Sanitize()
	}
	list, name := strings.Join(cols, ", "), pgx.Identifier{p.name.Schema, p.name.Table}.Sanitize()
	var where []string
	if t.Filter != "" {
		where = append(where, "("+t.Filter+")")
	}
	if p.From > 0 {
		where = append(where, fmt.Sprintf("ctid >= '(%d,0)'::pg_catalog.tid", p.From))
	}
	if p.To > 0 {
		where = append(where, fmt.Sprintf("ctid < '(%d,0)'::pg_catalog.tid", p.To))
	}
	if len(where) == 0 {
		return "COPY " + name + " (" + list + ") TO STDOUT"
	}
	return "COPY (SELECT " + list + " FROM ONLY " + name + " WHERE " + strings.Join(where, " AND ") + ") TO STDOUT"
}

// inSnapshot runs f in a transaction with the cut's snapshot.
func (r *Reader) inSnapshot(ctx context.Context, table catalog.Name, f func() error) error {
	err := r.conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT "+quoteLiteral(r.snapshot)).Close()
	if err == nil {
		err = f()
	}
	if !r.conn.IsClosed() && !r.conn.IsBusy() {
		if end := r.conn.Exec(ctx, "ROLLBACK").Close(); err == nil {
			err = end
		}
	}
	if err == nil {
		return nil
	}
	err = repl.Fault("copy table", r.content, "", "", err)
	var e *dtx.Error
	if errors.As(err, &e) && e.Relation == "" {
		c := *e
		c.Relation = table.String()
		return &c
	}
	return err
}

func quoteLiteral(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
