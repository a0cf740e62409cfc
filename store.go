package leasehold

import (
	"context"
	"embed"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
	"github.com/go-leasehold/leasehold/internal/script"
	"github.com/go-leasehold/leasehold/internal/several"
	"github.com/go-leasehold/leasehold/internal/short"
	"github.com/go-leasehold/leasehold/internal/token"
	"github.com/redis/go-redis/v9"
)

//go:embed *.lua
var files embed.FS

var constants = map[string]any{"WAITER_TTL": backend.WaiterTTL.Milliseconds()}

// The scripts of a single Redis. For each there is one place that writes its arguments, and one that reads its reply.
var (
	acquireScript = script.Load(files, "acquire.lua", constants)
	adoptScript   = script.Load(files, "adopt.lua", constants)
	renewScript   = script.Load(files, "renew.lua", constants)
	releaseScript = script.Load(files, "release.lua", constants)
	finishScript  = script.Load(files, "finish.lua", constants)
	inspectScript = script.Load(files, "inspect.lua", constants)

	severalScripts = several.Load(files, constants)
)

// How many keys a script is given, of those of rediskey.Lock: the first so many.
const lockAlone, noTombstones, allKeys = 1, 4, 5

// acquireModes and releaseModes are the modes of the scripts, as arguments that cost no allocation.
var (
	acquireModes = map[backend.Mode]any{backend.Try: "try", backend.Join: "join", backend.Poll: "poll"}
	releaseModes = map[backend.How]any{backend.Plain: "release", backend.Told: "told", backend.Cancel: "cancel"}
)

// store keeps locks in one Redis: a server, its replicas, a cluster, or the servers of a ring.
type store struct {
	*roundtrip.Client
	prefix  string
	channel any    // what stands before a Locker's id in a wake channel, as an argument; nil: the script knows it
	opaque  string // the type of the client, if that does not tell what kind of Redis it talks to
	several *several.Store
	memory  short.Memory // of keys about which something is unusual
}

func newStore(client redis.UniversalClient, prefix string) *store {
	s := &store{Client: roundtrip.NewClient(client), prefix: prefix}
	if prefix != "" {
		s.channel = prefix + rediskey.WakeChannel
	}
	if s.Topology().Kind == roundtrip.Unknown {
		s.opaque = fmt.Sprintf("%T", client)
	}
	s.several = &several.Store{Client: s.Client, Scripts: severalScripts, Prefix: prefix, AddWake: s.addWake}
	return s
}

// Check judges what a lease asks of a single Redis.
func (s *store) Check(r backend.Request, _ time.Duration) error {
	if r.Replicas > 0 && s.opaque != "" {
		return invalid("WithReplicas(%d, %v): the server to be asked is not known, since a client of type %s does not tell what kind of Redis it talks to: "+
			"give it a method Unwrap() redis.UniversalClient", r.Replicas, r.ReplicasWithin, s.opaque)
	}
	return several.Check(r)
}

// Tenure begins the life of a token.
func (s *store) Tenure(r backend.Request) backend.Tenure {
	if r.Kind != token.Exclusive {
		return s.several.Tenure(r)
	}
	return &tenureOfOne{s: s, Request: r, keys: rediskey.Lock(s.prefix, r.Key)}
}

// Inspect tells what is known of a lock.
func (s *store) Inspect(ctx context.Context, key string, bound time.Duration) (backend.View, error) {
	keys := rediskey.Several(s.prefix, key)
	cmd := roundtrip.New(ctx, inspectScript, "", 0, append(keys[:noTombstones:noTombstones], keys[allKeys])...)
	reply, _, err := s.Do(ctx, cmd, bound)
	if err != nil {
		return backend.View{}, err
	}
	return decodeView(reply)
}

// Force takes the lock from whoever holds it.
func (s *store) Force(ctx context.Context, key string, bound time.Duration) (string, error) {
	keys := rediskey.Lock(s.prefix, key)
	cmd := roundtrip.New(ctx, releaseScript, "", 0, keys[:noTombstones]...)
	cmd.AddToken()
	cmd.Add("force")
	s.addWake(cmd, key)
	reply, _, err := s.Do(ctx, cmd, bound)
	if token, ok := reply.(string); ok || err != nil {
		return token, err
	}
	_, err = script.Int(reply)
	return "", err
}

// addWake adds the channel on which a script tells a waiter of its grant, if the script does not know it.
func (s *store) addWake(cmd *roundtrip.Command, key string) {
	switch t := s.Topology(); {
	case t.Many():
		// There a channel belongs to a key, and goes where the key is.
		cmd.Add(string(append(rediskey.Derive(nil, s.prefix, rediskey.Wake, key), ':')))
		if t.Kind == roundtrip.Cluster {
			cmd.Add("SPUBLISH")
		}
	case s.channel != nil:
		cmd.Add(s.channel)
	}
}

