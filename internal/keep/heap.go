package keep

import "time"

// heap orders entries by a time: each parent is no later than its four children. It is not
// container/heap, which follows a pointer for each comparison: that was a quarter of what a renewal
// of many leases cost. Four children stand side by side in memory, and half as many entries move.
type heap struct {
	slots []slot
	// placed: the entries know their places. That is so in the heap of the Keeper, and not in those
	// of lanes, since an entry has room for one place.
	placed bool
}

// slot is an entry and its time, in ns since the keeper began. The time stands here, beside its
// neighbours' times, and not in the entry.
type slot struct {
	at int64
	e  *Entry
}

func (h *heap) len() int { return len(h.slots) }

// push adds an entry. In a heap whose entries know their places it must not be there yet.
func (h *heap) push(at int64, e *Entry) {
	h.slots = append(h.slots, slot{at, e})
	h.up(len(h.slots) - 1)
}

// move gives the entry at pos another time. Places count from 1, so that the zero Entry is in no
// heap.
func (h *heap) move(pos int, at int64) {
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

// remove takes out the entry at pos. The last slot takes its place, and moves to where its time
// belongs.
func (h *heap) remove(pos int) *Entry {
	i, last := pos-1, len(h.slots)-1
	e := h.slots[i].e
	moved := h.slots[last]
	h.slots[last] = slot{}
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
	if h.placed {
		e.pos = 0
	}
	return e
}

// up moves a slot towards the root until its parent is no later.
func (h *heap) up(i int) {
	moved := h.slots[i]
	for i > 0 {
		parent := (i - 1) / 4
		if h.slots[parent].at <= moved.at {
			break
		}
		h.set(i, h.slots[parent])
		i = parent
	}
	h.set(i, moved)
}

// down moves a slot away from the root until its children are no earlier.
func (h *heap) down(i int) {
	moved := h.slots[i]
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
		if moved.at <= h.slots[child].at {
			break
		}
		h.set(i, h.slots[child])
		i = child
	}
	h.set(i, moved)
}

// set puts a slot at a place, and tells its entry.
func (h *heap) set(i int, s slot) {
	h.slots[i] = s
	if h.placed {
		s.e.pos = i + 1
	}
}

// since returns the time that heaps go by: an integer is compared faster than a time.Time, and is a
// third of its size.
func since(epoch, t time.Time) int64 { return int64(t.Sub(epoch)) }
