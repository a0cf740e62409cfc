package doctest_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
	var files []string
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		files = append(files, found...)
	}
	require.Contains(t, files, "README.md")
	return files
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
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
	require.NoError(t, filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		if err == nil && !d.IsDir() {
			visit(filepath.ToSlash(file))
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
				target = filepath.Join(filepath.Dir(file), m[1])
				_, err := os.Stat(target)
				if !assert.NoError(t, err, "linked from %s", file) {
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
