package several_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestASemaphoreLetsInAsManyAsItHasSlots(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, slots := w.Party(), leasehold.WithSlots(3)
		var held []*leasehold.Lease
		for i := range 3 {
			x, err := p.TryAcquire(t.Context(), "k", 10*time.Second, slots)
			require.NoError(t, err)
			assert.Equal(t, i, x.Slot())
			assert.False(t, x.IsShared())
			held = append(held, x)
		}
		_, err := p.TryAcquire(t.Context(), "k", 10*time.Second, slots)
		require.ErrorIs(t, err, leasehold.ErrHeld)
		_, err = p.TryAcquire(t.Context(), "k", 10*time.Second)
		require.ErrorIs(t, err, leasehold.ErrHeld, "exclusive")
		s, err := p.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, []any{true, 3}, []any{s.Held, s.Holders})

		require.NoError(t, held[1].Release(t.Context()))
		x, err := p.TryAcquire(t.Context(), "k", 10*time.Second, slots)
		require.NoError(t, err)
		assert.Equal(t, 1, x.Slot(), "the slot that is free")
		assert.Greater(t, x.FencingToken(), held[2].FencingToken())
		for _, x := range []*leasehold.Lease{held[0], held[2], x} {
			require.NoError(t, x.Renew(t.Context()))
			require.NoError(t, x.Release(t.Context()))
		}
		assert.Empty(t, w.Owner("k"), "free")
	})
}

// Readers that come after a writer wait behind it, and those before hold together.
func TestReadersHoldTogetherAndDoNotStarveAWriter(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q, r := w.Party(), w.Party(), w.Party()
		shared, keep := leasehold.WithShared(), leasehold.WithAutoRenew(true)
		a, err := p.TryAcquire(t.Context(), "k", 10*time.Second, shared)
		require.NoError(t, err)
		b, err := p.TryAcquire(t.Context(), "k", 10*time.Second, shared)
		require.NoError(t, err)
		assert.True(t, b.IsShared())

		writer := locktest.Beside(func() (*leasehold.Lease, error) { return q.Acquire(t.Context(), "k", 10*time.Second, keep) })
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		_, err = p.TryAcquire(t.Context(), "k", 10*time.Second, shared)
		require.ErrorIs(t, err, leasehold.ErrHeld, "a writer waits")
		reader := locktest.Beside(func() (*leasehold.Lease, error) { return r.Acquire(t.Context(), "k", 10*time.Second, shared, keep) })
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)

		require.NoError(t, a.Release(t.Context()))
		require.Empty(t, writer, "one reader is left")
		begun := time.Now()
		require.NoError(t, b.Release(t.Context()))
		x := <-writer
		require.NoError(t, x.Err)
		assert.Less(t, time.Since(begun), 50*time.Millisecond, "told by a message")
		assert.False(t, x.Lease.IsShared())
		begun = time.Now()
		require.NoError(t, x.Lease.Release(t.Context()))
		y := <-reader
		require.NoError(t, y.Err)
		assert.Less(t, time.Since(begun), 50*time.Millisecond, "handed over by the script of exclusive leases")
		assert.Greater(t, y.Lease.FencingToken(), x.Lease.FencingToken())
		require.NoError(t, y.Lease.Release(t.Context()))
	})
}

// A writer that leaves the line lets in those behind it that fit.
func TestAWriterThatGivesUpLetsTheReadersBehindItIn(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q, r := w.Party(), w.Party(), w.Party()
		a, err := p.TryAcquire(t.Context(), "k", 30*time.Second, leasehold.WithShared())
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		writer := locktest.Beside(func() (*leasehold.Lease, error) { return q.Acquire(ctx, "k", 10*time.Second) })
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		reader := locktest.Beside(func() (*leasehold.Lease, error) {
			return r.Acquire(t.Context(), "k", 10*time.Second, leasehold.WithShared(), leasehold.WithAutoRenew(true))
		})
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		require.Empty(t, reader)
		begun := time.Now()
		cancel()
		require.Error(t, (<-writer).Err)
		x := <-reader
		require.NoError(t, x.Err)
		assert.Less(t, time.Since(begun), 50*time.Millisecond)
		require.NoError(t, x.Lease.Release(t.Context()))
		require.NoError(t, a.Release(t.Context()))
	})
}

