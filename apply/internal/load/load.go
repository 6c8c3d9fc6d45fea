// Package load writes rows outside batches (apply.Loader), the same way on every
// kind of target: by COPY, one transaction per call.
//
// # Fencing
//
// A process that was replaced while it was paused must not commit rows any more: its
// successor empties the table and fills it again. So each transaction looks at the
// epoch before it commits, when it holds the lock that writing to the table takes.
// The successor raises the epoch first and empties the table then, for which it waits
// for that lock: either the old process sees the new epoch, or its rows are there to
// be deleted.
package load

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
	"cbrepl/dtx"
)

const op = "copy table"

// Loader implements apply.Loader.
type Loader struct {
	segments []dtx.Content
	connect  func(ctx context.Context, seg dtx.Content) (*pgside.Session, error)
	fence    func(ctx context.Context, s *pgside.Session) error
	point    func(name string) error
	sessions []*pgside.Session // by place in segments
}

var _ apply.Loader = (*Loader)(nil)

// New returns a loader for segments. connect opens a session with the settings of
// those that write batches, and no limit on the time of a statement; fence fails when
// this process has been replaced; point is called between durable steps.
func New(segments []dtx.Content, connect func(ctx context.Context, seg dtx.Content) (*pgside.Session, error),
	fence func(ctx context.Context, s *pgside.Session) error, point func(name string) error,
) *Loader {
	return &Loader{segments: segments, connect: connect, fence: fence, point: point, sessions: make([]*pgside.Session, len(segments))}
}

// session returns the segment's session, which it opens on first use.
func (l *Loader) session(ctx context.Context, seg dtx.Content) (*pgside.Session, error) {
	i := slices.Index(l.segments, seg)
	if s := l.sessions[i]; s != nil && s.Conn != nil && !s.Conn.IsClosed() {
		return s, nil
	}
	s, err := l.connect(ctx, seg)
	if err != nil {
		return nil, err
	}
	l.sessions[i] = s
	return s, nil
}

// Load inserts what r reads.
func (l *Loader) Load(ctx context.Context, seg dtx.Content, t *catalog.Table, cols []int, r io.Reader) (int64, error) {
	s, err := l.session(ctx, seg)
	if err != nil {
		return 0, err
	}
	var rows int64
	err = s.Transaction(ctx, op, func() error {
		tag, err := s.Conn.CopyFrom(ctx, r, pgside.CopySQL(t, cols))
		if err != nil {
			return name(t, s.FailRows(op, err))
		}
		rows = tag.RowsAffected()
		if err := l.fence(ctx, s); err != nil {
			return err
		}
		return l.point("load_before_commit")
	})
	return rows, err
}

// HoldsRows reports whether the table has any row.
func (l *Loader) HoldsRows(ctx context.Context, seg dtx.Content, t *catalog.Table) (bool, error) {
	s, err := l.session(ctx, seg)
	if err != nil {
		return false, err
	}
	rows, err := s.Query(ctx, "SELECT EXISTS (SELECT 1 FROM "+pgside.Only(t)+")")
	if err != nil {
		return false, name(t, s.Fail(op, err))
	}
	return string(rows[0][0]) == "t", nil
}

// cannotTruncate is the SQLSTATE of a TRUNCATE of a table that foreign keys refer to.
const cannotTruncate = "0A000"

// Empty truncates the table. One that foreign keys of other tables refer to cannot be
// truncated alone: its rows are deleted.
func (l *Loader) Empty(ctx context.Context, seg dtx.Content, t *catalog.Table) error {
	s, err := l.session(ctx, seg)
	if err != nil {
		return err
	}
	if holds, err := l.HoldsRows(ctx, seg, t); err != nil || !holds {
		return err
	}
	empty := func(sql string) error {
		return s.Transaction(ctx, op, func() error {
			if err := s.Exec(ctx, sql); err != nil {
				return err
			}
			return l.fence(ctx, s)
		})
	}
	err = empty(pgside.TruncateSQL([]*catalog.Table{t}, false))
	if pgside.SQLState(err) == cannotTruncate {
		err = empty("DELETE FROM " + pgside.Only(t))
	}
	return name(t, err)
}

// Analyze collects statistics.
func (l *Loader) Analyze(ctx context.Context, seg dtx.Content, t *catalog.Table) error {
	s, err := l.session(ctx, seg)
	if err != nil {
		return err
	}
	return name(t, s.Fail(op, s.Exec(ctx, "ANALYZE "+pgside.TableName(t))))
}

// SetSequence sets the sequence that a column owns.
func (l *Loader) SetSequence(ctx context.Context, seg dtx.Content, t *catalog.Table, column string, last int64, called bool) error {
	s, err := l.session(ctx, seg)
	if err != nil {
		return err
	}
	_, err = s.Query(ctx, `SELECT pg_catalog.setval(q.s, $3::bigint, $4::boolean)
		FROM (SELECT pg_catalog.pg_get_serial_sequence($1, $2)::regclass) q(s) WHERE q.s IS NOT NULL`,
		pgside.TableName(t), column, strconv.FormatInt(last, 10), fmt.Sprint(called))
	return name(t, s.Fail("set sequence", err))
}

// Close ends the sessions.
func (l *Loader) Close() {
	for _, s := range l.sessions {
		if s != nil {
			s.Close()
		}
	}
}

// name adds the table to an error that names none.
func name(t *catalog.Table, err error) error {
	if e, ok := err.(*dtx.Error); ok && e.Relation == "" { //nolint:errorlint // a wrapped one keeps its place
		c := *e
		c.Relation = t.String()
		return &c
	}
	return err
}
