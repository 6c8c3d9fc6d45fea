// Package carrier reads the two facts that make local transactions a
// distributed one: commit records on the coordinator, and the gxid on a
// segment. A server that ships them in another form costs one implementation
// of Carrier. The package is pure: bytes in, values or errors out.
package carrier

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cbrepl/dtx"
)

// Default prefixes of logical messages.
const (
	DefaultCommitPrefix = "cbrepl.commit"
	DefaultPartPrefix   = "cbrepl.part"
)

// DDLPrefix starts the prefix of every DDL message (pg_ddl_table, ...).
const DDLPrefix = "pg_ddl_"

// Identity names the dtx that a local transaction is a part of.
type Identity struct {
	GXID dtx.GXID
	Kind dtx.Kind
}

// Carrier decodes what a source ships beside its rows. The boolean results say
// whether the message is meant for this carrier at all: foreign messages are
// nobody's error.
type Carrier interface {
	// CommitRecord decodes a logical message of the coordinator's stream. The
	// record's EndLSN is left to the caller.
	CommitRecord(prefix string, content []byte) (dtx.CommitRecord, bool, error)
	// Part decodes a logical message of a participant's stream.
	Part(prefix string, content []byte) (Identity, bool, error)
	// GID decodes the global id of a decoded two-phase transaction.
	GID(gid string) (Identity, error)
}

// Messages is the carrier of DESIGN's stream contract: logical messages with
// two prefixes, and gids that are a decimal gxid or <timestamp>-<gxid>.
type Messages struct {
	// CommitPrefix and PartPrefix default to cbrepl.commit and cbrepl.part.
	CommitPrefix, PartPrefix string
}

// EnsureDefaults fills empty prefixes.
func (m *Messages) EnsureDefaults() {
	if m.CommitPrefix == "" {
		m.CommitPrefix = DefaultCommitPrefix
	}
	if m.PartPrefix == "" {
		m.PartPrefix = DefaultPartPrefix
	}
}

// Validate refuses prefixes that cannot be told apart.
func (m *Messages) Validate() error {
	commit, part := m.CommitPrefix, m.PartPrefix
	if commit == "" {
		commit = DefaultCommitPrefix
	}
	if part == "" {
		part = DefaultPartPrefix
	}
	if commit == part {
		return fmt.Errorf("commit and part messages share the prefix %q: give them different ones", commit)
	}
	for _, p := range []string{commit, part} {
		if strings.HasPrefix(p, DDLPrefix) {
			return fmt.Errorf("prefix %q begins with %s, which marks DDL messages: choose another", p, DDLPrefix)
		}
		if strings.ContainsRune(p, 0) {
			return fmt.Errorf("prefix %q contains a zero byte", p)
		}
	}
	return nil
}

const bodyVersion = 1

func badBody(what, format string, args ...any) error {
	return fmt.Errorf("%s: %s", what, fmt.Sprintf(format, args...))
}

// CommitRecord decodes body v1, big endian: u8 version=1, u8 kind 'T' or 'O',
// u64 gxid, i64 commit time, u16 n, n times i16 content.
func (m Messages) CommitRecord(prefix string, body []byte) (dtx.CommitRecord, bool, error) {
	m.EnsureDefaults()
	if prefix != m.CommitPrefix {
		return dtx.CommitRecord{}, false, nil
	}
	const what = "commit record"
	var r dtx.CommitRecord
	if err := checkVersion(what, body, 20); err != nil {
		return r, true, err
	}
	r = dtx.CommitRecord{
		GXID:       dtx.GXID(binary.BigEndian.Uint64(body[2:])),
		Kind:       dtx.Kind(body[1]),
		CommitTime: dtx.PGTime(binary.BigEndian.Uint64(body[10:])),
	}
	if err := checkIdentity(what, r.GXID, r.Kind); err != nil {
		return r, true, err
	}
	n := int(binary.BigEndian.Uint16(body[18:]))
	if n == 0 {
		return r, true, badBody(what, "gxid %d names no participant", r.GXID)
	}
	if len(body) != 20+2*n {
		return r, true, badBody(what, "gxid %d names %d participants, which takes %d bytes, but has %d",
			r.GXID, n, 20+2*n, len(body))
	}
	r.Participants = make([]dtx.Content, n)
	for i := range r.Participants {
		c := dtx.Content(binary.BigEndian.Uint16(body[20+2*i:]))
		if c < dtx.Coordinator {
			return r, true, badBody(what, "gxid %d names content %d as a participant", r.GXID, c)
		}
		r.Participants[i] = c
	}
	slices.Sort(r.Participants)
	for i := 1; i < n; i++ {
		if r.Participants[i] == r.Participants[i-1] {
			return r, true, badBody(what, "gxid %d names content %d twice", r.GXID, r.Participants[i])
		}
	}
	if r.Kind == dtx.OnePhase && n != 1 {
		return r, true, badBody(what, "gxid %d is one-phase and names %d participants instead of one", r.GXID, n)
	}
	return r, true, nil
}

