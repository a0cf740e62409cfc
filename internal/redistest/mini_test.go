package redistest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

type dialer = func(opts ...func(*redis.Options)) *redis.Client

func TestMiniExpiresKeysOnlyWhenItsClockIsMoved(t *testing.T) {
	m, c := Mini(t)
	ctx := t.Context()
	must(t, c.Set(ctx, "k", "v", time.Second).Err())
	if got := c.PTTL(ctx, "k").Val(); got != time.Second {
		t.Errorf("PTTL = %v, want %v", got, time.Second)
	}
	m.FastForward(time.Second)
	if got := c.Exists(ctx, "k").Val(); got != 0 {
		t.Error("the key is still there after its TTL")
	}
}

func TestBubbleRunsTTLAndTIMEOnItsClock(t *testing.T) {
	Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial dialer) {
		c, ctx := dial(), t.Context()
		must(t, c.Set(ctx, "k", "v", 2*time.Hour).Err())
		if now := c.Time(ctx).Val(); !now.Equal(time.Now()) {
			t.Errorf("TIME = %v, want %v", now, time.Now())
		}

		time.Sleep(time.Hour)
		if got := c.PTTL(ctx, "k").Val(); got != time.Hour {
			t.Errorf("PTTL = %v, want 1h", got)
		}
		must(t, c.PExpire(ctx, "k", time.Minute).Err())
		time.Sleep(time.Minute - time.Millisecond)
		if got := c.Get(ctx, "k").Val(); got != "v" {
			t.Errorf("GET = %q just before the TTL has passed", got)
		}
		time.Sleep(time.Millisecond)
		if err := c.Get(ctx, "k").Err(); !errors.Is(err, redis.Nil) {
			t.Errorf("GET after the TTL: %v, want redis.Nil", err)
		}
		if now := c.Time(ctx).Val(); !now.Equal(time.Now()) {
			t.Errorf("TIME = %v, want %v", now, time.Now())
		}
	})
}

func TestBubbleCarriesSubscriptions(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial dialer) {
			ctx := t.Context()
			resp := func(o *redis.Options) { o.Protocol = protocol }
			pub, sub := dial(resp), dial(resp).Subscribe(ctx, "a")
			defer sub.Close()
			in := sub.ChannelWithSubscriptions()
			if got, ok := (<-in).(*redis.Subscription); !ok || got.Channel != "a" {
				t.Fatalf("got %v, want the confirmation of a", got)
			}
			must(t, sub.Subscribe(ctx, "b"))
			if got, ok := (<-in).(*redis.Subscription); !ok || got.Channel != "b" {
				t.Fatalf("got %v, want the confirmation of b", got)
			}

			// The health check pings on the bubble's clock, and finds nothing wrong.
			time.Sleep(time.Hour)
			n, err := pub.Eval(ctx, "return redis.call('PUBLISH', KEYS[1], ARGV[1])", []string{"b"}, "hello").Int()
			if n != 1 || err != nil {
				t.Fatalf("PUBLISH in a script = %d, %v; want 1", n, err)
			}
			if got, ok := (<-in).(*redis.Message); !ok || got.Channel != "b" || got.Payload != "hello" {
				t.Fatalf("got %v, want the message", got)
			}
			must(t, sub.Unsubscribe(ctx, "b"))
			if got, ok := (<-in).(*redis.Subscription); !ok || got.Kind != "unsubscribe" {
				t.Fatalf("got %v, want the end of b", got)
			}
		})
	}
}

// What would be left over of a bubble is reported by synctest.
func TestBubbleEndsWhateverStateItsClientsAreIn(t *testing.T) {
	Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial dialer) {
		var wire *DialFault
		c := dial(func(o *redis.Options) {
			wire = FaultyDialer(o.Dialer)
			o.Dialer = wire.Dial
		})
		t.Cleanup(func() {
			if err := dial().Ping(context.Background()).Err(); err != nil {
				t.Errorf("the server is gone before the test's own cleanup: %v", err)
			}
		})
		sub := c.Subscribe(t.Context(), "a")
		defer sub.Close()
		messages := sub.Channel()
		must(t, c.Ping(t.Context()).Err())

		wire.Refuse()
		time.Sleep(10 * time.Second)
		wire.Pass()
		time.Sleep(10 * time.Second)
		must(t, c.Publish(t.Context(), "a", "back").Err())
		if got := <-messages; got.Payload != "back" {
			t.Errorf("got %v from the subscription that was cut", got)
		}

		wire.Delay(time.Second)
		go func() { _ = c.Ping(context.Background()) }()
		synctest.Wait()
		wire.BlackHole()
		go func() { _ = c.Ping(context.Background()) }()
		synctest.Wait()
	})
}

