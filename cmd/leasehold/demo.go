package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-leasehold/leasehold"
)

const demoText = `demo plays four scenes with leases, in about ten seconds:

  1  several workers take turns on one invoice, in the order of arrival
  2  a worker dies, and the next one gets in when its lease runs out
  3  a long job is kept alive by renewals
  4  a worker is paused until its lease is over and then writes: its fencing
     token is stale and the write refused; the same write goes wrong unchecked

It exits with 0 only if each of these really happened; the last lines say what
did. Without -redis it runs on a Redis of its own, in memory, whatever REDIS_URL
says. A real one needs no cleaning afterwards. All keys have this run's name,
leasehold-demo:…, in theirs, and a TTL: a minute for the data, 7 and 30 days for
five fencing tokens.

Examples:

	leasehold demo
	leasehold demo -redis redis://127.0.0.1:6379/0
`

func newDemo() *command {
	c := newCommand("demo", "plays four scenes with leases and checks what happened", "[-redis URL]", demoText)
	c.servers.local = true
	c.Func("redis", "the `URL` of a real Redis; default is one in memory", func(text string) error {
		c.servers.nodes = nil
		err := c.servers.add(text)
		if err == nil && c.servers.nodes[0].one == nil {
			err = errOneRedis
		}
		return err
	})
	c.do = func(p *program) (int, error) {
		ctx, stop := p.interruptible()
		defer stop()
		var opt *redis.Options
		if len(c.servers.nodes) > 0 {
			opt = c.servers.nodes[0].one
		}
		if err := p.perform(ctx, opt); err != nil {
			return exitFailed, err
		}
		return exitOK, nil
	}
	return c
}

// perform plays all scenes on the Redis of opt, or on one of its own, and returns an error if any of them did
// not show what it should.
func (p *program) perform(ctx context.Context, opt *redis.Options) error {
	where := "a Redis in memory (miniredis)"
	if opt != nil {
		where = "the Redis at " + opt.Addr
	} else {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true) // its TTLs run by themselves
		if err := m.Start(); err != nil {
			return err
		}
		defer m.Close()
		opt = &redis.Options{Addr: m.Addr()}
	}
	s := newStage(newScreen(p.out), p.beat, func() *redis.Client { return redis.NewClient(opt) })
	if err := s.ping(ctx); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}

	s.println(s.paint(bold, "leasehold demo") + " on " + where + ", keys " + s.prefix + "*")
	claims, errs := make([]string, len(scenes)), make([]error, len(scenes))
	for i, scene := range scenes {
		s.title(i+1, scene.title, scene.about)
		claims[i], errs[i] = s.play(ctx, scene)
		if err := pause(ctx, 5*s.beat); err != nil {
			return errors.New("interrupted")
		}
	}

	s.println("\n" + s.paint(bold, "What happened") + s.paint(faint, fmt.Sprintf("  in %.1f s", time.Since(s.start).Seconds())) + "\n")
	failed := 0
	for i, scene := range scenes {
		s.verdict(scene.title, claims[i], errs[i])
		if errs[i] != nil {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d scenes did not go as they must", failed, len(scenes))
	}
	return nil
}

// A stage is what the scenes have in common.
type stage struct {
	*screen
	beat   time.Duration // the unit of all times
	prefix string        // of all keys
	dial   func() *redis.Client
}

func newStage(s *screen, beat time.Duration, dial func() *redis.Client) *stage {
	return &stage{screen: s, beat: beat, prefix: "leasehold-demo:" + strings.ToLower(rand.Text()[:6]) + ":", dial: dial}
}

func (s *stage) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	client := s.dial()
	defer client.Close()
	return client.Ping(ctx).Err()
}

// A scene returns what it has shown, in a sentence, or what did not happen.
type scene struct {
	title string
	about string
	play  func(*stage, context.Context) (string, error)
}

// play ends a scene that hangs. None needs more than 30 beats.
func (s *stage) play(ctx context.Context, scene scene) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 100*s.beat, errors.New("the scene came to no end"))
	defer cancel()
	return scene.play(s, ctx)
}

// A worker stands for a process: it shares neither client nor Locker with another.
type worker struct {
	name   string
	client *redis.Client
	locker *leasehold.Locker
}

// hire makes workers of these names; the caller must dismiss them. How that goes does not matter: what they
// held was released, or is not meant to be.
func (s *stage) hire(names ...string) (workers []*worker, dismiss func()) {
	for _, name := range names {
		client := s.dial()
		locker := leasehold.New(client, leasehold.WithKeyPrefix(s.prefix), leasehold.WithOwner(name))
		workers = append(workers, &worker{name, client, locker})
	}
	return workers, func() {
		for _, w := range workers {
			_ = w.locker.Close()
			_ = w.client.Close()
		}
	}
}

// waiters returns when the lock is held and n workers wait for it, not before the holder has had time to say so.
func (s *stage) waiters(ctx context.Context, w *worker, key string, n int) error {
	for {
		if err := pause(ctx, s.beat/2); err != nil {
			return err
		}
		state, err := w.locker.Inspect(ctx, key)
		if err != nil || state.Held && state.Waiters == n {
			return err
		}
	}
}

// pause sleeps, and returns the cause if ctx ends before that.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
