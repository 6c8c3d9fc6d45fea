package store

import (
	"cmp"
	"slices"
	"sort"
	"sync"

	"cbrepl/dtx"
)

// lane is everything of one content: its chains and what is dead among them.
type lane struct {
	content dtx.Content

	mu     sync.Mutex
	chains map[chainNum]*chain
	order  [classes]chainOrder
	open   int // transactions begun and not ended
	parts  int // committed parts with rows, not released
	bytes  int64
	// blocked counts writers held back by a full spool.
	blocked int
	// held is the block last lent by Pebble that several transactions share, the
	// first of chain heldOf.
	held   *heldBlock
	heldOf chainNum
	// empties orders the end LSNs of unreleased parts without rows (Spooled).
	empties lsnOrder
}

// chain is a sequence of blocks; see the package comment. Fields are guarded by
// the lane's mu.
type chain struct {
	num chainNum
	// txns holds the offset of every transaction of the chain, ascending; the
	// upper bits say what became of it.
	txns []uint32
	live int // transactions open, prepared or unreleased
	// growing is set while the chain may get more transactions or blocks.
	growing bool
	dead    bool
	pins    int   // readers
	bytes   int64 // all blocks
	disk    int64 // blocks in Pebble
	// mem holds the blocks in memory, ascending. tail is the readable part of
	// the block under construction.
	mem  []memBlock
	tail memBlock
	// aborted lists rolled back subtransactions of an own chain, ascending once
	// the transaction has committed.
	aborted []dtx.XID
}

type memBlock struct {
	off uint64
	buf []byte
	// reserved is what the block takes of the memory tier.
	reserved int
}

// State bits of chain.txns entries, above the offset.
const (
	txnReadable = 1 << 30
	txnReleased = 1 << 31
	txnOffset   = 1<<offsetBits - 1
)

// find returns the index of the transaction at off.
func (c *chain) find(off int) (int, bool) {
	i := sort.Search(len(c.txns), func(i int) bool { return int(c.txns[i]&txnOffset) >= off })
	return i, i < len(c.txns) && int(c.txns[i]&txnOffset) == off
}

// block returns the block that starts at off when it is in memory.
func (c *chain) block(off uint64) ([]byte, bool) {
	i := sort.Search(len(c.mem), func(i int) bool { return c.mem[i].off >= off })
	if i < len(c.mem) && c.mem[i].off == off {
		return c.mem[i].buf, true
	}
	if c.tail.buf != nil && c.tail.off == off {
		return c.tail.buf, true
	}
	return nil, false
}

// chainOrder lists a class's chains in rising order, dead ones included until
// they are deleted on disk.
type chainOrder struct {
	list []*chain
	// low is the number below which nothing is left on disk.
	low chainNum
	// dead counts the dead chains in list.
	dead int
}

// died notes that another chain of the list is dead. Dead chains in front that
// were never on disk leave the list at once; when most of the list is dead,
// runs are drawn together, so that it stays in proportion to the live ones.
func (o *chainOrder) died() {
	o.dead++
	i := 0
	for i < len(o.list) && o.list[i].dead && o.list[i].disk == 0 {
		o.list[i] = nil
		i++
	}
	o.list, o.dead = o.list[i:], o.dead-i
	if o.dead <= 128+len(o.list)*3/4 {
		return
	}
	keep := o.list[:0]
	o.dead = 0
	for i, c := range o.list {
		switch n := len(keep); {
		case !c.dead:
		case i > 0 && n > 0 && keep[n-1].dead:
			keep[n-1].num = c.num // a run is known by its last number
			keep[n-1].disk += c.disk
			continue
		default:
			o.dead++
		}
		keep = append(keep, c)
	}
	clear(o.list[len(keep):])
	o.list = keep
}

// deadRun is a range of dead chains of one class, end exclusive. The bounds need
// not be numbers of chains of that class.
type deadRun struct {
	class      class
	start, end chainNum
	bytes      int64
}

// takeDead removes runs of dead chains with at least so many bytes on disk and
// returns them. They reach from neighbour to neighbour, over numbers that are
// not used in this lane, so that freed ranges join and cover whole tables.
func (o *chainOrder) takeDead(least int64) (out []deadRun) {
	if o.dead == 0 {
		return nil
	}
	keep := o.list[:0]
	for i := 0; i < len(o.list); {
		if !o.list[i].dead {
			keep = append(keep, o.list[i])
			i++
			continue
		}
		j := i
		r := deadRun{class: o.list[i].num.class(), start: o.low}
		for ; j < len(o.list) && o.list[j].dead; j++ {
			r.bytes += o.list[j].disk
			r.end = o.list[j].num + 1
		}
		front := len(keep) == 0
		if !front {
			r.start = keep[len(keep)-1].num + 1
		}
		if j < len(o.list) {
			r.end = o.list[j].num
		}
		if r.bytes > 0 && r.bytes < least {
			keep = append(keep, o.list[i:j]...)
			i = j
			continue
		}
		o.dead -= j - i
		i = j
		if r.bytes == 0 { // was in memory only
			continue
		}
		out = append(out, r)
		if front {
			o.low = r.end
		}
	}
	clear(o.list[len(keep):])
	o.list = keep
	return out
}

// lsnOrder lists the LSNs of parts without rows, ascending, released ones
// included until they are deleted on disk.
type lsnOrder struct {
	list []emptyPart
	dead int
}

type emptyPart struct {
	lsn  dtx.LSN
	dead bool
}

// add adds l, or revives it: a part may be given up and spooled again.
func (o *lsnOrder) add(l dtx.LSN) {
	if n := len(o.list); n > 0 && o.list[n-1].lsn >= l {
		i, ok := slices.BinarySearchFunc(o.list, l, emptyPart.compare)
		if !ok {
			o.list = slices.Insert(o.list, i, emptyPart{lsn: l})
		} else if o.list[i].dead {
			o.list[i].dead = false
			o.dead--
		}
		return
	}
	o.list = append(o.list, emptyPart{lsn: l})
}

// release marks l dead.
func (o *lsnOrder) release(l dtx.LSN) {
	i, ok := slices.BinarySearchFunc(o.list, l, emptyPart.compare)
	if ok && !o.list[i].dead {
		o.list[i].dead = true
		o.dead++
	}
}

// takeDead removes the dead and returns them as inclusive ranges.
func (o *lsnOrder) takeDead() [][2]dtx.LSN {
	var out [][2]dtx.LSN
	keep := o.list[:0]
	for i := 0; i < len(o.list); {
		if !o.list[i].dead {
			keep = append(keep, o.list[i])
			i++
			continue
		}
		j := i
		for ; j < len(o.list) && o.list[j].dead; j++ {
		}
		out = append(out, [2]dtx.LSN{o.list[i].lsn, o.list[j-1].lsn})
		i = j
	}
	o.list, o.dead = keep, 0
	return out
}

func (e emptyPart) compare(l dtx.LSN) int { return cmp.Compare(e.lsn, l) }
