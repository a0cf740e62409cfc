package redistest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// onBothWires runs fn behind a FaultyDialer in a bubble and behind a Proxy.
// The clients do not retry unless fn says so.
func onBothWires(t *testing.T, fn func(t *testing.T, w *Wire, m *miniredis.Miniredis, dial dialer)) {
	t.Run("in a bubble", func(t *testing.T) {
		Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial dialer) {
			wire := FaultyDialer(func(context.Context, string, string) (net.Conn, error) { return m.Dial() })
			defer wire.Close()
			fn(t, &wire.Wire, m, func(opts ...func(*redis.Options)) *redis.Client {
				return dial(append([]func(*redis.Options){func(o *redis.Options) {
					o.Dialer, o.MaxRetries, o.DialerRetries = wire.Dial, -1, 1
				}}, opts...)...)
			})
		})
	})
	t.Run("on TCP", func(t *testing.T) {
		m, _ := Mini(t)
		proxy := Proxy(t, m.Addr())
		fn(t, &proxy.Wire, m, func(opts ...func(*redis.Options)) *redis.Client {
			o := &redis.Options{Addr: proxy.Addr(), MaxRetries: -1, DialerRetries: 1}
			for _, opt := range opts {
				opt(o)
			}
			c := redis.NewClient(o)
			t.Cleanup(func() { _ = c.Close() })
			return c
		})
	})
}

func TestDroppedReplyLeavesTheCommandDone(t *testing.T) {
	onBothWires(t, func(t *testing.T, w *Wire, m *miniredis.Miniredis, dial dialer) {
		c, ctx := dial(), t.Context()
		w.DropReplies(1, "incr")
		must(t, c.Set(ctx, "k", 5, 0).Err())
		if err := c.Incr(ctx, "k").Err(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("got %v, want the end of the connection", err)
		}
		if n, err := c.Incr(ctx, "k").Result(); n != 7 || err != nil {
			t.Errorf("INCR after the dropped one = %d, %v; want 7", n, err)
		}

		// go-redis sends again what it has no reply to: this is how a script
		// comes to run twice for one call.
		w.DropReplies(2)
		again := dial(func(o *redis.Options) { o.MaxRetries = 2 })
		if n, err := again.Incr(ctx, "k").Result(); n != 10 || err != nil {
			t.Errorf("INCR with two dropped replies = %d, %v; want 10", n, err)
		}
	})
}

func TestDuplicatedRequestRunsTwiceAndIsAnsweredOnce(t *testing.T) {
	onBothWires(t, func(t *testing.T, w *Wire, m *miniredis.Miniredis, dial dialer) {
		c, ctx := dial(), t.Context()
		w.Duplicate("incr")
		for i, want := range []int64{1, 3, 4} {
			if n, err := c.Incr(ctx, "k").Result(); n != want || err != nil {
				t.Errorf("INCR %d = %d, %v; want %d", i, n, err, want)
			}
			if s := c.Echo(ctx, "hello").Val(); s != "hello" {
				t.Errorf("the reply to ECHO is %q", s)
			}
		}
	})
}

func TestCutRequestRunsOnlyIfItIsWhole(t *testing.T) {
	const request = "*2\r\n$4\r\nincr\r\n$1\r\nk\r\n"
	onBothWires(t, func(t *testing.T, w *Wire, m *miniredis.Miniredis, dial dialer) {
		c, ctx := dial(), t.Context()
		for n := range len(request) {
			w.CutRequest(n)
			if err := c.Incr(ctx, "k").Err(); err == nil {
				t.Fatalf("INCR cut after %d bytes was answered", n)
			}
		}
		if n, err := c.Incr(ctx, "k").Result(); n != 1 || err != nil {
			t.Errorf("INCR after the cut ones = %d, %v; want 1", n, err)
		}
		w.CutRequest(len(request))
		if err := c.Incr(ctx, "k").Err(); err == nil {
			t.Fatal("INCR cut behind its last byte was answered")
		}
		for deadline := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
			if v, _ := m.Get("k"); v == "2" {
				break
			} else if time.Now().After(deadline) {
				t.Fatalf("k = %s, want 2: the whole request did not arrive", v)
			}
		}
	})
}

func TestCutReplyIsAnError(t *testing.T) {
	const reply = ":1\r\n"
	onBothWires(t, func(t *testing.T, w *Wire, m *miniredis.Miniredis, dial dialer) {
		for n := range len(reply) {
			m.FlushAll()
			w.CutReply(n)
			if err := dial().Incr(t.Context(), "k").Err(); err == nil {
				t.Fatalf("INCR with a reply cut after %d bytes succeeded", n)
			}
			m.CheckGet(t, "k", "1")
		}
	})
}

