package leaseholdtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
)

func init() { logging.Disable() } // go-redis writes to stderr about every connection that an outage cuts

// inBoth runs the test with an Env of each kind.
func inBoth(t *testing.T, test func(t *testing.T, env *Env)) {
	t.Run("in a bubble", func(t *testing.T) { Bubble(t, test) })
	t.Run("on a port", func(t *testing.T) { test(t, New(t)) })
}

// ear is a test that notes how it failed.
type ear struct {
	testing.TB
	said string
}

func (e *ear) Errorf(format string, args ...any) { e.said += fmt.Sprintf(format, args...) + "\n" }
func (e *ear) Fatalf(format string, args ...any) { e.Errorf(format, args...); panic(e) }

// listen has the Env fail a test that only listens, and returns what the failure says.
func listen(env *Env, f func()) string {
	e := &ear{TB: env.t}
	env.t = e
	defer func() { env.t = e.TB }()
	func() {
		defer func() {
			if p := recover(); p != nil && p != e {
				panic(p)
			}
		}()
		f()
	}()
	return e.said
}

func TestHoldKeepsTheLockUntilItIsReleased(t *testing.T) {
	inBoth(t, func(t *testing.T, env *Env) {
		holder := env.Hold("k", leasehold.WithOwner("somebody else"), leasehold.WithKeyPrefix("app:"))
		locker := env.Locker(leasehold.WithKeyPrefix("app:"))
		_, err := locker.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, leasehold.ErrHeld)
		state, err := locker.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, "somebody else", state.Owner)
		assert.Contains(t, listen(env, func() { env.Hold("k", leasehold.WithKeyPrefix("app:")) }), "held by another")

		require.NoError(t, holder.Release(t.Context()))
		_, err = locker.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
	})
}

// A waiter is served by the holder's release, as between two processes, and does not find the lock by chance.
func TestHoldHandsTheLockToAWaiterOfTheCodeUnderTest(t *testing.T) {
	Bubble(t, func(t *testing.T, env *Env) {
		holder, locker := env.Hold("k"), env.Locker()
		time.AfterFunc(90*time.Minute, func() { _ = holder.Release(context.Background()) })
		begun := time.Now()
		_, err := locker.Acquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		assert.Equal(t, 90*time.Minute, time.Since(begun))
		assert.EqualValues(t, 1, locker.Stats().AcquiredByMessage)
	})
}

func TestLoseEndsTheLeaseBeforeItReturns(t *testing.T) {
	inBoth(t, func(t *testing.T, env *Env) {
		locker := env.Locker()
		for _, auto := range []bool{true, false} {
			lease, err := locker.TryAcquire(t.Context(), "k", time.Minute, leasehold.WithAutoRenew(auto))
			require.NoError(t, err)
			ctx, cancel := lease.Context(t.Context())
			defer cancel()
			begun := time.Now()
			env.Lose(lease)
			assert.Less(t, time.Since(begun), 10*time.Second)
			require.ErrorIs(t, lease.Err(), leasehold.ErrLost)
			require.ErrorIs(t, context.Cause(ctx), leasehold.ErrLost)
		}
		env.Hold("k") // the lock is free
	})
}

func TestLoseFailsTheTestIfThereIsNothingToLose(t *testing.T) {
	Bubble(t, func(t *testing.T, env *Env) {
		locker := env.Locker()
		released, err := locker.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		require.NoError(t, released.Release(t.Context()))
		assert.Contains(t, listen(env, func() { env.Lose(released) }), "released")
		assert.Contains(t, listen(env, func() { env.Lose(nil) }), "nil")

		held, err := locker.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		env.Outage()
		assert.Contains(t, listen(env, func() { env.Lose(held) }), "the lease is not lost")
	})
	elsewhere := New(t).Hold("k")
	env := New(t)
	assert.Contains(t, listen(env, func() { env.Lose(elsewhere) }), "the lease is not lost")
}

func TestAnOutageReachesTheCodeUnderTestAndNobodyElse(t *testing.T) {
	inBoth(t, func(t *testing.T, env *Env) {
		locker := env.Locker()
		require.NoError(t, env.Client().Set(t.Context(), "data", "stays", time.Hour).Err())
		env.Outage()
		require.Error(t, env.Client().Ping(t.Context()).Err())
		_, err := locker.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, leasehold.ErrUnavailable)
		other := env.Hold("k")

		env.Back()
		assert.Equal(t, "stays", env.Client().Get(t.Context(), "data").Val())
		_, err = locker.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, leasehold.ErrHeld)
		require.NoError(t, other.Release(t.Context()))
		_, err = locker.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
	})
}

