package leasehold

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestATokenSaysWhoseItIsAndNobodyCanGuessIt(t *testing.T) {
	l := New(nil)
	seen := map[string]bool{}
	for _, owner := range []string{"", "a", "a label. 1", strings.Repeat("x", maxOwner)} {
		for range 1000 {
			token := l.newToken(owner)
			assert.Equal(t, l.id, token[:idLength])
			assert.Equal(t, owner, ownerOf(token))
			assert.True(t, isOurs(token))
			assert.Regexp(t, `^[A-Z2-7]{16}\.[A-Z2-7]{13}\.[A-Z2-7]{26}(\.|$)`, token)
			for _, part := range []string{wakeIDOf(token), token[secretAt : ownerAt-1]} {
				assert.False(t, seen[part], "%s came twice", part)
				seen[part] = true
			}
		}
	}
}

func TestAValueOfSomebodyElsesIsNoToken(t *testing.T) {
	token := New(nil).newToken("label")
	for _, value := range []string{
		"", ".", "label", "f47ac10b-58cc-4372-a567-0e02b2c3d479", strings.Repeat(".", 16), strings.Repeat("A", 80),
		token[:secretAt], token[:ownerAt-2], token[:ownerAt-1] + "A", "A" + token, token[1:],
		"AAAAAAAAAAAAAAAA.BBBBBBBBBBBBBBBBBBBBBBBBBB.the token of an older version",
	} {
		assert.False(t, isOurs(value), value)
		assert.Empty(t, ownerOf(value), value)
		assert.LessOrEqual(t, len(wakeIDOf(value)), wakeIDLength)
	}
}
