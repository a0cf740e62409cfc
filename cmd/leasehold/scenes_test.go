package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// A rehearsal is a scene in a synctest bubble, where a beat of a whole second takes no time.
type rehearsal struct {
	*stage
	m     *miniredis.Miniredis
	lines *bytes.Buffer
}

func rehearse(t *testing.T, fn func(t *testing.T, r rehearsal)) {
	t.Helper()
	redistest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
		lines := &bytes.Buffer{}
		fn(t, rehearsal{newStage(newScreen(lines), time.Second, func() *redis.Client { return dial() }), m, lines})
	})
}

// at has f done at that time after the start.
func (r rehearsal) at(d time.Duration, f func()) {
	go func() {
		time.Sleep(time.Until(r.start.Add(d)))
		f()
	}()
}

// swallow has Redis answer OK to SET key value, and not do it.
func (r rehearsal) swallow(key, value string) {
	r.m.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
		if cmd != "SET" || len(args) < 2 || args[0] != r.prefix+key || args[1] != value {
			return false
		}
		c.WriteOK()
		return true
	})
}

// stall has f done when SET key value arrives for the first time, and Redis work on that for so long.
func (r rehearsal) stall(key, value string, d time.Duration, f func()) {
	var once sync.Once
	r.m.Server().SetPreHook(func(_ *server.Peer, cmd string, args ...string) bool {
		if cmd == "SET" && len(args) >= 2 && args[0] == r.prefix+key && args[1] == value {
			once.Do(func() {
				f()
				time.Sleep(d)
			})
		}
		return false
	})
}

// take has a stranger hold the lock for that long; for ever if d is 0.
func (r rehearsal) take(key string, d time.Duration) {
	_ = r.m.Set(r.prefix+key, "a stranger")
	if d > 0 {
		r.m.SetTTL(r.prefix+key, d)
	}
}

func TestEverySceneShowsItsClaim(t *testing.T) {
	for _, tt := range []struct {
		title string
		claim string // a regular expression, as the lines are
		lines []string
	}{
		{"Taking turns", "5 turns in the order of arrival, none overlapped; total 500", []string{
			"ash  has the lock; reads a total of 0\n",
			"elm  waits in line, 1 before it\n",
			"yew  waits in line, 4 before it\n",
			"yew  writes 500 and lets go\n",
		}},
		{"A death", "elm got in (0s|1ms) after the dead worker's lease ran out", []string{
			"elm  has the lock, (0s|1ms) after it expired\n",
		}},
		{"A long job", "^1[0-9] renewals kept a lease of 7s for 28s; 4 tries refused", []string{
			"elm  tries: held by another \\(renewals of ash's so far: 1\\)\n",
			"elm  tries: has the lock\n",
		}},
		{"A late write", "refused 4\\.1(01)?s after its lease; with SET it undid elm's 50", []string{
			"ash  asks Valid: true\\.",
			"ash  wakes up, writes 30 more than it read    130        refused\n",
			"which leaves                             130            150\n",
		}},
	} {
		t.Run(tt.title, func(t *testing.T) {
			rehearse(t, func(t *testing.T, r rehearsal) {
				claim, err := r.play(t.Context(), sceneOf(t, tt.title))
				require.NoError(t, err)
				assert.Regexp(t, tt.claim, claim)
				for _, line := range tt.lines {
					assert.Regexp(t, line, r.lines.String())
				}
				for _, key := range r.m.Keys() {
					assert.Positive(t, r.m.TTL(key), "%s has no TTL", key)
				}
			})
		})
	}
}

