package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// peers are the columns of other libraries, each of which has a page's worth of users to move.
func peers() []column {
	return slices.DeleteFunc(columns(), func(c column) bool {
		return !slices.Contains([]string{"redsync", "redislock", "rueidislock"}, c.name)
	})
}

// What docs/migrating.md says of a rolling deploy: as long as both use the same key, each of them sees the other's lock.
func TestLeaseholdAndItsPeersExcludeEachOtherOnOneKey(t *testing.T) {
	t.Parallel()
	s := testServer(t)
	require.Len(t, peers(), 3)
	for _, peer := range peers() {
		t.Run(peer.name, func(t *testing.T) {
			ctx, key := t.Context(), peer.redisKey("k")
			theirs, ours := open(t, s, peer, ttl), open(t, s, leaseholdColumn("leasehold", true), ttl)
			held, err := theirs.TryLock(ctx, "k")
			require.NoError(t, err)
			_, err = ours.TryLock(ctx, key)
			require.ErrorIs(t, err, errHeld)
			require.NoError(t, held.Unlock(ctx))

			held, err = ours.TryLock(ctx, key)
			require.NoError(t, err)
			_, err = theirs.TryLock(ctx, "k")
			require.ErrorIs(t, err, errHeld)
			require.Equal(t, int64(1), s.admin.Exists(ctx, key).Val(), "their refused attempt has not touched it")
			require.NoError(t, held.Unlock(ctx))
			held, err = theirs.TryLock(ctx, "k")
			require.NoError(t, err)
			require.NoError(t, held.Unlock(ctx))

			var inside, overlaps, sections atomic.Int64
			until, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			var all sync.WaitGroup
			for i := range 6 {
				client, name := theirs, "k"
				if i%2 == 0 {
					client, name = ours, key
				}
				all.Go(func() {
					for until.Err() == nil {
						l, err := client.Lock(until, name)
						if err != nil {
							continue
						}
						if inside.Add(1) > 1 {
							overlaps.Add(1)
						}
						sections.Add(1)
						<-time.After(time.Millisecond) // time for somebody else to be seen
						inside.Add(-1)
						assert.NoError(t, l.Unlock(context.WithoutCancel(ctx)))
					}
				})
			}
			all.Wait()
			assert.Zero(t, overlaps.Load())
			assert.Positive(t, sections.Load())
		})
	}
}
