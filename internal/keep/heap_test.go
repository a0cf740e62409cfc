package keep

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheHeapKeepsItsOrderAndItsPlaces(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	h := heap{placed: true}
	at := map[*Entry]int64{}
	for range 1000 {
		switch n := h.len(); {
		case n == 0 || n < 100 && r.IntN(5) < 2:
			e := new(Entry)
			at[e] = r.Int64N(100)
			h.push(at[e], e)
		case r.IntN(2) == 0:
			e := h.slots[r.IntN(n)].e
			at[e] = r.Int64N(100)
			h.move(e.pos, at[e])
		default:
			e := h.slots[r.IntN(n)].e
			require.Same(t, e, h.remove(e.pos))
			require.Zero(t, e.pos)
			delete(at, e)
		}
		require.Len(t, at, h.len())
		for i, slot := range h.slots {
			require.Equal(t, i+1, slot.e.pos)
			require.Equal(t, at[slot.e], slot.at)
			require.LessOrEqual(t, h.slots[max(i-1, 0)/4].at, slot.at)
		}
	}
	last := int64(0)
	for h.len() > 0 {
		next := h.slots[0].at
		require.GreaterOrEqual(t, next, last)
		last = next
		h.remove(1)
	}
}