// What a script must not rely on, because the two servers differ, or may rely
// on, because they do not. If miniredis catches up, a line can go.
func TestMiniredisIsNotRedis(t *testing.T) {
	t.Parallel()
	_, mini := Mini(t)
	real := Server(t).Client()
	for name, tt := range map[string]struct{ script, redis, mini string }{
		// Numbers. Send and return what has more than 14 digits by '%.0f'.
		"tostring of 16 digits":    {`return tostring(1764000000123456)`, "1.7640000001235e+15", "1764000000123456"},
		"concatenated 16 digits":   {`return '' .. 1764000000123456`, "1.7640000001235e+15", "1764000000123456"},
		"formatted 16 digits":      {`return string.format('%.0f', 1764000000123456)`, "1764000000123456", "1764000000123456"},
		"16 digits as an argument": {`redis.call('SET', KEYS[1], 1764000000123456) return redis.call('GET', KEYS[1])`, "1764000000123456", "1764000000123456"},
		"17 digits as an argument": {`redis.call('SET', KEYS[1], 1e17) return redis.call('GET', KEYS[1])`, "1e+17", "100000000000000000"},
		"fraction as a score":      {`redis.call('ZADD', KEYS[1], '1.1', 'm') return redis.call('ZSCORE', KEYS[1], 'm')`, "1.1000000000000001", "1.1"},
		"returned fraction":        {`return 3.99`, "3", "3"},
		"tonumber of 1e3":          {`return tostring(tonumber('1e3'))`, "1000", "nil"},
		"tonumber of inf":          {`return tostring(tonumber('inf'))`, "inf", "nil"},
		"infinity":                 {`return tostring(math.huge)`, "inf", "1.7976931348623157e+308"},

		// Errors. Only what a script returns keeps its code; what it throws does
		// not. Check types before the call, or pcall and return.
		"code of a thrown error":   {`redis.call('LPUSH', KEYS[1], 'x') return redis.call('GET', KEYS[1])`, "WRONGTYPE", "ERR"},
		"code of a returned error": {`redis.call('LPUSH', KEYS[1], 'x') return redis.pcall('GET', KEYS[1])`, "WRONGTYPE", "WRONGTYPE"},
		"code of error_reply":      {`return redis.error_reply('MINE no')`, "MINE", "MINE"},
		"code of error with table": {`error({err = 'MINE no'})`, "MINE", "ERR"},
		"pcall of a bad argument":  {`return redis.pcall('GET', true).err and 'caught'`, "caught", "ERR"},

		// Time to live. Check ranges before the call.
		"PX beyond 292 years": {`redis.call('SET', KEYS[1], 'v', 'PX', '9460800000000') return redis.call('PTTL', KEYS[1]) > 0 and 'alive'`, "alive", "<nil>"},
		"PX beyond 64 bits":   {`return redis.pcall('SET', KEYS[1], 'v', 'PX', '9223372036854775807')`, "ERR", "OK"},

		// What only one of them has.
		"SPUBLISH":         {`return redis.call('SPUBLISH', KEYS[1], 'm')`, "0", "ERR"},
		"shebang":          {"#!lua flags=no-writes\nreturn 1", "1", "ERR"},
		"bit":              {`return bit.band(5, 3)`, "1", "ERR"},
		"cmsgpack":         {`return type(cmsgpack)`, "table", "ERR"},
		"goto":             {`goto done ::done:: return 1`, "ERR", "1"},
		"print":            {`return type(print)`, "ERR", "function"},
		"BLPOP":            {`redis.call('RPUSH', KEYS[1], 'v') return redis.call('BLPOP', KEYS[1], 0)[2]`, "ERR", "v"},
		"a sign for INCR":  {`redis.call('SET', KEYS[1], '+1') return redis.call('INCR', KEYS[1])`, "ERR", "2"},
		"a global is made": {`x = 1 return x`, "ERR", "ERR"},
	} {
		t.Run(name, func(t *testing.T) {
			for server, want := range map[*redis.Client]string{real: tt.redis, mini: tt.mini} {
				must(t, server.FlushAll(t.Context()).Err())
				reply, err := server.Eval(t.Context(), tt.script, []string{"k"}).Result()
				got := fmt.Sprint(reply)
				if err != nil && !errors.Is(err, redis.Nil) {
					got, _, _ = strings.Cut(err.Error(), " ")
				}
				if got != want {
					t.Errorf("%v: got %q, want %q", server.Options().Addr, got, want)
				}
			}
		})
	}
}
