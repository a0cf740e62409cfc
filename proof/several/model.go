// Package several checks a protocol to come: leases that several clients hold at once. The scripts do not have it yet.
//
// Three kinds of leases can be had of one key. An exclusive one is that of package line. Shared ones are held by any number
// of clients together. Of slots there are n, each with a number of its own that no two holders have at once. Shared leases
// and slots never mix. The kind, and n, stand in the token, so whoever hands the lock over knows it.
//
// # What is in Redis
//
//	K  the lock: the token of an exclusive lease, or a marker that no token can be, one for shared leases and one for slots. It
//	   lives as long as the last of the holders.
//	H  the holders: a sorted set, token and expiry
//	I  what each holder has been given: a hash, token and "fencing token/slot"
//	   H and I are believed only under a marker, and only the script that sets the marker makes them. If one of them is lost the
//	   lock is closed until the marker expires. Nobody joins it, and nothing makes the lost one anew.
//	Q, F, G, D  the line, the counter, the heartbeats and the tombstones, as in package line
//
// Exclusive locks do not change: acquire.lua and release.lua see a marker as somebody else's token, and hand a free lock to
// a waiter of another kind as to any other, by setting K to its token. The next script of the new kind turns that into a
// marker with one holder, and serves the line. So a client of an old version is no special case. Two rules make this as
// quick as the rest: a hand-over that tells no slot is confirmed at once, and a cancellation of an exclusive waiter is a
// script of the new kind, because those behind it may fit as soon as it has left.
//
// A newcomer fits if the lock is free, or if it is of the kind of the holders and, for slots, if there are fewer holders
// than the least n of the newcomer and of all who are inside. The head of the line is served as long as it fits; if it does
// not, nobody passes it.
//
// Adopt puts a new token of the same kind in the place of the former one: with the next fencing token, the same slot, and
// at least the time that was left. It needs the former one's entries in H and in I. A cancelled adoption gives the place
// back.
//
// # States, steps and properties
//
// They are those of package line, with these changes. S1: leases that are trusted together must fit together, and no two
// have one slot. S2: a fencing token is above those of all leases that could not be held beside it. L1 counts the ticks in
// which the first live waiter would fit. L3 is for H too.
//
// # What is not modelled
//
// Beside what package line leaves out: the limit on the dead that one run clears; a client that changes its kind; more than
// three slots; and the two marks that a resource needs so that a late reader cannot be refused by a later one.
//
// A key that has expired and was not deleted yet comes back when the clock is set back. It then belongs to a lease whose
// holder does not trust it any more. If H or I were deleted meanwhile, that is the loss of H or I.
package several

type token = uint8 // of one attempt of one client; 0 is none

const (
	clients           = 3
	perClient         = 2 // tokens that may leave traces at one time
	foreigner   token = clients*perClient + 1
	maxPlaces         = 6
	maxCommands       = 12
	maxMessages       = 5
	maxHolders        = 4

	sharedMarker token = 20
	slotsMarker  token = 21
)

// Kinds of a client's leases: exclusive, shared, or slots+n.
const (
	exclusive = 0
	shared    = 1
	slots     = 10
	untold    = 15 // the slot of a hand-over that tells none
)

// A rule of the protocol that can be left out.
type rule int

const (
	none                  rule = iota
	trustFromSend              // a lease is trusted from before its command was sent
	compareFences              // a message is trusted only with a fencing token above that of the last poll
	staleAreDeleted            // who sets a marker deletes the holders of a former one
	keyIsRaised                // the key lives as long as the last holder
	keyIsLowered               // and no longer
	expiredAreRemoved          // holders whose time is over are removed
	lostClosesTheLock          // a marker whose holders are lost is not joined
	lostKeepsTheKey            // nor is it freed by a release that finds them lost
	renewalCreatesNothing      // nor does a renewal make an entry anew
	leaverServes               // who leaves the line serves those behind
	pollServes                 // a poll serves the line while there are holders
	allWhoFit                  // a release serves all who fit
	readersKeepTheOrder        // no waiter that fits passes one that does not
	newcomersKeepTheOrder      // nor does a newcomer
	slotsAreCounted            // there are no more than n
	leastCounts                // of which the least n of all who are inside is meant
	slotsDiffer                // no two holders have one slot
	kindsStayApart             // shared leases and slots do not mix
	ownFence                   // an acquire that is sent again is answered the fencing token of its lease
	releaseIsOwn               // a release ends no other lease
	slotIsTold                 // a waiter trusts no hand-over that does not tell its slot
	bareIsConverted            // a token that an old version has set becomes a marker
	bareIsConfirmed            // at once, by a renewal
	conversionServes           // and who converts it serves the line
	holdersHaveTTL             // the holders expire
	adoptMints                 // an adoption has a fencing token of its own
	adoptKeepsSlot             // and the slot of the former lease
	adoptKeepsKind             // and its kind and n
	adoptKeepsTime             // it does not shorten the time
	adoptNeedsEntry            // it takes nothing of which the entry in I is lost
	adoptGivesBack             // one that was cancelled gives the place back
	adoptBuriesFormer          // the former token gets a tombstone
	closeCancels               // a waiter that is closed leaves the line
)

