package apply

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"cbrepl/catalog"
	"cbrepl/dtx"
)

// NameMap says which target table a source table's rows go to. A rule for the
// table wins over one for its schema; without a rule the name stays.
type NameMap struct {
	Schemas map[string]string
	Tables  map[catalog.Name]catalog.Name
}

// Target returns the target name of a source table by the rules alone.
func (m *NameMap) Target(src catalog.Name) catalog.Name {
	if t, ok := m.Tables[src]; ok {
		return t
	}
	if s, ok := m.Schemas[src.Schema]; ok {
		return catalog.Name{Schema: s, Table: src.Table}
	}
	return src
}

// Candidates returns the target names for a source table, best first: its own
// and, for a partition leaf without a rule of its own, that of its root. The
// first that exists on the target is taken: a leaf's rows belong to its root,
// however the target partitions that.
func (m *NameMap) Candidates(t *catalog.PublishedTable) []catalog.Name {
	own := t.QualifiedName()
	out := []catalog.Name{m.Target(own)}
	if _, ruled := m.Tables[own]; !ruled && t.Root != "" {
		if schema, name, ok := strings.Cut(t.Root, "."); ok {
			out = append(out, m.Target(catalog.Name{Schema: schema, Table: name}))
		}
	}
	return out
}

// Validate reports every rule that cannot be meant.
func (m *NameMap) Validate() error {
	var errs []error
	for _, from := range slices.Sorted(maps.Keys(m.Schemas)) {
		if from == "" || m.Schemas[from] == "" {
			errs = append(errs, fmt.Errorf("schema rule %q to %q: both sides need a name", from, m.Schemas[from]))
		}
	}
	for from, to := range m.Tables {
		if from.Schema == "" || from.Table == "" || to.Schema == "" || to.Table == "" {
			errs = append(errs, fmt.Errorf("table rule %s to %s: both sides need schema and table", from, to))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return &dtx.Error{Op: "read name rules", Err: errors.Join(errs...), Class: dtx.ClassStop}
}
