package conformance

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// corpus is values in forms that settings can give another meaning, by type.
var corpus = map[string][]string{
	"integer": {"7"}, "numeric": {"1234.50", "NaN"}, `"char"`: {"a"}, "boolean": {"t"},
	"float4": {"0.1", "1e-7", "3.4028235e38"}, "float8": {"0.1", "0.333333333333333315", "1e15"},
	"text": {`a\b`, "a'b", "NULL", "ä"}, "bpchar": {"ab  "}, "name": {"n"},
	"bytea": {`\x41ff`, `\101`, "a"}, "money": {"1234.56", "$1,234.56", "1.234,56"},
	"date": {"2003-02-01", "02/03/2001", "01.02.2003"}, "time": {"12:34:56.7"}, "timetz": {"12:34:56+02", "12:34:56 IST"},
	"timestamp":   {"2003-02-01 12:34:56.789", "02/03/2001 00:00", "01.02.2003 00:00"},
	"timestamptz": {"2003-02-01 12:34:56+02", "2003-07-01 12:34:56", "2003-02-01 12:34:56 IST"},
	"interval":    {"1 day -02:03:04", "-1 2:03:04", "-1-2", "P1DT2H", "1 mon -1 days"},
	"text[]":      {"{NULL,a}", `{"NULL","a\\b"}`}, "integer[]": {"{1,NULL}"}, "float8[]": {"{0.1}"}, "timestamptz[]": {`{"2003-07-01 12:34:56"}`},
	"xml":      {"<a/>", "<a/><b/>", "<!DOCTYPE a><a/>"},
	"json":     {`{"a": 1.0}`},
	"tsvector": {"the fat:1A cats"}, "tsquery": {"the & cats"},
	"regclass": {"pg_class", "-", "settings_corpus"}, "regtype": {"integer", "pg_catalog.int4"}, "regproc": {"now"}, "regconfig": {"english"},
	"inet": {"10.1.2.3/8"}, "cidr": {"10.0.0.0/8"}, "bit": {"1"}, "uuid": {"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"}, "point": {"(0.1,2)"},
}

// meaningSQL makes a function that says what an expression gives, in its binary form
// and as text, or how it fails.
const meaningSQL = `CREATE TABLE settings_corpus (a integer); CREATE TABLE settings_heir () INHERITS (settings_corpus);
	CREATE FUNCTION settings_meaning(send text, expr text) RETURNS text LANGUAGE plpgsql AS $f$
	DECLARE b bytea; s text;
	BEGIN
		EXECUTE 'SELECT pg_catalog.' || send || '(x), x::text FROM (SELECT ' || expr || ' AS x) y' INTO b, s;
		RETURN coalesce(encode(b, 'hex'), 'null') || ' ' || coalesce(s, 'null');
	EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE; END $f$`

// meaning reads what a session makes of the corpus, by expression.
func meaning(t testing.TB, conn *pgconn.PgConn, schema string) map[string]string {
	t.Helper()
	out := map[string]string{}
	ask := func(send, expr string) {
		res := conn.ExecParams(context.Background(), "SELECT "+schema+".settings_meaning($1::text, $2::text)", [][]byte{[]byte(send), []byte(expr)}, nil, nil, nil).Read()
		if res.Err != nil {
			out[expr] = res.Err.Error()
			return
		}
		out[expr] = string(res.Rows[0][0])
	}
	for typ, values := range corpus {
		res := conn.ExecParams(context.Background(), "SELECT typsend FROM pg_catalog.pg_type WHERE oid = '"+strings.ReplaceAll(typ, `'`, "")+"'::pg_catalog.regtype", nil, nil, nil, nil).Read()
		if res.Err != nil || len(res.Rows) != 1 {
			continue // a server without the type
		}
		send := strings.TrimPrefix(strings.Trim(string(res.Rows[0][0]), `"`), "pg_catalog.")
		for _, v := range values {
			ask(send, "E'"+strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(v)+"'::"+typ)
		}
	}
	ask("boolsend", "NULL = NULL")
	ask("textsend", `'a\\b'::text`)
	ask("int8send", "(SELECT count(*) FROM "+schema+".settings_corpus)")
	return out
}

