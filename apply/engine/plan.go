package engine

import (
	"errors"
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

// placement says how a table's rows find their segment.
type placement uint8

const (
	placeServer     placement = iota // one session; the server places rows
	placeReplicated                  // every segment has every row
	placeHash                        // the distribution key's hash
	placeRandom                      // any segment; ours is named by the row's identity
)

// table is a target table with what the engine derives from it, and the changes
// of the current window.
type table struct {
	*catalog.Table
	name   catalog.Name
	place  placement
	router *router.Router // placeHash and placeRandom
	segs   []dtx.Content  // the segments that hold rows
	// guards are the columns, ascending, that an update in place leaves alone: a
	// row that changes there is deleted and inserted. Secondary unique columns are
	// guards because rows that swap or shift unique values collide while they are
	// updated one after the other; so are columns that UPDATE cannot write.
	guards []int
	// sources lists the source tables that map here.
	sources []catalog.Name
	// deferrable is set when the source lets rows share unique values inside a
	// transaction, which the target may not.
	deferrable bool
	// crossesContents is set when the row of an identity may leave one content and enter
	// another, because the source does not distribute rows by it. What the contents
	// send of it stands in no order.
	crossesContents bool
	// encode holds, per column, what gives its values their binary form; nil when
	// rows go as text. textOnly is set once a value had no such form.
	encode   []pgbinary.Encoder
	textOnly bool
	shapes   []*shape
	window
}

// shape is which columns of a target table the tuples of a source relation
// write, and how they identify and place rows. "Source column" means an index
// into the decoded row, which is in target column order whatever the order of
// the tuple: partitions may order their columns differently and still share a
// window.
type shape struct {
	cols []int // per source column its target column, ascending
	// key are the identity's source columns in target column order; keyTarget
	// the same as target columns. Empty when rows cannot be identified.
	key, keyTarget []int
	// images is set when the whole row is the identity.
	images bool
	// full is set when old tuples are complete rows.
	full bool
	// dist are the source columns of the target's distribution key, in key order.
	dist []int
	// keyed tells that the identity alone names the segment.
	keyed bool
	// distInKey are the places of dist within key, when keyed.
	distInKey []int
	// place are the source columns whose text places a row of a random table.
	place  []int
	guards []int // source columns that are guards, ascending by target column
	set    []int // source columns that an update in place writes
	extra  []int // target-only columns: kept on update, fetched when a row moves
	// row is how inserts are laid out, fullRow those with fetched extra columns.
	row, fullRow layout
}

// relation is what the engine knows of one pgoutput.Relation.
type relation struct {
	rel   *pgoutput.Relation
	table *table
	shape *shape
	// order is, per source column, its place in the tuple; nil when it is the same.
	order []int
	// lowestOnly is set for tables replicated on the source, layout then.
	lowestOnly bool
	layout     uint64
	// cut says what the first copy of the table holds; nil when the streams have
	// nothing of it to deliver.
	cut *cut
}

func newTable(t *catalog.Table, segments []dtx.Content) (*table, error) {
	out := &table{Table: t, name: t.QualifiedName()}
	switch t.Kind {
	case catalog.Heap, catalog.PartitionRoot, catalog.AppendOptimized:
	default:
		return nil, fmt.Errorf("table %s on the target is not a table that rows can be written to", t)
	}
	guard := make([]bool, len(t.Columns))
	for i := range t.Columns {
		guard[i] = t.Columns[i].IdentityAlways
	}
	for _, c := range t.Pinned {
		guard[c] = true
	}
	for _, u := range t.Uniques {
		if u.Exclusion && u.Deferrable {
			// As a replica the server does not check it.
			return nil, fmt.Errorf("exclusion constraint %s of table %s on the target is deferrable, and would not be checked while rows are applied; make it NOT DEFERRABLE there", u.Name, t)
		}
		for _, c := range u.Reads {
			guard[c] = true
		}
	}
	server := len(segments) == 1 && segments[0] == apply.ServerPlaced
	if server {
		out.place, out.segs = placeServer, segments
		for _, c := range t.Policy.Columns {
			if i := t.Column(c.Name); i >= 0 {
				guard[i] = true
			}
		}
	} else if err := out.placeRows(segments); err != nil {
		return nil, err
	}
	for i, g := range guard {
		if g {
			out.guards = append(out.guards, i)
		}
	}
	return out, nil
}

// placeRows prepares routing on a target whose segments the engine addresses.
func (t *table) placeRows(segments []dtx.Content) error {
	p := t.Policy
	if p.NumSegments < 1 || p.NumSegments > len(segments) {
		return fmt.Errorf("table %s is spread over %d segments on the target, which has %d", t, p.NumSegments, len(segments))
	}
	t.segs = segments[:p.NumSegments]
	switch p.Kind {
	case router.Replicated:
		t.place = placeReplicated
		return nil
	case router.Hash:
		t.place = placeHash
	case router.Random:
		t.place = placeRandom
	}
	r, err := router.New(p)
	if err != nil {
		return fmt.Errorf("table %s: %w", t, err)
	}
	t.router = r
	return nil
}

// newShape maps the columns of rel by name and chooses the identity. order is
// the place of each source column in the tuple. Every problem found is in the
// error.
func (t *table) newShape(rel *pgoutput.Relation, src *catalog.PublishedTable) (sh *shape, order []int, err error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	sh = &shape{full: rel.Identity == pgoutput.IdentityFull}
	at := make([]int, len(t.Columns)) // place in the tuple per target column
	of := make([]int, len(t.Columns)) // source column per target column
	for i := range at {
		at[i], of[i] = -1, -1
	}
	for i := range rel.Columns {
		name := rel.Columns[i].Name
		c := t.Column(name)
		switch {
		case c < 0:
			bad("column %q is missing on the target", name)
		case t.Columns[c].Generated && sourceGenerated(src, name):
			// The target computes it, too.
		case t.Columns[c].Generated:
			bad("column %q is generated on the target and a plain column on the source", name)
		case at[c] >= 0:
			bad("column %q is sent twice", name)
		default:
			at[c] = i
		}
	}
	for c, i := range at {
		if i >= 0 {
			of[c] = len(sh.cols)
			sh.cols = append(sh.cols, c)
			order = append(order, i)
		}
	}
	for c := range t.Columns {
		col := &t.Columns[c]
		if of[c] >= 0 || col.Generated {
			continue
		}
		sh.extra = append(sh.extra, c)
		if col.NotNull && !col.HasDefault {
			bad("column %q exists on the target only, is NOT NULL and has no default", col.Name)
		}
	}
	for _, k := range t.Policy.Columns {
		c := t.Column(k.Name)
		switch {
		case t.place != placeHash:
		case c < 0 || of[c] < 0:
			bad("column %q of the target's distribution key is not among the published columns", k.Name)
		default:
			sh.dist = append(sh.dist, of[c])
		}
	}
	if len(errs) > 0 {
		return nil, nil, errors.Join(errs...)
	}
	t.chooseIdentity(sh, rel, src, at)
	isKey := make([]bool, len(sh.cols))
	for _, s := range sh.key {
		isKey[s] = true
	}
	sh.keyed = len(sh.key) > 0 && !sh.images
	for _, d := range sh.dist {
		sh.keyed = sh.keyed && isKey[d]
		sh.distInKey = append(sh.distInKey, slices.Index(sh.key, d))
	}
	for c, s := range of {
		if s < 0 {
			continue
		}
		if len(sh.key) == 0 || sh.images {
			sh.place = append(sh.place, s)
		}
		if isKey[s] {
			continue
		}
		if slices.Contains(t.guards, c) {
			sh.guards = append(sh.guards, s)
		} else {
			sh.set = append(sh.set, s)
		}
	}
	if !sh.images && len(sh.key) > 0 {
		sh.place = sh.key
	}
	sh.row = t.layoutOf(sh.cols, sh.keyTarget)
	sh.fullRow = t.layoutOf(slices.Concat(sh.cols, sh.extra), sh.keyTarget)
	if len(order) == len(rel.Columns) && slices.IsSorted(order) {
		order = nil
	}
	return sh, order, nil
}

func sourceGenerated(src *catalog.PublishedTable, name string) bool {
	if src == nil {
		return false
	}
	for i := range src.Columns {
		if src.Columns[i].Name == name {
			return src.Columns[i].Generated
		}
	}
	return false
}

// chooseIdentity decides what identifies a row. Under REPLICA IDENTITY FULL the
// relation marks every column as key, which says nothing: the source's primary
// key is taken, else a unique key of the target, else the whole row.
// at is the place in the tuple per target column, -1 for none.
func (t *table) chooseIdentity(sh *shape, rel *pgoutput.Relation, src *catalog.PublishedTable, at []int) {
	use := func(target []int) {
		slices.Sort(target)
		sh.keyTarget = target
		for _, c := range target {
			sh.key = append(sh.key, slices.Index(sh.cols, c))
		}
	}
	var target []int
	switch rel.Identity {
	case pgoutput.IdentityDefault, pgoutput.IdentityIndex:
		for _, c := range sh.cols {
			if rel.Columns[at[c]].Key {
				target = append(target, c)
			}
		}
		use(target)
		return
	case pgoutput.IdentityNothing:
		return
	}
	if src != nil {
		complete := true
		for i := range src.Columns {
			if !src.Columns[i].PrimaryKey {
				continue
			}
			c := t.Column(src.Columns[i].Name)
			if c < 0 || at[c] < 0 {
				complete = false
				break
			}
			target = append(target, c)
		}
		if complete && len(target) > 0 {
			use(target)
			return
		}
	}
	for _, u := range t.Uniques {
		ok := u.Plain && !u.Exclusion && len(u.Columns) > 0
		for _, c := range u.Columns {
			ok = ok && at[c] >= 0 && t.Columns[c].NotNull
		}
		if ok {
			use(slices.Clone(u.Columns))
			return
		}
	}
	sh.images = true
	use(slices.Clone(sh.cols))
}

// canCross reports whether rows of one identity can stand on several contents.
func (t *table) canCross(sh *shape, src *catalog.PublishedTable) bool {
	if src == nil || len(sh.key) == 0 || sh.images || src.Policy.NumSegments < 2 {
		return false // of equal whole rows one is as good as another
	}
	switch src.Policy.Kind {
	case router.Random:
		return true
	case router.Hash:
		return slices.ContainsFunc(src.Policy.Columns, func(k router.Column) bool {
			return !slices.Contains(sh.keyTarget, t.Column(k.Name))
		})
	}
	return false
}

// holds reports whether inserts may have to wait for changes of other rows that
// the source made before or with them.
func (t *table) holds() bool { return t.deferrable || t.crossesContents }

// same reports whether tuples of both shapes can stand in one window.
func (s *shape) same(o *shape) bool {
	return s.images == o.images && s.full == o.full &&
		slices.Equal(s.cols, o.cols) && slices.Equal(s.key, o.key)
}

// shapeFor returns the table's shape for rel, an equal earlier one where there
// is one, and the order of the tuple.
func (t *table) shapeFor(rel *pgoutput.Relation, src *catalog.PublishedTable) (*shape, []int, error) {
	sh, order, err := t.newShape(rel, src)
	if err != nil {
		return nil, nil, err
	}
	for _, old := range t.shapes {
		if old.same(sh) {
			return old, order, nil
		}
	}
	t.shapes = append(t.shapes, sh)
	return sh, order, nil
}

// checkGenerated refuses a column that is generated on the source alone, which does
// not send it: the target's would stay NULL.
func (t *table) checkGenerated(src *catalog.PublishedTable) error {
	var errs []error
	for i := range src.Columns {
		name := src.Columns[i].Name
		if c := t.Column(name); src.Columns[i].Generated && c >= 0 && !t.Columns[c].Generated {
			errs = append(errs, fmt.Errorf("column %q is generated on the source, which does not send it, and a plain column on the target", name))
		}
	}
	return errors.Join(errs...)
}

// published builds the relation that src will announce, to check it at start.
func (e *Engine) published(src *catalog.PublishedTable) *pgoutput.Relation {
	rel := &pgoutput.Relation{Schema: src.Schema, Name: src.Name, Identity: src.Identity}
	for i := range src.Columns {
		c := &src.Columns[i]
		if c.Generated || e.stream.isDropped(src.QualifiedName(), c.Name) {
			continue
		}
		rel.Columns = append(rel.Columns, pgoutput.Column{Key: c.Key, Name: c.Name, TypeOID: c.TypeOID})
	}
	return rel
}

// columnNames joins the names of target columns for a message.
func (t *table) columnNames(cols []int) string {
	return strings.Join(t.ColumnNames(cols), ", ")
}
