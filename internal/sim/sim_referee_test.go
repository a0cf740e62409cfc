package sim_test

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/inside"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/rediskey"
)

// simReferee watches the server and the leases of one history and notes what must not happen. Of the protocol it knows the
// keys, the meaning of a mark, and what is promised, but not what the clients do for it.
type simReferee struct {
	m     *miniredis.Miniredis
	start time.Time
	slow  time.Duration
	room  int           // how many of the dead one run of a script clears away
	rests time.Duration // the least that some leases are held

	mu     sync.Mutex // guards what follows
	locks  map[string]*simLock
	tokens map[string]*simToken
	events []simEvent
	broken []string
	quiet  time.Time // until then a lock may be idle: hosts died, or something went by unheard
}

// simLock is what the referee knows of one key.
type simLock struct {
	key, line, fence, marks, undone string

	// On the server, as last seen.
	owner   string
	ttl     time.Duration
	tickets map[string]float64
	good    map[string]time.Duration // for how long the mark of each in the line is good

	issued  string // the fencing counter at the last grant
	fenced  int64  // the highest fencing token of a lease
	held    []*simHolder
	waiters map[*simWaiter]bool
	won     map[*simHost]time.Time // when the Acquire that won last was called
	idle    time.Time              // since when the lock is free while somebody waits; zero: it is not
	moved   time.Time              // when it changed hands last
	byHand  int                    // how often it was deleted by hand
}

// simToken is what became of a token.
type simToken struct {
	host    *simHost
	fence   string    // with which it was granted the lock; not known any more if the counter was deleted
	expects time.Time // when its wait for an expiry was told to end
	claimed bool      // a lease of it was returned
	left    bool      // it has had the lock and has it no more
	over    bool      // a release of it has run
	robbed  bool      // its lock was deleted by hand: nothing is promised from then on
	foreign bool
}

// simHolder is a lease that was returned and that its holder has not begun to release.
type simHolder struct {
	host  *simHost
	lease *leasehold.Lease
	over  bool // it was seen when it was not trusted any more
}

// simWaiter is an Acquire under way.
type simWaiter struct {
	host  *simHost
	begun time.Time
	over  bool // its context has ended
}

func newReferee(m *miniredis.Miniredis, slow time.Duration, keys []string) *simReferee {
	r := &simReferee{m: m, start: time.Now(), slow: slow, locks: map[string]*simLock{}, tokens: map[string]*simToken{}}
	for _, key := range keys {
		name := func(kind string) string { return string(rediskey.Derive(nil, "", kind, key)) }
		r.locks[key] = &simLock{
			key: key, line: name("line"), fence: name("counter"), marks: name("marks"), undone: name("undone"),
			waiters: map[*simWaiter]bool{}, won: map[*simHost]time.Time{},
		}
	}
	return r
}

// round is time for what goes on at once: some round trips.
func (r *simReferee) round() time.Duration { return 30*time.Millisecond + 15*r.slow }

// dead says that for that long a host is not expected to do its part, nor then until it has looked again, and that for so
// much longer a lock may be idle for its sake.
func (r *simReferee) dead(h *simHost, d, more time.Duration, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(h, format, args...)
	h.ill(time.Now().Add(d + backend.WaiterTTL + locktest.PollInterval + r.round()))
	if d < forever {
		more += d
	}
	r.excuse(more)
}

// unheard says that something happened that a waiter is not told.
func (r *simReferee) unheard(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(nil, format, args...)
	r.excuse(locktest.PollInterval)
}

// excuse gives the locks time. r.mu is held.
func (r *simReferee) excuse(d time.Duration) {
	if until := time.Now().Add(d + r.round()); until.After(r.quiet) {
		r.quiet = until
	}
}

// byHand does something to the server that no client of ours would do. The caller has the network's turn.
func (r *simReferee) byHand(what string, do func()) {
	r.before()
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
	r.note(nil, "by hand: %s", what)
	r.excuse(locktest.PollInterval)
	for _, t := range r.tokens {
		t.over = t.over && what != "FLUSHALL" // the tombstones went too
	}
	for _, l := range r.locks {
		owner, good := l.owner, l.good
		if r.read(l); l.owner != owner {
			if t := r.token(owner); owner != "" {
				t.left, t.robbed = true, true
			}
			l.byHand++
			l.moved = time.Now()
		}
		worse := len(l.good) < len(good)
		for t, left := range l.good {
			worse = worse || left < good[t]
		}
		if worse {
			for _, t := range r.tokens {
				if t.host != nil {
					t.host.ill(time.Now().Add(locktest.PollInterval + r.round())) // until it has looked and stands again
				}
			}
		}
		if l.owner != "" {
			t := r.token(l.owner)
			t.foreign = t.foreign || l.owner != owner
			if !r.m.Exists(l.fence) {
				t.fence = ""
			}
		}
	}
}

