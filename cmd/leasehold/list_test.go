package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

func TestListFindsLocksUnderEveryFormOfTheirNames(t *testing.T) {
	srv := redistest.Server(t)
	client := srv.Client()
	plain := leasehold.New(client, leasehold.WithOwner("ash"))
	prefixed := leasehold.New(client, leasehold.WithKeyPrefix("app:"))
	defer plain.Close()
	defer prefixed.Close()
	for _, key := range []string{"invoice:7", "{tenant}:7", "a}b", "x\ny"} {
		_, err := plain.TryAcquire(t.Context(), key, time.Minute)
		require.NoError(t, err)
	}
	_, err := prefixed.TryAcquire(t.Context(), "invoice:8", time.Minute)
	require.NoError(t, err)
	free, err := plain.TryAcquire(t.Context(), "free", time.Minute)
	require.NoError(t, err)
	require.NoError(t, free.Release(t.Context()))

	keys := func(args ...string) (keys []string) {
		status, out, errs := call("", append([]string{"list", "-json", "-redis", srv.Addr()}, args...)...)
		require.Zero(t, status, errs)
		for line := range strings.Lines(out) {
			var l lockJSON
			require.NoError(t, json.Unmarshal([]byte(line), &l))
			assert.Equal(t, l.Key != "free", l.Held)
			keys = append(keys, l.Key)
		}
		return keys
	}
	assert.Equal(t, []string{"app:invoice:8", "a}b", "invoice:7", "x\ny", "{tenant}:7"}, keys())
	assert.Equal(t, []string{"invoice:7"}, keys("-prefix", "invoice:"))
	assert.Equal(t, []string{"app:invoice:8"}, keys("-prefix", "app:"))
	assert.Equal(t, []string{"free"}, keys("-prefix", "f", "-all"))

	_, out, _ := call("", "list", "-redis", srv.Addr(), "-prefix", "x")
	assert.Regexp(t, `^KEY     HOLDER  EXPIRES IN  WAITING  FENCING TOKEN\n"x\\ny"  ash     (1m0s|59\.\ds) +0        \d+\n$`, out)
}

func TestListAndInspectWorkOnAClusterAndThroughASentinel(t *testing.T) {
	cluster := redistest.Cluster(t)
	client := cluster.Client()
	locker := leasehold.New(client)
	defer locker.Close()
	for _, key := range []string{"a", "b", "c", "d"} {
		_, err := locker.TryAcquire(t.Context(), key, time.Minute)
		require.NoError(t, err)
	}
	url := "redis-cluster://" + strings.Join(client.Options().Addrs, ",")
	status, out, errs := call("", "list", "-redis", url)
	require.Zero(t, status, errs)
	assert.Equal(t, 5, strings.Count(out, "\n"), out)
	status, _, errs = call("", "inspect", "-redis", url, "a", "b")
	assert.Zero(t, status, errs)

	primary := redistest.Server(t)
	redistest.Replica(t, primary)
	sentinel := redistest.Sentinel(t, primary)
	single := leasehold.New(primary.Client())
	defer single.Close()
	_, err := single.TryAcquire(t.Context(), "k", time.Minute)
	require.NoError(t, err)
	for _, url := range []string{
		"redis-sentinel://" + sentinel + "/" + redistest.MasterName, "redis://" + sentinel + "?master_name=" + redistest.MasterName,
	} {
		status, _, errs := call("", "inspect", "-redis", url, "k")
		assert.Zero(t, status, "%s: %s", url, errs)
	}
}

func TestAQuorumIsNamedByItsNodes(t *testing.T) {
	var args []string
	var nodes []redis.UniversalClient
	for range 3 {
		m, client := redistest.Mini(t)
		nodes, args = append(nodes, client), append(args, "-redis", m.Addr())
	}
	locker, err := leasehold.NewQuorum(nodes, leasehold.WithRestartQuarantine(0))
	require.NoError(t, err)
	defer locker.Close()
	_, err = locker.TryAcquire(t.Context(), "k", time.Minute)
	require.NoError(t, err)
	status, out, errs := call("", append([]string{"inspect", "k"}, args...)...)
	assert.Zero(t, status, errs)
	assert.Contains(t, out, "held           yes")
	status, out, errs = call("", append([]string{"list"}, args...)...)
	assert.Zero(t, status, errs)
	assert.Contains(t, out, "\nk  ")
}

// A notebook may be written by one goroutine and awaited by another.
type notebook chan string

func (n notebook) Write(text []byte) (int, error) { n <- string(text); return len(text), nil }

func (n notebook) await(t *testing.T, part string) {
	t.Helper()
	late := time.After(20 * time.Second)
	var got strings.Builder
	for !strings.Contains(got.String(), part) {
		select {
		case text := <-n:
			got.WriteString(text)
		case <-late:
			require.Contains(t, got.String(), part)
		}
	}
}

func TestWatchTellsEachChangeUntilItIsInterrupted(t *testing.T) {
	m, client := redistest.Mini(t)
	locker := leasehold.New(client, leasehold.WithOwner("ash"))
	defer locker.Close()
	for _, tt := range []struct{ flag, free, held, trouble string }{
		{"-json=false", "  free, 0 waiting", "  held by ash, expires in 1m0s, 0 waiting, fencing token ", "cannot look: "},
		{"-json", `"held":false`, `"held":true,"owner":"ash","ttl_ms":60000,"fencing_token":`, `"error":"`},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		out, ended := make(notebook, 100), make(chan int, 1)
		go func() {
			p := &program{ctx: ctx, out: out, errw: out}
			ended <- p.run([]string{"watch", "-redis", m.Addr(), "-every", "10ms", tt.flag, "k"})
		}()
		out.await(t, tt.free)
		lease, err := locker.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		out.await(t, tt.held)
		m.SetError("LOADING")
		out.await(t, tt.trouble)
		m.SetError("")
		require.NoError(t, lease.Release(t.Context()))
		out.await(t, tt.free)
		cancel()
		assert.Zero(t, <-ended)
	}
}

func TestVersionSaysWhatItIs(t *testing.T) {
	status, out, _ := call("", "version")
	assert.Zero(t, status)
	assert.Regexp(t, `^leasehold \S+, go1\S+, \w+/\w+\n$`, out)
	_, out, _ = call("", "version", "-json")
	assert.Regexp(t, `^\{"version":"\S+","go":"go1\S+","os":"\w+","arch":"\w+"\}\n$`, out)
}

func TestARestAndSeveralHoldersAreShown(t *testing.T) {
	m, client := redistest.Mini(t)
	locker := leasehold.New(client)
	defer locker.Close()
	for range 2 {
		_, err := locker.TryAcquire(t.Context(), "pool", time.Minute, leasehold.WithSlots(3))
		require.NoError(t, err)
	}
	lease, err := locker.TryAcquire(t.Context(), "cron", time.Minute, leasehold.WithMinHold(time.Minute))
	require.NoError(t, err)
	require.NoError(t, lease.Release(t.Context()))
	status, out, errs := call("", "inspect", "-redis", m.Addr(), "pool", "cron")
	assert.Zero(t, status, errs)
	assert.Contains(t, out, "yes, by 2 holders")
	assert.Contains(t, out, "it rests")
	_, out, _ = call("", "inspect", "-json", "-redis", m.Addr(), "pool", "cron")
	assert.Contains(t, out, `"holders":2`)
	assert.Contains(t, out, `"resting":true`)
	_, out, _ = call("", "list", "-redis", m.Addr())
	assert.Contains(t, out, "(2 holders)")
	assert.Contains(t, out, "(rests)")
}
