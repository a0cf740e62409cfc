package sim_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/redis/go-redis/v9"
)

// simNetwork lies between the clients of a history and its miniredis. Every request, reply and message takes a time of its
// own, those of a paused host wait until it goes on, and commands run one by one, so that the referee sees the state
// before and after each.
type simNetwork struct {
	m     *miniredis.Miniredis
	turn  chan struct{} // length one: full while a command runs
	judge *simReferee
	seed  uint64
	slow  time.Duration // the longest time of a frame on its way

	limit   int // of commands; guarded by turn
	reached func()
	endless func() // ends a history whose hosts do not stop sending
}

// tooMany is how many more commands a history may need to come to its end. A usual one needs some hundreds.
const tooMany = 20_000

// later is when a frame that is sent now arrives.
func (n *simNetwork) later(rng *rand.Rand) time.Time {
	return time.Now().Add(n.slow/20 + time.Duration(rng.Int64N(int64(n.slow))))
}

// simHost is a process: a client, its connections, and a Locker.
type simHost struct {
	net  *simNetwork
	n    int
	wire *redistest.DialFault // cuts

	client *redis.Client
	locker *leasehold.Locker
	quit   context.Context // ends when nothing more can be had of it
	leave  context.CancelFunc

	suspended atomic.Int64 // ns for which the machine was suspended: its wall clock is so much ahead of its monotonic one

	mu     sync.Mutex // guards what follows
	links  int
	paused chan struct{} // closed when the pause ends; nil: none
	cutoff bool          // and commands break their connections until then
	adrift bool          // what is under way is lost
	deaf   float64       // the share of messages that are lost
	losing int           // of the next replies, connections included
	twices int           // of the next commands that arrive twice
	stalls time.Duration // by which the next command comes late, alone
	sick   time.Time     // until then it is not expected to do its part
}

// ill says that the host is not expected to do its part until then.
func (h *simHost) ill(until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if until.After(h.sick) {
		h.sick = until
	}
}

// well reports whether the host is expected to do its part.
func (h *simHost) well(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return now.After(h.sick)
}

// dial connects through the network, below the host's wire.
func (h *simHost) dial(context.Context, string, string) (net.Conn, error) {
	server, err := h.net.m.Dial()
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	h.links++
	seed := uint64(h.n)<<32 | uint64(h.links)
	h.mu.Unlock()
	near, far := net.Pipe()
	l := &simLink{
		h: h, client: far, server: server,
		requests: make(chan simFrame, 1<<10),
		replies:  make(chan []byte, 1),
		out:      make(chan simFrame, 1<<10),
		dead:     make(chan struct{}),
	}
	go l.readClient(rand.New(rand.NewPCG(h.net.seed, seed)))
	go l.run(rand.New(rand.NewPCG(h.net.seed, seed^1<<63)))
	go l.readServer(rand.New(rand.NewPCG(h.net.seed, seed^1<<62)))
	go l.write(rand.New(rand.NewPCG(h.net.seed, seed^3<<62)))
	return near, nil
}

// pause holds back all that the host sends and receives, until the end of d. If it is one-sided, commands break their
// connections instead, so that messages come late and not one look is answered before them.
func (h *simHost) pause(d time.Duration, oneSided bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.paused != nil {
		return
	}
	over := make(chan struct{})
	h.paused, h.cutoff = over, oneSided
	time.AfterFunc(d, func() {
		h.mu.Lock()
		h.paused, h.cutoff = nil, false
		h.mu.Unlock()
		close(over)
	})
}

// cutOff cuts the host off for ever. What it has sent arrives all the same, or is lost.
func (h *simHost) cutOff(lost bool) {
	h.mu.Lock()
	h.adrift = lost
	h.mu.Unlock()
	h.wire.Refuse()
}

// lose loses the next replies, and the connections on which they would have come.
func (h *simHost) lose(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.losing += n
}

// twice has the next commands arrive twice.
func (h *simHost) twice(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.twices += n
}

// stall has the next command come that much later, and nothing else.
func (h *simHost) stall(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stalls = d
}

// simFate is what becomes of a command.
type simFate struct {
	broken      bool // its connection breaks before it arrives
	late        time.Duration
	twice, lost bool // it arrives twice; its reply is lost, with the connection
}

func (h *simHost) fate(name string) (f simFate) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !strings.HasPrefix(strings.ToLower(name), "eval") {
		return f
	}
	if h.cutoff {
		return simFate{broken: true}
	}
	if h.twices > 0 {
		h.twices--
		f.twice = true
	}
	if h.losing > 0 {
		h.losing--
		f.lost = true
	}
	f.late, h.stalls = h.stalls, 0
	return f
}

// arrive waits for a frame's time and for the end of a pause. It reports false if the frame is lost.
func (h *simHost) arrive(due time.Time, rng *rand.Rand) bool {
	for {
		time.Sleep(time.Until(due))
		h.mu.Lock()
		paused, adrift := h.paused, h.adrift
		h.mu.Unlock()
		if adrift {
			return false
		}
		if paused == nil {
			return true
		}
		<-paused
		due = h.net.later(rng) // connections do not keep an order among themselves
	}
}

