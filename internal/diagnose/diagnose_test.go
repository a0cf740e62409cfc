package diagnose_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/diagnose"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

func look(t *testing.T, c diagnose.Config) (byCheck map[string][]diagnose.Finding, err error) {
	t.Helper()
	found, err := diagnose.Run(t.Context(), c)
	byCheck = map[string][]diagnose.Finding{}
	for _, f := range found {
		byCheck[f.Check] = append(byCheck[f.Check], f)
		if f.Level > slog.LevelInfo {
			assert.NotEmpty(t, f.Why, f)
			assert.NotEmpty(t, f.Advice, f)
		}
	}
	return byCheck, err
}

func one(client redis.UniversalClient, prefix string) diagnose.Config {
	return diagnose.Config{Clients: []redis.UniversalClient{client}, Prefix: prefix}
}

func serious(found map[string][]diagnose.Finding) (checks []string) {
	for check, all := range found {
		for _, f := range all {
			if f.Level >= slog.LevelError {
				checks = append(checks, check+": "+f.Found)
			}
		}
	}
	return checks
}

func TestASoundServerHasNothingSeriousAndNothingIsLeftThere(t *testing.T) {
	srv := redistest.Server(t, "--appendonly", "yes", "--appendfsync", "always", "--maxmemory", "100mb")
	client := srv.Client()
	found, err := look(t, one(client, "app:"))
	require.NoError(t, err)
	assert.Empty(t, serious(found))
	for check, all := range found {
		assert.Equal(t, slog.LevelInfo, all[0].Level, "%s: %v", check, all)
	}
	for _, check := range []string{"version", "memory", "persistence", "replicas", "clock", "latency", "rights", "messages"} {
		assert.Len(t, found[check], 1, check)
	}
	assert.Zero(t, client.DBSize(t.Context()).Val())
}

func TestEachSettingThatIsWrongIsFound(t *testing.T) {
	srv := redistest.Server(t)
	client := srv.Client()
	for _, tt := range []struct {
		key, value, check, found string
		level                    slog.Level
	}{
		{"appendonly", "no", "persistence", "no append-only file", slog.LevelWarn},
		{"maxmemory-policy", "volatile-lru", "memory", "without a limit", slog.LevelWarn},
		{"maxmemory", "100mb", "memory", "maxmemory-policy is volatile-lru", slog.LevelError},
	} {
		require.NoError(t, client.ConfigSet(t.Context(), tt.key, tt.value).Err())
		found, err := look(t, one(client, ""))
		require.NoError(t, err)
		require.Len(t, found[tt.check], 1)
		assert.Contains(t, found[tt.check][0].Found, tt.found)
		assert.Equal(t, tt.level, found[tt.check][0].Level)
	}
	redistest.Replica(t, srv)
	found, err := look(t, one(client, ""))
	require.NoError(t, err)
	assert.Contains(t, found["replicas"][0].Found, "min-replicas-to-write is 0")
}

func TestTheDocumentedRightsAreEnoughAndEachMissingOneIsNamed(t *testing.T) {
	srv := redistest.Server(t)
	admin := srv.Client()
	rule := "on >secret resetkeys ~app:* resetchannels &app:* -@all +evalsha +eval +get +mget +set +del +exists +pexpire +expire +pttl " +
		"+incr +time +zadd +zcard +zpopmin +zrange +zrangebyscore +zrank +zrem +zscore +hget +hmget +hset +hdel +hgetall +zcount +pexpireat " +
		"+publish +subscribe +unsubscribe +ping +hello"
	with := func(more string) map[string][]diagnose.Finding {
		args := []any{"ACL", "SETUSER", "billing", "reset"}
		for _, word := range strings.Fields(rule + " " + more) {
			args = append(args, word)
		}
		require.NoError(t, admin.Do(t.Context(), args...).Err())
		client := srv.Client(func(o *redis.Options) { o.Username, o.Password, o.DisableIdentity = "billing", "secret", true })
		found, err := look(t, one(client, "app:"))
		require.NoError(t, err)
		return found
	}
	found := with("")
	assert.Empty(t, serious(found))
	assert.Contains(t, found["INFO"][0].Found, "NOPERM")
	assert.Contains(t, found["CONFIG"][0].Found, "NOPERM")
	assert.True(t, strings.HasPrefix(found["version"][0].Found, "7."), "HELLO tells the version")
	for _, command := range []string{
		"get", "mget", "set", "del", "exists", "pexpire", "expire", "pttl", "incr", "zadd", "zcard", "zpopmin", "zrange",
		"zrangebyscore", "zrank", "zrem", "zscore", "hget", "hmget", "hset", "hdel", "evalsha",
	} {
		found := with("-" + command)
		require.NotEmpty(t, serious(found), command)
		assert.Contains(t, serious(found)[0], "rights: "+strings.ToUpper(command)+": ")
	}
	assert.Contains(t, serious(with("resetkeys ~other:*"))[0], "no script can be run")
	for _, command := range []string{"hgetall", "zcount", "pexpireat"} {
		found := with("-" + command)
		assert.Empty(t, serious(found))
		assert.Equal(t, slog.LevelWarn, found["rights"][0].Level)
		assert.Contains(t, found["rights"][0].Found, strings.ToUpper(command)+": ")
	}
	found = with("resetchannels")
	assert.Empty(t, serious(found))
	assert.Equal(t, slog.LevelWarn, found["messages"][0].Level)
	assert.Empty(t, admin.Keys(t.Context(), "*").Val())
}

func TestTheNodesOfAQuorumAndOfAClusterAreLookedAt(t *testing.T) {
	a, b := redistest.Server(t), redistest.Server(t)
	nodes := []redis.UniversalClient{a.Client(), b.Client(), b.Client()}
	found, err := look(t, diagnose.Config{Clients: nodes, Quarantine: time.Minute})
	require.NoError(t, err)
	assert.Len(t, found["quarantine"], 3)
	assert.Contains(t, found["nodes"][0].Found, "the same server as node 1")
	assert.Contains(t, found["quorum"][0].Found, "3 of 3 nodes do not vote")

	cluster := redistest.Cluster(t)
	client := cluster.Client()
	found, err = look(t, one(client, ""))
	require.NoError(t, err)
	assert.Empty(t, serious(found))
	assert.Len(t, found["cluster"], 3)
	assert.Equal(t, slog.LevelInfo, found["messages"][0].Level)
}

func TestAServerThatIsAwayIsAnError(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer client.Close()
	found, err := look(t, one(client, ""))
	require.ErrorContains(t, err, "refused")
	assert.Len(t, found["reachable"], 1)

	m, mini := redistest.Mini(t)
	m.SetTime(time.Now().Add(time.Hour))
	found, err = look(t, one(mini, ""))
	require.NoError(t, err)
	assert.Contains(t, found["clock"][0].Found, "ahead of ours")
	assert.Equal(t, slog.LevelWarn, found["clock"][0].Level)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = diagnose.Run(ctx, one(mini, ""))
	require.ErrorIs(t, err, context.Canceled)
}
