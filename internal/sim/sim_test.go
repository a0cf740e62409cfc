package sim_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/inside"
	"github.com/go-leasehold/leasehold/internal/line"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/redis/go-redis/v9"
)

// The simulation: many short lives of a few Lockers on one lock or two, each in a bubble of its own and drawn from a
// seed, with everything going wrong that may. What is promised is judged at every step, by the referee between two
// commands and by the actors around their calls. LEASEHOLD_SIM_RUNS says how many; a failure prints its seed, and
// -leasehold.seed or LEASEHOLD_SIM_SEED runs that history again. Go's scheduler and the library's own jitter are not drawn from
// the seed: run it with -count.

var simSeed = flag.Uint64("leasehold.seed", 0, "run the one history of TestTheSimulation that has this seed")

func TestTheSimulation(t *testing.T) {
	runs, first := 3, uint64(1)
	if n, err := strconv.Atoi(os.Getenv("LEASEHOLD_SIM_RUNS")); err == nil {
		runs, first = n, rand.Uint64()
	}
	if n, err := strconv.ParseUint(os.Getenv("LEASEHOLD_SIM_SEED"), 10, 64); err == nil {
		runs, first = 1, n
	}
	if *simSeed != 0 {
		runs, first = 1, *simSeed
	}
	t.Logf("%d histories, from seed %d on: LEASEHOLD_SIM_SEED=%d plays the first again", runs, first, first)
	for seed := first; seed-first < uint64(runs) && !t.Failed(); seed++ { // the seed may run over
		broken, trace := play(t, seed, drawWeather(rand.New(rand.NewPCG(seed, 0))))
		if len(broken) > 0 {
			for _, b := range broken {
				t.Error(b)
			}
			t.Errorf("LEASEHOLD_SIM_SEED=%d plays this again\n%s", seed, trace)
		}
	}
}

// simWeather is what a history is like. Each has some kinds of trouble and not others, since trouble hides trouble.
type simWeather struct {
	lockers, each int // Lockers, and goroutines on each
	keys          int
	lasting       time.Duration
	slow          time.Duration   // the longest way of a frame
	ttls          []time.Duration // of leases
	think, hold   time.Duration   // the longest pauses of an actor, outside of the lock and in it
	lockDelay     time.Duration
	life          time.Duration // of the counters, after some leases; 0: as ever
	rests         time.Duration // the least that some leases are held; 0: none
	readTimeout   time.Duration
	retries       int

	tries, cancels, renews, forgets float64 // the share of acquires, and of leases
	passes                          float64 // of leases that another host adopts
	deaf                            float64 // of messages
	room                            int     // how many dead one run of a script clears away; 0: as ever

	between  time.Duration // two troubles
	troubles []string
}

var allTroubles = []string{
	"pause", "pause", "one-sided pause", "crash", "massacre", "quit", "close", "cut", "lose reply", "duplicate", "stall",
	"DEL", "DEL line", "SCRIPT FLUSH", "FLUSHALL", "foreign", "suspend",
}

