package guarantees_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// What docs/guarantees.md says and no other test shows, the violations above all: where the page says "no", two leases of
// one key are valid at once.

// Replicas are no help: they copy the empty primary.
func TestARestartWithoutPersistenceLetsASecondHolderIn(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	replica := redistest.Replica(t, s).Client()
	one, two := locktest.Process(t, s.Client(), leasehold.WithReplicas(1, time.Second)), locktest.Process(t, s.Client())
	x := locktest.Take(t, one, time.Minute)
	require.EqualValues(t, 1, replica.Exists(t.Context(), "k").Val())
	s.Restart()
	locktest.RequireTwoHolders(t, x, two)
}

func TestWithAppendfsyncAlwaysARestartForgetsNoLeaseAndNoToken(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t, "--appendonly", "yes", "--appendfsync", "always")
	c := s.Client()
	ahead := time.Now().Add(time.Hour).UnixMicro() // so that the clock alone would issue a lower one
	require.NoError(t, c.Set(t.Context(), "leasehold:counter:{k}", ahead, 2*time.Hour).Err())
	one, two := locktest.Process(t, c), locktest.Process(t, s.Client())
	x := locktest.Take(t, one, time.Minute)
	s.Restart()
	locktest.RequireHeld(t, two, "k")
	require.NoError(t, x.Renew(t.Context()))
	require.NoError(t, x.Release(t.Context()))
	require.Equal(t, x.FencingToken()+1, locktest.Take(t, two, time.Minute).FencingToken())
}

func TestAFailoverToAReplicaThatMissedTheLeaseLetsASecondHolderIn(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	r := redistest.Replica(t, s).Client()
	one, two := locktest.Process(t, s.Client()), locktest.Process(t, r)
	locktest.Cut(t, s.Client(), r)
	x := locktest.Take(t, one, time.Minute)
	s.Kill()
	locktest.Promote(t, r)
	locktest.RequireTwoHolders(t, x, two)
}

func TestWithReplicasAFailoverForgetsNoLeaseThatWasHandedOut(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	r := redistest.Replica(t, s).Client()
	one, two := locktest.Process(t, s.Client(), leasehold.WithReplicas(1, 100*time.Millisecond)), locktest.Process(t, r)
	locktest.Cut(t, s.Client(), r)
	_, err := one.TryAcquire(t.Context(), "k", time.Minute)
	var missing *fault.Replicas
	require.ErrorAs(t, err, &missing, "what the replica does not know is not handed out")
	locktest.Mend(t, r)

	x := locktest.Take(t, one, time.Minute, leasehold.WithReplicas(1, time.Second))
	locktest.Cut(t, s.Client(), r)
	s.Kill()
	locktest.Promote(t, r)
	locktest.RequireHeld(t, two, "k")
	y, err := two.Adopt(t.Context(), "k", x.Token(), time.Minute)
	require.NoError(t, err)
	require.Greater(t, y.FencingToken(), x.FencingToken(), "the replica has its counter too")
}

func TestWithReplicasAFailoverToAnotherReplicaLetsASecondHolderIn(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	knows, missed := redistest.Replica(t, s).Client(), redistest.Replica(t, s).Client()
	one, two := locktest.Process(t, s.Client(), leasehold.WithReplicas(1, 2*time.Second)), locktest.Process(t, missed)
	locktest.Cut(t, s.Client(), missed)
	locktest.Link(t, knows, "up")
	x := locktest.Take(t, one, time.Minute)
	s.Kill()
	locktest.Promote(t, missed)
	locktest.RequireTwoHolders(t, x, two)
}