// model is what one run explores.
type model struct {
	timed          bool
	kinds          [clients]uint8
	old            [clients]bool // runs today's scripts, which know only exclusive locks
	plain          bool          // and of these all but the cancellation: an exclusive client of the new version
	waiterTTL, ttl uint8
	ttls           [clients]uint8 // where they differ
	clients        uint8
	acquisitions   uint8 // of each
	foreign        uint8 // acquisitions of the foreign client
	batch          uint8 // so many grants one script makes at most; 0: all

	tries, waits, renews, quits bool // what clients may do

	// How often it may happen.
	crashes, pauses uint8
	losses          uint8 // of a message; in free mode it happens for nothing
	repeats         uint8 // a command is sent again, or is given up by its caller
	deletions       uint8 // by hand, or by eviction: of the lock, the line, the holders, their entries or the counter
	holdersOnly     bool  // a deletion is one of the holders or of their entries
	counterOnly     bool  // or of the counter
	back            uint8 // the server's clock is set back by a tick
	forward         uint8
	tells           uint8 // a holder gives its token to whoever adopts the lease
	closes          uint8 // a client is closed

	givenUp bool   // S4 is checked
	idle    uint8  // L1's bound
	wait    uint8  // L2's bound; 0: not counted
	watch   string // names of the properties that are checked; "": all
	only    string // the one that is; "": all

	broken rule
}

// Properties.
const (
	tooMany      = "S1 too many trust a lease"
	sameSlot     = "S1 two have one slot"
	fenceFalls   = "S2 the fencing token does not rise"
	fenceDiffers = "S2 the same lease has another fencing token"
	touched      = "S3 touches the lease of another"
	leftBehind   = "S4 something is left of a token that was given up"
	notServed    = "L1 a waiter is not served"
	passed       = "L2 a grant passes a waiter"
	waitsLong    = "L2 waits too long"
	noTTL        = "L3 a key without a time to live"
	tooSmall     = "the model is too small"
)

// lock is the lock's key.
type lock struct {
	owner       token // or a marker
	left        uint8
	fence       uint8 // ghost: with which it was given, if it is exclusive
	unconfirmed uint8 // ghost: it was handed over, and its waiter has not confirmed it
}

// holder is an entry of H and of I.
type holder struct {
	token       token
	left        uint8 // as a heartbeat's time
	fence, slot uint8
	unconfirmed uint8 // ghost
}

// place is one in the line. A time that may be over when the server's clock is set back is kept for so long: it is over
// from zero down, and alive above.
type place struct {
	token     token
	heartbeat uint8
}

// command is one that is under way.
type command struct {
	kind   kind
	token  token
	former token // of an adoption
}

// message tells the waiter of that token that it has been granted the lock.
type message struct {
	token       token
	fence, slot uint8
}

// state is one state of the model. All of it is bytes.
type state struct {
	lock        lock
	holders     [maxHolders]holder
	holdersLeft uint8
	blind       uint8 // I is lost, and H is not
	counter     uint8 // the fencing counter, as a rank
	missing     uint8 // it is lost; then counter is what the clock has reached
	line        [maxPlaces]place
	lineLeft    uint8
	tombs       uint8 // the tokens that have one; as all sets, a bit for each
	told        token // which a holder has given away
	commands    [maxCommands]command
	messages    [maxMessages]message
	clients     [clients]client
	foreign     client

	highest   [5]uint8 // ghost: the highest fencing token of leases that began: exclusive, shared, slots 0 to 2
	ended     uint8    // ghost: tokens that are given up
	excused   uint8    // ghost: tokens of leases that were deleted by hand, or adopted while their holder trusted them
	returned  uint8    // ghost: tokens whose lease an adoption that was cancelled has given back
	closed    uint8    // ghost: H or I is lost, and the marker is not
	toldFence uint8    // ghost: the fencing token of the lease whose token was given away
	idle      uint8    // ghost: ticks in which a waiter that fits was not served

	crashes, pauses, losses, repeats, deletions, back, forward, tells, closes uint8 // left
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
	phase                 phase
	name                  uint8 // which of its tokens it uses
	acquisitions          uint8 // left
	call                  kind  // that is under way
	age                   uint8 // ticks since that was sent first
	reply                 reply // that it has not read yet
	replyFence, replySlot uint8

	joined uint8 // a waiter: it was answered that it waits, so it polls from now on
	trust  uint8 // ticks for which a message can be trusted
	high   uint8 // the fencing token that it has to exceed
	due    uint8 // it must poll now

	left        uint8 // a holder: ticks for which it trusts its lease
	fence, slot uint8

	stray  uint8 // a copy of its acquire may be on its way
	former token // whose lease it adopts

	paused, dead uint8
	waited       uint8 // ghost: ticks
}

func bit(t token) uint8      { return 1 << (t - 1) }
func ownerOf(t token) int    { return int(t-1) / perClient }
func minus(a, b uint8) uint8 { return a - min(a, b) }

func (s *state) tokenOf(c int) token { return nameOf(c, s.clients[c].name) }
func nameOf(c int, name uint8) token { return token(c*perClient) + name + 1 }

// zero is where a time of the server's is over.
func (m *model) zero() uint8 { return m.back }

func (m *model) kindOf(t token) uint8 {
	if t == foreigner {
		return exclusive
	}
	return m.kinds[ownerOf(t)]
}

func (m *model) ttlOf(t token) uint8 {
	if t == foreigner {
		return m.ttl
	}
	if v := m.ttls[ownerOf(t)]; v > 0 {
		return v
	}
	return m.ttl
}

func (m *model) start() state {
	s := state{
		crashes: m.crashes, pauses: m.pauses, losses: m.losses, repeats: m.repeats, deletions: m.deletions,
		back: m.back, forward: m.forward, tells: m.tells, closes: m.closes, missing: 1,
	}
	for c := range m.clients {
		s.clients[c].acquisitions = m.acquisitions
	}
	s.foreign.acquisitions = m.foreign
	return s
}