func drawWeather(rng *rand.Rand) simWeather {
	pick := func(d ...time.Duration) time.Duration { return d[rng.IntN(len(d))] }
	some := func(f ...float64) float64 { return f[rng.IntN(len(f))] }
	const ms = time.Millisecond
	w := simWeather{
		lockers: 2 + rng.IntN(4), each: 1 + rng.IntN(3), keys: 1 + rng.IntN(5)/4,
		lasting: pick(5*time.Second, 10*time.Second, 20*time.Second),
		slow:    pick(100*time.Microsecond, ms, 3*ms),
		think:   pick(ms, 50*ms, time.Second), hold: pick(ms, 20*ms, 200*ms, 2*time.Second, 5*time.Second),
		lockDelay:   pick(0, 0, 0, 30*ms),
		readTimeout: pick(300*ms, 3*time.Second), retries: []int{-1, 3}[rng.IntN(2)],
		tries: some(0, 0.2, 0.5), cancels: some(0, 0.1, 0.5), renews: some(0, 0.5, 1), forgets: some(0, 0, 0.1),
		deaf:    some(0, 0, 0, 0.2, 1),
		between: pick(300*ms, time.Second, 3*time.Second),
	}
	if rng.IntN(6) == 0 {
		w.lockers, w.each = 2+rng.IntN(7), 1+rng.IntN(6)
	}
	for range 1 + rng.IntN(3) {
		w.ttls = append(w.ttls, pick(20*ms, 50*ms, 300*ms, time.Second, 2500*ms, 5*time.Second))
	}
	for range rng.IntN(5) {
		w.troubles = append(w.troubles, allTroubles[rng.IntN(len(allTroubles))])
	}
	if w.lockers*w.each > 8 {
		w.hold = min(w.hold, 200*ms) // or some would rightly wait for minutes
	}
	if turn := rng.IntN(2 * len(storms)); turn < len(storms) {
		storms[turn](&w)
	}
	w.life = pick(0, 0, time.Minute)
	w.passes = some(0, 0, 0.5)
	if rng.IntN(3) == 0 && w.room == 0 {
		w.room = 1 + rng.IntN(2)
	}
	if w.lockers*w.each <= 8 {
		w.rests = cmp.Or(w.rests, pick(0, 0, 0, 100*ms, time.Second))
	}
	return w
}

// storms are weathers in which what is rare elsewhere happens often.
var storms = []func(*simWeather){expiring, dying, crowding, stalling, deafening, stuttering, lagging, lingering, suspending, sharing, resting}

// expiring: leases are over before they are released.
func expiring(w *simWeather) {
	w.ttls = []time.Duration{20 * time.Millisecond, 50 * time.Millisecond}
	w.hold, w.renews, w.tries = 200*time.Millisecond, 0.5, 0.3
}

// dying: many waiters die at once.
func dying(w *simWeather) {
	w.lockers, w.each, w.troubles, w.between = 8, 1, []string{"massacre"}, time.Second
	w.think, w.hold, w.cancels, w.tries = time.Millisecond, 400*time.Millisecond, 0, 0
	w.ttls = []time.Duration{time.Second}
}

// sharing: many locks, so that the commands of one host share runs of the short scripts.
func sharing(w *simWeather) {
	w.lockers, w.each, w.keys, w.slow = 2, 16, 10, 3*time.Millisecond
	w.think, w.hold, w.tries = time.Millisecond, time.Millisecond, 0.3
	w.ttls, w.lasting = []time.Duration{300 * time.Millisecond, time.Second}, 5*time.Second
}

// resting: leases are released at once, and the locks rest, while releases come twice or late.
func resting(w *simWeather) {
	w.lockers, w.each, w.troubles, w.between = 3, 1, []string{"duplicate", "lose reply", "stall"}, 300*time.Millisecond
	w.ttls, w.hold, w.think, w.rests = []time.Duration{300 * time.Millisecond, 5 * time.Second}, 200*time.Millisecond, time.Millisecond, 300*time.Millisecond
	w.slow = 15 * time.Millisecond
}

// crowding: the same, and one run of a script does not clear them away.
func crowding(w *simWeather) {
	dying(w)
	w.room, w.tries = 1, 0.2
}

// stalling: holders are paused again and again.
func stalling(w *simWeather) {
	w.lockers, w.each, w.troubles, w.between = 3, 1, []string{"pause"}, 200*time.Millisecond
	w.ttls, w.hold, w.renews, w.tries = []time.Duration{300 * time.Millisecond}, 5*time.Second, 1, 0
}

// deafening: messages come when no look has been answered for long.
func deafening(w *simWeather) {
	w.lockers, w.each, w.troubles, w.between = 4, 1, []string{"one-sided pause"}, time.Second
	w.think, w.hold, w.cancels, w.tries, w.renews = time.Millisecond, 200*time.Millisecond, 0, 0, 1
	w.ttls, w.lockDelay, w.lasting = []time.Duration{2500 * time.Millisecond, 5 * time.Second}, 0, 20*time.Second
}

