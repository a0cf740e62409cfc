package main

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

func TestJudgeCountsWhoGotInAndHowLongTheOthersWaited(t *testing.T) {
	sections := []section{
		{who: 0, asked: 0, entered: 5 * ms, left: 9 * ms}, // before the window
		{who: 1, asked: 2 * ms, entered: 10 * ms, left: 12 * ms},
		{who: 0, asked: 10 * ms, entered: 13 * ms, left: 15 * ms},
		{who: 0, asked: 15 * ms, entered: 17 * ms, left: 19 * ms},
		{who: 1, asked: 12 * ms, entered: 31 * ms, left: 33 * ms}, // after it
	}
	unserved := []section{
		{who: 2, asked: 1 * ms},
		{who: 3, asked: 40 * ms}, // after it
	}
	v := judge(sections, unserved, 3, 10*ms, 30*ms)
	require.Equal(t, 3.0, v["sections"])
	require.InDelta(t, 150, v["rate"], 1e-9)
	require.InDelta(t, 30, v["use"], 1e-9, "6 of 20 ms")
	require.InDelta(t, jain([]float64{2, 1, 0}), v["jain"], 1e-9)
	require.Equal(t, 50.0, v["same"], "one of two hand-overs")
	require.Equal(t, 29.0, v["waitMax"], "whoever never got in counts until the end")
	require.InDelta(t, 29.0/20, v["fair"], 1e-9, "three sections of 20/3 ms for three contenders")
	require.Equal(t, 1500.0, v["gapMean"], "1 ms and 2 ms")
	require.Zero(t, v["overlaps"])
}

func TestJudgeSeesOverlapsWhateverTheOrderOfTheLog(t *testing.T) {
	late := section{who: 1, entered: 12 * ms, left: 14 * ms}
	v := judge([]section{late, {who: 0, entered: 10 * ms, left: 13 * ms}}, nil, 2, 0, 20*ms)
	require.Equal(t, 1.0, v["overlaps"])
	v = judge([]section{late, {who: 0, entered: 10 * ms, left: 11 * ms}}, nil, 2, 0, 20*ms)
	require.Zero(t, v["overlaps"])
}

func TestJudgeIgnoresAnAskAfterTheEnd(t *testing.T) {
	v := judge(nil, []section{{asked: 21 * ms}}, 1, 0, 20*ms)
	require.True(t, math.IsNaN(v["waitMax"]))
}

func TestJudgeSeesASectionWithinALongerOne(t *testing.T) {
	v := judge([]section{
		{who: 0, entered: 1 * ms, left: 9 * ms},
		{who: 1, entered: 2 * ms, left: 3 * ms},
		{who: 2, entered: 5 * ms, left: 6 * ms},
	}, nil, 3, 0, 20*ms)
	require.Equal(t, 2.0, v["overlaps"])
}

func TestJudgeLivenessCountsOnlyThoseWhoWaitedAtTheEnd(t *testing.T) {
	sections := []section{
		{entered: 90 * ms}, {entered: 110 * ms}, {entered: 300 * ms}, {entered: 301 * ms},
	}
	v := judgeLiveness(sections, []section{{}}, 100*ms)
	require.Equal(t, 4.0, v["waiters"])
	require.Equal(t, 2.0, v["soon"])
	require.Equal(t, 3.0, v["late"])
	require.Equal(t, 1.0, v["hung"])
	require.Equal(t, 5000.0, v["last"], "a hung waiter is served last, and later than that")
}
