package election_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redis/go-redis/v9"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/election"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// Three candidates: some of their terms end by a resignation, the others since the leader is cut off. No term may begin before
// the one before is over by its own leader's reckoning, and the numbers rise.
func TestCandidatesOnARealServerLeadOneAfterTheOther(t *testing.T) {
	t.Parallel()
	const ttl, terms = 400 * time.Millisecond, 10
	server := redistest.Server(t)
	var b book
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 3)
	for i := range 3 {
		who := fmt.Sprint("candidate ", i)
		proxy := redistest.Proxy(t, server.Addr())
		client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), DialTimeout: ttl, ReadTimeout: ttl})
		locker := leasehold.New(client, leasehold.WithOwner(who))
		t.Cleanup(func() { _, _ = locker.Close(), client.Close() })
		go func() {
			done <- election.Run(ctx, locker, "k", ttl, b.lead(who, func(ctx context.Context, _ *leasehold.Lease) error {
				if len(b.read())%2 == 0 {
					select {
					case <-ctx.Done():
					case <-time.After(rand.N(ttl)):
					}
					return election.ErrResign
				}
				proxy.BlackHole()
				<-ctx.Done()
				proxy.Refuse() // what it has swallowed stays lost
				proxy.Pass()
				return context.Cause(ctx)
			}))
		}()
	}
	watcher := leasehold.New(server.Client())
	defer watcher.Close()
	seen := observe(ctx, watcher, "k")
	require.Eventually(t, func() bool { return len(b.read()) >= terms }, time.Minute, 5*time.Millisecond)
	cancel()
	for range 3 {
		require.ErrorIs(t, <-done, context.Canceled)
	}
	<-seen.done

	all := b.read()
	slices.SortFunc(all, func(x, y entry) int { return int(x.term - y.term) })
	lost := 0
	for i, e := range all {
		if e.lost {
			lost++
		}
		if i > 0 {
			assert.Greater(t, e.term, all[i-1].term)
			assert.False(t, e.begun.Before(all[i-1].until), "%s began at %v, %s led until %v", e.who, e.begun, all[i-1].who, all[i-1].until)
		}
	}
	assert.Positive(t, lost, "of %d terms", len(all))

	var last int64
	for _, n := range seen.read() {
		require.NoError(t, n.err)
		if term := n.leader.Term; term != 0 {
			assert.Greater(t, term, last)
			last = term
			i := slices.IndexFunc(all, func(e entry) bool { return e.term == term })
			if i >= 0 { // or its leader never heard that it was elected
				assert.Equal(t, all[i].who, n.leader.Owner)
			}
		}
	}
	assert.Positive(t, last)
}

// until is the end of a term by its leader's own reckoning: the deadline of a lost lease, or now, before the release.
func until(term *leasehold.Lease) (at time.Time, lost bool) {
	if errors.Is(term.Err(), leasehold.ErrLost) {
		return term.ValidUntil(), true
	}
	return time.Now(), false
}
