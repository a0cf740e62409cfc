package redistest

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// socket is the client's end of a net.Pipe. It shows go-redis what a TCP
// connection would show: the pool finds out that the other side has hung up
// before it hands the connection to a caller, and a broken connection is an
// error that go-redis retries, which io.ErrClosedPipe is not.
type socket struct {
	net.Conn
	closed atomic.Bool // by this side
}

func (s *socket) Close() error {
	s.closed.Store(true)
	return s.Conn.Close()
}

func (s *socket) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	return n, s.translate("read", err)
}

func (s *socket) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	return n, s.translate("write", err)
}

// A pipe refuses a deadline when its other end is closed; a socket leaves it to
// the next Read and Write to say so.
func (s *socket) SetDeadline(t time.Time) error      { return s.deadline(s.Conn.SetDeadline(t)) }
func (s *socket) SetReadDeadline(t time.Time) error  { return s.deadline(s.Conn.SetReadDeadline(t)) }
func (s *socket) SetWriteDeadline(t time.Time) error { return s.deadline(s.Conn.SetWriteDeadline(t)) }

func (s *socket) deadline(err error) error {
	if err != nil && !s.closed.Load() {
		return nil
	}
	return s.translate("set", err)
}

func (s *socket) translate(op string, err error) error {
	switch {
	case !errors.Is(err, io.ErrClosedPipe):
		return err
	case s.closed.Load():
		err = net.ErrClosed
	default:
		err = syscall.EPIPE
	}
	return &net.OpError{Op: op, Net: "pipe", Err: err}
}

// SyscallConn is what the pool calls to check an idle connection. A pipe whose
// other end is closed says so in spite of an expired deadline.
func (s *socket) SyscallConn() (syscall.RawConn, error) {
	_ = s.SetReadDeadline(time.Unix(0, 0))
	_, err := s.Conn.Read(nil)
	_ = s.SetReadDeadline(time.Time{})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	return nothingToRead{}, err
}

type nothingToRead struct{}

func (nothingToRead) Control(func(uintptr)) error    { return nil }
func (nothingToRead) Read(func(uintptr) bool) error  { return nil }
func (nothingToRead) Write(func(uintptr) bool) error { return nil }