// tenureOfOne is what a token has on a single Redis: nothing but the token.
type tenureOfOne struct {
	s *store
	backend.Request
	keys rediskey.Keys
	// ordinary means that the token had the lock at the first attempt, and that nobody is known to wait.
	ordinary atomic.Bool
	rest     *rest // of a lease that is to be held for a time at least; written by its Acquire
	// several means that at its last poll others stood before the token, or several held the lock: others may fit when it leaves.
	several atomic.Bool
}

// rest says when a lock may be free again. The server's clock decides, and the fencing token, which is its time at the grant,
// says when the lock was won. A counter that is ahead of the clock makes that too late by any time, so the time that has passed
// here since the grant was heard of is a second bound: it is never more than has passed since the lock was won.
type rest struct {
	until int64 // by the server's clock, in µs
	heard time.Time
}

// command begins a run of a script on the first n keys, with the token as its first argument.
func (t *tenureOfOne) command(ctx context.Context, sc *script.Script, n int) *roundtrip.Command {
	cmd := roundtrip.New(ctx, sc, t.Token, t.PX, t.keys[:n]...)
	cmd.AddToken()
	return cmd
}

// Acquire sends one attempt.
func (t *tenureOfOne) Acquire(ctx context.Context, how backend.Mode, bound time.Duration) (backend.Answer, int, error) {
	var cmd *roundtrip.Command
	if how == backend.Adopt {
		cmd = t.adoption(ctx)
	} else {
		cmd = t.command(ctx, acquireScript, allKeys)
		cmd.AddMillis()
		cmd.Add(acquireModes[how])
		t.s.addWake(cmd, t.Key)
		if how != backend.Poll && t.Replicas == 0 && t.s.memory.IsOrdinary(t.Key) {
			cmd.SetShort(short.Acquire)
		}
	}
	defer cmd.Recycle()
	reply, writes, err := t.send(ctx, cmd, bound)
	if err != nil {
		return backend.Answer{}, writes, err
	}
	a, err := decodeAcquire(reply)
	if a.State == backend.Granted && t.MinHold > 0 && t.rest == nil {
		t.rest = &rest{until: min(a.Fence, math.MaxInt64-t.MinHold.Microseconds()) + t.MinHold.Microseconds(), heard: time.Now()}
	}
	t.several.Store(a.Several)
	if atFirst := a.State == backend.Granted && !a.Found && (how == backend.Try || how == backend.Join); atFirst {
		t.ordinary.Store(true)
		t.s.memory.Taken(t.Key)
	} else {
		t.s.memory.Unusual(t.Key)
	}
	return a, writes, err
}

// send sends an attempt, and waits for the replicas if it is to.
func (t *tenureOfOne) send(ctx context.Context, cmd *roundtrip.Command, bound time.Duration) (reply any, writes int, _ error) {
	if t.Replicas == 0 {
		return t.s.Do(ctx, cmd, bound)
	}
	var renewal *roundtrip.Command
	if t.s.Topology().Many() {
		renewal = t.renewal(ctx, backend.Renewal{PX: t.PX})
	}
	return t.s.DoReplicated(ctx, cmd, renewal, roundtrip.Ack{Replicas: t.Replicas, Within: t.ReplicasWithin}, bound)
}

// adoption is a run of adopt.lua.
func (t *tenureOfOne) adoption(ctx context.Context) *roundtrip.Command {
	cmd := t.command(ctx, adoptScript, allKeys)
	cmd.AddMillis()
	cmd.Add(roundtrip.Secret(t.Former))
	return cmd
}

// renewal is a run of renew.lua.
func (t *tenureOfOne) renewal(ctx context.Context, r backend.Renewal) *roundtrip.Command {
	n := lockAlone
	if r.CountWaiters {
		n = allKeys
	}
	cmd := roundtrip.New(ctx, renewScript, t.Token, r.PX, t.keys[:n]...)
	cmd.AddToken()
	cmd.AddMillis()
	if mode := r.Mode(); mode != "" {
		cmd.Add(mode)
	}
	return cmd
}

// Renew puts the time of the renewal on the key.
func (t *tenureOfOne) Renew(ctx context.Context, r backend.Renewal, bound time.Duration) (int, error) {
	reply, writes, err := t.s.Do(ctx, t.renewal(ctx, r), bound)
	if r.Shorten != nil && fault.IsSettled(err, writes) {
		r.Shorten()
	}
	return t.renewed(reply, err)
}

// renewed reads the reply to a renewal.
func (t *tenureOfOne) renewed(reply any, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	n, err := script.Int(reply)
	if n > 0 {
		t.ordinary.Store(false)
	}
	return n, err
}

