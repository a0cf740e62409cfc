package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "one" && os.Args[2] == "setting" { // a child that only tells what it was given
		fmt.Printf(`{"values":{"procs":%d}}`, settingNow().Procs)
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == "one" { // this binary is the program's child
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// testServer is a server of the test's own.
func testServer(t *testing.T) *server {
	t.Helper()
	needRedis(t)
	s, err := startServer(t.Context())
	require.NoError(t, err)
	t.Cleanup(s.stop)
	return s
}

func needRedis(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("LEASEHOLD_REQUIRE_REDIS") == "1" {
			t.Fatal(err)
		}
		t.Skip("no redis-server on PATH")
	}
}

func eachColumn(t *testing.T, f func(t *testing.T, s *server, c column)) {
	t.Parallel()
	s := testServer(t)
	for _, c := range columns() {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, s.admin.FlushAll(t.Context()).Err())
			f(t, s, c)
		})
	}
}

func open(t *testing.T, s *server, c column, ttl time.Duration) client {
	t.Helper()
	cl, err := c.open(s.addr, ttl)
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return cl
}

func TestEveryColumnExcludesAndLetsInAgain(t *testing.T) {
	eachColumn(t, func(t *testing.T, s *server, c column) {
		ctx := t.Context()
		a, b := open(t, s, c, ttl), open(t, s, c, ttl)
		l, err := a.TryLock(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, int64(1), s.admin.Exists(ctx, c.redisKey("k")).Val(), "the key is where redisKey says")
		_, err = b.TryLock(ctx, "k")
		require.ErrorIs(t, err, errHeld)
		require.NoError(t, l.Unlock(ctx))
		l, err = b.TryLock(ctx, "k")
		require.NoError(t, err)
		require.NoError(t, l.Unlock(ctx))
		require.Zero(t, s.admin.Exists(ctx, c.redisKey("k")).Val())
	})
}

// waitAndLeave has a bound of its own, so that a hung waiter fails its test alone.
func waitAndLeave(ctx context.Context, cl client) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	l, err := cl.Lock(ctx, "k")
	if err != nil {
		return err
	}
	return l.Unlock(ctx)
}

// mayHang skips what remains if a waiter of rueidislock slept on a free
// lock. That happens now and then, to it alone, and the liveness workload counts it.
func mayHang(t *testing.T, c column, err error) {
	t.Helper()
	if c.name == "rueidislock" && errors.Is(err, context.DeadlineExceeded) {
		t.Skip("a waiter slept on a free lock")
	}
	require.NoError(t, err)
}

func TestEveryColumnThatWaitsGetsInAfterTheRelease(t *testing.T) {
	eachColumn(t, func(t *testing.T, s *server, c column) {
		if !slices.Contains(waiting, c.name) {
			t.Skip("does not wait")
		}
		ctx := t.Context()
		a, b := open(t, s, c, ttl), open(t, s, c, ttl)
		l, err := a.TryLock(ctx, "k")
		require.NoError(t, err)
		in := make(chan error, 1)
		go func() { in <- waitAndLeave(ctx, b) }()
		select {
		case <-in:
			t.Fatal("got in while the lock was held")
		case <-time.After(30 * time.Millisecond):
		}
		require.NoError(t, l.Unlock(ctx))
		mayHang(t, c, <-in)

		// A wait that ends without the lock says so, whatever the library retries on.
		l, err = a.TryLock(ctx, "k")
		require.NoError(t, err)
		short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
		defer cancel()
		_, err = b.Lock(short, "k")
		require.Error(t, err)
		require.NoError(t, l.Unlock(ctx))
	})
}

func TestEveryColumnRenewsByHandOrByItself(t *testing.T) {
	eachColumn(t, func(t *testing.T, s *server, c column) {
		ctx := t.Context()
		const ttl = 600 * time.Millisecond
		cl := open(t, s, c, ttl)
		l, err := cl.TryLock(ctx, "k")
		require.NoError(t, err)
		first := s.admin.PExpireTime(ctx, c.redisKey("k")).Val()
		require.Eventually(t, func() bool {
			if !c.renews {
				require.NoError(t, l.Renew(ctx, ttl))
			}
			return s.admin.PExpireTime(ctx, c.redisKey("k")).Val() > first
		}, 2*ttl, 5*time.Millisecond)
		require.NoError(t, l.Unlock(ctx))
	})
}

func TestAnAbandonedLockStaysAndNobodyRenewsIt(t *testing.T) {
	eachColumn(t, func(t *testing.T, s *server, c column) {
		ctx := t.Context()
		cl := open(t, s, c, 600*time.Millisecond)
		_, err := cl.TryLock(ctx, "k")
		require.NoError(t, err)
		cl.Abandon()
		require.Equal(t, int64(1), s.admin.Exists(ctx, c.redisKey("k")).Val())
		if c.renews {
			require.Eventually(t, func() bool {
				return s.admin.Exists(ctx, c.redisKey("k")).Val() == 0
			}, 5*time.Second, 5*time.Millisecond)
		}
	})
}

// INFO counts a script's commands under the same names as a client's. MONITOR
// tells them apart, and so shows whether sent does.
func TestSentTellsAClientsCommandsFromThoseOfItsScripts(t *testing.T) {
	eachColumn(t, func(t *testing.T, s *server, c column) {
		ctx := t.Context()
		a, b := open(t, s, c, ttl), open(t, s, c, ttl)
		monitor, err := net.Dial("tcp", s.addr)
		require.NoError(t, err)
		defer monitor.Close()
		lines := bufio.NewScanner(monitor)
		fmt.Fprint(monitor, "MONITOR\r\n")
		require.True(t, lines.Scan())

		before, err := s.info(ctx)
		require.NoError(t, err)
		for range 3 {
			l, err := a.TryLock(ctx, "k")
			require.NoError(t, err)
			_, err = b.TryLock(ctx, "k")
			require.ErrorIs(t, err, errHeld)
			if slices.Contains(waiting, c.name) {
				in := make(chan error, 1)
				go func() { in <- waitAndLeave(ctx, b) }()
				pause(ctx, 20*time.Millisecond)
				require.NoError(t, l.Unlock(ctx))
				mayHang(t, c, <-in)
				continue
			}
			require.NoError(t, l.Unlock(ctx))
		}
		after, err := s.info(ctx)
		require.NoError(t, err)
		for command, n := range before.calls {
			after.calls[command] -= n
		}
		client, script := sent(after.calls, c.sends...)

		require.NoError(t, s.admin.Echo(ctx, "the end").Err())
		var seenClient, seenScript int64
		for lines.Scan() && !strings.Contains(lines.Text(), `"the end"`) {
			_, command, _ := strings.Cut(lines.Text(), "] ")
			switch name := strings.ToLower(strings.Trim(strings.Fields(command)[0], `"`)); {
			case strings.Contains(lines.Text(), " lua] "):
				seenScript++
			case name != "hello" && name != "client" && name != "info" && name != "command":
				seenClient++
			}
		}
		require.Equal(t, seenClient, client, "of %v", after.calls)
		require.Equal(t, seenScript, script, "of %v", after.calls)
	})
}

func TestTheServerIsGoneAfterStop(t *testing.T) {
	needRedis(t)
	s, err := startServer(t.Context())
	require.NoError(t, err)
	s.stop()
	_, err = net.Dial("tcp", s.addr)
	require.Error(t, err)
	require.NoDirExists(t, s.dir)
}
