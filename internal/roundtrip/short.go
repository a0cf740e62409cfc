package roundtrip

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/script"
	"github.com/redis/go-redis/v9"
)

// Short is a form of a command that does the same where nothing about its key is unusual, and
// nothing otherwise. It costs the server less than the whole command, which is sent behind it in
// the same round trip if it did nothing.
//
// To do nothing costs one more command, never a promise: the whole command is idempotent by its
// token, and finds what an earlier copy has done. So whoever prepares a command may guess whether
// the short form will do.
//
// Rejected: a run of Many on a cluster, since its keys would have to be in one slot; and batches
// that wait for company, since a lone caller would pay for their patience. A run of Many has those
// commands that would have shared the round trip anyway.
type Short struct {
	// One does one command: KEYS the keys that Keys names, ARGV the token and, with Millis, the
	// milliseconds. Its reply is that of the command, or Nothing. Without One, a command that is
	// alone is sent whole.
	One *script.Script
	// Many does several commands, each about another key: KEYS the first key of each, then the
	// second of each, ARGV the tokens, then the milliseconds. Its reply is a list of what One would
	// reply to each. It must raise no error once it has changed anything: an error means that
	// nothing was done. Without Many, commands do not share one.
	Many    *script.Script
	Keys    []int // which of the command's keys, counted from 0
	Millis  bool
	Nothing int64 // says that nothing was done
}

// maxMany bounds the commands of one run of Many. Redis does nothing else meanwhile: 64 take about
// a third of a millisecond.
const maxMany = 64

// arguments appends those of a run of a short script for some commands.
func (f *Short) arguments(args []any, sc *script.Script, of ...*Command) []any {
	args = append(args, "evalsha", sc.Hash, len(of)*len(f.Keys))
	for _, at := range f.Keys {
		for _, c := range of {
			args = append(args, c.args[firstKey+at])
		}
	}
	for _, c := range of {
		args = append(args, &c.token)
	}
	for _, c := range of {
		if f.Millis {
			args = append(args, &c.px)
		}
	}
	return args
}

// SetShort has the command sent in its short form first.
func (c *Command) SetShort(f *Short) { c.short = f }

// WasShort reports whether the short form of an answered command has done it.
func (c *Command) WasShort() bool { return c.short != nil }

// alone has the command sent by itself: whole, if its short form is for several.
func (c *Command) alone() {
	if c.short != nil && c.short.One == nil {
		c.short = nil
	}
}

// whole has the command sent whole, since its short form did nothing. certain means that this is
// known of the last write, which then does not count.
func (c *Command) whole(certain bool) {
	c.short, c.taught = nil, false
	if certain {
		c.unwrite()
	}
}

// again takes in what became of the command that was sent, and reports whether it has to be sent
// again: its script was unknown, or its short form did nothing.
func (c *Command) again(cmd *redis.Cmd) bool {
	switch err := cmd.Err(); {
	case !c.taught && err != nil && redis.HasErrorPrefix(err, "NOSCRIPT"):
		c.teach()
		return true
	case c.short == nil, !fault.IsSaid(err), errors.Is(err, redis.Nil), err == nil && cmd.Val() != any(c.short.Nothing):
		return false
	}
	c.whole(true)
	return true
}

// post is one command of Redis, and the commands that it stands for: a run of Many, or one command.
type post struct {
	of     []*Command
	many   *Short // nil: a command alone
	taught bool   // as of a Command
	cmd    *redis.Cmd
}

// posts sorts a batch: commands with the same short form share a post, in the order in which they
// came.
//
// A post has no key twice: two releases of one token would both be told that it gave the lock back.
// The calls of a batch are concurrent, as none of them has been answered, so any order is a right
// one.
func (s *sender) posts(batch []*Command) []post {
	posts := make([]post, 0, 4)
	for i, c := range batch {
		if c.short == nil || c.short.Many == nil || !s.sharesScripts() {
			c.alone()
			posts = append(posts, post{of: batch[i : i+1 : i+1]})
			continue
		}
		at := slices.IndexFunc(posts, func(p post) bool { return p.takes(c) })
		if at < 0 {
			at = len(posts)
			posts = append(posts, post{many: c.short, of: make([]*Command, 0, min(len(batch)-i, maxMany))})
		}
		posts[at].of = append(posts[at].of, c)
	}
	for i := range posts {
		if len(posts[i].of) == 1 {
			posts[i].many = nil
			posts[i].of[0].alone()
		}
	}
	return posts
}

// takes reports whether the command may share the post.
func (p *post) takes(c *Command) bool {
	return p.many == c.short && len(p.of) < maxMany &&
		!slices.ContainsFunc(p.of, func(other *Command) bool { return other.key == c.key })
}

// sharesScripts reports whether one run of a script may be for several keys: they are on one
// server, and it has not refused such a run.
func (s *sender) sharesScripts() bool {
	return s.topology.Kind == OneServer && !s.apart.Load()
}

// command makes the command to be sent, with arguments that a hook may change and keep.
func (p *post) command(ctx context.Context) *redis.Cmd {
	if p.many == nil {
		return p.of[0].command(ctx)
	}
	sc := p.many.Many
	args := p.many.arguments(make([]any, 0, firstKey+len(p.of)*(len(p.many.Keys)+2)), sc, p.of...)
	if p.taught {
		args[0], args[1] = "eval", sc.Src
	}
	cmd := redis.NewCmd(ctx, args...)
	cmd.SetFirstKeyPos(firstKey)
	return cmd
}

// heard takes in what became of a post, and appends to again what has to be sent again. failed is
// the error of the round trip.
//
// An error that a server replied with means that nothing of a run of Many was done, so each of its
// commands goes whole.
func (s *sender) heard(p post, failed error, again []post) []post {
	if p.many == nil {
		c := p.of[0]
		if c.again(p.cmd) {
			return append(again, p)
		}
		if c.reply, c.err = p.cmd.Val(), p.cmd.Err(); c.reply == nil && c.err == nil {
			c.err = failed // a hook of the client answered for it
		}
		return again
	}
	err := p.cmd.Err()
	if !p.taught && err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		p.taught = true
		for _, c := range p.of {
			c.unwrite()
		}
		return append(again, p)
	}
	if err == nil && p.cmd.Val() == nil {
		err = failed
	}
	replies, isList := p.cmd.Val().([]any)
	isList = isList && len(replies) == len(p.of)
	if err != nil && refusesMany(err) {
		s.apart.Store(true)
	}
	for i, c := range p.of {
		switch {
		case !fault.IsSaid(err):
			c.err = err
		case err == nil && isList && replies[i] != any(p.many.Nothing):
			c.reply = replies[i]
		default:
			c.whole(isList || err != nil)
			again = append(again, post{of: p.of[i : i+1 : i+1]})
		}
	}
	return again
}

// refusesMany reports whether a server's error may be about several keys in one command: a node of
// a cluster whose client does not know that, a proxy, or a user who has only some of the rights.
// ERR is what Redis 6 puts before an error inside a script.
func refusesMany(err error) bool {
	said, _ := errors.AsType[redis.Error](err)
	return said != nil && slices.ContainsFunc([]string{"CROSSSLOT ", "MOVED ", "NOPERM ", "ERR "}, func(prefix string) bool {
		return strings.HasPrefix(said.Error(), prefix)
	})
}