func TestBlackHoleAcceptsAndNeverAnswers(t *testing.T) {
	onBothWires(t, func(t *testing.T, w *Wire, m *miniredis.Miniredis, dial dialer) {
		ctx := t.Context()
		impatient := func(o *redis.Options) { o.ReadTimeout = 100 * time.Millisecond }
		old, young := dial(impatient), dial(impatient)
		must(t, old.Ping(ctx).Err())
		w.BlackHole()
		for _, c := range []*redis.Client{old, young} {
			if err := c.Incr(ctx, "k").Err(); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("got %v, want a timeout", err)
			}
		}
		w.Pass()
		if n, err := old.Incr(ctx, "k").Result(); n != 1 || err != nil {
			t.Errorf("INCR after the black hole = %d, %v; want 1", n, err)
		}
		if n := w.Connections(); n != 3 {
			t.Errorf("%d connections, want 3", n)
		}
	})
}

func TestRefuseCutsAndTurnsAway(t *testing.T) {
	onBothWires(t, func(t *testing.T, w *Wire, m *miniredis.Miniredis, dial dialer) {
		c, ctx := dial(), t.Context()
		must(t, c.Ping(ctx).Err())
		w.Refuse()
		for range 2 { // on the old connection, on a new one
			err := c.Ping(ctx).Err()
			if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("got %v, want the end of the connection", err)
			}
		}
		w.Pass()
		must(t, c.Ping(ctx).Err())
	})
}

func TestCutOfAnIdleConnectionIsNotSeenByTheNextCall(t *testing.T) {
	onBothWires(t, func(t *testing.T, w *Wire, m *miniredis.Miniredis, dial dialer) {
		c := dial()
		must(t, c.Ping(t.Context()).Err())
		w.Cut()
		must(t, c.Ping(t.Context()).Err())
		if n := w.Connections(); n != 2 {
			t.Errorf("%d connections, want 2", n)
		}
	})
}

func TestDelayedRequestArrivesAfterItsClientHasGone(t *testing.T) {
	onBothWires(t, func(t *testing.T, w *Wire, m *miniredis.Miniredis, dial dialer) {
		ctx := t.Context()
		const delay = 100 * time.Millisecond
		patient := dial()
		impatient := dial(func(o *redis.Options) { o.ReadTimeout = delay / 2 })
		must(t, patient.Ping(ctx).Err())
		must(t, impatient.Ping(ctx).Err())

		w.Delay(delay)
		start := time.Now()
		must(t, patient.Ping(ctx).Err())
		if took := time.Since(start); took < 2*delay {
			t.Errorf("PING took %v, want %v each way", took, delay)
		}
		if err := impatient.Incr(ctx, "k").Err(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("got %v, want a timeout", err)
		}
		if m.Exists("k") {
			t.Error("the request was not delayed")
		}
		w.Delay(0)
		for deadline := time.Now().Add(10 * delay); !m.Exists("k"); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the late request never arrived")
			}
		}
	})
}

func TestDropRepliesCutsASubscription(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		onBothWires(t, func(t *testing.T, w *Wire, m *miniredis.Miniredis, dial dialer) {
			c, ctx := dial(func(o *redis.Options) { o.Protocol = protocol }), t.Context()
			w.DropReplies(1, "subscribe")
			sub := c.Subscribe(ctx, "a")
			defer sub.Close()
			in := sub.ChannelWithSubscriptions()
			if got, ok := (<-in).(*redis.Subscription); !ok {
				t.Fatalf("got %v, want the confirmation", got)
			}
			if n := w.Connections(); n != 2 {
				t.Errorf("confirmed on connection %d, want 2", n)
			}
			must(t, c.Publish(ctx, "a", "hello").Err())
			if got, ok := (<-in).(*redis.Message); !ok || got.Payload != "hello" {
				t.Fatalf("got %v, want the message", got)
			}

			w.Cut()
			if got, ok := (<-in).(*redis.Subscription); !ok {
				t.Fatalf("got %v, want a second confirmation after a cut", got)
			}
		})
	}
}

