package leasehold

import (
	"fmt"
	"strconv"
	"time"
)

// answer is what acquire.lua says.
type answer struct {
	state   string // granted, or as the script says it
	fence   int64  // granted: the lease's fencing token; waiting: the last one given
	left    time.Duration
	forever bool // the key has no TTL
	found   bool // granted: before this call, so by a release, or by a command that was sent before
	// Nobody holds the lock, but of a long line this run has only cleared dead places away: ask again.
	uncleared bool
	// Of one who waits:
	rank    int   // how many stand before it
	now     int64 // the server's time in µs
	foreign bool  // the holder is no client of ours
	why     int   // gone: why an adoption finds no lease, as lost.lua says it
}

// reason is what one has to wait for who was not granted the lock.
func (a answer) reason() error {
	if a.forever {
		return errHeldForever
	}
	return ErrHeld
}

const (
	granted = "GRANTED"
	held    = "HELD"
	waiting = "WAITING"
	gone    = "GONE"
)

// The answers of release.lua, but for those of lost.lua.
const (
	releasedLock  = 1
	releasedPlace = 2
)

// What lost.lua says.
const (
	notHeld     = -1
	heldByOther = -2
	tokenSpent  = -3
	notALock    = -4
)

// decodeAcquire reads a reply of acquire.lua: an integer, its digits, or a list.
func decodeAcquire(reply any) (answer, error) {
	list, ok := reply.([]any)
	if !ok {
		f, err := decodeFence(reply)
		_, isText := reply.(string)
		return answer{state: granted, fence: f, found: isText && f < 1<<53}, err
	}
	var a answer
	if len(list) > 0 {
		a.state, _ = list[0].(string)
	}
	var err error
	switch {
	case a.state == gone && len(list) == 1:
		return a, nil
	case a.state == gone && len(list) == 2:
		if a.why, err = decodeInt(list[1]); err == nil && a.why < 0 {
			return a, nil
		}
	case a.state == held && len(list) == 2:
		err = a.decodeLeft(list[1])
		return a, err
	case a.state == waiting && len(list) == 6:
		err = a.decodeWaiting(list)
		return a, err
	}
	return answer{}, fmt.Errorf("%w: %v to acquire", errReply, reply)
}

func (a *answer) decodeWaiting(list []any) (err error) {
	if a.fence, err = decodeFence(list[1]); err != nil {
		return err
	}
	if err = a.decodeLeft(list[2]); err != nil {
		return err
	}
	if a.rank, err = decodeInt(list[3]); err != nil {
		return err
	}
	if a.now, err = decodeFence(list[4]); err != nil {
		return err
	}
	foreign, err := decodeInt(list[5])
	a.foreign = foreign == 1
	return err
}

func (a *answer) decodeLeft(reply any) (err error) {
	a.uncleared = reply == any(int64(-2))
	a.left, a.forever, err = decodeLeft(reply)
	return err
}

// decodeState reads the reply of inspect.lua.
func decodeState(key string, reply any) (LockState, error) {
	list, ok := reply.([]any)
	if !ok || len(list) != 4 {
		return LockState{}, fmt.Errorf("%w: %v to inspect", errReply, reply)
	}
	s := LockState{Key: key}
	token, _ := list[0].(string)
	left, forever, err := decodeLeft(list[1])
	if err != nil {
		return LockState{}, err
	}
	if ms, _ := list[1].(int64); ms != -2 {
		s.Held, s.Owner, s.TTL = true, ownerOf(token), left
		if forever {
			s.TTL = -1
		}
	}
	if list[2] != "" {
		if s.FencingToken, err = decodeFence(list[2]); err != nil {
			return LockState{}, err
		}
	}
	s.Waiters, err = decodeInt(list[3])
	return s, err
}

// decodeFence reads a fencing token, or the server's time, which most of them are; no lease has one below 1.
func decodeFence(reply any) (int64, error) {
	n, ok := reply.(int64)
	if s, isText := reply.(string); isText {
		var err error
		n, err = strconv.ParseInt(s, 10, 64)
		ok = err == nil
	}
	if !ok || n < 1 {
		return 0, fmt.Errorf("%w: %v for a fencing token", errReply, reply)
	}
	return n, nil
}

// decodeLeft reads a PTTL.
func decodeLeft(reply any) (left time.Duration, forever bool, err error) {
	ms, ok := reply.(int64)
	if !ok {
		return 0, false, fmt.Errorf("%w: %v for a PTTL", errReply, reply)
	}
	ms = min(ms, maxTTL.Milliseconds()) // somebody else's key may have any
	return time.Duration(max(ms, 0)) * time.Millisecond, ms == -1, nil
}

func decodeInt(reply any) (int, error) {
	n, ok := reply.(int64)
	if !ok {
		return 0, fmt.Errorf("%w: %v for a number", errReply, reply)
	}
	return int(n), nil
}
