package sim_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/inside"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/quorum"
	"github.com/go-leasehold/leasehold/internal/quorum/proposal"
	"github.com/go-leasehold/leasehold/internal/quorum/quorumtest"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
)

// The simulation drives the implementation through random histories: several processes with a Locker each on three or five
// nodes in a bubble, whose wires delay, lose, duplicate and cut, and whose nodes crash with and without their data. In each
// history it checks
//
//	exclusion   at most one lease is valid at any instant
//	O1          a lease whose attempt began after another was handed out has the higher fencing token, one that was adopted too
//	O2          no two leases share a fencing token
//	acceptance  a majority has accepted the token of a lease that is handed out
//	bounds      every call comes back in its time
//	progress    when the faults are over, the lock can be had, and nothing stays in Redis
//
// A seed fixes the plan of a history, not the order in which goroutines run, so repeat one that failed:
//
//	LEASEHOLD_SIM_SEED=… go test -race -run TestQuorumSimulation -count 20 .
//	LEASEHOLD_SIM_TIME=10m go test -race -run TestQuorumSimulation -timeout 15m .

const simKey = "k"

// simPlan is what one history is made of.
type simPlan struct {
	nodes, clients int
	ttl            time.Duration
	quarantine     time.Duration
	skew           time.Duration // the nodes' clocks differ by less
	loss           bool          // nodes lose their data in crashes
	masked         bool          // and the uptime is the only sign of that
	steps          bool          // nodes' clocks step: exclusion is then not promised
	length         time.Duration
}

func planOf(rng *rand.Rand) simPlan {
	p := simPlan{
		nodes:   3 + 2*rng.IntN(2),
		clients: 2 + rng.IntN(4),
		ttl:     time.Duration(30+rng.IntN(300)) * time.Millisecond,
		skew:    time.Duration(rng.IntN(300)) * time.Millisecond,
		length:  time.Duration(500+rng.IntN(2000)) * time.Millisecond,
	}
	switch rng.IntN(4) {
	case 0:
	case 1:
		p.steps = true
	default:
		p.loss, p.masked = true, rng.IntN(2) == 0
		p.quarantine = max(p.ttl, p.skew+proposal.MaxSlack) + time.Duration(rng.IntN(300))*time.Millisecond
	}
	return p
}

func (p simPlan) String() string {
	return fmt.Sprintf("%d nodes, %d clients, ttl %v, quarantine %v, skew %v, loss %v (masked %v), steps %v, %v long",
		p.nodes, p.clients, p.ttl, p.quarantine, p.skew, p.loss, p.masked, p.steps, p.length)
}

// simLease is a lease as the observer saw it.
type simLease struct {
	*leasehold.Lease
	called, had   int64 // ticks of the observer's counter: before the call, and after it
	begun, handed time.Time
	passed        bool // somebody has adopted it
}

// simObserver sees every hand-out.
type simObserver struct {
	plan          simPlan
	nodes         []*locktest.FakeNode
	tick          atomic.Int64
	calls, grants atomic.Int64
	adoptions     atomic.Int64

	mu     sync.Mutex
	leases []*simLease
	faults []string
}

func (o *simObserver) fault(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.faults = append(o.faults, fmt.Sprintf(format, args...))
}

// handedOut judges a lease at the moment when its caller gets it. A lease that is not valid any more never becomes it, so
// two can be valid together only from the moment when the later one is handed out.
func (o *simObserver) handedOut(x *leasehold.Lease, called int64) *simLease {
	now := time.Now()
	l := &simLease{Lease: x, called: called, had: o.tick.Add(1), begun: inside.State(x).Begun.Time, handed: now}
	o.grants.Add(1)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, other := range o.leases {
		if !o.plan.steps && !other.passed && x.Valid() && other.Valid() {
			o.faults = append(o.faults, fmt.Sprintf("two valid leases: %d handed out at %v and valid until %v, %d at %v", other.FencingToken(), other.handed, other.ValidUntil(), x.FencingToken(), now))
		}
		if other.FencingToken() == x.FencingToken() {
			o.faults = append(o.faults, fmt.Sprintf("two leases with fencing token %d", x.FencingToken()))
		}
		if before := other.had < called || other.handed.Before(l.begun); before && other.FencingToken() >= x.FencingToken() {
			o.faults = append(o.faults, fmt.Sprintf("fencing token %d, although %d had been handed out before it was asked for", x.FencingToken(), other.FencingToken()))
		}
	}
	accepted := 0
	for _, n := range o.nodes {
		if n.Counter(simKey) >= x.FencingToken() { // counters do not fall
			accepted++
		}
	}
	if !o.plan.loss && accepted <= len(o.nodes)/2 && len(o.nodes) > 0 {
		o.faults = append(o.faults, fmt.Sprintf("handed out with %d, which %d nodes have accepted", x.FencingToken(), accepted))
	}
	o.leases = append(o.leases, l)
	return l
}

