package leasehold_test

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// block is a fenced piece of a document.
type block struct {
	file string
	line int // of its first line
	lang string
	text string
}

var fenced = regexp.MustCompile("(?ms)^ *```(\\w*)\n(.*?)^ *```$")

// blocks returns the pieces in that language of all documents.
func blocks(t *testing.T, lang string) (found []block) {
	t.Helper()
	for _, file := range documents(t) {
		text := read(t, file)
		for _, m := range fenced.FindAllStringSubmatchIndex(text, -1) {
			b := block{file, 1 + strings.Count(text[:m[4]], "\n"), text[m[2]:m[3]], text[m[4]:m[5]]}
			if b.lang == lang {
				found = append(found, b)
			}
		}
	}
	return found
}

func documents(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	return append(files, "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

// says reports whether the document has the text, without printing the whole of it.
func says(t *testing.T, file, text string) {
	t.Helper()
	assert.True(t, strings.Contains(read(t, file), text), "%s does not say %s", file, text)
}

// The snippets are packages of this module that exist only in an overlay: the compiler judges what a reader would paste,
// and names the document's own lines.
func TestEveryGoSnippetOfTheDocumentsCompiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	module, err := filepath.Abs(".")
	require.NoError(t, err)
	overlay := map[string]string{}
	args := []string{"build", "-o", os.DevNull, "-overlay", filepath.Join(dir, "overlay.json")}
	for i, b := range blocks(t, "go") {
		name := fmt.Sprintf("snippet%d", i)
		file := filepath.Join(dir, name+".go")
		require.NoError(t, os.WriteFile(file, []byte(b.program()), 0o600))
		overlay[filepath.Join(module, name, "snippet.go")] = file
		args = append(args, "./"+name)
	}
	require.NotEmpty(t, overlay)
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), text, 0o600))

	out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// imports are what a snippet that is no whole file may use without saying so.
var imports = map[string]string{
	"context": "context", "errors": "errors", "fmt": "fmt", "log": "log", "os": "os", "slog": "log/slog", "sql": "database/sql",
	"time": "time", "redis": "github.com/redis/go-redis/v9", "leasehold": "github.com/go-leasehold/leasehold",
}

// given is what such a snippet finds in the function that it is taken from.
const given = "ctx context.Context, client *redis.Client, locker *leasehold.Locker, db *sql.DB, logger *slog.Logger, " +
	"invoices []int, pay func(ctx context.Context, invoice int, fencingToken int64) error"

// program makes a file of a snippet: of a whole file, of declarations, or of statements.
func (b block) program() string {
	at := fmt.Sprintf("//line %s:%d\n", b.file, b.line)
	if program, ok := strings.CutPrefix(b.text, "package main"); ok {
		return at + "package snippet" + program // which is compiled but not linked
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
	target := regexp.MustCompile(`(?m)^([a-z]+):`)
	var targets []string
	for _, m := range target.FindAllStringSubmatch(read(t, "Makefile"), -1) {
		targets = append(targets, m[1])
	}
	commands := 0
	for _, b := range blocks(t, "sh") {
		for i, line := range strings.Split(strings.TrimSpace(b.text), "\n") {
			line, _, _ = strings.Cut(line, " # ")
			where := fmt.Sprintf("%s:%d: %s", b.file, b.line+i, line)
			dir := "."
			for command := range strings.SplitSeq(line, " && ") {
				commands++
				words := strings.Fields(command)
				require.NotEmpty(t, words, where)
				switch words[0] {
				case "cd":
					dir = filepath.Join(dir, words[1])
					assert.DirExists(t, dir, where)
				case "make":
					for _, word := range words[1:] {
						assert.Contains(t, targets, word, where)
					}
				case "go":
					for _, word := range words[2:] {
						if word == "." || strings.HasPrefix(word, "./") {
							sources, _ := filepath.Glob(filepath.Join(dir, strings.TrimSuffix(word, "..."), "*.go"))
							assert.NotEmpty(t, sources, where)
						}
					}
				case "bash":
					assert.FileExists(t, filepath.Join(dir, words[1]), where)
				case "redis-cli": // TestTheCommandsOfTheRunbookShowTheLock
				default:
					assert.Fail(t, "a command that this test does not know", where)
				}
			}
		}
	}
	assert.GreaterOrEqual(t, commands, 2)
}

func TestEveryLinkOfTheDocumentsLeadsToAFile(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)
	for _, file := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, file), -1) {
			if !strings.Contains(m[1], "://") {
				assert.FileExists(t, filepath.Join(filepath.Dir(file), m[1]), "linked from %s", file)
			}
		}
	}
}

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
	for _, file := range sources(t) {
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

func TestTheRunbookExplainsEveryCounterAndEveryLogLine(t *testing.T) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[leasehold.Stats]()) {
		says(t, "docs/runbook.md", "| `"+field.Name+"` |")
	}
	lines := 0
	for _, file := range sources(t) {
		ast.Inspect(file, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			text, _ := strconv.Unquote(lit.Value)
			if line, ok := strings.CutPrefix(text, "leasehold: "); ok && !strings.Contains(line, "%") {
				lines++
				says(t, "docs/runbook.md", "| `"+text+"` |")
			}
			return true
		})
	}
	assert.Positive(t, lines)
}