// read looks at a lock on the server. r.mu is held.
func (r *simReferee) read(l *simLock) {
	now := time.Now()
	l.owner, _ = r.m.Get(l.key)
	l.ttl, l.tickets, l.good = r.m.TTL(l.key), nil, nil
	if r.m.Exists(l.line) {
		live, _ := r.m.SortedSet(l.line)
		l.tickets = maps.Clone(live)
		l.good = map[string]time.Duration{}
		for t := range l.tickets {
			ms, err := strconv.ParseInt(r.m.HGet(l.marks, t), 10, 64)
			if err != nil {
				ms = int64(l.tickets[t])/1000 + backend.WaiterTTL.Milliseconds()
			}
			l.good[t] = max(0, time.UnixMilli(ms).Sub(now))
		}
	}
}

// before looks at the server right before a command. What has changed since the last one has expired.
func (r *simReferee) before() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.locks {
		owner := l.owner
		if r.read(l); l.owner == owner {
			continue
		}
		if l.owner != "" {
			r.violation("%s has the lock by no command", r.name(l.owner))
		}
		r.token(owner).left = true
		r.note(nil, "expired: %s", r.name(owner))
		if !r.awaited(l) {
			r.excuse(locktest.PollInterval)
		}
		l.moved = time.Now()
	}
}

// awaited reports whether the first in the line knew that the lock would expire now.
func (r *simReferee) awaited(l *simLock) bool {
	first := ""
	for t, place := range l.tickets {
		if first == "" || place < l.tickets[first] {
			first = t
		}
	}
	t, now := r.tokens[first], time.Now()
	return t != nil && t.host != nil && t.host.well(now) && t.expects.Before(now.Add(2*time.Millisecond))
}

// after judges what a command has done.
func (r *simReferee) after(h *simHost, args []string, reply []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, simEvent{at: time.Since(r.start), host: h, args: args, reply: reply})
	calls := scriptCalls(args)
	for _, c := range calls {
		if c.by != "" {
			r.token(c.by).host = h
		}
	}
	for _, l := range r.locks {
		key, by, mode := callAbout(l, calls)
		old := *l
		r.read(l)
		switch {
		case l.owner != old.owner:
			if !r.rested(&old, l, by, args) && !r.passedOn(&old, l, by, args) {
				r.handedOver(&old, l, by)
			}
			if mode == "" && l.owner != "" {
				r.violation("a renewal of %s gives the lock to %s", r.name(by), r.name(l.owner))
			}
		case l.owner != "" && l.owner != by && l.ttl != old.ttl:
			r.violation("a command of %s changes the TTL of %s from %v to %v", r.name(by), r.name(l.owner), old.ttl, l.ttl)
		}
		last := 0.0
		for t, place := range old.tickets {
			if _, stands := l.tickets[t]; stands {
				last = max(last, place)
			}
		}
		for t, place := range l.tickets {
			if _, stood := old.tickets[t]; stood {
				continue
			}
			if place <= last {
				r.violation("%s joins the line at %v, and the last one stood at %v", r.name(t), place, last)
			}
			if r.token(t).over {
				r.violation("%s joins the line after it was released", r.name(t))
			}
		}
		if key == l.key && l.owner == "" {
			r.leftFree(&old, l, by, showRESP(reply))
		}
		for _, k := range []string{l.key, l.line, l.fence, l.marks} {
			if r.m.Exists(k) && r.m.TTL(k) <= 0 {
				r.violation("%s has no TTL", k)
			}
		}
		r.flag(l)
		r.trust(l)
		r.idling(l)
		if l.owner != "" && l.ttl != old.ttl {
			time.AfterFunc(l.ttl, r.tick) // whoever trusts it longer than it lasts is caught
		}
	}
	says := strings.Fields(showRESP(reply))
	if len(says) == 6 && says[0] == "WAITING" {
		ms, _ := strconv.Atoi(says[2])
		r.token(calls[0].by).expects = time.Now().Add(time.Duration(ms) * time.Millisecond)
	}
	for i, c := range calls {
		if c.mode != "release" && c.mode != "cancel" {
			continue
		}
		t, did := r.token(c.by), i < len(says) && says[i] != "0" // "0": a short script left it to the full one
		t.over = did && !strings.HasPrefix(string(reply), "-") || !did && t.over
	}
}

// callAbout is the call of a command that is about that lock; if there is none, the first, which has no business with it.
func callAbout(l *simLock, calls []simCall) (key, by, mode string) {
	for _, c := range calls {
		if c.key == l.key {
			return c.key, c.by, c.mode
		}
	}
	if calls == nil {
		return "", "", ""
	}
	return calls[0].key, calls[0].by, calls[0].mode
}

