// Package fencehttp carries fencing tokens over HTTP: the holder of a lease sends its token with every request
// (a [Transport]), and the server that owns the resource refuses those of holders who are out of date (a
// [Middleware]).
//
// The middleware alone is a door, not a lock: it compares the tokens in the order in which requests arrive, and
// two that it let in may be served side by side. Where a late write does harm, the handler hands the token,
// [FromContext], on to where the data is: to a leasehold.FencedScript, to a conditional UPDATE, or to another
// Admit of the same Guard under the mutex of the write. Admit the requests that read, too, if a write will
// depend on what they read.
//
// # Headers
//
//	Fencing-Token: 1764434960123456
//	Fencing-Resource: account:7
//	Fencing-Shared: 1
//
// The token is a decimal number from 1 to 2^63-1 without sign, space or leading zero. The resource is
// percent-encoded, as a segment of a path is: url.PathEscape or encodeURIComponent. Each is sent once.
// The third header is sent for a shared lease alone. A server that does not know the header treats a reader as a
// writer. That is safe, and refuses the older of two readers.
//
// # Answers of the middleware
//
//	428 Precondition Required  a header is missing
//	400 Bad Request            a header is there twice or malformed, or the guard calls its value invalid
//	412 Precondition Failed    the token is stale: another holder came later and was here first
//	503 Service Unavailable    the guard could not tell
//
// The body is a problem (RFC 9457, application/problem+json). That of a 412 has both numbers:
//
//	{"title":"stale fencing token","status":412,"resource":"account:7","token":33,"highest":34}
package fencehttp

import (
	"context"

	"github.com/go-leasehold/leasehold"
)

// The names of the headers.
const (
	TokenHeader    = "Fencing-Token"
	ResourceHeader = "Fencing-Resource"
	SharedHeader   = "Fencing-Shared"
)

// A Fence is what a request is fenced with. The zero Fence is none.
type Fence struct {
	Resource string // any text but the empty one, commonly the lock's key
	Token    int64  // at least 1
	Shared   bool   // whether the token is that of a shared lease, a reader's
}

// Of returns the Fence of a lease, which a *leasehold.Lease is: its key is the resource. The Fence is shared if the
// lease has a method IsShared that says so.
func Of(lease interface {
	Key() string
	FencingToken() int64
}) Fence {
	shared, ok := lease.(interface{ IsShared() bool })
	return Fence{Resource: lease.Key(), Token: lease.FencingToken(), Shared: ok && shared.IsShared()}
}

type contextKey struct{}

// NewContext returns a context whose requests a [Transport] fences with f.
func NewContext(ctx context.Context, f Fence) context.Context {
	return context.WithValue(ctx, contextKey{}, f)
}

// FromContext returns the Fence of a context. In a handler behind a [Middleware] that is the one which was
// admitted, and what the handler sends with this context through a zero Transport carries it on. In a context without
// a Fence that descends from the one of leasehold.Locker.WithLock, or of Lease.Context, it is the Fence of that lease.
// So the holder needs no [NewContext].
func FromContext(ctx context.Context) (f Fence, ok bool) {
	if f, ok = ctx.Value(contextKey{}).(Fence); ok {
		return f, true
	}
	if lease, ok := leasehold.FromContext(ctx); ok {
		return Of(lease), true
	}
	return Fence{}, false
}
