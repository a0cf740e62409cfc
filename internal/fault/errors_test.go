package fault_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// The golden test of what callers match: each path's error, exactly the sentinels that it is, and how it prints.
func TestEveryErrorIsWhatItSaysAndNothingElse(t *testing.T) {
	const ttl = time.Minute
	redistest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
		ctx, c := t.Context(), dial()
		fault := redistest.Faulty(c)
		l := leasehold.New(c)
		defer l.Close()
		check := func(err error, prints string, kinds ...string) {
			t.Helper()
			require.Error(t, err)
			assert.Equal(t, kinds, locktest.KindsOf(err), "%v", err)
			assert.Equal(t, "leasehold: "+prints, err.Error())
			var whole *leasehold.Error
			require.ErrorAs(t, err, &whole)
			assert.NotErrorAs(t, whole.Err, new(*leasehold.Error), "an Error in an Error")
			assert.NotErrorIs(t, err, redis.Nil)
		}
		lease := func(key string) *leasehold.Lease {
			t.Helper()
			lease, err := l.TryAcquire(ctx, key, ttl)
			require.NoError(t, err)
			return lease
		}
		brief, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		caused, stop := context.WithCancelCause(ctx)
		mine := errors.New("of my own")
		stop(mine)
		gone, cancel := context.WithCancel(ctx)
		cancel()
		nothing := func(context.Context, *leasehold.Lease) error { t.Error("fn was run"); return nil }

		// Held.
		x := lease("k")
		_, err := l.TryAcquire(ctx, "k", ttl)
		check(err, `acquire "k": held by another`, "held")
		check(l.TryWithLock(ctx, "k", ttl, nothing), `acquire "k": held by another`, "held")
		_, err = l.Acquire(brief, "k", ttl)
		check(err, `acquire "k": held by another: context deadline exceeded`, "held", "deadline")
		check(l.WithLock(caused, "k", ttl, nothing), `acquire "k": of my own`, "canceled")
		assert.ErrorIs(t, l.WithLock(caused, "k", ttl, nothing), mine)
		_, err = l.TryAcquire(gone, "k", ttl)
		check(err, `acquire "k": context canceled`, "canceled")
		_, err = l.Inspect(gone, "k")
		check(err, `inspect "k": context canceled`, "canceled")
		check(l.ForceRelease(gone, "k"), `force release "k": context canceled`, "canceled")
		check(x.Renew(gone), `renew "k": context canceled`, "canceled")

		// Lost.
		m.Del("k")
		check(x.Renew(ctx), `renew "k": lease lost: the key is gone`, "lost")
		check(x.Renew(ctx), `renew "k": lease lost: the key is gone`, "lost")
		check(x.Err(), `hold "k": lease lost: the key is gone`, "lost")
		check(x.Release(ctx), `release "k": lease lost: the key is gone`, "lost")
		held, cancel := x.Context(ctx)
		check(context.Cause(held), `hold "k": lease lost: the key is gone`, "lost")
		cancel()
		x = lease("stolen")
		require.NoError(t, m.Set("stolen", "thief"))
		check(x.Release(ctx), `release "stolen": lease lost: its release found that the key is now held by another`, "lost")
		x = lease("late")
		time.Sleep(ttl)
		check(x.Err(), `hold "late": lease lost: its time ran out`, "lost")
		check(x.Renew(ctx), `renew "late": lease lost: its time ran out`, "lost")
		_, err = l.Adopt(ctx, "k", "unknown", ttl)
		check(err, `adopt "k": lease lost: the key is gone`, "lost")
		_, err = l.Adopt(ctx, "stolen", "unknown", ttl)
		check(err, `adopt "stolen": lease lost: the key is now held by another`, "lost")
		err = l.WithLock(ctx, "k", ttl, func(context.Context, *leasehold.Lease) error { m.Del("k"); return nil })
		check(err, `hold "k": lease lost: its release found that the key is gone`, "lost")
		err = l.WithLock(ctx, "k", ttl, func(context.Context, *leasehold.Lease) error { m.Del("k"); return mine })
		assert.Equal(t, []string{"lost"}, locktest.KindsOf(err))
		assert.ErrorIs(t, err, mine)

		// Released.
		x = lease("k")
		require.NoError(t, x.Release(ctx))
		require.NoError(t, x.Release(ctx))
		check(x.Err(), `hold "k": lease released`, "released")
		check(x.Renew(ctx), `renew "k": lease released`, "released")
		held, cancel = x.Context(ctx)
		check(context.Cause(held), `hold "k": lease released`, "released")
		cancel()

		// Trouble with the server.
		trouble := locktest.ServerSays("WRONGTYPE Operation against a key holding the wrong kind of value")
		for _, call := range []struct {
			op string
			do func() error
		}{
			{"acquire", func() error { _, err := l.TryAcquire(ctx, "k", ttl); return err }},
			{"acquire", func() error { _, err := l.Acquire(ctx, "k", ttl); return err }},
			{"acquire", func() error { return l.WithLock(ctx, "k", ttl, nothing) }},
			{"adopt", func() error { _, err := l.Adopt(ctx, "k", "token", ttl); return err }},
			{"inspect", func() error { _, err := l.Inspect(ctx, "k"); return err }},
			{"force release", func() error { return l.ForceRelease(ctx, "k") }},
		} {
			fault.Next(1, redistest.Cmd("evalsha")).Fail(trouble)
			err := call.do()
			check(err, fmt.Sprintf("%s %q: %v", call.op, "k", trouble))
			var server redis.Error
			require.ErrorAs(t, err, &server)
			time.Sleep(locktest.CancelBound)

			// A nil is no answer of ours.
			fault.Next(1, redistest.Cmd("evalsha")).Fail(redis.Nil)
			check(call.do(), fmt.Sprintf("%s %q: unexpected reply: nil", call.op, "k"))
			time.Sleep(locktest.CancelBound)
		}
		x = lease("k")
		fault.Next(1, redistest.Cmd("evalsha")).Fail(trouble)
		check(x.Renew(ctx), fmt.Sprintf(`renew "k": %v`, trouble))
		require.NoError(t, x.Err())
		fault.Next(2, redistest.Cmd("evalsha")).Fail(trouble)
		check(x.Release(ctx), fmt.Sprintf(`release "k": the key may live until its ttl has passed: %v`, trouble))

		// No answer within the bound, which is nobody's deadline.
		slow := fault.Next(1, redistest.Cmd("evalsha")).Hold()
		_, err = l.Inspect(ctx, "k")
		check(err, `inspect "k": no answer from redis within 3s`, "unavailable")
		slow.Release()
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		assert.True(t, timeout.Timeout())

		// Invalid, stale, no quorum, closed.
		_, err = l.TryAcquire(ctx, "", ttl)
		check(err, `acquire: invalid argument: the key is empty`, "invalid")
		_, err = l.Adopt(ctx, "k", "", ttl)
		check(err, `adopt "k": invalid argument: the token is empty: want the Token of a lease`, "invalid")
		_, err = leasehold.New(nil).TryAcquire(ctx, "k", ttl)
		check(err, `acquire "k": invalid argument: the redis client is nil`, "invalid")
		var none *leasehold.Lease
		for _, err := range []error{none.Err(), none.Renew(ctx), none.Release(ctx)} {
			assert.Equal(t, []string{"invalid"}, locktest.KindsOf(err))
		}
		var guard leasehold.Guard
		require.NoError(t, guard.Admit("", 2))
		assert.Equal(t, []string{"stale"}, locktest.KindsOf(guard.Admit("", 1)))

		x = lease("last")
		held, cancel = x.Context(ctx)
		defer cancel()
		require.NoError(t, l.Close())
		check(context.Cause(held), `hold "last": locker closed`, "closed")
		for _, e := range locktest.EntryPoints(t) {
			err := e.Call(l, "k", ttl)
			assert.Equal(t, []string{"closed"}, locktest.KindsOf(err), "%s: %v", e.Name, err)
		}
	})
}

