package redistest

import (
	"bufio"
	"net"
	"slices"
	"sync"
	"time"
)

// Wire is the faults that a Proxy and a FaultyDialer share. It reads the
// traffic as RESP, request by request and reply by reply.
//
// The commands with which go-redis sets a connection up (HELLO, CLIENT, …)
// are delayed and swallowed like all others, but no counted fault counts
// them: "the next request" is the test's, on whichever connection it comes.
//
// Methods may be called at any time from any goroutine.
type Wire struct {
	mu      sync.Mutex // guards all below; never held across I/O
	mode    mode
	delay   time.Duration
	request cut
	reply   cut
	drop    counted
	twice   counted
	links   map[*link]struct{}
	dialed  int
	closed  bool

	wg sync.WaitGroup // the goroutines of the links
}

type mode int

const (
	pass mode = iota
	blackHole
	refuse
)

// counted is a fault of the next n requests with one of the names; no names
// means all.
type counted struct {
	n     int
	names []string
}

func (c *counted) take(name string) bool {
	if c.n == 0 || len(c.names) > 0 && !slices.Contains(c.names, name) {
		return false
	}
	c.n--
	return true
}

// cut ends a connection after some bytes more of one direction.
type cut struct {
	armed bool
	left  int
}

// take returns how much of a frame of n bytes is let through, and whether that
// is the end.
func (c *cut) take(n int) (through int, end bool) {
	if !c.armed {
		return n, false
	}
	if c.left > n {
		c.left -= n
		return n, false
	}
	c.armed = false
	return c.left, true
}

// Pass forwards from now on. What was swallowed before stays lost.
func (w *Wire) Pass() { w.set(pass) }

// BlackHole keeps connections open, accepts new ones, swallows everything in
// both directions and never answers.
func (w *Wire) BlackHole() { w.set(blackHole) }

// Refuse cuts all connections and turns new ones away.
func (w *Wire) Refuse() { w.set(refuse); w.Cut() }

func (w *Wire) set(m mode) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mode = m
}

// Cut cuts all connections that are open now, and loses what is delayed in them.
func (w *Wire) Cut() {
	for _, l := range w.open() {
		l.cut()
	}
}

// Forget swallows everything on the connections that are open now, and tells
// neither side, as a balancer does that has forgotten them. New ones work.
func (w *Wire) Forget() {
	links := w.open()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range links {
		l.forgotten = true
	}
}

// open returns the connections that are open now.
func (w *Wire) open() []*link {
	w.mu.Lock()
	defer w.mu.Unlock()
	links := make([]*link, 0, len(w.links))
	for l := range w.links {
		links = append(links, l)
	}
	return links
}

// CutRequest lets n more bytes of requests through and cuts the connection
// that carried the last of them.
func (w *Wire) CutRequest(n int) { w.arm(&w.request, n) }

// CutReply lets n more bytes of replies and messages through and cuts the
// connection that carried the last of them.
func (w *Wire) CutReply(n int) { w.arm(&w.reply, n) }

func (w *Wire) arm(c *cut, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*c = cut{armed: true, left: n}
}

// DropReplies forwards each of the next n requests, and when it has been
// answered cuts its connection instead of passing the reply. If names are
// given (in lower case), only those commands count.
//
// On a connection that has subscribed, replies and messages cannot be told
// apart: there the next of either is dropped.
func (w *Wire) DropReplies(n int, names ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop = counted{n, names}
}

// Duplicate forwards the next request twice and swallows the second reply. If
// names are given (in lower case), only those commands count. Requests on a
// connection that has subscribed do not count.
func (w *Wire) Duplicate(names ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.twice = counted{1, names}
}

// Delay makes requests and replies that come from now on arrive d later, in
// order. Like on a real network, a request still arrives if its client hangs up
// in the meantime.
func (w *Wire) Delay(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delay = d
}

// Connections counts the connections that clients have made so far, refused
// ones included.
func (w *Wire) Connections() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dialed
}

// Close cuts all connections, turns new ones away and waits until no goroutine
// is left.
func (w *Wire) Close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.Refuse()
	w.wg.Wait()
}

// admit counts a client and reports whether it may connect.
func (w *Wire) admit() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dialed++
	return w.mode != refuse && !w.closed
}

// connect begins to relay between client and server. The Wire owns both from
// now on.
func (w *Wire) connect(client, server net.Conn) {
	l := &link{wire: w, client: client, server: server, dead: make(chan struct{})}
	w.mu.Lock()
	if w.closed || w.mode == refuse {
		w.mu.Unlock()
		l.cut()
		return
	}
	if w.links == nil {
		w.links = map[*link]struct{}{}
	}
	w.links[l] = struct{}{}
	w.wg.Add(1)
	w.mu.Unlock()

	go func() {
		defer w.wg.Done()
		var both sync.WaitGroup
		both.Go(func() {
			l.relay(client, l.forward)
			_ = server.Close()
		})
		both.Go(func() {
			l.relay(server, l.answer)
			_ = client.Close()
		})
		both.Wait()
		w.mu.Lock()
		delete(w.links, l)
		w.mu.Unlock()
	}()
}

