package redistest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// MasterName is what a Sentinel calls the primary that it watches.
const MasterName = "m"

// Sentinel starts one sentinel, which decides alone, for a primary that has
// replicas, and waits until it knows them. It finds the primary down after
// 200 ms. It returns its address, and ends with the test.
func Sentinel(t testing.TB, of *RedisServer) string {
	t.Helper()
	dir := t.TempDir()
	port := freePort(t)
	conf := filepath.Join(dir, "sentinel.conf") // it writes there what it finds out
	must(t, os.WriteFile(conf, fmt.Appendf(nil, "bind 127.0.0.1\nport %d\ndir %s\nsentinel monitor %s 127.0.0.1 %d 1\n"+
		"sentinel down-after-milliseconds %s 200\n", port, dir, MasterName, of.port, MasterName), 0o600))
	cmd := exec.Command(of.binary, conf, "--sentinel")
	dieWithParent(cmd)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })

	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	s := redis.NewSentinelClient(&redis.Options{Addr: addr})
	defer s.Close()
	primary := of.Client()
	eventually(t, "the sentinel knows the replicas", func() bool {
		replicas, _ := s.Replicas(t.Context(), MasterName).Result()
		for _, r := range replicas {
			if r["flags"] != "slave" {
				return false
			}
		}
		return len(replicas) > 0 && len(replicas) == strings.Count(primary.Info(t.Context(), "replication").Val(), ",state=online")
	})
	return addr
}