// stuttering: a command comes when the attempt that it was part of is long over.
func stuttering(w *simWeather) {
	w.troubles, w.between, w.think, w.hold = []string{"stall"}, 300*time.Millisecond, 50*time.Millisecond, 20*time.Millisecond
	w.ttls = []time.Duration{5 * time.Second}
}

// lagging: answers take longer than the margin of a lease, and what was renewed by hand is held to its end.
func lagging(w *simWeather) {
	w.slow, w.think, w.hold, w.renews = 15*time.Millisecond, time.Millisecond, 200*time.Millisecond, 0.5
	w.ttls, w.lockDelay = []time.Duration{100 * time.Millisecond}, 0
}

// lingering: leases that came by message are held for longer than a message is good for.
func lingering(w *simWeather) {
	w.lockers, w.each, w.troubles, w.lasting = 3, 1, nil, 20*time.Second
	w.think, w.hold, w.cancels, w.tries, w.renews = time.Millisecond, 5*time.Second, 0, 0, 1
	w.ttls, w.lockDelay = []time.Duration{10 * time.Second}, 0
}

// suspending: machines are suspended while a renewal is on its way.
func suspending(w *simWeather) {
	w.lockers, w.each, w.troubles, w.between = 3, 1, []string{"suspend"}, 50*time.Millisecond
	w.slow, w.think, w.hold, w.renews = 15*time.Millisecond, time.Millisecond, 2*time.Second, 1
	w.ttls, w.lockDelay = []time.Duration{300 * time.Millisecond}, 0
}

// simHistory is one life of some Lockers.
type simHistory struct {
	simWeather
	seed     uint64
	net      *simNetwork
	judge    *simReferee
	keys     []string
	hosts    []*simHost
	operator *redis.Client   // not by the network
	ending   context.Context // ends with the time of the actors
	actors   sync.WaitGroup
}

// play runs a history, and says what was broken.
func play(t *testing.T, seed uint64, w simWeather) (broken []string, trace string) {
	t.Helper()
	if w.room > 0 {
		defer replace(t, "local room = 256", fmt.Sprint("local room = ", w.room))()
	}
	redistest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
		h := &simHistory{simWeather: w, seed: seed, operator: dial()}
		for i := range w.keys {
			h.keys = append(h.keys, fmt.Sprintf("key%d", i))
		}
		h.judge = newReferee(m, w.slow, h.keys)
		h.judge.room, h.judge.rests = cmp.Or(w.room, 256), w.rests
		h.net = &simNetwork{m: m, turn: make(chan struct{}, 1), judge: h.judge, seed: seed, slow: w.slow}
		for i := range w.lockers {
			h.hosts = append(h.hosts, h.host(i, dial))
		}
		h.run()
		broken, trace = h.judge.verdict()
		trace = fmt.Sprintf("%+v\n", w) + trace
	})
	return broken, trace
}

func (h *simHistory) host(i int, dial func(...func(*redis.Options)) *redis.Client) *simHost {
	p := &simHost{net: h.net, n: i, deaf: h.deaf}
	p.client = dial(func(o *redis.Options) {
		p.wire = redistest.FaultyDialer(p.dial)
		o.Dialer = p.wire.Dial
		o.Protocol = 2
		o.DialerRetries = 1 // go-redis pauses between them under a PubSub's mutex
		o.MaxRetries, o.ReadTimeout = h.retries, h.readTimeout
	})
	p.locker = leasehold.New(p.client, leasehold.WithLockDelay(h.lockDelay))
	inside.Of(p.locker).Clock.Wall = func(t time.Time) int64 { return t.UnixNano() + p.suspended.Load() }
	p.quit, p.leave = context.WithCancel(context.Background())
	return p
}

