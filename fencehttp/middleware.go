package fencehttp

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-leasehold/leasehold"
)

// Middleware is the server's side: it passes a request on to next if admit returns nil for its resource and
// fencing token, and answers it with the reason if not. The handler finds the admitted [Fence] by [FromContext].
//
// admit is commonly the method of a leasehold.Guard. That keeps a mark for each name that it is asked for, so a
// server whose clients choose the names at will puts a check of them in front:
//
//	fencehttp.Middleware(func(resource string, token int64) error {
//		if !known(resource) {
//			return leasehold.ErrInvalid
//		}
//		return guard.Admit(resource, token)
//	}, handler)
//
// admit is called by many goroutines. An error that matches leasehold.ErrStale becomes a 412, one that matches
// leasehold.ErrInvalid a 400, and any other a 503 that does not repeat it.
//
// A request of a reader is checked like that of a writer. [MiddlewareShared] tells them apart.
func Middleware(admit func(resource string, fencingToken int64) error, next http.Handler) http.Handler {
	return MiddlewareShared(admit, admit, next)
}

// MiddlewareShared is a Middleware that asks admitShared instead of admit about the fencing token of a shared lease.
// The two are commonly Admit and AdmitShared of one leasehold.Guard. The request says by itself which kind it is, so
// the handler lets a request whose [Fence] is Shared read and not write.
func MiddlewareShared(
	admit, admitShared func(resource string, fencingToken int64) error, next http.Handler,
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fence, refused := parse(r.Header)
		if refused == nil {
			ask := admit
			if fence.Shared {
				ask = admitShared
			}
			refused = refusal(fence, ask(fence.Resource, fence.Token))
		}
		if refused != nil {
			refused.write(w)
			return
		}
		next.ServeHTTP(w, r.WithContext(NewContext(r.Context(), fence)))
	})
}

// parse reads the fence of a request, or says why there is none.
func parse(h http.Header) (Fence, *problem) {
	token, refused := single(h, TokenHeader)
	if refused != nil {
		return Fence{}, refused
	}
	escaped, refused := single(h, ResourceHeader)
	if refused != nil {
		return Fence{}, refused
	}
	n, err := strconv.ParseInt(token, 10, 64)
	if err != nil || n < 1 || strconv.FormatInt(n, 10) != token {
		return Fence{}, &problem{Status: http.StatusBadRequest, Title: TokenHeader + " is not a decimal number from 1 to 2^63-1"}
	}
	// Some proxies join a header that came twice with a comma, which an escaped name does not have.
	resource, err := url.PathUnescape(escaped)
	if err != nil || resource == "" || strings.ContainsAny(escaped, ", \t") {
		return Fence{}, &problem{Status: http.StatusBadRequest, Title: ResourceHeader + " is not one percent-encoded name"}
	}
	shared := h.Values(SharedHeader)
	if len(shared) > 1 || len(shared) == 1 && shared[0] != "1" {
		return Fence{}, &problem{Status: http.StatusBadRequest, Title: SharedHeader + " is not a single 1"}
	}
	return Fence{Resource: resource, Token: n, Shared: len(shared) == 1}, nil
}

// single returns the value of a header that must be there exactly once: of two tokens, neither can be trusted
// to be the one that another reader of the request goes by.
func single(h http.Header, name string) (string, *problem) {
	switch values := h.Values(name); len(values) {
	case 0:
		return "", &problem{Status: http.StatusPreconditionRequired, Title: name + " is missing"}
	case 1:
		return values[0], nil
	default:
		return "", &problem{Status: http.StatusBadRequest, Title: name + " is there more than once"}
	}
}

// refusal translates the answer of the guard.
func refusal(fence Fence, err error) *problem {
	p := &problem{Resource: fence.Resource, Token: fence.Token}
	var stale *leasehold.StaleError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, leasehold.ErrStale):
		p.Status, p.Title = http.StatusPreconditionFailed, leasehold.ErrStale.Error()
		if errors.As(err, &stale) {
			p.Highest = stale.Highest
		}
	case errors.Is(err, leasehold.ErrInvalid):
		p.Status, p.Title = http.StatusBadRequest, "the guard does not accept this resource or fencing token"
	default:
		p.Status, p.Title = http.StatusServiceUnavailable, "the guard could not check the fencing token"
	}
	return p
}

// A problem is the body of an answer that refuses a request, after RFC 9457.
type problem struct {
	Title    string `json:"title"`
	Status   int    `json:"status"`
	Resource string `json:"resource,omitempty"`
	Token    int64  `json:"token,omitempty"`
	Highest  int64  `json:"highest,omitempty"`
}

func (p *problem) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // an error here is the client's going away
}
