package line

import (
	"container/list"
	"context"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The turn comes and the context ends at the same instant: the turn is not lost.
func TestATurnThatMeetsACancelGoesToTheNext(t *testing.T) {
	for range 30 {
		synctest.Test(t, func(t *testing.T) {
			var g gates
			none := make(chan struct{})
			enter := func(ctx context.Context) error { _, err := g.enter(ctx, none, "k"); return err }
			require.NoError(t, enter(t.Context()))
			ctx, cancel := context.WithCancel(t.Context())
			first, second := make(chan error, 1), make(chan error, 1)
			go func() { first <- enter(ctx) }()
			synctest.Wait()
			go func() { second <- enter(t.Context()) }()
			synctest.Wait()
			cancel()
			g.leave("k") // most often before the first has got to leave the line
			if <-first == nil {
				g.leave("k")
			}
			require.NoError(t, <-second)
			g.leave("k")
			assert.Empty(t, g.keys)
		})
	}
}

// Eight times as many waiters that give up at once take eight times as long, not sixty-four. Those behind give up first, which takes
// longest where each is searched for from the front. A busy machine is given several chances.
func TestGivingUpAtAGateTakesNoLongerForTheManyBehindIt(t *testing.T) {
	took := func(n int) time.Duration {
		var g gates
		require.Nil(t, g.queue("k"))
		turns := make([]*list.Element, n)
		for i := range turns {
			turns[i] = g.queue("k")
		}
		begun := time.Now()
		for _, turn := range slices.Backward(turns) {
			_ = g.giveUp("k", turn)
		}
		defer func() { g.leave("k"); require.Empty(t, g.keys) }()
		return time.Since(begun)
	}
	var few, many []time.Duration
	for begun := time.Now(); time.Since(begun) < 5*time.Second; {
		few, many = append(few, took(10_000)), append(many, took(80_000))
		if slices.Min(many) < 24*slices.Min(few) {
			return
		}
	}
	t.Errorf("10,000 take %v, 80,000 take %v", slices.Min(few), slices.Min(many))
}

func TestTheGateKeepsNothingOfAKeyThatNobodyWaitsFor(t *testing.T) {
	var g gates
	for i := range 100_000 {
		key := strconv.Itoa(i)
		_, err := g.enter(t.Context(), nil, key)
		require.NoError(t, err)
		g.leave(key)
	}
	assert.Empty(t, g.keys)
}
