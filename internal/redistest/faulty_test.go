package redistest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

var errTest = errors.New("made up")

func TestFaultFailsCommandsThatAreNotSent(t *testing.T) {
	m, c := Mini(t)
	f, ctx := Faulty(c), t.Context()
	f.Next(2, Cmd("incr")).Fail(errTest)
	must(t, c.Set(ctx, "other", 1, 0).Err())
	for range 2 {
		if err := c.Incr(ctx, "k").Err(); !errors.Is(err, errTest) {
			t.Errorf("INCR under the rule: %v", err)
		}
	}
	if m.Exists("k") {
		t.Error("a failed command was sent")
	}
	if n, err := c.Incr(ctx, "k").Result(); n != 1 || err != nil {
		t.Errorf("INCR after the rule = %d, %v", n, err)
	}
	if got, want := f.Sent(), []string{"set", "incr"}; !slices.Equal(got, want) {
		t.Errorf("Sent = %q, want %q", got, want)
	}
}

func TestFaultLosesRepliesOfCommandsThatRan(t *testing.T) {
	m, c := Mini(t)
	f := Faulty(c)
	f.Every(Cmd("incr")).Lose(errTest)
	if n, err := c.Incr(t.Context(), "k").Result(); n != 0 || !errors.Is(err, errTest) {
		t.Errorf("INCR = %d, %v; want no value and the error", n, err)
	}
	m.CheckGet(t, "k", "1")
	f.Clear()
	if n := c.Incr(t.Context(), "k").Val(); n != 2 {
		t.Errorf("INCR after Clear = %d", n)
	}
}

func TestFaultReachesIntoPipelines(t *testing.T) {
	m, c := Mini(t)
	f, ctx := Faulty(c), t.Context()
	run := map[string]func(context.Context, func(redis.Pipeliner) error) ([]redis.Cmder, error){
		"pipeline": c.Pipelined, "transaction": c.TxPipelined,
	}
	for name, pipelined := range run {
		t.Run(name, func(t *testing.T) {
			m.FlushAll()
			var first, second, third *redis.IntCmd
			three := func() error {
				_, err := pipelined(ctx, func(p redis.Pipeliner) error {
					first, second, third = p.Incr(ctx, "k"), p.IncrBy(ctx, "k", 10), p.Incr(ctx, "k")
					return nil
				})
				return err
			}

			f.Next(1, Cmd("incrby")).Fail(errTest)
			if err := three(); !errors.Is(err, errTest) || first.Err() == nil || third.Err() == nil {
				t.Errorf("a failed pipeline: %v, %v, %v", err, first, third)
			}
			if m.Exists("k") {
				t.Error("a failed pipeline was sent")
			}

			f.Next(1, Cmd("incrby")).Lose(errTest)
			if err := three(); !errors.Is(err, errTest) {
				t.Errorf("a pipeline with a lost reply: %v", err)
			}
			m.CheckGet(t, "k", "12")
			if second.Val() != 0 || !errors.Is(second.Err(), errTest) || !errors.Is(third.Err(), errTest) {
				t.Errorf("replies after the lost one: %v, %v", second, third)
			}
			if arrived := first.Err() == nil && first.Val() == 1; arrived != (name == "pipeline") {
				t.Errorf("the reply before the lost one: %v", first)
			}

			if err := three(); err != nil || third.Val() != 24 {
				t.Errorf("after the rules: %v, %v", err, third)
			}
		})
	}
}

func TestFaultHoldsAndDelaysBothWays(t *testing.T) {
	Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial dialer) {
		c := dial()
		f, ctx := Faulty(c), t.Context()
		call := func() <-chan time.Duration {
			took := make(chan time.Duration, 1)
			start := time.Now()
			go func() {
				if err := c.Incr(ctx, "k").Err(); err != nil {
					t.Error(err)
				}
				took <- time.Since(start)
			}()
			return took
		}

		held := f.Next(1, Cmd("incr")).Hold()
		took := call()
		<-held.Arrived()
		time.Sleep(time.Hour)
		if m.Exists("k") {
			t.Error("a held command was sent")
		}
		if n := <-call(); n != 0 {
			t.Errorf("the command after the rule took %v", n)
		}
		held.Release()
		if n := <-took; n != time.Hour {
			t.Errorf("the held command took %v, want 1h", n)
		}

		held = f.Next(2, Cmd("incr")).HoldReply()
		one, two := call(), call()
		synctest.Wait()
		m.CheckGet(t, "k", "4")
		if len(one)+len(two) != 0 {
			t.Error("a held reply arrived")
		}
		held.Release()
		<-one
		<-two

		f.Next(1, Cmd("incr")).Delay(time.Second)
		took = call()
		synctest.Wait()
		m.CheckGet(t, "k", "4")
		if n := <-took; n != time.Second {
			t.Errorf("the delayed command took %v, want 1s", n)
		}

		f.Next(1, Cmd("incr")).DelayReply(time.Second)
		took = call()
		synctest.Wait()
		m.CheckGet(t, "k", "6")
		if n := <-took; n != time.Second {
			t.Errorf("the command with a delayed reply took %v, want 1s", n)
		}
	})
}

func TestFaultRulesAreUsedUpInOrder(t *testing.T) {
	_, c := Mini(t)
	f := Faulty(c)
	other := errors.New("another")
	f.Next(1, nil).Fail(errTest)
	f.Next(1, nil).Fail(other)
	for _, want := range []error{errTest, other, nil} {
		if err := c.Ping(t.Context()).Err(); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
}
