package script

import (
	"fmt"
	"strconv"
	"time"

	"github.com/go-leasehold/leasehold/internal/fault"
)

// maxPTTL bounds what is believed of a key that somebody else has set.
const maxPTTL = 10 * 365 * 24 * int64(time.Hour/time.Millisecond)

// Int reads a whole number.
func Int(reply any) (int, error) {
	n, ok := reply.(int64)
	if !ok {
		return 0, fmt.Errorf("%w: %v for a number", fault.ErrReply, reply)
	}
	return int(n), nil
}

// FencingToken reads a fencing token: a number, or its digits where Lua has no exact number any more. None is below 1.
func FencingToken(reply any) (int64, error) {
	n, ok := reply.(int64)
	if s, isText := reply.(string); isText {
		var err error
		n, err = strconv.ParseInt(s, 10, 64)
		ok = err == nil
	}
	if !ok || n < 1 {
		return 0, fmt.Errorf("%w: %v for a fencing token", fault.ErrReply, reply)
	}
	return n, nil
}

// PTTL reads what PTTL answers: the time that a key has left, 0 if there is no key, or that the key lives for ever.
func PTTL(reply any) (left time.Duration, forever bool, err error) {
	ms, ok := reply.(int64)
	if !ok {
		return 0, false, fmt.Errorf("%w: %v for a PTTL", fault.ErrReply, reply)
	}
	return time.Duration(min(max(ms, 0), maxPTTL)) * time.Millisecond, ms == -1, nil
}