// alternatives are other values of settings that are no switches.
var alternatives = map[string][]string{
	"datestyle": {"SQL, DMY", "German", "Postgres, MDY"}, "timezone": {"Asia/Tokyo"}, "timezone_abbreviations": {"India"},
	"search_path": {"public", "pg_temp"}, "client_encoding": {"LATIN1"}, "extra_float_digits": {"-3", "0"},
	"lc_monetary": {"de_DE.utf8", "de_DE", "en_US.utf8", "C"}, "lc_numeric": {"de_DE.utf8", "de_DE"}, "lc_time": {"de_DE.utf8"},
	"default_text_search_config": {"pg_catalog.german"}, "default_tablespace": {""}, "gin_fuzzy_search_limit": {"1"},
}

// ValueSettings tries every setting that a session can make. One that changes what
// the corpus means to a plain session must change nothing for a session of the
// target, when it is the default of the database. Names are those of the tables'
// schema, which raw sessions have in their search path by default.
func ValueSettings(t *testing.T, schema string, raw, pinned func() *pgconn.PgConn, setDefault func(name, value string), resetDefault func(name string)) {
	conn := raw()
	exec := func(sql string) error { return conn.Exec(context.Background(), sql).Close() }
	if err := exec("SET search_path = " + schema + "; " + meaningSQL); err != nil {
		t.Fatal(err)
	}
	// What a settings's change means is compared with what the session's own give.
	plain := meaning(t, conn, schema)
	want := meaning(t, pinned(), schema)
	res := conn.ExecParams(context.Background(), `SELECT lower(name), vartype, setting, coalesce(array_to_string(enumvals, ','), '')
		FROM pg_settings WHERE context IN ('user', 'superuser') AND category !~ 'Query Tuning|Resource|Statistics|Reporting|Write-Ahead|Replication|Developer'
		  AND name !~ 'timeout|^gp_|^optimizer|session_authorization|^role$|transaction|^log_' ORDER BY 1`, nil, nil, nil, nil).Read()
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	var changed []string
	for _, r := range res.Rows {
		name, setting := string(r[0]), string(r[2])
		values := alternatives[name]
		switch string(r[1]) {
		case "bool":
			values = []string{map[string]string{"on": "off", "off": "on"}[setting]}
		case "enum":
			values = strings.Split(string(r[3]), ",")
		}
		for _, v := range values {
			if v == setting {
				continue
			}
			other := raw()
			if err := other.Exec(context.Background(), "SET "+name+" = "+quoteSetting(name, v)).Close(); err != nil {
				continue // not on this machine, or not this role's to set
			}
			got := meaning(t, other, schema)
			_ = other.Close(context.Background())
			if same(plain, got) {
				continue
			}
			if !slices.Contains(changed, name) {
				changed = append(changed, name)
			}
			setDefault(name, quoteSetting(name, v))
			session := pinned()
			if got := meaning(t, session, schema); !same(want, got) {
				for expr := range want {
					if want[expr] != got[expr] {
						t.Errorf("with %s = %s %s means %s in the target's session, want %s", name, v, expr, got[expr], want[expr])
					}
				}
			}
			_ = session.Close(context.Background())
			resetDefault(name)
		}
	}
	t.Logf("settings that change what text means: %s", strings.Join(changed, ", "))
	for _, name := range []string{"datestyle", "intervalstyle", "array_nulls", "bytea_output", "timezone", "search_path", "xmloption"} {
		if !slices.Contains(changed, name) {
			t.Errorf("the corpus does not show that %s matters", name)
		}
	}
}

func same(a, b map[string]string) bool {
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}

// quoteSetting quotes a setting's value; a list is not one value.
func quoteSetting(name, v string) string {
	if name == "search_path" || name == "datestyle" {
		return v
	}
	return "'" + v + "'"
}
