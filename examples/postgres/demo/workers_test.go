package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/examples/postgres"
	"github.com/go-leasehold/leasehold/examples/postgres/internal/servers"
)

func needServers(t *testing.T) {
	t.Helper()
	if err := servers.Installed(); err != nil {
		if os.Getenv("LEASEHOLD_REQUIRE_POSTGRES") == "1" || os.Getenv("LEASEHOLD_REQUIRE_REDIS") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// newCrew has servers of its own.
func newCrew(t *testing.T) *crew {
	t.Helper()
	needServers(t)
	s, err := servers.Start(t.Context())
	require.NoError(t, err)
	t.Cleanup(s.Stop)
	_, err = s.DB.Exec(t.Context(), postgres.Schema)
	require.NoError(t, err)
	return &crew{db: s.DB, redis: s.Redis}
}

func TestWithoutFencingPausedWorkersLoseUpdates(t *testing.T) {
	t.Parallel()
	total, err := newCrew(t).untilFault(t.Context(), unfenced, lost)
	require.NoError(t, err)
	assert.Positive(t, total.lost)
	t.Logf("%d of %d updates lost", total.lost, total.written)
}

func TestWithFencingPausedWorkersLoseNoUpdate(t *testing.T) {
	t.Parallel()
	total, err := newCrew(t).untilFault(t.Context(), fenced, refused)
	require.NoError(t, err)
	assert.Zero(t, total.lost)
	t.Logf("%d updates written, %d refused", total.written, total.refused)
}

// A holder before may write between an unfenced read and the write that depends on it.
func TestToFenceTheWritesOnlyLosesUpdates(t *testing.T) {
	t.Parallel()
	total, err := newCrew(t).untilFault(t.Context(), writesFenced, lost)
	require.NoError(t, err)
	assert.Positive(t, total.lost)
	t.Logf("%d of %d updates lost, %d refused", total.lost, total.written, total.refused)
}
