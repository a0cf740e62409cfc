package election_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/election"
	"github.com/go-leasehold/leasehold/leaseholdtest"
)

func init() { logging.Disable() } // go-redis writes to stderr about every connection that a test breaks

const ttl = 10 * time.Second

var errDisk = errors.New("the disk is full")

// book is what the leaders of a test did, in order.
type book struct {
	mu    sync.Mutex
	terms []entry
}

type entry struct {
	who        string
	term       int64
	begun      time.Time
	told, left time.Time // when its context ended, and when its function returned; zero: not yet
	until      time.Time // the end of the lease as its leader saw it; see until
	lost       bool
}

// lead is a function of a term that notes it, and calls f in between.
func (b *book) lead(who string, f func(ctx context.Context, term *leasehold.Lease) error) func(context.Context, *leasehold.Lease) error {
	return func(ctx context.Context, term *leasehold.Lease) error {
		b.mu.Lock()
		i := len(b.terms)
		b.terms = append(b.terms, entry{who: who, term: term.FencingToken(), begun: time.Now()})
		b.mu.Unlock()
		note := func(set func(e *entry)) {
			b.mu.Lock()
			defer b.mu.Unlock()
			set(&b.terms[i])
		}
		stop := context.AfterFunc(ctx, func() { note(func(e *entry) { e.told = time.Now() }) })
		defer stop()
		defer note(func(e *entry) { e.left = time.Now(); e.until, e.lost = until(term) })
		return f(ctx, term)
	}
}

func (b *book) read() []entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]entry(nil), b.terms...)
}

// untilEnd leads until it is told to stop, and says why it did.
func untilEnd(ctx context.Context, _ *leasehold.Lease) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// stand runs a candidate beside the test. The channel has what Run returned.
func stand(ctx context.Context, l *leasehold.Locker, lead func(context.Context, *leasehold.Lease) error, opts ...leasehold.Option) <-chan error {
	done := make(chan error, 1)
	go func() { done <- election.Run(ctx, l, "k", ttl, lead, opts...) }()
	return done
}

func TestTheFunctionsWordEndsRun(t *testing.T) {
	for name, word := range map[string]error{"nil": nil, "an error of its own": errDisk, "a wrapped one": fmt.Errorf("saving: %w", errDisk)} {
		t.Run(name, func(t *testing.T) {
			leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
				var number int64
				err := election.Run(t.Context(), env.Locker(), "k", ttl, func(ctx context.Context, term *leasehold.Lease) error {
					number = term.FencingToken()
					return word
				})
				if word == nil {
					require.NoError(t, err)
				} else {
					var of *election.TermError
					require.ErrorAs(t, err, &of)
					require.ErrorIs(t, err, errDisk)
					assert.Equal(t, number, of.Term)
					assert.Equal(t, fmt.Sprintf("election: term %d: %v", number, word), err.Error())
				}
				env.Hold("k") // it was released
			})
		})
	}
}

func TestAnErrorOfStandingIsNoTermError(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		env.Hold("held")
		require.NoError(t, env.Client().HSet(t.Context(), "a hash", "f", "v").Err())
		closed := env.Locker()
		require.NoError(t, closed.Close())
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for key, tt := range map[string]struct {
			ctx    context.Context
			locker *leasehold.Locker
			want   []error
		}{
			"":       {t.Context(), env.Locker(), []error{leasehold.ErrInvalid}},
			"a hash": {t.Context(), env.Locker(), nil},
			"free":   {t.Context(), closed, []error{leasehold.ErrClosed}},
			"held":   {short, env.Locker(), []error{leasehold.ErrHeld, context.DeadlineExceeded}},
		} {
			err := election.Run(tt.ctx, tt.locker, key, ttl, func(context.Context, *leasehold.Lease) error {
				return fmt.Errorf("elected for %q", key)
			})
			var of *election.TermError
			require.Error(t, err)
			assert.False(t, errors.As(err, &of), "%v", err)
			for _, want := range tt.want {
				require.ErrorIs(t, err, want)
			}
		}
	})
}

