//go:build unix

package guarantees_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// What the simulation shows in bubbles, once more on a real Redis and with processes that are killed and stopped. They
// are this test binary, told by its environment to be a worker.

const (
	// within is what a live waiter may lose by any number of dead ones before it.
	within = 3 * time.Second
	// busy is what a busy machine may add to anything. A fault adds more: a dead waiter its time to live, each of them; a lock that
	// nobody gives back its TTL.
	busy = 2 * time.Second
)

func TestAHundredWaitersKilledAtOnceCostOneTimeToLiveInAll(t *testing.T) {
	s := newScene(t)
	holder := s.acquire()
	var crowd []*worker
	for i := range 4 {
		crowd = append(crowd, s.worker())
		crowd[i].tell("crowd 25 %s 30s", s.key)
		s.line(25 * (i + 1))
	}
	next := s.join(s.local(), 101)
	for _, w := range crowd {
		w.signal(syscall.SIGKILL)
	}
	s.inTime(holder, next)
}

func TestTheHeadOfTheLineIsKilled(t *testing.T) {
	s := newScene(t)
	holder := s.acquire()
	head := s.worker()
	head.tell("acquire %s 30s", s.key)
	s.line(1)
	next := s.join(s.local(), 2)
	head.signal(syscall.SIGKILL)
	s.inTime(holder, next)
}

func TestTheWaiterJustWokenIsKilled(t *testing.T) {
	s := newScene(t)
	holder := s.acquire()
	woken := s.worker()
	woken.tell("acquire %s 30s", s.key)
	s.line(1)
	next := s.join(s.local(), 2)
	woken.signal(syscall.SIGSTOP) // or it would win before it dies
	require.NoError(t, holder.Release(t.Context()))
	released := time.Now()
	s.line(1)
	require.NotEmpty(t, s.owner(), "the lock was not handed to the one that is killed now")
	woken.signal(syscall.SIGKILL)
	x := s.wins(next)
	require.Less(t, time.Since(released), within+busy)
	require.Greater(t, x.FencingToken(), holder.FencingToken())
}

func TestAWaiterThatWasStoppedAndSkippedGetsInLater(t *testing.T) {
	s := newScene(t)
	holder := s.acquire()
	stopped := s.worker()
	stopped.tell("acquire %s 30s", s.key)
	s.line(1)
	next := s.join(s.local(), 2)
	stopped.signal(syscall.SIGSTOP)
	x := s.inTime(holder, next)

	stopped.signal(syscall.SIGCONT)
	s.line(1) // it has noticed, and stands again
	require.True(t, x.Valid())
	require.Equal(t, x.Token(), s.owner())
	require.NoError(t, x.Release(t.Context()))
	require.Greater(t, stopped.hears("held"), x.FencingToken())
	stopped.tell("release")
	stopped.hears("released")
}

func TestAHolderThatWasStoppedFindsItsLeaseLost(t *testing.T) {
	s := newScene(t)
	stopped := s.worker()
	stopped.tell("acquire %s 500ms", s.key)
	fence := stopped.hears("held")
	next := s.join(s.local(), 1)
	stopped.signal(syscall.SIGSTOP)
	begun := time.Now()
	x := s.wins(next)
	require.Less(t, time.Since(begun), 500*time.Millisecond+busy)
	require.Greater(t, x.FencingToken(), fence)

	stopped.signal(syscall.SIGCONT)
	stopped.hears("lost") // its lease's Done
	stopped.tell("valid")
	stopped.hears("false")
	stopped.tell("release")
	stopped.hears("release lost")
	require.True(t, x.Valid())
	require.Equal(t, x.Token(), s.owner())
	require.NoError(t, x.Renew(t.Context()))
}

func TestAKilledHoldersLockIsHadAtItsExpiry(t *testing.T) {
	s := newScene(t)
	killed := s.worker()
	killed.tell("acquire %s 1s", s.key)
	fence := killed.hears("held")
	next := s.join(s.local(), 1)
	killed.signal(syscall.SIGKILL)
	left := s.client.PTTL(t.Context(), s.key).Val()
	begun := time.Now()
	x := s.wins(next)
	require.Less(t, time.Since(begun), left+busy)
	require.Greater(t, x.FencingToken(), fence)
}

