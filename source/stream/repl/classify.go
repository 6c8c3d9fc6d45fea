package repl

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/dtx"
)

// stop builds a fault that a person must act on.
func (c *Config) stop(op, msg, hint string) error {
	return &dtx.Error{Op: op, Content: dtx.AtContent(c.Content), Msg: msg, Hint: hint, Class: dtx.ClassStop}
}

// fault wraps an error of the connection with its place, class and remedy.
// Cancellation passes through.
func (c *Config) fault(op string, err error) error {
	return Fault(op, c.Content, c.Slot, c.Publication, err)
}

// replicationCommand reports whether a step connects, or runs a command of the
// replication protocol, for which a role needs an attribute and no grant.
func replicationCommand(op string) bool {
	for _, prefix := range []string{"connect", "open replication", "identify", "start streaming", "create slot", "drop slot"} {
		if strings.HasPrefix(op, prefix) {
			return true
		}
	}
	return false
}

// Fault wraps an error of a source connection with its place, class and
// remedy. A *dtx.Error and a cancellation pass through.
func Fault(op string, content dtx.Content, slot, publication string, err error) error {
	var de *dtx.Error
	if err == nil || errors.Is(err, context.Canceled) || errors.As(err, &de) {
		return err
	}
	e := &dtx.Error{Op: op, Content: dtx.AtContent(content), Class: dtx.ClassRetry, Err: err}
	var pe *pgconn.PgError
	if !errors.As(err, &pe) {
		var ce *pgconn.ConnectError
		var cert *tls.CertificateVerificationError
		switch {
		case errors.As(err, &cert):
			e.Class = dtx.ClassStop
			e.Hint = "The server answers, but its certificate is not trusted: set sslrootcert to the certificate of the authority that signed it, and give the host by a name that it holds"
		case errors.As(err, &ce):
			e.Hint = "Start the server, or correct host and port in the connection string"
		}
		return e
	}
	stop := func(hint string) {
		e.Class, e.Hint = dtx.ClassStop, hint
	}
	msg := pe.Message
	switch code := pe.Code; {
	case code == "28P01":
		stop("Correct the password: in the connection string, PGPASSWORD or the password file")
	case code == "28000":
		stop("The role must exist, have LOGIN and REPLICATION, and pg_hba.conf must let it in from this host")
	case code == "3D000":
		stop("Correct the database name in the connection string")
	case code == "42501" && replicationCommand(op):
		stop("The role needs the REPLICATION attribute (ALTER ROLE ... REPLICATION) and CONNECT on the database")
	case code == "42501":
		stop("Grant the role what the server asks for: USAGE on the schema, SELECT on the table or EXECUTE on the function")
	case code == "42704" && strings.HasPrefix(msg, "publication "):
		stop(fmt.Sprintf("Publication %q must exist on every node, and since before its slot was made: create it, then drop and create the slots", publication))
	case code == "42704" && strings.Contains(msg, "replication slot"):
		stop(fmt.Sprintf("Slot %q is gone and with it the changes since: this content needs a new initial copy", slot))
	case code == "42710":
		stop(fmt.Sprintf("A slot named %q exists already: choose another name or drop it", slot))
	case code == "55006":
		e.Hint = fmt.Sprintf("Somebody reads slot %q: another daemon, or this one's last connection, which the server ends within wal_sender_timeout", slot)
	case code == "53400" && strings.Contains(msg, "replication slots"):
		stop("Raise max_replication_slots on this server and restart it, or drop a slot that nobody needs")
	case code == "55000" && strings.Contains(msg, "wal_level"):
		stop("Set wal_level to logical on this server and restart it: ALTER SYSTEM SET wal_level = 'logical'")
	case code == "55000" && strings.Contains(msg, "in recovery"), code == "0A000" && strings.Contains(msg, "in recovery"):
		stop("The server is a standby: give the address of the primary")
	case code == "58P01" && strings.Contains(msg, "WAL segment"), code == "55000" && strings.Contains(msg, "replication slot"):
		stop(fmt.Sprintf("Slot %q has lost WAL that it needs: this content needs a new initial copy", slot))
	default:
		switch code[:min(2, len(code))] {
		case "22", "28", "3D", "3F", "42", "0A", "55":
			e.Class = dtx.ClassStop
		}
	}
	return e
}
