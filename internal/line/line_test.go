package line

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/inflight"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stage is a backend that answers as a test says, and notes what is asked.
type stage struct {
	backend.Backend
	answer func(n int, how backend.Mode) (backend.Answer, error) // to the nth attempt, from 0
	tokens []string                                              // of the attempts
	gaveUp []string                                              // the tokens that were cancelled
	how    []backend.How                                         // with which
}

func (s *stage) Tenure(r backend.Request) backend.Tenure { return &staged{s: s, token: r.Token} }

type staged struct {
	backend.Tenure
	s     *stage
	token string
}

func (t *staged) Acquire(_ context.Context, how backend.Mode, _ time.Duration) (backend.Answer, int, error) {
	t.s.tokens = append(t.s.tokens, t.token)
	a, err := t.s.answer(len(t.s.tokens)-1, how)
	return a, 1, err
}

func (t *staged) Release(_ context.Context, how backend.How, _ time.Duration) (found, writes int, _ error) {
	t.s.gaveUp, t.s.how = append(t.s.gaveUp, t.token), append(t.s.how, how)
	return 0, 1, nil
}

// caller takes everything, and notes what it is told.
type caller struct{ retried []error }

func (*caller) Refuse(context.Context, int64) error { return nil }
func (c *caller) Retrying(reason error)             { c.retried = append(c.retried, reason) }

// lineOn makes a Line; client receives its messages, nil: there is no line.
func lineOn(b backend.Backend, client redis.UniversalClient) *Line {
	c := Config{ID: "AAAAAAAAAAAAAAAA", Backend: b, Clock: &clock.Clock{}, Life: inflight.NewLife()}
	if client != nil {
		c.Client = roundtrip.NewClient(client)
	}
	return New(c)
}

// lostRing is a ring whose servers are found by a function.
type lostRing struct {
	redis.UniversalClient
	find func() (*redis.Client, error)
}

func (r lostRing) GetShardClientForKey(string) (*redis.Client, error) { return r.find() }

// mute is a client that brings no messages, since no server of it is found.
var mute = lostRing{nil, func() (*redis.Client, error) { return nil, errors.New("no server") }}

// end closes the Line, and requires that nothing is left.
func end(t *testing.T, l *Line) {
	t.Helper()
	l.life.Close()
	l.Close(t.Context())
	synctest.Wait()
	assert.Zero(t, l.Load())
	assert.Zero(t, l.life.Len())
}

func newWaiter() (*Waiter, *caller) {
	c := &caller{}
	return &Waiter{Request: backend.Request{Key: "k", PX: 60_000}, TTL: time.Minute, Caller: c}, c
}

func TestAWaiterThatHasLostItsPlaceJoinsAgainWithAnotherToken(t *testing.T) {
	for name, why := range map[string]func(n int) (backend.Answer, error){
		"skipped": func(int) (backend.Answer, error) { return backend.Answer{State: backend.Gone}, nil },
		"too late": func(int) (backend.Answer, error) {
			time.Sleep(time.Minute)
			return backend.Answer{State: backend.Granted, Fence: 1}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const lost = 4 // attempts: the join, and those after which the place is gone
				s := &stage{answer: func(n int, how backend.Mode) (backend.Answer, error) {
					switch {
					case n == 0:
						require.Equal(t, backend.Join, how)
						return backend.Answer{State: backend.Waiting, Left: time.Minute}, nil
					case n < lost:
						require.Equal(t, backend.Poll, how)
						return why(n)
					}
					require.Equal(t, backend.Join, how)
					return backend.Answer{State: backend.Granted, Fence: 7}, nil
				}}
				if name == "skipped" {
					first := s.answer
					s.answer = func(n int, how backend.Mode) (backend.Answer, error) {
						if n > 1 {
							n = lost
						}
						return first(n, how)
					}
				}
				l := lineOn(s, mute)
				w, c := newWaiter()
				g, err := l.Wait(t.Context(), w)
				require.NoError(t, err)
				last := len(s.tokens) - 1
				assert.Equal(t, Grant{Token: s.tokens[last], Tenure: g.Tenure, Anchor: g.Anchor, Fence: 7}, g)
				assert.NotEqual(t, s.tokens[0], g.Token)
				for _, token := range s.tokens[:last] {
					assert.Equal(t, s.tokens[0], token, "one token for a place")
				}
				synctest.Wait()
				if name == "skipped" {
					assert.Equal(t, 2, last)
					assert.Empty(t, s.gaveUp, "the server has said that nothing is left")
				} else {
					assert.Equal(t, lost, last, "given up after a few")
					assert.Equal(t, s.tokens[:1], s.gaveUp)
					assert.Len(t, c.retried, maxLate)
				}
				assert.Equal(t, len(s.tokens), w.Attempts)
				end(t, l)
			})
		})
	}
}

