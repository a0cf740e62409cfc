package leasehold

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// What docs/guarantees.md says and no other test shows, the violations above all: where the page says "no", two leases of
// one key are valid at once.

// process is a Locker of a process of its own.
func process(t *testing.T, client redis.UniversalClient, opts ...Option) *Locker {
	l := New(client, opts...)
	t.Cleanup(func() {
		for _, x := range leases(l.keeper.Live()) {
			_ = x.end(ErrReleased) // the server may be gone, and Close would look for it
		}
		_ = l.Close()
	})
	return l
}

func take(t *testing.T, l *Locker, ttl time.Duration, opts ...Option) *Lease {
	t.Helper()
	x, err := l.TryAcquire(t.Context(), "k", ttl, opts...)
	require.NoError(t, err)
	return x
}

// requireTwoHolders takes the lock of x as well. Only their fencing tokens tell the two apart.
func requireTwoHolders(t *testing.T, x *Lease, l *Locker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	y, err := l.Acquire(ctx, x.Key(), time.Minute)
	require.NoError(t, err)
	require.True(t, x.Valid(), "the first lease")
	require.True(t, y.Valid(), "the second lease")
	require.Greater(t, y.FencingToken(), x.FencingToken())
}

func requireHeld(t *testing.T, l *Locker, key string) {
	t.Helper()
	_, err := l.TryAcquire(t.Context(), key, time.Minute)
	require.ErrorIs(t, err, ErrHeld)
}

// link waits until a replica's link to its primary is up, or down.
func link(t *testing.T, replica *redis.Client, status string) {
	t.Helper()
	require.Eventually(t, func() bool {
		return strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:"+status)
	}, 10*time.Second, 5*time.Millisecond, "the link is not %s", status)
}

// cut ends the links of all replicas of a primary, and this one's for good: it comes back with a password that is refused.
func cut(t *testing.T, primary, replica *redis.Client) {
	t.Helper()
	require.NoError(t, replica.ConfigSet(t.Context(), "masterauth", "wrong").Err())
	require.NoError(t, primary.ClientKillByFilter(t.Context(), "TYPE", "replica").Err())
	link(t, replica, "down")
}

func mend(t *testing.T, replica *redis.Client) {
	t.Helper()
	require.NoError(t, replica.ConfigSet(t.Context(), "masterauth", "").Err())
	link(t, replica, "up")
}

func promote(t *testing.T, replica *redis.Client) {
	t.Helper()
	require.NoError(t, replica.ReplicaOf(t.Context(), "NO", "ONE").Err())
}

// Replicas are no help: they copy the empty primary.
func TestARestartWithoutPersistenceLetsASecondHolderIn(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	replica := redistest.Replica(t, s).Client()
	one, two := process(t, s.Client(), WithReplicas(1, time.Second)), process(t, s.Client())
	x := take(t, one, time.Minute)
	require.EqualValues(t, 1, replica.Exists(t.Context(), "k").Val())
	s.Restart()
	requireTwoHolders(t, x, two)
}

func TestWithAppendfsyncAlwaysARestartForgetsNoLeaseAndNoToken(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t, "--appendonly", "yes", "--appendfsync", "always")
	c := s.Client()
	ahead := time.Now().Add(time.Hour).UnixMicro() // so that the clock alone would issue a lower one
	require.NoError(t, c.Set(t.Context(), "leasehold:fence:{k}", ahead, 2*time.Hour).Err())
	one, two := process(t, c), process(t, s.Client())
	x := take(t, one, time.Minute)
	s.Restart()
	requireHeld(t, two, "k")
	require.NoError(t, x.Renew(t.Context()))
	require.NoError(t, x.Release(t.Context()))
	require.Equal(t, x.FencingToken()+1, take(t, two, time.Minute).FencingToken())
}

func TestAFailoverToAReplicaThatMissedTheLeaseLetsASecondHolderIn(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	r := redistest.Replica(t, s).Client()
	one, two := process(t, s.Client()), process(t, r)
	cut(t, s.Client(), r)
	x := take(t, one, time.Minute)
	s.Kill()
	promote(t, r)
	requireTwoHolders(t, x, two)
}