func TestErrorPrintsItsOperationKeyAndReason(t *testing.T) {
	assert.EqualError(t, &leasehold.Error{Op: "acquire", Key: "a\n\"b\"", Err: leasehold.ErrHeld}, `leasehold: acquire "a\n\"b\"": held by another`)
	assert.EqualError(t, &leasehold.Error{Op: "close", Err: leasehold.ErrClosed}, "leasehold: close: locker closed")
	assert.EqualError(t, fmt.Errorf("job 7: %w", &leasehold.Error{Op: "renew", Key: "k", Err: fmt.Errorf("%w: why", leasehold.ErrLost)}), `job 7: leasehold: renew "k": lease lost: why`)
}

func TestAWaitThatEndsMatchesItsReasonTheCauseAndTheContext(t *testing.T) {
	mine := errors.New("of my own")
	down := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	caused, stop := context.WithCancelCause(context.Background())
	stop(mine)
	late, cancel := context.WithDeadlineCause(context.Background(), time.Unix(0, 0), mine)
	defer cancel()
	for _, tt := range []struct {
		err    error
		prints string
		is     []error
		not    []error
	}{
		{fault.Ended(caused, nil), "of my own", []error{mine, context.Canceled}, []error{context.DeadlineExceeded, leasehold.ErrHeld}},
		{fault.Ended(caused, leasehold.ErrHeld), "held by another: of my own", []error{leasehold.ErrHeld, mine, context.Canceled}, []error{leasehold.ErrLost}},
		{fault.Ended(late, down), "dial: connection refused: of my own", []error{syscall.ECONNREFUSED, mine, context.DeadlineExceeded}, []error{leasehold.ErrHeld, context.Canceled}},
		{&fault.Wait{Reason: leasehold.ErrHeld, Ended: leasehold.ErrClosed}, "held by another: locker closed", []error{leasehold.ErrHeld, leasehold.ErrClosed}, []error{context.Canceled, context.DeadlineExceeded}},
		{&fault.Wait{Ended: leasehold.ErrClosed}, "locker closed", []error{leasehold.ErrClosed}, []error{leasehold.ErrHeld}},
	} {
		assert.EqualError(t, tt.err, tt.prints)
		for _, is := range tt.is {
			assert.ErrorIs(t, tt.err, is)
		}
		for _, not := range tt.not {
			assert.NotErrorIs(t, tt.err, not)
		}
	}
	var dial *net.OpError
	assert.ErrorAs(t, fault.Ended(late, down), &dial)
}