func TestAWaiterWithoutALineTriesAgainWithAnotherToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{}
		s.answer = func(n int, how backend.Mode) (backend.Answer, error) {
			require.Equal(t, backend.Try, how)
			switch n {
			case 0:
				return backend.Answer{State: backend.Held}, nil
			case 1:
				return backend.Answer{}, &fault.NoAnswer{Bound: time.Second}
			}
			return backend.Answer{State: backend.Granted, Fence: 7}, nil
		}
		l := lineOn(s, nil)
		w, c := newWaiter()
		g, err := l.Wait(t.Context(), w)
		require.NoError(t, err)
		assert.Equal(t, ByPoll, g.Woken)
		assert.Len(t, c.retried, 1)
		require.Len(t, s.tokens, 3)
		assert.NotEqual(t, s.tokens[0], s.tokens[1])
		assert.NotEqual(t, s.tokens[1], s.tokens[2])
		synctest.Wait()
		assert.Equal(t, s.tokens[1:2], s.gaveUp, "what is held by another need not be cancelled")

		s.tokens = []string{"", ""}
		w, _ = newWaiter()
		g, err = l.Wait(t.Context(), w)
		require.NoError(t, err)
		assert.Equal(t, AtOnce, g.Woken)
		end(t, l)
	})
}

// The next adoption of the token waits until the lock is given back, where that may be needed, and only there.
func TestAdoptionsOfOneTokenWaitForOneAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{answer: func(int, backend.Mode) (backend.Answer, error) {
			return backend.Answer{State: backend.Gone, Why: backend.TokenSpent}, nil
		}}
		l := lineOn(s, nil)
		adopt := func() error {
			w, _ := newWaiter()
			w.Former = "former"
			_, err := l.Adopt(t.Context(), w)
			return err
		}
		for range 2 {
			require.Equal(t, &GoneError{backend.TokenSpent}, adopt())
		}
		assert.Empty(t, s.gaveUp)
		s.tokens = nil
		s.answer = func(n int, _ backend.Mode) (backend.Answer, error) {
			assert.Len(t, s.gaveUp, n, "the former ones are cancelled before this one is sent")
			return backend.Answer{}, &fault.NoAnswer{}
		}
		for range 3 {
			require.Equal(t, &fault.NoAnswer{}, adopt())
		}
		synctest.Wait()
		assert.Equal(t, []backend.How{backend.Return, backend.Return, backend.Return}, s.how)
		end(t, l)
	})
}

func TestALockThatIsNotWantedIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{answer: func(int, backend.Mode) (backend.Answer, error) {
			return backend.Answer{State: backend.Granted, Fence: 7}, nil
		}}
		l := lineOn(s, nil)
		w, _ := newWaiter()
		g, err := l.Try(t.Context(), w)
		require.NoError(t, err)
		l.Cancel(w)
		synctest.Wait()
		assert.Equal(t, []string{g.Token}, s.gaveUp)
		end(t, l)
	})
}
