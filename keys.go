package leasehold

import (
	"slices"
	"strconv"
	"strings"
	"sync"
)

// slots is the number of hash slots of a Redis Cluster.
const slots = 16384

// reserved begins the name of every key that is derived from a lock's key, after the prefix.
const reserved = "leasehold:"

// derive names the key of the given kind that belongs to the lock key, in the same cluster slot.
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
// A prefix either has no braces or a whole tag of its own, which options.check sees to; the key, which
// begins with the prefix too, then has the same tag.
func derive(buf []byte, prefix, kind, key string) []byte {
	buf = append(buf, prefix...)
	buf = append(buf, reserved...)
	buf = append(buf, kind...)
	switch {
	case tagged(key):
		buf = append(buf, "::"...)
		buf = append(buf, key...)
	case strings.IndexByte(key, '}') < 0:
		buf = append(buf, ":{"...)
		buf = append(buf, key...)
		buf = append(buf, '}')
	default:
		buf = append(buf, ":{"...)
		buf = strconv.AppendUint(buf, uint64(slotTags()[slot(key)]), 10)
		buf = append(buf, '}')
		buf = append(buf, key...)
	}
	return buf
}

// tagged reports whether Redis hashes only a part of the key.
func tagged(key string) bool {
	open := strings.IndexByte(key, '{')
	return open >= 0 && strings.IndexByte(key[open+1:], '}') > 0
}

// slot is the key's hash slot in a Redis Cluster.
func slot(key string) int {
	if tagged(key) {
		_, key, _ = strings.Cut(key, "{")
		key, _, _ = strings.Cut(key, "}")
	}
	crc := uint16(0)
	for i := range len(key) {
		crc = crc16(crc, key[i])
	}
	return int(crc) % slots
}

// slotTags has, for each slot, a number whose decimal digits hash to it.
var slotTags = sync.OnceValue(func() *[slots]uint32 {
	var tags [slots]uint32
	for n, left := uint32(1), slots; left > 0; n++ {
		if s := slot(strconv.FormatUint(uint64(n), 10)); tags[s] == 0 {
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

// The kinds of derived keys, in the order of the scripts' KEYS behind the lock itself.
var kinds = [...]string{"line", "fence", "marks", "undone"}

const (
	// markKind is the kind of the key that holds a resource's high-water mark; see fencing.go.
	markKind = "fenced"
	// wakeKind is the kind of a channel; see wake.go. It is no key, but in a cluster it has a slot.
	wakeKind = "wake"

	wakeChannel = reserved + wakeKind + ":"
)

// looksDerived reports whether a name may be one that derive made, without a prefix.
func looksDerived(name string) bool {
	rest, ok := strings.CutPrefix(name, reserved)
	kind, _, named := strings.Cut(rest, ":")
	return ok && named && (kind == markKind || slices.Contains(kinds[:], kind))
}