func TestASceneFailsWhenItsClaimIsBroken(t *testing.T) {
	for _, tt := range []struct {
		name  string
		title string
		harm  func(r rehearsal)
		want  string
	}{
		{"the lock is deleted while elm has it", "Taking turns", func(r rehearsal) {
			r.at(5*time.Second, func() { r.m.Del(r.prefix + "invoice") })
		}, "elm lost the lock in its turn"},
		{"the lock is deleted before elm writes, which takes longer than fir's look", "Taking turns", func(r rehearsal) {
			r.stall("total", "200", 2*time.Second, func() { r.m.Del(r.prefix + "invoice") })
		}, "the turns of elm and fir overlapped"},
		{"a write is lost", "Taking turns", func(r rehearsal) {
			r.swallow("total", "300")
		}, "the total is 200, not 500"},
		{"a stranger is there first", "Taking turns", func(r rehearsal) {
			r.take("invoice", 0)
		}, "the scene came to no end"},
		{"the lock is deleted after the death", "A death", func(r rehearsal) {
			r.at(7*time.Second, func() { r.m.Del(r.prefix + "shipment") })
		}, "before ash's lease was over"},
		{"a stranger is faster", "A death", func(r rehearsal) {
			r.at(7*time.Second, func() { r.take("shipment", 20*time.Second) })
		}, "elm got in only 11."},
		{"a stranger is faster and stays", "A death", func(r rehearsal) {
			r.at(7*time.Second, func() { r.take("shipment", 0) })
		}, "elm did not get in"},
		{"the lock is deleted before a try", "A long job", func(r rehearsal) {
			r.at(3400*time.Millisecond, func() { r.m.Del(r.prefix + "report") })
		}, "elm was not refused as long as ash worked"},
		{"the lock is deleted before a renewal", "A long job", func(r rehearsal) {
			r.at(2*time.Second, func() { r.m.Del(r.prefix + "report") })
		}, leasehold.ErrLost.Error()},
		{"the fencing mark is deleted", "A late write", func(r rehearsal) {
			r.at(12*time.Second, func() { r.m.Del("leasehold:fenced:{" + r.prefix + "script}") })
		}, "the late write was not refused"},
		{"the unchecked write is lost", "A late write", func(r rehearsal) {
			r.swallow("set", "130")
		}, "the SET went well: the account has 150"},
		{"the lock stays with a stranger", "A late write", func(r rehearsal) {
			r.at(time.Second, func() { r.take("account", 0) })
		}, "elm did not get in"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rehearse(t, func(t *testing.T, r rehearsal) {
				tt.harm(r)
				_, err := r.play(t.Context(), sceneOf(t, tt.title))
				require.ErrorContains(t, err, tt.want)
			})
		})
	}
}

func sceneOf(t *testing.T, title string) scene {
	t.Helper()
	i := slices.IndexFunc(scenes, func(s scene) bool { return s.title == title })
	require.GreaterOrEqual(t, i, 0)
	return scenes[i]
}

func TestASceneEndsWithItsContext(t *testing.T) {
	for _, scene := range scenes {
		t.Run(scene.title, func(t *testing.T) {
			rehearse(t, func(t *testing.T, r rehearsal) {
				enough := errors.New("enough")
				ctx, cancel := context.WithCancelCause(t.Context())
				r.at(2500*time.Millisecond, func() { cancel(enough) })
				_, err := r.play(ctx, scene)
				require.ErrorIs(t, err, enough)
				assert.LessOrEqual(t, time.Since(r.start), 3*time.Second)
				synctest.Wait()
			})
		})
	}
}

// Nobody can look into a wrong fact; so each is made up, and nothing but the one fact is wrong.
func TestTheFactsOfTurnsAreJudged(t *testing.T) {
	for name, tt := range map[string]struct {
		change func([]turn)
		want   string
	}{
		"right":         {func([]turn) {}, ""},
		"none":          {func(ts []turn) { ts[2] = turn{who: "fir", err: errors.New("no")} }, "fir had no turn: no"},
		"none at first": {func(ts []turn) { ts[0] = turn{who: "ash", err: errors.New("no")} }, "ash had no turn: no"},
		"lost":          {func(ts []turn) { ts[1].err = leasehold.ErrLost }, "elm lost the lock in its turn: lease lost"},
		"failed":        {func(ts []turn) { ts[1].err = errors.New("no") }, "elm did not end its turn: no"},
		"two faults":    {func(ts []turn) { ts[0].err, ts[2].from = leasehold.ErrLost, 4 }, "the turns of elm and fir overlapped"},
		"overlap":       {func(ts []turn) { ts[1].from = 2 }, "the turns of ash and elm overlapped"},
		"within":        {func(ts []turn) { ts[1].from, ts[1].to = 1, 2 }, "the turns of ash and elm overlapped"},
		"around":        {func(ts []turn) { ts[1].from = 0 }, "the turns of ash and elm overlapped"},
		"order":         {func(ts []turn) { ts[2].from, ts[2].to = 0, 1 }, "fir had its turn before elm, who had come first"},
		"fencing token": {func(ts []turn) { ts[2].fencingToken = 2 }, "the fencing token of fir is not higher than that of elm"},
	} {
		t.Run(name, func(t *testing.T) {
			turns := []turn{{"ash", 1, 3, 1, nil}, {"elm", 3, 5, 2, nil}, {"fir", 5, 7, 3, nil}}
			tt.change(turns)
			judged(t, checkTurns(turns), tt.want)
		})
	}
}