func (h *simHistory) run() {
	ending, end := context.WithCancel(context.Background())
	defer end()
	h.ending = ending
	time.AfterFunc(h.lasting, end)
	h.net.limit, h.net.reached = 700, end
	h.net.endless = func() {
		for _, p := range h.hosts {
			p.cutOff(true)
		}
	}

	for i, p := range h.hosts {
		for j := range h.each {
			a := &simActor{h: h, p: p, rng: rand.New(rand.NewPCG(h.seed, uint64(1+i<<16+j)))}
			h.actors.Go(a.live)
		}
	}
	var aside sync.WaitGroup
	aside.Go(func() { h.trouble(rand.New(rand.NewPCG(h.seed, 1<<40))) })
	watching := make(chan struct{})
	aside.Go(func() {
		for rng := rand.New(rand.NewPCG(h.seed, 1<<41)); ; {
			select {
			case <-watching:
				return
			case <-time.After(time.Duration(1 + rng.Int64N(int64(25*time.Millisecond)))):
				h.judge.tick()
			}
		}
	})
	h.actors.Wait()
	h.calm()
	h.settled()
	close(watching)
	aside.Wait()
	h.shut()
}

// calm lets everyone who is left have every lock once more: nobody may be stuck.
func (h *simHistory) calm() {
	for i, p := range h.hosts {
		for j := range h.each {
			a := &simActor{h: h, p: p, rng: rand.New(rand.NewPCG(h.seed, uint64(1+i<<16+j+1<<42)))}
			h.actors.Go(func() {
				for _, key := range h.keys {
					if p.quit.Err() == nil {
						a.acquire(key, 90*time.Second, false)
					}
				}
			})
		}
	}
	h.actors.Wait()
}

// settled looks into the Lockers when nobody uses them any more.
func (h *simHistory) settled() {
	time.Sleep(h.judge.round())
	for _, p := range h.hosts {
		if _, renewing := locktest.Kept(p.locker); renewing > 0 && p.well(time.Now()) && p.quit.Err() == nil {
			h.judge.fail(p, "%d renewals are under way", renewing)
		}
	}
}

// shut closes everything and looks at what is left.
func (h *simHistory) shut() {
	var all sync.WaitGroup
	for _, p := range h.hosts {
		all.Go(func() {
			begun := time.Now()
			err := p.locker.Close()
			if took := time.Since(begun); took > 2*locktest.CloseBound+time.Second+h.judge.round() {
				h.judge.fail(p, "Close took %v", took)
			}
			if err != nil && p.well(time.Now()) && p.quit.Err() == nil {
				h.judge.fail(p, "Close: %v", err)
			}
			h.left(p)
		})
	}
	all.Wait()
	time.Sleep(h.judge.round())
	h.net.turn <- struct{}{}
	for _, key := range h.net.m.Keys() {
		if h.net.m.TTL(key) <= 0 {
			h.judge.fail(h.hosts[0], "%s is left without a TTL", key)
		}
	}
	<-h.net.turn
	for _, p := range h.hosts {
		_ = p.client.Close()
	}
	time.Sleep(8 * 24 * time.Hour)
	if keys := h.net.m.Keys(); len(keys) > 0 {
		h.judge.fail(h.hosts[0], "after 8 days there still are %q", keys)
	}
}

// left looks into a closed Locker.
func (h *simHistory) left(p *simHost) {
	l := p.locker
	if n := inside.Of(l).Line.Load(); n != (line.Load{}) {
		h.judge.fail(p, "the line has in hand %+v", n)
	}
	if n := inside.Of(l).Keeper.Len(); n > 0 {
		h.judge.fail(p, "%d leases are kept", n)
	}
}

