package pgside

import (
	"fmt"
	"strconv"

	"cbrepl/dtx"
	"cbrepl/source"
	"cbrepl/target"
)

// CheckTypes reports columns whose values would not come through unchanged.
// typeNames are the target's types as format_type prints them, baseNames the same
// with domains looked through, both by column of t. Missing columns are the
// engine's to report.
func CheckTypes(op, hint string, src *source.Table, t *target.Table, typeNames, baseNames []string) []error {
	var errs []error
	for i := range src.Columns {
		col := &src.Columns[i]
		c := t.Column(col.Name)
		if c < 0 || col.Generated || t.Columns[c].Generated {
			continue
		}
		ok, why := RoundTrips(col.TypeName, baseNames[c])
		if !ok { // the source's domain under its own name
			ok, _ = RoundTrips(col.TypeName, typeNames[c])
		}
		if !ok {
			errs = append(errs, &dtx.Error{
				Op: op, Relation: t.String(), Hint: hint, Class: dtx.ClassStop,
				Msg: fmt.Sprintf("column %s is %s on the source table %s and %s on the target: %s",
					strconv.Quote(col.Name), col.TypeName, src, typeNames[c], why),
			})
		}
	}
	return errs
}

// CheckBatch refuses a batch that does not follow from what is recorded: last is
// the number of the last batch, at tells the position of a content, if it has one.
func CheckBatch(op string, b *dtx.Batch, initialized bool, last uint64, at func(dtx.Content) (dtx.LSN, bool)) error {
	refuse := func(format string, args ...any) error {
		return &dtx.Error{
			Op: op, Msg: fmt.Sprintf(format, args...), Class: dtx.ClassStop,
			Hint: "This is a fault of cbrepl; nothing is applied",
		}
	}
	if !initialized {
		return refuse("batch %d of a subscription without first positions", b.Seq)
	}
	if b.Seq != last+1 {
		return refuse("batch %d does not follow batch %d", b.Seq, last)
	}
	for _, p := range b.Positions {
		lsn, ok := at(p.Content)
		if !ok {
			return refuse("batch %d moves a stream of content %d, which the subscription does not have", b.Seq, p.Content)
		}
		if p.LSN < lsn {
			return refuse("batch %d moves content %d back from %s to %s", b.Seq, p.Content, lsn, p.LSN)
		}
	}
	return nil
}
