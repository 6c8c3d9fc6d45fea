package source

import "testing"

// Tables whose constraints let rows share a value inside a transaction are told
// from the others, constraints of partitions included.
func TestDeferrable(t *testing.T) {
	c := newCluster(t, shared.Source(t)).good()
	c.all(`CREATE TABLE def_pk (id int PRIMARY KEY DEFERRABLE, u int); ALTER TABLE def_pk REPLICA IDENTITY FULL;
		CREATE TABLE def_u (id int PRIMARY KEY, u int UNIQUE DEFERRABLE INITIALLY DEFERRED);
		CREATE TABLE def_root (id int, d date, PRIMARY KEY (id, d)) PARTITION BY RANGE (d);
		CREATE TABLE def_leaf PARTITION OF def_root FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
		ALTER TABLE def_leaf ADD UNIQUE (d) DEFERRABLE;
		CREATE TABLE plain (id int PRIMARY KEY, u int UNIQUE, f int REFERENCES def_u DEFERRABLE)`)
	c.on(-1, `INSERT INTO cbrepl.distribution_policy SELECT 'public', t, 'hash', '{id}', '{""}', 3
		FROM unnest('{def_pk,def_u,def_root,def_leaf,plain}'::text[]) t`)
	f, err := Preflight(c.ctx(), c.cfg, false)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, table := range f.Tables {
		want, ok := map[string]bool{"def_pk": true, "def_u": true, "def_leaf": true, "plain": false, "acct": false}[table.Name]
		if !ok {
			continue
		}
		found++
		if table.Deferrable != want {
			t.Errorf("%s: deferrable is %v", table.Name, table.Deferrable)
		}
	}
	if found != 5 {
		t.Errorf("%d of 5 tables were found in %v", found, f.Tables)
	}
}
