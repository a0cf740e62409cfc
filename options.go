package leasehold

import (
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/token"
)

// The bounds of a TTL. No lease shorter than a few round trips can be trusted, and no lease of ten years is a lease.
const (
	minTTL = 10 * time.Millisecond
	maxTTL = 10 * 365 * 24 * time.Hour
)

// maxReplicasIn leaves an acquire that waits for replicas time for the rest of its round trip.
const maxReplicasIn = backend.CallBound - time.Second

// maxKey is the longest key, in bytes, the prefix included. Redis takes more, but a key is written several times for
// each call, and one that long is some data that were meant to be hashed.
const maxKey = 16 << 10

// An Option changes how a [Locker] takes or keeps its leases. Options given to [New] are the Locker's defaults. Options
// given to a call override them, and the last one given wins. A call checks all of them before it sends anything. For
// an invalid option, and for one that is not an option of a call, it returns [ErrInvalid] with the name and the value.
// The zero Option changes nothing. Options are values and may be shared.
type Option struct{ set func(*options) }

// place is where options are given.
type place int

const (
	inNew place = 1 << iota
	inNewQuorum
	inCall
)

// options is one call's settings. Shared between the leases of a Locker, so never changed after check.
type options struct {
	at        place // of the options that are being set
	misplaced error // about one that was given where it does not belong

	autoRenew   *bool          // nil: as the method does by default
	wait        *time.Duration // nil: for as long as the context allows
	renewEvery  time.Duration
	renewWish   bool // renewEvery is New's
	maxHold     time.Duration
	minHold     time.Duration
	lockDelay   time.Duration
	counterLife time.Duration
	replicas    int
	replicasIn  time.Duration
	kind        token.Kind
	slots       int // of a kind that is not exclusive: as given to WithSlots, 1 for WithShared
	prefix      string
	owner       string
	hooks       []Hooks // in the order of their calls
	logger      *slog.Logger

	quarantine time.Duration
}

// WithAutoRenew says whether the lease is renewed in the background until it is released or lost, or until
// [WithMaxHold] ends it. It is on by default in WithLock and TryWithLock, where the renewing ends with fn. It is off by
// default after Acquire, TryAcquire and Adopt, because there nothing tells work that goes on from work that hangs.
func WithAutoRenew(on bool) Option {
	return Option{func(o *options) { o.autoRenew = &on }}
}

// WithWait limits for how long Acquire and WithLock wait for the lock. After d they return [ErrHeld], or
// [ErrUnavailable] if Redis has not answered, whatever ctx allows. It bounds the wait alone, and not the function that
// WithLock runs. Zero does not wait: the call is then TryAcquire or TryWithLock, which never wait. Without WithWait the
// wait ends with ctx. No context has ended, so the error matches none of a context.
func WithWait(d time.Duration) Option {
	return Option{func(o *options) { o.wait = &d }}
}

// WithRenewEvery sets the time between two automatic renewals. Zero, the default, is a third of the TTL, which leaves
// time for two more tries after a renewal that failed. Given to New, d is an upper limit, because New does not know the
// TTLs: a lease whose TTL is too short for d is renewed after a third of its TTL. Given to a call, d is exact, and at
// most half the TTL.
func WithRenewEvery(d time.Duration) Option {
	return Option{func(o *options) { o.renewEvery, o.renewWish = d, o.at != inCall }}
}

// WithMaxHold limits how long renewals can keep a lease, counted from the moment at which its acquire was sent. So a
// holder that hangs does not hold the lock for ever. After d the lease is lost. Zero, the default, is no limit.
func WithMaxHold(d time.Duration) Option {
	return Option{func(o *options) { o.maxHold = d }}
}

// WithMinHold keeps the lock taken until d after it was won, by the clock of Redis, also when the lease is released sooner, or
// the Locker is closed. So work that many machines begin at one time by their own clocks is done once: a machine whose clock is
// late finds the lock taken. After its release the lock rests. No lease holds it, Inspect says so, waiters get it when the rest
// ends, and ForceRelease ends the rest. Zero is the default.
//
// A rest is no longer than d, and no stronger than a lease: an eviction or a failover may end it. A lease that was lost does not
// rest, nor does one whose holder has crashed, or could not reach Redis to release it: then the lock is taken until the TTL has
// passed. [WithLockDelay] does not lengthen a rest. An adopted lease was won when it was adopted. It is not for a quorum.
func WithMinHold(d time.Duration) Option {
	return Option{func(o *options) { o.minHold = d }}
}

