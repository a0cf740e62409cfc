package diagnose

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A server is one that takes writes, and what it says of itself.
type server struct {
	*deployment
	name   string
	c      *redis.Client
	info   map[string]string // empty: INFO is denied
	config map[string]string // empty: CONFIG is denied
}

func (d *deployment) server(ctx context.Context, name string, c *redis.Client) {
	s := &server{deployment: d, name: name, c: c, info: map[string]string{}, config: map[string]string{}}
	first := s.times(ctx)
	if text, err := c.Info(ctx).Result(); err == nil {
		for line := range strings.Lines(text) {
			if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				s.info[k] = v
			}
		}
	} else {
		s.note("INFO", name, err.Error(), "Version, memory, persistence, replicas and uptime are not checked in full.", "Grant +info, or check them by hand.")
		if d.Quarantine > 0 {
			s.serious("INFO", name, "it is denied to a node of a quorum", "The quarantine of a restarted node reads the uptime from it.", "Grant +info.")
		}
	}
	for _, key := range []string{"maxmemory", "maxmemory-policy", "save", "appendfsync", "min-replicas-to-write"} {
		values, err := c.ConfigGet(ctx, key).Result()
		if err != nil {
			s.note("CONFIG", name, err.Error(), "The settings that INFO does not tell are not checked.", "Check them by hand: appendfsync, save, min-replicas-to-write.")
			break
		}
		for k, v := range values {
			s.config[k] = v
		}
	}
	s.version(ctx)
	s.memory()
	s.persistence()
	s.replicas()
	s.cluster(ctx)
	s.restarted()
	s.clock(first, s.times(ctx))
}

func (s *server) number(key string) int64 {
	n, _ := strconv.ParseInt(s.info[key], 10, 64)
	return n
}

func (s *server) version(ctx context.Context) {
	version := s.info["redis_version"]
	if version == "" {
		if hello, err := s.c.Do(ctx, "HELLO").Result(); err == nil {
			switch reply := hello.(type) {
			case map[any]any:
				version, _ = reply["version"].(string)
			case []any:
				for i := 0; i+1 < len(reply); i += 2 {
					if reply[i] == "version" {
						version, _ = reply[i+1].(string)
					}
				}
			}
		}
	}
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	switch {
	case err != nil:
		s.note("version", s.name, "it is not known", "Redis 6.0 is the oldest that works.", "Ask the server.")
	case n < 6:
		s.serious("version", s.name, version, "Redis 6.0 is the oldest that works.", "Upgrade.")
	case n < 7:
		s.note("version", s.name, version, "Before 7.0 there is no sharded pub/sub: waiters of a cluster poll once a second.", "Upgrade.")
	default:
		s.fine("version", s.name, version)
	}
}

func (s *server) memory() {
	policy := cmp.Or(s.info["maxmemory_policy"], s.config["maxmemory-policy"])
	limit, err := strconv.ParseInt(cmp.Or(s.info["maxmemory"], s.config["maxmemory"]), 10, 64)
	used := s.number("used_memory")
	switch {
	case policy == "" || err != nil:
		s.note("memory", s.name, "the limit and the eviction policy are not known", "An eviction takes a lock from its holder.", "Check that maxmemory-policy is noeviction.")
	case policy != "noeviction" && limit > 0:
		s.serious("memory", s.name, "maxmemory-policy is "+policy, "When memory is full, Redis deletes locks that are held: every lock has a TTL.", "Set maxmemory-policy noeviction.")
	case policy != "noeviction":
		s.note("memory", s.name, "maxmemory-policy is "+policy+", without a limit", "With a limit Redis would delete locks that are held.", "Set maxmemory-policy noeviction before maxmemory.")
	case limit > 0 && used > limit/10*9:
		s.note("memory", s.name, fmt.Sprintf("%d %% of maxmemory are used", used*100/limit), "When memory is full, no lock can be taken or renewed.", "Free memory or raise maxmemory.")
	default:
		s.fine("memory", s.name, "maxmemory-policy is noeviction")
	}
}

