package locktest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/inside"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/redis/go-redis/v9"
)

// Sentinels are all reasons that a caller may tell apart, by name.
var Sentinels = map[string]error{
	"held": leasehold.ErrHeld, "lost": leasehold.ErrLost, "released": leasehold.ErrReleased, "stale": leasehold.ErrStale, "closed": leasehold.ErrClosed, "no quorum": leasehold.ErrNoQuorum,
	"invalid": leasehold.ErrInvalid, "unavailable": leasehold.ErrUnavailable, "canceled": context.Canceled, "deadline": context.DeadlineExceeded,
}

// KindsOf names the sentinels that an error matches, in a fixed order.
func KindsOf(err error) (kinds []string) {
	for _, name := range []string{"held", "lost", "released", "stale", "closed", "no quorum", "invalid", "unavailable", "canceled", "deadline"} {
		if errors.Is(err, Sentinels[name]) {
			kinds = append(kinds, name)
		}
	}
	return kinds
}

// ServerSays is an error of the server's.
type ServerSays string

func (e ServerSays) Error() string { return string(e) }

func (ServerSays) RedisError() {}

// EntryPoint is a method that takes a key; those with a TTL are tested with it too.
type EntryPoint struct {
	Name string
	Call func(l *leasehold.Locker, key string, ttl time.Duration, opts ...leasehold.Option) error
	Ttl  bool
}

// EntryPoints has them all. An Adopt is of a token that holds nothing.
func EntryPoints(t *testing.T) []EntryPoint { return EntryPointsOf(t.Context()) }

// EntryPointsOf has them with another context.
func EntryPointsOf(ctx context.Context) []EntryPoint {
	fn := func(_ context.Context, _ *leasehold.Lease) error { return nil }
	return []EntryPoint{
		{"TryAcquire", func(l *leasehold.Locker, key string, ttl time.Duration, opts ...leasehold.Option) error {
			_, err := l.TryAcquire(ctx, key, ttl, opts...)
			return err
		}, true},
		{"Acquire", func(l *leasehold.Locker, key string, ttl time.Duration, opts ...leasehold.Option) error {
			_, err := l.Acquire(ctx, key, ttl, opts...)
			return err
		}, true},
		{"WithLock", func(l *leasehold.Locker, key string, ttl time.Duration, opts ...leasehold.Option) error {
			return l.WithLock(ctx, key, ttl, fn, opts...)
		}, true},
		{"TryWithLock", func(l *leasehold.Locker, key string, ttl time.Duration, opts ...leasehold.Option) error {
			return l.TryWithLock(ctx, key, ttl, fn, opts...)
		}, true},
		{"Adopt", func(l *leasehold.Locker, key string, ttl time.Duration, opts ...leasehold.Option) error {
			_, err := l.Adopt(ctx, key, "token", ttl, opts...)
			return err
		}, true},
		{"Inspect", func(l *leasehold.Locker, key string, _ time.Duration, _ ...leasehold.Option) error {
			_, err := l.Inspect(ctx, key)
			return err
		}, false},
		{"ForceRelease", func(l *leasehold.Locker, key string, _ time.Duration, _ ...leasehold.Option) error {
			return l.ForceRelease(ctx, key)
		}, false},
	}
}

var FencedSet = leasehold.NewFencedScript("return 1")

// StoreOn is the store of a Locker on the client.
func StoreOn(t testing.TB, client redis.UniversalClient) backend.Backend {
	l := leasehold.New(client)
	t.Cleanup(func() { _ = l.Close() })
	return inside.Of(l).Backend
}

// ScriptKeys are the keys of a lock by the letters that the scripts give them.
func ScriptKeys(key string) map[string]string {
	keys := map[string]string{"K": key}
	for i, kind := range rediskey.Kinds {
		keys["QFGD"[i:i+1]] = string(rediskey.Derive(nil, "", kind, key))
	}
	return keys
}

func TestRequest(key string) backend.Request {
	return backend.Request{Key: key, Token: "AAAAAAAAAAAAAAAA." + key, PX: 60_000}
}