// within measures one call.
func (o *simObserver) within(what string, bound time.Duration, call func()) {
	begun := time.Now()
	call()
	o.calls.Add(1)
	if took := time.Since(begun); took > bound {
		o.fault("%s took %v, want %v at most", what, took, bound)
	}
}

func TestQuorumSimulation(t *testing.T) {
	if s := os.Getenv("LEASEHOLD_SIM_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		simulate(t, seed)
		return
	}
	d := 3 * time.Second
	if s := os.Getenv("LEASEHOLD_SIM_TIME"); s != "" {
		var err error
		d, err = time.ParseDuration(s)
		require.NoError(t, err)
	}
	histories, calls, grants, adoptions := 0, int64(0), int64(0), int64(0)
	for end := time.Now().Add(d); time.Now().Before(end) && !t.Failed(); histories++ {
		o := simulate(t, rand.Uint64())
		calls, grants, adoptions = calls+o.calls.Load(), grants+o.grants.Load(), adoptions+o.adoptions.Load()
	}
	t.Logf("%d histories, %d calls, %d leases, %d of them adopted", histories, calls, grants, adoptions)
	require.Positive(t, grants)
}

func simulate(t *testing.T, seed uint64) *simObserver {
	rng := rand.New(rand.NewPCG(seed, 1))
	plan := planOf(rng)
	o := &simObserver{plan: plan}
	synctest.Test(t, func(t *testing.T) {
		s := &simulation{t: t, plan: plan, o: o}
		s.run(rng)
	})
	for _, f := range o.faults {
		t.Errorf("seed %d (%v): %s", seed, plan, f)
	}
	return o
}

type simulation struct {
	t     *testing.T
	plan  simPlan
	o     *simObserver
	nodes []*locktest.FakeNode
	qs    []*locktest.FakeQuorum
}

func (s *simulation) run(rng *rand.Rand) {
	for i := range s.plan.nodes {
		n := quorumtest.NewNode(s.t, i)
		n.Mask(s.plan.masked)
		n.SetOffset(time.Duration(rng.Int64N(int64(s.plan.skew) + 1)))
		s.nodes = append(s.nodes, n)
	}
	s.o.nodes = s.nodes
	for range s.plan.clients {
		retries := rng.IntN(3) - 1
		s.qs = append(s.qs, locktest.JoinNodes(s.t, s.nodes, func(o *redis.Options) {
			o.MaxRetries = retries
			o.ReadTimeout = 300 * time.Millisecond
			o.DialTimeout = 300 * time.Millisecond
		}, leasehold.WithRestartQuarantine(s.plan.quarantine)))
	}
	end := time.Now().Add(s.plan.length)
	ctx, cancel := context.WithDeadline(s.t.Context(), end)
	defer cancel()
	var all sync.WaitGroup
	for i, q := range s.qs {
		rng := rand.New(rand.NewPCG(rng.Uint64(), uint64(i)))
		all.Go(func() { s.client(ctx, rng, q) })
	}
	for _, f := range []func(context.Context, *rand.Rand){s.jitter, s.trouble} {
		rng := rand.New(rand.NewPCG(rng.Uint64(), 99))
		all.Go(func() { f(ctx, rng) })
	}
	all.Wait()
	s.settle()
	for _, n := range s.nodes {
		n.Close()
	}
	time.Sleep(time.Minute)
}