func (s *server) persistence() {
	aof, known := s.info["aof_enabled"]
	switch {
	case s.info["loading"] == "1":
		s.serious("persistence", s.name, "it is loading its data", "It serves nobody until then.", "Wait.")
	case s.info["aof_last_write_status"] == "err" || s.info["rdb_last_bgsave_status"] == "err":
		s.serious("persistence", s.name, "the last write to disk failed", "By default Redis then refuses all writes.", "Look at the disk and at the server's log.")
	case !known:
		s.note("persistence", s.name, "it is not known", "What is not on disk is forgotten by a restart.", "Check appendonly and save.")
	case s.Quarantine > 0:
		s.fine("persistence", s.name, "the quarantine covers what a restart forgets")
	case aof == "1" && s.config["appendfsync"] == "always":
		s.fine("persistence", s.name, "appendfsync is always: a restart forgets no lease")
	case aof == "1":
		s.note("persistence", s.name, "appendfsync is "+cmp.Or(s.config["appendfsync"], "not known"), "A restart may forget the leases of the last second, and then two holders trust one lock.", "Check fencing tokens, or set appendfsync always.")
	default:
		s.note("persistence", s.name, "there is no append-only file", "A restart forgets leases, and then two holders trust one lock until the first one's next renewal.", "Check fencing tokens, set appendonly yes, or use a quorum.")
	}
}

func (s *server) replicas() {
	role, known := s.info["role"]
	if !known {
		return
	}
	if role == "slave" {
		s.serious("replicas", s.name, "it is a replica", "It takes no writes.", "Use the address of the primary, or Sentinels.")
		return
	}
	n := s.number("connected_slaves")
	for i := range n {
		fields := map[string]string{}
		for field := range strings.SplitSeq(s.info[fmt.Sprintf("slave%d", i)], ",") {
			k, v, _ := strings.Cut(field, "=")
			fields[k] = v
		}
		if lag, _ := strconv.Atoi(fields["lag"]); fields["state"] != "online" || lag > 5 {
			s.note("replicas", s.name, fmt.Sprintf("replica %s:%s is %s, %d s behind", fields["ip"], fields["port"], fields["state"], lag),
				"A failover to it forgets the leases that it has not seen.", "Look at its network and its load.")
		}
	}
	least := s.config["min-replicas-to-write"]
	switch {
	case n == 0:
		s.fine("replicas", s.name, "there are none")
	case least == "0":
		s.note("replicas", s.name, fmt.Sprintf("%d, and min-replicas-to-write is 0", n), "A primary that is cut off goes on serving, beside the one that replaced it.", "Set min-replicas-to-write 1 and min-replicas-max-lag 10.")
	default:
		s.fine("replicas", s.name, fmt.Sprintf("%d, and min-replicas-to-write is %s", n, cmp.Or(least, "not known")))
	}
}

func (s *server) cluster(ctx context.Context) {
	_, client := s.client.(*redis.ClusterClient)
	enabled, known := s.info["cluster_enabled"]
	if known && enabled == "1" && !client {
		s.serious("cluster", s.name, "it is a node of a cluster, and the client is for one server", "Most keys are on other nodes.", "Use a cluster client (redis-cluster://).")
	}
	if !client {
		return
	}
	state, err := s.c.ClusterInfo(ctx).Result()
	nodes, err2 := s.c.ClusterNodes(ctx).Result()
	if err = cmp.Or(err, err2); err != nil {
		s.note("cluster", s.name, err.Error(), "The state of the cluster is not checked.", "Grant +cluster|info +cluster|nodes, or check it by hand.")
		return
	}
	ok := true
	if !strings.Contains(state, "cluster_state:ok") {
		ok = false
		s.serious("cluster", s.name, "its state is not ok", "The cluster serves no keys, or not all.", "redis-cli --cluster check")
	}
	for line := range strings.Lines(nodes) {
		if open := strings.Index(line, "["); open >= 0 && strings.Contains(line, "myself") {
			ok = false
			s.serious("cluster", s.name, "slots are open: "+strings.TrimSpace(line[open:]), "Leases in an open slot are renewed, but none may be taken there.", "If no reshard is under way: redis-cli --cluster fix")
		}
	}
	if ok {
		s.fine("cluster", s.name, "its state is ok, and no slot is open")
	}
}

