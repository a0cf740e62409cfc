package quorum

import (
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/quorum/proposal"
	"github.com/go-leasehold/leasehold/internal/quorum/quorumtest"
)

func TestRaisesOnlyNodesThatGrantedLess(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*quorumtest.Node, join func() *process) {
		q := join()
		ahead := nodes[1].SetCounter("k", 500*time.Millisecond)
		late := q.Hooks[2].Next(1, nil).Hold()
		x, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		require.Equal(t, ahead+1, x.FencingToken())
		require.Equal(t, x.FencingToken(), nodes[0].Counter("k"), "a majority has accepted it")
		require.Equal(t, []string{"acquire", "renew"}, q.Spies[0].Took())
		require.Equal(t, []string{"acquire"}, q.Spies[1].Took(), "its candidate is the token: it has accepted")

		late.Release()
		synctest.Wait()
		require.Equal(t, []string{"acquire", "renew"}, q.Spies[2].Took(), "a late grant is kept and raised")
		require.Equal(t, x.FencingToken(), nodes[2].Counter("k"))
		require.Equal(t, x.Token(), q.Holders("k")[2])
	})
}

func TestDoesNotCountANodeThatIsAheadOfTheFencingToken(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*quorumtest.Node, join func() *process) {
		q := join()
		nodes[1].SetCounter("k", 100*time.Millisecond)
		nodes[2].SetCounter("k", 500*time.Millisecond)
		late := q.Hooks[2].Next(1, nil).Hold()
		raise := q.Hooks[0].Next(1, runs("renew")).Hold()
		go func() {
			<-raise.Arrived()
			nodes[0].Del("k") // lost between the grant and the raise
			late.Release()
			synctest.Wait()
			raise.Release()
		}()
		_, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, fault.ErrNoQuorum)
		require.ErrorIs(t, err, errOvertaken)
		require.ErrorIs(t, err, errGone)
		synctest.Wait()
		require.Equal(t, []string{"", "", ""}, q.Holders("k"))
	})
}

// The counter of a node can rise between its grant and the raise: the key was lost, another token came and went, and a copy of the
// acquire came behind that.
func TestDoesNotCountANodeWhoseCounterHasPassedTheFencingToken(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*quorumtest.Node, join func() *process) {
		q := join()
		nodes[1].SetCounter("k", 500*time.Millisecond)
		q.Hooks[2].Every(nil).Fail(errBroken)
		raise := q.Hooks[0].Next(1, runs("renew")).Hold()
		go func() {
			<-raise.Arrived()
			nodes[0].SetCounter("k", time.Second)
			raise.Release()
		}()
		_, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, fault.ErrNoQuorum)
		require.ErrorIs(t, err, errOvertaken)
	})
}

func TestTakesOneRoundTripWhenItKnowsTheClocks(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*quorumtest.Node, join func() *process) {
		nodes[0].SetOffset(300 * time.Millisecond)
		nodes[1].SetOffset(-200 * time.Millisecond)
		q := join()
		for i := range 20 {
			x, err := q.TryAcquire(t.Context(), "k"+strconv.Itoa(i%3), time.Second)
			require.NoError(t, err)
			synctest.Wait()
			raised := 0
			for _, s := range q.Spies {
				for _, name := range s.Took() {
					if name == "renew" {
						raised++
					}
				}
			}
			if i > 0 {
				require.Zero(t, raised, "acquire %d", i)
			}
			require.NoError(t, x.Release(t.Context()))
			time.Sleep(time.Duration(i) * 700 * time.Microsecond)
		}
	})
}

func TestGivesUpAsSoonAsAMajorityIsOutOfReach(t *testing.T) {
	bubble(t, 5, func(t *testing.T, _ []*quorumtest.Node, join func() *process) {
		q := join()
		for _, i := range []int{0, 1} {
			q.Hooks[i].Every(nil).Fail(errBroken)
		}
		q.Hooks[2].Next(1, nil).Fail(errBroken)
		slow := q.Hooks[4].Next(1, nil).HoldReply()
		defer slow.Release()
		begun := time.Now()
		_, err := q.TryAcquire(t.Context(), "k", 10*time.Second)
		require.ErrorIs(t, err, fault.ErrNoQuorum)
		require.LessOrEqual(t, time.Since(begun), proposal.MaxSlack)
		require.ErrorIs(t, err, errBroken)
	})
}

func TestFailedAcquireIsReleasedWhereItMayHaveBeenApplied(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*quorumtest.Node, join func() *process) {
		require.NoError(t, nodes[1].Set("k", "somebody"))
		q := join()
		lost := q.Hooks[0].Next(1, runs("acquire")).HoldReply() // applied, not answered
		q.Wires[1].Delay(time.Millisecond)                      // so that it was
		q.Hooks[2].Next(1, nil).Fail(errBroken)                 // never sent
		_, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, fault.ErrNoQuorum)
		require.NotErrorIs(t, err, fault.ErrHeld, "one node of three says so")
		time.Sleep(100 * time.Millisecond)
		require.NotEmpty(t, q.Holders("k")[0])
		require.Equal(t, []string{"acquire"}, q.Spies[0].Took(), "no release while its acquire may be repeated")
		lost.Release()
		synctest.Wait()
		require.Equal(t, []string{"release"}, q.Spies[0].Took())
		require.Equal(t, []string{"acquire"}, q.Spies[1].Took(), "it certainly refused")
		require.Empty(t, q.Spies[2].Took())
		require.Equal(t, []string{"", "somebody", ""}, q.Holders("k"))
	})
}

