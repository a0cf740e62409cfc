// Package rediskey names the keys that belong to a lock's key, so that all of them stand in the cluster slot of that key.
package rediskey

import (
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Slots is the number of hash slots of a Redis Cluster.
const Slots = 16384

// reserved begins the name of every key that is derived from a lock's key, after the prefix.
const reserved = "leasehold:"

// Derive appends to buf the name of the key of the given kind that belongs to the lock key, in the same cluster slot.
//
// Redis hashes the text between the first '{' and the first '}' after it, or the whole key where there is
// no such text. So there are three cases:
//
//	a{b}c   has a tag: with a prefix free of braces it keeps it          leasehold:line::a{b}c
//	abc     has none and no '}': the whole key can be the tag            leasehold:line:{abc}
//	a}b {}  has none and a '}' that would end a tag too early: a number  leasehold:line:{20658}a}b
//	        whose slot is the key's stands for it
//
// The forms cannot meet: the first alone goes on with "::", the second alone has its only '}' at the end.
// A prefix either has no braces or a whole tag of its own, which the check of the options ensures; the key, which
// begins with the prefix too, then has the same tag.
func Derive(buf []byte, prefix, kind, key string) []byte {
	buf = append(buf, prefix...)
	buf = append(buf, reserved...)
	buf = append(buf, kind...)
	switch {
	case Tagged(key):
		buf = append(buf, "::"...)
		buf = append(buf, key...)
	case strings.IndexByte(key, '}') < 0:
		buf = append(buf, ":{"...)
		buf = append(buf, key...)
		buf = append(buf, '}')
	default:
		buf = append(buf, ":{"...)
		buf = strconv.AppendUint(buf, uint64(slotTags()[Slot(key)]), 10)
		buf = append(buf, '}')
		buf = append(buf, key...)
	}
	return buf
}

// Tagged reports whether Redis hashes only a part of the key.
func Tagged(key string) bool {
	open := strings.IndexByte(key, '{')
	return open >= 0 && strings.IndexByte(key[open+1:], '}') > 0
}

// Slot returns the key's hash slot in a Redis Cluster.
func Slot(key string) int {
	if Tagged(key) {
		_, key, _ = strings.Cut(key, "{")
		key, _, _ = strings.Cut(key, "}")
	}
	crc := uint16(0)
	for i := range len(key) {
		crc = crc16(crc, key[i])
	}
	return int(crc) % Slots
}

// slotTags has, for each slot, a number whose decimal digits hash to it.
var slotTags = sync.OnceValue(func() *[Slots]uint32 {
	var tags [Slots]uint32
	for n, left := uint32(1), Slots; left > 0; n++ {
		if s := Slot(strconv.FormatUint(uint64(n), 10)); tags[s] == 0 {
			tags[s] = n
			left--
		}
	}
	return &tags
})

// crc16 adds one byte to a CRC-16/XMODEM, the checksum that the Redis Cluster specification names.
func crc16(crc uint16, b byte) uint16 {
	crc ^= uint16(b) << 8
	for range 8 {
		if crc&0x8000 != 0 {
			crc = crc<<1 ^ 0x1021
		} else {
			crc <<= 1
		}
	}
	return crc
}

// The kinds of derived keys.
const (
	Line    = "line"    // the waiters of a lock, in order of arrival
	Counter = "counter" // the fencing counter of a lock
	Marks   = "marks"   // the heartbeats of the waiters
	Undone  = "undone"  // the tombstones of cancelled attempts
	Holders = "holders" // who hold the lock together, by the time until which they do
	Grants  = "grants"  // the fencing tokens and slots of those
	Fenced  = "fenced"  // the highest fencing token that a resource has seen
	Wake    = "wake"    // a channel, not a key: it tells waiters that a lock was handed to them
)

// WakeChannel begins the name of a channel that belongs to no key, after the prefix.
const WakeChannel = reserved + Wake + ":"

// Kinds are the kinds of the keys that the scripts of a lock declare behind the lock itself, in that order.
var Kinds = [...]string{Line, Counter, Marks, Undone}

// severalKinds are those that the scripts of locks that several hold declare behind them.
var severalKinds = [...]string{Holders, Grants}

// Derived reports whether a name may be one that Derive made, without a prefix.
func Derived(name string) bool {
	rest, ok := strings.CutPrefix(name, reserved)
	kind, _, named := strings.Cut(rest, ":")
	return ok && named && (kind == Fenced || slices.Contains(Kinds[:], kind) || slices.Contains(severalKinds[:], kind))
}

// Keys are the keys of a lock as arguments of a command: the lock, then those that are derived from it, in the order in which the
// scripts declare them. They are made once for a lease, since each costs an allocation.
type Keys [1 + len(Kinds)]any

// CounterAt is the place of the fencing counter among the Keys.
const CounterAt = 2

// Lock returns the keys of the lock at that key.
func Lock(prefix, key string) (keys Keys) {
	var buf [256]byte
	all, ends := buf[:0], [len(Kinds)]int{}
	for i, kind := range Kinds {
		all = Derive(all, prefix, kind, key)
		ends[i] = len(all)
	}
	derived, start := string(all), 0
	keys[0] = key
	for i, end := range ends {
		keys[1+i] = derived[start:end]
		start = end
	}
	return keys
}

// Several returns the keys of a lock that several may hold: those of Lock, then those of the holders.
func Several(prefix, key string) []any {
	keys := Lock(prefix, key)
	return append(keys[:], string(Derive(nil, prefix, Holders, key)), string(Derive(nil, prefix, Grants, key)))
}