// trouble makes the history's weather.
func (h *simHistory) trouble(rng *rand.Rand) {
	if len(h.troubles) == 0 {
		return
	}
	alive := len(h.hosts)
	for {
		select {
		case <-h.ending.Done():
			return
		case <-time.After(h.between/10 + time.Duration(rng.Int64N(int64(2*h.between)))):
		}
		what := h.troubles[rng.IntN(len(h.troubles))]
		p := h.hosts[rng.IntN(len(h.hosts))]
		key := h.keys[rng.IntN(len(h.keys))]
		gone := p.quit.Err() != nil
		switch what {
		case "crash", "quit", "close":
			if gone || alive == 1 {
				continue
			}
			alive--
			p.leave()
		case "massacre":
			for _, p := range h.hosts {
				if alive > 1 && p.quit.Err() == nil {
					alive--
					p.leave()
					h.befall(rng, "crash", p, key)
				}
			}
			continue
		}
		if gone && (strings.HasSuffix(what, "pause") || what == "cut" || what == "lose reply" || what == "duplicate") {
			continue
		}
		h.befall(rng, what, p, key)
	}
}

// befall does one of allTroubles.
func (h *simHistory) befall(rng *rand.Rand, what string, p *simHost, key string) {
	m := h.net.m
	hand := func(do func()) {
		h.net.turn <- struct{}{}
		defer func() { <-h.net.turn }()
		time.Sleep(10 * time.Microsecond)
		h.judge.byHand(what, do)
	}
	switch what {
	case "pause", "one-sided pause":
		d := []time.Duration{50 * time.Millisecond, time.Second, 4 * time.Second}[rng.IntN(3)]
		d = d/2 + time.Duration(rng.Int64N(int64(d)))
		h.judge.dead(p, d+aftermath, backend.WaiterTTL+locktest.PollInterval, what+" %v", d)
		p.pause(d, what != "pause")
	case "suspend":
		d := 50*time.Millisecond + time.Duration(rng.Int64N(int64(300*time.Millisecond)))
		h.judge.dead(p, 0, backend.WaiterTTL+locktest.PollInterval, what+" for %v", d)
		p.suspended.Add(int64(d))
		h.judge.tick()
	case "crash":
		h.judge.dead(p, forever, backend.WaiterTTL+locktest.PollInterval, "crash")
		p.cutOff(rng.IntN(2) == 0)
	case "quit":
		h.judge.dead(p, forever, backend.WaiterTTL+locktest.PollInterval, "quit")
		_ = p.client.Close()
	case "close":
		h.actors.Go(func() {
			if err := p.locker.Close(); err != nil && p.well(time.Now()) {
				h.judge.fail(p, "Close: %v", err)
			}
		})
	case "cut":
		h.judge.dead(p, aftermath, backend.WaiterTTL+locktest.PollInterval, "cut")
		p.wire.Cut()
	case "lose reply":
		p.lose(1 + rng.IntN(3))
	case "stall":
		p.stall(time.Second + time.Duration(rng.Int64N(int64(4*time.Second))))
	case "duplicate":
		p.twice(1 + rng.IntN(3))
	case "DEL":
		hand(func() { m.Del(key) })
	case "DEL line":
		hand(func() {
			l := h.judge.locks[key]
			for _, k := range []string{l.line, l.marks, l.fence} {
				if rng.IntN(2) == 0 {
					m.Del(k)
				}
			}
		})
	case "FLUSHALL":
		hand(m.FlushAll)
	case "foreign":
		hand(func() {
			if !m.Exists(key) {
				_ = m.Set(key, "foreign")
				m.SetTTL(key, 100*time.Millisecond+time.Duration(rng.Int64N(int64(time.Second))))
			}
		})
		time.Sleep(time.Duration(rng.Int64N(int64(time.Second))))
		hand(func() {
			if v, _ := m.Get(key); v == "foreign" {
				m.Del(key)
			}
		})
	case "SCRIPT FLUSH":
		h.net.turn <- struct{}{}
		if err := h.operator.ScriptFlush(context.Background()).Err(); err != nil {
			h.judge.fail(p, "%v", err)
		}
		<-h.net.turn
	}
}

const (
	forever = 1000 * time.Hour
	// aftermath is for how long go-redis may go on with what was on its way when a connection broke.
	aftermath = time.Second
)
