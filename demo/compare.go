package demo

import (
	"context"
	"strings"

	"cbrepl/lab"
)

// compare compares every table of the workload with the source's, row by row, and
// checks where the target's rows are.
func compare(ctx context.Context, src origin, dst destination) (lab.Report, error) {
	var rep lab.Report
	for _, t := range lab.WorkloadTables() {
		r := lab.TableReport{Table: t.Name}
		want, err := src.rows(ctx, t.Name)
		if err != nil {
			return rep, err
		}
		have, err := dst.rows(ctx, t.Name)
		if err != nil {
			return rep, err
		}
		r.SourceRows, r.TargetRows = int64(len(want)), int64(len(have))
		r.Missing, r.Extra = differ(want, have)
		if r.Misplaced, err = dst.misplaced(ctx, t.Name, want); err != nil {
			return rep, err
		}
		rep.Tables = append(rep.Tables, r)
	}
	return rep, nil
}

// differ counts what stands in one of two sorted lists only.
func differ(want, have []string) (missing, extra int64) {
	for len(want) > 0 && len(have) > 0 {
		switch d := strings.Compare(want[0], have[0]); {
		case d == 0:
			want, have = want[1:], have[1:]
		case d < 0:
			missing++
			want = want[1:]
		default:
			extra++
			have = have[1:]
		}
	}
	return missing + int64(len(want)), extra + int64(len(have))
}
