package redistest

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"
)

// ProxyServer is a TCP proxy in front of a Redis.
type ProxyServer struct {
	Wire
	listener net.Listener
}

// Proxy starts a proxy on a loopback port that forwards to target. It ends
// with the test. A cluster client does not stay behind a proxy: its nodes tell
// it their own addresses.
func Proxy(t testing.TB, target string) *ProxyServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &ProxyServer{listener: l}
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			if !p.admit() {
				_ = client.Close()
				continue
			}
			server, err := net.DialTimeout("tcp", target, time.Second)
			if err != nil {
				_ = client.Close()
				continue
			}
			p.connect(client, server)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-accepting
		p.Close()
	})
	return p
}

// Addr returns the host and port of the proxy.
func (p *ProxyServer) Addr() string { return p.listener.Addr().String() }

// DialFault is a Proxy without a socket: what it dials goes through its faults.
type DialFault struct {
	Wire
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// FaultyDialer wraps a dialer, in a bubble the one that Bubble puts into the
// options of a client:
//
//	var wire *redistest.DialFault
//	c := dial(func(o *redis.Options) {
//		wire = redistest.FaultyDialer(o.Dialer)
//		o.Dialer = wire.Dial
//	})
//
// Its goroutines end with the connections, that is with the client; only what
// is delayed by more than a minute needs a Close.
func FaultyDialer(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *DialFault {
	return &DialFault{dial: dial}
}

// Dial is a dialer for redis.Options.
func (d *DialFault) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if !d.admit() {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	server, err := d.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	client, far := net.Pipe()
	d.connect(far, server)
	return &socket{Conn: client}, nil
}
