package quorumtest

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/go-leasehold/leasehold/internal/quorum/nodescript"
	"github.com/go-leasehold/leasehold/internal/script"
)

var scripts = map[string]*script.Script{
	"acquire": nodescript.Acquire, "renew": nodescript.Renew, "refill": nodescript.Refill,
	"release": nodescript.Release, "inspect": nodescript.Inspect, "renewals": nodescript.Renewals.Many,
}

// Runs matches the commands that run the script of that name: acquire, renew, renewals, refill, release or inspect.
func Runs(name string) func(redis.Cmder) bool {
	sc := scripts[name]
	return func(cmd redis.Cmder) bool {
		return len(cmd.Args()) > 1 && (cmd.Args()[1] == sc.Hash || cmd.Args()[1] == any(sc.Src))
	}
}

// Spy is a hook that notes the scripts which a client runs.
type Spy struct {
	mu  sync.Mutex // guards what follows
	ran []string
}

// Took returns the names of the scripts that were run since the last call.
func (s *Spy) Took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ran := s.ran
	s.ran = nil
	return ran
}

// note takes commands in. An EVAL is not noted: it repeats an EVALSHA that the server did not know.
func (s *Spy) note(cmds ...redis.Cmder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cmd := range cmds {
		for name, sc := range scripts {
			if cmd.Name() == "evalsha" && cmd.Args()[1] == sc.Hash {
				s.ran = append(s.ran, name)
			}
		}
	}
}

// DialHook lets dials pass.
func (s *Spy) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook notes a command.
func (s *Spy) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { s.note(cmd); return next(ctx, cmd) }
}

// ProcessPipelineHook notes the commands of a pipeline.
func (s *Spy) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { s.note(cmds...); return next(ctx, cmds) }
}
