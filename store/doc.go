// Package store is the spool: it keeps the raw row messages of transactions
// between the stream that delivered them and the batch that applies them, in
// memory while there is room and in a Pebble database beyond that. It owns
// parts, relation versions, stream positions and space accounting; it never
// decides an order and never looks inside a row.
//
// # Modes
//
// In mode Applied the spool is a cache: positions are confirmed to the source
// only after the target has committed, so nothing is synced, there is no
// write-ahead log, and Open starts empty. In mode Spooled the spool is the only
// copy: what has been acknowledged (Sync) is on disk and is
// listed by Recover after a restart; it is never rebuilt in silence.
//
// # Addresses
//
// Every content has a log, to which transactions that are sent whole are
// appended one behind the other, and own chains for transactions that are sent
// in interleaved pieces (streamed). Both are chains: sequences of bytes cut
// into blocks of at most 64 KiB. A SpoolID is the address of a transaction's
// first byte:
//
//	63                                  16 15              0
//	+-------------------------------------+----------------+
//	|            chain number             | offset         |
//	+-------------------------------------+----------------+
//
// Chain numbers rise over all contents; the lowest bit is 1 for an own chain.
// A log chain ends when its next transaction would begin beyond the first
// block, so a log chain holds either up to 64 KiB of small transactions or some
// small ones and the whole of one large one. Nothing maps ids to places: the id
// is the place.
//
// # Keys
//
// All integers are big-endian; contents are biased by 0x8000 so that -1 sorts
// first. Class is the chain number's lowest bit.
//
//	'd' content:2 class:1 chain:8 offset:8  block of a chain   (both modes)
//	'p' content:2 class:1 chain:8 offset:2  committed part     (Spooled only, as all below)
//	'e' content:2 endlsn:8                  committed part without rows
//	'c' endlsn:8                            commit record
//	's' content:2                           stream position
//	'r' version:4                           relation message, as received
//	'm' name                                numbers of the spool itself
//
// In mode Applied the first block of a log chain is written whole, under offset
// 0. In mode Spooled every transaction starts a block of its own.
//
// A separate file, CBREPL-SPOOL, names format version, mode and subscription;
// it is checked before anything in the directory is touched.
//
// # Blocks
//
// A block is a sequence of frames, each with a 4-byte header: kind in the upper
// byte, payload length in the lower three.
//
//	1 begin   flags:1                        bit 0: messages carry a transaction id
//	2 rel     version:4                      relation version of the rows that follow
//	3 row     insert, update or delete, as received
//	4 trunc   n:4 version:4... message       TRUNCATE with its relations' versions
//	5 big     kind:1 total:4 bytes...        first piece of a row or trunc above 8 KiB
//	6 more    bytes...                       next piece
//	7 end                                    the transaction ends here
//
// Every block of a transaction behind its first begins with the rel frame in
// force, so a block is decoded with the schema it was written under. Pebble's
// block checksums cover all of it.
//
// # Freeing
//
// Chains are freed, not transactions: released transactions are counted per
// chain, and a chain whose last one is released is dead. When enough dead bytes
// have gathered on disk, runs of dead chains are excised: Pebble drops the
// tables in their range without reading them and no tombstone is left behind.
// Tables are cut where content and class change, and chain numbers rise, so the
// tables of one content follow each other and a run covers most of its tables
// whole. Short runs between live chains wait for their neighbours; when they
// hold too much of the disk, range tombstones delete them.
//
// # Failures
//
// The first write that fails stops the spool: nothing on disk changes any more,
// every call reports the failure, and the owner closes the spool and opens it
// again. See failFS.
package store
