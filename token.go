package leasehold

import "crypto/rand"

// A token is the value at the key that proves one acquisition. It has four parts, with points between:
//
//	locker id . wake id . secret [. owner label]
//
// The locker id names the wake channel of the waiter's process. The wake id names the waiter in the message that tells it
// of its grant, which therefore need not carry the token: whoever listens on the channel learns no secret. The wake id is
// random too, and nobody hears it before the grant, so a message can be forged only by those who can read the line.
// The scripts cut both ids out of a token by their places; acquire.lua tells by the points whether a holder is one of ours.
const (
	idLength     = 16 // 80 bits
	wakeIDLength = 13 // 65 bits
	secretLength = 26 // 130 bits

	wakeIDAt = idLength + 1
	secretAt = wakeIDAt + wakeIDLength + 1
	ownerAt  = secretAt + secretLength + 1
)

// newToken makes the value that proves one acquisition.
func (l *Locker) newToken(owner string) string {
	token := append(make([]byte, 0, ownerAt+maxOwner), l.id...)
	token = append(token, '.')
	token = appendRandom(token, wakeIDLength+1+secretLength)
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

// wakeIDOf is the name of a token's waiter in messages.
func wakeIDOf(token string) string {
	if len(token) < secretAt {
		return ""
	}
	return token[wakeIDAt : wakeIDAt+wakeIDLength]
}

// ownerOf reads the label back from a token of ours; somebody else's value has none.
func ownerOf(token string) string {
	if len(token) > ownerAt && isOurs(token) {
		return token[ownerAt:]
	}
	return ""
}

// isOurs reports whether a value at a key has the shape of our tokens.
func isOurs(token string) bool {
	return len(token) >= ownerAt-1 && token[wakeIDAt-1] == '.' && token[secretAt-1] == '.' &&
		(len(token) == ownerAt-1 || token[ownerAt-1] == '.')
}
