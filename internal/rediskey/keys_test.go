package rediskey_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// awkwardKeys are keys on which a hash tag could be put wrong.
func awkwardKeys() []string {
	keys := []string{
		"a", "a{b}c", "{a}", "{a}{b}", "{}", "{}x{y}", "{{}}", "{a{b}c}", "}{", "}{a}", "a}b", "a{b", "{", "}", "{}a", "a{}",
		"two words", "line\nbreak", "\r\n", "tab\t", "naïve", "鍵", "ключ", "\xff\xfe", "a:b", ":", "::", "leasehold", "leasehold:",
		strings.Repeat("k", 1024), strings.Repeat("}", 1024), strings.Repeat("{", 1024), strings.Repeat("{}", 512),
	}
	var all []byte
	for b := range 256 {
		all = append(all, byte(b))
		keys = append(keys, string([]byte{byte(b)}), string([]byte{'a', byte(b), '}'}))
	}
	return append(keys, string(all))
}

// shortKeys are all keys of up to n characters of {}ab.
func shortKeys(n int) []string {
	last, all := []string{""}, []string(nil)
	for range n {
		var next []string
		for _, s := range last {
			for _, c := range "{}ab" {
				next = append(next, s+string(c))
			}
		}
		last, all = next, append(all, next...)
	}
	return all
}

var (
	goodPrefixes = []string{"", "p:", "{t}:", "x{t}y", "}{t}", "{t}{", "{t}}", "{{t}"}
	badPrefixes  = []string{"{", "}", "a{", "a}", "}{", "{}", "{}{t}", "{}:", "{a"}
	allKinds     = append(rediskey.Kinds[:len(rediskey.Kinds):len(rediskey.Kinds)], rediskey.Holders, rediskey.Grants, rediskey.Fenced, rediskey.Wake)
)

// The names belong to the protocol: versions of the library that run side by side must agree on them.
func TestNamesOfDerivedKeys(t *testing.T) {
	for _, tt := range []struct{ prefix, key, name string }{
		{"", "abc", "leasehold:line:{abc}"},
		{"", "a{b", "leasehold:line:{a{b}"},
		{"", "a{b}c", "leasehold:line::a{b}c"},
		{"", "a}b", "leasehold:line:{20658}a}b"},
		{"", "{}", "leasehold:line:{42430}{}"},
		{"p:", "p:abc", "p:leasehold:line:{p:abc}"},
		{"{t}:", "{t}:abc", "{t}:leasehold:line::{t}:abc"},
	} {
		assert.Equal(t, tt.name, string(rediskey.Derive(nil, tt.prefix, "line", tt.key)))
	}
	assert.Equal(t, "leasehold:wake:", rediskey.WakeChannel)
}

func TestDerivedKeysAreInTheSlotOfTheirKey(t *testing.T) {
	t.Parallel()
	c := redistest.Server(t, "--cluster-enabled", "yes").Client()
	keys := append(awkwardKeys(), shortKeys(5)...)
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		key := make([]byte, 1+random.IntN(40))
		for i := range key {
			key[i] = "{}ab"[random.IntN(4)]
		}
		keys = append(keys, string(key))
	}
	var names, of []string // a name, and the key that it belongs to
	for _, prefix := range goodPrefixes {
		some := keys
		if prefix != "" {
			some = awkwardKeys()
		}
		for _, key := range some {
			key = prefix + key
			for _, kind := range allKinds {
				names, of = append(names, string(rediskey.Derive(nil, prefix, kind, key))), append(of, key)
			}
		}
	}
	serverSlots := func(keys []string) (slots []int) {
		for some := range slices.Chunk(keys, 4096) {
			pipe := c.Pipeline()
			for _, key := range some {
				pipe.ClusterKeySlot(t.Context(), key)
			}
			replies, err := pipe.Exec(t.Context())
			require.NoError(t, err)
			for _, reply := range replies {
				slots = append(slots, int(reply.(*redis.IntCmd).Val()))
			}
		}
		return slots
	}
	got, want := serverSlots(names), serverSlots(of)
	for i, name := range names {
		require.Equal(t, want[i], rediskey.Slot(of[i]), "rediskey.Slot(%q)", of[i])
		require.Equal(t, want[i], got[i], "%q, derived from %q", name, of[i])
	}
}