func TestNoAnswerIsATimeoutButNotTheCallersDeadline(t *testing.T) {
	var err error = &fault.NoAnswer{Bound: 1234567 * time.Microsecond}
	assert.EqualError(t, err, "no answer from redis within 1.235s")
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	assert.True(t, timeout.Timeout())
	assert.Empty(t, locktest.KindsOf(err))
	assert.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	assert.True(t, fault.Transient(err))
}

// Redis quotes the arguments of a command that it does not know, and one of ours is the proof of ownership.
func TestNoErrorQuotesTheToken(t *testing.T) {
	redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
		c := dial()
		d, r := locktest.StoreOn(t, c), locktest.TestRequest("k")
		unknown := locktest.ServerSays("ERR unknown command 'evalsha', with args beginning with: '1a2b' '2' 'k' 'leasehold:line:{k}' '" + r.Token + "' '10000' ")
		redistest.Faulty(c).Every(nil).Fail(unknown)
		_, _, err := d.Tenure(r).Acquire(t.Context(), backend.Try, backend.CallBound)
		assert.EqualError(t, err, "ERR unknown command 'evalsha' (leasehold needs EVALSHA and EVAL; a Sentinel has neither, and some providers disable them)")
		_, err = d.Tenure(r).Renew(t.Context(), backend.Renewal{PX: r.PX}, backend.CallBound)
		assert.EqualError(t, err, "ERR unknown command 'evalsha' (leasehold needs EVALSHA and EVAL; a Sentinel has neither, and some providers disable them)")
		var server redis.Error
		require.ErrorAs(t, err, &server)
		assert.False(t, fault.Transient(err))
	})
}

func TestTransient(t *testing.T) {
	for err, want := range map[error]bool{
		locktest.ServerSays("LOADING Redis is loading the dataset in memory"):                true,
		locktest.ServerSays("NOAUTH Authentication required."):                               false,
		fault.Read(locktest.ServerSays("MOVED 7 127.0.0.1:6379"), fault.Place{}):             true,
		fault.Read(locktest.ServerSays("MOVED 7 127.0.0.1:6379"), fault.Place{Direct: true}): false,
		fault.Read(errors.New("anything else"), fault.Place{}):                               true,
		errors.New("anything else"):                                                          true,
		&fault.NoAnswer{Bound: time.Second}:                                                  true,
		fault.ErrReply:                                                                       false,
		fmt.Errorf("%w: 7", fault.ErrReply):                                                  false,
		&fault.Replicas{Acks: 0, Want: 1, Within: time.Second}:                               false,
		leasehold.ErrInvalid:                                                                 false,
	} {
		assert.Equal(t, want, fault.Transient(err), "%v", err)
		wrapped := &leasehold.Error{Op: "renew", Key: "k", Err: fmt.Errorf("in between: %w", err)}
		assert.Equal(t, want, fault.Transient(wrapped), "%v", wrapped)
	}
}
