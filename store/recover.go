package store

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"cbrepl/dtx"
)

// recover reads what the disk holds and removes what belongs to nothing: blocks
// of transactions that were open when the spool was cut off.
func (s *Spool) recover(ctx context.Context) error {
	r := &Recovered{Parts: map[dtx.Content][]dtx.Part{}}
	for _, step := range []struct {
		prefix byte
		f      func(k, v []byte) error
	}{
		{prefixMeta, func(k, v []byte) error { return s.loadMeta(r, k, v) }},
		{prefixPart, func(k, v []byte) error { return s.loadPart(r, k, v) }},
		{prefixEmpty, func(k, v []byte) error { return s.loadEmpty(r, k, v) }},
		{prefixRecord, func(k, v []byte) error {
			rec, err := decodeRecord(v)
			if err != nil || len(k) != 9 {
				return keyFault(err, "commit record")
			}
			rec.EndLSN = dtx.LSN(binary.BigEndian.Uint64(k[1:]))
			r.Records = append(r.Records, rec)
			return nil
		}},
		{prefixPosition, func(k, v []byte) error {
			if len(k) != 3 || len(v) != 8 {
				return keyFault(nil, "position")
			}
			r.Positions = append(r.Positions, dtx.Position{Content: contentAt(k[1:]), LSN: dtx.LSN(binary.BigEndian.Uint64(v))})
			return nil
		}},
	} {
		if err := s.scan(ctx, step.prefix, step.f); err != nil {
			return err
		}
	}
	if err := s.recoverRelations(ctx, s.space.committed == 0); err != nil {
		return err
	}
	s.adopt()
	if err := s.dropRepeats(ctx, r); err != nil {
		return err
	}
	if err := s.dropOrphans(ctx); err != nil {
		return err
	}
	if err := s.reserveChains(ctx); err != nil {
		return err
	}
	s.recovered = r
	return nil
}

// keyFault returns err, or that a key is not one of what its prefix says.
func keyFault(err error, what string) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: key of a %s", errCorrupt, what)
}

// scan calls f for every key with the prefix, in order.
func (s *Spool) scan(ctx context.Context, prefix byte, f func(k, v []byte) error) error {
	it, err := s.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: []byte{prefix}, UpperBound: []byte{prefix + 1}})
	if err != nil {
		return err
	}
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err == nil {
			err = f(it.Key(), v)
		}
		if err != nil {
			_ = it.Close()
			return err
		}
	}
	return it.Close()
}

func (s *Spool) loadMeta(r *Recovered, k, v []byte) error {
	key := string(k[1:])
	switch {
	case key != metaChains && key != metaBatch:
		return nil
	case len(v) < 8 || key == metaChains && len(v) > 8:
		return keyFault(nil, "number")
	case key == metaChains:
		s.chains = binary.BigEndian.Uint64(v)
	default:
		r.Batch, r.Token = binary.BigEndian.Uint64(v), string(v[8:])
	}
	return nil
}

// recoverRelations loads the relation versions, or drops them when no row needs
// one.
func (s *Spool) recoverRelations(ctx context.Context, unused bool) error {
	if !unused {
		return s.scan(ctx, prefixRelation, s.loadRelation)
	}
	return s.db.update(ctx, false, func(b *pebble.Batch) error {
		return b.DeleteRange([]byte{prefixRelation}, []byte{prefixRelation + 1}, nil)
	})
}

func (s *Spool) loadRelation(k, v []byte) error {
	if len(k) != 5 {
		return keyFault(nil, "relation version")
	}
	return s.rels.load(RelVersion(binary.BigEndian.Uint32(k[1:])), slices.Clone(v))
}

