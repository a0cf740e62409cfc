package doctest_test

import (
	"go/ast"
	"go/doc"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pending are the goals that the code does not reach yet, each with the value that it has reached. That value is the limit for
// now, and may only come nearer to the goal: a step that improves it lowers the number here, and the one that reaches the goal
// takes the line out, which the test then asks for.
var pending = map[string]int{}

// short is how much is missing to the goals of pending.
var short = map[string]int{}

func atMost(t *testing.T, what string, goal, got int) {
	t.Helper()
	limit := goal
	if now, ok := pending[what]; ok {
		short[what], limit = got-goal, now
	}
	t.Logf("%s: %d, at most %d", what, got, limit)
	assert.LessOrEqual(t, got, limit, what)
}

func atLeast(t *testing.T, what string, goal, got int) {
	t.Helper()
	limit := goal
	if now, ok := pending[what]; ok {
		short[what], limit = goal-got, now
	}
	t.Logf("%s: %d, at least %d", what, got, limit)
	assert.GreaterOrEqual(t, got, limit, what)
}

// The shape of the code, so that it stays one that a reader finds his way in.
func TestTheCodeKeepsItsShape(t *testing.T) {
	t.Run("root", func(t *testing.T) {
		// adopt_test.go stands in guarantees, and not here, for finish.lua: release.lua does not learn about locks that rest.
		atMost(t, "entries of the root", 62, len(tracked(t)))
		sources := goSources(t, ".")
		atMost(t, "Go sources of the root", 15, len(sources))
		total := 0
		for _, file := range sources {
			total += lines(t, file)
		}
		// 2,600, and what came later: 12 for WithWait, whose wait is in line; 5 for Callers, since a hook of the client, which
		// makes spans, belongs to no package that may look into internal ones; 126 for Extend, whose rules are in keep, and
		// which moves the deadline of a lease, so it stands beside Renew; 33 for the short scripts (internal/short): store.go says
		// when they are sent; 28 for Shutdown, which is the first half of Close; 2 for giving commands back, which store.go makes;
		// 46 for WithMinHold: the option, when a release asks for the rest, and what store.go knows of the time;
		// 25 for WithCounterLife, which the same script of a release sees to;
		// 78 for WithSlots and WithShared, whose scripts and tenures are in internal/several: half of them are doc comments;
		// 38 for Diagnose, whose checks are in internal/diagnose: most of them are the doc comments of it and of Finding;
		// 37 for AdmitShared and RunShared, which stand beside Admit and Run.
		atMost(t, "lines of the root's Go sources", 3031, total)
	})
	t.Run("files", func(t *testing.T) {
		walk(t, func(file string) {
			if isSource(file) {
				atMost(t, "lines of "+file, 400, lines(t, file))
			}
		})
	})
	t.Run("internal packages", func(t *testing.T) {
		total := map[string]int{}
		walk(t, func(file string) {
			if strings.HasPrefix(file, "internal/") && isSource(file) {
				total[path.Dir(file)] += lines(t, file)
			}
		})
		require.NotEmpty(t, total)
		for name, n := range total {
			atMost(t, "lines of "+name, 1700, n)
		}
	})
	t.Run("comments", func(t *testing.T) {
		for _, name := range []string{"line", "keep", "quorum", "roundtrip"} {
			if sources := goSources(t, "internal/"+name); len(sources) > 0 {
				atLeast(t, "comments in internal/"+name+" (%)", 22, comments(t, sources))
			}
		}
	})
	t.Run("names", func(t *testing.T) {
		// 77, and WithSlots, WithShared, Lease.Slot and Lease.IsShared; Locker.Diagnose and Finding; the two methods for shared tokens.
		atMost(t, "exported names of the root", 85, len(exportedNames(t)))
	})
	t.Run("waiter's TTL", func(t *testing.T) {
		digits, places := regexp.MustCompile(`\b2_?500\b`), 0
		walk(t, func(file string) {
			if isSource(file) && (path.Dir(file) == "." || strings.HasPrefix(file, "internal/")) {
				places += len(digits.FindAllString(read(t, file), -1))
			}
		})
		assert.Positive(t, places)
		atMost(t, "places of the waiter's TTL", 1, places)
	})
	t.Run("fields of Lease", func(t *testing.T) {
		atMost(t, "uses of Lease's fields elsewhere", 0, fieldUses(t, "Lease", "lease.go", "renewal.go", "extend.go", "release.go"))
	})
	for what := range pending {
		missing, measured := short[what]
		assert.True(t, measured, "%s: nothing measures it any more, so take it out of pending", what)
		assert.True(t, !measured || missing > 0, "%s: the goal is reached, so take it out of pending", what)
	}
}

// tracked are the entries of the root that git knows; outside of a clone, all of them.
func tracked(t *testing.T) map[string]bool {
	t.Helper()
	entries := map[string]bool{}
	if !exists(".git") {
		found, err := os.ReadDir(root)
		require.NoError(t, err)
		for _, entry := range found {
			entries[entry.Name()] = true
		}
		return entries
	}
	for file := range strings.Lines(run(t, root, "git", "ls-files")) {
		first, _, _ := strings.Cut(strings.TrimSpace(file), "/")
		entries[first] = true
	}
	return entries
}

func isSource(file string) bool {
	return strings.HasSuffix(file, ".lua") || strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, "_test.go")
}

