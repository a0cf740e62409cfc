// Package leasehold takes lease-based locks on Redis.
//
// Most callers should use [Locker.WithLock]: it waits for the lock, runs a function while the lease is renewed, ends the
// function's context if the lease is lost, and releases the lock whatever the function does. [Locker.TryWithLock] does not
// wait. For a lease that outlives a function there are [Locker.Acquire] and [Locker.TryAcquire], with [WithAutoRenew] or
// [Lease.Renew] to keep it, and [Lease.Detach] and [Locker.Adopt] to pass it to another process. Make one [Locker] per Redis and share it.
//
// A lease alone does not keep two holders apart. A process can be paused past its deadline, and a request can rest in a
// queue: the holder then writes when the lock is already somebody else's, and no lock service can prevent it. Nor does
// a Redis that loses the key, as a failover may, keep a second holder out. What can is the resource: give
// [Lease.FencingToken] to every write, and let the resource refuse a token lower than one it has seen. [Guard] does that
// in memory and [FencedScript] in Redis; in SQL it is one more condition of the UPDATE.
//
// # States of a lease
//
//	acquire ──> held
//	held ── a renewal failed or is late ──> jeopardy ── a renewal came through ──> held
//	held or jeopardy ── Release, or Detach ──> released
//	held or jeopardy ── the deadline came, or Redis said "not yours" ──> lost
//
// A lease in jeopardy is still trusted, until its deadline; it is for [Hooks] and the log. Released and lost are final, and
// [Lease.Done], [Lease.Err] and the contexts of [Lease.Context] and WithLock tell them at once. A lease is released from the call
// of Release on: its holder has let go. What became of the key is what Release returns. No lease is ever taken
// up again: the next acquisition is another [Lease], with a token and a fencing token of its own.
//
// # The deadline
//
//	deadline = moment before the acquire or renewal was first sent + ttl − max(2ms, ttl/100)
//
// Redis counts the TTL from a later moment, when the command arrives, so the key outlives the trust: by the way of the
// command, plus the margin, plus [WithLockDelay]. Only a definite yes moves the deadline. It is kept by a timer here, with no
// network; and by two clocks, since Go's monotonic clock stands still while a machine is suspended and the wall clock
// may be set: either ends the lease. No clock reading is ever sent to Redis or compared with another machine's.
// [WithMaxHold] sets a last deadline, which no renewal moves.
//
// A lock that a release hands to a waiter is held for what is left of the waiter's liveness mark, up to 2.5 s; the lease is
// trusted no longer than that until its first renewal.
//
// # Waiting
//
// Acquire waits in a line: processes by their arrival at Redis, the goroutines of one process by their calls. A release
// hands the lock to the first waiter in the same atomic step, so nobody slips in between, and TryAcquire does not jump the
// line. A message on a pub/sub channel tells the new holder. Where messages are lost or forbidden it finds out by itself,
// within a second. Waiters that died delay the next live one by 2.5 s at most, however many they are.
//
// # What is promised
//
// On a single Redis: at most one valid lease per key at any instant, as long as the server keeps the key until its TTL has
// passed. It does not when it restarts without its last writes, evicts or flushes, when its clock is set forward, or when
// somebody deletes the key.
//
// On a primary with replicas: the same until a failover. Replication is asynchronous, so the new primary may not know the
// last acquire, and two leases are then valid until the older one's next renewal or deadline. A primary that was cut off and
// goes on serving is the same case. [WithReplicas] makes it unlikely, not impossible.
//
// On a cluster: the same as on a primary with replicas, for each shard. All keys of a lock are in one slot, for every
// name that Redis accepts as a key.
//
// On a [redis.Ring]: the same as on a single Redis, while the key stays on its server. When a server goes or comes, by SetAddrs or
// because a client finds it down or up again, keys move to servers that know nothing of their leases: there is no exclusion across
// that.
//
// What kind of Redis it is, a Locker finds by what the client can do. A struct that embeds only the interface hides that, and is taken
// for one server: give it a method Unwrap() redis.UniversalClient, so that messages come from the server that has the key.
//
// On a quorum, see [NewQuorum]: the same with a minority of the nodes away, and through crashes in which nodes lose their
// data. A quorum has no line: its waiters try again after pauses, and a newcomer may be faster.
//
// On all of them, the fencing token of a later lease is greater. It is the larger of a counter and the server's clock in
// microseconds, so it goes on rising when the counter is lost in one of these ways, provided that the clock has not been
// set back meanwhile, and that where another server takes over the clocks of the two differ by less than the time between the
// two leases. So where fencing protects the resource, a second holder does no harm.
//
// Not promised: that a holder stops in time (see above); that clients which use SET NX PX and compare-and-delete on the
// same key, as other libraries do, respect the line, though they exclude us and we exclude them. Such a client tells nobody
// that it has let go, so the first of the line looks every 25 to 50 ms while it holds the lock. And nothing is promised against
// users of the same Redis who may write the keys, or read a line and publish to its waiters. The runbook has what each may do,
// and how a plain client keeps to the line.
//
// # Errors and contexts
//
// Every error is an [Error], and matches with errors.Is what it is about: [ErrHeld], [ErrLost], [ErrReleased], [ErrStale],
// [ErrClosed], [ErrNoQuorum], [ErrInvalid]. A context bounds the call, not the lease; a wait that it ends matches the context's
// error and cause as well.
//
// [ErrUnavailable] says that Redis gave no answer, or cannot serve now. Acquire and WithLock wait that out until their context ends.
// Every other error of Redis would be met again: a password, rights, a client for another kind of Redis, a key of another type. It
// ends a wait at once and says what to do, and names the key that is at fault where that is not the lock. What go-redis said is
// inside of both. An acquire that fails leaves no lock behind: if it may have reached Redis it is undone there.
//
// The context that WithLock gives to its function, or [Lease.Context] to anybody, knows its lease: [FromContext] returns it. An
// acquire of the same key with that context would wait for itself, so it is refused with ErrInvalid.
package leasehold
