package doctest_test

import (
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/redistest"
)

// The first program is pasted as it stands into a module of a reader's own. Then one expression makes it use a real Redis.
func TestTheFirstProgramOfTheReadmeRuns(t *testing.T) {
	t.Parallel()
	program := blocks(t, "README.md", "go")[0].text
	const changed = "server.Addr()"
	replacement := `"localhost:6379"`
	says(t, "README.md", "write `Addr: "+replacement+"` instead of `Addr: "+changed+"`")
	require.Equal(t, 1, strings.Count(program, changed))
	works := regexp.MustCompile(`^paying invoice:7 with fencing token \d{16}\nerror: <nil>\n$`)

	assert.Regexp(t, works, runProgram(t, program))
	t.Run("with a real Redis", func(t *testing.T) {
		server := redistest.Server(t)
		assert.Regexp(t, works, runProgram(t, strings.Replace(program, changed, strconv.Quote(server.Addr()), 1)))
		assert.EqualValues(t, 1, server.Client().Exists(t.Context(), "leasehold:counter:{invoice:7}").Val())
	})
}

// runProgram runs a program in a module that requires this one, and returns what it prints.
func runProgram(t *testing.T, program string) string {
	t.Helper()
	dir := t.TempDir()
	_, requirements, _ := strings.Cut(read(t, "go.mod"), "\nrequire")
	mod := fmt.Sprintf("module first\n\ngo 1.26.0\n\nrequire %[1]s v0.0.0\n\nreplace %[1]s => %[2]s\n\nrequire%[3]s", module, root, requirements)
	for name, text := range map[string]string{"main.go": program, "go.mod": mod, "go.sum": read(t, "go.sum")} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return run(t, dir, "go", "run", race, "-ldflags=-s -w", ".")
}

// A README that is longer is not read to its end. 160, and the lines of WithSlots and WithShared in the table.
func TestTheReadmeIsShort(t *testing.T) {
	assert.LessOrEqual(t, lines(t, "README.md"), 165) // 160, rows for WithMinHold and WithCounterLife, the bytes; WithSlots and WithShared
}

// The chart is made by bench, and so comes and goes; the README shows it when it is there.
func TestTheReadmeShowsTheChart(t *testing.T) {
	if exists("bench/chart.svg") {
		says(t, "README.md", "](bench/chart.svg)")
	}
}

func TestTheReadmeListsEveryOption(t *testing.T) {
	var listed, exist []string
	row := regexp.MustCompile("(?m)^\\| `(With\\w+)\\([^|]+\\| ([^|]+) \\| ([^|]+) \\| ([^|]+\\.) \\|$") // the effect is a sentence
	for _, m := range row.FindAllStringSubmatch(read(t, "README.md"), -1) {
		listed = append(listed, m[1])
	}
	for _, file := range sources(t, ".") {
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "With") {
				exist = append(exist, f.Name.Name)
			}
		}
	}
	assert.ElementsMatch(t, exist, listed)
}

func TestTheReadmeNamesTheVersionsOfGoMod(t *testing.T) {
	mod := read(t, "go.mod")
	for _, m := range regexp.MustCompile(`/(go-redis|miniredis)/v\d+ (v\S+)`).FindAllStringSubmatch(mod, -1) {
		says(t, "README.md", m[1]+" "+m[2])
	}
	minor := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(mod)
	says(t, "README.md", "Go "+minor[1]+",")
}
