package cloudberry

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/router"
)

// stages are the session's temporary tables. Making one costs several times a
// small batch, on every node, and leaves dead rows in every catalogue; keeping one
// costs every later transaction of the session some time, since its ON COMMIT has
// to be done on every segment. So a stage is kept while it is in use and dropped
// when it has not been for a while.
type stages struct {
	byKey map[string]*stage
	made  int
	batch int
}

// stage is one temporary table.
type stage struct {
	name string
	used int // the last batch that used it
	// filled is set while it holds rows of this batch.
	filled bool
}

// stageIdle is after how many batches without use a stage is dropped; maxStages
// bounds how many there are.
const (
	stageIdle = 50
	maxStages = 8
)

// startBatch follows the end of a transaction: it has emptied all stages. After a
// failed one the session is another, with stages of its own.
func (st *stages) startBatch() {
	st.batch++
	for _, s := range st.byKey {
		s.filled = false
	}
}

// stage fills a temporary table with n rows of the given sets. Its columns have
// the types of the target's columns, and it is distributed as the target where
// the sets hold the whole distribution key under the name k: then the join with
// the target needs no motion. Elsewhere every segment gets all rows.
func (b *backend) stage(ctx context.Context, f *tableFacts, n int, sets ...namedSet) (*rowset, error) {
	t := f.Table
	var cols, defs []string
	for _, s := range sets {
		for i, c := range s.set.Cols {
			name := s.name + strconv.Itoa(i)
			cols = append(cols, name)
			defs = append(defs, name+" "+t.Columns[c].CastType)
		}
	}
	def := "(o bigint, " + strings.Join(defs, ", ") + ") ON COMMIT DELETE ROWS " + stageDistribution(f, sets[0].set)
	if b.stages.byKey[def] == nil {
		b.dropStages(len(b.stages.byKey) >= maxStages)
		b.stages.made++
		s := &stage{name: fmt.Sprintf("cbrepl_stage_%d", b.stages.made)}
		if err := b.plain(ctx, "CREATE TEMPORARY TABLE "+s.name+" "+strings.Replace(def, " ON COMMIT", b.s.facts.stageStorage()+" ON COMMIT", 1)); err != nil {
			return nil, err
		}
		b.stages.byKey[def] = s
	}
	s := b.stages.byKey[def]
	s.used = b.stages.batch
	if s.filled {
		b.ahead("TRUNCATE pg_temp." + s.name)
	}
	s.filled = true
	sql := strings.Join(append(b.takePrefix(), "COPY pg_temp."+s.name+" (o, "+strings.Join(cols, ", ")+") FROM STDIN"), "; ")
	if _, err := b.s.Conn.CopyFrom(ctx, newLines(n, sets), sql); err != nil {
		return nil, err
	}
	b.t.count(func(s *Stats) { s.Staged++ })
	return &rowset{from: "pg_temp." + s.name + " AS v", ord: "v.o", typed: true}, nil
}

// stageStorage makes a stage a heap table whatever the default storage is.
func (f *facts) stageStorage() string {
	if f.has("pg_class.relam") && f.has("pg_am.amtype") {
		return " USING heap"
	}
	return " WITH (appendonly = false)"
}

// stageDistribution is the clause that places a stage's rows where the target's
// rows with the same key are.
func stageDistribution(f *tableFacts, keys apply.Set) string {
	const everywhere = "DISTRIBUTED REPLICATED"
	t := f.Table
	if t.Policy.Kind != router.Hash || f.customClass {
		return everywhere
	}
	var cols []string
	for _, p := range t.Policy.Columns {
		i := slices.Index(keys.Cols, t.Column(p.Name))
		if i < 0 {
			return everywhere
		}
		// Both families of built-in classes live in pg_catalog.
		cols = append(cols, "k"+strconv.Itoa(i)+" pg_catalog."+pgside.QuoteIdent(p.Opclass))
	}
	return "DISTRIBUTED BY (" + strings.Join(cols, ", ") + ")"
}

// dropStages queues the drop of stages that have not been used for a while; with
// full, of the one not used for longest.
func (b *backend) dropStages(full bool) {
	var oldest string
	for k, s := range b.stages.byKey {
		switch {
		case b.stages.batch-s.used > stageIdle:
			b.dropStage(k)
			full = false
		case s.used < b.stages.batch && (oldest == "" || s.used < b.stages.byKey[oldest].used):
			oldest = k
		}
	}
	if full && oldest != "" {
		b.dropStage(oldest)
	}
}

func (b *backend) dropStage(key string) {
	b.ahead("DROP TABLE pg_temp." + b.stages.byKey[key].name)
	delete(b.stages.byKey, key)
}

// lines reads sets as COPY text, the ordinal first.
type lines struct {
	cols [][][]byte
	n    int
	row  int
	buf  []byte
	off  int
}

func newLines(n int, sets []namedSet) *lines {
	l := &lines{n: n}
	for _, s := range sets {
		l.cols = append(l.cols, columnsOf(s.set, n)...)
	}
	return l
}

// Read implements io.Reader.
func (l *lines) Read(p []byte) (int, error) {
	if l.off == len(l.buf) {
		l.buf, l.off = l.buf[:0], 0
		for l.row < l.n && len(l.buf) < 32<<10 {
			l.row++
			l.buf = strconv.AppendInt(l.buf, int64(l.row), 10)
			for _, c := range l.cols {
				l.buf = append(l.buf, '\t')
				l.buf = pgside.AppendField(l.buf, c[l.row-1])
			}
			l.buf = append(l.buf, '\n')
		}
		if len(l.buf) == 0 {
			return 0, io.EOF
		}
	}
	n := copy(p, l.buf[l.off:])
	l.off += n
	return n, nil
}
