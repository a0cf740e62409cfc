package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// childVariable makes this test binary be the command, for tests that need a process of it.
const childVariable = "LEASEHOLD_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		main()
	}
	os.Exit(m.Run())
}

// call runs the command in this process.
func call(in string, args ...string) (status int, out, errs string) {
	var o, e bytes.Buffer
	status = run(context.Background(), args, strings.NewReader(in), &o, &e)
	return status, o.String(), e.String()
}

func TestHelpGoesToStandardOutputAndHasAnExample(t *testing.T) {
	for args, want := range map[string]string{
		"-h":         "\tdemo  ",
		"--help":     "\tdemo  ",
		"help":       "\tleasehold demo\n",
		"demo -h":    "\tleasehold demo -redis redis://127.0.0.1:6379/0\n",
		"inspect -h": "\tleasehold inspect -redis redis://10.0.0.7:6379/0 invoice:7\n",
		"release -h": "\tleasehold release -redis redis://10.0.0.7:6379/0 invoice:7\n",
	} {
		t.Run(args, func(t *testing.T) {
			status, out, errs := call("", strings.Fields(args)...)
			assert.Zero(t, status)
			assert.Empty(t, errs)
			assert.Contains(t, out, "Example")
			assert.Contains(t, out, want)
			if cmd, _, sub := strings.Cut(args, " "); sub {
				assert.True(t, strings.HasPrefix(out, "Usage: leasehold "+cmd))
				assert.Contains(t, out, "\t-redis URL\n")
			}
			for line := range strings.Lines(out) {
				assert.LessOrEqual(t, len([]rune(strings.TrimSuffix(line, "\n"))), 80, line)
			}
		})
	}
}

func TestACallThatIsNotUnderstoodGetsTheUsageAndStatusTwo(t *testing.T) {
	for args, want := range map[string]string{
		"":                                    "Usage:",
		"dmeo":                                `unknown command "dmeo"`,
		"-x":                                  `unknown command "-x"`,
		"demo -x":                             "flag provided but not defined: -x",
		"demo now":                            `unexpected argument "now"`,
		"demo -redis":                         "flag needs an argument: -redis",
		"demo -redis http://127.0.0.1/":       "invalid URL scheme: http",
		"inspect":                             "the KEY is missing",
		"release a b":                         `unexpected argument "b"`,
		"inspect -redis a:1 -redis b:1 c":     "-redis is given 2 times",
		"inspect -redis redis-sentinel://a b": "does not name the master",
		"inspect -yes a":                      "flag provided but not defined: -yes",
		"release":                             "the KEY is missing",
		"release a -no":                       "flag provided but not defined: -no",
	} {
		t.Run(args, func(t *testing.T) {
			status, out, errs := call("", strings.Fields(args)...)
			assert.Equal(t, exitUsage, status)
			assert.Empty(t, out)
			assert.Contains(t, errs, "Usage:")
			if lines := strings.Split(strings.TrimSpace(errs), "\n"); args != "" {
				assert.Contains(t, lines[len(lines)-1], want, "the last line says what is wrong")
			}
		})
	}
}

func TestInspectSaysWhoHoldsALock(t *testing.T) {
	m, client := redistest.Mini(t)
	url := "redis://" + m.Addr()
	locker := leasehold.New(client, leasehold.WithOwner("billing-3"), leasehold.WithKeyPrefix("app:"))
	defer locker.Close()
	lease, err := locker.TryAcquire(t.Context(), "invoice:7", time.Minute)
	require.NoError(t, err)

	t.Setenv("REDIS_URL", url)
	status, out, errs := call("", "inspect", "-prefix", "app:", "invoice:7")
	assert.Zero(t, status, errs)
	assert.Regexp(t, `^key            "app:invoice:7"
held           yes, by "billing-3"
expires        in 1m0s
waiting        0
fencing token  \d{16}
$`, out)

	require.NoError(t, lease.Release(t.Context()))
	status, out, _ = call("", "inspect", "invoice:7", "-prefix", "app:", "-redis", m.Addr())
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, out, "held           no\nwaiting")
	_, out, _ = call("", "inspect", "another", "-redis", url)
	assert.Equal(t, "key      \"another\"\nheld     no\nwaiting  0\n", out)

	require.NoError(t, client.Set(t.Context(), "foreign", "x", 0).Err())
	_, out, _ = call("", "inspect", "foreign", "-redis", url)
	assert.Contains(t, out, "a holder without a label\nexpires  never")
}