func goSources(t *testing.T, folder string) (files []string) {
	t.Helper()
	return slices.DeleteFunc(glob(t, folder+"/*.go"), func(file string) bool { return !isSource(file) })
}

func lines(t *testing.T, file string) int {
	t.Helper()
	return strings.Count(read(t, file), "\n")
}

// comments is the share, in per cent, of lines that hold nothing but a comment.
func comments(t *testing.T, files []string) int {
	t.Helper()
	all, told := 0, 0
	for _, file := range files {
		for line := range strings.Lines(read(t, file)) {
			all++
			if strings.HasPrefix(strings.TrimSpace(line), "//") {
				told++
			}
		}
	}
	return 100 * told / all
}

// exportedNames are the constants, variables, functions, types and methods of the root that a user sees; fields do not count.
// expected are the methods of interfaces of the standard library. Nobody has to learn them, or calls them by name.
var expected = []string{"Error", "Unwrap", "Is", "String", "GoString", "Format", "LogValue"}

func exportedNames(t *testing.T) (names []string) {
	t.Helper()
	fset := token.NewFileSet()
	var files []*ast.File
	for _, file := range goSources(t, ".") {
		parsed, err := parser.ParseFile(fset, file, read(t, file), parser.ParseComments)
		require.NoError(t, err)
		files = append(files, parsed)
	}
	p, err := doc.NewFromFiles(fset, files, module)
	require.NoError(t, err)
	values := func(all []*doc.Value) {
		for _, v := range all {
			for _, name := range v.Names {
				if ast.IsExported(name) {
					names = append(names, name)
				}
			}
		}
	}
	funcs := func(receiver string, all []*doc.Func) {
		for _, f := range all {
			if receiver == "" || !slices.Contains(expected, f.Name) {
				names = append(names, receiver+f.Name)
			}
		}
	}
	values(p.Consts)
	values(p.Vars)
	funcs("", p.Funcs)
	for _, typ := range p.Types {
		names = append(names, typ.Name)
		values(typ.Consts)
		values(typ.Vars)
		funcs("", typ.Funcs)
		funcs(typ.Name+".", typ.Methods)
	}
	return names
}

// fieldUses counts where other files of the root use the fields of that type.
func fieldUses(t *testing.T, typ string, own ...string) (uses int) {
	t.Helper()
	fset := token.NewFileSet()
	var files []*ast.File
	paths := map[string]bool{}
	for _, file := range goSources(t, ".") {
		parsed, err := parser.ParseFile(fset, file, read(t, file), 0)
		require.NoError(t, err)
		files = append(files, parsed)
		for _, spec := range parsed.Imports {
			paths[strings.Trim(spec.Path.Value, `"`)] = true
		}
	}
	exports := exported(t, paths)
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})}
	info := types.Info{Selections: map[*ast.SelectorExpr]*types.Selection{}}
	pkg, err := config.Check(module, fset, files, &info)
	require.NoError(t, err)
	require.NotNil(t, pkg.Scope().Lookup(typ))
	for expr, selection := range info.Selections {
		receiver := selection.Recv()
		if pointer, ok := receiver.(*types.Pointer); ok {
			receiver = pointer.Elem()
		}
		named, ok := receiver.(*types.Named)
		if ok && selection.Kind() == types.FieldVal && named.Obj().Name() == typ && named.Obj().Pkg() == pkg &&
			!slices.Contains(own, fset.Position(expr.Pos()).Filename) {
			uses++
		}
	}
	return uses
}