func TestTheHoldersOfADeletedKeyLoseItAndASlotOfACrashIsFreeAfterItsTTL(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, two := w.Party(), leasehold.WithSlots(2)
		a, err := p.TryAcquire(t.Context(), "k", 10*time.Second, two)
		require.NoError(t, err)
		w.M.Del("k")
		b, err := p.TryAcquire(t.Context(), "k", 10*time.Second, two)
		require.NoError(t, err)
		assert.Equal(t, 0, b.Slot(), "the holders before the deletion count no more")
		require.ErrorIs(t, a.Renew(t.Context()), leasehold.ErrLost)
		require.NoError(t, b.Renew(t.Context()))

		c, err := p.TryAcquire(t.Context(), "k", time.Second, two)
		require.NoError(t, err)
		c.Detach() // as a process that has crashed
		_, err = p.TryAcquire(t.Context(), "k", 10*time.Second, two)
		require.ErrorIs(t, err, leasehold.ErrHeld)
		x, err := p.Acquire(t.Context(), "k", 10*time.Second, two)
		require.NoError(t, err)
		assert.Equal(t, c.Slot(), x.Slot())
		assert.Greater(t, x.FencingToken(), c.FencingToken())
		require.NoError(t, b.Release(t.Context()))
		require.NoError(t, x.Release(t.Context()))
	})
}

// What a holder's lost entries leave is closed until the last of the leases is over, and nobody joins it.
func TestALockWhoseHoldersAreLostIsClosedUntilTheyAreOver(t *testing.T) {
	for _, name := range []string{"leasehold:holders:{k}", "leasehold:grants:{k}"} {
		locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
			p, shared := w.Party(), leasehold.WithShared()
			a, err := p.TryAcquire(t.Context(), "k", 10*time.Second, shared)
			require.NoError(t, err)
			w.M.Del(name)
			_, err = p.TryAcquire(t.Context(), "k", 10*time.Second, shared)
			require.ErrorIs(t, err, leasehold.ErrHeld)
			require.ErrorIs(t, a.Renew(t.Context()), leasehold.ErrLost)
			time.Sleep(10 * time.Second)
			b, err := p.TryAcquire(t.Context(), "k", 10*time.Second, shared)
			require.NoError(t, err)
			require.NoError(t, b.Release(t.Context()))
		})
	}
}

func TestWhatLeasesOfSeveralHoldersRefuse(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		for says, opts := range map[string][]leasehold.Option{
			"WithSlots(0): want 1 to 1000":     {leasehold.WithSlots(0)},
			"WithSlots(-1): want 1 to 1000":    {leasehold.WithSlots(-1)},
			"WithSlots(1001): want 1 to 1000":  {leasehold.WithSlots(1001)},
			"WithSlots with WithLockDelay(1s)": {leasehold.WithSlots(2), leasehold.WithLockDelay(time.Second)},
			"WithShared with WithReplicas(1)":  {leasehold.WithShared(), leasehold.WithReplicas(1, time.Second)},
			"WithShared with WithMinHold(1s)":  {leasehold.WithShared(), leasehold.WithMinHold(time.Second)},
		} {
			_, err := p.TryAcquire(t.Context(), "k", 10*time.Second, opts...)
			require.ErrorIs(t, err, leasehold.ErrInvalid)
			require.ErrorContains(t, err, says)
		}
		q, err := leasehold.NewQuorum([]redis.UniversalClient{w.Dial(), w.Dial(), w.Dial()})
		require.NoError(t, err)
		defer q.Close()
		for _, kind := range []leasehold.Option{leasehold.WithShared(), leasehold.WithSlots(2)} {
			_, err = q.TryAcquire(t.Context(), "k", 10*time.Second, kind)
			require.ErrorIs(t, err, leasehold.ErrInvalid)
		}
		x, err := p.TryAcquire(t.Context(), "k", 10*time.Second, leasehold.WithShared())
		require.NoError(t, err)
		_, err = p.Adopt(t.Context(), "k", x.Token(), 10*time.Second)
		require.ErrorIs(t, err, leasehold.ErrInvalid)
		require.NoError(t, x.Release(t.Context()))
		require.NoError(t, p.WithLock(t.Context(), "k", 10*time.Second, locktest.Idle, leasehold.WithSlots(1000)))
	})
}

