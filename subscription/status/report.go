// Package status says how a running subscription is doing: the report, the
// board that the daemon keeps up to date, the HTTP endpoint that serves it, and
// its text form. Everything that depends on time is computed from the clock when
// the report is read, so a stuck daemon cannot keep a good number on display.
package status

import (
	"time"

	"cbrepl/dtx"
	"cbrepl/snapshot"
)

// State is what the subscription as a whole is doing.
type State string

// States, in the order a subscription passes them.
const (
	Starting  State = "starting"
	Copying   State = "copying" // tables are copied for the first time; nothing streams
	Streaming State = "streaming"
	Stopping  State = "stopping"
	Stopped   State = "stopped"
)

// Report is one reading.
type Report struct {
	Subscription string    `json:"subscription"`
	Now          time.Time `json:"now"`
	State        State     `json:"state"`
	StateSince   time.Time `json:"state_since"`
	PID          int       `json:"pid"`
	Version      string    `json:"version"`
	StartedAt    time.Time `json:"started_at"`
	// Healthy is true when copying, or streaming and nothing is stuck; Unhealthy says
	// why not.
	Healthy   bool     `json:"healthy"`
	Unhealthy []string `json:"unhealthy,omitempty"`

	// LagSeconds is the age of the oldest source commit that is not applied. It is 0
	// only when everything that the source is known to have is applied; where what
	// is missing cannot be known, it is the time since that was so. LagBytes is the
	// largest of all streams.
	LagSeconds float64  `json:"lag_seconds"`
	LagBytes   int64    `json:"lag_bytes"`
	Streams    []Stream `json:"streams"`
	Spool      Spool    `json:"spool"`
	Pending    Pending  `json:"pending"`
	// Waits lists the oldest transactions that cannot be applied yet, the one
	// that the next batch waits for first.
	Waits []Wait `json:"waits"`
	// Participants is set for a source whose commit records do not name them.
	Participants *Participants `json:"participants,omitempty"`
	// CopyOnly lists published tables whose changes are not in the stream.
	CopyOnly []string `json:"copy_only,omitempty"`
	Applied  Applied  `json:"applied"`
	Target   Target   `json:"target"`
	// Copies is set while tables are copied for the first time: how far each has come.
	Copies []snapshot.Progress `json:"copies,omitempty"`
	// Conflicts counts rows skipped under on_conflict: log, per target table.
	Conflicts map[string]int64 `json:"conflicts"`
	LastError *Failure         `json:"last_error"`
}

// Reached reports whether everything up to a position of every source node is
// applied and recorded.
func (r *Report) Reached(ends map[dtx.Content]dtx.LSN) bool {
	if len(r.Streams) != len(ends) {
		return false
	}
	for _, s := range r.Streams {
		if dtx.LSN(s.SafeLSN) < ends[s.Content] {
			return false
		}
	}
	return true
}

// Participants is how working out the participants of commit records is doing.
type Participants struct {
	// Waiting counts records that were read and wait. GXID is the first of them, 0
	// when none does; WaitSeconds is for how long, Contents for which segments.
	Waiting     int           `json:"waiting"`
	GXID        uint64        `json:"gxid,omitempty"`
	Contents    []dtx.Content `json:"contents,omitempty"`
	WaitSeconds float64       `json:"wait_seconds"`
	// MedianSeconds and MaxSeconds are the delays of the latest records.
	MedianSeconds float64 `json:"median_seconds"`
	MaxSeconds    float64 `json:"max_seconds"`
	// SampleSeconds is how long the slowest of the segments' latest answers to the
	// question for their flush position took, SampleContent whose it was.
	SampleSeconds float64     `json:"sample_seconds"`
	SampleContent dtx.Content `json:"sample_content"`
}

// Stream is one source node.
type Stream struct {
	Content   dtx.Content `json:"content"`
	Connected bool        `json:"connected"`
	// Since is when Connected last changed.
	Since       time.Time `json:"since,omitzero"`
	LastHeard   time.Time `json:"last_heard,omitzero"`
	ReceivedLSN LSN       `json:"received_lsn"`
	SafeLSN     LSN       `json:"safe_lsn"`
	ServerLSN   LSN       `json:"server_lsn"`
	LagBytes    int64     `json:"lag_bytes"`
	LagSeconds  float64   `json:"lag_seconds"`
	SpoolBytes  int64     `json:"spool_bytes"`
	// Paused is set while the stream does not read because the spool or the list
	// of waiting transactions is full.
	Paused     bool   `json:"paused"`
	Reconnects int64  `json:"reconnects"`
	LastError  string `json:"last_error,omitempty"`
}

