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
	// low is the chain below which nothing is left on disk.
	low chainNum
	// dead counts the dead chains in list.
	dead int
}

// died notes that c, a chain of the list, is dead. Dead chains that were never
// on disk leave the list at once when they are at its front, which is where
// chains mostly die, and otherwise when they are half of it.
func (o *chainOrder) died(c *chain) {
	o.dead++
	i := 0
	for i < len(o.list) && o.list[i].dead && o.list[i].disk == 0 {
		o.list[i] = nil
		i++
	}
	o.list, o.dead = o.list[i:], o.dead-i
	if c.disk == 0 && o.dead > 32 && o.dead > len(o.list)/2 {
		o.list = slices.DeleteFunc(o.list, func(c *chain) bool {
			gone := c.dead && c.disk == 0
			if gone {
				o.dead--
			}
			return gone
		})
	}
}

// chainRange is a range of dead chains of one class, end exclusive. The bounds
// need not be numbers of chains of that class.
type chainRange struct {
	class      class
	start, end chainNum
}

// takeDead removes dead chains and returns the ranges to delete on disk: the
// front, and runs in the middle of at least min bytes. Ranges reach from
// neighbour to neighbour, over numbers never used in this lane, so that
// tombstones join and cover whole tables.
func (o *chainOrder) takeDead(min int64) (out []chainRange, chains int, bytes int64) {
	if o.dead == 0 {
		return nil, 0, 0
	}
	keep := o.list[:0]
	for i := 0; i < len(o.list); {
		if !o.list[i].dead {
			keep = append(keep, o.list[i])
			i++
			continue
		}
		j, disk := i, int64(0)
		for ; j < len(o.list) && o.list[j].dead; j++ {
			disk += o.list[j].disk
		}
		r := chainRange{o.list[i].num.class(), o.low, o.list[j-1].num + 1}
		front := len(keep) == 0
		if !front {
			r.start = keep[len(keep)-1].num + 1
		}
		if j < len(o.list) {
			r.end = o.list[j].num
		}
		switch {
		case disk == 0: // was in memory only
			o.dead -= j - i
		case front || disk >= min:
			out = append(out, r)
			o.dead -= j - i
			bytes += disk
			for _, c := range o.list[i:j] {
				if c.disk > 0 {
					chains++
				}
			}
			if front {
				o.low = r.end
			}
		default:
			keep = append(keep, o.list[i:j]...)
		}
		i = j
	}
	clear(o.list[len(keep):])
	o.list = keep
	return out, chains, bytes
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

func (o *lsnOrder) add(l dtx.LSN) {
	if n := len(o.list); n > 0 && o.list[n-1].lsn >= l {
		i, ok := slices.BinarySearchFunc(o.list, l, emptyPart.compare)
		if !ok {
			o.list = slices.Insert(o.list, i, emptyPart{lsn: l})
		}
		return
	}
	o.list = append(o.list, emptyPart{lsn: l})
}

// release marks l dead and reports whether it was alive.
func (o *lsnOrder) release(l dtx.LSN) bool {
	i, ok := slices.BinarySearchFunc(o.list, l, emptyPart.compare)
	if !ok || o.list[i].dead {
		return false
	}
	o.list[i].dead = true
	o.dead++
	return true
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
