// Package verify proves that source and target hold the same rows, while writers
// write and the daemon replicates. It holds nobody up and asks the daemon for nothing.
//
// Two clusters are never read at the same moment. What makes the comparison exact is
// the record of positions on the target: once the recorded position of every stream
// has passed the source's log position of a moment, the target holds everything that
// was committed on the source by then. A table is compared in rounds:
//
//	s1  the source's servers compute checksums, one per bucket of keys, and say how far
//	    their log was when they had taken the snapshot for it
//	    wait until the target has recorded these positions
//	t1  the target's servers compute the same
//
// Checksums do not depend on the order of rows, and add up over servers. Buckets that
// agree are proved: the rows of s1 and t1 are the same. The rows of the others are
// listed, by a hash of their key with a hash of their contents and one of their
// version (where the row version is and who wrote it), in the same way, again and
// again. A key that agrees once is proved, too. One that differs is a difference
//
//   - when the source has it in the same version before and after the target was read:
//     it was not written in between, and the target had everything from before; or
//   - when the source does not have it, before and after, and the target has it in the
//     same version twice, the second time after the source was read: whatever wrote
//     that version, the source's next word was to delete it.
//
// So there is no false alarm under load, and no difference that lasts is missed. A key
// that is written in every round is reported as not settled: each write of the row
// makes the target's the same.
//
// Only checksums leave the servers, except for placement: distribution keys are read
// to compute where each row has to be.
package verify
