package dtx

import "fmt"

// EventKind says what a stream reader reports.
type EventKind uint8

const (
	// EventPart: a part committed; Part is set.
	EventPart EventKind = iota + 1
	// EventRecord: the coordinator's commit record was read; Record is set.
	EventRecord
	// EventPosition: everything the stream will ever deliver up to LSN has been
	// reported before this event (an empty transaction, an ignored local one, or
	// a keepalive while no received transaction is unreported). Once everything
	// before it is applied, LSN may be confirmed.
	EventPosition
	// EventHold: a prepared transaction has been received whose outcome is still
	// to come. The safe LSN must stay at or before LSN (the position before the
	// PREPARE) until that transaction is applied or rolled back: the server does
	// not send a prepared transaction again once its PREPARE is confirmed. The
	// hold ends with an EventPart that names it in Hold (once that part is
	// applied), or with EventUnhold. Part.GXID is the dtx, where it is known.
	EventHold
	// EventUnhold: the prepared transaction Hold was rolled back; a position, too.
	EventUnhold
	// EventPrepared: the PREPARE of GXID was read on this content; LSN is its end.
	// This event and the next two come from sources whose commit records do not
	// name the participants. They may be delivered again after EventReconnect, at
	// positions before those reported.
	EventPrepared
	// EventRolledBack: the ROLLBACK PREPARED of GXID was read.
	EventRolledBack
	// EventSettled: the COMMIT PREPARED of GXID was read at or before the position
	// that the stream started from: its part was applied and does not come again.
	EventSettled
	// EventReconnect: a new connection began. Its LSN means nothing.
	EventReconnect
)

// String names the event kind.
func (k EventKind) String() string {
	switch k {
	case EventPart:
		return "part"
	case EventRecord:
		return "record"
	case EventPosition:
		return "position"
	case EventHold:
		return "hold"
	case EventUnhold:
		return "unhold"
	case EventPrepared:
		return "prepared"
	case EventRolledBack:
		return "rolled back"
	case EventSettled:
		return "settled"
	case EventReconnect:
		return "reconnect"
	}
	return fmt.Sprintf("event(%d)", uint8(k))
}

// Event is one report of a stream reader. Events of one content are delivered
// in stream order. Part and Record are owned by the receiver.
type Event struct {
	Kind    EventKind
	Content Content
	// LSN is the event's place in the stream; for parts and records it repeats
	// their EndLSN.
	LSN LSN
	// More says that another event with the same LSN follows (a transaction with
	// several messages): LSN may be confirmed only after the last of them.
	More bool
	// Hold identifies a prepared transaction: set in EventHold and EventUnhold, and
	// in the EventPart of a COMMIT PREPARED whose PREPARE was held.
	Hold   SpoolID
	Part   Part
	Record CommitRecord
	// GXID is set in EventPrepared, EventRolledBack and EventSettled.
	GXID GXID
}