// client takes the lock and gives it back or not, again and again.
func (s *simulation) client(ctx context.Context, rng *rand.Rand, q *locktest.FakeQuorum) {
	for ctx.Err() == nil {
		time.Sleep(s.span(rng, s.plan.ttl/3))
		var x *leasehold.Lease
		var err error
		called := s.o.tick.Add(1)
		auto := leasehold.WithAutoRenew(rng.IntN(2) == 0)
		if rng.IntN(3) > 0 {
			bound := s.plan.ttl
			if inside.Of(q.Locker).Backend.(*quorum.Quorum).IsUnknown() {
				bound = max(bound, roundtrip.FirstBound)
			}
			s.o.within("TryAcquire", bound, func() { x, err = q.TryAcquire(ctx, simKey, s.plan.ttl, auto) })
		} else {
			patience := s.span(rng, 2*s.plan.ttl)
			wait, cancel := context.WithTimeout(ctx, patience)
			s.o.within("Acquire", patience, func() { x, err = q.Acquire(wait, simKey, s.plan.ttl, auto) })
			cancel()
		}
		if (x == nil) == (err == nil) {
			s.o.fault("a lease %v and an error %v", x, err)
		}
		if err != nil {
			if !errors.Is(err, leasehold.ErrHeld) && !errors.Is(err, leasehold.ErrNoQuorum) && !errors.Is(err, context.DeadlineExceeded) && !isNoAnswer(err) {
				s.o.fault("acquire failed for no good reason: %v", err)
			}
			continue
		}
		l := s.o.handedOut(x, called)
		s.hold(ctx, rng, l)
	}
}

func isNoAnswer(err error) bool {
	var slow *fault.NoAnswer
	return errors.As(err, &slow)
}

func (s *simulation) hold(ctx context.Context, rng *rand.Rand, l *simLease) {
	for rng.IntN(2) > 0 && l.Valid() {
		select {
		case <-time.After(time.Duration(rng.Int64N(int64(s.plan.ttl)))):
		case <-ctx.Done():
			return
		}
		switch rng.IntN(5) {
		case 0, 1:
			s.o.within("Renew", s.plan.ttl, func() { _ = l.Renew(ctx) })
		case 3:
			ttl := s.plan.ttl/2 + time.Duration(rng.Int64N(int64(s.plan.ttl/2)))
			s.o.within("Extend", s.plan.ttl, func() { _ = l.Extend(ctx, ttl) })
		case 2:
			l = s.adopt(ctx, rng, l)
		}
	}
	if rng.IntN(5) > 0 {
		s.o.within("Release", max(s.plan.ttl, locktest.MinRelease), func() { _ = l.Release(ctx) })
	}
}

// adopt has some process take the lease over, while its holder goes on or after it has let go. It answers the lease that is held
// then.
func (s *simulation) adopt(ctx context.Context, rng *rand.Rand, l *simLease) *simLease {
	token, detached := l.Token(), rng.IntN(2) == 0
	if detached && l.Detach() == "" {
		return l
	}
	q := s.qs[rng.IntN(len(s.qs))]
	for range 3 {
		wait, cancel := context.WithTimeout(ctx, s.plan.ttl)
		var y *leasehold.Lease
		var err error
		called := s.o.tick.Add(1)
		s.o.within("Adopt", s.plan.ttl, func() {
			y, err = q.Adopt(wait, simKey, token, s.plan.ttl/2+time.Duration(rng.Int64N(int64(s.plan.ttl/2))), leasehold.WithAutoRenew(rng.IntN(2) == 0))
		})
		cancel()
		if err == nil {
			s.o.adoptions.Add(1)
			s.o.mu.Lock()
			l.passed = true
			s.o.mu.Unlock()
			return s.o.handedOut(y, called)
		}
		if !errors.Is(err, leasehold.ErrLost) && !errors.Is(err, leasehold.ErrNoQuorum) && !errors.Is(err, context.DeadlineExceeded) && !isNoAnswer(err) {
			s.o.fault("adopt failed for no good reason: %v", err)
		}
		if !detached || errors.Is(err, leasehold.ErrLost) {
			break
		}
	}
	return l
}

