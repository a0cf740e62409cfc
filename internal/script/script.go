// Package script loads the Lua scripts, and reads their replies.
package script

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Script is one Lua script, ready to be sent. It is immutable but for Set, and may be used by many goroutines.
type Script struct {
	Src  string // what an EVAL sends
	Hash any    // what an EVALSHA sends, as an argument that costs no allocation
}

// Load reads a script from a file. A line "-- include FILE" is replaced by that file, and $NAME by the constant of that name:
// what several scripts share, and what they share with the clients, stands in one place. Load panics on a file or a constant
// that is missing, since both are parts of the program.
func Load(files fs.FS, name string, constants map[string]any) *Script {
	s := new(Script)
	s.Set(expand(files, name, constants))
	return s
}

// Set gives the script another text, for tests that break one.
func (s *Script) Set(src string) {
	s.Src, s.Hash = src, redis.NewScript(src).Hash()
}

var (
	include  = regexp.MustCompile(`(?m)^ *-- include (\w+\.lua)$`)
	constant = regexp.MustCompile(`\$[A-Z_]+`)
)

func expand(files fs.FS, name string, constants map[string]any) string {
	src, err := fs.ReadFile(files, name)
	if err != nil {
		panic(err)
	}
	text := include.ReplaceAllStringFunc(string(src), func(line string) string {
		return strings.TrimSuffix(expand(files, include.FindStringSubmatch(line)[1], constants), "\n")
	})
	return constant.ReplaceAllStringFunc(text, func(name string) string {
		value, ok := constants[name[1:]]
		if !ok {
			panic(fmt.Sprintf("no constant for %s", name))
		}
		return fmt.Sprint(value)
	})
}