// tick looks at all locks between two commands.
func (r *simReferee) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.locks {
		seen := *l
		r.read(&seen)
		r.trust(&seen)
		if seen.owner == l.owner { // else it has expired, as the next command will find
			r.idling(l)
		}
	}
}

// trust judges who trusts a lease at this instant. r.mu is held.
func (r *simReferee) trust(l *simLock) {
	for _, x := range l.held {
		if !trusted(x.lease) {
			x.over = true
		} else if x.over {
			r.violation("%s is trusted again after it was over", r.name(inside.State(x.lease).Token))
			x.over = false // once is enough
		}
		if token := inside.State(x.lease).Token; trusted(x.lease) && l.owner != token && !r.token(token).robbed {
			r.violation("%s is trusted until %v, but the lock is %s", r.name(token), x.lease.ValidUntil().Sub(r.start), r.name(l.owner))
			r.token(token).robbed = true // once is enough
		}
	}
}

// idling judges whether the lock may be idle at this instant. r.mu is held.
func (r *simReferee) idling(l *simLock) {
	now := time.Now()
	t := r.tokens[l.owner]
	free := l.owner == "" || t == nil || !t.foreign && (!t.claimed || t.left)
	waited := false
	for w := range l.waiters {
		waited = waited || !w.over && w.host.well(now)
	}
	if !free || !waited {
		l.idle = time.Time{}
		return
	}
	if l.idle.IsZero() {
		l.idle = now
	}
	since := l.idle
	if l.moved.After(since) {
		since = l.moved
	}
	switch {
	case now.Sub(l.idle) > backend.WaiterTTL+locktest.PollInterval/2+r.round() && now.After(r.quiet):
		r.violation("the lock is idle since %v, the owner is %s", l.idle.Sub(r.start), r.name(l.owner))
	case now.Sub(since) > r.round() && now.After(r.quiet):
		r.violation("the lock is idle since %v without a reason, the owner is %s", since.Sub(r.start), r.name(l.owner))
	default:
		return
	}
	l.idle, l.moved = now, now // once is enough
}

// trusted is Lease.Valid without its effects, by the clocks of the host.
func trusted(x *leasehold.Lease) bool {
	state := inside.State(x)
	return !state.Ended && !state.Deadline.Reached(state.Now)
}

// waits counts an Acquire among the waiters until the function that it returns is called.
func (r *simReferee) waits(w *simWaiter, key string) (done func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.locks[key].waiters[w] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.locks[key].waiters, w)
	}
}

// gaveUp says that a waiter's context has ended.
func (r *simReferee) gaveUp(w *simWaiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.over = true
}

// begins judges a new lease; called says when the Acquire was, zero for others.
func (r *simReferee) begins(x *simHolder, called time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l, token := r.locks[x.lease.Key()], inside.State(x.lease).Token
	r.note(x.host, "lease %s %d until %v", r.name(token), x.lease.FencingToken(), x.lease.ValidUntil().Sub(r.start))
	t := r.token(token)
	t.claimed, t.left = true, false
	l.held = append(l.held, x)
	if t.robbed {
		return
	}
	for _, o := range l.held[:len(l.held)-1] {
		if trusted(o.lease) && trusted(x.lease) && !r.token(inside.State(o.lease).Token).robbed {
			r.violation("two are trusted: %s and %s", r.name(inside.State(o.lease).Token), r.name(token))
		}
	}
	if f := strconv.FormatInt(x.lease.FencingToken(), 10); t.fence != "" && f != t.fence {
		r.violation("%s begins with fencing token %s, but was granted the lock with %s", r.name(token), f, t.fence)
	}
	if f := x.lease.FencingToken(); f <= l.fenced {
		r.violation("%s begins with fencing token %d, not above %d", r.name(token), f, l.fenced)
	} else {
		l.fenced = f
	}
	if !called.IsZero() {
		if called.Before(l.won[x.host]) {
			r.violation("%s was called before the Acquire that won before it on the same host", r.name(token))
		}
		l.won[x.host] = called
	}
	r.trust(l)
}

// ends says that a lease is about to be released, or given up.
func (r *simReferee) ends(x *simHolder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.locks[x.lease.Key()]
	l.held = slices.DeleteFunc(l.held, func(o *simHolder) bool { return o == x })
}

func (r *simReferee) robbed(x *leasehold.Lease) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.token(inside.State(x).Token).robbed
}

// byHandOf is how often a lock was deleted by hand so far.
func (r *simReferee) byHandOf(key string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.locks[key].byHand
}

// token is the state of a token. r.mu is held.
func (r *simReferee) token(t string) *simToken {
	s := r.tokens[t]
	if s == nil {
		s = &simToken{}
		r.tokens[t] = s
	}
	return s
}
