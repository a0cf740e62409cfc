// Package turns checks a protocol to come: a lock that goes from goroutine to goroutine of one process, in memory. Neither
// the scripts nor the client have it yet.
//
// When a holder releases and somebody of the same process waits at the gate for the same key, the lock is passed: the
// former lease is over for good, and a new lease begins with the next fencing token. No command is sent for it. What Redis
// has for all of these leases together, one token, one deadline and one renewal, is the tenure.
//
// The fencing tokens of passed leases are a block that was reserved by a renewal: while somebody waits at the gate a
// renewal says how far the counter must be, so that whoever comes next is above the block. There is no pass before that
// renewal was answered.
//
// A pass needs: that no release was sent; that the deadline of the tenure has not been reached; that d has not passed since
// the command that won was sent, so that other processes get their turn; a fencing token that is left in the block, and of
// which the server's clock is certainly not behind, since pass i comes more than i microseconds after the winning answer;
// that nobody else was told the token, and that it was not adopted; and that the process is not closing.
//
// # What a state is
//
// Redis with one key, its counter, a line and its tombstones. Two processes, each with goroutines that want the lock one
// after the other; the second may be of a version that passes nothing. An adopter, who takes over a lease whose token it
// was told. And what is under way. Times are absolute, in ticks; where fencing tokens are only ranks, all of them are
// counted from now, so that no horizon is needed. Where the clock is in the fencing tokens, there are a few of its units in
// a tick, and the run has a horizon.
//
// # What a step is
//
// As in package line: a script runs, an answer or a message is read, a process decides, a fault happens, or a tick passes,
// which in a timed run waits for everybody.
//
// # What is checked
//
//	S1  at most one lease is trusted, that of an adopter included
//	S2  fencing tokens rise from lease to lease, over all processes
//	S4  a token that was given up is not in the key once none of its commands is under way
//	L2  how long the other process waits
//	C1  no lease of a process is trusted when its Close has returned
//
// # What is not modelled
//
// A third process; renewals that are sent again; waiters that give up; leases of several holders, which are not passed; and
// the options that must be equal for a pass.
package turns

type token = uint8 // of one stay of a process, or the adopter's; 0 is none

const (
	processes         = 2
	maxStays          = 3
	adopter     token = processes*maxStays + 1
	maxPlaces         = 3
	maxCommands       = 8
	maxMessages       = 3

	start = 60 // the first instant, far enough from 0, which is none
)

// A rule of the protocol that can be left out.
type rule int

const (
	none               rule = iota
	passKeepsDeadline       // a passed lease has the deadline of the tenure
	renewalFromSend         // a renewal counts from its send, also if the lock was passed meanwhile
	passInTime              // nothing is passed after the deadline
	passBeforeRelease       // nor after a release was sent
	blockIsReserved         // the fencing tokens of passed leases are reserved
	reservedIfAnswered      // when the renewal that reserves them was answered
	clockIsAhead            // passes are no faster than the server's clock
	toldIsNotPassed         // a lease whose token was told is not passed
	turnsAreBounded         // the process passes the lock on to itself no longer than d
	strayStays              // a copy of the acquire that may be on its way is the tenure's
	closingPassesNone       // a process that closes passes nothing
)

// model is what one run explores.
type model struct {
	timed          bool
	waiterTTL, ttl uint8
	d              uint8            // the longest time of local turns
	block          uint8            // fencing tokens to a block, that of the acquire included
	wants          [processes]uint8 // leases that its goroutines want
	stays          uint8            // stays in the line of each process, at most
	old            bool             // the second process passes nothing
	perTick        uint8            // units of the server's clock in a tick; 0: fencing tokens are ranks
	end            uint8            // the horizon, in ticks from the start, if perTick is not 0
	renews         bool             // also when nobody waits at the gate

	// How often it may happen.
	repeats   uint8 // an acquire is sent again
	deletions uint8 // of the key, by hand
	losses    uint8 // of the counter
	crashes   uint8
	tells     uint8 // a holder gives its token to the adopter
	back      uint8 // the server's clock is set back by a tick
	closes    uint8

	wait uint8 // L2's bound

	broken rule
	only   string // the property that is checked; "": all
}

// Properties.
const (
	twoTrust   = "S1 two trust the lock"
	fenceFalls = "S2 the fencing token does not rise"
	leftBehind = "S4 something is left of a token that was given up"
	waitsLong  = "L2 waits too long"
	outlives   = "C1 a lease is trusted after Close"
	tooSmall   = "the model is too small"
)

// place is one in the line: alive before that instant.
type place struct {
	token token
	until uint8
}

type command struct {
	kind  kind
	token token
	upto  uint8 // of a renewal: how far the counter must be
}

type message struct {
	token token
	fence uint8
}

// state is one state of the model. All of it is bytes.
type state struct {
	now      uint8
	owner    token
	expires  uint8
	counter  uint8 // 0: missing
	written  uint8 // when that was written
	ahead    uint8 // it is ahead of the clock
	behind   uint8 // units by which the server's clock was set back
	tombs    uint8 // a set, as those below
	line     [maxPlaces]place
	commands [maxCommands]command
	messages [maxMessages]message
	of       [processes]process
	adopter  taker

	highest uint8 // ghost: the highest fencing token of a lease that began
	ended   uint8 // ghost: tokens that were given up
	excused uint8 // ghost: tokens whose lease was deleted, or adopted while it was trusted

	repeats, deletions, losses, crashes, tells, back, closes uint8 // left
}

type phase = uint8

const (
	idle phase = iota
	waiting
	holding
	over // of the adopter
)

// process is what a process knows.
type process struct {
	phase      phase
	stay       uint8 // how many there were
	token      token
	wants      uint8 // goroutines at the gate
	call       kind  // that is under way, but for a renewal
	sent       uint8
	reply      reply
	replyFence uint8
	joined     uint8
	anchor     uint8 // from which a message counts; 0: none is trusted
	high       uint8 // what its fencing token must exceed
	due        uint8
	stray      uint8

	// The tenure.
	deadline      uint8
	first         uint8 // its first fencing token
	reserved      uint8 // so many are reserved, the first included
	passes        uint8
	from          uint8 // when the command that won was sent
	won           uint8 // when its answer was read
	begun         uint8 // when the present lease began
	renewing      uint8 // a renewal is under way
	reserves      uint8 // and reserves a block
	renewalSent   uint8
	renewalReply  reply
	told          uint8
	closing, held uint8 // 1: Close has begun, and found the lease after so many passes; 2: it has returned

	waited uint8 // ghost
}

// taker is the process that adopts.
type taker struct {
	phase      phase
	former     token
	calls      uint8
	sent       uint8
	reply      reply
	replyFence uint8
	deadline   uint8
}

func bit(t token) uint8     { return 1 << (t - 1) }
func processOf(t token) int { return int(t-1) / maxStays }

func (m *model) start() state {
	s := state{
		now: 1, repeats: m.repeats, deletions: m.deletions, losses: m.losses, crashes: m.crashes, tells: m.tells,
		back: m.back, closes: m.closes,
	}
	if m.perTick == 0 {
		s.now = start
	}
	for p := range s.of {
		s.of[p].wants = m.wants[p]
	}
	return s
}
