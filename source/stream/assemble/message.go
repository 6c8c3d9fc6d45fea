package assemble

import (
	"context"
	"errors"
	"strings"

	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/source/stream/carrier"
	"cbrepl/source/stream/feed"
)

// message takes a logical message: a commit record, the transaction's name or DDL.
// All others are somebody else's.
func (a *Assembler) message(ctx context.Context, out *feed.Out, lsn dtx.LSN, body []byte) error {
	m, err := pgoutput.ParseMessage(body)
	if err != nil {
		return a.malformed(lsn, pgoutput.TypeMessage, err)
	}
	t := a.open()
	if m.Transactional && t == nil {
		return a.violation(lsn, pgoutput.TypeMessage, "a transactional message outside any transaction")
	}
	if a.observer != nil {
		if ev, ours, err := a.observer.Observe(m.Prefix, m.Content, m.LSN); ours {
			return a.observe(ctx, out, t, m, ev, err)
		}
		if u, ours, err := a.observer.Unsent(m.Prefix, m.Content); ours {
			return a.unsent(t, m, u, err)
		}
	}
	if a.o.Content == dtx.Coordinator {
		if rec, ours, err := a.o.Carrier.CommitRecord(m.Prefix, m.Content); ours {
			return a.record(ctx, out, t, m, rec, err)
		}
	}
	if id, ours, err := a.o.Carrier.Part(m.Prefix, m.Content); ours {
		return a.part(t, m, id, err)
	}
	if strings.HasPrefix(m.Prefix, carrier.DDLPrefix) {
		e := a.errorAt(m.LSN, "Make the same change on the target by hand, and copy the tables anew: `cbrepl subscription reset` and then the steps that it prints",
			"DDL message %s is not supported", m.Prefix)
		return a.fault(t, m, e)
	}
	return nil
}

// record takes the coordinator's commit record.
func (a *Assembler) record(ctx context.Context, out *feed.Out, t *txn, m pgoutput.Message, rec dtx.CommitRecord, err error) error {
	switch {
	case err != nil:
		return a.breach(t, m, err)
	case m.Transactional:
		t.records = append(t.records, rec)
		return nil
	}
	rec.EndLSN = m.LSN
	if a.observer != nil && len(rec.Participants) > 0 {
		// The coordinator's own part follows, and the record behind it.
		if a.ownRecord != nil || t != nil {
			return a.violation(m.LSN, pgoutput.TypeMessage, "a commit record with a part of the coordinator, before the last such transaction has ended")
		}
		a.ownRecord = &rec
		return nil
	}
	a.n.records.Add(1)
	return out.Event(ctx, dtx.Event{Kind: dtx.EventRecord, LSN: rec.EndLSN, Record: rec})
}

// observe passes on what the source has seen.
func (a *Assembler) observe(ctx context.Context, out *feed.Out, t *txn, m pgoutput.Message, ev dtx.Event, err error) error {
	switch {
	case err != nil:
		return a.breach(t, m, err)
	case m.Transactional:
		return a.breach(t, m, errors.New("it is inside a transaction"))
	case ev.Kind != dtx.EventPosition:
		return out.Observation(ctx, ev)
	case t != nil || a.ownRecord != nil:
		return a.violation(m.LSN, pgoutput.TypeMessage, "a position inside a transaction")
	}
	return out.Progress(ctx, ev.LSN)
}

// unsent takes word of rows that were changed without a row change: what follows
// cannot be applied to what the target has.
func (a *Assembler) unsent(t *txn, m pgoutput.Message, u carrier.Unsent, err error) error {
	if err == nil && !m.Transactional {
		err = errors.New("it is outside any transaction")
	}
	if err != nil {
		return a.breach(t, m, err)
	}
	e := a.errorAt(m.LSN, "Make the same change on the target, and copy the tables anew: `cbrepl subscription reset` and then the steps that it prints",
		"%s changed rows of this table, which the stream does not carry", u.Statement)
	e.Relation = u.Table
	return a.fault(t, m, e)
}

// part takes the message that names the transaction's dtx.
func (a *Assembler) part(t *txn, m pgoutput.Message, id carrier.Identity, err error) error {
	if err == nil && !m.Transactional {
		err = errors.New("it is outside any transaction; it must be emitted with transactional set, in the transaction that it belongs to")
	}
	if err == nil {
		err = t.setIdentity(id)
	}
	if err != nil {
		return a.breach(t, m, err)
	}
	return nil
}

// breach is a message that breaks the stream contract.
func (a *Assembler) breach(t *txn, m pgoutput.Message, err error) error {
	e := a.errorAt(m.LSN, "The source (server version "+a.version+") breaks the stream contract", "message %q", m.Prefix)
	e.Err = err
	return a.fault(t, m, e)
}

// fault returns the fault of a message now, or leaves it to its transaction's
// commit.
func (a *Assembler) fault(t *txn, m pgoutput.Message, e *dtx.Error) error {
	if !m.Transactional {
		return e
	}
	t.mark(0, e)
	return nil
}
