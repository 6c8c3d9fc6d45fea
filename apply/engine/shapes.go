package engine

import (
	"errors"
	"fmt"

	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
)

// Stream is what a target remembers of the relations that the stream announced while
// the daemon runs. It outlives the engines, which are made anew with every catalogue
// that is read; what the source's own catalogue said at start is never read again.
type Stream struct {
	// refused is the last relation that did not fit: its table and columns. The target's
	// catalogue is read again before that is final.
	refused string
	// dropped are the columns that were published at start and are sent no more.
	dropped map[catalog.Name]map[string]bool
	// userTypes are the types, by OID and modifier, of columns whose types are not
	// built in; each content's server has OIDs of its own.
	userTypes map[userColumn]columnType
	// cuts say what the first copies of tables hold.
	cuts cuts
}

type userColumn struct {
	content dtx.Content
	table   catalog.Name
	column  string
}

type columnType struct {
	oid uint32
	mod int32
}

// isDropped reports whether a column is sent no more.
func (s *Stream) isDropped(table catalog.Name, column string) bool { return s.dropped[table][column] }

// applied forgets the relation that did not fit: a later one has to be looked at
// anew.
func (s *Stream) applied() { s.refused = "" }

// misfit makes the error for a relation that does not fit the target table, once one
// that passes by itself: the table may have been changed since its catalogue was read.
func (s *Stream) misfit(rel *pgoutput.Relation, t *table, err error) error {
	e := &dtx.Error{
		Op: "match tables", Relation: rel.String(), Class: dtx.ClassStop,
		Msg:  fmt.Sprintf("target table %s does not fit what the source sends: %v", t, err),
		Hint: "Change the target table where it does not fit, then start the daemon again with `cbrepl run`, which reads the catalogues of both sides",
	}
	if what := fmt.Sprint(rel, rel.Columns); s.refused != what {
		s.refused = what
		e.Class, e.Hint = dtx.ClassRetry, "The target's catalogue is read again and the batch tried once more"
	}
	return e
}

// checkRelation refuses what the start would have refused, had the source's table been
// as the stream now announces it: columns of types that the target's do not take, and
// columns that are sent no more while the target has them.
func (s *Stream) checkRelation(content dtx.Content, rel *pgoutput.Relation, src *catalog.PublishedTable, t *table) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	sent := make(map[string]bool, len(rel.Columns))
	for i := range rel.Columns {
		col := &rel.Columns[i]
		sent[col.Name] = true
		c := t.Column(col.Name)
		if c < 0 || t.Columns[c].Generated || t.Columns[c].BaseName == "" {
			continue // newShape's to report
		}
		if name, ok := catalog.FormatType(col.TypeOID, col.TypeMod); ok {
			if ok, why := t.Columns[c].Takes(name); !ok {
				bad("column %q is %s on the source and %s on the target: %s", col.Name, name, t.Columns[c].TypeName, why)
			}
			continue
		}
		if err := s.checkUserType(content, rel, col, src, &t.Columns[c]); err != nil {
			errs = append(errs, err)
		}
	}
	for i := range src.Columns {
		name := src.Columns[i].Name
		if src.Columns[i].Generated || sent[name] {
			continue
		}
		if s.dropped == nil {
			s.dropped = map[catalog.Name]map[string]bool{}
		}
		if s.dropped[src.QualifiedName()] == nil {
			s.dropped[src.QualifiedName()] = map[string]bool{}
		}
		s.dropped[src.QualifiedName()][name] = true
		if c := t.Column(name); c >= 0 && !t.Columns[c].Generated {
			bad("column %q is sent no more (it was dropped, became a generated column, or was taken out of the column list) and is still a plain column of the target", name)
		}
	}
	return errors.Join(errs...)
}

// checkUserType refuses a column whose type, one that the server's own catalogue has
// to explain, is another than when the daemon started.
func (s *Stream) checkUserType(content dtx.Content, rel *pgoutput.Relation, col *pgoutput.Column, src *catalog.PublishedTable, target *catalog.Column) error {
	at := userColumn{content, catalog.Name{Schema: rel.Schema, Table: rel.Name}, col.Name}
	now := columnType{col.TypeOID, col.TypeMod}
	var known *catalog.PublishedColumn
	for i := range src.Columns {
		if src.Columns[i].Name == col.Name {
			known = &src.Columns[i]
		}
	}
	before, seen := s.userTypes[at]
	switch {
	case known == nil:
		return fmt.Errorf("column %q is new and of a type that is not built in (OID %d on the source), which is known once the daemon was restarted; the target's is %s", col.Name, now.oid, target.TypeName)
	case seen && before != now:
		return fmt.Errorf("column %q was %s on the source and has another type now (OID %d, before %d); the target's is %s", col.Name, known.TypeName, now.oid, before.oid, target.TypeName)
	}
	if _, builtin := catalog.FormatType(known.TypeOID, -1); builtin && !seen {
		return fmt.Errorf("column %q was %s on the source and has a type now that is not built in (OID %d); the target's is %s", col.Name, known.TypeName, now.oid, target.TypeName)
	}
	if s.userTypes == nil {
		s.userTypes = map[userColumn]columnType{}
	}
	s.userTypes[at] = now
	return nil
}