// Renewals wait for no replica, so that the old primary goes on with a lease whose time runs out on the new one.
func TestAPrimaryThatWasCutOffRenewsALeaseWhichTheNewOneForgets(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	r := redistest.Replica(t, s).Client()
	one, two := locktest.Process(t, s.Client(), leasehold.WithReplicas(1, time.Second/2)), locktest.Process(t, r)
	x := locktest.Take(t, one, time.Second, leasehold.WithAutoRenew(true))
	locktest.Promote(t, r)
	locktest.RequireHeld(t, two, "k")
	locktest.RequireTwoHolders(t, x, two)
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
	one, two := locktest.Process(t, client), locktest.Process(t, client)
	known, err := one.TryAcquire(t.Context(), "known", time.Minute, leasehold.WithReplicas(1, time.Second))
	require.NoError(t, err)
	locktest.Cut(t, s.Client(), r)
	x := locktest.Take(t, one, time.Minute)
	s.Kill()
	locktest.RequireTwoHolders(t, x, two)
	locktest.RequireHeld(t, two, "known")
	require.NoError(t, known.Renew(t.Context()))
	require.ErrorIs(t, x.Renew(t.Context()), leasehold.ErrLost)
}

func TestAFailoverOfAShardLetsASecondHolderInAndSparesTheOtherShards(t *testing.T) {
	t.Parallel()
	ctx, cluster := t.Context(), redistest.Cluster(t)
	shard := cluster.Shard(rediskey.Slot("k"))
	require.NotEqual(t, shard, cluster.Shard(rediskey.Slot("other")))
	primary, replica := cluster.Nodes[shard].Client(), cluster.Replica(shard).Client()

	often := func(o *redis.ClusterOptions) { o.ClusterStateReloadInterval = 100 * time.Millisecond } // or go-redis looks once a minute
	one, two := locktest.Process(t, cluster.Client(often)), locktest.Process(t, cluster.Client(often))
	other, err := one.TryAcquire(ctx, "other", time.Minute)
	require.NoError(t, err)
	locktest.Cut(t, primary, replica)
	x := locktest.Take(t, one, time.Minute)
	cluster.Nodes[shard].Kill()
	require.NoError(t, other.Renew(ctx))
	locktest.RequireHeld(t, two, "other")
	require.NoError(t, replica.Do(ctx, "CLUSTER", "FAILOVER", "TAKEOVER").Err())
	locktest.RequireTwoHolders(t, x, two)
}

// Keys expire by the server's clock.
func TestAServersClockThatIsSetForwardLetsASecondHolderIn(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		one, two := w.Party(), w.Party()
		x := locktest.Take(t, one.Locker, time.Minute)
		locktest.RequireHeld(t, two.Locker, "k")
		w.M.FastForward(time.Minute)
		locktest.RequireTwoHolders(t, x, two.Locker)
	})
}

func TestAServersClockThatIsSetBackKeepsTheLockForLongerButNotTheLease(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		one, two := w.Party(), w.Party()
		x := locktest.Take(t, one.Locker, time.Minute)
		w.M.SetTTL("k", time.Hour+time.Minute)
		locktest.AwaitEnd(x)
		locktest.RequireHeld(t, two.Locker, "k")
		time.Sleep(time.Hour + time.Second)
		locktest.Take(t, two.Locker, time.Minute)
	})
}

// The clock that issues a lower token is that of a server set back, or of a promoted replica that is behind.
func TestFencingTokensFallOnlyIfTheCounterIsLostAndTheClockIsBehind(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for _, behind := range []bool{false, true} {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				p := w.Party()
				x := locktest.Take(t, p.Locker, time.Second)
				require.NoError(t, x.Release(t.Context()))
				time.Sleep(time.Millisecond)
				if lost {
					w.M.FlushAll()
				}
				if behind {
					w.M.SetTime(time.Now().Add(-time.Hour))
				}
				y := locktest.Take(t, p.Locker, time.Second)
				require.Equal(t, !lost || !behind, y.FencingToken() > x.FencingToken(), "lost %v, behind %v", lost, behind)
			})
		}
	}
}

// The page has a table of answers, and for each answer a row with its condition and its tests.
func TestEveryGuaranteeHasTheTestsThatShowIt(t *testing.T) {
	text, err := os.ReadFile("../docs/guarantees.md")
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
	require.NoError(t, filepath.WalkDir("..", func(file string, _ fs.DirEntry, err error) error {
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
