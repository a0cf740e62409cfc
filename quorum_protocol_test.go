package leasehold

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

var errBroken = errors.New("the node is broken")

// setCounter sets a node's fencing counter to its clock and d.
func (n *fakeNode) setCounter(key string, d time.Duration) int64 {
	f := time.Now().Add(n.offset + d).UnixMicro()
	_ = n.Set(string(rediskey.Derive(nil, "", "fence", key)), strconv.FormatInt(f, 10))
	return f
}

func TestQuorumRaisesOnlyNodesThatGrantedLess(t *testing.T) {
	quorumBubble(t, 3, func(t *testing.T, nodes []*fakeNode, join joinFunc) {
		q := join()
		ahead := nodes[1].setCounter("k", 500*time.Millisecond)
		late := q.hooks[2].Next(1, nil).Hold()
		x, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		require.Equal(t, ahead+1, x.FencingToken())
		require.Equal(t, x.FencingToken(), nodes[0].counter("k"), "a majority has accepted it")
		require.Equal(t, []string{"acquire", "renew"}, q.spies[0].took())
		require.Equal(t, []string{"acquire"}, q.spies[1].took(), "its candidate is the token: it has accepted")

		late.Release()
		synctest.Wait()
		require.Equal(t, []string{"acquire", "renew"}, q.spies[2].took(), "a late grant is kept and raised")
		require.Equal(t, x.FencingToken(), nodes[2].counter("k"))
		require.Equal(t, x.Token(), q.holders("k")[2])
	})
}

func TestQuorumDoesNotCountANodeThatIsAheadOfTheFencingToken(t *testing.T) {
	quorumBubble(t, 3, func(t *testing.T, nodes []*fakeNode, join joinFunc) {
		q := join()
		nodes[1].setCounter("k", 100*time.Millisecond)
		nodes[2].setCounter("k", 500*time.Millisecond)
		late := q.hooks[2].Next(1, nil).Hold()
		raise := q.hooks[0].Next(1, runs(renewNodeScript)).Hold()
		go func() {
			<-raise.Arrived()
			nodes[0].Del("k") // lost between the grant and the raise
			late.Release()
			synctest.Wait()
			raise.Release()
		}()
		_, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, ErrNoQuorum)
		require.ErrorIs(t, err, errOvertaken)
		require.ErrorIs(t, err, errNodeGone)
		synctest.Wait()
		require.Equal(t, []string{"", "", ""}, q.holders("k"))
	})
}

