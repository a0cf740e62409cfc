package fenced_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
)

// gate is what judges the tokens of exclusive and of shared leases.
type gate struct{ admit, admitShared func(token int64) error }

func onEachGate(t *testing.T, test func(t *testing.T, g gate, mark func() string)) {
	t.Run("Guard", func(t *testing.T) {
		var guard leasehold.Guard
		test(t, gate{
			func(token int64) error { return guard.Admit("r", token) },
			func(token int64) error { return guard.AdmitShared("r", token) },
		}, nil)
	})
	onEachRedis(t, func(t *testing.T, client *redis.Client) {
		script := leasehold.NewFencedScript(`return 7`)
		test(t, gate{
			func(token int64) error { _, err := script.Run(t.Context(), client, "r", token, nil); return err },
			func(token int64) error { _, err := script.RunShared(t.Context(), client, "r", token, nil); return err },
		}, func() string { return client.Get(t.Context(), mark).Val() })
	})
}

// Two readers hold, the newer one comes first. A writer comes behind them, and then a reader behind the writer.
func TestASharedLeaseIsRefusedForTheTokenOfAnExclusiveOneAlone(t *testing.T) {
	onEachGate(t, func(t *testing.T, g gate, mark func() string) {
		is := func(want string) {
			t.Helper()
			if mark != nil {
				assert.Equal(t, want, mark())
			}
		}
		require.NoError(t, g.admitShared(8))
		is("0 8")
		require.NoError(t, g.admitShared(7), "the other reader holds too")
		is("0 8")
		requireStale(t, g.admit(6), 6, 8)
		requireStale(t, g.admit(7), 7, 8)
		is("0 8")
		require.NoError(t, g.admit(9))
		is("9")
		requireStale(t, g.admitShared(8), 8, 9)
		is("9")
		require.NoError(t, g.admitShared(12))
		is("9 12")
		require.NoError(t, g.admitShared(10))
		is("9 12")
		requireStale(t, g.admitShared(8), 8, 9)
		requireStale(t, g.admit(11), 11, 12)
		require.NoError(t, g.admit(12))
		is("12")
		require.NoError(t, g.admitShared(math.MaxInt64))
		requireStale(t, g.admit(math.MaxInt64-1), math.MaxInt64-1, math.MaxInt64)
		require.NoError(t, g.admitShared(math.MaxInt64-1))
		require.ErrorIs(t, g.admitShared(0), leasehold.ErrInvalid)
	})
}

// Any order of tokens, beside the rule written down once more.
func TestWhoIsAdmittedBesideSharedLeases(t *testing.T) {
	onEachGate(t, func(t *testing.T, g gate, _ func() string) {
		var writer, reader int64
		r := rand.New(rand.NewPCG(7, 7))
		for i := range 300 {
			token := 1 + r.Int64N(20) + int64(i/2)
			if r.IntN(2) == 0 {
				if want := max(writer, reader); token < want {
					requireStale(t, g.admit(token), token, want)
				} else {
					require.NoError(t, g.admit(token))
					writer = token
				}
			} else if token < writer {
				requireStale(t, g.admitShared(token), token, writer)
			} else {
				require.NoError(t, g.admitShared(token))
				reader = max(reader, token)
			}
		}
	})
}

func TestAMarkOfTwoNumbersThatNobodyWroteIsRefused(t *testing.T) {
	script := leasehold.NewFencedScript(`return 7`)
	onEachRedis(t, func(t *testing.T, client *redis.Client) {
		for _, bad := range []string{"0", "0 0", "1 0", "01 2", "1 02", "1  2", "1 2 3", " 1", "1 ", "r1", "1 r2"} {
			require.NoError(t, client.Set(t.Context(), mark, bad, 0).Err())
			for _, run := range []func() (any, error){
				func() (any, error) { return script.Run(t.Context(), client, "r", 9, nil) },
				func() (any, error) { return script.RunShared(t.Context(), client, "r", 9, nil) },
			} {
				_, err := run()
				require.ErrorContains(t, err, "no fencing token", bad)
				require.Equal(t, bad, client.Get(t.Context(), mark).Val())
			}
		}
	})
}

func ExampleGuard_AdmitShared() {
	var guard leasehold.Guard
	fmt.Println(guard.AdmitShared("report", 42)) // two readers hold, and the newer one comes first
	fmt.Println(guard.AdmitShared("report", 41))
	fmt.Println(guard.Admit("report", 43)) // then a writer
	fmt.Println(guard.AdmitShared("report", 42))
	// Output:
	// <nil>
	// <nil>
	// <nil>
	// leasehold: admit "report": stale fencing token 42: the resource has seen 43
}
