package carrier

import (
	"encoding/binary"
	"errors"
	"strings"

	"cbrepl/dtx"
)

// Prefixes of the messages of plugin cbrepl_source that are not those of the
// stream contract.
const (
	recordPrefix   = "cbrepl.commit_record"
	preparePrefix  = "cbrepl.prepare"
	rollbackPrefix = "cbrepl.rollback"
	settledPrefix  = "cbrepl.settled"
	progressPrefix = "cbrepl.progress"
	unsentPrefix   = "cbrepl.unsent"
)

// Observer is a Carrier of a source whose commit records name no participants and
// whose keepalives name no positions. Such a source ships what it sees instead.
type Observer interface {
	Carrier
	// Observe decodes a message outside transactions that ends at lsn: an
	// EventPrepared, EventRolledBack, EventSettled, or an EventPosition.
	Observe(prefix string, content []byte, lsn dtx.LSN) (dtx.Event, bool, error)
	// Unsent decodes a message inside the coordinator's part: the transaction has
	// changed rows of a published table that no row change carries.
	Unsent(prefix string, content []byte) (Unsent, bool, error)
}

// Unsent is a statement that changed rows of a published table without a row
// change.
type Unsent struct {
	Statement string // its kind
	Table     string // schema.table, as published
}

// Greenplum6 is the carrier of an unmodified Greenplum 6 with plugin
// cbrepl_source. Participants of its commit records are those known: the
// coordinator, when it has a part of its own.
type Greenplum6 struct{}

var _ Observer = Greenplum6{}

// CommitRecord decodes body v1, big endian: u8 version=1, u8 flags (bit 0: the
// coordinator has a part), u64 gxid, i64 commit time.
func (Greenplum6) CommitRecord(prefix string, body []byte) (dtx.CommitRecord, bool, error) {
	if prefix != recordPrefix {
		return dtx.CommitRecord{}, false, nil
	}
	const what = "commit record"
	const ownPart = 1
	if err := checkSize(what, body, 18); err != nil {
		return dtx.CommitRecord{}, true, err
	}
	r := dtx.CommitRecord{
		GXID: dtx.GXID(binary.BigEndian.Uint64(body[2:])), Kind: dtx.TwoPhase,
		CommitTime: dtx.PGTime(binary.BigEndian.Uint64(body[10:])),
	}
	switch flags := body[1]; {
	case flags&^ownPart != 0:
		return r, true, badBody(what, "flags %#x are not known", flags)
	case flags&ownPart != 0:
		r.Participants = []dtx.Content{dtx.Coordinator}
	}
	return r, true, checkIdentity(what, r.GXID, r.Kind)
}

// Part decodes the part message of the stream contract.
func (Greenplum6) Part(prefix string, body []byte) (Identity, bool, error) {
	return Messages{}.Part(prefix, body)
}

// GID is not used: the plugin sends no transaction at PREPARE.
func (Greenplum6) GID(string) (Identity, error) {
	return Identity{}, errors.New("plugin cbrepl_source sends no transaction at PREPARE")
}

// Observe decodes body v1: u8 version=1, u64 gxid; of a progress message, u64
// position.
func (Greenplum6) Observe(prefix string, body []byte, lsn dtx.LSN) (dtx.Event, bool, error) {
	ev := dtx.Event{LSN: lsn}
	what := "message " + prefix
	switch prefix {
	case preparePrefix:
		ev.Kind = dtx.EventPrepared
	case rollbackPrefix:
		ev.Kind = dtx.EventRolledBack
	case settledPrefix:
		ev.Kind = dtx.EventSettled
	case progressPrefix:
		ev.Kind = dtx.EventPosition
	default:
		return ev, false, nil
	}
	if err := checkSize(what, body, 9); err != nil {
		return ev, true, err
	}
	n := binary.BigEndian.Uint64(body[1:])
	if ev.Kind == dtx.EventPosition {
		ev.LSN = dtx.LSN(n)
		return ev, true, nil
	}
	ev.GXID = dtx.GXID(n)
	return ev, true, checkIdentity(what, ev.GXID, dtx.TwoPhase)
}

// Unsent decodes body v1: u8 version=1, then three strings that end with NUL: kind
// of statement, schema, table.
func (Greenplum6) Unsent(prefix string, body []byte) (Unsent, bool, error) {
	if prefix != unsentPrefix {
		return Unsent{}, false, nil
	}
	const what = "message " + unsentPrefix
	if err := checkVersion(what, body, 1); err != nil {
		return Unsent{}, true, err
	}
	f := strings.Split(string(body[1:]), "\x00")
	if len(f) != 4 || f[0] == "" || f[1] == "" || f[2] == "" || f[3] != "" {
		return Unsent{}, true, badBody(what, "want three strings that end with NUL, got %d bytes", len(body)-1)
	}
	return Unsent{Statement: f[0], Table: f[1] + "." + f[2]}, true, nil
}

// checkSize checks version and exact size.
func checkSize(what string, body []byte, want int) error {
	if err := checkVersion(what, body, want); err != nil {
		return err
	}
	if len(body) != want {
		return badBody(what, "want %d bytes, got %d", want, len(body))
	}
	return nil
}