// jitter keeps changing how long each wire takes, so that commands overtake each other.
func (s *simulation) jitter(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		s.wire(rng).Delay(s.span(rng, s.plan.ttl/8))
		time.Sleep(s.span(rng, 5*time.Millisecond))
	}
}

func (s *simulation) wire(rng *rand.Rand) *redistest.DialFault {
	return s.qs[rng.IntN(len(s.qs))].Wires[rng.IntN(len(s.nodes))]
}

// span is a time of chance up to d, more often a short one.
func (s *simulation) span(rng *rand.Rand, d time.Duration) time.Duration {
	f := rng.Float64()
	return 50*time.Microsecond + time.Duration(f*f*float64(d))
}

// trouble breaks things, a moment each.
func (s *simulation) trouble(ctx context.Context, rng *rand.Rand) {
	pace := time.Duration(1 + rng.IntN(10)) // some histories are calm
	for ctx.Err() == nil {
		time.Sleep(s.span(rng, pace*s.plan.ttl))
		switch w := s.wire(rng); rng.IntN(12) {
		case 0, 1:
			w.DropReplies(1 + rng.IntN(3))
		case 2, 3:
			w.Duplicate()
		case 4:
			w.Cut()
		case 5:
			w.Delay(s.span(rng, s.plan.ttl))
		case 6, 7: // one process loses some of the nodes
			q := s.qs[rng.IntN(len(s.qs))]
			wires := some(rng, q.Wires)
			for _, w := range wires {
				if rng.IntN(2) == 0 {
					w.BlackHole()
				} else {
					w.Refuse()
				}
			}
			time.Sleep(s.span(rng, 2*s.plan.ttl))
			for _, w := range wires {
				w.Pass()
			}
		case 8, 9, 10:
			s.crash(some(rng, s.nodes), s.plan.loss, s.span(rng, s.plan.ttl/2))
		case 11:
			if s.plan.steps {
				forward, back := s.span(rng, time.Second), s.span(rng, time.Second)
				s.nodes[rng.IntN(len(s.nodes))].Step(forward - back)
			}
		}
	}
}

// some picks one or more.
func some[T any](rng *rand.Rand, from []T) (some []T) {
	for _, i := range rng.Perm(len(from))[:1+rng.IntN(len(from))] {
		some = append(some, from[i])
	}
	return some
}

// crash ends the connections of nodes and refuses new ones for a while.
func (s *simulation) crash(nodes []*locktest.FakeNode, forget bool, down time.Duration) {
	wires := func(f func(*redistest.DialFault)) {
		for _, n := range nodes {
			for _, q := range s.qs {
				f(q.Wires[n.Index])
			}
		}
	}
	wires(func(w *redistest.DialFault) { w.Refuse() })
	time.Sleep(down)
	if forget {
		for _, n := range nodes {
			n.Forget()
		}
	}
	wires(func(w *redistest.DialFault) { w.Pass() })
}

// settle checks that all is well again once the faults are over.
func (s *simulation) settle() {
	for _, q := range s.qs {
		for _, w := range q.Wires {
			w.Pass()
			w.Delay(50 * time.Microsecond)
		}
	}
	for _, q := range s.qs {
		s.o.within("Close", 2*locktest.CloseBound, func() { _ = q.Close() })
	}
	time.Sleep(max(s.plan.ttl, s.plan.quarantine) + 4*time.Second)
	for _, n := range s.nodes {
		if token, err := n.Get(simKey); err == nil {
			s.o.fault("node %d still has %s, for %v", n.Index, token, n.TTL(simKey))
		}
		for _, key := range n.Keys() {
			if n.TTL(key) <= 0 {
				s.o.fault("node %d has %s without a TTL", n.Index, key)
			}
		}
	}
	q := locktest.JoinNodes(s.t, s.nodes, nil, leasehold.WithRestartQuarantine(s.plan.quarantine))
	called := s.o.tick.Add(1)
	x, err := q.TryAcquire(s.t.Context(), simKey, s.plan.ttl)
	if err != nil {
		s.o.fault("no progress: %v", err)
	} else {
		s.o.handedOut(x, called)
	}
	if err := q.Close(); err != nil {
		s.o.fault("close: %v", err)
	}
}