// Workers take turns while some of them are stopped, continued and killed wherever they happen to be.
func TestTurnsGoOnWhileProcessesAreStoppedAndKilled(t *testing.T) {
	s := newScene(t)
	var all []*worker
	for range 4 {
		w := s.worker()
		w.tell("turns %s 300ms", s.key)
		all = append(all, w)
	}
	for i, w := range all[:2] {
		all[i+1].goesOn()
		w.signal(syscall.SIGSTOP)
		all[i+1].goesOn()
		w.signal(syscall.SIGCONT)
	}
	all[0].signal(syscall.SIGKILL)
	all[1].signal(syscall.SIGSTOP)
	all[2].signal(syscall.SIGKILL)
	all[3].goesOn()
	all[1].signal(syscall.SIGCONT)
	all[1].goesOn()

	// No two leases had one fencing token.
	seen := map[string]bool{}
	for _, w := range all {
		w.mu.Lock()
		for _, line := range w.said {
			require.False(t, seen[line], line)
			seen[line] = true
		}
		w.mu.Unlock()
	}
	for _, key := range s.client.Keys(t.Context(), "*").Val() {
		require.NotEqual(t, time.Duration(-1), s.client.PTTL(t.Context(), key).Val(), "%s lives for ever", key)
	}
}

// scene is one lock on a redis-server of the test's own, and those who want it.
type scene struct {
	t      *testing.T
	addr   string
	client *redis.Client
	key    string
}

func newScene(t *testing.T) *scene {
	t.Parallel()
	server := redistest.Server(t)
	return &scene{t, server.Addr(), server.Client(), "lock"}
}

// local is a Locker in this process.
func (s *scene) local() *leasehold.Locker {
	l := leasehold.New(s.client, leasehold.WithAutoRenew(true))
	s.t.Cleanup(func() { _ = l.Close() })
	return l
}

func (s *scene) acquire() *leasehold.Lease {
	x, err := s.local().Acquire(s.t.Context(), s.key, 30*time.Second)
	require.NoError(s.t, err)
	return x
}

// join has the Locker wait, as the nth in the line.
func (s *scene) join(l *leasehold.Locker, n int) <-chan *leasehold.Lease {
	won := make(chan *leasehold.Lease, 1)
	go func() {
		defer close(won) // nil, if there is none
		if x, err := l.Acquire(s.t.Context(), s.key, 30*time.Second); err == nil {
			won <- x
		}
	}()
	s.line(n)
	return won
}

// line waits until n stand in the line.
func (s *scene) line(n int) {
	s.t.Helper()
	line := string(rediskey.Derive(nil, "", "line", s.key))
	s.eventually(fmt.Sprintf("%d wait", n), func() bool { return s.client.ZCard(s.t.Context(), line).Val() == int64(n) })
}

func (s *scene) owner() string { return s.client.Get(s.t.Context(), s.key).Val() }

// inTime releases a lease and has the one who waits get the lock within the bound.
func (s *scene) inTime(holder *leasehold.Lease, next <-chan *leasehold.Lease) *leasehold.Lease {
	s.t.Helper()
	begun := time.Now()
	require.NoError(s.t, holder.Release(s.t.Context()))
	x := s.wins(next)
	require.Less(s.t, time.Since(begun), within+busy)
	require.Greater(s.t, x.FencingToken(), holder.FencingToken())
	return x
}

// wins waits for a lease.
func (s *scene) wins(next <-chan *leasehold.Lease) *leasehold.Lease {
	s.t.Helper()
	select {
	case x := <-next:
		require.NotNil(s.t, x)
		return x
	case <-time.After(2 * within):
		require.Fail(s.t, "nobody gets in")
		return nil
	}
}

// eventually polls what another process does.
func (s *scene) eventually(what string, ok func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		require.False(s.t, time.Now().After(deadline), "not in time: %s", what)
	}
}

// worker is another process.
type worker struct {
	s     *scene
	cmd   *exec.Cmd
	stdin io.Writer

	mu   sync.Mutex
	said []string // the lines that were not heard yet
}

const workerEnv = "LEASEHOLD_TEST_WORKER"

