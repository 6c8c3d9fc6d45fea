package pgside

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cbrepl/lab"
)

// Errors about rows hold no value in whatever language the server speaks, from
// whatever raised them.
func TestNoValuesInAnyLanguage(t *testing.T) {
	locales := makeLocales(t, "de_DE", "fr_FR", "ja_JP", "ru_RU")
	srv := lab.ServerForTest(t, lab.Options{})
	f := new(Faults)
	s, err := NewSession("shard 0", srv.DSN(), nil, f)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Connect(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const ddl = `CREATE TABLE t (i int, d date, c char(3), n numeric(3,1) CHECK (n > 0), u int UNIQUE, nn int NOT NULL DEFAULT 1, a int[], j jsonb);
		CREATE FUNCTION raise() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'canary %', NEW USING ERRCODE = NEW.c; END $$;
		CREATE FUNCTION run() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE NEW.c; RETURN NULL; END $$;
		CREATE TABLE raises (c text); CREATE TRIGGER r BEFORE INSERT ON raises FOR EACH ROW EXECUTE FUNCTION raise();
		CREATE TABLE runs (c text); CREATE TRIGGER r BEFORE INSERT ON runs FOR EACH ROW EXECUTE FUNCTION run();
		INSERT INTO t (u) VALUES (777)`
	statements := []string{
		`INSERT INTO t (i) VALUES ('canary'::text::int)`, `INSERT INTO t (d) VALUES ('canary'::text::date)`,
		`INSERT INTO t (c) VALUES ('canary')`, `INSERT INTO t (n) VALUES (-7.7), (777)`, `INSERT INTO t (u) VALUES (777)`,
		`INSERT INTO t (nn, c) VALUES (NULL, '777')`, `INSERT INTO t (a) VALUES ('{canary'::text::int[])`, `INSERT INTO t (j) VALUES ('canary'::text::jsonb)`,
		`INSERT INTO raises VALUES ('AB123')`, `INSERT INTO raises VALUES ('42601')`, `INSERT INTO raises VALUES ('53100')`,
		`INSERT INTO runs VALUES ('canary')`, `INSERT INTO runs VALUES ('SELECT canary')`, `INSERT INTO runs VALUES ('SELECT * FROM canary')`,
	}
	if err := s.Exec(t.Context(), ddl); err != nil {
		t.Fatal(err)
	}
	said := map[string]bool{}
	for _, locale := range append(locales, "C") {
		if err := s.Exec(t.Context(), "SET lc_messages = "+QuoteLiteral(locale)); err != nil {
			t.Fatal(err)
		}
		for _, sql := range statements {
			err := s.Exec(t.Context(), sql)
			if err == nil {
				t.Fatalf("%s succeeds", sql)
			}
			said[err.Error()] = true
			text := strings.ToLower(f.Data("apply rows", err).Error())
			for _, value := range []string{"canary", "777", "7.7"} {
				if strings.Contains(text, value) {
					t.Errorf("%s, %s: %s", locale, sql, text)
				}
			}
			if !strings.Contains(text, "sqlstate") {
				t.Errorf("%s: %s", sql, text)
			}
		}
	}
	t.Logf("%d texts of %d statements in %d languages", len(said), len(statements), len(locales)+1)
}

// makeLocales makes locales that servers started from now on can speak, and
// returns their names. Where the system cannot make any, English is all.
func makeLocales(t *testing.T, names ...string) []string {
	dir, err := os.MkdirTemp("", "locales")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // the server may run under another account
		t.Fatal(err)
	}
	t.Setenv("LOCPATH", dir)
	var out []string
	for _, name := range names {
		// An exit code above 0 only warns of oddities in the definition.
		_ = exec.Command("localedef", "-i", name, "-f", "UTF-8", filepath.Join(dir, name+".UTF-8")).Run()
		if _, err := os.Stat(filepath.Join(dir, name+".UTF-8", "LC_MESSAGES")); err == nil {
			out = append(out, name+".UTF-8")
		}
	}
	return out
}
