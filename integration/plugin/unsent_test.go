package plugin

import (
	"fmt"
	"slices"
	"testing"
)

// Statements that change rows of published tables without changing a row say so in
// the coordinator's stream; others, and those rolled back, say nothing.
func TestGreenplumUnsent(t *testing.T) {
	const drop, exchange, split = "ALTER TABLE ... DROP PARTITION: ", "ALTER TABLE ... EXCHANGE PARTITION: ", "ALTER TABLE ... SPLIT PARTITION: "
	const using, filled = "ALTER TABLE ... ALTER COLUMN TYPE ... USING: ", "ALTER TABLE ... ADD COLUMN with a default that is not immutable: "
	for _, viaRoot := range []bool{false, true} {
		t.Run(fmt.Sprintf("via_root=%v", viaRoot), func(t *testing.T) {
			cl := newCluster(t)
			for _, p := range []string{"p", "hidden"} {
				cl.exec(fmt.Sprintf(`CREATE TABLE %s (id int, d int) DISTRIBUTED BY (id) PARTITION BY RANGE (d)
					(PARTITION a START (0) END (10), PARTITION b START (10) END (20), PARTITION c START (20) END (30), PARTITION e START (30) END (40), DEFAULT PARTITION rest)`, p))
			}
			cl.exec(`CREATE TABLE deep (id int, d int, r int) DISTRIBUTED BY (id) PARTITION BY RANGE (d) SUBPARTITION BY RANGE (r)
				SUBPARTITION TEMPLATE (SUBPARTITION x START (0) END (10), SUBPARTITION y START (10) END (20)) (PARTITION a START (0) END (10), PARTITION b START (10) END (20))`)
			cl.exec(`CREATE TABLE mixed (id int, d int) DISTRIBUTED BY (id) PARTITION BY RANGE (d)
				(PARTITION a START (0) END (10) WITH (appendonly=true), PARTITION b START (10) END (20))`)
			cl.exec("CREATE TABLE t (id int, v text) DISTRIBUTED BY (id); CREATE TABLE gone (id int PRIMARY KEY) DISTRIBUTED BY (id)")
			cl.start(`"public"."p","public"."deep","public"."t","public"."gone","public"."mixed"`, viaRoot)
			cl.exec("INSERT INTO p SELECT i, i FROM generate_series(1, 39) i; INSERT INTO deep SELECT i, i, i FROM generate_series(1, 19) i; INSERT INTO gone VALUES (1)")
			var want []string
			for _, c := range []struct{ sql, want string }{
				{"ALTER TABLE p DROP PARTITION a", drop + "public.p"},
				{"ALTER TABLE p DROP PARTITION FOR (15)", drop + "public.p"},
				{"ALTER TABLE deep ALTER PARTITION FOR (5) EXCHANGE PARTITION FOR (5) WITH TABLE %s", exchange + "public.deep"},
				{"ALTER TABLE p EXCHANGE PARTITION c WITH TABLE %s", exchange + "public.p"},
				{"ALTER TABLE p SPLIT PARTITION e AT (35) INTO (PARTITION f, PARTITION g)", split + "public.p"},
				{"DROP TABLE IF EXISTS gone, nowhere", "DROP TABLE: public.gone"},
				{"ALTER TABLE t ADD n timestamptz DEFAULT clock_timestamp()", filled + "public.t"},
				{"ALTER TABLE t ADD s serial", filled + "public.t"},
				{"ALTER TABLE t ALTER v TYPE int USING length(v)", using + "public.t"},
				// nothing is lost
				{"ALTER TABLE mixed DROP PARTITION a", ""},
				{"ALTER TABLE t ADD c int DEFAULT 7, ADD m int", ""},
				{"ALTER TABLE t ALTER c TYPE bigint", ""},
				{"ALTER TABLE t SET DISTRIBUTED RANDOMLY", ""},
				{"ALTER TABLE p SPLIT DEFAULT PARTITION START (100) END (110) INTO (PARTITION h, DEFAULT PARTITION)", split + "public.p"},
				{"ALTER TABLE mixed ADD PARTITION z START (200) END (210)", ""},
				{"ALTER TABLE p TRUNCATE PARTITION f", ""},
				{"BEGIN; SAVEPOINT s; ALTER TABLE p DROP PARTITION f; ROLLBACK TO s; COMMIT", ""},
				{"ALTER TABLE hidden DROP PARTITION a", ""},
				{"ALTER TABLE hidden EXCHANGE PARTITION b WITH TABLE %s", ""},
				{"CREATE TABLE brief (id int); DROP TABLE brief; ALTER TABLE hidden ADD x serial", ""},
				{"DROP TABLE deep", "DROP TABLE: public.deep"},
			} {
				sql := c.sql
				if n := len(want); n >= 0 && slices.Contains([]byte(sql), '%') {
					other := fmt.Sprintf("other_%d", len(sql))
					columns := "id int, d int"
					if sql[12] == 'd' {
						columns += ", r int"
					}
					cl.exec(fmt.Sprintf("CREATE TABLE %s (%s) DISTRIBUTED BY (id)", other, columns))
					sql = fmt.Sprintf(sql, other)
				}
				cl.exec(sql)
				if c.want != "" {
					want = append(want, c.want)
				}
			}
			cl.exec("INSERT INTO t (id, v, n) VALUES (1, 1, now())")
			cl.catchUp()
			var got []string
			for _, b := range cl.nodes[0].blocks {
				got = append(got, b.unsent...)
			}
			if !slices.Equal(got, want) {
				t.Errorf("the coordinator says\n%q, want\n%q", got, want)
			}
			for _, n := range cl.nodes[1:] {
				var truncated []string
				for _, b := range n.blocks {
					if len(b.unsent) > 0 {
						t.Errorf("content %d: %q", n.content, b.unsent)
					}
					for _, r := range b.rows {
						if r[0] == 'T' {
							truncated = append(truncated, r)
						}
					}
				}
				if !slices.Equal(truncated, []string{"T0 public.p_1_prt_f"}) {
					t.Errorf("content %d: TRUNCATE PARTITION gave %q", n.content, truncated)
				}
				t.Logf("content %d: rows by table: %v", n.content, n.counts)
			}
		})
	}
}