// WithCounterLife has the fencing counter of a lock forgotten d after a release for which nobody waits, or after the rest of
// [WithMinHold]. It is for those who lock very many different keys: a counter takes about 150 bytes of Redis' memory, and lives for a
// week otherwise. d is a minute to a week. Zero is the default, the week. While a lease is held, and after it was lost, the
// counter lives as ever.
//
// Without its counter a lock's next fencing token is the server's time. That is higher than the last one, unless the clock was set
// back by more than d, or a failover goes to a server whose clock is behind by more than d. So d must be longer than any such step.
// A release takes the server a little longer. WithCounterLife is not for a quorum. Leases of WithSlots and WithShared ignore it.
func WithCounterLife(d time.Duration) Option {
	return Option{func(o *options) { o.counterLife = d }}
}

// WithLockDelay makes Redis keep the key for d longer than the holder trusts the lease. So after a crash or a loss
// nobody gets the lock before writes that were under way have had time to settle. A release ignores the lock delay.
// Zero is the default. (The name is Chubby's.)
func WithLockDelay(d time.Duration) Option {
	return Option{func(o *options) { o.lockDelay = d }}
}

// WithSlots lets up to n leases of a key be held at once, n from 1 to 1,000, as a semaphore does. Each has a [Lease.Slot] from 0
// to n-1 that no other holder has, so each slot can stand for a resource of its own, such as a connection or a licence. All
// callers should give the same n: where they do not, nobody is ever beside more than its own n-1. Waiters come in order of
// arrival, and nobody passes one that does not fit yet.
//
// Leases of other kinds may use the key too: they exclude each other and take turns. WithSlots cannot be combined with
// [WithLockDelay], [WithMinHold] or [WithReplicas]. A quorum refuses it, and no such lease can be adopted. The last one of
// WithSlots and [WithShared] wins.
func WithSlots(n int) Option {
	return Option{func(o *options) { o.kind, o.slots = token.Slots(n), n }}
}

// WithShared takes a shared lease, as the readers of a lock do: any number of shared leases are held together, and none beside
// an exclusive one, which is one without this option. The line is served in order of arrival, so a stream of readers does not
// starve a writer: readers that come after it wait behind it. The fencing tokens of readers rise too, but do not say which of
// two readers must stop: both hold. The limits of [WithSlots] are those of WithShared.
func WithShared() Option {
	return Option{func(o *options) { o.kind, o.slots = token.Shared, 1 }}
}

// WithReplicas makes an acquire wait until n replicas have acknowledged it, at most for the timeout (in whole
// milliseconds, at most half the TTL and 2 s). If fewer do, the lock is given back, and the error says how many there
// were. So a failover to one of these replicas does not lose a lease that has not been renewed since. It makes such a
// loss unlikely, not impossible: Redis may promote another replica. Each acquire costs a round trip to the replicas, on
// a connection of its own. Renewals do not wait. n is 0 by default: no acquire waits. If the ReadTimeout of the client
// is shorter than the timeout, the client gives up first.
//
// The server that has the key must be asked. A client of several servers, for a cluster or a redis.Ring, needs one more
// round trip for that. A client that hides its kind, as a struct does that embeds only the interface, is refused with
// [ErrInvalid]: give it a method Unwrap() redis.UniversalClient.
func WithReplicas(n int, timeout time.Duration) Option {
	return Option{func(o *options) { o.replicas, o.replicasIn = n, timeout }}
}

// WithKeyPrefix puts s before every key, before every key that is derived from one, and before the name of the wake
// channel. An ACL needs ~s* and &s*. All processes that share a lock must have the same prefix. With another prefix and
// a longer key they would share the lock, but not its line and its counter. The prefix may contain a hash tag
// ("{tenant}:"), but no single brace.
//
// It is for New and NewQuorum. Inspect and ForceRelease must name the same keys as the calls that lock them, and the
// Locker has one channel for messages.
func WithKeyPrefix(s string) Option {
	return Option{func(o *options) {
		if o.belongs(inNew|inNewQuorum, "WithKeyPrefix(%s): it is for New and NewQuorum", fault.Quote(s)) {
			o.prefix = s
		}
	}}
}

// WithOwner puts a readable label into the token, for [LockState] and the log: up to 64 printable ASCII characters. The
// label proves nothing. The random part of the token proves ownership.
func WithOwner(label string) Option {
	return Option{func(o *options) { o.owner = label }}
}

// WithHooks adds hooks, which are called at the events of a lease's life. Hooks of New are called first, then those of
// the call, in the order in which they were given. See [Hooks].
func WithHooks(h Hooks) Option {
	return Option{func(o *options) { o.hooks = append(slices.Clip(o.hooks), h) }}
}

