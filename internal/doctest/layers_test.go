package doctest_test

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	module  = "github.com/go-leasehold/leasehold"
	goredis = "github.com/redis/go-redis/"
)

// leaves import no package of this module, and every other package may import them.
var leaves = []string{"internal/clock", "internal/fault", "internal/inflight", "internal/rediskey", "internal/token"}

// layers are the packages that exist or are planned, with what each may import of this module outside its tests. The arrows
// lead downward: the root, then line, keep and quorum, which do not know each other, then backend, roundtrip and script, then
// the leaves. A package that does not stand here is refused: say where it belongs first.
var layers = map[string][]string{
	".": with("internal/line", "internal/keep", "internal/quorum", "internal/fenced", "internal/inside", "internal/backend", "internal/roundtrip", "internal/script", "internal/several", "internal/short", "internal/diagnose"),

	"internal/line":   with("internal/backend", "internal/roundtrip", "internal/script"),
	"internal/quorum": with("internal/quorum/nodescript", "internal/quorum/proposal", "internal/backend", "internal/roundtrip", "internal/script"),
	// keep knows no Redis, so it imports neither what speaks to Redis nor what names its keys.
	"internal/keep": {"internal/clock", "internal/fault", "internal/inflight", "internal/token"},

	// Parts of the quorum that know nothing of it.
	"internal/quorum/nodescript": with("internal/backend", "internal/roundtrip", "internal/script"),
	"internal/quorum/proposal":   nil,

	"internal/backend":   with(),
	"internal/diagnose":  with(),
	"internal/roundtrip": with("internal/backend", "internal/script"),
	"internal/script":    with(),
	// The short scripts of the root's, which has no room for them.
	"internal/short": with("internal/backend", "internal/roundtrip", "internal/script"),

	// The scripts of locks that several hold, and the tenure that sends them.
	"internal/several": with("internal/backend", "internal/roundtrip", "internal/script"),

	"internal/fenced":   with(),
	"internal/inside":   with("internal/line", "internal/keep", "internal/backend", "internal/script"),
	"internal/clock":    nil,
	"internal/fault":    nil,
	"internal/inflight": nil,
	"internal/rediskey": nil,
	"internal/token":    nil,

	// Packages on the public API alone.
	"election":        {"."},
	"examples/worker": {"."},
	"fencehttp":       {"."},
	"leaseholdtest":   {".", "internal/redistest"},
	"cmd/leasehold":   {".", "internal/diagnose"},

	// Packages for tests. Only leaseholdtest may import one of them into a program.
	"internal/redistest":         nil,
	"internal/quorum/quorumtest": with("internal/redistest", "internal/script", "internal/quorum/nodescript"),
	"internal/locktest":          with(".", "internal/redistest", "internal/inside", "internal/backend", "internal/line", "internal/quorum/quorumtest", "internal/script", "internal/short"),
	"internal/sim":               with("internal/redistest"),
	"internal/doctest":           nil,
	"guarantees":                 nil,
}

func with(more ...string) []string { return append(more, leaves...) }

// withoutRedis are the packages that must work with any store of locks. "all" means that nothing which they import imports
// go-redis either.
var withoutRedis = map[string]string{"internal/backend": "itself", "internal/keep": "all"}

// users are the folders that may import the root outside of tests, those of the nested modules included.
var users = []string{
	"bench", "cmd", "election", "examples", "fencehttp", "gocronlock", "internal/locktest", "leaseholdotel", "leaseholdtest",
}

// A listed package is what go list says of it.
type listed struct {
	ImportPath    string
	Imports, Deps []string
}

func TestPackagesImportOnlyWhatStandsBelowThem(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		name := relative(p.ImportPath)
		allowed, known := layers[name]
		if !assert.True(t, known, "%s has no place in the layers", name) {
			continue
		}
		for _, path := range p.Imports {
			if other := relative(path); other != "" {
				assert.Contains(t, allowed, other, "%s imports %s", name, other)
			}
		}
		switch withoutRedis[name] {
		case "itself":
			assert.False(t, speaksRedis(p.Imports), "%s imports go-redis", name)
		case "all":
			assert.False(t, speaksRedis(p.Deps), "%s depends on go-redis", name)
		}
	}
}

// The nested modules stand here as well. Their imports are read from the files, since go list would ask for what they need.
func TestTheRootIsImportedOnlyByItsUsers(t *testing.T) {
	t.Parallel()
	imports := 0
	walk(t, func(file string) {
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, read(t, file), parser.ImportsOnly)
		require.NoError(t, err)
		for _, spec := range parsed.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			folder := path.Dir(file)
			if imported == module {
				imports++
				assert.True(t, isUser(folder), "%s imports the root", file)
			}
			// bench measures the scripts themselves, and nobody requires it in another version than this.
			if _, core := layers[folder]; !core && folder != "bench" {
				assert.False(t, strings.HasPrefix(relative(imported), "internal/"), "%s imports %s", file, imported)
			}
		}
	})
	assert.Positive(t, imports)
}

// forTests reports whether a package is for tests, so that it may look into the machines.
func forTests(name string) bool { return name == "internal/inside" || name == "internal/locktest" }

// The table itself can contradict the rules.
func TestTheLayersHaveOneDirection(t *testing.T) {
	for _, leaf := range leaves {
		assert.Empty(t, layers[leaf], leaf)
	}
	machines := []string{"internal/line", "internal/keep", "internal/quorum"}
	for name, allowed := range layers {
		for _, other := range allowed {
			assert.Contains(t, layers, other, "imported by %s", name)
			if slices.Contains(machines, other) && !forTests(name) {
				assert.Equal(t, ".", name, "%s is entered by the root alone", other)
			}
			if other == "." {
				assert.True(t, isUser(name), "%s imports the root", name)
			}
			assert.NotContains(t, layers[other], name, "%s and %s import each other", name, other)
		}
	}
	for name := range withoutRedis {
		assert.Contains(t, layers, name)
	}
}

func isUser(folder string) bool {
	return slices.ContainsFunc(users, func(user string) bool { return folder == user || strings.HasPrefix(folder, user+"/") })
}

func list(t *testing.T) (all []listed) {
	t.Helper()
	out := json.NewDecoder(strings.NewReader(run(t, root, "go", "list", "-json=ImportPath,Imports,Deps", "./...")))
	for {
		var p listed
		err := out.Decode(&p)
		if errors.Is(err, io.EOF) {
			require.NotEmpty(t, all)
			return all
		}
		require.NoError(t, err)
		all = append(all, p)
	}
}

// relative is the folder of a package of this module, "." for the root and "" for a package of another module.
func relative(importPath string) string {
	if importPath == module {
		return "."
	}
	folder, _ := strings.CutPrefix(importPath, module+"/")
	if folder == importPath {
		return ""
	}
	return folder
}

func speaksRedis(imports []string) bool {
	return slices.ContainsFunc(imports, func(path string) bool { return strings.HasPrefix(path, goredis) })
}