func TestWithReplicasAFailoverForgetsNoLeaseThatWasHandedOut(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	r := redistest.Replica(t, s).Client()
	one, two := process(t, s.Client(), WithReplicas(1, 100*time.Millisecond)), process(t, r)
	cut(t, s.Client(), r)
	_, err := one.TryAcquire(t.Context(), "k", time.Minute)
	var missing *fault.Replicas
	require.ErrorAs(t, err, &missing, "what the replica does not know is not handed out")
	mend(t, r)

	x := take(t, one, time.Minute, WithReplicas(1, time.Second))
	cut(t, s.Client(), r)
	s.Kill()
	promote(t, r)
	requireHeld(t, two, "k")
	y, err := two.Adopt(t.Context(), "k", x.Token(), time.Minute)
	require.NoError(t, err)
	require.Greater(t, y.FencingToken(), x.FencingToken(), "the replica has its counter too")
}

func TestWithReplicasAFailoverToAnotherReplicaLetsASecondHolderIn(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	knows, missed := redistest.Replica(t, s).Client(), redistest.Replica(t, s).Client()
	one, two := process(t, s.Client(), WithReplicas(1, 2*time.Second)), process(t, missed)
	cut(t, s.Client(), missed)
	link(t, knows, "up")
	x := take(t, one, time.Minute)
	s.Kill()
	promote(t, missed)
	requireTwoHolders(t, x, two)
}

// Renewals wait for no replica, so that the old primary goes on with a lease whose time runs out on the new one.
func TestAPrimaryThatWasCutOffRenewsALeaseWhichTheNewOneForgets(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	r := redistest.Replica(t, s).Client()
	one, two := process(t, s.Client(), WithReplicas(1, time.Second/2)), process(t, r)
	x := take(t, one, time.Second, WithAutoRenew(true))
	promote(t, r)
	requireHeld(t, two, "k")
	requireTwoHolders(t, x, two)
	require.NoError(t, x.Renew(t.Context()))
}

// sentinelOf starts a sentinel of its own for the primary, and returns a client that follows it.
func sentinelOf(t *testing.T, primary *redistest.RedisServer) redis.UniversalClient {
	t.Helper()
	c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: redistest.MasterName, SentinelAddrs: []string{redistest.Sentinel(t, primary)}})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestAFailoverBySentinelIsWaitedOutAndKeepsWhatTheReplicaKnew(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	r := redistest.Replica(t, s).Client()
	client := sentinelOf(t, s)
	one, two := process(t, client), process(t, client)
	known, err := one.TryAcquire(t.Context(), "known", time.Minute, WithReplicas(1, time.Second))
	require.NoError(t, err)
	cut(t, s.Client(), r)
	x := take(t, one, time.Minute)
	s.Kill()
	requireTwoHolders(t, x, two)
	requireHeld(t, two, "known")
	require.NoError(t, known.Renew(t.Context()))
	require.ErrorIs(t, x.Renew(t.Context()), ErrLost)
}

func TestAFailoverOfAShardLetsASecondHolderInAndSparesTheOtherShards(t *testing.T) {
	t.Parallel()
	ctx, cluster := t.Context(), redistest.Cluster(t)
	shard := cluster.Shard(rediskey.Slot("k"))
	require.NotEqual(t, shard, cluster.Shard(rediskey.Slot("other")))
	primary, replica := cluster.Nodes[shard].Client(), cluster.Replica(shard).Client()

	often := func(o *redis.ClusterOptions) { o.ClusterStateReloadInterval = 100 * time.Millisecond } // or go-redis looks once a minute
	one, two := process(t, cluster.Client(often)), process(t, cluster.Client(often))
	other, err := one.TryAcquire(ctx, "other", time.Minute)
	require.NoError(t, err)
	cut(t, primary, replica)
	x := take(t, one, time.Minute)
	cluster.Nodes[shard].Kill()
	require.NoError(t, other.Renew(ctx))
	requireHeld(t, two, "other")
	require.NoError(t, replica.Do(ctx, "CLUSTER", "FAILOVER", "TAKEOVER").Err())
	requireTwoHolders(t, x, two)
}