func (s *scene) worker() *worker {
	self, err := os.Executable()
	require.NoError(s.t, err)
	w := &worker{s: s, cmd: exec.Command(self, "-test.run=^TestWorker$")}
	w.cmd.Env = append(os.Environ(), workerEnv+"="+s.addr)
	w.cmd.Stderr = os.Stderr
	w.stdin, err = w.cmd.StdinPipe()
	require.NoError(s.t, err)
	out, err := w.cmd.StdoutPipe()
	require.NoError(s.t, err)
	require.NoError(s.t, w.cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			w.mu.Lock()
			w.said = append(w.said, lines.Text())
			w.mu.Unlock()
		}
	}()
	s.t.Cleanup(func() {
		_ = w.cmd.Process.Kill() // stopped or not
		<-read
		_ = w.cmd.Wait()
	})
	return w
}

// signal sends a signal. One that stops has done so when it returns: until the process is scheduled to stop it may do
// anything, win the lock included.
func (w *worker) signal(sig syscall.Signal) {
	w.s.t.Helper()
	require.NoError(w.s.t, w.cmd.Process.Signal(sig))
	if sig == syscall.SIGSTOP {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(w.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		require.NoError(w.s.t, err)
		require.True(w.s.t, status.Stopped(), "the worker ended: %v", status)
	}
}

func (w *worker) tell(format string, args ...any) {
	w.s.t.Helper()
	_, err := fmt.Fprintf(w.stdin, format+"\n", args...)
	require.NoError(w.s.t, err)
}

// hears waits for a line that begins so, takes it and all before it, and returns the number behind it if there is one.
func (w *worker) hears(begin string) int64 {
	w.s.t.Helper()
	var line string
	w.s.eventually(begin, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for i, l := range w.said {
			if strings.HasPrefix(l, begin) {
				line, w.said = l, w.said[i+1:]
				return true
			}
		}
		return false
	})
	n, _ := strconv.ParseInt(strings.TrimPrefix(line, begin+" "), 10, 64)
	return n
}

// goesOn waits until the worker has had the lock some times more.
func (w *worker) goesOn() {
	w.s.t.Helper()
	count := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.said)
	}
	begun, before := time.Now(), count()
	w.s.eventually("turns", func() bool { return count() >= before+5 })
	require.Less(w.s.t, time.Since(begun), within+busy)
}

// TestWorker is what the processes run: one command a line, one answer a line.
func TestWorker(t *testing.T) {
	addr := os.Getenv(workerEnv)
	if addr == "" {
		t.Skip("run by the tests of this file, as processes of their own")
	}
	ctx := context.Background()
	locker := func() *leasehold.Locker {
		return leasehold.New(redis.NewClient(&redis.Options{Addr: addr}), leasehold.WithAutoRenew(true))
	}
	l := locker()
	acquire := func(l *leasehold.Locker, key, ttl string) *leasehold.Lease {
		d, err := time.ParseDuration(ttl)
		require.NoError(t, err)
		x, err := l.Acquire(ctx, key, d)
		require.NoError(t, err)
		fmt.Println("held", x.FencingToken())
		return x
	}
	held := make(chan *leasehold.Lease, 1)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		switch words[0] {
		case "acquire":
			go func() {
				x := acquire(l, words[1], words[2])
				held <- x
				<-x.Done()
				if errors.Is(x.Err(), leasehold.ErrLost) {
					fmt.Println("lost")
				}
			}()
		case "crowd":
			n, err := strconv.Atoi(words[1])
			require.NoError(t, err)
			for range n {
				l := locker()
				go acquire(l, words[2], words[3])
			}
		case "turns":
			go func() {
				for {
					x := acquire(l, words[1], words[2])
					time.Sleep(2 * time.Millisecond)
					_ = x.Release(ctx)
				}
			}()
		case "valid":
			x := <-held
			fmt.Println(x.Valid())
			held <- x
		case "release":
			x := <-held
			switch err := x.Release(ctx); {
			case err == nil:
				fmt.Println("released")
			case errors.Is(err, leasehold.ErrLost):
				fmt.Println("release lost")
			default:
				fmt.Println(err)
			}
		}
	}
}
