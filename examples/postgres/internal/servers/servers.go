// Package servers starts a PostgreSQL and a Redis for one run of a program: on Unix sockets in a temporary folder, and
// gone at the end.
package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// Servers are clients of both servers, and what another process needs to reach them.
type Servers struct {
	DB    *pgxpool.Pool
	Redis *redis.Client

	PostgresDSN, RedisSocket string

	stops []func() // in the order of the starts
}

// MissingError names what is not installed, as Debian does.
type MissingError struct{ Packages []string }

func (e *MissingError) Error() string {
	return fmt.Sprintf("not installed: %s (Debian: apt-get install -y %s)",
		strings.Join(e.Packages, ", "), strings.Join(e.Packages, " "))
}

// programs are the paths of what is to be run.
type programs struct{ initdb, postgres, redis string }

// Installed returns a MissingError if a program is not there.
func Installed() error {
	_, err := find()
	return err
}

func find() (p programs, err error) {
	missing := &MissingError{}
	var initdbErr, postgresErr error
	p.initdb, initdbErr = findPostgres("initdb")
	p.postgres, postgresErr = findPostgres("postgres")
	if initdbErr != nil || postgresErr != nil {
		missing.Packages = append(missing.Packages, "postgresql")
	}
	if p.redis, err = exec.LookPath("redis-server"); err != nil {
		missing.Packages = append(missing.Packages, "redis-server")
	}
	if len(missing.Packages) > 0 {
		return p, missing
	}
	return p, nil
}

// findPostgres also looks where Debian hides the server's programs.
func findPostgres(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name); len(found) > 0 {
			return found[len(found)-1], nil
		}
	}
	return path, err
}

// Start starts both and returns when they answer. The caller stops them. The error is a MissingError if a program is
// not installed; after any error nothing runs.
func Start(ctx context.Context) (_ *Servers, err error) {
	p, err := find()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "leasehold")
	if err != nil {
		return nil, err
	}
	s := &Servers{PostgresDSN: "host=" + dir + " user=postgres dbname=postgres", RedisSocket: filepath.Join(dir, "redis.sock")}
	s.stops = append(s.stops, func() { os.RemoveAll(dir) })
	defer func() {
		if err != nil {
			s.Stop()
		}
	}()

	command, err := commands(dir)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	out, err := command(p.initdb, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	for _, cmd := range []*exec.Cmd{
		command(p.postgres, "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off"),
		command(p.redis, "--port", "0", "--unixsocket", s.RedisSocket, "--save", "", "--dir", dir),
	} {
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		s.stops = append(s.stops, func() { end(cmd) })
	}
	if err := s.connect(ctx); err != nil {
		return nil, err
	}
	return s, errors.Join(
		await(ctx, "PostgreSQL", s.DB.Ping),
		await(ctx, "Redis", func(ctx context.Context) error { return s.Redis.Ping(ctx).Err() }))
}

// Connect returns clients of servers that another process has started. Its Stop closes the clients.
func Connect(ctx context.Context, postgresDSN, redisSocket string) (*Servers, error) {
	s := &Servers{PostgresDSN: postgresDSN, RedisSocket: redisSocket}
	return s, s.connect(ctx)
}

func (s *Servers) connect(ctx context.Context) (err error) {
	if s.DB, err = pgxpool.New(ctx, s.PostgresDSN); err != nil {
		return err
	}
	s.Redis = redis.NewClient(&redis.Options{Network: "unix", Addr: s.RedisSocket})
	s.stops = append(s.stops, func() { _ = s.Redis.Close() }, s.DB.Close)
	return nil
}

// Stop closes the clients, ends the servers, and removes the folder.
func (s *Servers) Stop() {
	for i := len(s.stops) - 1; i >= 0; i-- {
		s.stops[i]()
	}
	s.stops = nil
}

// commands returns a function that makes commands which run in dir and, as PostgreSQL refuses to be root, under
// another name if need be.
func commands(dir string) (func(name string, args ...string) *exec.Cmd, error) {
	var credential *syscall.Credential
	if os.Geteuid() == 0 {
		account, err := user.Lookup("postgres")
		if err != nil {
			account, err = user.Lookup("nobody")
		}
		if err != nil {
			return nil, err
		}
		uid, errUID := strconv.ParseUint(account.Uid, 10, 32)
		gid, errGID := strconv.ParseUint(account.Gid, 10, 32)
		if err := errors.Join(errUID, errGID, os.Chown(dir, int(uid), int(gid))); err != nil {
			return nil, err
		}
		credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	return func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
		return cmd
	}, nil
}

// end ends a server and waits until it is gone.
func end(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(syscall.SIGINT) // PostgreSQL's fast shutdown
	killer := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
	defer killer.Stop()
	_ = cmd.Wait()
}

// await asks until there is an answer.
func await(ctx context.Context, what string, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w", what, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