// Keys expire by the server's clock.
func TestAServersClockThatIsSetForwardLetsASecondHolderIn(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		one, two := w.party(), w.party()
		x := take(t, one.Locker, time.Minute)
		requireHeld(t, two.Locker, "k")
		w.m.FastForward(time.Minute)
		requireTwoHolders(t, x, two.Locker)
	})
}

func TestAServersClockThatIsSetBackKeepsTheLockForLongerButNotTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		one, two := w.party(), w.party()
		x := take(t, one.Locker, time.Minute)
		w.m.SetTTL("k", time.Hour+time.Minute)
		awaitEnd(x)
		requireHeld(t, two.Locker, "k")
		time.Sleep(time.Hour + time.Second)
		take(t, two.Locker, time.Minute)
	})
}

// The clock that issues a lower token is that of a server set back, or of a promoted replica that is behind.
func TestFencingTokensFallOnlyIfTheCounterIsLostAndTheClockIsBehind(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for _, behind := range []bool{false, true} {
			inBubble(t, func(t *testing.T, w *world) {
				p := w.party()
				x := take(t, p.Locker, time.Second)
				require.NoError(t, x.Release(t.Context()))
				time.Sleep(time.Millisecond)
				if lost {
					w.m.FlushAll()
				}
				if behind {
					w.m.SetTime(time.Now().Add(-time.Hour))
				}
				y := take(t, p.Locker, time.Second)
				require.Equal(t, !lost || !behind, y.FencingToken() > x.FencingToken(), "lost %v, behind %v", lost, behind)
			})
		}
	}
}

// The page has a table of answers, and for each answer a row with its condition and its tests.
func TestEveryGuaranteeHasTheTestsThatShowIt(t *testing.T) {
	text, err := os.ReadFile("docs/guarantees.md")
	require.NoError(t, err)
	type cell struct{ row, column string }
	section, columns, answers, rows := "", []string{}, map[cell]string{}, map[cell]string{}
	for line := range strings.Lines(string(text)) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.ToLower(strings.TrimSpace(heading))
		}
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 7 || strings.Contains(line, "---") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch cells = cells[1 : len(cells)-1]; {
		case section == "" && cells[0] == "":
			columns = cells[1:]
		case section == "":
			row, _, _ := strings.Cut(cells[0][1:], "]")
			for i, column := range columns {
				answers[cell{strings.ToLower(row), column}] = cells[i+1]
			}
		case cells[0] != "":
			where, answer := section+", "+cells[0], cells[1]
			rows[cell{section, cells[0]}] = answer
			require.Contains(t, []string{"yes", "no", "yes, if", "–"}, answer, where)
			require.NotEmpty(t, cells[2], where)
			if strings.HasPrefix(answer, "yes") {
				require.NotEmpty(t, cells[3], "%s: what shows it", where)
			}
			if answer == "no" || answer == "yes, if" {
				require.NotEmpty(t, cells[4], "%s: what shows the violation", where)
			}
		}
	}
	require.Len(t, answers, 8*7)
	for c, answer := range answers {
		row, ok := rows[c]
		if !ok {
			row = rows[cell{"on all of them", c.column}]
		}
		require.Equal(t, row, answer, "%v", c)
	}
	requireTests(t, string(text))
}

// requireTests requires that there are the tests which a page names.
func requireTests(t *testing.T, text string) {
	t.Helper()
	exist := map[string]bool{}
	require.NoError(t, filepath.WalkDir(".", func(file string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		source, err := os.ReadFile(file)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(source, -1) {
			exist[string(m[1])] = true
		}
		return err
	}))
	for _, name := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(text, -1) {
		require.True(t, exist[name[1]], "there is no %s", name[1])
	}
}
