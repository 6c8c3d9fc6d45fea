package check

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"cbrepl/dtx"
)

// An error is taken apart into its findings, and findings make an error again that
// may be tried again only when each of them may pass.
func TestErrors(t *testing.T) {
	down := &dtx.Error{Op: "connect", Content: dtx.AtContent(2), Msg: "no answer", Hint: "Start it", Class: dtx.ClassRetry}
	bad := &dtx.Error{Op: "open", Relation: "a.t", Msg: "not prepared", Hint: "Run `cbrepl target prepare -c FILE`, which creates it", Class: dtx.ClassStop}
	fs := Of(Target, errors.Join(down, bad, Findings{{Found: "x"}}.Err("op")))
	if len(fs) != 3 || !fs[0].Passing || fs[0].Place() != "target shard 2" || fs[0].Found != "connect: no answer" || fs[0].Remedy != "Start it" ||
		fs[1].Passing || fs[1].Relation != "a.t" || len(fs[1].Commands) != 1 || fs[1].Commands[0] != "cbrepl target prepare -c FILE" || fs[2].Found != "x" || fs[2].Side != Target {
		t.Fatalf("%+v", fs)
	}
	if c := dtx.ClassOf(fs.Err("op")); c != dtx.ClassStop {
		t.Errorf("class %v with a lasting problem", c)
	}
	if c := dtx.ClassOf(fs[:1].Err("op")); c != dtx.ClassRetry {
		t.Errorf("class %v of a server that is down", c)
	}
	if err := (Findings{{Level: Warning}, {Level: OK}}).Err("op"); err != nil {
		t.Errorf("warnings are no error: %v", err)
	}
}

func TestCompareServers(t *testing.T) {
	at := func(side Side, c dtx.Content, zone string, clock, within time.Duration) Server {
		return Server{Side: side, Content: c, Database: `"Db"`, TimeZone: zone, Clock: Duration(clock), ClockError: Duration(within)}
	}
	fs := CompareServers([]Server{
		at(Source, -1, "UTC", 0, 0),
		at(Source, 0, "Asia/Tokyo", -3*time.Second, time.Second),
		at(Source, 1, "UTC", 3*time.Second, 2*time.Second), // may be within a second
		at(Target, -1, "Europe/Berlin", 5*time.Second, 0),
		at(Target, 0, "Europe/Berlin", 0, 0),
	})
	var got []string
	for _, f := range fs {
		if f.Level != Warning {
			t.Errorf("%+v", f)
		}
		got = append(got, f.Place()+": "+f.Found+" "+strings.Join(f.SQL, "; "))
	}
	for i, want := range []string{
		"source content 0: its clock is 3.0 s behind", `source content 0: its time zone is Asia/Tokyo, on the coordinator it is UTC`,
		"target coordinator: its clock is 5.0 s ahead of", "target coordinator: its time zone is Europe/Berlin, the source's is UTC",
	} {
		if i >= len(got) || !strings.Contains(got[i], want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
	if len(got) != 4 || !strings.HasSuffix(got[1], `ALTER DATABASE "Db" SET timezone = 'UTC'`) {
		t.Errorf("%q", got)
	}
}

func TestReport(t *testing.T) {
	r := Report{Findings: Findings{
		{Level: OK, Side: Source, Relation: "a.t", Found: "well"},
		{Side: Source, Found: "no slot", Remedy: "Make them", Commands: []string{"cbrepl slots create -c FILE"}},
		{Level: Warning, Side: Target, Relation: "a.t", Found: "odd", Remedy: "Mend it", SQL: []string{"SELECT '<1>'"}, Everywhere: true, Restart: true},
	}}
	r.Findings.Sort()
	r.WithFile("it's.yaml")
	var b strings.Builder
	if err := r.WriteText(&b, true); err != nil {
		t.Fatal(err)
	}
	want := `error    source: no slot
         remedy: Make them
           cbrepl slots create -c 'it'\''s.yaml'
warning  target, table a.t: odd
         remedy: Mend it (on every server of the target)
           SELECT '<1>';
           then restart the server
1 error, 1 warning, 1 ok: ` + "`cbrepl run` would refuse to start\n"
	if b.String() != want {
		t.Errorf("%s", b.String())
	}
	b.Reset()
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var back struct {
		Errors   int
		Findings []struct {
			Level Level
			SQL   []string
		}
	}
	if err := json.Unmarshal([]byte(b.String()), &back); err != nil || back.Errors != 1 || back.Findings[1].Level != Warning || back.Findings[1].SQL[0] != "SELECT '<1>'" {
		t.Errorf("%v %+v", err, back)
	}
}
