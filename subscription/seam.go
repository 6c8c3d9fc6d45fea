package subscription

import (
	"context"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/subscription/status"
)

// Stream reads one content of the source.
type Stream interface {
	// Run reports the stream's events in order from start on, reconnecting by
	// itself. It returns when ctx ends, or with an error that a person must see.
	// emit blocks while the daemon has no room; the stream goes on answering its
	// server meanwhile.
	Run(ctx context.Context, start dtx.LSN, emit func(context.Context, dtx.Event) error) error
	// Confirm says that everything up to the position is durable on the target:
	// the source may forget it. Positions rise. It does not block.
	Confirm(dtx.LSN)
	// Facts describes the connection for status reports. It may be called at any
	// time, from any goroutine.
	Facts() status.Stream
}

// needer is a stream that holds events back until other streams have been read
// on. What it needs counts while the merge engine needs that stream.
type needer interface {
	Needed() []dtx.Content
}

// participantsReporter is a stream that works out the participants of commit
// records.
type participantsReporter interface {
	Participants() status.Participants
}

// ContentStream is a stream with its content id.
type ContentStream struct {
	Content dtx.Content
	Stream
}

// Spool is the store between streams and target, as the loop needs it.
type Spool interface {
	apply.Rows
	// Applied notes what the target has committed, before anything of it is released:
	// a spool that is the only copy then knows a target that is older.
	Applied(r apply.Record) error
	// Release frees the space of parts that will not be read again.
	Release(parts []dtx.Part) error
	// Exempt names the contents that may write although the spool is full. It
	// replaces the last call's list.
	Exempt(contents []dtx.Content)
	// Usage describes the spool for status reports, from any goroutine.
	Usage() status.Spool
}
