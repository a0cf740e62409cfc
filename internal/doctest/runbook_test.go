package doctest_test

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

func TestTheRunbookExplainsEveryCounterAndEveryLogLine(t *testing.T) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[leasehold.Stats]()) {
		says(t, "docs/runbook.md", "| `"+field.Name+"` |")
	}
	logged := 0
	for _, file := range sources(t, ".", "internal/line", "internal/keep", "internal/quorum", "internal/roundtrip") {
		ast.Inspect(file, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			text, _ := strconv.Unquote(lit.Value)
			if line, ok := strings.CutPrefix(text, "leasehold: "); ok && !strings.Contains(line, "%") {
				logged++
				says(t, "docs/runbook.md", "| `"+text+"` |")
			}
			return true
		})
	}
	assert.Positive(t, logged)
}

// sources parses the packages in those folders without their tests.
func sources(t *testing.T, folders ...string) (files []*ast.File) {
	t.Helper()
	for _, folder := range folders {
		for _, name := range goSources(t, folder) {
			file, err := parser.ParseFile(token.NewFileSet(), name, read(t, name), 0)
			require.NoError(t, err)
			files = append(files, file)
		}
	}
	return files
}

func TestTheCommandsOfTheRunbookShowTheLock(t *testing.T) {
	_, client := redistest.Mini(t)
	ctx := t.Context()
	locker := leasehold.New(client)
	defer locker.Close()
	lease, err := locker.TryAcquire(ctx, "invoice:7", 10*time.Second)
	require.NoError(t, err)
	go func() { _, _ = locker.Acquire(ctx, "invoice:7", 10*time.Second) }()
	require.Eventually(t, func() bool {
		state, err := locker.Inspect(ctx, "invoice:7")
		return err == nil && state.Waiters == 1
	}, 10*time.Second, 5*time.Millisecond)

	shown := 0
	for _, b := range allBlocks(t, "sh") {
		for _, m := range regexp.MustCompile(`(?m)^redis-cli ([^#\n]+)`).FindAllStringSubmatch(b.text, -1) {
			var words []any
			for word := range strings.FieldsSeq(m[1]) {
				words = append(words, word)
			}
			reply, err := client.Do(ctx, words...).Result()
			require.NoError(t, err, m[0])
			assert.NotEmpty(t, reply, m[0])
			shown++
		}
	}
	assert.Positive(t, shown)
	require.NoError(t, lease.Release(ctx))
}

// The rule is for a Locker WithKeyPrefix("app:"). Everything must work under it, the messages included.
func TestTheACLRuleOfTheRunbookIsEnough(t *testing.T) {
	t.Parallel()
	rules := allBlocks(t, "acl")
	require.Len(t, rules, 1)
	ctx := t.Context()
	server := redistest.Server(t)
	admin := server.Client()
	var words []any
	for word := range strings.FieldsSeq(rules[0].text) {
		words = append(words, word)
	}
	require.NoError(t, admin.Do(ctx, words...).Err())
	user := func() *leasehold.Locker {
		client := server.Client(func(o *redis.Options) { o.Username, o.Password, o.DisableIdentity = "billing", "secret", true })
		l := leasehold.New(client, leasehold.WithKeyPrefix("app:"))
		t.Cleanup(func() { assert.NoError(t, l.Close()) })
		return l
	}
	one, two := user(), user()

	handOver := func() {
		lease, err := one.TryAcquire(ctx, "invoice:7", 10*time.Second)
		require.NoError(t, err)
		require.NoError(t, lease.Renew(ctx))
		got := make(chan error)
		go func() {
			got <- two.WithLock(ctx, "invoice:7", 10*time.Second, func(context.Context, *leasehold.Lease) error { return nil })
		}()
		require.Eventually(t, func() bool {
			state, err := one.Inspect(ctx, "invoice:7")
			return err == nil && state.Waiters == 1 && len(admin.PubSubChannels(ctx, "app:*").Val()) == 1
		}, 10*time.Second, 5*time.Millisecond)
		require.NoError(t, lease.Release(ctx))
		require.NoError(t, <-got)
	}
	// A poll that Redis runs after the release finds the lock before the message is read. One such poll follows the
	// confirmation of the subscription, and it may still be under way, so the first hand-over proves nothing.
	for begun := time.Now(); two.Stats().AcquiredByMessage == 0; handOver() {
		require.Less(t, time.Since(begun), 10*time.Second, "no hand-over came by message")
	}
	require.NoError(t, one.ForceRelease(ctx, "invoice:7"))

	require.NoError(t, admin.Set(ctx, "app:leasehold:counter:{app:invoice:8}", int64(1)<<52, time.Hour).Err())
	ahead, err := one.TryAcquire(ctx, "invoice:8", 10*time.Second) // its counter is ahead of the clock
	require.NoError(t, err)
	assert.EqualValues(t, 1<<52+1, ahead.FencingToken())

	lease, err := one.TryAcquire(ctx, "invoice:7", 10*time.Second)
	require.NoError(t, err)
	wait, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = two.Acquire(wait, "invoice:7", 10*time.Second) // its clean-up needs rights as well
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Eventually(t, func() bool {
		state, err := one.Inspect(ctx, "invoice:7")
		return err == nil && state.Waiters == 0
	}, 10*time.Second, 5*time.Millisecond)
	require.NoError(t, lease.Release(ctx))

	refused, err := admin.Do(ctx, "ACL", "LOG").Slice()
	require.NoError(t, err)
	assert.Empty(t, refused)
}
