// Package engine turns a batch into operations on a target (apply.Backend): it
// maps source relations to target tables, folds changes of a row to their net
// effect, finds each row's segment and sends what remains, one ordered lane per
// segment. It knows no SQL, opens no connection and begins and ends no
// transaction.
//
// A change's way through the files: run (reads parts), change (folds one row),
// fold (a table's pending changes), flush (ends a window), then copyrows,
// updates, deletes, images or truncate (operations), send and lanes (order and
// memory per segment). plan holds what is derived from a table once.
package engine

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/router"
)

// Engine applies batches to one target. It is used by one goroutine at a time
// and lives as long as the catalogue facts it was made from.
type Engine struct {
	opt      apply.Options
	names    apply.NameMap
	segments []dtx.Content
	stream   *Stream
	seed     maphash.Seed // of sentCopies
	sources  map[catalog.Name]*catalog.PublishedTable
	tables   map[catalog.Name]*table // by target name
	order    []*table                // tables by target name, the order of flushing
	// inOrder is set when a table holds inserts back (table.holds): contents are
	// read one after the other then.
	inOrder bool
	// relations caches by pointer: a spool hands out one per version it has read.
	relations map[*pgoutput.Relation]*relation
	last      *relation
	// forgotten are the source's tables that were let go of; nil when there are none.
	forgotten *forgotten
	pool      pool
	// maxLine bounds a row as a line of COPY; a server takes no longer one.
	maxLine   int
	folds     []*fold
	foldBytes int64
	// fetchCost is what a fetched row is expected to take, in bytes: the largest
	// of the last statement's, or half of what was expected before. It begins high,
	// so that the first statements fetch few rows.
	fetchCost int64
}

// maxLine is the longest line that a server's COPY takes: its buffer has a gigabyte, with
// a byte behind the line.
const maxLine = 1<<30 - 2

// maxRelations bounds the relation cache; beyond it the cache starts over.
const maxRelations = 10_000