// link is one connection.
type link struct {
	wire           *Wire
	client, server net.Conn
	dead           chan struct{} // closed once by cut, under once
	once           sync.Once

	// Guarded by wire.mu.
	owed       []fate // of the replies that the server still owes, in order
	subscribed bool
	dropNext   bool // what the server sends next, on a subscribed link
	forgotten  bool
}

// fate is what becomes of a reply.
type fate int

const (
	deliver fate = iota
	exempt       // deliver, and do not count its bytes
	swallow
	sever // swallow, and cut the link
)

func (l *link) cut() {
	l.once.Do(func() { close(l.dead) })
	_ = l.client.Close()
	_ = l.server.Close()
}

// relay reads frames from conn and hands each to handle when it is due, until
// conn ends and all of them are handled, or the link is cut.
func (l *link) relay(conn net.Conn, handle func(frame []byte)) {
	type arrival struct {
		frame []byte
		due   time.Time
	}
	// Reading must not wait for handling: a miniredis that cannot write a
	// message to one subscriber serves nobody.
	arrivals := make(chan arrival, 1<<8)
	go func() {
		defer close(arrivals)
		r := bufio.NewReader(conn)
		for {
			frame, err := readFrame(r)
			if err != nil {
				return
			}
			l.wire.mu.Lock()
			delay := l.wire.delay
			l.wire.mu.Unlock()
			arrivals <- arrival{frame, time.Now().Add(delay)}
		}
	}()
	for a := range arrivals {
		if wait := time.Until(a.due); wait > 0 {
			select {
			case <-time.After(wait):
			case <-l.dead:
			}
		}
		select {
		case <-l.dead: // what is left is lost; the reader ends with its conn
		default:
			handle(a.frame)
		}
	}
}

// forward takes a request to the server.
func (l *link) forward(frame []byte) {
	part, times, end := l.request(frame)
	if end {
		_ = l.client.Close() // before the server can answer
	}
	for range times {
		send(l.server, part)
	}
	if end {
		l.cut()
	}
}

// request decides how much of a request is sent, how often, and whether the
// link ends with it.
func (l *link) request(frame []byte) (part []byte, times int, end bool) {
	w := l.wire
	w.mu.Lock()
	defer w.mu.Unlock()

	name := requestName(frame)
	if w.mode != pass || l.forgotten {
		return nil, 0, false
	}
	if setup(name) {
		l.owed = append(l.owed, exempt)
		return frame, 1, false
	}
	if n, end := w.request.take(len(frame)); end {
		return frame[:n], 1, true
	}
	drop := w.drop.take(name)
	if l.subscribed || isSubscribe(name) {
		l.subscribed = true
		l.dropNext = l.dropNext || drop
		return frame, 1, false
	}
	if drop {
		l.owed = append(l.owed, sever)
	} else {
		l.owed = append(l.owed, deliver)
	}
	if w.twice.take(name) {
		l.owed = append(l.owed, swallow)
		return frame, 2, false
	}
	return frame, 1, false
}

// answer takes a reply or a message to the client.
func (l *link) answer(frame []byte) {
	part, end := l.reply(frame)
	send(l.client, part)
	if end {
		l.cut()
	}
}

// reply decides how much of a reply or message is sent, and whether the link
// ends with it.
func (l *link) reply(frame []byte) (part []byte, end bool) {
	w := l.wire
	w.mu.Lock()
	defer w.mu.Unlock()

	f := deliver
	if l.subscribed {
		if l.dropNext {
			f = sever
		}
	} else if frame[0] != '>' && len(l.owed) > 0 { // a push is no reply
		f, l.owed = l.owed[0], l.owed[1:]
	}
	switch {
	case w.mode != pass, l.forgotten, f == swallow:
		return nil, false
	case f == sever:
		return nil, true
	case f == exempt:
		return frame, false
	}
	n, end := w.reply.take(len(frame))
	return frame[:n], end
}

func isSubscribe(name string) bool {
	return name == "subscribe" || name == "psubscribe" || name == "ssubscribe"
}

// send writes b. A failed write is no event of its own: the reader of the same
// connection sees the end as well.
func send(conn net.Conn, b []byte) {
	if len(b) > 0 { // on a net.Pipe an empty write would wait for a reader
		_, _ = conn.Write(b)
	}
}
