package roundtrip

import (
	"context"
	"errors"
	"testing"

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
		kind   Kind
	}{
		"a client":                       {one, OneServer},
		"a cluster client":               {cluster, Cluster},
		"a ring":                         {ring, Ring},
		"an embedded client":             {struct{ *redis.Client }{one}, OneServer},
		"an embedded cluster client":     {struct{ *redis.ClusterClient }{cluster}, Cluster},
		"an embedded ring":               {struct{ *redis.Ring }{ring}, Ring},
		"a wrapped client":               {wrapper{one}, OneServer},
		"a cluster client, deep":         {wrapper{wrapper{struct{ *redis.ClusterClient }{cluster}}}, Cluster},
		"a wrapped ring":                 {wrapper{ring}, Ring},
		"an opaque wrapper":              {opaque{cluster}, Unknown},
		"an opaque wrapper, deep":        {wrapper{opaque{cluster}}, Unknown},
		"a wrapper of nothing":           {wrapper{}, Unknown},
		"a wrapper that panics":          {&brokenWrapper{}, Unknown},
		"a wrapper of itself":            {&selfish{one}, Unknown},
		"nothing":                        {nil, Unknown},
		"a client that is a nil pointer": {(*redis.Client)(nil), OneServer},
	} {
		t.Run(name, func(t *testing.T) {
			found := newTopology(tt.client)
			assert.Equal(t, tt.kind, found.Kind)
			node, err := found.Node(t.Context(), "k")
			if tt.kind != Cluster && tt.kind != Ring {
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
			node, err := newTopology(strange{find: tt.find}).Node(t.Context(), "k")
			assert.EqualError(t, err, tt.want)
			assert.Nil(t, node)
		})
	}
}
