// Package several keeps locks that several hold at once in one Redis: shared leases, and slots.
//
// They stand in the same line as exclusive leases and live by the same rules; only the scripts are others. Exclusive leases keep
// their scripts, which take the marker of such a lock for somebody else's token. holders.lua has the rules.
package several

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
	"github.com/go-leasehold/leasehold/internal/script"
	"github.com/go-leasehold/leasehold/internal/token"
)

//go:embed *.lua
var files embed.FS

// Scripts are those of locks that several hold. They are immutable.
type Scripts struct{ Acquire, Renew, Release *script.Script }

// both finds a file in its own folder first, then in the other one.
type both struct{ own, other fs.FS }

func (b both) Open(name string) (fs.File, error) {
	f, err := b.own.Open(name)
	if err != nil {
		return b.other.Open(name)
	}
	return f, nil
}

// Load reads the scripts. Common has those that the scripts of exclusive locks include, too, which need the constants.
func Load(common fs.FS, constants map[string]any) *Scripts {
	all := map[string]any{"MAX_SLOTS": token.MaxSlots}
	for name, value := range constants {
		all[name] = value
	}
	load := func(name string) *script.Script { return script.Load(both{files, common}, name, all) }
	return &Scripts{load("acquire.lua"), load("renew.lua"), load("release.lua")}
}

// Store is one Redis.
type Store struct {
	*roundtrip.Client
	Scripts *Scripts
	Prefix  string
	AddWake func(cmd *roundtrip.Command, key string) // adds the channel of the messages to a command
}

// Check judges what a lease that is not exclusive asks for.
func Check(r backend.Request) error {
	what := "WithShared"
	if r.Kind != token.Shared {
		what = "WithSlots"
	}
	switch {
	case r.Kind == token.Exclusive:
	case r.LockDelay > 0:
		return fault.Invalid("%s with WithLockDelay(%v): the lock delay is for exclusive leases", what, r.LockDelay)
	case r.Replicas > 0:
		return fault.Invalid("%s with WithReplicas(%d): waiting for replicas is for exclusive leases", what, r.Replicas)
	case r.MinHold > 0:
		return fault.Invalid("%s with WithMinHold(%v): the least hold is for exclusive leases", what, r.MinHold)
	case r.Former != "":
		return fault.Invalid("%s with Adopt: only an exclusive lease can be adopted", what)
	}
	return nil
}

// tenure is what a token has on the Redis: nothing but the token.
type tenure struct {
	s *Store
	backend.Request
	keys []any
}

// Tenure begins the life of a token.
func (s *Store) Tenure(r backend.Request) backend.Tenure {
	return &tenure{s, r, rediskey.Several(s.Prefix, r.Key)}
}

var (
	modes = map[backend.Mode]any{backend.Try: "try", backend.Join: "join", backend.Poll: "poll"}
	ends  = map[bool]any{false: "release", true: "cancel"}
)

// Acquire sends one attempt.
func (t *tenure) Acquire(ctx context.Context, how backend.Mode, bound time.Duration) (backend.Answer, int, error) {
	cmd := roundtrip.New(ctx, t.s.Scripts.Acquire, t.Token, t.PX, t.keys...)
	cmd.AddToken()
	cmd.AddMillis()
	cmd.Add(modes[how])
	t.s.AddWake(cmd, t.Key)
	defer cmd.Recycle()
	reply, writes, err := t.s.Do(ctx, cmd, bound)
	if err != nil {
		return backend.Answer{}, writes, err
	}
	list, _ := reply.([]any)
	a, err := Decode(list)
	return a, writes, err
}

// renewal is a run of renew.lua.
func (t *tenure) renewal(ctx context.Context, r backend.Renewal) *roundtrip.Command {
	cmd := roundtrip.New(ctx, t.s.Scripts.Renew, t.Token, r.PX, t.keys...)
	cmd.AddToken()
	cmd.AddMillis()
	if r.Mode() == "" {
		cmd.Add("keep")
	} else {
		cmd.Add(r.Mode())
	}
	t.s.AddWake(cmd, t.Key)
	return cmd
}

// renewed reads the reply to a renewal.
func renewed(reply any, err error, count bool) (int, error) {
	if err != nil {
		return 0, err
	}
	n, err := script.Int(reply)
	if n > 0 && !count {
		n = 0
	}
	return n, err
}

// Renew puts the time of the renewal on the token's entry.
func (t *tenure) Renew(ctx context.Context, r backend.Renewal, bound time.Duration) (int, error) {
	reply, writes, err := t.s.Do(ctx, t.renewal(ctx, r), bound)
	if r.Shorten != nil && fault.IsSettled(err, writes) {
		r.Shorten()
	}
	return renewed(reply, err, r.CountWaiters)
}

// RenewLater queues a renewal.
func (t *tenure) RenewLater(r backend.Renewal, then func(backend.Pending, int, error)) backend.Pending {
	cmd := t.renewal(context.Background(), r)
	cmd.Then(func(reply any, err error) {
		n, err := renewed(reply, err, r.CountWaiters)
		then(cmd, n, err)
	})
	t.s.Queue(cmd)
	return cmd
}

// Lane names the server of the key.
func (t *tenure) Lane() any { return t.s.Client.Lane(t.Key) }

// Release gives back what the token has.
func (t *tenure) Release(ctx context.Context, how backend.How, bound time.Duration) (found, writes int, _ error) {
	cmd := t.s.Leave(ctx, t.Request, t.keys, how == backend.Cancel)
	defer cmd.Recycle()
	reply, writes, err := t.s.Do(ctx, cmd, bound)
	if err != nil {
		return 0, writes, err
	}
	found, err = script.Int(reply)
	return found, writes, err
}

// Leave is a run of release.lua. Keys are nil or those of the lock.
func (s *Store) Leave(ctx context.Context, r backend.Request, keys []any, isCancel bool) *roundtrip.Command {
	if keys == nil {
		keys = rediskey.Several(s.Prefix, r.Key)
	}
	cmd := roundtrip.New(ctx, s.Scripts.Release, r.Token, r.PX, keys...)
	cmd.AddToken()
	cmd.Add(ends[isCancel])
	s.AddWake(cmd, r.Key)
	return cmd
}

// Detach has nothing to do: a renewal that is on its way only lengthens the time of the entry.
func (t *tenure) Detach() {}

// Decode reads a reply of acquire.lua: a list that begins with a word. Those that are no grant are as the root package's
// acquire.lua has them.
func Decode(list []any) (a backend.Answer, err error) {
	r := script.Elements(list)
	switch word := r.Word(); {
	case word == "GRANTED" && len(list) == 4:
		a.State, a.Fence, a.Slot = backend.Granted, r.FencingToken(), r.Int()
		a.Found = r.Int() == 1
		return a, r.Err
	case word == "GONE" && len(list) == 1:
		a.State = backend.Gone
		return a, nil
	case word == "HELD" && len(list) == 2:
		a.State = backend.Held
		a.Left, a.Forever, a.Uncleared = r.PTTL()
		return a, r.Err
	case word == "WAITING" && len(list) == 6:
		a.State, a.Fence = backend.Waiting, r.FencingToken()
		a.Left, a.Forever, a.Uncleared = r.PTTL()
		a.Rank = r.Int()
		a.Now = r.FencingToken() // the server's time, which most fencing tokens are
		holder := r.Int()
		a.Foreign, a.Several = holder == 1, holder == 2 || a.Rank > 0
		return a, r.Err
	}
	return backend.Answer{}, fmt.Errorf("%w: %v to acquire", fault.ErrReply, list)
}
