package shards

import (
	"regexp"
	"strconv"
	"strings"
)

// gidPrefix begins every global transaction id of cbrepl.
const gidPrefix = "cbrepl:"

// namePattern is what a subscription may be called. Without ':' and within 63
// bytes a global id parses one way only and stays below the server's limit of
// 200 bytes (the longest has 127).
var namePattern = regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)

// batchID names one attempt to apply a batch: the epoch of the daemon that made
// it and the batch number.
type batchID struct {
	epoch, batch uint64
}

// gid prints the global transaction id of a batch on the database with the
// given OID: cbrepl:SUBSCRIPTION:EPOCH:BATCH:DATABASE.
func (id batchID) gid(subscription string, database uint32) string {
	b := make([]byte, 0, 128)
	b = append(b, gidPrefix...)
	b = append(b, subscription...)
	b = append(b, ':')
	b = strconv.AppendUint(b, id.epoch, 10)
	b = append(b, ':')
	b = strconv.AppendUint(b, id.batch, 10)
	b = append(b, ':')
	b = strconv.AppendUint(b, uint64(database), 10)
	return string(b)
}

// parseGID reads a global transaction id of this subscription on the database
// with the given OID. It reports false for any other id.
func parseGID(gid, subscription string, database uint32) (batchID, bool) {
	rest, ok := strings.CutPrefix(gid, gidPrefix+subscription+":")
	if !ok {
		return batchID{}, false
	}
	f := strings.Split(rest, ":")
	if len(f) != 3 || f[2] != strconv.FormatUint(uint64(database), 10) {
		return batchID{}, false
	}
	e, err := strconv.ParseUint(f[0], 10, 64)
	if err != nil {
		return batchID{}, false
	}
	b, err := strconv.ParseUint(f[1], 10, 64)
	if err != nil {
		return batchID{}, false
	}
	id := batchID{e, b}
	return id, id.gid(subscription, database) == gid // no leading zeros, no signs
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
func judge(id, decided batchID) verdict {
	switch {
	case id == decided:
		return commitIt
	case id.batch < decided.batch:
		return refuseIt
	}
	return rollBackIt
}
