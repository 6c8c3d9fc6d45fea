package engine

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"

	"cbrepl/apply"
	"cbrepl/dtx"
)

type conflictKind uint8

const (
	conflictMissingUpdate conflictKind = iota
	conflictMissingDelete
	conflictDuplicate
	conflictSeveral
	conflictCopies
)

var conflictText = [...]string{
	conflictMissingUpdate: "the row to update is not there",
	conflictMissingDelete: "the row to delete is not there",
	conflictDuplicate:     "the row to insert is there already",
	conflictSeveral:       "more than one row has this identity",
	conflictCopies:        "the copies of a replicated table differ from each other",
}

// conflict is met while folding: the batch itself contradicts what it did
// before. key is encoded as appendKey does.
func (r *run) conflict(t *table, kind conflictKind, part int32, key []byte) error {
	var vals [][]byte
	if !t.shape.images {
		vals = appendKeyValues(nil, key)
	}
	return r.conflicts(t, t.shape, kind, 1, part, vals)
}

// conflicts reports n rows on which source and target differ: an error, or a
// count.
func (r *run) conflicts(t *table, sh *shape, kind conflictKind, n int64, part int32, key [][]byte) error {
	return r.conflictsAt(t, sh, kind, n, part, key, noSegment)
}

// noSegment stands for a segment that is not known or does not matter.
const noSegment = dtx.Content(-2)

func (r *run) conflictsAt(t *table, sh *shape, kind conflictKind, n int64, part int32, key [][]byte, seg dtx.Content) error {
	if r.e.opt.OnConflict == apply.ConflictLog {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.result.Conflicts == nil {
			r.result.Conflicts = make(map[string]int64)
		}
		r.result.Conflicts[t.String()] += n
		if len(r.result.Skipped) < apply.MaxSkipped {
			r.result.Skipped = append(r.result.Skipped, r.describe(t, sh, kind, n, part, key, seg))
		}
		return nil
	}
	return r.diverged(t, sh, kind, part, key, seg, nil)
}

// describe names rows that were left out, as diverged does.
func (r *run) describe(t *table, sh *shape, kind conflictKind, n int64, part int32, key [][]byte, seg dtx.Content) apply.Skipped {
	s := apply.Skipped{Table: t.String(), Reason: conflictText[kind], Rows: n, Segment: seg}
	if part >= 0 && int(part) < len(r.parts) {
		p := &r.parts[part]
		s.GXID, s.Content, s.LSN = p.GXID, p.Content, p.EndLSN
	}
	if !sh.images && len(key) > 0 {
		s.Identity, s.Digest = t.columnNames(sh.keyTarget), digest(key)
	}
	return s
}

// diverged builds the error for a row on which source and target differ. It
// names the identity's columns and a digest of their values, never the values.
func (r *run) diverged(t *table, sh *shape, kind conflictKind, part int32, key [][]byte, seg dtx.Content, cause error) error {
	msg := conflictText[kind]
	if seg >= 0 {
		msg += fmt.Sprintf(" (target segment %d)", seg)
	}
	switch {
	case sh.images:
		msg += "; the whole row is its identity"
	case len(key) > 0:
		msg += fmt.Sprintf("; identity (%s) with digest %s", t.columnNames(sh.keyTarget), digest(key))
	case len(sh.keyTarget) > 0:
		msg += fmt.Sprintf("; the identity is (%s)", t.columnNames(sh.keyTarget))
	}
	if cause != nil {
		msg += ": " + cause.Error()
	}
	return r.at(part, &dtx.Error{
		Op: "apply rows", Relation: t.String(), Class: dtx.ClassStop,
		Msg: msg, Err: apply.ErrDiverged,
		Hint: "The digest is md5 of the identity columns' text, joined by commas. Repair the row on the target and start the daemon again with `cbrepl run`, or set apply.on_conflict: log",
	})
}

// digest is the md5 of values joined by commas, as SQL's
// md5(concat_ws(',', a, b)) gives it.
func digest(key [][]byte) string {
	sum := md5.Sum(bytes.Join(key, []byte{','}))
	return hex.EncodeToString(sum[:])
}

// opError is the failure of an operation for another reason.
func (r *run) opError(t *table, seg dtx.Content, part int32, op string, err error) error {
	var e *dtx.Error
	out := &dtx.Error{Op: op, Relation: t.String(), Class: dtx.ClassOf(err), Err: err}
	if errors.As(err, &e) {
		c := *e
		out = &c
		out.Op, out.Relation = op, t.String()
	}
	if seg >= 0 {
		if out.Msg != "" {
			out.Msg = ", " + out.Msg
		}
		out.Msg = fmt.Sprintf("target segment %d", seg) + out.Msg
	}
	return r.at(part, out)
}
