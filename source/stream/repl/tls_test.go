package repl_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cbrepl/lab"
	"cbrepl/source/stream/repl"
)

// selfSigned writes server.crt and server.key into a server's data directory,
// owned as the directory is.
func selfSigned(t *testing.T, dir string) (cert string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	write := func(path, typ string, b []byte) {
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, b := range map[string][]byte{"server.crt": der, "server.key": keyDER} {
		path := filepath.Join(dir, name)
		write(path, map[string]string{"server.crt": "CERTIFICATE", "server.key": "EC PRIVATE KEY"}[name], b)
		if st, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
			if err := os.Chown(path, int(st.Uid), int(st.Gid)); err != nil {
				t.Fatal(err)
			}
		}
	}
	cert = filepath.Join(t.TempDir(), "root.crt")
	write(cert, "CERTIFICATE", der)
	return cert
}

// TestTLS: framing, idle deadlines and status updates over an encrypted
// connection, where a read that timed out must not spoil the next one.
func TestTLS(t *testing.T) {
	srv := lab.ServerForTest(t, lab.Options{})
	cert := selfSigned(t, srv.DataDir())
	d := newDB(t, srv.DSN())
	d.exec("ALTER SYSTEM SET ssl = on")
	d.exec("SELECT pg_reload_conf()")
	d.createSlot()
	d.dsn = strings.Replace(d.dsn, "sslmode=disable", "sslmode=verify-full&sslrootcert="+cert, 1)
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	var c *repl.Conn
	var err error
	for ctx.Err() == nil { // the server reloads in its own time
		if c, err = repl.Connect(ctx, d.cfg()); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Start(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if enc := d.query("SELECT bool_or(ssl)::text FROM pg_stat_ssl JOIN pg_stat_replication USING (pid)"); enc != "true" {
		t.Fatal("not encrypted")
	}
	// Idle deadlines before, between and within messages.
	d.exec("INSERT INTO t SELECT g, repeat('x', 5000) FROM generate_series(1, 300) g")
	rows, idle := 0, 0
	deadline := time.Now().Add(wait)
	for idle < 50 || rows < 300 {
		m, err := s.Next(time.Now().Add(200 * time.Microsecond))
		if err != nil {
			t.Fatal(err)
		}
		if m.Kind == repl.Idle {
			idle++
		}
		if m.Kind == repl.Data && m.Payload[0] == 'I' {
			rows++
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d rows after %s", rows, wait)
		}
	}
	s.Confirm(s.Received())
	s.Close()
	d.until("free slot", "SELECT NOT active FROM pg_replication_slots WHERE slot_name = '"+d.slot+"'")
}
