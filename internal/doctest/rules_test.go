package doctest_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
	"process_test.go",
	"sim_actor_test.go",
	"sim_network_test.go",
}

func TestTheSourcesKeepTheRules(t *testing.T) {
	bubble := regexp.MustCompile(`\bsynctest\.|[bB]ubble\(`)
	sleep := regexp.MustCompile(`\btime\.Sleep\(`)
	unfinished := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME)\b`)
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		file = filepath.ToSlash(file)
		if d.IsDir() {
			if file == ".git" {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, ".lua") {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		assert.LessOrEqual(t, strings.Count(string(text), "\n"), 500, "lines of %s", file)
		assert.False(t, unfinished.Match(text), "%s is not finished", file)
		if strings.HasSuffix(file, "_test.go") && sleep.Match(text) && !slices.Contains(sleepers, file) {
			assert.True(t, bubble.Match(text), "%s sleeps in real time", file)
		}
		return nil
	})
	require.NoError(t, err)
}