func TestQuorumTakesOneRoundTripWhenItKnowsTheClocks(t *testing.T) {
	quorumBubble(t, 3, func(t *testing.T, nodes []*fakeNode, join joinFunc) {
		nodes[0].offset, nodes[1].offset = 300*time.Millisecond, -200*time.Millisecond
		q := join()
		for i := range 20 {
			x, err := q.TryAcquire(t.Context(), "k"+strconv.Itoa(i%3), time.Second)
			require.NoError(t, err)
			synctest.Wait()
			raised := 0
			for _, s := range q.spies {
				for _, name := range s.took() {
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

func TestQuorumTokensRiseAcrossClientsWithSkewedNodes(t *testing.T) {
	quorumBubble(t, 3, func(t *testing.T, nodes []*fakeNode, join joinFunc) {
		nodes[0].offset, nodes[2].offset = time.Minute, -time.Minute
		a, b := join(), join()
		last := int64(0)
		for i := range 12 {
			q := []*fakeQuorum{a, b}[i%2]
			fault := q.hooks[i%3].Every(nil) // one node after the other is missing
			fault.Fail(errBroken)
			x, err := q.TryAcquire(t.Context(), "k", time.Second)
			require.NoError(t, err)
			require.Greater(t, x.FencingToken(), last)
			last = x.FencingToken()
			require.NoError(t, x.Release(t.Context()))
			q.hooks[i%3].Clear()
			synctest.Wait()
		}
	})
}

func TestQuorumGivesUpAsSoonAsAMajorityIsOutOfReach(t *testing.T) {
	quorumBubble(t, 5, func(t *testing.T, _ []*fakeNode, join joinFunc) {
		q := join()
		for _, i := range []int{0, 1} {
			q.hooks[i].Every(nil).Fail(errBroken)
		}
		q.hooks[2].Next(1, nil).Fail(errBroken)
		slow := q.hooks[4].Next(1, nil).HoldReply()
		defer slow.Release()
		begun := time.Now()
		_, err := q.TryAcquire(t.Context(), "k", 10*time.Second)
		require.ErrorIs(t, err, ErrNoQuorum)
		require.LessOrEqual(t, time.Since(begun), maxSlack)
		require.ErrorIs(t, err, errBroken)
	})
}

func TestQuorumFailedAcquireIsReleasedWhereItMayHaveBeenApplied(t *testing.T) {
	quorumBubble(t, 3, func(t *testing.T, nodes []*fakeNode, join joinFunc) {
		require.NoError(t, nodes[1].Set("k", "somebody"))
		q := join()
		lost := q.hooks[0].Next(1, runs(acquireNodeScript)).HoldReply() // applied, not answered
		q.wires[1].Delay(time.Millisecond)                              // so that it was
		q.hooks[2].Next(1, nil).Fail(errBroken)                         // never sent
		_, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, ErrNoQuorum)
		require.NotErrorIs(t, err, ErrHeld, "one node of three says so")
		time.Sleep(100 * time.Millisecond)
		require.NotEmpty(t, q.holders("k")[0])
		require.Equal(t, []string{"acquire"}, q.spies[0].took(), "no release while its acquire may be repeated")
		lost.Release()
		synctest.Wait()
		require.Equal(t, []string{"release"}, q.spies[0].took())
		require.Equal(t, []string{"acquire"}, q.spies[1].took(), "it certainly refused")
		require.Empty(t, q.spies[2].took())
		require.Equal(t, []string{"", "somebody", ""}, q.holders("k"))
	})
}

func TestQuorumTriesAgainWithAnotherToken(t *testing.T) {
	quorumBubble(t, 3, func(t *testing.T, nodes []*fakeNode, join joinFunc) {
		q := join()
		// The first try gets one node only; its clean-up there is held back until the second has won.
		for _, i := range []int{1, 2} {
			require.NoError(t, nodes[i].Set("k", "somebody"))
			nodes[i].SetTTL("k", 4*time.Millisecond)
			q.wires[i].Delay(time.Millisecond)
		}
		cleanup := q.hooks[0].Next(1, runs(releaseNodeScript)).Hold()
		x, err := q.Acquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		cleanup.Release()
		synctest.Wait()
		require.NotEqual(t, q.spies[0].tokens[0], x.Token())
		require.Equal(t, []string{x.Token(), x.Token()}, q.holders("k")[1:], "the first try's release frees the first try's keys only")
		require.True(t, x.Valid())
	})
}

func TestQuorumCountsOnlyAnswersOfItsOwnRound(t *testing.T) {
	quorumBubble(t, 3, func(t *testing.T, _ []*fakeNode, join joinFunc) {
		q := join()
		old := q.hooks[0].Next(1, nil).HoldReply() // a grant of the first try
		next := q.hooks[0].Next(1, runs(acquireNodeScript)).Hold()
		q.hooks[2].Next(1, nil).Fail(errBroken)
		q.wires[1].BlackHole()
		_, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, ErrNoQuorum)
		q.wires[1].Refuse()
		go func() {
			time.Sleep(10 * time.Millisecond)
			old.Release()
		}()
		node2 := q.hooks[2].Next(1, nil).HoldReply()
		go func() {
			time.Sleep(20 * time.Millisecond)
			node2.Release()
		}()
		// One grant of this round, on node 2; node 0 is still the first try's.
		_, err = q.TryAcquire(t.Context(), "k", time.Second)
		require.Error(t, err)
		next.Release()
		time.Sleep(time.Second)
		require.Equal(t, []string{"", "", ""}, q.holders("k"))
	})
}

func TestQuorumDeadlineIsTTLLessElapsedLessMargin(t *testing.T) {
	for _, c := range []struct{ ttl, oneWay, left time.Duration }{
		{time.Second, 50 * time.Millisecond, 890 * time.Millisecond},
		{time.Second, 0, 990 * time.Millisecond},
		{100 * time.Millisecond, 8 * time.Millisecond, 82 * time.Millisecond},
		{10 * time.Second, 300 * time.Millisecond, 9300 * time.Millisecond},
		{50 * time.Second, 350 * time.Millisecond, 48800 * time.Millisecond},
	} {
		quorumBubble(t, 3, func(t *testing.T, _ []*fakeNode, join joinFunc) {
			q := join()
			warm, err := q.TryAcquire(t.Context(), "warm", time.Second)
			require.NoError(t, err)
			require.NoError(t, warm.Release(t.Context()))
			for _, w := range q.wires {
				w.Delay(c.oneWay)
			}
			begun := time.Now()
			x, err := q.TryAcquire(t.Context(), "k", c.ttl)
			require.NoError(t, err)
			require.Equal(t, 2*c.oneWay, time.Since(begun))
			require.Equal(t, c.left, time.Until(x.ValidUntil()))

			time.Sleep(c.ttl / 5)
			begun = time.Now()
			require.NoError(t, x.Renew(t.Context()))
			require.Equal(t, c.ttl-clock.Margin(c.ttl)-time.Since(begun), time.Until(x.ValidUntil()))
		})
	}
}

func TestQuorumThatAnswersTooLateGivesNoLease(t *testing.T) {
	quorumBubble(t, 3, func(t *testing.T, _ []*fakeNode, join joinFunc) {
		q := join()
		for _, w := range q.wires {
			w.Delay(200 * time.Millisecond)
		}
		begun := time.Now()
		_, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, ErrNoQuorum)
		require.Less(t, time.Since(begun), 300*time.Millisecond, "well under the TTL")
		var slow *fault.NoAnswer
		require.ErrorAs(t, err, &slow)
		for _, w := range q.wires {
			w.Delay(0)
		}
		time.Sleep(900 * time.Millisecond)
		require.Equal(t, []string{"", "", ""}, q.holders("k"), "what came late is taken back")
	})
}

func TestQuorumLateGrantOfAReleasedLeaseIsReleased(t *testing.T) {
	quorumBubble(t, 3, func(t *testing.T, _ []*fakeNode, join joinFunc) {
		q := join()
		for _, fate := range []string{"not sent", "not answered"} {
			var late interface{ Release() }
			if fate == "not sent" {
				late = q.hooks[2].Next(1, nil).Hold()
			} else {
				late = q.hooks[2].Next(1, nil).HoldReply()
			}
			x, err := q.TryAcquire(t.Context(), "k", time.Second)
			require.NoError(t, err)
			begun := time.Now()
			require.NoError(t, x.Release(t.Context()))
			require.Zero(t, time.Since(begun), "it does not wait for the third")
			late.Release()
			synctest.Wait()
			require.Equal(t, []string{"", "", ""}, q.holders("k"), fate)
		}
	})
}

func TestQuorumDoesNotMeetItsOwnLastLease(t *testing.T) {
	quorumBubble(t, 3, func(t *testing.T, _ []*fakeNode, join joinFunc) {
		q := join()
		x, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		synctest.Wait()
		slow := q.hooks[2].Next(1, runs(releaseNodeScript)).Hold()
		require.NoError(t, x.Release(t.Context()))
		y, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		<-slow.Arrived()
		require.Equal(t, []string{"acquire"}, q.spies[2].took(), "the next one waits behind it")
		slow.Release()
		synctest.Wait()
		require.Equal(t, []string{y.Token(), y.Token(), y.Token()}, q.holders("k"))

		// Given up meanwhile, it is not sent at all.
		slow = q.hooks[2].Next(1, runs(releaseNodeScript)).Hold()
		require.NoError(t, y.Release(t.Context()))
		<-slow.Arrived()
		q.spies[2].took()
		y, err = q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		require.NoError(t, y.Release(t.Context()))
		slow.Release()
		synctest.Wait()
		require.Equal(t, []string{"release"}, q.spies[2].took())
		require.Equal(t, []string{"", "", ""}, q.holders("k"))
		require.Empty(t, q.backend.(*quorum).nodes[2].leaving)
	})
}

func TestQuorumRenewsByAMajorityAndRefillsOnlyThen(t *testing.T) {
	quorumBubble(t, 3, func(t *testing.T, nodes []*fakeNode, join joinFunc) {
		q := join()
		x, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		synctest.Wait()
		for i := range nodes { // one after the other forgets, and gets it back
			nodes[i].Del("k")
			require.NoError(t, x.Renew(t.Context()))
			synctest.Wait()
			require.Equal(t, x.Token(), q.holders("k")[i])
		}

		// Mine on one node, nothing from another, absent on the third: no majority, no refill.
		for _, s := range q.spies {
			s.took()
		}
		until := x.ValidUntil()
		time.Sleep(time.Millisecond)
		nodes[0].Del("k")
		q.hooks[1].Next(1, nil).Fail(errBroken)
		require.ErrorIs(t, x.Renew(t.Context()), ErrNoQuorum)
		synctest.Wait()
		require.Empty(t, q.holders("k")[0])
		require.Equal(t, []string{"renew"}, q.spies[0].took())
		require.Equal(t, until, x.ValidUntil())
		require.True(t, x.Valid(), "in jeopardy")

		// The refill of a round does not count in it.
		require.NoError(t, x.Renew(t.Context()))
		synctest.Wait()
		require.Equal(t, x.Token(), q.holders("k")[0])

		// A majority that says no is the end.
		nodes[0].Del("k")
		require.NoError(t, nodes[1].Set("k", "somebody"))
		require.ErrorIs(t, x.Renew(t.Context()), ErrLost)
		require.ErrorIs(t, x.Err(), ErrLost)
		synctest.Wait()
		require.Equal(t, []string{"", "somebody"}, q.holders("k")[:2], "it neither releases nor refills")
	})
}

func TestQuorumHeldIsTheWordOfAMajority(t *testing.T) {
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
			quorumBubble(t, len(c.nodes), func(t *testing.T, nodes []*fakeNode, join joinFunc) {
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
						q.hooks[i].Every(nil).Fail(errBroken)
					}
				}
				// A goroutine may be starved for longer than the answers that are still to come are waited for.
				for range 5 {
					if _, err = q.TryAcquire(t.Context(), "k", time.Second); errors.Is(err, ErrHeld) {
						break
					}
				}
				require.Equal(t, c.held, errors.Is(err, ErrHeld), "%v", err)
				require.Equal(t, !c.held, errors.Is(err, ErrNoQuorum), "%v", err)
			})
		})
	}
}