func TestTheFactsOfASuccessionAreJudged(t *testing.T) {
	start := time.Now()
	for name, tt := range map[string]struct {
		change func(*succession)
		want   string
	}{
		"right":         {func(*succession) {}, ""},
		"early":         {func(f *succession) { f.next = start.Add(-time.Millisecond) }, "elm got in 1ms before"},
		"late":          {func(f *succession) { f.next = start.Add(5 * time.Second) }, "elm got in only 4.99s after"},
		"released":      {func(f *succession) { f.end = leasehold.ErrReleased }, "ash's lease did not run out: lease released"},
		"alive":         {func(f *succession) { f.end = nil }, "ash's lease did not run out"},
		"fencing token": {func(f *succession) { f.rise = 0 }, "fencing token is not higher"},
	} {
		t.Run(name, func(t *testing.T) {
			f := succession{validUntil: start, expiry: start.Add(10 * time.Millisecond), next: start.Add(12 * time.Millisecond),
				rise: 1, end: leasehold.ErrLost}
			tt.change(&f)
			judged(t, f.check(), tt.want)
		})
	}
}

func TestTheFactsOfALongJobAreJudged(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*longJob)
		want   string
	}{
		"right":        {func(*longJob) {}, ""},
		"short":        {func(f *longJob) { f.held = 2 * time.Second }, "does not outlive"},
		"invalid":      {func(f *longJob) { f.valid = false }, "not valid until the end"},
		"few renewals": {func(f *longJob) { f.renewals = 2 }, "2 renewals cannot have kept the lease"},
		"few tries":    {func(f *longJob) { f.refused = 3 }, "3 tries were refused, not 4"},
		"never free":   {func(f *longJob) { f.after = leasehold.ErrHeld }, "elm did not get in after the job"},
	} {
		t.Run(name, func(t *testing.T) {
			f := longJob{ttl: time.Second, held: 4 * time.Second, renewals: 12, refused: tries, valid: true}
			tt.change(&f)
			judged(t, f.check(), tt.want)
		})
	}
}

func TestTheFactsOfALateWriteAreJudged(t *testing.T) {
	stale := func(token, highest int64) error {
		return fmt.Errorf("refused: %w", &leasehold.StaleError{Token: token, Highest: highest})
	}
	for name, tt := range map[string]struct {
		change func(*lateWrite)
		want   string
	}{
		"right":              {func(*lateWrite) {}, ""},
		"known to be late":   {func(f *lateWrite) { f.validBefore = false }, "not valid before the pause"},
		"not late":           {func(f *lateWrite) { f.late = 0 }, "was not late"},
		"still valid":        {func(f *lateWrite) { f.validAfter = true }, "was not late"},
		"SET failed":         {func(f *lateWrite) { f.errs[0] = errors.New("no") }, "ash's SET failed"},
		"SET lost nothing":   {func(f *lateWrite) { f.sums[0] = 180 }, "the account has 180, and elm's 50 are not lost"},
		"accepted":           {func(f *lateWrite) { f.errs[1] = nil }, "not refused"},
		"another error":      {func(f *lateWrite) { f.errs[1] = errors.New("no") }, "not for its fencing token: no"},
		"another late token": {func(f *lateWrite) { f.errs[1] = stale(7, 9) }, "other fencing tokens"},
		"another mark":       {func(f *lateWrite) { f.errs[1] = stale(8, 10) }, "other fencing tokens"},
		"written after all":  {func(f *lateWrite) { f.sums[1] = 130 }, "the fenced account has 130, not 150"},
	} {
		t.Run(name, func(t *testing.T) {
			f := lateWrite{validBefore: true, late: time.Second, first: 8, next: 9, errs: [2]error{nil, stale(8, 9)}, sums: [2]int{130, 150}}
			tt.change(&f)
			judged(t, f.check(), tt.want)
		})
	}
}

// judged checks that err says what is wanted, or is nil if that is nothing.
func judged(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" {
		require.NoError(t, err)
		return
	}
	require.ErrorContains(t, err, want)
}
