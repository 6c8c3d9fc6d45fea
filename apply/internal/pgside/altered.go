package pgside

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/catalog"
	"cbrepl/dtx"
)

// Versions notices tables that are altered while a target is open: statements and
// checks follow from what the catalogue said when it was opened, and a column whose
// type or modifier has changed since would take values in another form, rounded for
// example, without a word.
//
// A batch notes the tables that it touches, and its last message begins with
// CheckSQL, which fails when one of them is another than at Open. The statements
// before hold locks until the transaction ends, under which nobody alters a table. A
// composite type is not locked; altered in the middle of a batch, it is found too.
//
// Versions is used by one goroutine at a time.
type Versions struct {
	// relations are, by table, its OID and those of the composite types of its columns.
	relations map[catalog.Name][]uint32
	versions  map[uint32]string
	touched   map[catalog.Name]bool // whether still to be checked
	order     []catalog.Name
}

// alteredStatement is the prepared statement of CheckSQL.
const alteredStatement = "cbrepl_altered"

// alteredMark begins the text that is no number, by which the statement fails.
const alteredMark = "cbrepl altered "

// versionSQL is an expression: the version of the relation with OID o, null when there
// is none. It has the name, for statements name tables, and of every row that
// describes the columns, triggers and rules, who wrote it: an altered one is another
// row, and one whose default changes is altered. What is counted in pg_class does not
// belong to it.
func versionSQL(o string) string {
	rows := func(from, number string) string {
		return `(SELECT count(*) || ' ' || coalesce(sum(` + number + ` * x.xmin::text::bigint), 0) FROM ` + from + ` = ` + o + `)`
	}
	return `(SELECT concat_ws(' ', (SELECT n.nspname FROM pg_catalog.pg_namespace n WHERE n.oid = c.relnamespace), c.relname, c.relkind, c.relpersistence, ` +
		rows("pg_catalog.pg_attribute x WHERE x.attnum > 0 AND x.attrelid", "x.attnum") + `,
		CASE WHEN c.relhastriggers THEN ` + rows("pg_catalog.pg_trigger x WHERE x.tgrelid", "1") + ` END,
		CASE WHEN c.relhasrules THEN ` + rows("pg_catalog.pg_rewrite x WHERE x.ev_class", "1") + ` END)
		FROM pg_catalog.pg_class c WHERE c.oid = ` + o + `)`
}

// ReadVersions reads the versions of tables, given by what belongs to each. query runs
// a statement with an array of OIDs as its parameter, in the snapshot in which
// everything else is read of them.
func ReadVersions(relations map[catalog.Name][]uint32, query func(sql, oids string) ([][][]byte, error)) (*Versions, error) {
	var list []string
	for _, oids := range relations {
		for _, o := range oids {
			list = append(list, strconv.FormatUint(uint64(o), 10))
		}
	}
	rows, err := query(`SELECT o, `+versionSQL("o")+` FROM (SELECT DISTINCT unnest($1::oid[])) AS u(o)`, "{"+strings.Join(list, ",")+"}")
	if err != nil {
		return nil, err
	}
	v := &Versions{relations: relations, versions: map[uint32]string{}, touched: map[catalog.Name]bool{}}
	for _, r := range rows {
		v.versions[OID(r[0])] = string(r[1])
	}
	return v, nil
}

// PrepareCheck prepares the statement of CheckSQL in a session. It is about one relation,
// so that the server comes to keep its plan: planning takes longer than running it.
// OFFSET 0 keeps the version from being computed where it is named.
func PrepareCheck(ctx context.Context, conn *pgconn.PgConn) error {
	_, err := conn.Prepare(ctx, alteredStatement, `
		SELECT CASE WHEN v.now IS DISTINCT FROM $2::text THEN ('`+alteredMark+`' || $1::oid || ' ' || coalesce(v.now, ''))::pg_catalog.int4 END
		FROM (SELECT `+versionSQL("$1::oid")+` AS now OFFSET 0) v`, nil)
	return err
}

// Begin forgets what the last transaction touched.
func (v *Versions) Begin() {
	if v != nil {
		clear(v.touched)
		v.order = v.order[:0]
	}
}

// Touch notes that the transaction reads or writes tables.
func (v *Versions) Touch(tables ...*catalog.Table) {
	if v == nil {
		return
	}
	for _, t := range tables {
		name := t.QualifiedName()
		if _, ok := v.touched[name]; !ok && v.relations[name] != nil {
			v.touched[name] = true
			v.order = append(v.order, name)
		}
	}
}

// Unchecked reports whether a table that was touched is still to be checked.
func (v *Versions) Unchecked(t *catalog.Table) bool { return v != nil && v.touched[t.QualifiedName()] }

// CheckTableSQL is CheckSQL for one table, which must be locked. It counts as checked
// from then on.
func (v *Versions) CheckTableSQL(t *catalog.Table) []string {
	v.touched[t.QualifiedName()] = false
	return v.checkSQL([]catalog.Name{t.QualifiedName()})
}

// CheckSQL are statements that fail when a table that was touched was altered; none
// when there is none to check.
func (v *Versions) CheckSQL() []string {
	if v == nil {
		return nil
	}
	var names []catalog.Name
	for _, name := range v.order {
		if v.touched[name] {
			names = append(names, name)
		}
	}
	return v.checkSQL(names)
}

func (v *Versions) checkSQL(names []catalog.Name) []string {
	var out []string
	done := map[uint32]bool{} // tables share types
	for _, name := range names {
		for _, o := range v.relations[name] {
			if !done[o] {
				done[o] = true
				out = append(out, fmt.Sprintf("EXECUTE %s(%d, %s)", alteredStatement, o, QuoteLiteral(v.versions[o])))
			}
		}
	}
	return out
}

// Fault returns the error for a table that was altered on the server called where, nil
// when err is another one.
func (v *Versions) Fault(op, where string, err error) error {
	var pg *pgconn.PgError
	if v == nil || !errors.As(err, &pg) || pg.Code != "22P02" {
		return nil
	}
	// The text that is no number is part of the message in every language.
	_, rest, ok := strings.Cut(pg.Message, alteredMark)
	if !ok {
		return nil
	}
	number, _, _ := strings.Cut(rest, " ")
	e := &dtx.Error{
		Op: op, Class: dtx.ClassRetry, Msg: fmt.Sprintf("the table, or the type of one of its columns, was altered on the %s since the target was opened", where),
		Hint: "This passes: the catalogue is read again and the batch tried once more. Nothing is applied",
	}
	for _, name := range v.order {
		if slices.Contains(v.relations[name], OID([]byte(number))) {
			e.Relation = name.String()
			break
		}
	}
	return e
}
