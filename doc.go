// Package leasehold takes lease-based locks on Redis.
//
// Most callers should use [Locker.WithLock]. It waits for the lock, renews the lease while a function runs, and
// releases the lock when the function returns. If the lease is lost, the context of the function ends. [WithWait]
// bounds the wait, and [Locker.TryWithLock] does not wait. For a lease that outlives a function there are
// [Locker.Acquire] and [Locker.TryAcquire], with [WithAutoRenew] or [Lease.Renew] to keep it, and [Lease.Extend] to
// give it another TTL. [Lease.Detach] and [Locker.Adopt] pass a lease to another process. Make one [Locker] for each
// Redis and share it. At the end [Locker.Shutdown] lets the functions finish, and [Locker.Close] ends their
// contexts.
//
// A lease alone does not keep two holders apart. A process can be paused past its deadline, and a request can be
// delayed in a queue. The holder then writes although the lock has another holder by now, and no lock service can
// prevent that. A Redis that loses the key, as a failover may do, lets a second holder in as well. The resource can
// prevent it: give [Lease.FencingToken] to every write, and let the resource refuse a token that is lower than one that
// it has seen. [Guard] does that in memory and [FencedScript] in Redis. In SQL it is one more condition of the UPDATE.
//
// # States of a lease
//
//	acquire ──> held
//	held ── a renewal failed or is late ──> jeopardy ── a renewal succeeded ──> held
//	held or jeopardy ── Release, or Detach ──> released
//	held or jeopardy ── the deadline came, or Redis said "not yours" ──> lost
//
// A lease in jeopardy is still valid until its deadline; only [Hooks] and the log report this state. Released and lost
// are final: [Lease.Done] is closed, [Lease.Err] says which, and the contexts of [Lease.Context] and WithLock end, all
// at once. A lease is released as soon as Release is called, because its holder has let go. What happened to the key is
// the result of Release. The next acquisition is another [Lease], with tokens of its own.
//
// # The deadline
//
//	deadline = moment before the acquire or renewal was first sent + ttl − max(2ms, ttl/100)
//
// Redis counts the TTL from the moment at which the command arrives, which is later. So the key outlives the deadline
// by the way of the command, plus the margin, plus [WithLockDelay]. Only a definite yes moves the deadline. A timer in
// this process enforces it, without the network. Two clocks judge it, because Go's monotonic clock stands still while a
// machine is suspended, and the wall clock may be set: either clock ends the lease. No clock reading is ever sent to
// Redis or compared with the clock of another machine. [WithMaxHold] sets a last deadline, which no renewal moves.
//
// A lock that a release hands to a waiter is first held for what is left of the waiter's heartbeat, at most 2.5 s. The
// lease is valid no longer than that until its first renewal.
//
// # Waiting
//
// Acquire waits in a line: processes in the order in which they reach Redis, the goroutines of one process in the order
// of their calls. A release hands the lock to the first waiter in the same atomic step, so nobody gets in between, and
// TryAcquire does not pass the line. A message on a pub/sub channel tells the new holder. Where messages are lost or
// forbidden the new holder finds out by its next poll, within a second. Dead waiters delay a live one by 2.5 s at most.
//
// # What is promised
//
// On a single Redis: at most one valid lease for each key at any instant, as long as the server keeps the key until its
// TTL has passed. It does not if it restarts without its last writes, evicts or flushes, if its clock is set forward,
// or if somebody deletes the key.
//
// On a primary with replicas: the same until a failover. Replication is asynchronous, so the new primary may not know
// the last acquire. Two leases are then valid until the next renewal or the deadline of the older one. The same happens
// while a primary that was cut off goes on serving. [WithReplicas] makes both unlikely, not impossible.
//
// On a cluster: the same as on a primary with replicas, for each shard. All keys of a lock are in one slot.
//
// On a [redis.Ring]: the same as on a single Redis, while the key stays on its server. Keys move when a server goes or
// comes, by SetAddrs or because a client finds a server down or up again. There is no exclusion across such a move.
//
// A Locker asks its client what kind of Redis it talks to. A struct that embeds only the interface hides that, and is
// taken for a client of one server. Give it a method Unwrap() redis.UniversalClient, so that the right server is asked.
//
// On a quorum, see [NewQuorum]: the same while a majority of the nodes can be reached, and through crashes in which
// nodes lose data. It has no line: its waiters retry after pauses, and a newcomer may be faster.
//
// On all of them, a later lease has a greater fencing token: the larger of a counter and the server's clock in
// microseconds. So it still rises when the counter is lost in one of these ways, on two conditions. The clock has not
// been set back meanwhile. And where another server takes over, the clocks of the two differ by less than the time
// between the two leases. So where the resource checks fencing tokens, a second holder does no harm.
//
// There is no promise that a holder stops in time; see above. Clients that use SET NX PX and compare-and-delete on the
// same key, as other libraries do, exclude leases and are excluded by them, but they do not keep to the line. Such a
// client tells nobody when it has released the lock, so while it holds the lock the first waiter polls every 25 to 50
// ms. There is also no promise against users of the same Redis who may write the keys, or read a line and publish to
// its waiters. The runbook says what these users can do, and how a plain client keeps to the line.
//
// # Errors and contexts
//
// Every error is an [Error], and matches its reason with errors.Is: [ErrHeld], [ErrLost], [ErrReleased], [ErrStale],
// [ErrClosed], [ErrNoQuorum], [ErrInvalid]. A context bounds the call, not the lease. If the context ends a wait, the
// error also matches the error and the cause of the context.
//
// [ErrUnavailable] says that Redis gave no answer, or cannot serve now. Acquire and WithLock wait until it can, or
// until their context ends. Every other error of Redis would occur again: a wrong password, missing rights, a client
// for another kind of Redis, a key of another type. Such an error ends a wait at once and says what to do, and names
// the key at fault if that is not the lock. The error of go-redis is wrapped in both. An acquire that fails leaves no
// lock behind: if it may have reached Redis, it is cancelled there.
//
// The context that WithLock gives to its function, or [Lease.Context] to anybody, knows its lease: [FromContext]
// returns it. An acquire of the same key with that context would wait for itself, so it returns ErrInvalid.
package leasehold
