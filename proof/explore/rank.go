package explore

// Rank replaces numbers by their ranks, from 1, and leaves 0 as it is. It is for numbers of which a model uses the order
// alone, such as fencing tokens: states that differ in nothing else become one state. Every number is below 64.
func Rank(numbers []*uint8) {
	var seen uint64
	for _, n := range numbers {
		seen |= 1 << *n
	}
	RankAmong(seen, numbers)
}

// RankAmong is Rank among more numbers than those that are replaced: bit n of seen says that n has a rank.
func RankAmong(seen uint64, numbers []*uint8) {
	var ranks [64]uint8
	var r uint8
	for n := 1; n < 64; n++ {
		if seen&(1<<n) != 0 {
			r++
			ranks[n] = r
		}
	}
	for _, n := range numbers {
		*n = ranks[*n]
	}
}