// simLink is one connection: four goroutines, since the reading of a pipe must not wait for anything.
type simLink struct {
	h              *simHost
	client, server net.Conn
	requests       chan simFrame
	replies        chan []byte
	out            chan simFrame
	dead           chan struct{}
	once           sync.Once
}

// simFrame is a frame and the time of its arrival.
type simFrame struct {
	frame []byte
	args  []string // of a request
	due   time.Time
}

func (l *simLink) close() {
	l.once.Do(func() {
		close(l.dead)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

func (l *simLink) readClient(rng *rand.Rand) {
	defer close(l.requests)
	r := bufio.NewReader(l.client)
	for {
		frame, args, err := readRESP(r)
		if err != nil {
			return
		}
		p := simFrame{frame, args, time.Now()}
		if !isSetup(args) {
			p.due = l.h.net.later(rng)
		}
		l.requests <- p
	}
}

// run takes requests to the server, those too whose client has hung up meanwhile.
func (l *simLink) run(rng *rand.Rand) {
	defer l.close()
	n := l.h.net
	for p := range l.requests {
		// go-redis sets a connection up under a PubSub's mutex: nobody may wait for the clock there.
		if isSetup(p.args) {
			if _, err := l.server.Write(p.frame); err != nil {
				return
			}
			select {
			case reply := <-l.replies:
				if _, err := l.client.Write(reply); err == nil {
					continue
				}
			case <-l.dead:
			}
			return
		}
		fate := l.h.fate(p.args[0])
		if fate.broken {
			return
		}
		if fate.late > 0 {
			n.judge.dead(l.h, fate.late+aftermath, backend.WaiterTTL+locktest.PollInterval, "stalled %v", fate.late)
			p.due = p.due.Add(fate.late)
		}
		if !l.h.arrive(p.due, rng) {
			continue
		}
		reply := l.serve(p)
		if fate.twice && reply != nil {
			_ = l.serve(p)
		}
		if fate.lost {
			n.judge.dead(l.h, aftermath, backend.WaiterTTL+locktest.PollInterval, "reply lost")
		}
		if fate.lost || reply == nil {
			return
		}
		l.out <- simFrame{frame: reply, due: l.h.net.later(rng)}
	}
}

// serve has the server run a command, alone.
func (l *simLink) serve(p simFrame) (reply []byte) {
	n := l.h.net
	n.turn <- struct{}{}
	defer func() { <-n.turn }()
	time.Sleep(10 * time.Microsecond)
	switch n.limit--; n.limit {
	case 0:
		n.reached()
	case -tooMany:
		n.judge.fail(l.h, "there is no end of commands")
		go n.endless()
	}
	n.judge.before()
	if _, err := l.server.Write(p.frame); err == nil {
		select {
		case reply = <-l.replies:
		case <-l.dead:
		}
	}
	n.judge.after(l.h, p.args, reply)
	return reply
}

func (l *simLink) readServer(rng *rand.Rand) {
	defer l.close()
	r := bufio.NewReader(l.server)
	for {
		frame, args, err := readRESP(r)
		if err != nil {
			return
		}
		if len(args) == 3 && args[0] == "message" {
			l.h.mu.Lock()
			lost := rng.Float64() < l.h.deaf
			l.h.mu.Unlock()
			if lost {
				id, _, _ := strings.Cut(args[2], " ")
				l.h.net.judge.unheard("message lost: %s", id)
			} else {
				l.out <- simFrame{frame: frame, due: l.h.net.later(rng)}
			}
			continue
		}
		select {
		case l.replies <- frame:
		case <-l.dead:
			return
		}
	}
}

func (l *simLink) write(rng *rand.Rand) {
	for {
		select {
		case p := <-l.out:
			if l.h.arrive(p.due, rng) {
				if _, err := l.client.Write(p.frame); err != nil {
					return
				}
			}
		case <-l.dead:
			return
		}
	}
}

// isSetup tells the commands with which go-redis makes a connection.
func isSetup(args []string) bool {
	switch strings.ToLower(args[0]) {
	case "hello", "client", "auth", "select":
		return true
	}
	return false
}

// readRESP reads one RESP2 value: its bytes, and what it says if it is a flat list of strings.
func readRESP(r *bufio.Reader) (frame []byte, args []string, err error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, nil, err
	}
	n, _ := strconv.Atoi(string(bytes.TrimSpace(line[1:])))
	switch {
	case line[0] == '$' && n >= 0:
		frame = append(line, make([]byte, n+2)...)
		_, err = io.ReadFull(r, frame[len(line):])
		return frame, []string{string(frame[len(line) : len(line)+n])}, err
	case line[0] == '*' && n > 0:
		frame = line
		for range n {
			part, arg, err := readRESP(r)
			if err != nil {
				return nil, nil, err
			}
			frame = append(frame, part...)
			args = append(args, arg...)
		}
		return frame, args, nil
	}
	return line, []string{string(bytes.TrimSpace(line[1:]))}, nil
}

// showRESP makes a frame readable.
func showRESP(frame []byte) string {
	_, args, _ := readRESP(bufio.NewReader(bytes.NewReader(frame)))
	return strings.Join(args, " ")
}
