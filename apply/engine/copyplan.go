package engine

import (
	"slices"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
)

// CopyPlan says where the rows of a source table go when they are copied as a whole:
// to the same table, columns and segments as its changes.
func (e *Engine) CopyPlan(src catalog.Name) (apply.CopyPlan, error) {
	bad := func(msg, hint string) (apply.CopyPlan, error) {
		return apply.CopyPlan{}, &dtx.Error{Op: "match tables", Relation: src.String(), Msg: msg, Hint: hint, Class: dtx.ClassStop}
	}
	pub := e.sources[src]
	if pub == nil {
		return bad("the source does not publish it", "Add it to the publication on every node")
	}
	var t *table
	for _, n := range e.names.Candidates(pub) {
		if t = e.tables[n]; t != nil {
			break
		}
	}
	sh, _, err := t.newShape(e.published(pub), pub)
	if err != nil {
		return apply.CopyPlan{}, err
	}
	if len(sh.cols) == 0 {
		return bad("it publishes no column that the target has", "Publish columns, or take it out of the publication")
	}
	p := apply.CopyPlan{Table: t.Table, Segments: t.segs}
	var key []int // source columns
	place, fixed := t.fixed()
	switch {
	case fixed:
		if p.Fixed = place; place == everywhere {
			p.Fixed = apply.Everywhere
		}
	case t.place == placeRandom:
		key = sh.place
	default:
		key = sh.dist
	}
	if len(key) > 0 {
		p.Key, p.Place = len(key), t.route
	}
	for s := range sh.cols {
		if !slices.Contains(key, s) {
			key = append(slices.Clip(key), s)
		}
	}
	for _, s := range key {
		p.Cols = append(p.Cols, sh.cols[s])
		p.Columns = append(p.Columns, t.Columns[sh.cols[s]].Name)
	}
	return p, nil
}
