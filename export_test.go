package leasehold

import (
	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/redis/go-redis/v9"
)

// What the external tests of this folder need of the inside.

func NewOn(b backend.Backend) *Locker { return newLocker(b, nil, options{}) }

func NewStore(client redis.UniversalClient) backend.Backend { return newStore(client, "") }
