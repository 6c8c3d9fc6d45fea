package source

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/dtx"
	"cbrepl/source/stream/repl"
)

// Address is one rule of an address map: what the cluster calls a segment's
// address, and how it is reached from here. From is host or host:port; To is a
// host, which keeps the port, or host:port.
type Address struct {
	From, To string
}

// Validate reports a rule that cannot be read.
func (a Address) Validate() error {
	_, err := a.parse()
	return err
}

// rule is a parsed Address; a port of 0 stands for any, or for the same.
type rule struct {
	from, to hostPort
}

type hostPort struct {
	host string
	port int
}

func (h hostPort) String() string { return net.JoinHostPort(h.host, strconv.Itoa(h.port)) }

func (a Address) parse() (r rule, err error) {
	for _, s := range []struct {
		name, text string
		to         *hostPort
	}{{"from", a.From, &r.from}, {"to", a.To, &r.to}} {
		if *s.to, err = parseHostPort(s.text); err != nil {
			return r, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return r, nil
}

// parseHostPort reads host, host:port, an IPv6 address, or [address]:port.
func parseHostPort(s string) (hostPort, error) {
	bad := fmt.Errorf("%q is neither host nor host:port", s)
	h := hostPort{host: s}
	if ip := strings.Trim(s, "[]"); net.ParseIP(ip) != nil {
		h.host = ip
	} else if strings.Contains(s, ":") {
		host, port, err := net.SplitHostPort(s)
		if err != nil {
			return h, bad
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return h, bad
		}
		h = hostPort{host, int(n)}
	}
	if h.host == "" || strings.ContainsAny(h.host, " \t\n,/@[]") {
		return h, bad
	}
	return h, nil
}

// mapAddress says where a primary is reached: by the first rule for its port,
// else by the first for its host, else where the cluster says.
func mapAddress(rules []rule, p primary) hostPort {
	at := hostPort{p.address, p.port}
	for _, port := range []int{p.port, 0} {
		for _, r := range rules {
			if r.from.port == port && (r.from.host == p.address || r.from.host == p.hostname) {
				return hostPort{r.to.host, cmp.Or(r.to.port, p.port)}
			}
		}
	}
	return at
}

// ownRole matches options that choose a session role themselves.
var ownRole = regexp.MustCompile(`gp_(session_)?role\s*=`)

// segmentDSN is the connection string of a segment: the coordinator's with
// another address and, in utility mode, an option more. What the coordinator's
// leaves to the environment or to a password file stays there; a password that
// only the coordinator's entry of a password file gives is taken along.
func segmentDSN(content dtx.Content, coordinator string, at hostPort, option string) (string, error) {
	base, err := repl.ParseDSN(dtx.Coordinator, coordinator)
	if err != nil {
		return "", err
	}
	// The address was chosen: no session attribute has to choose among several.
	set := [][2]string{{"host", at.host}, {"port", strconv.Itoa(at.port)}, {"target_session_attrs", "any"}}
	set = append(set, optionSetting(base, option)...)
	dsn := withSettings(coordinator, set)
	seg, err := repl.ParseDSN(content, dsn)
	if err == nil && seg.Password == "" && base.Password != "" {
		dsn = withSettings(dsn, [][2]string{{"password", base.Password}})
		seg, err = repl.ParseDSN(content, dsn)
	}
	if err == nil && (seg.Host != at.host || int(seg.Port) != at.port || seg.User != base.User || seg.Database != base.Database) {
		err = errors.New("the address of a segment cannot be put into the coordinator's connection string; write that as key=value pairs")
	}
	if err != nil {
		return "", &dtx.Error{Op: "find segment", Content: dtx.AtContent(content), Class: dtx.ClassStop, Err: err}
	}
	return dsn, nil
}

// withOption adds the utility-mode option to a node's own connection string.
func withOption(n Node, option string) (string, error) {
	c, err := repl.ParseDSN(n.Content, n.DSN)
	if err != nil {
		return "", err
	}
	return withSettings(n.DSN, optionSetting(c, option)), nil
}

// optionSetting is the setting that puts a session into utility mode, beside
// the options that are there; none when these choose the role.
func optionSetting(c *pgconn.Config, option string) [][2]string {
	have := c.RuntimeParams["options"]
	if option == "" || ownRole.MatchString(have) {
		return nil
	}
	return [][2]string{{"options", strings.TrimSpace(have + " " + option)}}
}

// withSettings appends settings to a connection string, where they win over
// earlier ones of the same name.
func withSettings(dsn string, set [][2]string) string {
	if len(set) == 0 {
		return dsn
	}
	var b strings.Builder
	b.WriteString(dsn)
	if strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://") {
		sep := byte('?')
		if strings.Contains(afterUser(dsn), "?") {
			sep = '&'
		}
		for _, kv := range set {
			b.WriteByte(sep)
			// A plus sign is no space in a connection URL.
			b.WriteString(kv[0] + "=" + strings.ReplaceAll(url.QueryEscape(kv[1]), "+", "%20"))
			sep = '&'
		}
		return b.String()
	}
	quote := strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	for _, kv := range set {
		b.WriteString(" " + kv[0] + "='" + quote.Replace(kv[1]) + "'")
	}
	return b.String()
}

// afterUser is a URL without scheme, user and password, which may hold a
// question mark of their own.
func afterUser(dsn string) string {
	_, rest, _ := strings.Cut(dsn, "://")
	if i := strings.IndexAny(rest, "@/"); i >= 0 && rest[i] == '@' {
		rest = rest[i+1:]
	}
	return rest
}