// Part decodes body v1, big endian: u8 version=1, u8 kind, u64 gxid.
func (m Messages) Part(prefix string, body []byte) (Identity, bool, error) {
	m.EnsureDefaults()
	if prefix != m.PartPrefix {
		return Identity{}, false, nil
	}
	const what = "part message"
	if err := checkSize(what, body, 10); err != nil {
		return Identity{}, true, err
	}
	id := Identity{dtx.GXID(binary.BigEndian.Uint64(body[2:])), dtx.Kind(body[1])}
	return id, true, checkIdentity(what, id.GXID, id.Kind)
}

// GID reads a decimal gxid or <timestamp>-<gxid>. A source with timestamps begins
// its gxids anew after a restart: only both together are unique, and are the
// dtx's id, as timestamp << 32 | gxid. A prepared transaction is always two-phase.
func (m Messages) GID(gid string) (Identity, error) {
	if gid == "" {
		return Identity{}, errors.New("the server sent an empty gid for a prepared transaction")
	}
	ts, num, stamped := strings.Cut(gid, "-")
	if !stamped {
		ts, num = "", gid
	}
	bits := 64
	var high uint64
	if stamped {
		bits = 32
		var err error
		if high, err = strconv.ParseUint(ts, 10, 32); err != nil {
			return Identity{}, badGID(gid)
		}
	}
	v, err := strconv.ParseUint(num, 10, bits)
	if err != nil || v == 0 {
		return Identity{}, badGID(gid)
	}
	return Identity{dtx.GXID(high<<32 | v), dtx.TwoPhase}, nil
}

func badGID(gid string) error {
	const most = 64
	if len(gid) > most {
		gid = gid[:most] + "..."
	}
	return fmt.Errorf("gid %q of a prepared transaction is neither a gxid nor <timestamp>-<gxid>, both of at most 32 bits", gid)
}

func checkVersion(what string, body []byte, least int) error {
	if len(body) == 0 {
		return badBody(what, "empty body")
	}
	if body[0] != bodyVersion {
		return badBody(what, "version %d is not known, only %d is", body[0], bodyVersion)
	}
	if len(body) < least {
		return badBody(what, "want at least %d bytes, got %d", least, len(body))
	}
	return nil
}

func checkIdentity(what string, g dtx.GXID, k dtx.Kind) error {
	if !k.Valid() {
		return badBody(what, "kind %d is neither 'T' (two-phase) nor 'O' (one-phase)", byte(k))
	}
	if g == 0 {
		return badBody(what, "gxid 0 names no transaction")
	}
	return nil
}

// AppendCommitRecord encodes body v1 of a commit record.
func AppendCommitRecord(dst []byte, r dtx.CommitRecord) []byte {
	dst = append(dst, bodyVersion, byte(r.Kind))
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.GXID))
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.CommitTime))
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(r.Participants)))
	for _, c := range r.Participants {
		dst = binary.BigEndian.AppendUint16(dst, uint16(c))
	}
	return dst
}

// AppendPart encodes body v1 of a part message.
func AppendPart(dst []byte, id Identity) []byte {
	dst = append(dst, bodyVersion, byte(id.Kind))
	return binary.BigEndian.AppendUint64(dst, uint64(id.GXID))
}