// Many of all kinds on one key: readers together, slots up to their number and each for itself, exclusive leases alone; the
// fencing tokens of each slot rise, and those of writers over all.
func TestMixedKindsOnOneKeyHoldOnlyWhatFitsTogether(t *testing.T) {
	t.Run("miniredis", func(t *testing.T) {
		locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
			mixed(t, 10, func() *leasehold.Locker { return w.Party().Locker })
			assert.Empty(t, w.Owner("k"))
		})
	})
	t.Run("server", func(t *testing.T) {
		s := redistest.Server(t)
		mixed(t, 20, func() *leasehold.Locker { return locktest.Process(t, s.Client()) })
		require.Zero(t, s.Client().Exists(t.Context(), "k", "leasehold:holders:{k}", "leasehold:grants:{k}").Val())
	})
}

// referee judges who is inside.
type referee struct {
	mu               sync.Mutex
	readers, writers int
	slots            map[int]int64 // the fencing tokens of their holders
	high             map[int]int64 // the highest that a slot has had
	highest          int64         // of all writers
	together         int
}

func (r *referee) enters(t *testing.T, kind int, x *leasehold.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, at := x.FencingToken(), x.Slot()
	switch kind {
	case 0:
		r.writers++
		assert.Greater(t, f, r.highest, "of a writer")
		r.highest = f
	case 1:
		r.readers++
		assert.Greater(t, f, r.highest, "of a reader after a writer")
	default:
		assert.NotContains(t, r.slots, at, "held twice")
		assert.Greater(t, f, r.high[at], "of a slot")
		r.slots[at], r.high[at] = f, f
	}
	assert.LessOrEqual(t, r.writers, 1)
	assert.False(t, r.writers > 0 && r.readers+len(r.slots) > 0, "beside an exclusive lease")
	assert.False(t, r.readers > 0 && len(r.slots) > 0, "readers beside slots")
	assert.LessOrEqual(t, len(r.slots), 3)
	r.together = max(r.together, r.readers, len(r.slots))
}

func (r *referee) leaves(kind int, x *leasehold.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch kind {
	case 0:
		r.writers--
	case 1:
		r.readers--
	default:
		delete(r.slots, x.Slot())
	}
}

func mixed(t *testing.T, rounds int, locker func() *leasehold.Locker) {
	t.Helper()
	r := referee{slots: map[int]int64{}, high: map[int]int64{}}
	var all sync.WaitGroup
	for range 9 {
		l := locker()
		all.Go(func() {
			for range rounds {
				kind := []int{0, 1, 1, 1, 2, 2, 2}[rand.IntN(7)]
				opts := [][]leasehold.Option{nil, {leasehold.WithShared()}, {leasehold.WithSlots(3)}}[kind]
				if rand.IntN(4) == 0 {
					opts = append(opts, leasehold.WithWait(8*time.Millisecond)) // most of them give up
				}
				err := l.WithLock(t.Context(), "k", 5*time.Second, func(ctx context.Context, x *leasehold.Lease) error {
					r.enters(t, kind, x)
					defer r.leaves(kind, x)
					select {
					case <-time.After(5 * time.Millisecond):
					case <-ctx.Done():
						t.Error("lost")
					}
					return nil
				}, opts...)
				if err != nil && !errors.Is(err, leasehold.ErrUnavailable) { // that of a wait that ends before the first answer
					assert.ErrorIs(t, err, leasehold.ErrHeld)
				}
			}
		})
	}
	all.Wait()
	assert.Greater(t, r.together, 1)
}

// The script of exclusive leases hands the lock to one reader alone. The reader's poll lets the others in, at once.
func TestAllReadersGetInWhenAWriterReleases(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		writer, err := w.Party().TryAcquire(t.Context(), "k", 10*time.Second)
		require.NoError(t, err)
		var readers []<-chan locktest.Result
		for range 3 {
			p := w.Party()
			readers = append(readers, locktest.Beside(func() (*leasehold.Lease, error) {
				return p.Acquire(t.Context(), "k", 10*time.Second, leasehold.WithShared(), leasehold.WithAutoRenew(true))
			}))
			synctest.Wait()
			time.Sleep(10 * time.Millisecond)
		}
		begun := time.Now()
		require.NoError(t, writer.Release(t.Context()))
		for _, reader := range readers {
			x := <-reader
			require.NoError(t, x.Err)
			assert.Less(t, time.Since(begun), 50*time.Millisecond)
			defer func() { _ = x.Lease.Release(context.WithoutCancel(t.Context())) }()
		}
	})
}
