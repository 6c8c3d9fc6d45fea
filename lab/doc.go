// Package lab starts real PostgreSQL servers on this machine and runs
// distributed transactions on them as an MPP coordinator does. It stands in for
// a source cluster's interface (coordinator and N segments) and for a target of
// M shards; demo, integration tests and benchmarks stand on it, and nothing in
// the daemon knows that it exists.
//
// It owns server processes and their directories, the dispatcher (Source.Begin)
// and the comparison of two clusters (Compare). It never replicates anything.
//
// # Servers
//
// A Lab owns one directory below the temporary directory and every server in
// it. Servers listen on a free port of 127.0.0.1, trust every local
// connection, and run as an unprivileged account when the caller is root. They
// keep nothing safe: fsync is off. Tests' data directories are unpacked from a
// file that initdb's first run on the machine left in the temporary directory.
// Lab.Close stops the servers and removes the lab's directory. When the process
// dies instead, the servers are told to stop by the kernel (Linux) and the next
// Lab removes the directory.
//
// A package's tests share servers, which start when first asked for:
//
//	var shared lab.Shared
//
//	func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }
//
//	func TestX(t *testing.T) {
//		dsn := shared.Database(t) // an empty database on the shared server
//		src := shared.Source(t)   // the shared source cluster
//	}
//
// A test that breaks its servers starts its own by shared.NewServer, NewSource
// or NewTarget, or, in a lab of their own, by ServerForTest, SourceForTest or
// TargetForTest; they end with the test. A running server has
// one goroutine that waits for the process, so goleak checks begin with
// goleak.IgnoreCurrent().
package lab
