package doctest_test

import (
	"go/ast"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The chart is made by bench, and so comes and goes; the README shows it when it is there.
func TestTheReadmeShowsTheChart(t *testing.T) {
	if _, err := os.Stat("bench/chart.svg"); err == nil {
		says(t, "README.md", "](bench/chart.svg)")
	}
}

func TestTheReadmeListsEveryOption(t *testing.T) {
	var listed, exist []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(With\\w+)\\(").FindAllStringSubmatch(read(t, "README.md"), -1) {
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