func TestQuorumWaitsAMomentForThoseWhoMaySayThatItIsHeld(t *testing.T) {
	quorumBubble(t, 3, func(t *testing.T, nodes []*fakeNode, join joinFunc) {
		q := join()
		warm, err := q.TryAcquire(t.Context(), "warm", time.Second) // so that no node's first answer waits for a dial
		require.NoError(t, err)
		require.NoError(t, warm.Release(t.Context()))
		synctest.Wait()
		q.hooks[0].Every(nil).Fail(errBroken)
		require.NoError(t, nodes[1].Set("k", "somebody"))
		require.NoError(t, nodes[2].Set("k", "somebody"))
		q.wires[2].Delay(100 * time.Microsecond)
		// The moment is a bound on time, and a goroutine may be starved for longer: not every try needs to find out.
		for range 5 {
			if _, err = q.TryAcquire(t.Context(), "k", time.Second); errors.Is(err, ErrHeld) {
				break
			}
		}
		require.ErrorIs(t, err, ErrHeld)

		q.wires[2].BlackHole()
		begun := time.Now()
		_, err = q.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, ErrNoQuorum)
		require.NotErrorIs(t, err, ErrHeld)
		require.LessOrEqual(t, time.Since(begun), maxSlack)
	})
}

// nodesIn returns the indexes of the nodes that an error names.
func nodesIn(err error) (nodes []int) {
	switch e := err.(type) {
	case *NodeError:
		return []int{e.Node}
	case interface{ Unwrap() error }:
		return nodesIn(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			nodes = append(nodes, nodesIn(err)...)
		}
	}
	return nodes
}

