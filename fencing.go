package leasehold

import (
	"context"
	_ "embed"
	"fmt"
	"sync"

	"github.com/go-leasehold/leasehold/internal/fenced"
	"github.com/redis/go-redis/v9"
)

// A StaleError says that the resource has refused a fencing token, because it has seen a higher one of a later lease.
// It matches [ErrStale]. Use [errors.As] to get it.
type StaleError struct {
	Token   int64 // the fencing token that was refused
	Highest int64 // the highest one that the resource had seen
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("%v %d: the resource has seen %d", ErrStale, e.Token, e.Highest)
}

// Unwrap returns ErrStale.
func (e *StaleError) Unwrap() error { return ErrStale }

// A Guard remembers, for each resource of this process, the highest fencing token that the resource has seen. The zero
// value has seen none and is ready to use. A Guard must not be copied after first use, and may be used by many
// goroutines.
//
// A Guard compares, it does not write. Between an Admit and the write that follows it, a higher token may be admitted,
// so call Admit under the same mutex as the write. Admit too where a value is read that a later write will depend on:
// otherwise an old holder may write between the two.
//
// The marks end with the process. A resource that outlives it must keep its mark itself, next to the data: in Redis
// that is a [FencedScript], in SQL a column (see examples/postgres). A Guard in front of such a resource starts with an
// Admit of the token stored there.
//
// A Guard holds one number for every name that it ever admitted, until the Guard is dropped as a whole: to forget a
// mark is to let an old holder in. So the names must come from a bounded set. A server that takes them from requests
// has to check them first.
//
// Leases of [WithShared] hold together, so they have a method of their own. Leases of [WithSlots] need a name for each slot.
type Guard struct {
	mu      sync.Mutex // guards what follows
	highest map[string]int64
	shared  map[string]int64 // the highest of shared leases since; nil: there was none
}

// Admit returns nil if the fencing token is at or above the highest one that was admitted for the resource before. The
// resource has any name, commonly [Lease.Key]. If the Guard has one resource only, its name can be "". For a lower
// token the error matches ErrStale and carries a [StaleError]. For a token below 1 it matches ErrInvalid. After an
// error the Guard remembers the same token as before.
func (g *Guard) Admit(resource string, fencingToken int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := admit(resource, fencingToken, max(g.highest[resource], g.shared[resource])); err != nil {
		return err
	}
	if g.highest == nil {
		g.highest = make(map[string]int64)
	}
	g.highest[resource] = fencingToken
	delete(g.shared, resource)
	return nil
}

// AdmitShared is Admit for a lease that [Lease.IsShared]. It returns nil if the fencing token is at or above the highest one
// of an exclusive lease: older and newer shared leases hold together. From then on no lower token of an exclusive lease is
// admitted.
func (g *Guard) AdmitShared(resource string, fencingToken int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := admit(resource, fencingToken, g.highest[resource]); err != nil {
		return err
	}
	if g.shared == nil {
		g.shared = make(map[string]int64)
	}
	g.shared[resource] = max(g.shared[resource], fencingToken)
	return nil
}

func admit(resource string, fencingToken, highest int64) error {
	err := checkFencingToken(fencingToken)
	if err == nil && fencingToken < highest {
		err = &StaleError{Token: fencingToken, Highest: highest}
	}
	if err != nil {
		return &Error{Op: "admit", Key: resource, Err: err}
	}
	return nil
}

func checkFencingToken(fencingToken int64) error {
	if fencingToken < 1 {
		return invalid("fencing token %d is below 1", fencingToken)
	}
	return nil
}

// A FencedScript is a Lua script that Redis runs only for a holder whose fencing token is not stale. In one atomic step
// it compares the fencing token with the highest one that the resource has seen, runs the body of the script, and
// stores the token. A FencedScript is immutable and may be used by many goroutines.
//
// # What it guards
//
// Every write to the resource must go through a FencedScript. It can be any one, because the stored token (the mark)
// belongs to the resource and not to the script. Every read that a later write depends on must go through one too. The
// read raises the mark, so an older holder can no longer write between the two.
//
// The mark is a key of its own, in the cluster slot of the resource, and its name begins with "leasehold:fenced:". It
// is written together with the data, so a failover loses both or neither. It lives for 30 days after the last run that
// succeeded. A holder that slept for longer, while nobody used the resource, is admitted again. The same is true if the
// mark was evicted, so give Redis a maxmemory-policy that does not evict keys with a TTL.
//
// # The body
//
// The body finds its keys and arguments in KEYS and ARGV, as in an EVAL, and may use only those keys. It may have
// locals, return at any point and end in a comment. It cannot begin with a shebang line.
//
// A body fails if it raises an error or returns an error reply. The mark then stays as it was, but Redis does not undo
// what the body has written. So check first, and write last.
//
// go-redis sends a command again if the connection breaks before the answer arrives. The body then runs twice under one
// fencing token, and the mark does not prevent that. If that matters, the body must be able to detect it, or the client
// must have MaxRetries -1.
type FencedScript struct{ script *redis.Script }

// NewFencedScript makes a FencedScript of a body of Lua. It sends nothing, so the first Run finds an error in the body.
func NewFencedScript(body string) *FencedScript {
	return &FencedScript{fenced.New(body)}
}

// Run runs the body if fencingToken is at or above the highest one that the resource has seen. Any text names the
// resource, commonly the key of the lock, [Lease.Key]. The name and all keys must hash to one slot of a Redis Cluster,
// even if there is no cluster yet. The arguments are what go-redis accepts, one by one; a slice is not spread.
//
// Run returns the result of the body as go-redis decodes it: int64, string, []any, and nil for nil and false. Nil is a
// result like any other here, and redis.Nil is never returned.
//
// After an error that matches [ErrInvalid] nothing was sent. The body did not run if the error matches [ErrStale],
// which carries a [StaleError], or names a fencing mark that Run cannot read. After another error that Redis answered,
// commonly an error of the body, the mark is as before. After any other error it is not known whether the body ran.
func (s *FencedScript) Run(ctx context.Context, client redis.Scripter, resource string, fencingToken int64, keys []string, args ...any) (any, error) {
	return s.run(ctx, client, resource, fencingToken, false, keys, args)
}

// RunShared is Run for a lease that [Lease.IsShared]: see [Guard.AdmitShared]. A version of this library that has no
// RunShared refuses a resource that a shared lease has used, until the next Run.
func (s *FencedScript) RunShared(ctx context.Context, client redis.Scripter, resource string, fencingToken int64, keys []string, args ...any) (any, error) {
	return s.run(ctx, client, resource, fencingToken, true, keys, args)
}

func (s *FencedScript) run(ctx context.Context, client redis.Scripter, resource string, fencingToken int64, shared bool, keys []string, args []any) (any, error) {
	result, err := s.send(ctx, client, resource, fencingToken, shared, keys, args)
	if err != nil {
		return nil, &Error{Op: "run fenced script", Key: resource, Err: err}
	}
	return result, nil
}

func (s *FencedScript) send(ctx context.Context, client redis.Scripter, resource string, fencingToken int64, shared bool, keys []string, args []any) (any, error) {
	if err := checkFencingToken(fencingToken); err != nil {
		return nil, err
	}
	if n := len(resource); n < 1 || n > maxKey {
		return nil, invalid("the resource's name is %d bytes long: want 1 to %d", n, maxKey)
	}
	result, err := fenced.Run(ctx, client, s.script, resource, fencingToken, shared, keys, args)
	if stale, ok := err.(*fenced.Stale); ok {
		return nil, &StaleError{Token: fencingToken, Highest: stale.Highest}
	}
	return result, err
}
