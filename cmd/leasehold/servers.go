package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/diagnose"
)

const defaultServer = "127.0.0.1:6379"

// servers says where the locks are: one deployment, or the nodes of a quorum.
type servers struct {
	nodes      []node
	prefix     string
	quarantine time.Duration
	local      bool // neither the environment nor a default names a server
}

// A node is one deployment of Redis.
type node struct {
	dial func() redis.UniversalClient
	one  *redis.Options // of a single server; nil: it is a cluster or found by Sentinels
}

func (s *servers) add(text string) error {
	n, err := parseNode(text)
	if err == nil {
		s.nodes = append(s.nodes, n)
	}
	return err
}

// complete takes the server from the environment if the command line names none.
func (s *servers) complete(env string) error {
	if len(s.nodes) == 0 && !s.local {
		text := env
		if text == "" {
			text = defaultServer
		}
		if err := s.add(text); err != nil {
			return fmt.Errorf("REDIS_URL: %w", err)
		}
	}
	if n := len(s.nodes); n > 0 && n%2 == 0 {
		return fmt.Errorf("-redis is given %d times: want one, or an odd number for a quorum", n)
	}
	if s.quarantine != 0 && len(s.nodes) == 1 {
		return errors.New("-quarantine is for a quorum: want -redis at least three times")
	}
	return nil
}

// open makes a Locker for the servers, and the clients of its nodes.
func (s *servers) open(opts ...leasehold.Option) (l *leasehold.Locker, clients []redis.UniversalClient, closeAll func(), err error) {
	for _, n := range s.nodes {
		clients = append(clients, n.dial())
	}
	closeClients := func() {
		for _, c := range clients {
			_ = c.Close()
		}
	}
	opts = append(opts, leasehold.WithKeyPrefix(s.prefix))
	if len(clients) == 1 {
		l = leasehold.New(clients[0], opts...)
	} else {
		if s.quarantine != 0 {
			opts = append(opts, leasehold.WithRestartQuarantine(s.quarantine))
		}
		if l, err = leasehold.NewQuorum(clients, opts...); err != nil {
			closeClients()
			return nil, nil, nil, err
		}
	}
	return l, clients, func() { _ = l.Close(); closeClients() }, nil
}

// diagnosis is what doctor is told of the servers. The quarantine is that of a quorum, a minute by default.
func (s *servers) diagnosis(clients []redis.UniversalClient) diagnose.Config {
	c := diagnose.Config{Clients: clients, Prefix: s.prefix}
	if len(clients) > 1 {
		c.Quarantine = cmp.Or(s.quarantine, time.Minute)
	}
	return c
}

// parseNode understands host:port, the URLs of go-redis, and URLs whose scheme says that they name a cluster or
// Sentinels.
func parseNode(text string) (node, error) {
	if strings.HasPrefix(text, "/") {
		text = "unix://" + text
	}
	if !strings.Contains(text, "://") {
		if text == "" || strings.ContainsAny(text, "/?@ ") {
			return node{}, fmt.Errorf("%q is neither host:port nor a URL", text)
		}
		text = "redis://" + text
	}
	scheme, rest, _ := strings.Cut(text, "://")
	plain, kind, _ := strings.Cut(strings.Replace(scheme, "+", "-", 1), "-")
	switch kind {
	case "":
		if strings.Contains(rest, "master_name=") {
			return sentinels(text)
		}
		opt, err := redis.ParseURL(text)
		return node{func() redis.UniversalClient { return redis.NewClient(opt) }, opt}, err
	case "cluster":
		opt, err := redis.ParseClusterURL(plain + "://" + spread(rest))
		return node{dial: func() redis.UniversalClient { return redis.NewClusterClient(opt) }}, err
	case "sentinel":
		u, err := url.Parse(plain + "://" + spread(rest))
		if err != nil {
			return node{}, err
		}
		master, db, _ := strings.Cut(strings.Trim(u.Path, "/"), "/")
		if master == "" {
			return node{}, errors.New("the URL of Sentinels does not name the master: want redis-sentinel://HOST:PORT/MASTER")
		}
		q := u.Query()
		q.Set("master_name", master)
		u.Path, u.RawQuery = "/"+db, q.Encode()
		return sentinels(u.String())
	}
	return node{}, fmt.Errorf("invalid URL scheme: %s", scheme)
}

// spread puts all but the first host of a list into the query, where go-redis expects them.
func spread(rest string) string {
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	authority, tail := rest[:end], rest[end:]
	at := strings.LastIndex(authority, "@") + 1
	hosts := strings.Split(authority[at:], ",")
	for _, host := range hosts[1:] {
		if strings.Contains(tail, "?") {
			tail += "&"
		} else {
			tail += "?"
		}
		tail += "addr=" + url.QueryEscape(host)
	}
	return authority[:at] + hosts[0] + tail
}

func sentinels(text string) (node, error) {
	opt, err := redis.ParseFailoverURL(text)
	return node{dial: func() redis.UniversalClient { return redis.NewFailoverClient(opt) }}, err
}
