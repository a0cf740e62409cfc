package leasehold

import (
	"context"
	"embed"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/redis/go-redis/v9"
)

// claim is how long a waiter's mark in the line is good after a look, and at most how long a lock that was
// handed over is held without a further call. acquire.lua, release.lua and inspect.lua have the same number.
const claim = 2500 * time.Millisecond

// The modes of the scripts; see acquire.lua and release.lua.
const (
	modeTry   = "try"
	modeJoin  = "join"
	modeLook  = "look"
	modeAdopt = "adopt"

	modeRelease = "release"
	modeTold    = "told"
	modeUndo    = "undo"
	modeForce   = "force"
)

// modes are the modes as arguments that cost no allocation.
var modes = map[string]any{
	modeTry: modeTry, modeJoin: modeJoin, modeLook: modeLook, modeAdopt: modeAdopt,
	modeRelease: modeRelease, modeTold: modeTold, modeUndo: modeUndo, modeForce: modeForce,
}

// script is one of the .lua files.
type script struct {
	*redis.Script
	src  string
	hash any // as an argument that costs no allocation
	n    int // the keys that it declares: the first n of K, Q, F, G and D
}

// keys is how many keys the script wants for that request, in that mode.
func (sc *script) keys(r *request, mode string) int {
	switch {
	case sc == releaseScript && (mode == modeRelease || mode == modeForce):
		return sc.n - 1 // no tombstones
	case sc == renewScript && !r.curious:
		return 1
	}
	return sc.n
}

//go:embed *.lua
var files embed.FS

var (
	acquireScript = newScript("acquire.lua", 5)
	adoptScript   = newScript("adopt.lua", 5)
	releaseScript = newScript("release.lua", 5)
	renewScript   = newScript("renew.lua", 5)
	inspectScript = newScript("inspect.lua", 4)
)

// newScript reads a script and puts the files in that it includes, at the places where it says so.
func newScript(file string, keys int) *script {
	sc := &script{n: keys}
	sc.set(readScript(file))
	return sc
}

// set gives the script its text.
func (sc *script) set(src string) {
	sc.Script, sc.src = redis.NewScript(src), src
	sc.hash = sc.Hash()
}

func readScript(file string) string {
	src, err := files.ReadFile(file)
	if err != nil {
		panic(err) // a file of the package itself is missing
	}
	return include.ReplaceAllStringFunc(string(src), func(line string) string {
		return readScript(include.FindStringSubmatch(line)[1])
	})
}

var include = regexp.MustCompile(`(?m)^ *-- include (\w+\.lua)$`)

// request names what a script is run on: one key, for one token.
type request struct {
	key   string // the Redis key, prefix included
	token string
	px    int64 // ms
	o     *options
	made  lockKeys // of the key; none: they have yet to be made

	former string // of an attempt to adopt: the token that is taken over

	curious bool // a renewal asks who waits, and why it fails; guarded by the lease's mutex

	tenure *tenure // of a quorum: what the token has on the nodes
}

// lockKeys are the keys that the scripts declare.
func (r *request) lockKeys() lockKeys {
	if r.made[0] == nil {
		return newLockKeys(r.o.prefix, r.key)
	}
	return r.made
}

// store runs the scripts on what keeps the locks. There are two: one deployment, in this file, and a
// quorum. Every method is bounded by ctx and by bound, whichever ends first, whatever the client does;
// its error is the context's end, a noAnswerError, or go-redis's.
type store interface {
	acquire(ctx context.Context, r *request, mode string, bound time.Duration) (answer, sent, error)
	// renew answers the number of waiters, 0 if the request is not curious, or below 0 why the lease is lost, as lost.lua says it.
	renew(ctx context.Context, r *request, bound time.Duration) (int, error)
	// renewLater is renew without waiting. It is sent by flush, with the others that were given till then, or before.
	// Then is called once, from another goroutine, and must not block.
	// The call that it returns can be withdrawn while it has not been sent; then is not called in that case.
	renewLater(r *request, then func(c *call, waiters int, err error)) *call
	flush()
	withdraw(c *call) bool
	// lane names what a renewal of that request is sent to: one that is slow holds up no renewal that is sent to another.
	lane(r *request) any
	// release answers as release.lua. An adoption is undone by giving the lock back to the former token.
	release(ctx context.Context, r *request, mode string, bound time.Duration) (int, sent, error)
	// force answers the token that has lost the lock, if it is known.
	force(ctx context.Context, r *request, bound time.Duration) (string, error)
	inspect(ctx context.Context, r *request, bound time.Duration) (LockState, error)
	// close waits until no round trip is under way, or until ctx ends, and reports which.
	close(ctx context.Context) bool
}

// sent is how often a command may have been written to a connection: 0 is a certain "never", and go-redis
// writes it again after most failures. "Not yours", answered to a command that was written once, is about
// the time before it; written twice, the first may have done the work.
type sent int

