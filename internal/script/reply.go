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

// List reads the elements of a reply one after another. The first element that is not what was asked for is kept as Err; what is
// read after it is zero.
type List struct {
	left []any
	Err  error
}

// Elements begins to read a list.
func Elements(list []any) *List { return &List{left: list} }

// next takes the next element, nil if there is none or an error has come before.
func (l *List) next() (element any) {
	if l.Err == nil && len(l.left) > 0 {
		element, l.left = l.left[0], l.left[1:]
	}
	return element
}

// note keeps the first error.
func (l *List) note(err error) {
	if l.Err == nil {
		l.Err = err
	}
}

// Word reads the next element, "" if it is no text.
func (l *List) Word() string {
	word, _ := l.next().(string)
	return word
}

// Int reads the next element as Int does.
func (l *List) Int() int {
	n, err := Int(l.next())
	l.note(err)
	return n
}

// FencingToken reads the next element as FencingToken does.
func (l *List) FencingToken() int64 {
	n, err := FencingToken(l.next())
	l.note(err)
	return n
}

// PTTL reads the next element as PTTL does. Missing reports that there is no key.
func (l *List) PTTL() (left time.Duration, forever, missing bool) {
	element := l.next()
	left, forever, err := PTTL(element)
	l.note(err)
	return left, forever, element == any(int64(-2))
}
