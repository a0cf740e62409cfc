package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPercentileIsTheNearestRank(t *testing.T) {
	values := []float64{50, 15, 40, 20, 35}
	for p, want := range map[float64]float64{0: 15, 5: 15, 20: 15, 30: 20, 40: 20, 50: 35, 99: 50, 100: 50} {
		require.Equal(t, want, percentile(values, p), "p%v", p)
	}
	require.Equal(t, []float64{50, 15, 40, 20, 35}, values, "the values are not reordered")
	require.True(t, math.IsNaN(percentile(nil, 50)))
}

func TestMedianOfAnEvenNumberIsTheMeanOfTheMiddleTwo(t *testing.T) {
	require.Equal(t, 3.0, median([]float64{9, 1, 3}))
	require.Equal(t, 2.5, median([]float64{9, 1, 3, 2}))
	require.True(t, math.IsNaN(median(nil)))
}

func TestJainRunsFromOneOverNToOne(t *testing.T) {
	require.Equal(t, 1.0, jain([]float64{7, 7, 7, 7}))
	require.Equal(t, 0.25, jain([]float64{0, 9, 0, 0}))
	require.InDelta(t, 0.9, jain([]float64{1, 2}), 1e-9)
	require.Equal(t, 1.0, jain([]float64{0, 0}))
}
