// Package line checks the protocol by which the clients of one Redis take turns on a lock: acquire.lua, release.lua,
// renew.lua, adopt.lua and what they include, and the rules of the client that uses them.
//
// # What a state is
//
// Redis: the lock's key with the time that it has left, the fencing counter, the line with a heartbeat for each place, and
// the tombstones. Each of three clients: what it is doing, the call that is under way, the answer that it has not read yet,
// and the time for which it trusts its lease. A foreign client that knows only SET NX PX and compare-and-delete. And what
// is under way: commands, and the messages that tell a waiter of a grant. Times are ticks that are left, and fencing tokens
// are ranks, so that states which differ only in the date are one. Some fields are ghosts: no script and no client reads
// them, they only serve to judge.
//
// # What a step is
//
// One script runs as a whole, one answer or message is read, one client decides something, a fault happens, or a tick
// passes for everybody. There are two modes:
//
//	free   Nothing is urgent. A command, an answer or a message may be delayed for ever and overtake each other, and a client may
//	       do nothing for any time. So delay, loss and pause need no steps of their own. For safety.
//	timed  A tick passes only when no command, answer, message or due poll of a running client is left. Crash, pause and loss are
//	       steps that are counted. For bounds on waiting.
//
// The margin is none, and trust is as long as the rules allow, so that the bounds are tight: a key that is set for T at one
// tick is gone T ticks later, and a lease whose command was sent at that tick is trusted until then.
//
// # What is checked
//
//	S1  at most one client trusts its lease
//	S2  each lease that begins has a fencing token above all before it, and is answered the same one again
//	S3  a renewal, a release or a foreign delete leaves the key of another token alone
//	S4  a token that was given up is neither in the key nor in the line once none of its commands is under way
//	L1  how long the lock is idle while a waiter that runs waits, counted from the last fault; and no try is refused for the dead
//	L2  no grant passes a live waiter that stands ahead; and how long a waiter waits
//	L3  no key has no time to live
//
// # What is not modelled
//
// Failover and a step of the server's clock by more than a tick or two; more than three clients; clocks that run at
// different rates, which the margin is for; forged messages, and so the upper bound on the fencing token of a message; keys
// of another type; a full server; replicas, lock delay and the longest hold, whose leases never trust a message (the run
// with confirms covers them). A waiter whose answers came too late three times gives its stay up: that is a cancellation.
// Inspect changes nothing and judges heartbeats as alive.lua does. A fencing token is the server's time or one more than
// the counter: here it is one more, and a counter that is lost leaves that floor behind.
package line

type token = uint8 // of one attempt of one client; 0 is none

const (
	clients           = 3
	perClient         = 2 // tokens that may leave traces at one time
	foreigner   token = clients*perClient + 1
	maxPlaces         = 6
	maxCommands       = 12
	maxMessages       = 5
)

// A rule of the protocol that can be left out.
type rule int

const (
	none                   rule = iota
	trustFromSend               // a lease is trusted from before its command was sent
	compareFences               // a message is trusted only with a fencing token above that of the last poll
	trustWithinTTL              // and for no longer than the ttl
	anchorMovesWithAnswer       // which counts from the last poll that was answered
	pollCreatesNothing          // a poll creates no place
	releaseCompares             // a release looks whose key it is
	renewalCompares             // so does a renewal
	renewalCreatesNothing       // which does not set a key that is gone
	sameLeaseSameFence          // an acquire that is sent again is answered the same fencing token
	tryKeepsTheLine             // a try does not pass the line
	deadRefuseNobody            // nor is it refused because of the dead
	restIsNotPassed             // nor does it pass what is behind more of the dead than one run clears away
	unclearedAsksAgain          // in which case it asks again
	lineHasTTL                  // the line expires
	cancelBuries                // a cancellation leaves a tombstone
	strayBuries                 // so does a release whose acquire may have been sent twice
	refusedIsCancelled          // who is refused cancels a command that was sent twice
	leaveLine                   // who gives up leaves the line
	grantEndsWithHeartbeat      // a grant lasts for as long as the heartbeat
	heartbeatsCount             // whose heartbeat is over is dead
	heartbeatsEndInTime         // from the very instant
	futureIsDead                // one beyond the waiter's TTL is not believed
	pollRenewsHeartbeat         // a poll renews the heartbeat
	pollWhenSubscribed          // a waiter polls when its subscription is confirmed
	pollEveryTick               // and now and then
	adoptMints                  // an adoption has a fencing token of its own
	adoptKeepsTime              // it does not shorten the time of the key
	adoptGivesBack              // one that failed gives the lease back
	adoptBuriesFormer           // the former token gets a tombstone
	adoptCancelBuries           // and so does that of an adoption that failed
	joinFlags                   // the flag in the counter, see fast.go: a join sets it
	cancelFlags                 // a cancellation sets it
	adoptFlags                  // an adoption sets it
	handOverKeepsFlag           // a hand-over keeps it
	clearOnlyIfNothing          // an acquire clears it only if there is neither line nor tombstone
	newCounterFlagged           // a counter that was missing is written with it
	missingProvesNothing        // a counter that is missing is none without the flag
	fastReleaseAsks             // a fast release does nothing if it is set
	fastAcquireGivesBack        // a fast acquire that finds it set leaves nothing
)

