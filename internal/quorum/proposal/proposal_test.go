package proposal

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestAProposalIsAboveEveryClockAndCounter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(3)
		assert.Zero(t, p.Propose("k"), "no clock was heard of")
		const ahead = time.Second
		note := func(node int, offset, trip time.Duration) {
			sentAt := time.Now()
			time.Sleep(trip / 2)
			now := time.Now().Add(offset).UnixMicro()
			time.Sleep(trip - trip/2)
			p.Note(node, sentAt, now)
		}
		note(0, -ahead, 2*time.Millisecond)
		note(1, ahead, 2*time.Millisecond)
		note(2, 0, 10*time.Millisecond)
		assert.Equal(t, 20*time.Millisecond, p.Slack(), "two round trips to the slowest")
		before := time.Now()
		got := p.Propose("k")
		for range 3 { // the time that the command takes
			assert.Greater(t, got, time.Now().Add(ahead).UnixMicro())
			time.Sleep(5 * time.Millisecond)
		}
		assert.Less(t, got, before.Add(ahead+MaxSlack).UnixMicro())

		far := time.Now().Add(time.Minute).UnixMicro()
		p.Remember("k", far)
		p.Remember("k", far-1)
		assert.Equal(t, far+1, p.Propose("k"))
		time.Sleep(time.Hour)
		assert.Greater(t, p.Propose("k"), time.Now().Add(ahead).UnixMicro())

		// A reply that took long tells nothing of the clock, and the slack has a bound.
		note(1, 10*ahead, 2*time.Second)
		assert.Less(t, p.Propose("k"), time.Now().Add(2*ahead).UnixMicro())
		assert.Equal(t, MaxSlack, p.Slack())
	})
}