// Whatever Redis takes for a key is a lock, and leaves nothing without the prefix or without a TTL.
func TestAnyKeyCanBeLockedInACluster(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t, "--cluster-enabled", "yes")
	c := s.Client()
	require.NoError(t, c.ClusterAddSlotsRange(t.Context(), 0, rediskey.Slots-1).Err())
	require.Eventually(t, func() bool { // a node waits for two seconds before it serves
		return strings.Contains(c.ClusterInfo(t.Context()).Val(), "cluster_state:ok")
	}, 10*time.Second, 5*time.Millisecond)
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.Addr()}})
	defer cluster.Close()
	for _, prefix := range goodPrefixes {
		l := leasehold.New(cluster, leasehold.WithKeyPrefix(prefix))
		for i, key := range awkwardKeys() {
			if i%17 > 0 && (prefix != "" || len(key) == 1 || len(key) == 3) {
				continue
			}
			lease, err := l.TryAcquire(t.Context(), key, time.Minute)
			require.NoError(t, err, "%q", key)
			require.Equal(t, prefix+key, lease.Key())
			state, err := l.Inspect(t.Context(), key)
			require.NoError(t, err, "%q", key)
			require.True(t, state.Held, "%q", key)
			_, err = l.TryAcquire(t.Context(), key, time.Minute)
			require.ErrorIs(t, err, leasehold.ErrHeld, "%q", key)
			require.NoError(t, lease.Renew(t.Context()), "%q", key)
			require.NoError(t, lease.Release(t.Context()), "%q", key)
		}
		require.NoError(t, l.Close())
		names, err := c.Keys(t.Context(), "*").Result()
		require.NoError(t, err)
		for _, name := range names {
			require.True(t, strings.HasPrefix(name, prefix), "%q", name)
			require.Positive(t, c.PTTL(t.Context(), name).Val(), "%q", name)
		}
		require.NoError(t, c.FlushAll(t.Context()).Err())
	}
}

func TestDerivedNamesNeverMeet(t *testing.T) {
	keys := append(awkwardKeys(), shortKeys(5)...)
	for _, prefix := range goodPrefixes {
		seen := map[string]string{}
		for _, key := range keys {
			key = prefix + key
			for _, kind := range allKinds {
				name, of := string(rediskey.Derive(nil, prefix, kind, key)), fmt.Sprintf("the %s of %q", kind, key)
				if other, met := seen[name]; met && other != of {
					t.Fatalf("%q is %s and %s", name, of, other)
				}
				seen[name] = of
			}
		}
		for _, key := range keys {
			if of, met := seen[prefix+key]; met {
				t.Errorf("the key %q is %s", prefix+key, of)
			}
		}
	}
}

// isRefused reports whether a Locker refuses the key, before anything is sent.
func isRefused(prefix, key string) bool {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := leasehold.New(nowhere, leasehold.WithKeyPrefix(prefix)).Inspect(ctx, key)
	return errors.Is(err, leasehold.ErrInvalid)
}

var nowhere = redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})

func FuzzDerivedNames(f *testing.F) {
	f.Add("a{b}c", "{}", "")
	f.Add("a", "a}", "p:")
	f.Add("20658}a}b", "a}b", "{t}")
	f.Fuzz(func(t *testing.T, one, two, prefix string) {
		if isRefused(prefix, one) || isRefused(prefix, two) {
			return
		}
		one, two = prefix+one, prefix+two
		for i, kind := range allKinds {
			name := rediskey.Derive(nil, prefix, kind, one)
			require.Equal(t, rediskey.Slot(one), rediskey.Slot(string(name)))
			for j, other := range allKinds {
				if one != two || i != j {
					require.NotEqual(t, name, rediskey.Derive(nil, prefix, other, two))
				}
			}
			require.NotEqual(t, string(name), one)
			require.NotEqual(t, string(name), two)
		}
	})
}

func TestKeysThatCannotBeUsedAreRefusedBeforeAnythingIsSent(t *testing.T) {
	type use struct{ prefix, key string }
	refused := []use{
		{"", ""}, {"p:", ""},
		{"", "leasehold:line:{x}"}, {"", "leasehold:counter::a{x}"}, {"", "leasehold:marks:"}, {"", "leasehold:undone:{x}"},
		{"", "leasehold:fenced:{x}"}, {"p:", "leasehold:line:{x}"}, {"leasehold:", "line:{x}"}, {"leasehold:line:", "{x}"},
	}
	for _, prefix := range badPrefixes {
		refused = append(refused, use{prefix, "x"}, use{prefix, "}x"}, use{prefix, "a}{b}"})
	}
	redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
		c := dial()
		fault := redistest.Faulty(c)
		for _, u := range refused {
			l := leasehold.New(c, leasehold.WithKeyPrefix(u.prefix))
			for _, e := range locktest.EntryPoints(t) {
				err := e.Call(l, u.key, time.Minute)
				require.ErrorIs(t, err, leasehold.ErrInvalid, "%s(%q, %q)", e.Name, u.prefix, u.key)
			}
			require.NoError(t, l.Close())
		}
		assert.Empty(t, fault.Sent())

		for _, key := range []string{"leasehold", "leasehold:", "leasehold:line", "leasehold:other:x", "xleasehold:line:x", "Leasehold:line:x", "leasehold:wake:x"} {
			l := leasehold.New(c)
			lease, err := l.TryAcquire(t.Context(), key, time.Minute)
			require.NoError(t, err, "%q", key)
			require.NoError(t, lease.Release(t.Context()))
			require.NoError(t, l.Close())
		}
	})
}
