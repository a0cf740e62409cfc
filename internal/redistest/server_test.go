package redistest

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestServerForgetsOrKeepsAcrossARestart(t *testing.T) {
	t.Parallel()
	forgets := Server(t)
	keeps := Server(t, "--appendonly", "yes", "--appendfsync", "always")
	for s, want := range map[*RedisServer]string{forgets: "", keeps: "v"} {
		c, pid := s.Client(func(o *redis.Options) { o.DialerRetries, o.MaxRetries = 1, -1 }), s.Pid()
		must(t, c.Set(t.Context(), "k", "v", 0).Err())
		s.Kill()
		if err := c.Ping(t.Context()).Err(); err == nil {
			t.Error("a killed server answers")
		}
		s.Restart()
		if got := c.Get(t.Context(), "k").Val(); got != want {
			t.Errorf("after the restart k = %q, want %q", got, want)
		}
		if s.Pid() == pid {
			t.Error("the process is the old one")
		}
	}
}

func TestStoppedServerAnswersOnlyWhenItGoesOn(t *testing.T) {
	t.Parallel()
	s := Server(t)
	c := s.Client(func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = 50*time.Millisecond, -1 })
	must(t, c.Ping(t.Context()).Err())
	s.Stop()
	if err := c.Incr(t.Context(), "k").Err(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a stopped server: %v, want a timeout", err)
	}
	s.Cont()
	eventually(t, "the command that timed out has run", func() bool {
		return c.Get(t.Context(), "k").Val() == "1"
	})
}

func TestReplicaFollows(t *testing.T) {
	t.Parallel()
	master := Server(t)
	replica := Replica(t, master).Client()
	if info := replica.Info(t.Context(), "replication").Val(); !strings.Contains(info, "master_link_status:up") {
		t.Errorf("Replica returned too early: %s", info)
	}
	c := master.Client()
	must(t, c.Set(t.Context(), "k", "v", 0).Err())
	if n, err := c.Wait(t.Context(), 1, patience).Result(); n != 1 || err != nil {
		t.Fatalf("WAIT = %d, %v", n, err)
	}
	if got := replica.Get(t.Context(), "k").Val(); got != "v" {
		t.Errorf("the replica has k = %q", got)
	}
}

func TestClusterServesEverySlot(t *testing.T) {
	t.Parallel()
	cluster := Cluster(t)
	for i, s := range cluster.Nodes {
		if info := s.Client().ClusterInfo(t.Context()).Val(); !strings.Contains(info, "cluster_state:ok") {
			t.Errorf("node %d is not ready: %s", i, info)
		}
	}
	c := cluster.Client()
	for _, key := range strings.Fields("a b c d e f g h i j k l m n o p") {
		must(t, c.Set(t.Context(), key, key, 0).Err())
	}
	for i, s := range cluster.Nodes {
		if n := s.Client().DBSize(t.Context()).Val(); n == 0 {
			t.Errorf("node %d has got no key", i)
		}
	}
}

func TestServerSkipsOrFailsWithoutABinary(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for require, want := range map[string]string{"": "skip", "1": "fail"} {
		t.Setenv("LEASEHOLD_REQUIRE_REDIS", require)
		rec := &recorder{TB: t}
		func() {
			defer func() { _ = recover() }()
			Server(rec)
		}()
		if rec.end != want {
			t.Errorf("LEASEHOLD_REQUIRE_REDIS=%q: %q, want %q", require, rec.end, want)
		}
	}
}

// recorder notes how a test would have ended.
type recorder struct {
	testing.TB
	end string
}

func (r *recorder) Skip(...any)  { r.end = "skip"; panic(r.end) }
func (r *recorder) Fatal(...any) { r.end = "fail"; panic(r.end) }