func TestNobodyIsElectedWithoutAFunction(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		err := election.Run(t.Context(), env.Locker(), "k", ttl, nil)
		require.ErrorIs(t, err, leasehold.ErrInvalid)
		assert.EqualError(t, err, `leasehold: elect "k": invalid argument: the function is nil`)
	})
}

func TestACandidateThatIsNeverElectedCallsNothing(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		env.Hold("k")
		var b book
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Hour, func() { cancel(errDisk) })
		err := election.Run(ctx, env.Locker(), "k", ttl, b.lead("a", untilEnd))
		require.ErrorIs(t, err, errDisk)
		require.ErrorIs(t, err, context.Canceled)
		assert.Empty(t, b.read())
	})
}

func TestACandidateWaitsForLongerThanTheLockersCallsMay(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		holder := env.Hold("k")
		time.AfterFunc(time.Hour, func() { assert.NoError(t, holder.Release(context.Background())) })
		elected := func(context.Context, *leasehold.Lease) error { return nil }
		locker := env.Locker(leasehold.WithWait(time.Second))
		begun := time.Now()
		require.ErrorIs(t, election.Run(t.Context(), locker, "k", ttl, elected, leasehold.WithWait(time.Minute)), leasehold.ErrHeld)
		assert.Equal(t, time.Minute, time.Since(begun))
		require.NoError(t, election.Run(t.Context(), locker, "k", ttl, elected))
		assert.GreaterOrEqual(t, time.Since(begun), time.Hour)
	})
}

func TestALostTermIsStoodForAgainWhateverItsFunctionSays(t *testing.T) {
	for name, word := range map[string]func(context.Context) error{
		"its cause": context.Cause,
		"nil":       func(context.Context) error { return nil },
		"an error":  func(context.Context) error { return errDisk },
	} {
		t.Run(name, func(t *testing.T) {
			leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
				var b book
				terms := 0
				err := election.Run(t.Context(), env.Locker(), "k", ttl, b.lead("a", func(ctx context.Context, term *leasehold.Lease) error {
					if terms++; terms == 20 {
						return nil
					}
					env.Lose(term)
					require.ErrorIs(t, context.Cause(ctx), leasehold.ErrLost)
					return word(ctx)
				}))
				require.NoError(t, err)
				entries := b.read()
				require.Len(t, entries, 20)
				pauses := map[time.Duration]bool{}
				for i := 1; i < len(entries); i++ {
					require.Greater(t, entries[i].term, entries[i-1].term)
					pause := entries[i].begun.Sub(entries[i-1].left)
					assert.GreaterOrEqual(t, pause, 500*time.Millisecond)
					assert.LessOrEqual(t, pause, time.Second)
					pauses[pause] = true
				}
				assert.Greater(t, len(pauses), 10, "they have jitter")
			})
		})
	}
}

// The function worked under other locks too. Only the loss of its own term is no reason to end.
func TestTheLossOfAnotherLeaseIsAnErrorOfTheTerm(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		locker := env.Locker()
		err := election.Run(t.Context(), locker, "k", ttl, func(ctx context.Context, _ *leasehold.Lease) error {
			return locker.WithLock(context.Background(), "another", ttl, func(ctx context.Context, lease *leasehold.Lease) error {
				env.Lose(lease)
				return nil
			})
		})
		var of *election.TermError
		require.ErrorAs(t, err, &of)
		require.ErrorIs(t, err, leasehold.ErrLost)
	})
}

func TestATermThatIsFoundLostAtItsReleaseIsNotReportedAsDone(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		err := election.Run(t.Context(), env.Locker(), "k", ttl, func(ctx context.Context, term *leasehold.Lease) error {
			return env.Client().Del(ctx, "k").Err() // nobody knows yet
		})
		var of *election.TermError
		require.ErrorAs(t, err, &of)
		require.ErrorIs(t, err, leasehold.ErrLost)
	})
}
