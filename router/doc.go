// Package router decides where a row lives: distribution policies, the cdbhash
// of Greenplum-family servers bit for bit (both hash families), and jump
// consistent hash over numsegments. It is pure: no SQL, no I/O.
//
// # How a row is placed
//
// A hash policy names key columns and, per column, a hash operator class.
//
//   - Default family: the PostgreSQL hash function of each column's type; the
//     row's hash starts at 0 and is rotated left by one bit before each column's
//     is xored in (NULL adds nothing); jump consistent hash over numsegments.
//   - Legacy family (classes cdbhash_*_ops): FNV-1, 32 bits, over the bytes that
//     each value has in the server's memory, columns one after the other, with
//     constants for NULL and a numeric NaN; the remainder by numsegments.
//   - One legacy class makes the whole row legacy. A column with a default class
//     then replaces what was hashed before it, as on the server.
//
// A replicated table has every row everywhere. For a random one the server takes
// any segment and cbrepl the one that the row's identity names
// (Router.SegmentOfIdentity).
//
// Algorithms: hash_bytes and the types' hash functions of PostgreSQL 15 (hashfn.c
// and the files of each type), cdbhash.c and cdblegacyhash.c of Greenplum 6. The
// code here is written after them, not copied. The result is that of a
// little-endian server; others place rows elsewhere.
//
// # What values may look like
//
// Values are text as the server prints it: DateStyle ISO, IntervalStyle postgres, postgres_verbose or iso_8601, any TimeZone (the
// offset is part of the text), bytea_output hex or escape, extra_float_digits 1 or
// more (PostgreSQL 11 and older, Greenplum 6: 3; with less, text does not tell the
// value), lc_monetary C or en_US. Text is in the encoding of the target's
// database, because that is what its server hashes. Text that a person types in
// another form is refused or read as the server reads it, never read otherwise;
// the exception is a range over a subtype whose order is not known here (text, for
// one), which must stand as the server prints it.
//
// # What is refused
//
// New names the column, the type and the reason: enums (hashed by OID), types that
// print as names and are hashed by OID (regclass and its like, aclitem), types of
// extensions, types and operator classes made by users, nondeterministic
// collations, types without a hash class, and legacy classes that do not exist.
//
// # Proof
//
// testdata/cdbhash.jsonl holds 2,432 keys with their placements on a real cluster
// of 1 to 8 segments, testdata/legacy.jsonl 985 values with the hashes of a real
// server's legacy functions. TestServerHashes asks a PostgreSQL server for text
// and hash of 20,000 random values of each type, TestServerRefusals
// damages text and demands that both sides still agree. With CBREPL_TEST_CLUSTER_DSN
// set, TestLegacyServerHashes does the like for the legacy functions of a
// Greenplum server, and TestClusterPlacement compares the placement of rows with
// random keys, mixed classes included, on a cluster. Every parser has a fuzz test.
//
// # Speed
//
// On one core of a Xeon at 2.8 GHz (go test -bench ., processor time): 30 to 34
// million int8 keys a second, 21 million (text, int4), 19 million (text, int4)
// of the legacy family; uuid 13, timestamptz 9, numeric 6, a small jsonb document
// 2 million. No row allocates.
package router
