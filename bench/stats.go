package main

import (
	"math"
	"slices"
	"time"
)

// percentile is the smallest value that at least p percent of the values do
// not exceed (nearest rank); NaN of nothing.
func percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

// median is the middle value, or the mean of the middle two; NaN of nothing.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

func sum(values []float64) float64 {
	var s float64
	for _, v := range values {
		s += v
	}
	return s
}

func mean(values []float64) float64 {
	return sum(values) / float64(len(values))
}

func highest(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	return slices.Max(values)
}

// jain is Jain's index of fairness: 1 if all have the same share, 1/n if one
// has everything. Shares of nothing are equal.
func jain(shares []float64) float64 {
	var s, squares float64
	for _, x := range shares {
		s += x
		squares += x * x
	}
	if squares == 0 {
		return 1
	}
	return s * s / (float64(len(shares)) * squares)
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
