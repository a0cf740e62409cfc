package quorum

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/quorum/quorumtest"
)

// runs matches the runs of a node's script.
var runs = quorumtest.Runs

var (
	errBroken = errors.New("the node is broken")
	errLost   = errors.New("lost")
)

// process is a Quorum in a bubble, and how it reaches the nodes. It takes leases as the root's TryAcquire does, without automatic
// renewals.
type process struct {
	*Quorum
	*quorumtest.Reach
	attempts int
}

// bubble runs fn in a bubble with that many nodes. join makes a process without a quarantine.
func bubble(t *testing.T, nodes int, fn func(t *testing.T, nodes []*quorumtest.Node, join func() *process)) {
	t.Helper()
	quorumtest.Bubble(t, nodes, func(t *testing.T, nodes []*quorumtest.Node) {
		fn(t, nodes, func() *process { return newProcess(t, nodes, Config{}) })
	})
}

func newProcess(t *testing.T, nodes []*quorumtest.Node, config Config) *process {
	p := &process{Reach: quorumtest.NewReach(t, nodes)}
	var err error
	p.Quorum, err = New(p.Clients, config)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		p.Close(ctx)
	})
	return p
}

// lease is what the root makes of a tenure that has won.
type lease struct {
	backend.Tenure
	token string
	fence int64
	ttl   time.Duration
	until time.Time
}

// TryAcquire tries once.
func (p *process) TryAcquire(ctx context.Context, key string, ttl time.Duration) (*lease, error) {
	p.attempts++
	x := &lease{token: fmt.Sprintf("%p-%d", p, p.attempts), ttl: ttl}
	begun := time.Now()
	x.Tenure = p.Tenure(backend.Request{Key: key, Token: x.token, PX: ttl.Milliseconds()})
	a, writes, err := x.Tenure.Acquire(ctx, backend.Try, min(ttl-clock.Margin(ttl), backend.CallBound))
	switch {
	case err != nil && writes != 0:
		return nil, fmt.Errorf("left to the caller to cancel: %w", err)
	case err != nil:
		return nil, err
	case a.State == backend.Held:
		return nil, fault.ErrHeld
	}
	x.fence = a.Fence
	x.extend(begun)
	return x, nil
}

func (x *lease) extend(begun time.Time) { x.until = begun.Add(x.ttl - clock.Margin(x.ttl)) }
func (x *lease) Token() string          { return x.token }
func (x *lease) FencingToken() int64    { return x.fence }
func (x *lease) ValidUntil() time.Time  { return x.until }
func (x *lease) Valid() bool            { return time.Now().Before(x.until) }
func (x *lease) bound() time.Duration {
	return max(min(x.ttl/6, time.Until(x.until)), time.Millisecond)
}

// Renew renews once.
func (x *lease) Renew(ctx context.Context) error {
	begun := time.Now()
	lost, err := x.Tenure.Renew(ctx, backend.Renewal{PX: x.ttl.Milliseconds()}, x.bound())
	switch {
	case err != nil:
		return err
	case lost < 0 || !x.Valid():
		return errLost
	}
	x.extend(begun)
	return nil
}

// Release releases once.
func (x *lease) Release(ctx context.Context) error {
	found, _, err := x.Tenure.Release(ctx, backend.Plain, backend.CallBound)
	x.until = time.Time{}
	if err == nil && found < 0 {
		return errLost
	}
	return err
}