func TestQuorumNodeErrorsAreMissingVotes(t *testing.T) {
	quorumBubble(t, 3, func(t *testing.T, nodes []*fakeNode, join joinFunc) {
		for name, breakIt := range map[string]func(q *fakeQuorum, i int){
			"refused":       func(q *fakeQuorum, i int) { q.wires[i].Refuse() },
			"silent":        func(q *fakeQuorum, i int) { q.wires[i].BlackHole() },
			"noauth":        func(_ *fakeQuorum, i int) { nodes[i].SetError("NOAUTH Authentication required.") },
			"loading":       func(_ *fakeQuorum, i int) { nodes[i].SetError("LOADING Redis is loading") },
			"foreign type":  func(_ *fakeQuorum, i int) { _, _ = nodes[i].Lpush("k foreign type", "x") },
			"bad counter":   func(_ *fakeQuorum, i int) { _ = nodes[i].Set("leasehold:fence:{k bad counter}", "many") },
			"huge counter":  func(_ *fakeQuorum, i int) { _ = nodes[i].Set("leasehold:fence:{k huge counter}", "9007199254740993") },
			"strange reply": func(q *fakeQuorum, i int) { q.hooks[i].Every(nil).Fail(redis.Nil) },
		} {
			mend := func(q *fakeQuorum) {
				for i, n := range nodes {
					q.wires[i].Pass()
					q.hooks[i].Clear()
					n.SetError("")
					n.Server().SetPreHook(n.answer)
				}
			}
			q, key := join(), "k "+name // a key of its own: some go on trying
			breakIt(q, 1)
			x, err := q.TryAcquire(t.Context(), key, time.Second)
			require.NoError(t, err, "one node %s", name)
			require.NoError(t, x.Release(t.Context()))

			breakIt(q, 2)
			_, err = q.TryAcquire(t.Context(), key, time.Second)
			require.ErrorIs(t, err, ErrNoQuorum, name)
			require.NotErrorIs(t, err, ErrHeld, name)
			require.NotErrorIs(t, err, redis.Nil, name)
			require.ErrorContains(t, err, "node 1: ", name)
			require.ErrorContains(t, err, "node 2: ", name)
			require.Subset(t, nodesIn(err), []int{1, 2})

			// Trouble that waiting can cure is waited out, other trouble is told at once.
			begun := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			_, err = q.Acquire(ctx, key, time.Second)
			cancel()
			require.ErrorIs(t, err, ErrNoQuorum)
			waited := time.Since(begun) >= 3*time.Second
			require.Equal(t, waited, errors.Is(err, context.DeadlineExceeded))
			require.Equal(t, name == "refused" || name == "silent" || name == "loading", waited, name)
			mend(q)
		}
	})
}
