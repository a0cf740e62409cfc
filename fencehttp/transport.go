package fencehttp

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/go-leasehold/leasehold"
)

// A Transport is the holder's side: an http.RoundTripper that sends the fencing token and the name of the
// resource with every request.
//
// A request without a fence is not sent, for one that must be fenced and is not would be let in by a server
// that does not look. Give requests that need none another client. A Transport may be used by many goroutines
// if Base may; its fields must not change after first use.
type Transport struct {
	Fence Fence             // of every request; the zero Fence means that of the request's context, see FromContext
	Base  http.RoundTripper // sends the requests; nil means http.DefaultTransport
}

// RoundTrip sends a copy of the request with the headers set. Without a usable fence it returns an error that
// matches leasehold.ErrInvalid; a refusal by the server is a response like any other.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	fence := t.Fence
	if fence == (Fence{}) {
		fence, _ = FromContext(r.Context())
	}
	if fence.Resource == "" || fence.Token < 1 {
		if r.Body != nil {
			_ = r.Body.Close() // as every RoundTripper must, also on errors
		}
		return nil, &leasehold.Error{Op: "fence request", Key: fence.Resource,
			Err: fmt.Errorf("%w: a request needs a resource and a fencing token above 0, not %d", leasehold.ErrInvalid, fence.Token)}
	}
	r = r.Clone(r.Context())
	r.Header.Set(TokenHeader, strconv.FormatInt(fence.Token, 10))
	r.Header.Set(ResourceHeader, url.PathEscape(fence.Resource))
	r.Header.Del(SharedHeader) // a writer must not pass for a reader by a header that the caller left there
	if fence.Shared {
		r.Header.Set(SharedHeader, "1")
	}
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	return base.RoundTrip(r)
}