func TestCountsOnlyAnswersOfItsOwnRound(t *testing.T) {
	bubble(t, 3, func(t *testing.T, _ []*quorumtest.Node, join func() *process) {
		q := join()
		old := q.Hooks[0].Next(1, nil).HoldReply() // a grant of the first try
		next := q.Hooks[0].Next(1, runs("acquire")).Hold()
		q.Hooks[2].Next(1, nil).Fail(errBroken)
		q.Wires[1].BlackHole()
		_, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, fault.ErrNoQuorum)
		q.Wires[1].Refuse()
		go func() {
			time.Sleep(10 * time.Millisecond)
			old.Release()
		}()
		node2 := q.Hooks[2].Next(1, nil).HoldReply()
		go func() {
			time.Sleep(20 * time.Millisecond)
			node2.Release()
		}()
		// One grant of this round, on node 2; node 0 is still the first try's.
		_, err = q.TryAcquire(t.Context(), "k", time.Second)
		require.Error(t, err)
		next.Release()
		time.Sleep(time.Second)
		require.Equal(t, []string{"", "", ""}, q.Holders("k"))
	})
}

func TestThatAnswersTooLateGivesNoLease(t *testing.T) {
	bubble(t, 3, func(t *testing.T, _ []*quorumtest.Node, join func() *process) {
		q := join()
		for _, w := range q.Wires {
			w.Delay(200 * time.Millisecond)
		}
		begun := time.Now()
		_, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, fault.ErrNoQuorum)
		require.Less(t, time.Since(begun), 300*time.Millisecond, "well under the TTL")
		var slow *fault.NoAnswer
		require.ErrorAs(t, err, &slow)
		for _, w := range q.Wires {
			w.Delay(0)
		}
		time.Sleep(900 * time.Millisecond)
		require.Equal(t, []string{"", "", ""}, q.Holders("k"), "what came late is taken back")
	})
}

func TestHeldIsTheWordOfAMajority(t *testing.T) {
	for _, c := range []struct {
		name  string
		nodes string // f free, h held, b broken
		held  bool
	}{
		{"all say so", "hhh", true},
		{"a majority says so", "hhf", true},
		{"a majority says so and one is broken", "hhb", true},
		{"one says so and two are broken", "hbb", false},
		{"one says so, one is broken, one is free", "hbf", false},
		{"of five, three", "hhhff", true},
		{"of five, two", "hhbff", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, len(c.nodes), func(t *testing.T, nodes []*quorumtest.Node, join func() *process) {
				q := join()
				warm, err := q.TryAcquire(t.Context(), "warm", time.Second) // so that no node's first answer waits for a dial
				require.NoError(t, err)
				require.NoError(t, warm.Release(t.Context()))
				synctest.Wait()
				for i, what := range c.nodes {
					switch what {
					case 'h':
						require.NoError(t, nodes[i].Set("k", "somebody"))
					case 'b':
						q.Hooks[i].Every(nil).Fail(errBroken)
					}
				}
				// A goroutine may be starved for longer than the answers that are still to come are waited for.
				for range 5 {
					if _, err = q.TryAcquire(t.Context(), "k", time.Second); errors.Is(err, fault.ErrHeld) {
						break
					}
				}
				require.Equal(t, c.held, errors.Is(err, fault.ErrHeld), "%v", err)
				require.Equal(t, !c.held, errors.Is(err, fault.ErrNoQuorum), "%v", err)
			})
		})
	}
}

func TestWaitsAMomentForThoseWhoMaySayThatItIsHeld(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*quorumtest.Node, join func() *process) {
		q := join()
		warm, err := q.TryAcquire(t.Context(), "warm", time.Second) // so that no node's first answer waits for a dial
		require.NoError(t, err)
		require.NoError(t, warm.Release(t.Context()))
		synctest.Wait()
		q.Hooks[0].Every(nil).Fail(errBroken)
		require.NoError(t, nodes[1].Set("k", "somebody"))
		require.NoError(t, nodes[2].Set("k", "somebody"))
		q.Wires[2].Delay(100 * time.Microsecond)
		// The moment is a bound on time, and a goroutine may be starved for longer: not every try needs to find out.
		for range 5 {
			if _, err = q.TryAcquire(t.Context(), "k", time.Second); errors.Is(err, fault.ErrHeld) {
				break
			}
		}
		require.ErrorIs(t, err, fault.ErrHeld)

		q.Wires[2].BlackHole()
		begun := time.Now()
		_, err = q.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, fault.ErrNoQuorum)
		require.NotErrorIs(t, err, fault.ErrHeld)
		require.LessOrEqual(t, time.Since(begun), proposal.MaxSlack)
	})
}

func TestAProposalIsAHint(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*quorumtest.Node, join func() *process) {
		q := join()
		// A mistake of another process: far ahead of every clock.
		q.proposer.Remember("k", time.Now().Add(time.Hour).UnixMicro())
		x, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		require.Equal(t, time.Now().UnixMicro(), x.FencingToken(), "not carried into the counter")

		// And one that is behind.
		y, err := join().TryAcquire(t.Context(), "other", time.Second)
		require.NoError(t, err)
		require.Positive(t, y.FencingToken())
	})
}
