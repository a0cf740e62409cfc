package roundtrip

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/script"
	"github.com/redis/go-redis/v9"
)

// Command is one run of a script. It is made for one use and owns everything that is written for
// it: a command that was given up may still be on its way, so nothing of it is ever used again. The
// one exception is Recycle.
//
// Who may touch a Command changes hands. Its maker has it until it is sent. Then its round trip has
// it, and writes reply and err. Its caller may read them after the round trip has said so
// (wait.done, or the call of Then), and at any time asks only what is atomic.
//
// What is sent is what go-redis's own Script sends: keys as strings, their number as an int, and
// each command with arguments of its own. Hooks of the client rely on that, such as one that puts a
// tenant's prefix before the keys: it must find every key, and find none twice.
type Command struct {
	script *script.Script
	short  *Short // the form in which it is sent; nil: whole
	values values
	key    string
	px     digits
	token  countedToken
	args   [maxArgs]any // as they are meant; no command has this array
	first  [maxArgs]any // those of the first command
	n      int          // of args
	given  bool         // first was given away
	taught bool         // the server does not know the script: its text is sent
	// private means that the command was answered, and that only the goroutine of its maker ever had it.
	private bool
	buf     [128]byte

	with  atomic.Pointer[sender]
	led   led                        // the context, while its caller leads
	spent time.Duration              // of the bound, by a caller that led in vain
	wait  *wait                      // where its caller waits; or
	then  func(reply any, err error) // what is done about the answer, in the goroutine of the round trip
	reply any
	err   error
}

// maxArgs is the most that a script is given: its name, itself, the number of keys, the keys (two
// more where several hold a lock), and five arguments.
const maxArgs = 3 + len(rediskey.Keys{}) + 2 + 5

// values is a context of which only the values count, such as a span that is a parent. It is what
// context.WithoutCancel makes, but for context.Cause, in the place that the command has for it: one
// allocation less for each.
type values struct{ context.Context }

func (values) Deadline() (time.Time, bool) { return time.Time{}, false }
func (values) Done() <-chan struct{}       { return nil }
func (values) Err() error                  { return nil }

// wait is where a caller waits for its command. One whose command was given up is left to the
// garbage collector: the round trip may still signal it.
type wait struct {
	done  chan struct{} // length one: a round trip never blocks on a caller that has left
	timer *time.Timer
}

// digits is a number as an argument that costs no allocation.
type digits []byte

func (d *digits) MarshalBinary() ([]byte, error) { return *d, nil }
func (d *digits) String() string                 { return string(*d) }

// countedToken is the token as an argument. go-redis asks it for its bytes at every write, so it
// knows how often the command was written, which go-redis does not say.
type countedToken struct {
	bytes  []byte
	writes atomic.Int32
}

func (t *countedToken) MarshalBinary() ([]byte, error) {
	t.writes.Add(1)
	return t.bytes, nil
}

// String keeps the token, which is a proof of ownership, out of traces.
func (t *countedToken) String() string { return "(token)" }

// Secret is another token as an argument, one whose writes nobody counts.
func Secret(token string) any { return &countedToken{bytes: []byte(token)} }

// Silence is the error of a command that has no answer yet, after bound or, if that is 0, when its
// caller's time was over. It has the cause, as far as the sender knows.
func (c *Command) Silence(bound time.Duration) error {
	quiet := &fault.NoAnswer{Bound: bound}
	if s := c.with.Load(); s != nil { // otherwise it has not gone yet
		quiet.Cause = s.way.trouble(c.Writes() == 0)
	}
	return quiet
}

// Unheard adds to a cause what is known of the way to the server, where the cause is that no answer
// came.
func (c *Command) Unheard(cause error) error {
	if quiet, ok := cause.(*fault.NoAnswer); ok {
		return c.Silence(quiet.Bound)
	}
	return cause
}

// Writes is how often the command was written to a connection.
func (c *Command) Writes() int { return int(c.token.writes.Load()) }

// commands are those that were recycled.
var commands = sync.Pool{New: func() any { return new(Command) }}

// Recycle lets another command have the memory of this one. Only a maker calls it who had the
// answer from Do, and it does nothing unless that caller led and was answered: then no other
// goroutine has ever known the command, and nobody has kept anything of it, neither a hook of the
// client, since there was none, nor go-redis.
func (c *Command) Recycle() {
	if c.private {
		*c = Command{}
		commands.Put(c)
	}
}

