package source

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cbrepl/source/stream/repl"
)

// TestSegmentDSN: a segment's connection string differs from the coordinator's
// in the address and one option, whatever form it has.
func TestSegmentDSN(t *testing.T) {
	at := hostPort{"sdw1", 6000}
	const option = "-c gp_role=utility"
	for _, tc := range []struct{ dsn, user, password, db, options string }{
		{"postgres://repl:canary@mdw:5432/sales", "repl", "canary", "sales", option},
		{"postgresql://repl:ca%3Fn%40ary@mdw,smdw:5433/sales?target_session_attrs=read-write", "repl", "ca?n@ary", "sales", option},
		{"postgres://repl:c?a/@mdw:5432", "repl", "", "", ""}, // a slash ends the search for the user
		{"postgres://repl:c?anary@mdw:5432/sales", "repl", "c?anary", "sales", option},
		{"postgres://repl@[::1]:5432/sales?options=-c%20work_mem%3D64MB&sslmode=disable", "repl", "", "sales", "-c work_mem=64MB " + option},
		{"postgres://mdw/sales?user=repl&host=other&port=1&password=canary", "repl", "canary", "sales", option},
		{"host=mdw port=5432 user=repl dbname=sales", "repl", "", "sales", option},
		{`host='m dw' user=repl dbname = 'sa\'les' password='c\\anary' options='-c a.b=\'x y\''`, "repl", `c\anary`, "sa'les", "-c a.b='x y' " + option},
		{"host=mdw user=repl dbname=sales options='-c gp_session_role=utility'", "repl", "", "sales", "-c gp_session_role=utility"},
		{`user=repl dbname=sales password=canary\ `, "repl", "canary ", "sales", option},
	} {
		dsn, err := segmentDSN(3, tc.dsn, at, option)
		if tc.options == "" {
			if err == nil {
				t.Errorf("%s: accepted", tc.dsn)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tc.dsn, err)
			continue
		}
		c, err := repl.ParseDSN(3, dsn)
		if err != nil {
			t.Errorf("%s: %v", dsn, err)
			continue
		}
		got := fmt.Sprintf("%s %d %s %s %s %s", c.Host, c.Port, c.User, c.Password, c.Database, c.RuntimeParams["options"])
		want := fmt.Sprintf("sdw1 6000 %s %s %s %s", tc.user, tc.password, tc.db, tc.options)
		if got != want || len(c.Fallbacks) > 0 && c.Fallbacks[0].Host != "sdw1" || c.ValidateConnect != nil {
			t.Errorf("%s\ngot  %s\nwant %s", tc.dsn, got, want)
		}
	}
	if _, err := segmentDSN(3, "postgres://u:canary@[::x/", at, option); err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("a string that cannot be read: %v", err)
	}
}

// TestSegmentPassword: a segment's entry of a password file counts; without one
// the coordinator's password is the segment's.
func TestSegmentPassword(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pgpass")
	if err := os.WriteFile(file, []byte("mdw:5432:d:u:of_coordinator\nsdw1:6000:d:u:of_segment\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PGPASSFILE", file)
	t.Setenv("PGOPTIONS", "-c statement_timeout=0")
	for port, want := range map[int]string{6000: "of_segment", 6001: "of_coordinator"} {
		dsn, err := segmentDSN(0, "postgres://u@mdw:5432/d", hostPort{"sdw1", port}, "-c x=y")
		if err != nil {
			t.Fatal(err)
		}
		c, err := repl.ParseDSN(0, dsn)
		if err != nil || c.Password != want || c.RuntimeParams["options"] != "-c statement_timeout=0 -c x=y" {
			t.Errorf("port %d: password %s, options %s, %v", port, c.Password, c.RuntimeParams["options"], err)
		}
	}
}

func TestAddresses(t *testing.T) {
	var rules []rule
	for _, a := range []Address{
		{"sdw1:6000", "10.0.0.1:7000"}, {"sdw1", "10.0.0.2"}, {"sdw2-a", "10.0.0.3:1"}, {"fe80::1", "::1"}, {"[fe80::1]:9", "[::2]:8"}, {"sdw1", "late"},
	} {
		r, err := a.parse()
		if err != nil {
			t.Fatalf("%v: %v", a, err)
		}
		rules = append(rules, r)
	}
	for _, tc := range []struct {
		address, hostname string
		port              int
		want              string
	}{
		{"sdw1", "", 6000, "10.0.0.1:7000"},
		{"sdw1", "", 6001, "10.0.0.2:6001"},
		{"sdw1-ic", "sdw1", 6001, "10.0.0.2:6001"},
		{"sdw2-a", "sdw2", 6001, "10.0.0.3:1"},
		{"sdw3", "sdw3", 5, "sdw3:5"},
		{"fe80::1", "", 9, "[::2]:8"},
		{"fe80::1", "", 10, "[::1]:10"},
	} {
		if got := mapAddress(rules, primary{address: tc.address, hostname: tc.hostname, port: tc.port}).String(); got != tc.want {
			t.Errorf("%s (%s) port %d: %s, want %s", tc.address, tc.hostname, tc.port, got, tc.want)
		}
	}
	for _, bad := range []Address{{"", "a"}, {"a", ""}, {"a:0", "b"}, {"a:70000", "b"}, {"a:b:c", "d"}, {"a b", "c"}, {"a", "h,i"}, {":5", "x"}} {
		if bad.Validate() == nil {
			t.Errorf("%v accepted", bad)
		}
	}
}
