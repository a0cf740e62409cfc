package roundtrip

import (
	"context"
	"errors"
	"reflect"
	"sync/atomic"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/redis/go-redis/v9"
)

// Kind is what stands behind a client.
type Kind int

// The kinds of clients.
const (
	Unknown   Kind = iota // somebody's own kind of client, which does not tell
	OneServer             // a server, with replicas or without
	Cluster               // a Redis Cluster: it says itself which server has a key
	Ring                  // servers that know nothing of each other, between which the client chooses by the key
)

// Topology says which kind of Redis a client talks to, and which of its servers has a key. It never
// changes, and is safe for concurrent use.
//
// It is found by what the client can do, not by its type: instrumentation and multi-tenant code
// wrap a client in a struct of their own, which embeds go-redis's client or the interface. Commands
// go through the client as it was given, so its wrappers and hooks see them; the topology is for
// what go-redis cannot route by itself: WAIT, subscriptions, and the choice of a queue.
type Topology struct {
	Kind Kind
	// Of a cluster or a ring: finds the server. It is the client's code, so it is called by Node
	// alone.
	find   func(ctx context.Context, key string) (*redis.Client, error)
	reload func(context.Context) // of a cluster: asks for the slots anew; nil: it cannot
	known  atomic.Bool           // the client knows where keys are, so that to ask it sends nothing
}

// maxWrappers bounds the wrappers of a client that are looked through, so that one that wraps
// itself comes to an end.
const maxWrappers = 32

// newTopology finds the kind of a client. It sends nothing.
func newTopology(client redis.UniversalClient) (t *Topology) {
	t = &Topology{}
	defer func() { _ = recover() }() // a wrapper that cannot even be unwrapped, such as a nil one, says nothing
	// What a client can do says more than what it is: a struct that embeds a client can do the same.
	for range maxWrappers {
		switch c := client.(type) {
		case interface {
			MasterForKey(context.Context, string) (*redis.Client, error)
		}:
			t.Kind, t.find = Cluster, c.MasterForKey
			if r, ok := client.(interface{ ReloadState(context.Context) }); ok {
				t.reload = r.ReloadState
			}
			return t
		case interface {
			GetShardClientForKey(string) (*redis.Client, error)
		}:
			t.Kind = Ring
			t.find = func(_ context.Context, key string) (*redis.Client, error) { return c.GetShardClientForKey(key) }
			t.known.Store(true)
			return t
		case interface{ Options() *redis.Options }:
			t.Kind = OneServer
			return t
		case interface{ Unwrap() redis.UniversalClient }:
			client = c.Unwrap()
		default:
			return t
		}
	}
	return t
}

// IsNil reports whether a client is none: nil itself, or a nil pointer in the interface, as of a
// variable that was never set.
func IsNil(client redis.UniversalClient) bool {
	v := reflect.ValueOf(client)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// Many reports whether keys are spread over several servers, each with a client of its own.
func (t *Topology) Many() bool { return t.find != nil }

// direct reports whether the client sends a command to the server that it was given, and follows no
// redirection from there.
func (t *Topology) direct() bool { return t.Kind == OneServer || t.Kind == Ring }

// learn is told of a command that a server answered, in a goroutine that may wait for the client:
// for it a cluster's client has asked where keys are, unless a hook answered for it.
func (t *Topology) learn(key string) {
	if t.Many() && !t.known.Load() {
		_, err := t.Node(context.Background(), key)
		t.known.Store(err == nil)
	}
}

// Refresh has a cluster's slots asked for anew, in a goroutine of go-redis's: it would go on asking
// a server that is gone until its picture of the cluster is a minute old.
func (t *Topology) Refresh() {
	if t.reload == nil {
		return
	}
	defer func() { _ = recover() }() // nothing is lost: the picture stays as it is
	t.reload(context.Background())
}

var errNoNode = errors.New("the redis client names no server for the key")

// Node returns the client of the server that has the key, of a cluster or a ring. A cluster client
// that does not know the slots yet asks for them, and may take as long as its own timeouts allow;
// otherwise nothing is sent. A panic of the client is an error.
func (t *Topology) Node(ctx context.Context, key string) (c *redis.Client, err error) {
	defer func() {
		if p := recover(); p != nil {
			c, err = nil, fault.Panicked(p)
		}
	}()
	if !t.Many() {
		return nil, errNoNode
	}
	if c, err = t.find(ctx, key); err == nil && c == nil {
		err = errNoNode
	}
	return c, err
}