// New checks that every source table can be applied and compiles what is
// needed for it. segments are the backend's (Backend.Segments). stream is what
// earlier engines of the same target learned, nil for nothing. The error joins every
// problem. The engine keeps its arguments and changes none but stream.
func New(opt apply.Options, names apply.NameMap, sources []catalog.PublishedTable, targets []*catalog.Table, segments []dtx.Content, stream *Stream) (*Engine, error) {
	if stream == nil {
		stream = &Stream{}
	}
	opt.EnsureDefaults()
	errs := []error{opt.Validate(), names.Validate()}
	e := &Engine{
		opt: opt, names: names, segments: segments, stream: stream, seed: maphash.MakeSeed(),
		sources:   make(map[catalog.Name]*catalog.PublishedTable, len(sources)),
		tables:    make(map[catalog.Name]*table, len(targets)),
		relations: make(map[*pgoutput.Relation]*relation),
		fetchCost: opt.FetchBytes,
		maxLine:   maxLine,
		pool:      pool{limit: opt.QueueBytes},
	}
	byName := make(map[catalog.Name]*catalog.Table, len(targets))
	for _, t := range targets {
		byName[t.QualifiedName()] = t
	}
	for i := range sources {
		src := &sources[i]
		e.sources[src.QualifiedName()] = src
		if err := e.addSource(src, byName); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, t := range e.tables {
		e.order = append(e.order, t)
	}
	slices.SortFunc(e.order, func(a, b *table) int {
		return a.name.Compare(b.name)
	})
	return e, nil
}

func (e *Engine) addSource(src *catalog.PublishedTable, targets map[catalog.Name]*catalog.Table) error {
	problem := func(hint, format string, args ...any) error {
		return &dtx.Error{
			Op: "match tables", Relation: src.String(), Msg: fmt.Sprintf(format, args...),
			Hint: hint, Class: dtx.ClassStop,
		}
	}
	cands := e.names.Candidates(src)
	var t *table
	for _, n := range cands {
		if t = e.tables[n]; t != nil {
			break
		}
		tt := targets[n]
		if tt == nil {
			continue
		}
		var err error
		if t, err = newTable(tt, e.segments); err != nil {
			return problem("", "%v", err)
		}
		t.encode = e.encoders(tt)
		e.tables[n] = t
		break
	}
	if t == nil {
		want := cands[0].String()
		if len(cands) > 1 {
			want += " or its root " + cands[1].String()
		}
		return problem("Create the table, or add a name rule for it", "there is no table %s on the target", want)
	}
	t.sources = append(t.sources, src.QualifiedName())
	t.deferrable = t.deferrable || src.Deferrable
	sh, _, err := t.newShape(e.published(src), src)
	if err == nil {
		err = t.checkGenerated(src)
	}
	if err != nil {
		return problem("Make the target table's columns fit, or publish other columns", "table %s does not fit: %v", t, err)
	}
	t.crossesContents = t.crossesContents || t.canCross(sh, src)
	e.inOrder = e.inOrder || t.holds()
	if t.crossesContents && e.opt.OnConflict == apply.ConflictLog {
		return problem(crossingHint, "rows of table %s "+crossingLoss, t)
	}
	return nil
}

// What is wrong with a table whose rows cross contents under on_conflict: log, and what to do.
const (
	crossingLoss = "may go from one source segment to another, and under on_conflict: log one that comes before it has gone would be lost"
	crossingHint = "Set on_conflict: stop, distribute the table on the source by columns of its identity, or drop the key that only the target has"
)

// resolve finds what rel maps to; nil when its rows are passed over.
func (e *Engine) resolve(content dtx.Content, rel *pgoutput.Relation) (*relation, error) {
	if e.forgotten != nil && e.forgotten.has(content, rel) {
		return nil, nil
	}
	if e.last != nil && e.last.rel == rel {
		return e.last, nil
	}
	if r := e.relations[rel]; r != nil {
		e.last = r
		return r, nil
	}
	src := e.sources[catalog.Name{Schema: rel.Schema, Table: rel.Name}]
	if src == nil {
		return nil, &dtx.Error{
			Op: "match tables", Relation: rel.String(), Class: dtx.ClassStop,
			Msg:  "the stream holds changes of a table that is not among those that are replicated: it was made, or published, after the subscription began",
			Hint: "Create the table on the target if it is missing there, and take it with `cbrepl table take`, which says when that is right; then start the daemon again",
		}
	}
	var t *table
	for _, n := range e.names.Candidates(src) {
		if t = e.tables[n]; t != nil {
			break
		}
	}
	sh, order, err := t.shapeFor(rel, src)
	if err = errors.Join(err, e.stream.checkRelation(content, rel, src, t)); err != nil {
		return nil, e.stream.misfit(rel, t, err)
	}
	if t.canCross(sh, src) && !t.crossesContents { // its replica identity has changed
		if t.crossesContents, e.inOrder = true, true; e.opt.OnConflict == apply.ConflictLog {
			return nil, &dtx.Error{
				Op: "match tables", Relation: rel.String(), Class: dtx.ClassStop, Hint: crossingHint,
				Msg: "with this replica identity rows " + crossingLoss,
			}
		}
	}
	r := &relation{rel: rel, table: t, shape: sh, order: order, lowestOnly: src.Policy.Kind == router.Replicated, cut: e.stream.cuts[src.QualifiedName()]}
	if r.lowestOnly {
		r.layout = layoutSum(e.seed, rel)
	}
	if len(e.relations) >= maxRelations {
		clear(e.relations)
	}
	e.relations[rel] = r
	e.last = r
	return r, nil
}

// Apply writes the rows of b through be. It begins and ends no transaction. On
// error some operations may have been run and all are done: the caller rolls
// back.
func (e *Engine) Apply(ctx context.Context, b *dtx.Batch, rows apply.Rows, be apply.Backend) (apply.Result, error) {
	r := newRun(ctx, e, b, be)
	err := r.batch(b, rows)
	if err == nil {
		err = r.flushAll(false)
	}
	err = r.finish(err)
	if err != nil {
		for _, t := range e.order {
			e.endWindow(t)
		}
		return apply.Result{}, err
	}
	e.stream.applied()
	return r.result, nil
}

// takeFold returns an empty fold.
func (e *Engine) takeFold() *fold {
	if n := len(e.folds); n > 0 {
		f := e.folds[n-1]
		e.folds = e.folds[:n-1]
		e.foldBytes -= f.footprint()
		return f
	}
	return newFold()
}

// putFold keeps a fold for the next window, up to the size of one.
func (e *Engine) putFold(f *fold) {
	if f == nil {
		return
	}
	f.reset()
	if n := f.footprint(); e.foldBytes+n <= e.opt.WindowBytes {
		e.foldBytes += n
		e.folds = append(e.folds, f)
	}
}

// endWindow forgets what t had pending.
func (e *Engine) endWindow(t *table) {
	e.putFold(t.fold)
	for i := range t.bufs {
		t.bufs[i] = copyBuf{}
	}
	t.window = window{bufs: t.bufs, shape: t.shape}
}
