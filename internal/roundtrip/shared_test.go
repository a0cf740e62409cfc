package roundtrip

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// name is the key of a value in a caller's context, as a span is one.
type name struct{}

func TestARoundTripKnowsTheContextsOfItsCallers(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		type trip struct {
			own     any   // the name in the context of the round trip itself
			callers []any // the names in the contexts of those who share it
		}
		trips := make(chan trip, 4)
		kept := make(chan []context.Context, 4)
		b.trips.SetBefore(func(ctx context.Context, _ []redis.Cmder) error {
			below, cancel := context.WithCancel(ctx) // as an instrumented client makes one
			defer cancel()
			callers := Callers(below)
			seen := trip{own: ctx.Value(name{})}
			for _, c := range callers {
				seen.callers = append(seen.callers, c.Value(name{}))
			}
			trips <- seen
			kept <- callers
			return nil
		})
		of := func(who string) context.Context { return context.WithValue(t.Context(), name{}, who) }

		release := b.trips.Hold(2)
		var all []<-chan outcome
		for _, who := range []string{"ann", "bob", "cid", "dee"} {
			all = append(all, b.send(of(who), who, enough))
		}
		release()
		for _, out := range all {
			requireGranted(t, <-out)
		}
		assert.Equal(t, trip{own: "ann"}, <-trips)
		assert.Equal(t, trip{own: "bob"}, <-trips)
		assert.Equal(t, trip{callers: []any{"cid", "dee"}}, <-trips)

		for range 2 {
			assert.Nil(t, <-kept)
		}
		for _, c := range <-kept {
			_, bounded := c.Deadline()
			assert.False(t, bounded)
			require.NoError(t, c.Err(), "a caller that leaves ends no round trip")
		}
	})
}

func TestALoneCommandToASilentServerHasTheContextOfItsCaller(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		b.c.sender.silent = time.Now().Add(-2 * silence)
		b.c.sender.scouted = time.Now() // so that it is sent at once, and as a pipeline
		own := make(chan any, 1)
		b.trips.SetBefore(func(ctx context.Context, _ []redis.Cmder) error {
			own <- ctx.Value(name{})
			return nil
		})
		requireGranted(t, <-b.send(context.WithValue(t.Context(), name{}, "ann"), "k", enough))
		assert.Equal(t, "ann", <-own)
	})
}
