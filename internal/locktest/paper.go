package locktest

import (
	"context"
	"encoding"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/short"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
)

// Outage stops the server for a time and returns the renewals of each second before and after, and who was in jeopardy.
func (w *World) Outage(n int, ttl, d time.Duration) (before, after []int, jeopardy map[string]bool) {
	var mu sync.Mutex
	jeopardy = map[string]bool{}
	l, s, leases := w.OnPaper(n, ttl, leasehold.WithHooks(leasehold.Hooks{Jeopardy: func(e leasehold.Event) {
		mu.Lock()
		defer mu.Unlock()
		jeopardy[e.Key] = true
	}}))
	seconds := func(n int) (counts []int) {
		for range n {
			s.Take()
			time.Sleep(time.Second)
			renewals, _ := s.Take()
			counts = append(counts, len(renewals))
		}
		return counts
	}
	time.Sleep(10 * time.Second)
	before = seconds(10)
	again := s.Stop()
	time.Sleep(d)
	again()
	after = seconds(18)
	for _, x := range leases {
		assert.True(w.T, x.Valid())
	}
	assert.Zero(w.T, l.Stats().Lost)
	return before, after, jeopardy
}

// Paper answers the scripts in the place of a server, so that thousands of leases cost next to nothing.
type Paper struct {
	Mu       sync.Mutex
	Latency  time.Duration
	Slow     string // a key that holds up its whole round trip
	Trips    int    // since the last look
	Renewals []RenewalAt
	Down     chan struct{} // closed when it answers again; nil: it answers
}

type RenewalAt struct {
	Key string
	At  time.Time
}

func (s *Paper) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *Paper) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error { return s.Run([]redis.Cmder{cmd}) }
}

func (s *Paper) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error { return s.Run(cmds) }
}

func (s *Paper) Run(cmds []redis.Cmder) error {
	s.Mu.Lock()
	down, pause := s.Down, s.Latency
	for _, cmd := range cmds {
		if s.Slow != "" && slices.Contains(cmd.Args(), any(s.Slow)) {
			pause = 1200 * time.Millisecond
		}
	}
	s.Mu.Unlock()
	if down != nil {
		select {
		case <-down:
		case <-time.After(3 * time.Second): // go-redis's own patience
			for _, cmd := range cmds {
				cmd.SetErr(ErrNetwork)
			}
			return ErrNetwork
		}
	}
	if pause > 0 {
		time.Sleep(pause)
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Trips++
	for _, cmd := range cmds {
		reply := int64(1)
		for _, arg := range cmd.Args() {
			if token, ok := arg.(encoding.BinaryMarshaler); ok {
				_, _ = token.MarshalBinary()
			}
		}
		name, keys := cmd.Args()[1], cmd.Args()[3:3+cmd.Args()[2].(int)]
		if name == RenewScript.Hash || name == short.Renew.Many.Hash {
			for _, key := range keys {
				s.Renewals = append(s.Renewals, RenewalAt{key.(string), time.Now()})
			}
			reply = 0
		}
		switch name {
		case short.Acquire.Many.Hash, short.Release.Many.Hash:
			cmd.(*redis.Cmd).SetVal(slices.Repeat([]any{reply}, len(keys)/2))
		case short.Renew.Many.Hash:
			cmd.(*redis.Cmd).SetVal(slices.Repeat([]any{reply}, len(keys)))
		default:
			cmd.(*redis.Cmd).SetVal(reply)
		}
	}
	return nil
}

// Take returns what was renewed since the last call, and in how many round trips.
func (s *Paper) Take() ([]RenewalAt, int) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	renewals, trips := s.Renewals, s.Trips
	s.Renewals, s.Trips = nil, 0
	return renewals, trips
}

func (s *Paper) Stop() (again func()) {
	down := make(chan struct{})
	s.Mu.Lock()
	s.Down = down
	s.Mu.Unlock()
	return func() {
		s.Mu.Lock()
		s.Down = nil
		s.Mu.Unlock()
		close(down)
	}
}

// OnPaper is a Locker without a server, with n leases that are renewed.
func (w *World) OnPaper(n int, ttl time.Duration, opts ...leasehold.Option) (*leasehold.Locker, *Paper, []*leasehold.Lease) {
	client := w.Dial()
	s := &Paper{Latency: time.Millisecond}
	client.AddHook(s)
	l := leasehold.New(client, opts...)
	w.T.Cleanup(func() { assert.NoError(w.T, l.Close()) })
	leases := make([]*leasehold.Lease, n)
	var all sync.WaitGroup
	for i := range leases {
		all.Go(func() {
			x, err := l.TryAcquire(context.Background(), fmt.Sprint(i), ttl, leasehold.WithAutoRenew(true))
			assert.NoError(w.T, err)
			leases[i] = x
		})
	}
	all.Wait()
	return l, s, leases
}

// Many is more than may be under way at once.
const Many = 2048