// model is what one run explores.
type model struct {
	timed          bool
	waiterTTL, ttl uint8 // ticks for which a heartbeat lasts, and a lease
	adopterTTL     uint8 // 0: as ttl
	clients        uint8 // how many of them take part
	acquisitions   uint8 // of each
	foreign        uint8 // acquisitions of the foreign client
	room           uint8 // so many of the dead one run clears away; 0: all

	tries, waits, renews, quits bool // what clients may do
	confirms                    bool // a message only makes the waiter poll, as where a lease is not renewed by itself
	subscribes                  bool // a message finds only a waiter whose subscription is confirmed

	// How often it may happen.
	crashes, pauses uint8
	losses          uint8 // of a message; in free mode it happens for nothing
	repeats         uint8 // a command is sent again, or is given up by its caller
	deletions       uint8 // by hand, or by eviction: of the lock, the line, the heartbeats or the counter
	back, forward   uint8 // the server's clock is set by a tick
	tells           uint8 // a holder gives its token to whoever adopts the lease

	givenUp bool   // S4 is checked
	idle    uint8  // L1's bound
	wait    uint8  // L2's bound; 0: not counted
	watch   string // names of the properties that are checked; "": all
	only    string // the one that is; "": all

	flag bool // the protocol of fast.go, which the scripts do not have yet
	hand bool // with it: a deletion may also be a plain number that is written over the counter

	broken rule
}

// Properties.
const (
	twoTrust     = "S1 two trust the lock"
	fenceFalls   = "S2 the fencing token does not rise"
	fenceDiffers = "S2 the same lease has another fencing token"
	touched      = "S3 touches the lease of another"
	leftBehind   = "S4 something is left of a token that was given up"
	notServed    = "L1 a waiter is not served"
	tryRefused   = "L1 a try is refused because of the dead"
	passed       = "L2 a grant passes a waiter"
	waitsLong    = "L2 waits too long"
	noTTL        = "L3 a key without a time to live"
	flagless     = "I there is a line or a tombstone, and no flag" // of fast.go
	tooSmall     = "the model is too small"
	flagGone     = "the flag goes by itself" // no violation: a run that looks for it shows the way
)

// lock is the lock's key.
type lock struct {
	owner       token
	left        uint8
	fence       uint8 // ghost: with which it was given
	unconfirmed uint8 // ghost: it was handed over, and its waiter has not confirmed it
}

// place is one in the line. A time that is over may come back when the server's clock is set back, so it is kept for so
// long: it is over from zero down.
type place struct {
	token     token
	heartbeat uint8 // ticks for which it counts as alive; more than waiterTTL: from the future
	ticket    uint8 // the same, of its arrival: what counts when the heartbeat is lost
}

// command is one that is under way.
type command struct {
	kind   kind
	token  token
	former token // of an adoption
}

// message tells the waiter of that token that it has been granted the lock.
type message struct {
	token token
	fence uint8
}

// state is one state of the model. All of it is bytes.
type state struct {
	lock     lock
	counter  uint8 // the fencing counter, as a rank
	missing  uint8 // it is lost; then counter is what the clock has reached
	flagged  uint8 // it has the flag of fast.go
	graves   uint8 // the key of tombstones exists; with the flag only
	line     [maxPlaces]place
	lineLeft uint8
	tombs    uint8 // the tokens that have one; as all sets, a bit for each
	told     token // which a holder has given away
	commands [maxCommands]command
	messages [maxMessages]message
	clients  [clients]client
	foreign  client

	highest  uint8 // ghost: the highest fencing token of a lease that began
	ended    uint8 // ghost: tokens that are given up
	excused  uint8 // ghost: tokens of leases that were deleted by hand, or adopted while their holder trusted them
	returned uint8 // ghost: tokens whose lease an adoption that failed has given back
	idle     uint8 // ghost: ticks in which a waiter was not served

	crashes, pauses, losses, repeats, deletions, back, forward, tells uint8 // left
}

type phase = uint8

const (
	idle phase = iota
	trying
	waiting
	holding
	adopting
)

// client is what a process knows.
type client struct {
	phase        phase
	name         uint8 // which of its tokens it uses
	acquisitions uint8 // left
	call         kind  // that is under way
	age          uint8 // ticks since that was sent first
	reply        reply // that it has not read yet
	replyFence   uint8

	joined uint8 // a waiter: it was answered that it waits, so it polls from now on
	trust  uint8 // ticks for which a message can be trusted
	high   uint8 // the fencing token that it has to exceed
	due    uint8 // it must poll now

	left  uint8 // a holder: ticks for which it trusts its lease
	fence uint8

	stray  uint8 // a copy of its acquire may be on its way
	former token // whose lease it adopts

	subscription uint8 // 0 none, 1 asked for, 2 confirmed
	paused, dead uint8
	waited       uint8 // ghost: ticks
}

func bit(t token) uint8      { return 1 << (t - 1) }
func ownerOf(t token) int    { return int(t-1) / perClient }
func minus(a, b uint8) uint8 { return a - min(a, b) }

func (s *state) tokenOf(c int) token { return nameOf(c, s.clients[c].name) }
func nameOf(c int, name uint8) token { return token(c*perClient) + name + 1 }

// zero is where a heartbeat is over.
func (m *model) zero() uint8 { return m.back }

func (m *model) start() state {
	s := state{
		crashes: m.crashes, pauses: m.pauses, losses: m.losses, repeats: m.repeats, deletions: m.deletions,
		back: m.back, forward: m.forward, tells: m.tells, missing: 1,
	}
	for c := range m.clients {
		s.clients[c].acquisitions = m.acquisitions
	}
	s.foreign.acquisitions = m.foreign
	return s
}
