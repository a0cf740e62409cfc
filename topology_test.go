package leasehold

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/redistest"
)

// opaque hides what a client can do, as a struct that embeds the interface does.
type opaque struct{ redis.UniversalClient }

// wrapper is one that can be looked through.
type wrapper struct{ redis.UniversalClient }

func (w wrapper) Unwrap() redis.UniversalClient { return w.UniversalClient }

// brokenWrapper panics when it is asked what it wraps.
type brokenWrapper struct{ redis.UniversalClient }

func (*brokenWrapper) Unwrap() redis.UniversalClient { panic("no") }

// selfish wraps itself.
type selfish struct{ redis.UniversalClient }

func (s *selfish) Unwrap() redis.UniversalClient { return s }

func TestTheKindOfAClientIsWhatItCanDo(t *testing.T) {
	m, one := redistest.Mini(t)
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{m.Addr()}})
	t.Cleanup(func() { _ = cluster.Close() })
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"only": m.Addr()}})
	t.Cleanup(func() { _ = ring.Close() })

	for name, tt := range map[string]struct {
		client redis.UniversalClient
		kind   kind
	}{
		"a client":                       {one, oneServer},
		"a cluster client":               {cluster, clusterKind},
		"a ring":                         {ring, ringKind},
		"an embedded client":             {struct{ *redis.Client }{one}, oneServer},
		"an embedded cluster client":     {struct{ *redis.ClusterClient }{cluster}, clusterKind},
		"an embedded ring":               {struct{ *redis.Ring }{ring}, ringKind},
		"a wrapped client":               {wrapper{one}, oneServer},
		"a cluster client, deep":         {wrapper{wrapper{struct{ *redis.ClusterClient }{cluster}}}, clusterKind},
		"a wrapped ring":                 {wrapper{ring}, ringKind},
		"an opaque wrapper":              {opaque{cluster}, unknownKind},
		"an opaque wrapper, deep":        {wrapper{opaque{cluster}}, unknownKind},
		"a wrapper of nothing":           {wrapper{}, unknownKind},
		"a wrapper that panics":          {&brokenWrapper{}, unknownKind},
		"a wrapper of itself":            {&selfish{one}, unknownKind},
		"nothing":                        {nil, unknownKind},
		"a client that is a nil pointer": {(*redis.Client)(nil), oneServer},
	} {
		t.Run(name, func(t *testing.T) {
			found := newTopology(tt.client)
			assert.Equal(t, tt.kind, found.kind)
			node, err := found.node(t.Context(), "k")
			if tt.kind != clusterKind && tt.kind != ringKind {
				assert.ErrorIs(t, err, errNoNode)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, "PONG", node.Ping(t.Context()).Val())
		})
	}
}

// strange is a cluster client of somebody's own.
type strange struct {
	redis.UniversalClient
	find func() (*redis.Client, error)
}

func (s strange) MasterForKey(context.Context, string) (*redis.Client, error) { return s.find() }

func TestAClientThatCannotNameAServerIsAnError(t *testing.T) {
	down := errors.New("down")
	for name, tt := range map[string]struct {
		find func() (*redis.Client, error)
		want string
	}{
		"panics":  {func() (*redis.Client, error) { panic("no") }, "the redis client panicked: no"},
		"fails":   {func() (*redis.Client, error) { return nil, down }, "down"},
		"nothing": {func() (*redis.Client, error) { return nil, nil }, errNoNode.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			node, err := newTopology(strange{find: tt.find}).node(t.Context(), "k")
			assert.EqualError(t, err, tt.want)
			assert.Nil(t, node)
		})
	}
}

// A lookup only chooses a queue. It is made where a broken client harms nobody: every call is answered, and no goroutine of
// the process ends with it but our own.
func TestAClientThatBreaksWhereItNamesAServerStillLocks(t *testing.T) {
	for name, how := range map[string]func(){"panics": func() { panic("no") }, "exits": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			_, one := redistest.Mini(t)
			l := process(t, lostClient{one, how})
			var all sync.WaitGroup
			for i := range 100 {
				all.Go(func() {
					x, err := l.TryAcquire(t.Context(), fmt.Sprint("k", i), time.Minute)
					if assert.NoError(t, err) {
						assert.NoError(t, x.Renew(t.Context()))
						assert.NoError(t, x.Release(t.Context()))
					}
				})
			}
			all.Wait()
			_, two := redistest.Mini(t)
			_, three := redistest.Mini(t)
			q, err := NewQuorum([]redis.UniversalClient{lostClient{one, how}, lostClient{two, how}, lostClient{three, how}}, WithRestartQuarantine(0))
			require.NoError(t, err)
			x, err := q.TryAcquire(t.Context(), "k", time.Minute)
			require.NoError(t, err)
			require.NoError(t, x.Release(t.Context()))
			require.NoError(t, q.Close())
		})
	}
}

// A ring moves keys between its servers when one of them does not answer, so as a node of a quorum it forgets.
func TestARingIsNoNodeOfAQuorum(t *testing.T) {
	_, one := redistest.Mini(t)
	m, two := redistest.Mini(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"only": m.Addr()}})
	t.Cleanup(func() { _ = ring.Close() })
	_, err := NewQuorum([]redis.UniversalClient{one, two, wrapper{ring}})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "client of node 2 is a redis.Ring")
}
