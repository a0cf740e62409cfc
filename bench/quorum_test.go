package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The first acquire knows nothing of the nodes' clocks and needs a second round, so that what oneRound counts is seen both with
// and without one.
func TestAnAcquireOfTwoRoundsIsToldFromOneOfOne(t *testing.T) {
	t.Parallel()
	needRedis(t)
	ctx := t.Context()
	q := &quorumRun{}
	require.NoError(t, q.start(ctx, &bench{server: testServer(t)}))
	defer q.stop()
	c, err := columnNamed("leasehold")
	require.NoError(t, err)
	nodes := q.nodes[:3]
	open := func() *party {
		p, err := q.open(ctx, c, nodes)
		require.NoError(t, err)
		t.Cleanup(p.close)
		return p
	}
	measured := func(p *party, n int) float64 {
		ran := map[string]int64{}
		for _, sign := range []int64{-1, 1} {
			infos, err := settled(ctx, nodes)
			require.NoError(t, err)
			for _, in := range infos {
				for command, calls := range in.calls {
					ran[command] += sign * calls
				}
			}
			if sign < 0 {
				require.NoError(t, p.cycles(ctx, n))
			}
		}
		return oneRound(ran, n)
	}
	require.NoError(t, open().cycles(ctx, 1)) // from here on the nodes know the scripts

	p := open()
	require.LessOrEqual(t, measured(p, 1), 0.0)

	require.NoError(t, p.cycles(ctx, 20)) // it learns
	share := measured(p, 50)
	require.Greater(t, share, 50.0)
	require.LessOrEqual(t, share, 100.0)
}

func TestAQuotientIsToTheTurnOfTheSameRoundThatIsItsBase(t *testing.T) {
	turns := []turn{
		{as: record{Case: "1 node", Column: "leasehold"}},
		{as: record{Case: "3 nodes", Column: "leasehold"}},
		{as: record{Case: "3 nodes", Column: "redsync"}},
	}
	measured := []map[string]float64{{"us": 10}, {"us": 30}, {"us": 60}}
	divide(turns, measured, "us", "single", func(record) (string, string) { return "1 node", "leasehold" })
	divide(turns, measured, "us", "peer", func(r record) (string, string) { return r.Case, "redsync" })
	require.Equal(t, []map[string]float64{
		{"us": 10, "single": 1},
		{"us": 30, "single": 3, "peer": 0.5},
		{"us": 60, "single": 6, "peer": 1},
	}, measured)
}