// WithLogger writes one line for each loss, jeopardy and failed release, and at most once in 10 s for waits on a Redis
// that is unavailable. A line has the key, the fencing token, the owner label and the reason, and never the token. Nil,
// the default, writes nothing.
func WithLogger(log *slog.Logger) Option {
	return Option{func(o *options) { o.logger = log }}
}

// with is the settings with options that were given there put before them. Without any it is o itself.
func (o *options) with(at place, opts []Option) *options {
	if len(opts) == 0 {
		return o
	}
	merged := *o
	merged.at = at
	for _, opt := range opts {
		if opt.set != nil {
			opt.set(&merged)
		}
	}
	return &merged
}

// belongs reports whether the option that is being set was given at one of these places, and else notes what is wrong.
func (o *options) belongs(places place, format string, args ...any) bool {
	if o.at&places != 0 {
		return true
	}
	o.misplaced = invalid(format, args...)
	return false
}

// check and checkKey are the one place where a call's key, TTL and options are judged. A call that makes no lease has
// no use for check.
func (o *options) check(ttl time.Duration) error {
	switch {
	case o.misplaced != nil:
		return o.misplaced
	case ttl < minTTL || ttl > maxTTL:
		return invalid("ttl %v: want %v to ten years", ttl, minTTL)
	case o.wait != nil && *o.wait < 0:
		return invalid("WithWait(%v): want 0 or more", *o.wait)
	case o.renewEvery < 0 || !o.renewWish && o.renewEvery > ttl/2:
		return invalid("WithRenewEvery(%v): want at most half the ttl of %v", o.renewEvery, ttl)
	case o.renewEvery > 0 && o.renewEvery < time.Millisecond:
		return invalid("WithRenewEvery(%v): want 1ms or more", o.renewEvery)
	case o.maxHold < 0 || o.maxHold > 0 && o.maxHold < minTTL:
		return invalid("WithMaxHold(%v): want %v or more, or 0 for no bound", o.maxHold, minTTL)
	case o.minHold < 0 || o.minHold > maxTTL:
		return invalid("WithMinHold(%v): want 0 to ten years", o.minHold)
	case o.counterLife != 0 && (o.counterLife < time.Minute || o.counterLife > 7*24*time.Hour):
		return invalid("WithCounterLife(%v): want a minute to a week, or 0 for the default", o.counterLife)
	case o.lockDelay < 0 || o.lockDelay > maxTTL-ttl:
		return invalid("WithLockDelay(%v): want 0 or more, and ten years at most with the ttl of %v", o.lockDelay, ttl)
	case o.replicas < 0 || o.replicas > 0 && (o.replicasIn < time.Millisecond || o.replicasIn > min(ttl/2, maxReplicasIn)):
		return invalid("WithReplicas(%d, %v): want 0 replicas or more, and a timeout from 1ms to half the ttl of %v, at most %v",
			o.replicas, o.replicasIn, ttl, maxReplicasIn)
	case o.kind != token.Exclusive && (o.slots < 1 || o.slots > token.MaxSlots):
		return invalid("WithSlots(%d): want 1 to %d", o.slots, token.MaxSlots)
	case len(o.owner) > token.MaxOwner || strings.ContainsFunc(o.owner, func(r rune) bool { return r < ' ' || r > '~' }):
		return invalid("WithOwner(%s): want at most %d printable ASCII characters", fault.Quote(o.owner), token.MaxOwner)
	}
	return nil
}

func (o *options) checkKey(name string) error {
	if name == "" {
		return invalid("the key is empty")
	}
	if n := len(o.prefix) + len(name); n > maxKey {
		return invalid("the key is %d bytes long: want %d at most, the prefix included", n, maxKey)
	}
	if strings.ContainsAny(o.prefix, "{}") && !rediskey.Tagged(o.prefix) {
		return invalid("WithKeyPrefix(%s): want no braces, or a whole tag such as {tenant}", fault.Quote(o.prefix))
	}
	if rediskey.Derived(name) || rediskey.Derived(o.prefix+name) {
		return invalid("the key %s looks like one that is derived from another lock's", fault.Quote(o.prefix+name))
	}
	return nil
}

// px is what Redis is told: the TTL and the lock delay in whole milliseconds, rounded up.
func (o *options) px(ttl time.Duration) int64 {
	return clock.Millis(ttl + o.lockDelay)
}

// every is the time between two renewals of a lease of that TTL.
func (o *options) every(ttl time.Duration) time.Duration {
	switch {
	case o.renewEvery == 0:
		return ttl / 3
	case o.renewWish:
		return min(o.renewEvery, ttl/3)
	}
	return o.renewEvery
}
