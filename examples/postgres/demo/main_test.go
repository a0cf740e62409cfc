package main

import (
	"context"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheDemoShowsLostUpdatesAndNoneWithFencing(t *testing.T) {
	t.Parallel()
	needServers(t)
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out))
	t.Log(out.String())
	some, none := `[1-9]\d*`, `0`
	for _, line := range [][4]string{
		{"without fencing", some, none, some},
		{"only the writes fenced", some, `\d+`, some},
		{"reads and writes fenced", some, some, none},
	} {
		assert.Regexp(t, regexp.MustCompile(`(?m)^`+strings.Join(line[:], " +")+`$`), out.String())
	}
	for line := range strings.Lines(out.String()) {
		assert.LessOrEqual(t, len(line), 120)
	}
}

func TestTheDemoFailsIfItsClaimDoesNotHold(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	wrong := []scene{{"said to be safe", unfenced, lost, true}}
	require.ErrorContains(t, play(t.Context(), io.Discard, c, wrong), "not in the balance")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, play(ctx, io.Discard, c, scenes), context.Canceled)
}

func TestTheDemoNamesWhatIsNotInstalled(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	require.ErrorContains(t, run(t.Context(), io.Discard), "redis-server (Debian: apt-get install")
}