// RenewLater queues a renewal.
func (t *tenureOfOne) RenewLater(r backend.Renewal, then func(backend.Pending, int, error)) backend.Pending {
	cmd := t.renewal(context.Background(), r)
	if !r.CountWaiters {
		cmd.SetShort(short.Renew)
	}
	cmd.Then(func(reply any, err error) {
		n, err := t.renewed(reply, err)
		then(cmd, n, err)
	})
	t.s.Queue(cmd)
	return cmd
}

// Lane names the server of the key.
func (t *tenureOfOne) Lane() any { return t.s.Lane(t.Key) }

// Release gives back what the token has.
func (t *tenureOfOne) Release(ctx context.Context, how backend.How, bound time.Duration) (found, writes int, _ error) {
	var cmd *roundtrip.Command
	isShort := false
	switch {
	case how&backend.Rest != 0 || t.CounterLife > 0 && how != backend.Return:
		cmd = t.finish(ctx, how)
	case how == backend.Return:
		cmd = t.adoption(ctx)
		cmd.Add("cancel")
	case how == backend.Cancel:
		cmd = t.cancel(ctx)
	case how == backend.Plain:
		cmd = t.release(ctx, how, noTombstones)
		if isShort = t.ordinary.Load() && !t.s.memory.IsUnusual(t.Key); isShort {
			cmd.SetShort(short.Release)
		}
	default:
		cmd = t.release(ctx, how, allKeys)
	}
	defer cmd.Recycle()
	reply, writes, err := t.s.Do(ctx, cmd, bound)
	if err != nil {
		return 0, writes, err
	}
	switch {
	case isShort && cmd.WasShort():
		t.s.memory.Ordinary(t.Key)
	case isShort:
		t.s.memory.Unusual(t.Key)
	}
	found, err = script.Int(reply)
	return found, writes, err
}

// release is a run of release.lua.
func (t *tenureOfOne) release(ctx context.Context, how backend.How, n int) *roundtrip.Command {
	cmd := t.command(ctx, releaseScript, n)
	cmd.Add(releaseModes[how])
	t.s.addWake(cmd, t.Key)
	return cmd
}

// finish is a run of finish.lua.
func (t *tenureOfOne) finish(ctx context.Context, how backend.How) *roundtrip.Command {
	var until, most int64
	if how&backend.Rest != 0 {
		until, most = t.rest.until, clock.Millis(max(0, t.MinHold-time.Since(t.rest.heard)))
	}
	cmd := t.command(ctx, finishScript, allKeys)
	cmd.Add(releaseModes[how&^backend.Rest], until, most, clock.Millis(t.CounterLife))
	t.s.addWake(cmd, t.Key)
	return cmd
}

// cancel is a run of release.lua, or of that of package several where those behind may fit when the token leaves the line.
func (t *tenureOfOne) cancel(ctx context.Context) *roundtrip.Command {
	if t.several.Load() {
		return t.s.several.Leave(ctx, t.Request, nil, true)
	}
	return t.release(ctx, backend.Cancel, allKeys)
}

// Detach has nothing to do: a renewal that is on its way only lengthens the time of the key.
func (t *tenureOfOne) Detach() {}

// decodeAcquire reads a reply of acquire.lua or adopt.lua: an integer, its digits, or a list that begins with a word.
func decodeAcquire(reply any) (a backend.Answer, err error) {
	list, ok := reply.([]any)
	if !ok {
		a.Fence, err = script.FencingToken(reply)
		_, isText := reply.(string)
		a.State, a.Found = backend.Granted, isText && a.Fence < 1<<53
		return a, err
	}
	if r := script.Elements(list); len(list) == 2 && r.Word() == "GONE" {
		if a.State, a.Why = backend.Gone, r.Int(); a.Why < 0 {
			return a, r.Err
		}
	}
	return several.Decode(list)
}

// decodeView reads the reply of inspect.lua.
func decodeView(reply any) (v backend.View, err error) {
	list, ok := reply.([]any)
	if !ok || len(list) != 4 && len(list) != 5 {
		return v, fmt.Errorf("%w: %v to inspect", fault.ErrReply, reply)
	}
	holder, _ := list[0].(string)
	if last, rests := token.Resting(holder); rests {
		holder, v.Resting = last, true
	}
	r := script.Elements(list[1:])
	left, forever, missing := r.PTTL()
	switch {
	case missing:
	case forever:
		v.Held, v.Owner, v.Left = true, token.Owner(holder), -1
	default:
		v.Held, v.Owner, v.Left = true, token.Owner(holder), left
	}
	if list[2] == "" {
		_ = r.Word() // there is no counter
	} else {
		v.Fence = r.FencingToken()
	}
	v.Waiters = r.Int()
	if len(list) == 5 {
		v.Holders = r.Int()
	}
	return v, r.Err
}
