package conformance

import (
	"fmt"
	"strconv"
	"testing"

	"cbrepl/apply"
	"cbrepl/dtx"
)

// testAltered: a target table that is altered while the target is open is noticed by
// every kind of statement before anything is applied. What holds the source's values
// no longer is refused at the next Open; where it does, the batch is applied.
func testAltered(t *testing.T, f Fixture) {
	for _, s := range storages(f, Heap, AORow) {
		t.Run(string(s), func(t *testing.T) {
			tab := onStorage(&Table{
				Name: "altered", Columns: []Column{
					{Name: "id", Type: "bigint"},
					{Name: "n", Type: "numeric"},
					{Name: "ts", Type: "timestamp without time zone"},
					{Name: "tm", Type: "time without time zone"},
					{Name: "iv", Type: "interval"},
					{Name: "v", Type: "character varying(10)"},
				}, Key: []string{"id"}, Dist: []string{"id"},
			}, s)
			other := onStorage(intKey("untouched"), s)
			w := newWorld(t, f, apply.ConflictStop, tab, other)
			id := 0
			row := func(id, v int) Values {
				return V(strconv.Itoa(id), fmt.Sprintf("%d.56", v), fmt.Sprintf("2024-02-03 04:05:06.%05d7", v), "12:34:56.789", "3 days 00:00:01.5", "ab")
			}
			insert := func(n int) func() {
				return func() {
					for range n {
						id++
						w.src.Insert(tab, row(id, id))
					}
				}
			}
			insert(10)()
			w.src.Insert(other, V("1", "1", "b"))
			w.commit()
			changes := map[string]func(){
				"one insert": insert(1), "inserts": insert(50),
				"update": func() { w.src.Update(tab, 0, row(1, 100+id)) },
				"updates": func() {
					for i := range 9 {
						w.src.Update(tab, i, row(i+1, 200+id))
					}
				},
			}
			alter := func(sql string) { f.Exec(t, "ALTER TABLE "+tab.SQLName()+" "+sql) }
			for _, a := range [][3]string{
				{"ALTER n TYPE numeric(8,1)", "ALTER n TYPE numeric", `"n" is numeric on the source`},
				{"ALTER ts TYPE timestamp(0)", "ALTER ts TYPE timestamp", `"ts" is timestamp without time zone on the source`},
				{"ALTER tm TYPE time(0)", "ALTER tm TYPE time", `"tm" is time without time zone on the source`},
				{"ALTER iv TYPE interval(0)", "ALTER iv TYPE interval", `"iv" is interval on the source`},
				{"ALTER v TYPE varchar(5)", "ALTER v TYPE varchar(10)", `"v" is character varying(10) on the source`},
			} {
				for what, change := range changes {
					change()
					w.src.Commit()
					b := w.src.Batch()
					alter(a[0])
					_, err := w.tg.Apply(testCtx(t), b, w.src)
					if wantError(t, err, dtx.ClassRetry, "table "+tab.String(), "was altered", "Nothing is applied"); t.Failed() {
						t.Fatalf("%s after %s", what, a[0])
					}
					_, err = w.tg.Open(testCtx(t))
					wantError(t, err, dtx.ClassStop, tab.String(), a[2])
					alter(a[1])
					w.open()
					if _, err := w.tg.Apply(testCtx(t), b, w.src); err != nil {
						t.Fatalf("%s after %s: %v", what, a[1], err)
					}
				}
			}
			// The values of before have been rounded in place; those that were sent again
			// were not. All are written anew.
			for i := range w.src.Rows(tab) {
				w.src.Update(tab, i, row(i+1, 5000+i))
			}
			w.commit()
			// Another table is none of its business, and neither is what changes no value.
			alter("ALTER n TYPE numeric(30,2)")
			w.src.Insert(other, V("2", "1", "b"))
			w.src.Commit()
			w.applyOnly()
			f.Exec(t, "ANALYZE "+tab.SQLName())
			f.Exec(t, "CREATE INDEX ON "+other.SQLName()+" (a)")
			w.src.Insert(other, V("3", "1", "b"))
			w.src.Commit()
			w.applyOnly()
			// A table that takes another's name is altered, too.
			alter("ALTER n TYPE numeric")
			w.open()
			f.Exec(t, "ALTER TABLE "+other.SQLName()+" RENAME TO aside; CREATE TABLE "+other.SQLName()+" (LIKE "+tab.schema+".aside INCLUDING ALL)")
			w.src.Insert(other, V("4", "1", "b"))
			w.src.Commit()
			_ = w.fails(dtx.ClassRetry, "table "+other.String(), "was altered")
		})
	}
}
