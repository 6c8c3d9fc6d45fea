package assemble

import (
	"fmt"
	"slices"
	"strings"

	"cbrepl/dtx"
	"cbrepl/source/stream/carrier"
	"cbrepl/store"
)

// txn is a local transaction whose outcome has not been received.
type txn struct {
	xid dtx.XID
	// streamed: sent in pieces while in progress.
	streamed bool
	// spool is nil until the first row.
	spool *store.Txn
	// overlay holds the schemas sent inside a streamed transaction.
	overlay map[uint32]*relation
	last    *relation // of the last row

	id      carrier.Identity
	named   bool               // id is set
	records []dtx.CommitRecord // on the coordinator, in their order
	rows    int64
	// subs counts the rows of subtransactions of a streamed transaction while
	// those are few; many is set when they were not. dead counts the rows of those
	// rolled back.
	subs   map[dtx.XID]int64
	subXID dtx.XID // of the run of rows being counted
	subRun int64
	many   bool
	dead   int64

	tables []string          // touched, for messages
	fresh  map[string]uint32 // OIDs of tables touched that were not known
	// faults are what must stop the stream if the transaction commits.
	faults []fault

	// twoPhase: decoded at PREPARE, under gid. hold is set once its PREPARE was
	// reported.
	twoPhase bool
	gid      string
	hold     dtx.SpoolID
}

// fault is one fault of a (sub)transaction; xid is 0 where the server does not
// say which.
type fault struct {
	xid dtx.XID
	err *dtx.Error
}

// maxFaults bounds the faults kept of one transaction; later ones count as the
// whole transaction's.
const maxFaults = 1000

// mark keeps the first fault of a subtransaction.
func (t *txn) mark(xid dtx.XID, e *dtx.Error) {
	for _, f := range t.faults {
		if f.xid == xid || f.xid == 0 {
			return
		}
	}
	if len(t.faults) >= maxFaults {
		xid = 0
	}
	t.faults = append(t.faults, fault{xid, e})
}

// maxSubs bounds the subtransactions whose rows are counted one by one.
const maxSubs = 10_000

// maxTables bounds the tables that a message names.
const maxTables = 5

// touch notes the table of a row.
func (t *txn) touch(r *relation) {
	t.last = r
	if len(t.tables) <= maxTables && !slices.Contains(t.tables, r.name) {
		t.tables = append(t.tables, r.name)
	}
}

func (t *txn) tableList() string {
	if len(t.tables) > maxTables {
		return strings.Join(t.tables[:maxTables], ", ") + " and others"
	}
	return strings.Join(t.tables, ", ")
}

// count notes a row of (sub)transaction xid.
func (t *txn) count(xid dtx.XID) {
	t.rows++
	if xid == t.xid || xid == 0 {
		return
	}
	if xid != t.subXID {
		t.endRun()
		t.subXID = xid
	}
	t.subRun++
}

func (t *txn) endRun() {
	n := t.subRun
	t.subRun = 0
	if n == 0 || t.many {
		return
	}
	if _, ok := t.subs[t.subXID]; !ok && len(t.subs) >= maxSubs {
		t.many, t.subs = true, nil
		return
	}
	if t.subs == nil {
		t.subs = map[dtx.XID]int64{}
	}
	t.subs[t.subXID] += n
}

// abortSub takes a rolled back subtransaction's rows and faults out.
func (t *txn) abortSub(xid dtx.XID) {
	t.faults = slices.DeleteFunc(t.faults, func(f fault) bool { return f.xid == xid })
	t.endRun()
	t.dead += t.subs[xid]
	delete(t.subs, xid)
	if t.spool != nil {
		t.spool.AbortSub(xid)
	}
}

// alive reports whether rows are left. With very many subtransactions it may
// say so although all were rolled back.
func (t *txn) alive() bool { return t.rows > t.dead }

// setIdentity sets the dtx that the transaction is a part of.
func (t *txn) setIdentity(id carrier.Identity) error {
	if t.named && t.id != id {
		return fmt.Errorf("one transaction names two distributed ones: gxid %d (%s) and gxid %d (%s)", t.id.GXID, t.id.Kind, id.GXID, id.Kind)
	}
	t.id, t.named = id, true
	return nil
}

// drop gives the spooled rows back.
func (t *txn) drop() error {
	if t.spool == nil {
		return nil
	}
	return t.spool.Drop()
}
