package leasehold

import (
	"context"
	"fmt"
	"slices"
)

// leaseContext is a context that ends with a lease, and knows it.
type leaseContext struct {
	context.Context
	cancel context.CancelCauseFunc
	lease  *Lease
}

// leaseKey is the key under which a context finds the innermost leaseContext.
type leaseKey struct{}

func (c *leaseContext) Value(key any) any {
	if key == (leaseKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// String is what contexts print of themselves.
func (c *leaseContext) String() string { return fmt.Sprintf("%v.Lease(%q)", c.Context, c.lease.key) }

// leaseOf returns the innermost leaseContext of ctx, nil if there is none.
func leaseOf(ctx context.Context) *leaseContext {
	c, _ := ctx.Value(leaseKey{}).(*leaseContext)
	return c
}

// FromContext returns the lease to which ctx belongs: that of the function of [Locker.WithLock], or of [Lease.Context], whose
// context ctx is or descends from; of several, one in another, the innermost. So what a function calls finds the fencing token
// without a parameter through every layer. The lease may have ended: the resource judges that, by the fencing token.
func FromContext(ctx context.Context) (lease *Lease, ok bool) {
	if c := leaseOf(ctx); c != nil {
		return c.lease, true
	}
	return nil, false
}

// errNested: whoever waits for a lock with a context of the lease that holds it waits for themselves. They would not even get it
// when the lease ends, since the context ends with it.
var errNested = invalid("held by the lease of this context: pass it")

// nested reports whether the lock on the key is held by a lease of ctx that is the one which the caller means.
func nested(ctx context.Context, key string, isMeant func(*Lease) bool) bool {
	for c := leaseOf(ctx); c != nil; c = leaseOf(c.Context) {
		if x := c.lease; x.key == key && isMeant(x) && x.check() == nil {
			return true
		}
	}
	return false
}

// Context returns a context of parent that ends with the lease: its cause is then the lease's Err, or an error matching
// [ErrClosed] when the Locker is closing and the holder should come to an end. [FromContext] finds the lease in it. Call the
// CancelFunc when the work is done; the lease goes on without it.
func (x *Lease) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	if x == nil {
		cancel(errNilLease)
		return ctx, func() {}
	}
	_ = x.check()
	c := &leaseContext{ctx, cancel, x}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err != nil {
		cancel(x.err)
		return c, func() {}
	}
	if x.l.isClosed() {
		cancel(x.closing())
		return c, func() {}
	}
	x.contexts = append(x.contexts, c)
	return c, func() {
		cancel(nil)
		x.mu.Lock()
		defer x.mu.Unlock()
		if i := slices.Index(x.contexts, c); i >= 0 {
			x.contexts = slices.Delete(x.contexts, i, i+1)
		}
	}
}

// closing is the cause of the contexts of a Locker that closes.
func (x *Lease) closing() error { return &Error{Op: "hold", Key: x.key, Err: ErrClosed} }

// endContexts ends the lease's contexts before the lease itself.
func (x *Lease) endContexts(cause error) {
	x.mu.Lock()
	contexts := x.contexts
	x.contexts = nil
	x.mu.Unlock()
	for _, c := range contexts {
		c.cancel(cause)
	}
}
