// Package token makes and reads the values that prove who has a lock.
//
// A token is the value at the key that proves one acquisition. It has four parts, with points between:
//
//	locker id . wake id . secret [. owner label]
//
// The first of the points says what kind of lease the token is for, so that whoever hands the lock over knows: '.' for an
// exclusive one, '~' for one of [Shared], '#' for one of [Slots], whose wake id begins with four digits, the number of slots.
//
// The locker id names the wake channel of the waiter's process. The wake id names the waiter in the message that tells it
// of its grant, which therefore need not carry the token: whoever listens on the channel learns no secret. The wake id is
// random too, and nobody hears it before the grant, so a message can be forged only by those who can read the line.
// The scripts cut both ids out of a token by their places; acquire.lua tells by the points whether a holder is one of ours.
//
// A lock that rests has the token of its last lease with restMark behind the secret: see finish.lua.
package token

import (
	"crypto/rand"
	"fmt"
	"strconv"
)

// restMark stands at ownerAt-1 in the value of a lock that rests. A token has a point there, or its end.
const restMark = '!'

// The parts of a token, in characters.
const (
	idLength     = 16 // 80 bits
	wakeIDLength = 13 // 65 bits
	secretLength = 26 // 130 bits

	wakeIDAt = idLength + 1
	secretAt = wakeIDAt + wakeIDLength + 1
	ownerAt  = secretAt + secretLength + 1
)

// MaxOwner is the longest owner label, in bytes.
const MaxOwner = 64

// NewID makes the id of a Locker.
func NewID() string { return string(appendRandom(nil, idLength)) }

// Kind is the kind of a lease, as it stands in its token: Exclusive, Shared, or one of Slots.
type Kind string

// The kinds of leases that have no number.
const (
	Exclusive Kind = ""
	Shared    Kind = "~"
)

// MaxSlots is the highest number of slots. A script reads all of them when it gives one away.
const MaxSlots = 1000

// slotDigits is the length of the number of slots in a token.
const slotDigits = 4

// Slots is the kind of the leases that hold one of n slots.
func Slots(n int) Kind { return Kind(fmt.Sprintf("#%0*d", slotDigits, n)) }

// KindOf reads the kind back from a token. Somebody else's value is exclusive.
func KindOf(token string) Kind {
	if !IsOurs(token) {
		return Exclusive
	}
	switch token[wakeIDAt-1] {
	case '~':
		return Shared
	case '#':
		return Kind(token[wakeIDAt-1 : wakeIDAt+slotDigits])
	}
	return Exclusive
}

// New makes the value that proves one acquisition by the Locker of that id.
func New(id string, kind Kind, owner string) string {
	token := append(make([]byte, 0, ownerAt+MaxOwner), id...)
	if kind == Exclusive {
		kind = "."
	}
	token = append(token, kind...)
	token = appendRandom(token, secretAt-len(token)+secretLength)
	token[secretAt-1] = '.'
	if owner != "" {
		token = append(token, '.')
		token = append(token, owner...)
	}
	return string(token)
}

// appendRandom appends n characters of 5 random bits each.
func appendRandom(b []byte, n int) []byte {
	const base32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	at := len(b)
	b = append(b, make([]byte, n)...)
	_, _ = rand.Read(b[at:]) // never fails
	for i := at; i < len(b); i++ {
		b[i] = base32[b[i]%32]
	}
	return b
}

// WakeID is the name of a token's waiter in messages.
func WakeID(token string) string {
	if len(token) < secretAt {
		return ""
	}
	return token[wakeIDAt : wakeIDAt+wakeIDLength]
}

// Owner reads the label back from a token of ours; somebody else's value has none.
func Owner(token string) string {
	if len(token) > ownerAt && IsOurs(token) {
		return token[ownerAt:]
	}
	return ""
}

// Resting returns the token of the last lease of a lock that rests, and reports whether that is what the value says.
func Resting(value string) (token string, rests bool) {
	if len(value) < ownerAt || value[ownerAt-1] != restMark {
		return "", false
	}
	token = value[:ownerAt-1] + value[ownerAt:]
	return token, IsOurs(token)
}

// IsOurs reports whether a value at a key has the shape of our tokens.
func IsOurs(token string) bool {
	if len(token) < ownerAt-1 || token[secretAt-1] != '.' || len(token) > ownerAt-1 && token[ownerAt-1] != '.' {
		return false
	}
	switch token[wakeIDAt-1] {
	case '.', '~':
		return true
	case '#':
		n, err := strconv.ParseUint(token[wakeIDAt:wakeIDAt+slotDigits], 10, 16)
		return err == nil && 1 <= n && n <= MaxSlots
	}
	return false
}