// New prepares the run of a script on those keys, for a token and a number of milliseconds. What
// else the script is given is added. Of ctx only the values count.
func New(ctx context.Context, sc *script.Script, token string, px int64, keys ...any) *Command {
	c := commands.Get().(*Command)
	c.script, c.values = sc, values{ctx}
	c.key, _ = keys[0].(string)
	// The digits and the token share one buffer, which is the command's own unless the token is
	// very long. A slice of each is an argument by pointer, so neither costs an allocation.
	buf := strconv.AppendInt(c.buf[:0], px, 10)
	at := len(buf)
	buf = append(buf, token...)
	c.px, c.token.bytes = digits(buf[:at:at]), buf[at:]
	c.Add("evalsha", sc.Hash, len(keys))
	c.Add(keys...)
	return c
}

// AddToken adds the token, whose writes are counted, and AddMillis the milliseconds.
func (c *Command) AddToken()  { c.Add(&c.token) }
func (c *Command) AddMillis() { c.Add(&c.px) }

// Then sets what is done about the answer, in another goroutine and without blocking it. It is for
// a command that nobody waits for.
func (c *Command) Then(do func(reply any, err error)) { c.then = do }

// Add adds arguments.
func (c *Command) Add(args ...any) { c.n = len(append(c.args[:c.n], args...)) }

// command makes the command to be sent, with arguments that a hook may change and keep.
func (c *Command) command(ctx context.Context) *redis.Cmd {
	args := c.first[:0]
	if c.given {
		args = make([]any, 0, c.n)
	}
	c.given = true
	sc := c.script
	if c.short != nil {
		sc = c.short.One
		args = c.short.arguments(args, sc, c)
	} else {
		args = append(args, c.args[:c.n]...)
	}
	if c.taught {
		args[0], args[1] = "eval", sc.Src
	}
	cmd := redis.NewCmd(ctx, slices.Clip(args)...)
	cmd.SetFirstKeyPos(firstKey)
	return cmd
}

// firstKey is where the keys begin in the arguments of a command.
const firstKey = 3

// teach turns the command into an EVAL, since the server does not know the script: after a restart,
// a failover, SCRIPT FLUSH, or at the first call ever. Not SCRIPT LOAD, which would be a further
// round trip and would have to reach the right node.
func (c *Command) teach() {
	c.taught = true
	c.unwrite()
}

// unwrite takes back the count of the last write, which has certainly done nothing. Of several
// writes, an earlier one may have done it.
func (c *Command) unwrite() { c.token.writes.CompareAndSwap(1, 0) }

// Withdraw takes back a command that has not been sent, and reports whether it could.
func (c *Command) Withdraw() bool {
	s := c.with.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.queue, c)
	if i < 0 {
		return false // on its way, or done
	}
	s.queue = slices.Delete(s.queue, i, i+1)
	return true
}

// read says what the client's error means, with the names of this command.
func (c *Command) read(err error) error {
	switch {
	case err == nil || fault.Has[*fault.Replicas](err):
		return err
	case errors.Is(err, redis.Nil):
		return fmt.Errorf("%w: nil", fault.ErrReply)
	}
	return fault.Read(err, fault.Place{
		Script: c.script.Src,
		Direct: c.with.Load().topology.direct(),
		Key: func(n int) string {
			key, _ := c.args[firstKey+n-1].(string)
			return key
		},
	})
}

// learn tells the sender how the command fared on the way to the server.
func (c *Command) learn() {
	met, isRead := c.err.(*fault.Error)
	switch {
	case fault.IsSaid(c.err):
		c.with.Load().way.note(nil)
	case isRead && met.Passes:
		c.with.Load().way.note(met.Err)
	}
}

// conclude reads the error, and tells the sender what it says of the way to the server.
func (c *Command) conclude() {
	c.err = c.read(c.err)
	c.learn()
}

// finish delivers the result of the command to its caller. It never blocks: a caller that has left
// finds nobody to read its channel, which has room for one signal, and a Then must not block.
func (c *Command) finish() {
	c.conclude()
	if c.then != nil {
		c.then(c.reply, c.err)
		return
	}
	c.wait.done <- struct{}{}
}

// isUnheard reports whether no server has answered, though the client did what it should.
func (c *Command) isUnheard() bool { return !fault.IsSaid(c.err) && fault.Transient(c.err) }

// recovered makes a panic in the client, as in a hook of the user's, the error of the commands.
func recovered(commands ...*Command) {
	if p := recover(); p != nil {
		for _, c := range commands {
			if c.reply == nil && c.err == nil {
				c.err = fault.Panicked(p)
			}
		}
	}
}

// abandoned gives an error to a command whose goroutine the client has ended, as a hook's
// runtime.Goexit does.
func (c *Command) abandoned() {
	if c.reply == nil && c.err == nil {
		c.err = fault.ErrExited
	}
}
