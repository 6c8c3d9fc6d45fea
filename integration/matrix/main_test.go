package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	events := `{"Action":"pass","Package":"cbrepl/a","Test":"TestX"}
{"Action":"skip","Package":"cbrepl/a","Test":"TestY"}
{"Action":"pass","Package":"cbrepl/a","Elapsed":1.5}
{"Action":"output","Package":"cbrepl/b","Test":"TestZ","Output":"boom\n"}
{"Action":"fail","Package":"cbrepl/b","Test":"TestZ/one"}
{"Action":"fail","Package":"cbrepl/b","Test":"TestZ"}
{"Action":"fail","Package":"cbrepl/b","Elapsed":2}
{"Action":"fail","Package":"cbrepl/c","Elapsed":0}
{"Action":"skip","Package":"cbrepl/none"}
no JSON
`
	var out, log bytes.Buffer
	var got tally
	if err := got.read(&out, &log, "16.1", strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	if got.packages != 3 || got.passed != 1 || got.skipped != 1 || strings.Join(got.failed, " ") != "b.TestZ/one c.(did not build or ended early)" {
		t.Errorf("%+v", got)
	}
	want := `PostgreSQL 16.1   a                               1 passed   1 skipped    1.5 s  ok
PostgreSQL 16.1   b                               0 passed   0 skipped    2.0 s  FAIL TestZ/one
PostgreSQL 16.1   c                               0 passed   0 skipped    0.0 s  FAIL (did not build or ended early)
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	if log.String() != "boom\nno JSON\n" {
		t.Errorf("the log is %q", log.String())
	}
}
