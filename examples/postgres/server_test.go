package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// What the tests talk to: servers of their own, on Unix sockets in a temporary folder.
var (
	db     *pgxpool.Pool
	client *redis.Client
)

const (
	postgresEnv = "LEASEHOLD_TEST_POSTGRES" // the connection string, for the zombie
	redisEnv    = "LEASEHOLD_TEST_REDIS"    // the socket
)

func TestMain(m *testing.M) {
	if os.Getenv(zombieEnv) != "" {
		connect(os.Getenv(postgresEnv), os.Getenv(redisEnv))
		zombie()
		return
	}
	os.Exit(withServers(m.Run))
}

// withServers runs the tests between the start and the end of the servers.
func withServers(run func() int) int {
	redisServer, missing := exec.LookPath("redis-server")
	initdb, err := findPostgres("initdb")
	missing = errors.Join(missing, err)
	server, err := findPostgres("postgres")
	missing = errors.Join(missing, err)
	if missing != nil {
		fmt.Fprintln(os.Stderr, "postgres: the tests need redis-server and PostgreSQL (Debian: redis-server, postgresql):", missing)
		if os.Getenv("LEASEHOLD_REQUIRE_POSTGRES") == "1" || os.Getenv("LEASEHOLD_REQUIRE_REDIS") == "1" {
			return 1
		}
		return 0
	}

	dir, err := os.MkdirTemp("", "leasehold")
	check(err)
	defer os.RemoveAll(dir)
	command := commands(dir)

	data := filepath.Join(dir, "data")
	if out, err := command(initdb, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync").CombinedOutput(); err != nil {
		panic(fmt.Sprintf("initdb: %v\n%s", err, out))
	}
	defer start(command(server, "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off"))()
	socket := filepath.Join(dir, "redis.sock")
	defer start(command(redisServer, "--port", "0", "--unixsocket", socket, "--save", "", "--dir", dir))()

	dsn := "host=" + dir + " user=postgres dbname=postgres"
	check(os.Setenv(postgresEnv, dsn))
	check(os.Setenv(redisEnv, socket))
	connect(dsn, socket)
	defer db.Close()
	defer client.Close()
	await("PostgreSQL", func() error { return db.Ping(context.Background()) })
	await("Redis", func() error { return client.Ping(context.Background()).Err() })
	_, err = db.Exec(context.Background(), Schema)
	check(err)
	return run()
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

// commands returns a function that makes commands which run in dir and, as PostgreSQL refuses to be root, under
// another name if need be.
func commands(dir string) func(name string, args ...string) *exec.Cmd {
	var credential *syscall.Credential
	if os.Geteuid() == 0 {
		account, err := user.Lookup("postgres")
		if err != nil {
			account, err = user.Lookup("nobody")
		}
		check(err)
		uid, err := strconv.ParseUint(account.Uid, 10, 32)
		check(err)
		gid, err := strconv.ParseUint(account.Gid, 10, 32)
		check(err)
		credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		check(os.Chown(dir, int(uid), int(gid)))
	}
	return func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
		return cmd
	}
}

// start starts a server and returns the function that stops it.
func start(cmd *exec.Cmd) (stop func()) {
	check(cmd.Start())
	return func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // PostgreSQL's fast shutdown
		killer := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		defer killer.Stop()
		_ = cmd.Wait()
	}
}

func connect(dsn, redisSocket string) {
	var err error
	db, err = pgxpool.New(context.Background(), dsn)
	check(err)
	client = redis.NewClient(&redis.Options{Network: "unix", Addr: redisSocket})
}

func await(what string, ready func() error) {
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := ready()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			panic(fmt.Sprintf("%s does not answer: %v", what, err))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