func TestReleaseAsksFirst(t *testing.T) {
	m, client := redistest.Mini(t)
	url := "redis://" + m.Addr()
	locker := leasehold.New(client, leasehold.WithOwner("billing-3"))
	defer locker.Close()
	for _, tt := range []struct {
		args, in string
		released bool
	}{
		{"release -redis " + url + " k", "", false},
		{"release -redis " + url + " k", "no\n", false},
		{"release -redis " + url + " k", "y\n", false},
		{"release -redis " + url + " k", "yes\n", true},
		{"release -redis " + url + " k", "yes", true},
		{"release -redis " + url + " -yes k", "", true},
		{"release -redis " + url + " k -yes", "", true},
	} {
		t.Run(tt.args+" "+tt.in, func(t *testing.T) {
			lease, err := locker.TryAcquire(t.Context(), "k", time.Minute)
			require.NoError(t, err)
			status, out, errs := call(tt.in, strings.Fields(tt.args)...)
			assert.Equal(t, !tt.released, m.Exists("k"))
			if !strings.Contains(tt.args, "-yes") {
				assert.Contains(t, out, `held           yes, by "billing-3"`)
			}
			if tt.released {
				assert.Zero(t, status, errs)
				assert.Contains(t, out, "released\n")
				require.ErrorIs(t, lease.Release(t.Context()), leasehold.ErrLost)
			} else {
				assert.Equal(t, exitFailed, status)
				assert.Equal(t, "leasehold release: \"k\" is not released\n", errs)
				require.NoError(t, lease.Release(t.Context()))
			}
		})
	}
}

func TestTroubleWithRedisIsAStatusOfItsOwn(t *testing.T) {
	t.Parallel() // go-redis dials several times
	m, client := redistest.Mini(t)
	require.NoError(t, client.LPush(t.Context(), "list", "x").Err())
	addr := m.Addr()
	status, _, errs := call("", "inspect", "list", "-redis", "redis://"+addr)
	assert.Equal(t, exitRedis, status)
	assert.Contains(t, errs, "WRONGTYPE")
	m.Close()
	status, out, errs := call("", "demo", "-redis", "redis://"+addr)
	assert.Equal(t, exitFailed, status)
	assert.Empty(t, out)
	assert.Contains(t, errs, "leasehold demo: the Redis at "+addr+": ")
}

func TestReleaseDeletesAKeyThatIsNoLock(t *testing.T) {
	m, _ := redistest.Mini(t)
	url := "redis://" + m.Addr()
	for _, tt := range []struct{ args, in string }{
		{"release -redis " + url + " -prefix app: k", "yes\n"}, {"release -redis " + url + " -prefix app: -yes k", ""},
	} {
		m.HSet("app:k", "f", "v")
		status, out, errs := call("no\n", "release", "-redis", url, "-prefix", "app:", "k")
		assert.Equal(t, exitFailed, status)
		assert.Contains(t, out, `"app:k" is no lock: it has another type`)
		assert.Equal(t, "leasehold release: \"app:k\" is not released\n", errs)
		assert.True(t, m.Exists("app:k"))
		status, _, errs = call(tt.in, strings.Fields(tt.args)...)
		assert.Zero(t, status, errs)
		assert.False(t, m.Exists("app:k"))
	}
}

func TestTheManualIsWhatTheProgramSays(t *testing.T) {
	text, err := os.ReadFile("../../docs/cli.md")
	require.NoError(t, err)
	assert.Equal(t, manual(), string(text), "run go generate ./cmd/leasehold")
}
