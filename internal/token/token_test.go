package token

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestATokenSaysWhoseItIsAndNobodyCanGuessIt(t *testing.T) {
	id := NewID()
	seen := map[string]bool{}
	for _, owner := range []string{"", "a", "a label. 1", strings.Repeat("x", MaxOwner)} {
		for range 1000 {
			token := New(id, Exclusive, owner)
			assert.Equal(t, id, token[:idLength])
			assert.Equal(t, owner, Owner(token))
			assert.True(t, IsOurs(token))
			assert.Regexp(t, `^[A-Z2-7]{16}\.[A-Z2-7]{13}\.[A-Z2-7]{26}(\.|$)`, token)
			for _, part := range []string{WakeID(token), token[secretAt : ownerAt-1]} {
				assert.False(t, seen[part], "%s came twice", part)
				seen[part] = true
			}
		}
	}
}

func TestAValueOfSomebodyElsesIsNoToken(t *testing.T) {
	token := New(NewID(), Exclusive, "label")
	for _, value := range []string{
		"", ".", "label", "f47ac10b-58cc-4372-a567-0e02b2c3d479", strings.Repeat(".", 16), strings.Repeat("A", 80),
		token[:secretAt], token[:ownerAt-2], token[:ownerAt-1] + "A", "A" + token, token[1:],
		"AAAAAAAAAAAAAAAA.BBBBBBBBBBBBBBBBBBBBBBBBBB.the token of an older version",
	} {
		assert.False(t, IsOurs(value), value)
		assert.Empty(t, Owner(value), value)
		assert.LessOrEqual(t, len(WakeID(value)), wakeIDLength)
	}
}

func TestATokenSaysWhatKindOfLeaseItIsFor(t *testing.T) {
	for kind, shape := range map[Kind]string{
		Exclusive: `^\w{16}\.\w{13}\.\w{26}\.label$`, Shared: `^\w{16}~\w{13}\.\w{26}\.label$`,
		Slots(5): `^\w{16}#0005\w{9}\.\w{26}\.label$`, Slots(MaxSlots): `^\w{16}#1000\w{9}\.\w{26}\.label$`,
	} {
		token := New(NewID(), kind, "label")
		assert.Regexp(t, shape, token)
		assert.True(t, IsOurs(token), token)
		assert.Equal(t, kind, KindOf(token))
		assert.Equal(t, "label", Owner(token))
		assert.Len(t, WakeID(token), wakeIDLength)
	}
	token := New(NewID(), Slots(5), "")
	for _, digits := range []string{"0000", "1001", "ABCD", "+005"} {
		assert.False(t, IsOurs(token[:wakeIDAt]+digits+token[wakeIDAt+slotDigits:]), digits)
	}
	assert.Equal(t, Exclusive, KindOf("f47ac10b-58cc-43~2-a567-0e02b2c3d479"))
}
