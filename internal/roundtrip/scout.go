package roundtrip

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// scouting is the least time between two scoutings of one sender.
	scouting = time.Second
	// maxScouts bounds the scouts of one scouting for each pool of connections.
	maxScouts = 256
	// lead is how long scouts have to take their connections before what was waiting for that goes
	// on.
	lead = 5 * time.Millisecond
)

// ping is the command of a scout.
type ping struct{ *redis.StatusCmd }

// NoRetry keeps go-redis from sending it again, on one connection after the other.
func (ping) NoRetry() bool { return true }

// scout takes the client's idle connections out of its pools, with a PING on each.
//
// A balancer, a firewall or a moved address can make every connection of a pool a dead one, without
// a word to either side. go-redis finds out on each by itself, one read timeout after the other, so
// a lease can end while new connections would work. A connection that a PING waits on is not given
// to anybody else. So if all are dead the next command makes a new one, if the pool has room for
// it, and the dead ones have gone after a single read timeout. If they are alive, they are back in
// the pool at once.
func (s *sender) scout(key string) {
	// The pools are those of the server's own client, where there are several servers.
	client := s.client
	if s.topology.Many() {
		node, err := s.topology.Node(context.Background(), key)
		if err != nil {
			return
		}
		client = node
	}
	commands, pipelines := suspects(client)
	for range min(commands, maxScouts) {
		s.goroutines.Go(func() {
			defer func() { _ = recover() }()
			_ = client.Process(context.Background(), newPing())
		})
	}
	for range min(pipelines, maxScouts) {
		s.goroutines.Go(func() {
			defer func() { _ = recover() }()
			pipe := client.Pipeline()
			_ = pipe.Process(context.Background(), newPing())
			_, _ = pipe.Exec(context.Background())
		})
	}
	if commands+pipelines > 0 {
		time.Sleep(lead)
	}
}

func newPing() ping { return ping{redis.NewStatusCmd(context.Background(), "ping")} }

// suspects counts a client's idle connections: of the pool for commands, and of the one for
// pipelines if there is one.
func suspects(client redis.UniversalClient) (commands, pipelines int) {
	defer func() { _ = recover() }()
	stats := client.PoolStats()
	if commands = int(stats.IdleConns); stats.PipelineStats != nil {
		pipelines = int(stats.PipelineStats.IdleConns)
	}
	return commands, pipelines
}
