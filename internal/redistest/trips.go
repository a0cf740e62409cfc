package redistest

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Trips is a hook that counts the round trips of a client and can hold them back.
type Trips struct {
	Sizes  []int                                               // commands of each round trip
	Names  []string                                            // of the commands
	Before func(ctx context.Context, cmds []redis.Cmder) error // is called with each round trip, and may answer for the server

	mu    sync.Mutex    // guards all
	under int           // way
	most  int           // were under way at once
	gate  chan struct{} // where round trips are held; nil: nowhere
	held  int           // so many more are; below 0: all
}

// Hold holds back the next n round trips, or all if n is below 0, until the function that it returns is called.
func (f *Trips) Hold(n int) (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gate := make(chan struct{})
	f.gate, f.held = gate, n
	return sync.OnceFunc(func() {
		f.mu.Lock()
		f.gate = nil
		f.mu.Unlock()
		close(gate)
	})
}

// Seen is how many commands each round trip had.
func (f *Trips) Seen() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.Sizes)
}

// Under is how many are under way.
func (f *Trips) Under() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.under
}

// Peak is how many were under way at once.
func (f *Trips) Peak() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most
}

func (f *Trips) run(ctx context.Context, cmds []redis.Cmder, next func() error) error {
	f.mu.Lock()
	f.Sizes = append(f.Sizes, len(cmds))
	for _, cmd := range cmds {
		f.Names = append(f.Names, cmd.Name())
	}
	f.under++
	f.most = max(f.most, f.under)
	gate := f.gate
	switch {
	case f.held == 0:
		gate = nil
	case f.held > 0:
		f.held--
	}
	before := f.Before
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.under--
		f.mu.Unlock()
	}()
	if before != nil {
		if err := before(ctx, cmds); err != nil {
			return err
		}
	}
	if gate != nil {
		<-gate
	}
	return next()
}

// SetBefore sets Before while round trips are under way.
func (f *Trips) SetBefore(before func(context.Context, []redis.Cmder) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Before = before
}

// DialHook lets dials pass.
func (f *Trips) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook counts a script as a round trip.
func (f *Trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			return f.run(ctx, []redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
		}
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook counts a pipeline of scripts as a round trip.
func (f *Trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if strings.HasPrefix(cmds[0].Name(), "eval") {
			return f.run(ctx, cmds, func() error { return next(ctx, cmds) })
		}
		return next(ctx, cmds)
	}
}
