package source

import (
	"context"

	"github.com/jackc/pgx/v5"

	"cbrepl/dtx"
	"cbrepl/source/stream/repl"
)

// FlushReader asks a node of a Greenplum 6 source how far its log is on disk,
// over an ordinary session that it opens again when it was lost. It is used by
// one goroutine.
type FlushReader struct {
	node    Node
	resolve func(context.Context) (string, error)
	conn    *pgx.Conn
}

// FlushReader makes the reader of a content's flush position. It connects to
// nothing.
func (c *Cluster) FlushReader(content dtx.Content) *FlushReader {
	r := &FlushReader{}
	if content != dtx.Coordinator {
		r.resolve = c.Resolver(content)
	}
	for _, n := range c.nodes {
		if n.Content == content {
			r.node = n
		}
	}
	return r
}

// Open connects unless there is a session.
func (r *FlushReader) Open(ctx context.Context) error {
	if r.conn != nil {
		return nil
	}
	return r.open(ctx)
}

// FlushLSN asks for the position now. A session that was lost since the last time
// is replaced.
func (r *FlushReader) FlushLSN(ctx context.Context) (dtx.LSN, error) {
	for fresh := r.conn == nil; ; fresh = true {
		if err := r.Open(ctx); err != nil {
			return 0, err
		}
		var text string
		err := r.conn.QueryRow(ctx, "SELECT cbrepl_source.flush_lsn()", pgx.QueryExecModeSimpleProtocol).Scan(&text)
		if err == nil {
			return dtx.ParseLSN(text)
		}
		r.Close()
		if fresh || ctx.Err() != nil {
			return 0, repl.Fault("read flush position", r.node.Content, "", "", err)
		}
	}
}

// open connects to where the segment is now, and makes sure that it is that
// segment, as its primary: another server's position would prove nothing.
func (r *FlushReader) open(ctx context.Context) error {
	if r.resolve != nil {
		dsn, err := r.resolve(ctx)
		if err != nil {
			return err
		}
		r.node.DSN = dsn
	}
	conn, err := connect(ctx, r.node)
	if err != nil {
		return err
	}
	r.conn = conn
	is, ok, err := contentOf(ctx, conn)
	var recovery bool
	if err == nil {
		err = conn.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&recovery)
	}
	if err == nil && (ok && is != r.node.Content || recovery) {
		err = &dtx.Error{
			Op: "read flush position", Content: dtx.AtContent(r.node.Content),
			Msg: "the server is not, or not yet, the primary of this content",
		}
	}
	if err != nil {
		r.Close()
	}
	return repl.Fault("read flush position", r.node.Content, "", "", err)
}

// Close ends the session.
func (r *FlushReader) Close() {
	if r.conn != nil {
		closeConn(r.conn)
		r.conn = nil
	}
}
