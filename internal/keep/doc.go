// Package keep decides when each of many leases is renewed, and when its deadline has come. It
// knows no Redis and no lease: a lease answers the questions of [Client].
//
// One timer serves all leases. There is no goroutine for each lease and none that sleeps, so a
// [Keeper] whose leases need nothing runs nothing.
//
// # The way of one renewal
//
//	Turn      the client is due, by its place in the heap; its Plan may name a Queue
//	queued    in the lane of its server, by the end of its trust
//	admitted  the lane has room (Lane.renewing) and the token bucket has credit, or it is urgent
//	Send      the client hands its renewal over; flush sends all that were handed over
//	Deliver   an answer, from the goroutine that received it
//	Answered  the client takes the answer in, and plans its next turn
//	Leave     the room in the lane is free again: Answered, Silent, or Unsent
//
// A renewal whose answer, or whose turn to be sent, is late is the client's to judge: its place in
// the heap brings it a Turn in time.
//
// # The states of a lane
//
//	answering  room for as many renewals as fall due in underWay, burst at least
//	silent     the last renewal had no answer: room for probing, so that a server which is back is
//	           found, and what it has to run in vain is bounded; the first answer ends it
//	gone       nothing queued and nothing under way: forgotten
//
// # A TTL that changes
//
// [Span] says for how long the yes to a renewal may be trusted, while a lease is given another TTL.
// [Keeper.Retime] then has the lease renewed as often as that TTL wants it.
//
// # Who owns what
//
// A tick runs in the goroutine of the timer; at most one runs, and Close waits for it. Lock order:
// a client's mutex may be held while a method of the Keeper is called, and the Keeper holds its own
// while it calls nobody. So the Keeper's mutex is the last of all.
package keep
