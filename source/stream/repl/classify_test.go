package repl

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/dtx"
)

// TestCauses: the remedy is that of the cause.
func TestCauses(t *testing.T) {
	for _, tc := range []struct {
		name, op string
		err      error
		want     string
		class    dtx.Class
	}{
		{"schema", "read distribution policies", &pgconn.PgError{Code: "42501", Message: "permission denied for schema cbrepl"}, "USAGE on the schema", dtx.ClassStop},
		{"attribute", "connect to source", &pgconn.PgError{Code: "42501", Message: "must be superuser or replication role"}, "REPLICATION attribute", dtx.ClassStop},
		{"attribute", "create slot s", &pgconn.PgError{Code: "42501"}, "REPLICATION attribute", dtx.ClassStop},
		{
			"unknown authority", "connect to source", fmt.Errorf("tls: %w", &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}),
			"sslrootcert", dtx.ClassStop,
		},
		{"shutdown", "connect to source", &pgconn.PgError{Code: "57P03"}, "57P03", dtx.ClassRetry},
	} {
		err := Fault(tc.op, 2, "s", "p", tc.err)
		if dtx.ClassOf(err) != tc.class || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "content 2") {
			t.Errorf("%s: class %d, %v", tc.name, dtx.ClassOf(err), err)
		}
		if strings.Contains(err.Error(), "Start the server") {
			t.Errorf("%s: taken for a server that is down: %v", tc.name, err)
		}
	}
}

// TestFileOfDSN: a missing file is named, and the string is not.
func TestFileOfDSN(t *testing.T) {
	missing := t.TempDir() + "/ca.pem"
	_, err := ParseDSN(1, "postgres://u:canary@h/d?sslmode=verify-full&sslrootcert="+missing)
	if err == nil || !strings.Contains(err.Error(), missing) || strings.Contains(err.Error(), "canary") || dtx.ClassOf(err) != dtx.ClassStop {
		t.Errorf("%v", err)
	}
}
