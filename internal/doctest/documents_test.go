// Package doctest_test checks the documents against the code, and the code against the rules of the repository: which package
// imports which, and how large each may be.
package doctest_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// root is the folder of the module. Tests name files from there; what they open is an absolute path, because the go command
// repeats a test whose result it has cached only if such a file has changed.
var root = func() string {
	dir, err := filepath.Abs("../..")
	if err != nil {
		panic(err)
	}
	return dir
}()

func inRoot(file string) string { return filepath.Join(root, filepath.FromSlash(file)) }

func exists(file string) bool {
	_, err := os.Stat(inRoot(file))
	return err == nil
}

// glob lists the files that match, by their paths from the root with slashes.
func glob(t *testing.T, pattern string) (files []string) {
	t.Helper()
	found, err := filepath.Glob(inRoot(pattern))
	require.NoError(t, err)
	for _, file := range found {
		files = append(files, fromRoot(t, file))
	}
	return files
}

func fromRoot(t *testing.T, file string) string {
	t.Helper()
	name, err := filepath.Rel(root, file)
	require.NoError(t, err)
	return filepath.ToSlash(name)
}

// block is a fenced piece of a document.
type block struct {
	file string
	line int // of its first line
	lang string
	text string
}

var fence = regexp.MustCompile("(?ms)^ *```(\\w*)\n(.*?)^ *```$")

// blocks returns the pieces in that language of one document.
func blocks(t *testing.T, file, lang string) (found []block) {
	t.Helper()
	text := read(t, file)
	for _, m := range fence.FindAllStringSubmatchIndex(text, -1) {
		b := block{file, 1 + strings.Count(text[:m[4]], "\n"), text[m[2]:m[3]], text[m[4]:m[5]]}
		if b.lang == lang {
			found = append(found, b)
		}
	}
	return found
}

// allBlocks returns the pieces in that language of all documents of the core.
func allBlocks(t *testing.T, lang string) (found []block) {
	t.Helper()
	for _, file := range documents(t) {
		found = append(found, blocks(t, file, lang)...)
	}
	return found
}

// documents are those of the core: what a nested module says is about that module.
func documents(t *testing.T) []string {
	t.Helper()
	files := append(glob(t, "*.md"), glob(t, "docs/*.md")...)
	require.Contains(t, files, "README.md")
	return files
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(inRoot(file))
	require.NoError(t, err)
	return string(text)
}

// says requires that the document has the text, and does not print the whole document where it has not.
func says(t *testing.T, file, text string) {
	t.Helper()
	assert.True(t, strings.Contains(read(t, file), text), "%s does not say %s", file, text)
}

// walk calls visit with each file of the repository, by its path from the root with slashes.
func walk(t *testing.T, visit func(file string)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		if err == nil && !d.IsDir() {
			visit(fromRoot(t, file))
		}
		return err
	}))
}

func TestEveryLinkOfTheDocumentsLeadsToAFileAndItsHeading(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]*))?\)`)
	walk(t, func(file string) {
		if !strings.HasSuffix(file, ".md") {
			return
		}
		for _, m := range link.FindAllStringSubmatch(read(t, file), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			target := file
			if m[1] != "" {
				target = path.Join(path.Dir(file), m[1])
				if !assert.True(t, exists(target), "%s links to %s", file, target) {
					continue
				}
			}
			if m[2] != "" && strings.HasSuffix(target, ".md") {
				assert.Contains(t, headings(read(t, target)), m[2], "%s links to this heading of %s", file, target)
			}
		}
	})
}

// headings are the names by which a page links to the headings of a document.
func headings(text string) (names []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

// The glossary at the top of the design is the contract of words.
func TestTheDesignBeginsWithTheGlossary(t *testing.T) {
	text := read(t, "docs/design.md")
	first := regexp.MustCompile(`(?m)^## .*$`).FindString(text)
	assert.Equal(t, "## Words", first)
	_, glossary, _ := strings.Cut(text, "| --- | --- | --- |\n")
	glossary, _, _ = strings.Cut(glossary, "\n\n")
	words := strings.Split(glossary, "\n")
	assert.Greater(t, len(words), 20)
	assert.LessOrEqual(t, len(words), 30, "a contract that nobody keeps in mind")
	for _, row := range words {
		assert.Regexp(t, `^\| [^|]+ \| [^|]+ \| [^|]*\|$`, row)
	}
}

// retired are words that the glossary has replaced. The changelog may name them.
var retired = regexp.MustCompile(`(?i)\b(unclean|ticks?|(last|next|each|first|regular|a) looks?|by chance|WokenByTick|Guards|claim time)\b`)

func TestTheDocumentsUseTheWordsOfTheGlossary(t *testing.T) {
	for _, file := range append(documents(t), "doc.go", "leaseholdotel/README.md", "leaseholdotel/alerts.yml") {
		if file == "CHANGELOG.md" {
			continue
		}
		text := regexp.MustCompile("`Test\\w+`").ReplaceAllString(read(t, file), "")
		assert.Empty(t, retired.FindAllString(text, -1), file)
	}
}

// Tables and links cannot be broken into lines; all else can.
func TestTheLinesOfTheDocumentsAreNotTooLong(t *testing.T) {
	for _, file := range documents(t) {
		for i, line := range strings.Split(read(t, file), "\n") {
			if !strings.HasPrefix(line, "|") && !strings.Contains(line, "](http") {
				assert.LessOrEqual(t, utf8.RuneCountInString(line), 120, "%s:%d", file, i+1)
			}
		}
	}
}
