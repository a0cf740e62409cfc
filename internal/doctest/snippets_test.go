package doctest_test

import (
	_ "database/sql" // with log/slog, so that the compiler has built for this test what a snippet may import
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	_ "log/slog"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The type checker of the standard library is that of the compiler. It judges each snippet on its own, and names the
// document's own lines. The go command runs once, and finds the packages where the build of this test has put them.
func TestEveryGoSnippetOfTheDocumentsCompiles(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	var files []*ast.File
	paths := map[string]bool{}
	for _, b := range allBlocks(t, "go") {
		file, err := parser.ParseFile(fset, b.file, b.program(), parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, file)
		for _, spec := range file.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			paths[path] = true
		}
	}
	require.NotEmpty(t, files)
	exports := exported(t, paths)
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, errors.New("no such package")
		}
		return os.Open(exports[path])
	})}
	var mistakes []string
	config.Error = func(err error) { mistakes = append(mistakes, err.Error()) }
	for _, file := range files {
		_, _ = config.Check("snippet", fset, []*ast.File{file}, nil)
	}
	assert.Empty(t, strings.Join(mistakes, "\n"))
}

// exported finds the compiled form of the packages and of all that they import.
func exported(t *testing.T, paths map[string]bool) map[string]string {
	t.Helper()
	args := []string{"list", race, "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}
	for path := range paths {
		args = append(args, path)
	}
	exports := map[string]string{}
	for line := range strings.Lines(run(t, root, "go", args...)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[path] = file
	}
	return exports
}

// run runs a command in that folder and returns what it writes to its standard output.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Stderr = dir, &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s%s", out, &stderr)
	return string(out)
}

// imports are what a snippet that is no whole file may use without saying so.
var imports = map[string]string{
	"context": "context", "errors": "errors", "fmt": "fmt", "log": "log", "os": "os", "slog": "log/slog", "sql": "database/sql",
	"http": "net/http", "signal": "os/signal", "syscall": "syscall", "testing": "testing",
	"time": "time", "redis": "github.com/redis/go-redis/v9", "leasehold": module,
	"election": module + "/election", "leaseholdtest": module + "/leaseholdtest",
}

// given is what such a snippet finds in the function that it is taken from.
const given = "ctx context.Context, client *redis.Client, locker *leasehold.Locker, db *sql.DB, logger *slog.Logger, " +
	"invoices []int, pay func(ctx context.Context, invoice int, fencingToken int64) error"

// program makes a file of a snippet: of a whole file, of declarations, or of statements.
func (b block) program() string {
	at := fmt.Sprintf("//line %s:%d\n", b.file, b.line)
	if strings.HasPrefix(b.text, "package ") {
		return at + b.text
	}
	body := at + b.text
	if _, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+body, 0); err != nil {
		body = "func _(" + given + ") (_ error) {\n{\n" + body + "}\nreturn\n}\n"
	}
	used := map[string]bool{}
	tree, _ := parser.ParseFile(token.NewFileSet(), "", "package p\n"+body, 0)
	if tree != nil {
		ast.Inspect(tree, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := sel.X.(*ast.Ident); ok {
					used[x.Name] = true
				}
			}
			return true
		})
	}
	head := "package snippet\n"
	for name, path := range imports {
		if used[name] {
			head += "import " + strconv.Quote(path) + "\n"
		}
	}
	return head + body
}

// Commands in the documents are those that a reader types first, so what they name must be there.
func TestEveryCommandOfTheDocumentsCanBeRun(t *testing.T) {
	var targets []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):`).FindAllStringSubmatch(read(t, "Makefile"), -1) {
		targets = append(targets, m[1])
	}
	commands := 0
	for _, b := range allBlocks(t, "sh") {
		for i, line := range strings.Split(strings.TrimSpace(b.text), "\n") {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " # ")
			where := fmt.Sprintf("%s:%d: %s", b.file, b.line+i, line)
			dir := "."
			for command := range strings.SplitSeq(line, " && ") {
				commands++
				words := strings.Fields(command)
				for len(words) > 0 && regexp.MustCompile(`^[A-Z_]+=`).MatchString(words[0]) {
					words = words[1:]
				}
				require.NotEmpty(t, words, where)
				switch words[0] {
				case "cd":
					dir = path.Join(dir, words[1])
					assert.True(t, exists(dir), where)
				case "make":
					for _, word := range words[1:] {
						assert.Contains(t, targets, word, where)
					}
				case "go":
					for _, word := range words[2:] {
						if word == "." || strings.HasPrefix(word, "./") {
							assert.NotEmpty(t, glob(t, path.Join(dir, strings.TrimSuffix(word, "..."), "*.go")), where)
						}
					}
				case "bash":
					assert.True(t, exists(path.Join(dir, words[1])), where)
				case "leasehold":
					assert.True(t, exists(path.Join("cmd/leasehold", words[1]+".go")), where)
				case "redis-cli": // TestTheCommandsOfTheRunbookShowTheLock
				case "git": // its subjects are tags and remotes
				default:
					assert.Fail(t, "a command that this test does not know", where)
				}
			}
		}
	}
	assert.GreaterOrEqual(t, commands, 2)
}
