package shards

import (
	"strconv"
	"strings"

	"cbrepl/apply/ledger"
)

// gidPrefix begins every global transaction id of cbrepl.
const gidPrefix = "cbrepl:"

// gidOf prints the global transaction id of a batch on the database with the
// given OID: cbrepl:SUBSCRIPTION:EPOCH:BATCH:DATABASE.
func gidOf(id ledger.BatchID, subscription string, database uint32) string {
	b := make([]byte, 0, 128)
	b = append(b, gidPrefix...)
	b = append(b, subscription...)
	b = append(b, ':')
	b = strconv.AppendUint(b, id.Epoch, 10)
	b = append(b, ':')
	b = strconv.AppendUint(b, id.Batch, 10)
	b = append(b, ':')
	b = strconv.AppendUint(b, uint64(database), 10)
	return string(b)
}

// parseGID reads a global transaction id of this subscription on the database
// with the given OID. It reports false for any other id.
func parseGID(gid, subscription string, database uint32) (ledger.BatchID, bool) {
	rest, ok := strings.CutPrefix(gid, gidPrefix+subscription+":")
	if !ok {
		return ledger.BatchID{}, false
	}
	f := strings.Split(rest, ":")
	if len(f) != 3 || f[2] != strconv.FormatUint(uint64(database), 10) {
		return ledger.BatchID{}, false
	}
	e, err := strconv.ParseUint(f[0], 10, 64)
	if err != nil {
		return ledger.BatchID{}, false
	}
	b, err := strconv.ParseUint(f[1], 10, 64)
	if err != nil {
		return ledger.BatchID{}, false
	}
	id := ledger.BatchID{Epoch: e, Batch: b}
	return id, gidOf(id, subscription, database) == gid // no leading zeros, no signs
}

// verdict says what becomes of a prepared transaction.
type verdict uint8

const (
	commitIt verdict = iota + 1
	rollBackIt
	refuseIt
)

// judge applies the table of the package comment: id is a prepared transaction,
// decided the coordinator's record, final because its epoch has been raised.
func judge(id, decided ledger.BatchID) verdict {
	switch {
	case id == decided:
		return commitIt
	case id.Batch < decided.Batch:
		return refuseIt
	}
	return rollBackIt
}
