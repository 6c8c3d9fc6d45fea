package check

import (
	"fmt"
	"time"

	"cbrepl/dtx"
)

// Server is what one server says of itself.
type Server struct {
	Side    Side        `json:"side"`
	Content dtx.Content `json:"content"`
	Version string      `json:"version"`
	// Database is what the connection is to, Role whom it belongs to, both as SQL names
	// them.
	Database string `json:"database"`
	Role     string `json:"role"`
	Encoding string `json:"encoding"`
	// TimeZone is what sessions begin with.
	TimeZone string `json:"time_zone"`
	// Clock is how far the server's clock is ahead of this machine's, known to within
	// ClockError.
	Clock      Duration `json:"clock_seconds"`
	ClockError Duration `json:"clock_error_seconds"`
	Slots      Use      `json:"replication_slots"`
	Senders    Use      `json:"wal_senders"`
	Prepared   Use      `json:"prepared_transactions"`
}

// Use is how many of something are taken.
type Use struct {
	Used int `json:"used"`
	Max  int `json:"max"`
}

// Full reports whether none is free.
func (u Use) Full() bool { return u.Used >= u.Max }

// Duration prints as seconds.
type Duration time.Duration

// MarshalJSON prints seconds.
func (d Duration) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%.3f", time.Duration(d).Seconds()), nil
}

// maxClock is how far clocks may be apart before lag, which is computed from a commit
// time of the source and the clock here, says something else.
const maxClock = time.Second

// CompareServers reports what servers do not have in common that they should.
func CompareServers(servers []Server) Findings {
	var fs Findings
	first := map[Side]*Server{}
	for i := range servers {
		s := &servers[i]
		add := func(remedy, format string, args ...any) {
			fs = append(fs, Finding{
				Level: Warning, Side: s.Side, Content: dtx.AtContent(s.Content),
				Found: fmt.Sprintf(format, args...), Remedy: remedy,
			})
		}
		if off := time.Duration(s.Clock).Abs() - time.Duration(s.ClockError); off > maxClock {
			way := "ahead of"
			if s.Clock < 0 {
				way = "behind"
			}
			add("Synchronise both clocks with one time service (NTP)",
				"its clock is %.1f s %s this machine's: the lag that status and metrics show is wrong by that", time.Duration(s.Clock).Abs().Seconds(), way)
		}
		f := first[s.Side]
		if f == nil {
			first[s.Side] = s
		}
		sql := func(tz string) {
			fs[len(fs)-1].SQL = []string{fmt.Sprintf("ALTER DATABASE %s SET timezone = '%s'", s.Database, tz)}
		}
		switch other := first[Source]; {
		case f != nil && f.TimeZone != s.TimeZone:
			add("Give the database one time zone on every server; run there",
				"its time zone is %s, on the %s it is %s: defaults and casts that depend on it give other values", s.TimeZone, serverName(s.Side, f.Content), f.TimeZone)
			sql(f.TimeZone)
		case f == nil && s.Side == Target && other != nil && other.TimeZone != s.TimeZone:
			add("Give the database the same time zone as the source's, if clients are to see the same; run there",
				"its time zone is %s, the source's is %s: rows are the same, but sessions print and read times without a zone differently", s.TimeZone, other.TimeZone)
			sql(other.TimeZone)
		}
	}
	return fs
}
