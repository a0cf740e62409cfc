package token_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"text/template"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// printed is all that the usual ways of printing make of a value.
func printed(t *testing.T, v any) (all []string) {
	t.Helper()
	held := struct {
		V any
		v any
	}{v, v}
	for _, flag := range []string{"", "+", "#", "-60", "060", ".200", " "} {
		for _, verb := range "vTtbcdoOqxXUeEfFgGsp" {
			format := "%" + flag + string(verb)
			for _, arg := range []any{v, held, &held, []any{v}, map[string]any{"v": v}} {
				all = append(all, fmt.Sprintf(format, arg))
			}
		}
	}
	var text, object, page bytes.Buffer
	slog.New(slog.NewTextHandler(&text, nil)).Info("m", "v", v, "held", held)
	slog.New(slog.NewJSONHandler(&object, nil)).Info("m", "v", v, "held", held)
	require.NoError(t, template.Must(template.New("").Parse("{{.}}{{.V}}{{printf `%d` .V}}")).Execute(&page, held))
	marshalled, err := json.Marshal(held)
	require.NoError(t, err)
	tagged, err := xml.Marshal(v)
	require.NoError(t, err)
	return append(all, text.String(), object.String(), page.String(), string(marshalled), string(tagged), fmt.Sprint(fmt.Errorf("%w: %v", locktest.ErrNetwork, v)))
}

// Whatever a log, a panic or a debugger's print makes of a lease or a Locker: the token is a proof of ownership, and the
// keeper changes the lease meanwhile, which the race detector sees.
func TestNothingThatIsPrintedShowsATokenOrRacesWithTheKeeper(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party(leasehold.WithOwner("worker 7"))
		x := p.Keeps("k", 30*time.Millisecond)
		y, err := p.TryAcquire(t.Context(), "other", time.Minute)
		require.NoError(t, err)
		ctx, cancel := y.Context(t.Context())
		defer cancel()

		for _, v := range []any{x, *x, y, *y, ctx} {
			var all sync.WaitGroup
			all.Go(func() {
				for range 5 {
					assert.NoError(t, y.Renew(t.Context()))
					time.Sleep(20 * time.Millisecond)
				}
			})
			for range 2 {
				for _, s := range printed(t, v) {
					for _, token := range []string{x.Token(), y.Token()} {
						secret := token[locktest.SecretAt : locktest.SecretAt+locktest.SecretLength]
						assert.NotContains(t, s, secret)
						assert.NotContains(t, strings.ToLower(s), hex.EncodeToString([]byte(secret)))
					}
				}
				time.Sleep(50 * time.Millisecond)
			}
			all.Wait()
		}
	})
}

func TestALockerIsPrintedWithoutARaceWithItsCalls(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		p.Keeps("k", 30*time.Millisecond)
		var all sync.WaitGroup
		all.Go(func() {
			for range 5 {
				assert.NoError(t, p.WithLock(t.Context(), "other", time.Minute, locktest.Idle))
				time.Sleep(20 * time.Millisecond)
			}
		})
		for range 2 {
			for _, format := range []string{"%v", "%+v", "%#v", "%s", "%d"} {
				assert.Contains(t, fmt.Sprintf(format, p.Locker), "locker (")
				assert.Contains(t, fmt.Sprintf(format, struct{ L *leasehold.Locker }{p.Locker}), "locker (")
			}
			time.Sleep(50 * time.Millisecond)
		}
		all.Wait()
		assert.Equal(t, "locker (1 leases held, 0 acquires waiting)", fmt.Sprint(p.Locker))
	})
}

func TestALeaseSaysWhichItIsAndHowItStands(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party(leasehold.WithOwner("worker 7"))
		x, err := p.TryAcquire(t.Context(), "invoice:7", time.Minute)
		require.NoError(t, err)
		until := x.ValidUntil().Format("2006-01-02T15:04:05.000Z07:00")
		says := func(how string) {
			t.Helper()
			want := fmt.Sprintf(`lease "invoice:7" (fencing token %d, %s)`, x.FencingToken(), how)
			for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
				assert.Equal(t, want, fmt.Sprintf(format, x))
			}
			assert.Equal(t, want, x.String())
			assert.Equal(t, want, x.GoString())
			assert.Equal(t, fmt.Sprintf("%q|%120s|%.5s", want, want, want), fmt.Sprintf("%q|%120s|%.5s", x, x, x))
			assert.Equal(t, "%!d(string="+want+")", fmt.Sprintf("%d", x))

			var line bytes.Buffer
			slog.New(slog.NewJSONHandler(&line, nil)).Info("m", "lease", x)
			assert.Contains(t, line.String(), fmt.Sprintf(
				`"lease":{"key":"invoice:7","fencing_token":%d,"owner":"worker 7","state":%q}`, x.FencingToken(), how))
		}
		says("held until " + until)
		p.Fault.Next(1, nil).Fail(locktest.ErrNetwork)
		require.Error(t, x.Renew(t.Context()))
		says("held until " + until + ", in jeopardy: the network is gone")
		require.NoError(t, x.Release(t.Context()))
		says("released")
		x, err = p.TryAcquire(t.Context(), "invoice:7", time.Second)
		require.NoError(t, err)
		locktest.AwaitEnd(x)
		says("lost: its time ran out")
	})
}

func TestNoLeaseIsPrintedToo(t *testing.T) {
	var x *leasehold.Lease
	var l *leasehold.Locker
	for _, v := range []any{x, l, leasehold.Lease{}} {
		for _, s := range printed(t, v) {
			assert.NotContains(t, s, "PANIC")
		}
	}
	assert.Equal(t, "<nil> <nil>", fmt.Sprint(x, l))
	assert.Equal(t, "<nil>", x.String())
	assert.Equal(t, slog.AnyValue(nil), x.LogValue())
}
