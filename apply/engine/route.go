package engine

import (
	"cbrepl/dtx"
	"cbrepl/pgoutput"
)

// fixed is the place of every row of a table where no value decides it.
func (t *table) fixed() (place int, ok bool) {
	if t.place == placeReplicated {
		return everywhere, true
	}
	return 0, t.place == placeServer || len(t.segs) == 1
}

// segment says where a row lives on the target: a segment's index, everywhere,
// or somewhere when a column that decides is not known.
func (r *run) segment(t *table, vals []pgoutput.Value) (int, error) {
	if place, ok := t.fixed(); ok {
		return place, nil
	}
	cols := t.shape.dist
	if t.place == placeRandom {
		cols = t.shape.place
	}
	key := r.key[:0]
	for _, c := range cols {
		switch vals[c].Kind {
		case pgoutput.ValueUnchanged:
			return somewhere, nil
		case pgoutput.ValueNull:
			key = append(key, nil)
		default:
			key = append(key, vals[c].Data)
		}
	}
	r.key = key
	return t.route(key)
}

// route finds the segment of a key's values.
func (t *table) route(key [][]byte) (int, error) {
	if t.place == placeRandom {
		return int(t.router.SegmentOfIdentity(key)), nil
	}
	seg, err := t.router.Segment(key)
	if err != nil {
		return 0, dtx.AtRelation(err, t.String())
	}
	return int(seg), nil
}

// segmentOfNew is segment for a complete row.
func (r *run) segmentOfNew(t *table, vals []pgoutput.Value, part int32) (int, error) {
	seg, err := r.segment(t, vals)
	if err != nil {
		return 0, r.at(part, err)
	}
	if seg == somewhere {
		return 0, r.at(part, &dtx.Error{
			Op: "apply rows", Relation: t.String(), Class: dtx.ClassStop,
			Msg: "the row's segment cannot be told: a column of the distribution key was not sent and is not known",
		})
	}
	return seg, nil
}
