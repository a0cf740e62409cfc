//go:build !race

package doctest_test

// race makes the go command look for packages where this test's own are: those built without the race detector.
const race = "-race=false"