// restarted looks for a quarantine that is not over, and for servers that are behind two clients.
func (s *server) restarted() {
	if run := s.info["run_id"]; run != "" {
		s.runs[run] = true
	}
	up := time.Duration(s.number("uptime_in_seconds")) * time.Second
	if _, known := s.info["uptime_in_seconds"]; !known || s.Quarantine == 0 {
		return
	}
	if left := s.Quarantine - up; left > 0 {
		s.waiting = max(s.waiting, left)
		s.note("quarantine", s.name, fmt.Sprintf("restarted %v ago, and in quarantine for another %v", up, left), "It does not vote until every lease that it may have forgotten has expired.", "Restart no other node until then.")
	} else {
		s.fine("quarantine", s.name, "over")
	}
}

// A timing is one look at the server's clock.
type timing struct {
	at    time.Time     // in the middle of the round trip
	ahead time.Duration // of our clock
	trip  time.Duration
}

// times looks ten times, and returns the looks by the length of their round trips.
func (s *server) times(ctx context.Context) (all []timing) {
	for range 10 {
		start := time.Now()
		now, err := s.c.Time(ctx).Result()
		if err != nil {
			break
		}
		trip := time.Since(start)
		middle := start.Add(trip / 2)
		all = append(all, timing{middle, now.Sub(middle), trip})
	}
	slices.SortFunc(all, func(a, b timing) int { return cmp.Compare(a.trip, b.trip) })
	return all
}

// slow is a round trip that asks for attention.
const slow = 100 * time.Millisecond

func (s *server) clock(first, last []timing) {
	if len(first) == 0 || len(last) == 0 {
		s.note("clock", s.name, "TIME is denied or fails", "The clock and the latency are not checked.", "Grant +time.")
		return
	}
	a, b := first[0], last[0] // the shortest trips tell the time best
	step, doubt := (b.ahead - a.ahead).Abs(), (a.trip+b.trip)/2+10*time.Millisecond
	switch {
	case step > doubt:
		s.serious("clock", s.name, fmt.Sprintf("it went %v against ours within %v", (b.ahead-a.ahead).Round(time.Millisecond), b.at.Sub(a.at).Round(time.Millisecond)),
			"A clock that is set forward ends leases early, while their holders trust them.", "Have NTP slew the clocks, and not step them.")
	case a.ahead.Abs() > time.Second+a.trip:
		s.note("clock", s.name, fmt.Sprintf("it is %v ahead of ours", a.ahead.Round(time.Millisecond)),
			"A difference may come from a clock that was set, and clocks that differ break the order of fencing tokens after a failover that loses the counter.", "Synchronise the clocks with NTP.")
	default:
		s.fine("clock", s.name, fmt.Sprintf("%v ahead of ours, and steady", a.ahead.Round(time.Millisecond)))
	}
	trips := append(slices.Clone(first), last...)
	slices.SortFunc(trips, func(a, b timing) int { return cmp.Compare(a.trip, b.trip) })
	median, longest := trips[len(trips)/2].trip, trips[len(trips)-1].trip
	text := fmt.Sprintf("round trips take %v in the middle and %v at most", median.Round(time.Microsecond), longest.Round(time.Microsecond))
	least := max(time.Second, (100 * longest).Round(time.Second))
	if longest > slow {
		s.note("latency", s.name, text, "A renewal needs a round trip, and room for another try.", fmt.Sprintf("Use a TTL of %v or more.", least))
		return
	}
	s.fine("latency", s.name, text+fmt.Sprintf("; a TTL of %v or more leaves room for retries", least))
}
