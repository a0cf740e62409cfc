package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// server is a redis-server of this program's own: on loopback, without
// persistence, in a directory of its own, and gone after stop.
type server struct {
	addr  string
	admin *redis.Client // for INFO and for preparing the database; never measured

	cmd *exec.Cmd
	dir string
}

// startServer starts redis-server from PATH. Its CPUs are the caller's: a
// program started under taskset shares its CPU with the server it measures.
// Settings are further arguments of redis-server.
func startServer(ctx context.Context, settings ...string) (*server, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, err
	}
	// The port is free when it is chosen and may be taken before the server
	// binds it; then the server exits at once and another port is tried.
	for range 3 {
		var s *server
		if s, err = tryStartServer(ctx, path, settings); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func tryStartServer(ctx context.Context, path string, settings []string) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(addr)

	dir, err := os.MkdirTemp("", "leasehold-bench-")
	if err != nil {
		return nil, err
	}
	s := &server{addr: addr, dir: dir, admin: redis.NewClient(&redis.Options{Addr: addr})}
	s.cmd = exec.Command(path, append([]string{
		"--port", port, "--bind", "127.0.0.1", "--dir", dir,
		"--save", "", "--appendonly", "no", "--loglevel", "warning",
	}, settings...)...)
	if err := s.cmd.Start(); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}

	// A server that lost the race for its port never answers with our pid.
	pid := strconv.Itoa(s.cmd.Process.Pid)
	deadline := time.Now().Add(5 * time.Second)
	for {
		info, err := s.admin.Info(ctx, "server").Result()
		if err == nil && strings.Contains(info, "process_id:"+pid+"\r\n") {
			return s, nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			s.stop()
			return nil, fmt.Errorf("redis-server on %s did not come up: %w", addr, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// stop ends the server by its process id and waits until it is gone.
func (s *server) stop() {
	s.admin.Close()
	s.cmd.Process.Kill()
	s.cmd.Wait()
	os.RemoveAll(s.dir)
}

// info is what this program reads of INFO.
type info struct {
	version string
	cpu     time.Duration    // used by the server, user and system
	reads   int64            // read(2) calls that brought commands in
	calls   map[string]int64 // by command; those made by scripts are in it
}

func (s *server) info(ctx context.Context) (info, error) {
	text, err := s.admin.Info(ctx, "server", "cpu", "stats", "commandstats").Result()
	if err != nil {
		return info{}, err
	}
	return parseInfo(text), nil
}

func parseInfo(text string) info {
	in := info{calls: map[string]int64{}}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), ":")
		if !ok {
			continue
		}
		switch name {
		case "redis_version":
			in.version = value
		case "used_cpu_sys", "used_cpu_user":
			seconds, _ := strconv.ParseFloat(value, 64)
			in.cpu += time.Duration(seconds * float64(time.Second))
		case "total_reads_processed":
			in.reads, _ = strconv.ParseInt(value, 10, 64)
		}
		if command, ok := strings.CutPrefix(name, "cmdstat_"); ok {
			calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
			in.calls[command], _ = strconv.ParseInt(calls, 10, 64)
		}
	}
	return in
}

// sent splits commands into those a library's client sent and those its
// scripts ran. INFO counts both under the same names, so the two are told apart by
// name: extra lists what the library sends outside scripts beyond the
// commands that every client may send. Connection setup is in neither.
func sent(calls map[string]int64, extra ...string) (client, script int64) {
	for command, n := range calls {
		base, _, _ := strings.Cut(command, "|")
		switch base {
		case "eval", "evalsha", "script", "ping", "wait",
			"subscribe", "unsubscribe", "ssubscribe", "sunsubscribe":
			client += n
			continue
		case "hello", "client", "info", "config", "command", "flushall", "pubsub":
			continue
		}
		if slices.Contains(extra, command) {
			client += n
		} else {
			script += n
		}
	}
	return client, script
}