func TestALockerIsClosedWithItsTestAlsoInAnOutage(t *testing.T) {
	var locker *leasehold.Locker
	inBoth(t, func(t *testing.T, env *Env) {
		t.Cleanup(func() { // it runs after the Locker's, whose own test it checks
			_, err := locker.TryAcquire(context.Background(), "k", time.Second)
			assert.ErrorIs(t, err, leasehold.ErrClosed)
			assert.Zero(t, env.apart.Exists(context.Background(), "k").Val(), "it was not released")
		})
		locker = env.Locker()
		_, err := locker.Acquire(t.Context(), "k", time.Hour)
		require.NoError(t, err)
		env.Outage()
	})
}

func TestAFunctionOfWithLockThatDoesNotReturnFailsTheTest(t *testing.T) {
	e := &ear{}
	Bubble(t, func(t *testing.T, env *Env) {
		stuck, running := make(chan struct{}), make(chan struct{})
		t.Cleanup(func() { close(stuck) })
		e.TB, env.t = t, e
		locker := env.Locker()
		go func() {
			_ = locker.WithLock(context.Background(), "k", time.Second, func(context.Context, *leasehold.Lease) error {
				close(running)
				<-stuck
				return nil
			})
		}()
		<-running
	})
	assert.Contains(t, e.said, "WithLock's function has not returned")
}

func TestTimeInABubbleIsExact(t *testing.T) {
	Bubble(t, func(t *testing.T, env *Env) {
		locker := env.Locker()
		lease, err := locker.TryAcquire(t.Context(), "k", 10*time.Second)
		require.NoError(t, err)
		require.Equal(t, 10*time.Second, env.Client().PTTL(t.Context(), "k").Val())
		begun := time.Now()
		<-lease.Done()
		assert.Equal(t, 9900*time.Millisecond, time.Since(begun), "its deadline is 1 % before the TTL")
		assert.Equal(t, time.Now(), env.Client().Time(t.Context()).Val().In(time.Local))
	})
}

func TestTimeOutsideOfABubbleIsTheMachines(t *testing.T) {
	env := New(t)
	require.NoError(t, env.Client().Set(t.Context(), "k", "v", 20*time.Millisecond).Err())
	require.Eventually(t, func() bool { return env.Client().Exists(t.Context(), "k").Val() == 0 }, 10*time.Second, 5*time.Millisecond)
}

// Whoever imports the library must not get the embedded Redis with it.
func TestNoOtherPackageImportsWhatIsForTestsOnly(t *testing.T) {
	const module = "github.com/go-leasehold/leasehold"
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Deps " "}}`, module+"/...").Output()
	require.NoError(t, err)
	checked := 0
	for line := range strings.Lines(string(out)) {
		name, deps, _ := strings.Cut(strings.TrimSpace(line), " ")
		if rest, _ := strings.CutPrefix(name, module); strings.HasPrefix(rest, "/internal/") || strings.HasPrefix(rest, "/cmd/") || rest == "/leaseholdtest" {
			continue // no user can import the first, and the demo brings a Redis along
		}
		checked++
		for _, dep := range []string{module + "/leaseholdtest", module + "/internal/redistest", "github.com/alicebob/miniredis/v2", "testing"} {
			assert.NotContains(t, strings.Fields(deps), dep, "%s depends on it", name)
		}
	}
	assert.GreaterOrEqual(t, checked, 2)
}

func TestTheSnippetOfThePackageCommentIsTheExample(t *testing.T) {
	lines := func(file, pattern string) (found []string) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, line := range strings.Split(regexp.MustCompile(pattern).FindString(string(text)), "\n") {
			found = append(found, strings.TrimSpace(strings.TrimPrefix(line, "//")))
		}
		return found
	}
	snippet := lines("leaseholdtest.go", `(?s)//\t\tleaseholdtest\.Bubble.*?\n//\t\t\}\)\n`)
	require.Greater(t, len(snippet), 5)
	assert.Equal(t, lines("example_test.go", `(?s)\tleaseholdtest\.Bubble\(.*?\n\t\}\)\n`), snippet)
}