// loadTxn adds a recovered transaction to its chain.
func (s *Spool) loadTxn(id dtx.SpoolID, c dtx.Content, st stored, state uint32) *lane {
	n, off := splitID(id)
	l := s.lane(c)
	ch := l.chains[n]
	if ch == nil {
		ch = &chain{num: n}
		l.chains[n] = ch
	}
	ch.txns = append(ch.txns, uint32(off)|state)
	ch.live++
	ch.bytes += st.size
	ch.disk += st.size
	l.bytes += st.size
	if n.class() == classOwn && state == txnReadable {
		ch.aborted = st.aborted
	}
	return l
}

func (s *Spool) loadPart(r *Recovered, k, v []byte) error {
	c, id, ok := parseTxnKey(k)
	p, st, err := decodePart(v)
	if err != nil || !ok {
		return keyFault(err, "part record")
	}
	p.Content, p.Spool = c, id
	l := s.loadTxn(id, c, st, txnReadable)
	l.parts++
	s.space.add(st.size, 1)
	r.Parts[c] = append(r.Parts[c], p)
	return nil
}

func (s *Spool) loadEmpty(r *Recovered, k, v []byte) error {
	p, _, err := decodePart(v)
	if err != nil || len(k) != 11 {
		return keyFault(err, "part record")
	}
	p.Content = contentAt(k[1:])
	s.lane(p.Content).empties.add(p.EndLSN)
	r.Parts[p.Content] = append(r.Parts[p.Content], p)
	return nil
}

// adopt puts the recovered chains in order.
func (s *Spool) adopt() {
	for _, l := range s.allLanes() {
		for _, c := range l.chains {
			slices.SortFunc(c.txns, func(a, b uint32) int { return cmp.Compare(a&txnOffset, b&txnOffset) })
			o := &l.order[c.num.class()]
			o.list = append(o.list, c)
		}
		for k := range l.order {
			slices.SortFunc(l.order[k].list, func(a, b *chain) int { return cmp.Compare(a.num, b.num) })
		}
	}
}

// dropRepeats sorts the parts, and keeps the last one of those with the same end
// LSN: a stream whose saved position is behind its parts sends them again.
func (s *Spool) dropRepeats(ctx context.Context, r *Recovered) error {
	var repeats []dtx.Part
	for c, ps := range r.Parts {
		slices.SortFunc(ps, func(a, b dtx.Part) int {
			return cmp.Or(cmp.Compare(a.EndLSN, b.EndLSN), cmp.Compare(a.Spool, b.Spool))
		})
		keep := ps[:0]
		for i, p := range ps {
			if i+1 == len(ps) || ps[i+1].EndLSN != p.EndLSN {
				keep = append(keep, p)
			} else {
				repeats = append(repeats, p)
			}
		}
		r.Parts[c] = keep
	}
	err := s.db.update(ctx, false, func(b *pebble.Batch) (err error) {
		for _, p := range repeats {
			key := appendTxnKey(nil, prefixPart, p.Content, p.Spool)
			if p.Spool == 0 {
				key = appendEmptyKey(nil, p.Content, p.EndLSN)
			}
			err = errors.Join(err, b.Delete(key, nil))
		}
		return err
	})
	if err != nil {
		return err
	}
	return s.Release(repeats)
}

// dropOrphans deletes the blocks of chains that no part needs. It looks for them by seeking from live chain to live chain.
func (s *Spool) dropOrphans(ctx context.Context) error {
	return s.db.update(ctx, false, func(b *pebble.Batch) error {
		it, err := s.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: []byte{prefixData}, UpperBound: []byte{prefixData + 1}})
		if err != nil {
			return err
		}
		for ok := it.First(); ok && err == nil; {
			k := it.Key()
			if len(k) != dataKeyLen {
				err = keyFault(nil, "block")
				break
			}
			c, n := contentAt(k[1:]), chainNum(binary.BigEndian.Uint64(k[4:]))
			end := rangeBound(prefixData, c, n.class(), n+1)
			if l := s.lookup(c); l == nil || l.chains[n] == nil {
				err = b.DeleteRange(slices.Clone(k), end, nil)
			}
			ok = it.SeekGE(end)
		}
		return errors.Join(err, it.Close())
	})
}
