package doctest_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTheCoreHasThreeDirectDependencies(t *testing.T) {
	var direct []string
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllStringSubmatch(read(t, "go.mod"), -1) {
		direct = append(direct, m[1])
	}
	assert.Equal(t, []string{
		"github.com/alicebob/miniredis/v2",
		"github.com/redis/go-redis/v9",
		"github.com/stretchr/testify",
	}, direct)
}

// sleepers are the tests that may sleep outside of a bubble, since they wait for real processes, and poll; and the parts of
// the simulation, whose bubble stands in sim_test.go.
var sleepers = []string{
	"guarantees/process_test.go",
	"internal/sim/sim_actor_test.go",
	"internal/sim/sim_network_test.go",
}

func TestTheSourcesKeepTheRules(t *testing.T) {
	bubble := regexp.MustCompile(`\bsynctest\.|[bB]ubble\(`)
	sleep := regexp.MustCompile(`\btime\.Sleep\(`)
	unfinished := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME)\b`)
	walk(t, func(file string) {
		if !strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, ".lua") {
			return
		}
		text := read(t, file)
		assert.LessOrEqual(t, strings.Count(text, "\n"), 500, "lines of %s", file)
		assert.False(t, unfinished.MatchString(text), "%s is not finished", file)
		if strings.HasSuffix(file, "_test.go") && sleep.MatchString(text) && !slices.Contains(sleepers, file) {
			assert.True(t, bubble.MatchString(text), "%s sleeps in real time", file)
		}
	})
}

// ofTheCommand are the variables that "leasehold run" sets for its command, whose help explains them.
var ofTheCommand = []string{"LEASEHOLD_KEY", "LEASEHOLD_FENCING_TOKEN", "LEASEHOLD_DEADLINE"}

// Whoever runs the tests must be able to find what steers them.
func TestEveryVariableOfTheTestsIsExplained(t *testing.T) {
	variable := regexp.MustCompile(`\bLEASEHOLD_[A-Z_]+\b`)
	found := map[string]bool{}
	walk(t, func(file string) {
		if strings.HasSuffix(file, ".go") {
			for _, name := range variable.FindAllString(read(t, file), -1) {
				found[name] = !slices.Contains(ofTheCommand, name)
			}
		}
	})
	for name, steers := range found {
		if steers && !strings.HasPrefix(name, "LEASEHOLD_TEST_") { // a test sets these for its own processes
			says(t, "CONTRIBUTING.md", "| `"+name+"` |")
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(LEASEHOLD_\\w+)` \\|").FindAllStringSubmatch(read(t, "CONTRIBUTING.md"), -1) {
		assert.True(t, found[m[1]], "CONTRIBUTING.md explains %s, and nothing reads it", m[1])
	}
	assert.Contains(t, found, "LEASEHOLD_SIM_RUNS")
}
