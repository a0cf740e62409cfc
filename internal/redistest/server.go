package redistest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// patience is how long a real Redis may take for anything a test waits for.
const patience = 15 * time.Second

// RedisServer is a redis-server process that belongs to one test. Its methods
// are for the goroutine of that test.
type RedisServer struct {
	t      testing.TB
	binary string
	dir    string
	port   int
	args   []string

	cmd  *exec.Cmd
	gone chan struct{} // closed when cmd has ended
}

// Server starts the redis-server found on PATH, on a free loopback port and in
// a directory of its own, and kills it when the test ends. It keeps nothing on
// disk unless args, which follow the arguments of its own, say so. Without a
// redis-server the test is skipped, or fails if LEASEHOLD_REQUIRE_REDIS is 1.
func Server(t testing.TB, args ...string) *RedisServer {
	t.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		if os.Getenv("LEASEHOLD_REQUIRE_REDIS") == "1" {
			t.Fatal("LEASEHOLD_REQUIRE_REDIS=1, but there is no redis-server on PATH")
		}
		t.Skip("no redis-server on PATH")
	}
	s := &RedisServer{t: t, binary: binary, dir: t.TempDir(), args: args}
	t.Cleanup(s.Kill)
	// Somebody else may take the port between our look and the server's.
	for range 3 {
		s.port = freePort(t)
		if err = s.start(); err == nil {
			return s
		}
		s.Kill()
	}
	t.Fatal(err)
	return nil
}

// Addr returns the host and port of the server.
func (s *RedisServer) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Pid returns the process id; Restart changes it.
func (s *RedisServer) Pid() int { return s.cmd.Process.Pid }

// Client returns a client that is closed with the test.
func (s *RedisServer) Client(opts ...func(*redis.Options)) *redis.Client {
	opt := &redis.Options{Addr: s.Addr()}
	for _, o := range opts {
		o(opt)
	}
	c := redis.NewClient(opt)
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Stop freezes the process. The kernel still accepts connections for it.
func (s *RedisServer) Stop() { s.signal("STOP") }

// Cont lets a stopped process go on.
func (s *RedisServer) Cont() { s.signal("CONT") }

// Kill ends the process at once, stopped or not. It may be called again.
func (s *RedisServer) Kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		<-s.gone
	}
}

// Restart kills the process if it runs and starts a new one with the same
// arguments, port and directory.
func (s *RedisServer) Restart() {
	s.t.Helper()
	s.Kill()
	if err := s.start(); err != nil {
		s.t.Fatal(err)
	}
}

// signal asks kill(1), because syscall has no SIGSTOP on Windows, where this
// package has to compile.
func (s *RedisServer) signal(name string) {
	s.t.Helper()
	if out, err := exec.Command("kill", "-"+name, strconv.Itoa(s.Pid())).CombinedOutput(); err != nil {
		s.t.Fatalf("kill -%s: %v: %s", name, err, out)
	}
}

func (s *RedisServer) start() error {
	log, err := os.OpenFile(filepath.Join(s.dir, "redis.log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()

	cmd := exec.Command(s.binary, append([]string{
		"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.dir,
		"--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0",
	}, s.args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	dieWithParent(cmd)
	if err := cmd.Start(); err != nil {
		return err
	}
	gone := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(gone)
	}()
	s.cmd, s.gone = cmd, gone

	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if s.ready() {
			return nil
		}
		select {
		case <-gone:
			out, _ := os.ReadFile(log.Name())
			return fmt.Errorf("redis-server ended at once:\n%s", out)
		case <-time.After(5 * time.Millisecond):
		}
	}
	return fmt.Errorf("redis-server on port %d does not answer", s.port)
}

// ready reports whether our process, and no other on the same port, answers
// PING.
func (s *RedisServer) ready() bool {
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := io.WriteString(conn, "PING\r\nINFO server\r\n"); err != nil {
		return false
	}
	r := bufio.NewReader(conn)
	pong, err := readFrame(r)
	if err != nil {
		return false
	}
	if bytes.HasPrefix(pong, []byte("-NOAUTH")) {
		return true // up, and not to be asked who it is
	}
	info, err := readFrame(r)
	return err == nil && pong[0] == '+' &&
		bytes.Contains(info, fmt.Appendf(nil, "process_id:%d\r\n", s.Pid()))
}

// freePort looks below the range that the kernel takes client ports from, so
// that no connection sits on the port when the server restarts. The port of
// the cluster bus, 10000 higher, is free too.
func freePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := 11000 + rand.IntN(11000)
		if free(port) && free(port+10000) {
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

func free(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	_ = l.Close()
	return true
}

// Replica starts a replica of a server and waits until it follows.
func Replica(t testing.TB, of *RedisServer) *RedisServer {
	t.Helper()
	s := Server(t, "--replicaof", "127.0.0.1", strconv.Itoa(of.port))
	c := s.Client()
	eventually(t, "replica follows", func() bool {
		return strings.Contains(c.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	// The primary sends it writes, and counts it, only after its first acknowledgement; it is "online" before. A message is
	// passed on as writes are, and leaves no key.
	primary := of.Client()
	eventually(t, "primary counts its replicas", func() bool {
		replicas := strings.Count(primary.Info(t.Context(), "replication").Val(), ",state=")
		pipe := primary.Pipeline()
		pipe.Publish(t.Context(), "redistest", "here?")
		acks := pipe.Do(t.Context(), "WAIT", replicas, 100)
		_, _ = pipe.Exec(t.Context())
		n, _ := acks.Int()
		return n >= replicas
	})
	return s
}

// eventually polls a real server until ok, and fails the test if that takes
// too long.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("after %v still not: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