func TestHangingUpIsPassedOn(t *testing.T) {
	onBothWires(t, func(t *testing.T, w *Wire, m *miniredis.Miniredis, dial dialer) {
		before := m.CurrentConnectionCount()
		c := dial()
		must(t, c.Ping(t.Context()).Err())
		must(t, c.Close())
		for deadline := time.Now().Add(time.Second); m.CurrentConnectionCount() > before; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the server still has the connection of a client that is closed")
			}
		}

		c = dial()
		must(t, c.Ping(t.Context()).Err())
		m.Close()
		if err := c.Ping(t.Context()).Err(); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the client waits for a server that is closed")
		}
	})
}

func TestClosedClientEndsItsCalls(t *testing.T) {
	onBothWires(t, func(t *testing.T, w *Wire, m *miniredis.Miniredis, dial dialer) {
		c := dial()
		must(t, c.Ping(t.Context()).Err())
		w.BlackHole()
		time.AfterFunc(20*time.Millisecond, func() { _ = c.Close() })
		if err := c.Ping(context.Background()).Err(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v, want net.ErrClosed", err)
		}
	})
}

func TestFaultsActOnWhatIsUnderWay(t *testing.T) {
	Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial dialer) {
		var w *DialFault
		c := dial(func(o *redis.Options) {
			w = FaultyDialer(o.Dialer)
			o.Dialer, o.MaxRetries = w.Dial, -1
		})
		start := func(key string) <-chan error {
			done := make(chan error, 1)
			must(t, c.Ping(t.Context()).Err())
			w.Delay(time.Second)
			go func() { done <- c.Incr(t.Context(), key).Err() }()
			return done
		}

		done := start("replied")
		time.Sleep(time.Second + time.Millisecond)
		m.CheckGet(t, "replied", "1")
		w.BlackHole()
		if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("BlackHole behind the request: %v, want a timeout", err)
		}
		w.Pass()
		w.Delay(0)

		done = start("requested")
		synctest.Wait()
		w.DropReplies(1, "incr")
		w.Cut()
		if err := <-done; !errors.Is(err, io.EOF) {
			t.Errorf("Cut before the request arrived: %v, want EOF", err)
		}
		time.Sleep(time.Minute)
		if m.Exists("requested") {
			t.Error("a request arrived over a connection that was cut before")
		}
		if err := c.Incr(t.Context(), "requested").Err(); !errors.Is(err, io.EOF) {
			t.Error("a request that never arrived has used up the fault of the next one")
		}
	})
}

func TestDelayInABubbleIsExact(t *testing.T) {
	Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial dialer) {
		var wire *DialFault
		c := dial(func(o *redis.Options) {
			wire = FaultyDialer(o.Dialer)
			o.Dialer = wire.Dial
		})
		must(t, c.Ping(t.Context()).Err())
		wire.Delay(time.Second)
		start := time.Now()
		must(t, c.Ping(t.Context()).Err())
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("PING took %v, want 2s", took)
		}
		synctest.Wait()
	})
}

func TestReadFrameFindsTheEndOfEveryReply(t *testing.T) {
	frames := []string{
		"+OK\r\n", "-ERR no\r\n", ":-1\r\n", "_\r\n", "#t\r\n", ",1.5\r\n", "(123\r\n", "PING\r\n",
		"$-1\r\n", "$0\r\n\r\n", "$4\r\na\r\nb\r\n", "=5\r\ntxt:x\r\n", "!3\r\nERR\r\n",
		"*-1\r\n", "*0\r\n", "*2\r\n$1\r\na\r\n*1\r\n:1\r\n", "~1\r\n:1\r\n", ">2\r\n+a\r\n+b\r\n",
		"%1\r\n+k\r\n*1\r\n:1\r\n", "|1\r\n+k\r\n+v\r\n:1\r\n",
	}
	r := bufio.NewReader(strings.NewReader(strings.Join(frames, "")))
	for _, want := range frames {
		if got, err := readFrame(r); string(got) != want || err != nil {
			t.Fatalf("got %q, %v; want %q", got, err, want)
		}
	}
	if _, err := readFrame(r); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func TestForgottenConnectionsSwallowEverythingAndNewOnesWork(t *testing.T) {
	onBothWires(t, func(t *testing.T, w *Wire, _ *miniredis.Miniredis, dial dialer) {
		c, ctx := dial(func(o *redis.Options) { o.ReadTimeout = 50 * time.Millisecond }), t.Context()
		must(t, c.Set(ctx, "k", "old", 0).Err())
		w.Forget()
		if err := c.Set(ctx, "k", "new", 0).Err(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("on a forgotten connection: %v, want a timeout", err)
		}
		if s, err := c.Get(ctx, "k").Result(); s != "old" || err != nil {
			t.Errorf("on a new one: %q, %v; want the value before", s, err)
		}
	})
}
