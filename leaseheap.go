package leasehold

import "time"

// leaseHeap is a heap of leases by a time: each parent is no later than its four children. container/heap has to follow a
// pointer for each comparison; of what a renewal of many leases cost, that was a quarter. Four children stand side by side
// in memory, and half as many leases move.
type leaseHeap struct {
	slots  []leaseSlot
	placed func(x *Lease, pos int) // told of every move: pos counts from 1, 0 is out; nil if nobody wants to know
}

// leaseSlot is a lease and its time, in ns since the keeper began.
type leaseSlot struct {
	at int64
	x  *Lease
}

func (h *leaseHeap) len() int { return len(h.slots) }

// push adds a lease.
func (h *leaseHeap) push(at int64, x *Lease) {
	h.slots = append(h.slots, leaseSlot{at, x})
	h.up(len(h.slots) - 1)
}

// move gives the lease at pos another time.
func (h *leaseHeap) move(pos int, at int64) {
	i := pos - 1
	before := h.slots[i].at
	h.slots[i].at = at
	switch {
	case at < before:
		h.up(i)
	case at > before:
		h.down(i)
	}
}

// remove takes out the lease at pos.
func (h *leaseHeap) remove(pos int) *Lease {
	i, last := pos-1, len(h.slots)-1
	x := h.slots[i].x
	moved := h.slots[last]
	h.slots[last] = leaseSlot{}
	h.slots = h.slots[:last]
	if i < last {
		before := h.slots[i].at
		h.slots[i] = moved
		if moved.at < before {
			h.up(i)
		} else {
			h.down(i)
		}
	}
	if h.placed != nil {
		h.placed(x, 0)
	}
	return x
}

// up moves a slot towards the root until its parent is no later.
func (h *leaseHeap) up(i int) {
	slot := h.slots[i]
	for i > 0 {
		parent := (i - 1) / 4
		if h.slots[parent].at <= slot.at {
			break
		}
		h.set(i, h.slots[parent])
		i = parent
	}
	h.set(i, slot)
}

// down moves a slot away from the root until its children are no earlier.
func (h *leaseHeap) down(i int) {
	slot := h.slots[i]
	for {
		child := 4*i + 1
		if child >= len(h.slots) {
			break
		}
		for next := child + 1; next < min(4*i+5, len(h.slots)); next++ {
			if h.slots[next].at < h.slots[child].at {
				child = next
			}
		}
		if slot.at <= h.slots[child].at {
			break
		}
		h.set(i, h.slots[child])
		i = child
	}
	h.set(i, slot)
}

func (h *leaseHeap) set(i int, slot leaseSlot) {
	h.slots[i] = slot
	if h.placed != nil {
		h.placed(slot.x, i+1)
	}
}

// since is the time that heaps go by.
func since(epoch, t time.Time) int64 { return int64(t.Sub(epoch)) }