// LSN marshals as X/X.
type LSN dtx.LSN

// MarshalText prints X/X.
func (l LSN) MarshalText() ([]byte, error) { return []byte(dtx.LSN(l).String()), nil }

// UnmarshalText reads X/X.
func (l *LSN) UnmarshalText(b []byte) error {
	v, err := dtx.ParseLSN(string(b))
	*l = LSN(v)
	return err
}

// String prints X/X.
func (l LSN) String() string { return dtx.LSN(l).String() }

// Spool is the local store. Bytes counts what is spooled and not freed, out of
// MaxBytes; DiskBytes is the size of its files.
type Spool struct {
	Bytes     int64 `json:"bytes"`
	MaxBytes  int64 `json:"max_bytes"`
	DiskBytes int64 `json:"disk_bytes"`
	Full      bool  `json:"full"`
	// Contents fills the streams' SpoolBytes and Paused.
	Contents map[dtx.Content]SpoolShare `json:"-"`
}

// SpoolShare is one content's part of the spool. Waiting says that its stream is
// held back because the spool is full.
type SpoolShare struct {
	Bytes   int64
	Waiting bool
}

// Pending is what was received and is not applied.
type Pending struct {
	Dtxs    int   `json:"dtxs"`
	Parts   int   `json:"parts"`
	Records int   `json:"records"`
	Rows    int64 `json:"rows"`
	Bytes   int64 `json:"bytes"`
	// OldestCommit is the source's commit time of the oldest of them.
	OldestCommit time.Time `json:"oldest_commit,omitzero"`
}

// Wait is a transaction that cannot be applied yet.
type Wait struct {
	GXID uint64 `json:"gxid"`
	Kind string `json:"kind"`
	// Missing lists the contents whose part has not arrived, once the commit
	// record is known.
	Missing    []dtx.Content `json:"missing"`
	Parts      []dtx.Content `json:"parts"`
	RecordSeen bool          `json:"record_seen"`
	// Prepared lists the contents that hold the transaction prepared, without
	// outcome: nothing behind its PREPARE is confirmed there.
	Prepared []dtx.Content `json:"prepared,omitempty"`
	// Blocking is set on the transaction that the next batch waits for.
	Blocking bool      `json:"blocking"`
	Since    time.Time `json:"since"`
	Seconds  float64   `json:"seconds"`
}

// Applied counts what this process applied.
type Applied struct {
	Batches       int64     `json:"batches"`
	Dtxs          int64     `json:"dtxs"`
	Rows          int64     `json:"rows"`
	DtxsPerSecond float64   `json:"dtxs_per_second"`
	RowsPerSecond float64   `json:"rows_per_second"`
	LastBatch     uint64    `json:"last_batch"`
	LastAt        time.Time `json:"last_at,omitzero"`
	// LastCommitTime is the source's commit time of the newest transaction applied.
	LastCommitTime time.Time `json:"last_commit_time,omitzero"`
}

// Target is what the apply worker does.
type Target struct {
	// Activity is idle, applying or retrying.
	Activity string    `json:"activity"`
	Since    time.Time `json:"since"`
	// Attempt counts tries of the batch in hand, from 1.
	Attempt int    `json:"attempt"`
	Error   string `json:"error,omitempty"`
	// Batch is the one in hand, Rows how many rows it has and RowsTaken how many of
	// them the target has taken so far; it commits them all or none.
	Batch     uint64 `json:"batch,omitempty"`
	Rows      int64  `json:"rows,omitempty"`
	RowsTaken int64  `json:"rows_taken,omitempty"`
	// MovedAt is when RowsTaken last grew or the activity last changed.
	MovedAt time.Time `json:"moved_at,omitzero"`
}

// Activities of the target.
const (
	Idle     = "idle"
	Applying = "applying"
	Retrying = "retrying"
)

// Failure is an error with its place.
type Failure struct {
	At      time.Time `json:"at"`
	Message string    `json:"message"`
	// Stops is set when a person must act.
	Stops    bool   `json:"stops"`
	GXID     uint64 `json:"gxid,omitempty"`
	Relation string `json:"relation,omitempty"`
}
