package repl

import (
	"encoding/binary"
	"time"

	"cbrepl/dtx"
)

// StatusUpdate is a standby status update.
type StatusUpdate struct {
	Write, Flush, Apply dtx.LSN
	At                  dtx.PGTime
	ReplyRequested      bool
}

// AppendTo encodes the update as a CopyData message. All three positions go out
// as they are. (pglogrepl.SendStandbyStatusUpdate replaces a zero flush or apply
// position by the write position, which would confirm what was only received.)
func (u StatusUpdate) AppendTo(dst []byte) []byte {
	dst = append(dst, 'd')
	dst = binary.BigEndian.AppendUint32(dst, 4+34)
	dst = append(dst, 'r')
	for _, v := range []uint64{uint64(u.Write), uint64(u.Flush), uint64(u.Apply), uint64(u.At)} {
		dst = binary.BigEndian.AppendUint64(dst, v)
	}
	if u.ReplyRequested {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// interval is the time between status updates.
func (s *Stream) interval() time.Duration {
	d := s.cfg.StatusInterval
	if t := s.server.SenderTimeout; t > 0 {
		d = min(d, t/3)
	}
	return d
}

// writeStatus sends status updates until the stream ends: at intervals, at once
// when the server asked, and when the confirmed position moved and the floor
// has passed.
func (s *Stream) writeStatus() {
	interval := s.interval()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last, asked time.Time
	var lastConfirmed uint64
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.poke:
		case <-timer.C:
		}
		now := time.Now()
		wait := interval
		if s.confirmed.Load() != lastConfirmed {
			wait = min(wait, s.cfg.StatusFloor)
		}
		// A server without wal_sender_timeout says nothing of itself when idle.
		silent := s.reading.Load() && now.Sub(time.Unix(0, s.heard.Load())) >= s.cfg.Timeout/2
		ask := silent && now.Sub(asked) >= s.cfg.Timeout/4
		if s.replyWanted.Swap(false) || ask || now.Sub(last) >= wait {
			lastConfirmed = s.confirmed.Load()
			_ = s.conn.SetWriteDeadline(time.Now().Add(s.cfg.Timeout))
			if err := s.sendStatus(ask); err != nil {
				_ = s.fail(err)
				return
			}
			last = now
			if ask {
				asked = now
			}
			wait = interval
		}
		next := min(wait-now.Sub(last), s.cfg.Timeout/4)
		timer.Reset(max(next, time.Millisecond))
	}
}

// sendStatus is called by the writing goroutine, and by Close after its end.
func (s *Stream) sendStatus(ask bool) error {
	confirmed := dtx.LSN(s.confirmed.Load())
	u := StatusUpdate{
		Write: max(dtx.LSN(s.receivedPub.Load()), confirmed),
		Flush: confirmed, Apply: confirmed,
		At: dtx.PGTimeOf(time.Now()), ReplyRequested: ask,
	}
	var buf [64]byte
	if _, err := s.conn.Write(u.AppendTo(buf[:0])); err != nil {
		return err
	}
	s.replies.Add(1)
	return nil
}