// deployment is a store of one Redis: a server, its replicas, a cluster, or the servers of a ring.
type deployment struct {
	*sender     // of the client as a whole
	channel any // what stands before the id in a wake channel, as an argument; nil: the script knows it

	// The servers of a cluster or a ring each have a sender, so that a slow one holds up nobody but its own callers. What they
	// send goes through the client all the same: it has the hooks, and it knows best which server has a key.
	mu    sync.Mutex // guards nodes
	nodes map[*redis.Client]*sender
}

func newDeployment(client redis.UniversalClient, prefix string) *deployment {
	d := &deployment{sender: newSender(client, newTopology(client))}
	if prefix != "" {
		d.channel = prefix + rediskey.WakeChannel
	}
	if d.topology.many() {
		d.nodes = map[*redis.Client]*sender{}
	}
	return d
}

// to is the sender for a key.
func (d *deployment) to(key string) *sender {
	if !d.topology.known.Load() {
		return d.sender
	}
	node, err := d.topology.node(context.Background(), key)
	if err != nil {
		return d.sender
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.nodes[node]
	if s == nil {
		// A node is new when the cluster has changed: the others may have left it, and are made again if not.
		maps.DeleteFunc(d.nodes, func(_ *redis.Client, s *sender) bool { return time.Since(s.used) > unused && s.isIdle() })
		s = newSender(d.client, d.topology)
		d.nodes[node] = s
	}
	s.used = time.Now()
	return s
}

// run runs a script for a caller who waits.
func (d *deployment) run(ctx context.Context, sc *script, r *request, mode string, bound time.Duration) (any, sent, error) {
	return d.to(r.key).do(ctx, d.call(sc, r, mode), bound)
}

func (d *deployment) acquire(ctx context.Context, r *request, mode string, bound time.Duration) (answer, sent, error) {
	run, sc := d.run, acquireScript
	if r.o.replicas > 0 {
		run = d.runReplicated
	}
	if mode == modeAdopt {
		sc = adoptScript
	}
	reply, n, err := run(ctx, sc, r, mode, bound)
	if err != nil {
		return answer{}, n, err
	}
	a, err := decodeAcquire(reply)
	return a, n, err
}

func (d *deployment) renew(ctx context.Context, r *request, bound time.Duration) (int, error) {
	reply, _, err := d.run(ctx, renewScript, r, "", bound)
	if err != nil {
		return 0, err
	}
	return decodeInt(reply)
}

func (d *deployment) renewLater(r *request, then func(*call, int, error)) *call {
	c := d.call(renewScript, r, "")
	c.then = func(reply any, err error) {
		n := 0
		if err == nil {
			n, err = decodeInt(reply)
		}
		then(c, n, err)
	}
	d.to(r.key).put(c)
	return c
}

func (d *deployment) lane(r *request) any { return d.to(r.key) }

func (d *deployment) flush() {
	for _, s := range d.senders() {
		s.flush()
	}
}

// senders returns all of them.
func (d *deployment) senders() []*sender {
	if d.nodes == nil {
		return []*sender{d.sender}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return append(slices.Collect(maps.Values(d.nodes)), d.sender)
}

func (d *deployment) withdraw(c *call) bool { return c.withdraw() }

func (d *deployment) release(ctx context.Context, r *request, mode string, bound time.Duration) (int, sent, error) {
	sc := releaseScript
	if mode == modeUndo && r.former != "" {
		sc = adoptScript
	}
	reply, n, err := d.run(ctx, sc, r, mode, bound)
	if err != nil {
		return 0, n, err
	}
	what, err := decodeInt(reply)
	return what, n, err
}

func (d *deployment) force(ctx context.Context, r *request, bound time.Duration) (string, error) {
	reply, _, err := d.run(ctx, releaseScript, r, modeForce, bound)
	if token, ok := reply.(string); ok || err != nil {
		return token, err
	}
	_, err = decodeInt(reply)
	return "", err
}

func (d *deployment) inspect(ctx context.Context, r *request, bound time.Duration) (LockState, error) {
	reply, _, err := d.run(ctx, inspectScript, r, "", bound)
	if err != nil {
		return LockState{}, err
	}
	return decodeState(r.key, reply)
}

func (d *deployment) close(ctx context.Context) bool {
	landed := true
	for _, s := range d.senders() {
		landed = s.close(ctx) && landed
	}
	return landed
}

// call prepares the run of a script.
func (d *deployment) call(sc *script, r *request, mode string) *call {
	keys := r.lockKeys()
	c := newCall(context.Background(), sc, r, keys[:sc.keys(r, mode)]...)
	if sc != inspectScript {
		c.add(&c.token)
	}
	if sc == acquireScript || sc == renewScript || sc == adoptScript {
		c.add(&c.px)
	}
	if sc == adoptScript {
		c.add(formerToken(r))
		if mode == modeUndo {
			c.add(modes[mode])
		}
	}
	if sc == acquireScript || sc == releaseScript {
		c.add(modes[mode])
		switch {
		case d.topology.many():
			// There a channel belongs to a key, and goes where the key is.
			c.add(string(append(rediskey.Derive(nil, r.o.prefix, rediskey.Wake, r.key), ':')))
			if d.topology.kind == clusterKind {
				c.add("SPUBLISH")
			}
		case d.channel != nil:
			c.add(d.channel)
		}
	}
	return c
}
