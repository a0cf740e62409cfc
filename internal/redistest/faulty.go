package redistest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Fault breaks the calls of one client by rules. It sits above go-redis's
// retries: a failed call is not tried again, and a call counts once however
// often go-redis sends it. What it cannot see: SUBSCRIBE and PING of a PubSub,
// and the commands that set a connection up, which it lets pass unlogged.
//
// Methods may be called at any time from any goroutine.
type Fault struct {
	mu    sync.Mutex
	rules []*Rule
	sent  []string
}

// Faulty puts a Fault without rules on c.
func Faulty(c redis.UniversalClient) *Fault {
	f := &Fault{}
	c.AddHook(hook{f})
	return f
}

// Cmd matches commands by name, in lower case.
func Cmd(names ...string) func(redis.Cmder) bool {
	return func(c redis.Cmder) bool { return slices.Contains(names, c.Name()) }
}

// Next begins a rule for the next n commands that match (nil matches all). The
// rule takes effect with the method that says what happens to them. A command
// obeys the first rule that matches it and is not used up.
func (f *Fault) Next(n int, match func(redis.Cmder) bool) *Rule {
	return &Rule{fault: f, left: n, match: match}
}

// Every is Next without an end.
func (f *Fault) Every(match func(redis.Cmder) bool) *Rule { return f.Next(-1, match) }

// Clear drops all rules. Commands that are held stay held.
func (f *Fault) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
}

// Sent returns the names of the commands that were sent, in order.
func (f *Fault) Sent() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.sent)
}

// Rule says what happens to some commands. Like a go-redis client by default,
// a rule that waits does not care whether the context of the call has ended.
type Rule struct {
	fault *Fault
	match func(redis.Cmder) bool
	left  int // below zero: no limit

	before, after func() // may wait
	fail, lose    error
	answer        error
}

// Fail returns err instead of sending the command. The commands of a pipeline
// fail together: they are one write.
func (r *Rule) Fail(err error) { r.fail = err; r.add() }

// Lose lets the command run and returns err instead of its reply, and instead
// of the replies behind it in a pipeline.
func (r *Rule) Lose(err error) { r.lose = err; r.add() }

// Answer lets the command run and returns err, as if the server had said it, instead of its reply
// alone: the other commands of a pipeline are not concerned.
func (r *Rule) Answer(err error) { r.answer = err; r.add() }

// Delay sends the command d later.
func (r *Rule) Delay(d time.Duration) { r.before = func() { time.Sleep(d) }; r.add() }

// DelayReply sends the command at once and returns its reply d later.
func (r *Rule) DelayReply(d time.Duration) { r.after = func() { time.Sleep(d) }; r.add() }

// Hold sends the command only when it is released.
func (r *Rule) Hold() *Held {
	h := newHeld()
	r.before = h.wait
	r.add()
	return h
}

// HoldReply sends the command at once and returns its reply only when it is
// released.
func (r *Rule) HoldReply() *Held {
	h := newHeld()
	r.after = h.wait
	r.add()
	return h
}

func (r *Rule) add() {
	r.fault.mu.Lock()
	defer r.fault.mu.Unlock()
	r.fault.rules = append(r.fault.rules, r)
}

// Held is where the commands of a Hold or HoldReply rule wait.
type Held struct {
	arrived, released chan struct{}
	arrive, release   sync.Once
}

func newHeld() *Held {
	return &Held{arrived: make(chan struct{}), released: make(chan struct{})}
}

// Arrived is closed when the first command waits.
func (h *Held) Arrived() <-chan struct{} { return h.arrived }

// Release lets go of all commands, also of those that are still to come. Call
// it before the test ends.
func (h *Held) Release() { h.release.Do(func() { close(h.released) }) }

func (h *Held) wait() {
	h.arrive.Do(func() { close(h.arrived) })
	<-h.released
}

// take finds the rule of each command, nil where there is none.
func (f *Fault) take(cmds []redis.Cmder) []*Rule {
	f.mu.Lock()
	defer f.mu.Unlock()
	rules := make([]*Rule, len(cmds))
	for i, c := range cmds {
		for _, r := range f.rules {
			if r.left != 0 && (r.match == nil || r.match(c)) {
				r.left--
				rules[i] = r
				break
			}
		}
	}
	return rules
}

// run sends cmds as one write, under the rules.
func (f *Fault) run(cmds []redis.Cmder, send func([]redis.Cmder) error) error {
	rules := f.take(cmds)
	for _, r := range rules {
		if r != nil && r.before != nil {
			r.before()
		}
	}
	for _, r := range rules {
		if r != nil && r.fail != nil {
			return setErr(cmds, r.fail)
		}
	}

	f.mu.Lock()
	for _, c := range cmds {
		f.sent = append(f.sent, c.Name())
	}
	f.mu.Unlock()

	var err error
	if i := slices.IndexFunc(rules, func(r *Rule) bool { return r != nil && r.lose != nil }); i < 0 {
		err = send(cmds)
	} else {
		lose := rules[i].lose
		if cmds[0].Name() == "multi" {
			i = 0 // all the replies of a transaction come with EXEC
		}
		// Clones take the lost replies, so that the caller's commands never
		// hold a value that did not arrive.
		clones := slices.Clone(cmds)
		for j := i; j < len(cmds); j++ {
			clones[j] = cmds[j].Clone()
		}
		_ = send(clones)
		err = setErr(cmds[i:], lose)
		for _, c := range cmds[:i] {
			if c.Err() != nil {
				err = c.Err()
				break
			}
		}
	}
	for i, r := range rules {
		if r != nil && r.answer != nil {
			cmds[i].SetErr(r.answer)
			err = r.answer
		}
	}
	for _, r := range rules {
		if r != nil && r.after != nil {
			r.after()
		}
	}
	return err
}

func setErr(cmds []redis.Cmder, err error) error {
	for _, c := range cmds {
		c.SetErr(err)
	}
	return err
}

// setup reports whether go-redis sends the command on its own to set up a
// connection or to learn about the server.
func setup(name string) bool {
	switch strings.ToLower(name) {
	case "hello", "auth", "client", "select", "readonly", "cluster", "command":
		return true
	}
	return false
}

// hook keeps the methods that go-redis wants out of Fault's own.
type hook struct{ f *Fault }

func (h hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if setup(cmd.Name()) {
			return next(ctx, cmd)
		}
		return h.f.run([]redis.Cmder{cmd}, func(cmds []redis.Cmder) error { return next(ctx, cmds[0]) })
	}
}

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if setup(cmds[0].Name()) {
			return next(ctx, cmds)
		}
		return h.f.run(cmds, func(cmds []redis.Cmder) error { return next(ctx, cmds) })
	}
}