// sources parses the package without its tests.
func sources(t *testing.T) (files []*ast.File) {
	t.Helper()
	names, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			require.NoError(t, err)
			files = append(files, file)
		}
	}
	return files
}

func TestTheCommandsOfTheRunbookShowTheLock(t *testing.T) {
	_, client := redistest.Mini(t)
	ctx := t.Context()
	locker := leasehold.New(client)
	defer locker.Close()
	lease, err := locker.TryAcquire(ctx, "invoice:7", 10*time.Second)
	require.NoError(t, err)
	go func() { _, _ = locker.Acquire(ctx, "invoice:7", 10*time.Second) }()
	require.Eventually(t, func() bool {
		state, err := locker.Inspect(ctx, "invoice:7")
		return err == nil && state.Waiters == 1
	}, 10*time.Second, 5*time.Millisecond)

	shown := 0
	for _, b := range blocks(t, "sh") {
		for _, m := range regexp.MustCompile(`(?m)^redis-cli ([^#\n]+)`).FindAllStringSubmatch(b.text, -1) {
			var words []any
			for word := range strings.FieldsSeq(m[1]) {
				words = append(words, word)
			}
			reply, err := client.Do(ctx, words...).Result()
			require.NoError(t, err, m[0])
			assert.NotEmpty(t, reply, m[0])
			shown++
		}
	}
	assert.Positive(t, shown)
	require.NoError(t, lease.Release(ctx))
}

// The rule is for a Locker WithKeyPrefix("app:"). Everything must work under it, the messages included.
func TestTheACLRuleOfTheRunbookIsEnough(t *testing.T) {
	t.Parallel()
	rules := blocks(t, "acl")
	require.Len(t, rules, 1)
	ctx := t.Context()
	server := redistest.Server(t)
	admin := server.Client()
	var words []any
	for word := range strings.FieldsSeq(rules[0].text) {
		words = append(words, word)
	}
	require.NoError(t, admin.Do(ctx, words...).Err())
	user := func() *leasehold.Locker {
		client := server.Client(func(o *redis.Options) { o.Username, o.Password, o.DisableIdentity = "billing", "secret", true })
		l := leasehold.New(client, leasehold.WithKeyPrefix("app:"))
		t.Cleanup(func() { assert.NoError(t, l.Close()) })
		return l
	}
	one, two := user(), user()

	handOver := func() {
		lease, err := one.TryAcquire(ctx, "invoice:7", 10*time.Second)
		require.NoError(t, err)
		require.NoError(t, lease.Renew(ctx))
		got := make(chan error)
		go func() {
			got <- two.WithLock(ctx, "invoice:7", 10*time.Second, func(context.Context, *leasehold.Lease) error { return nil })
		}()
		require.Eventually(t, func() bool {
			state, err := one.Inspect(ctx, "invoice:7")
			return err == nil && state.Waiters == 1 && len(admin.PubSubChannels(ctx, "app:*").Val()) == 1
		}, 10*time.Second, 5*time.Millisecond)
		require.NoError(t, lease.Release(ctx))
		require.NoError(t, <-got)
	}
	// A look that Redis runs after the release finds the lock before the message is read. One such look follows the
	// confirmation of the subscription, and it may still be under way, so the first hand-over proves nothing.
	for begun := time.Now(); two.Stats().AcquiredByMessage == 0; handOver() {
		require.Less(t, time.Since(begun), 10*time.Second, "no hand-over came by message")
	}
	require.NoError(t, one.ForceRelease(ctx, "invoice:7"))

	require.NoError(t, admin.Set(ctx, "app:leasehold:fence:{app:invoice:8}", int64(1)<<52, time.Hour).Err())
	ahead, err := one.TryAcquire(ctx, "invoice:8", 10*time.Second) // its counter is ahead of the clock
	require.NoError(t, err)
	assert.EqualValues(t, 1<<52+1, ahead.FencingToken())

	lease, err := one.TryAcquire(ctx, "invoice:7", 10*time.Second)
	require.NoError(t, err)
	wait, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = two.Acquire(wait, "invoice:7", 10*time.Second) // its clean-up needs rights as well
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Eventually(t, func() bool {
		state, err := one.Inspect(ctx, "invoice:7")
		return err == nil && state.Waiters == 0
	}, 10*time.Second, 5*time.Millisecond)
	require.NoError(t, lease.Release(ctx))

	refused, err := admin.Do(ctx, "ACL", "LOG").Slice()
	require.NoError(t, err)
	assert.Empty(t, refused)
}
