// Package roundtrip sends scripts to Redis: several in a round trip where several are ready, each
// for a caller who waits no longer than its context and its bound, whatever the client does.
//
// It knows neither locks nor leases. A [Client] stands for what a go-redis client reaches, and
// sends each [Command] to the server of its key. It counts how often a command may have been
// written, waits for replicas, and keeps what is known of the way to a server.
//
// # The life of a command
//
//	made      New, Add                      its maker has it
//	led       Do of a lone caller           its caller makes the round trip; answered, or queued
//	queued    Do, Send, Queue               in the queue of the sender of its key's server
//	withdrawn Withdraw, or its caller left  it was never written: done nothing, for certain
//	under way a trip has dequeued it        it may be written, also more than once
//	repeated  the server lacks its script   the same trip sends it once more, with the script's text
//	whole     its short form did nothing    the same trip sends the command itself
//	answered  finish                        reply and err are set; wait.done or Then is told
//	given up  its caller left meanwhile     the trip goes on; the caller is told how often it
//	                                        may have been written, and has to see to the rest
//
// A command may have a short form, which does the ordinary case for less; short.go has it. Commands
// of one round trip whose short forms are of one kind share a single run of a script, on one server.
//
// # The life of a round trip
//
// A goroutine makes one round trip after another while commands are queued; trip.go has it. A caller
// that leads makes a single one, which counts like the others.
//
//	counted      at most freeTrips, and one more each time that the queue stalls, to maxTrips
//	overdue      it has taken longer than a second: it is written off, and others may take its slot
//	written off  at most maxOverdue: it ends when go-redis returns, and sends nothing more
//
// # Who owns what
//
//	goroutines  of trips, scouts and acquires with replicas: their sender counts them all, and
//	            Close waits for them
//	stall timer its sender's: it runs while commands are queued behind round trips under way,
//	            ends itself with an empty queue, and is stopped by Close
//	lead's term of the sender: the timer of its context ends itself, and is stopped by Close
//	late timer  of a cluster's round trip: the trip stops it; what it has started, go-redis ends
//	connections go-redis's
package roundtrip
