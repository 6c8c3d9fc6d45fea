package store

import (
	"fmt"
	"sync"
	"sync/atomic"

	"cbrepl/pgoutput"
)

// RelVersion names one relation message of a spool. Identical messages have the
// same version, whichever content sent them. 0 is no version.
type RelVersion uint32

// relations keeps every relation version: parsed once, at a stable address, so
// that consumers may cache what they derive by pointer. Versions live as long
// as the spool.
type relations struct {
	mu    sync.Mutex
	byRaw map[string]RelVersion
	// list is indexed by version-1 and replaced as a whole: reads take no lock.
	list atomic.Pointer[[]*pgoutput.Relation]
}

func newRelations() *relations {
	r := &relations{byRaw: map[string]RelVersion{}}
	r.list.Store(&[]*pgoutput.Relation{})
	return r
}

// get returns the relation of a version, or nil.
func (r *relations) get(v RelVersion) *pgoutput.Relation {
	l := *r.list.Load()
	if v == 0 || int(v) > len(l) {
		return nil
	}
	return l[v-1]
}

// put returns the version of raw; persist is called with a new version before
// anybody can see it.
func (r *relations) put(raw []byte, persist func(RelVersion) error) (RelVersion, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v, ok := r.byRaw[string(raw)]; ok {
		return v, nil
	}
	rel, err := pgoutput.ParseRelation(raw)
	if err != nil {
		return 0, err
	}
	v := RelVersion(len(*r.list.Load()) + 1)
	if err := persist(v); err != nil {
		return 0, err
	}
	r.insert(raw, rel)
	return v, nil
}

// insert requires mu.
func (r *relations) insert(raw []byte, rel *pgoutput.Relation) {
	old := *r.list.Load()
	l := append(old, rel) // readers of old do not look behind its length
	r.list.Store(&l)
	r.byRaw[string(raw)] = RelVersion(len(l))
}

// load adds a version read from disk; versions come in order.
func (r *relations) load(v RelVersion, raw []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if want := RelVersion(len(*r.list.Load()) + 1); v != want {
		return fmt.Errorf("%w: relation version %d where %d was expected", errCorrupt, v, want)
	}
	rel, err := pgoutput.ParseRelation(raw)
	if err != nil {
		return fmt.Errorf("%w: relation version %d: %w", errCorrupt, v, err)
	}
	r.insert(raw, rel)
	return nil
}
