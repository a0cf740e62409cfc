package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/go-leasehold/leasehold/examples/postgres/internal/servers"
)

// What the tests talk to: servers of their own.
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
		s, err := servers.Connect(context.Background(), os.Getenv(postgresEnv), os.Getenv(redisEnv))
		check(err)
		db, client = s.DB, s.Redis
		zombie()
		return
	}
	os.Exit(withServers(m.Run))
}

// withServers runs the tests between the start and the end of the servers.
func withServers(run func() int) int {
	ctx := context.Background()
	s, err := servers.Start(ctx)
	if missing := new(servers.MissingError); errors.As(err, &missing) {
		fmt.Fprintln(os.Stderr, "postgres:", missing)
		if os.Getenv("LEASEHOLD_REQUIRE_POSTGRES") == "1" || os.Getenv("LEASEHOLD_REQUIRE_REDIS") == "1" {
			return 1
		}
		return 0
	}
	check(err)
	defer s.Stop()
	db, client = s.DB, s.Redis
	check(os.Setenv(postgresEnv, s.PostgresDSN))
	check(os.Setenv(redisEnv, s.RedisSocket))
	_, err = db.Exec(ctx, Schema)
	check(err)
	return run()
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
