package fault

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The bounds of what is printed, in bytes.
const (
	maxKey  = 200
	maxText = 400 // a server's text; DENIED is an essay
)

// Quote prints a key, or what stands in one: quoted, and cut if it is long.
func Quote(key string) string {
	short := cut(key, maxKey)
	if len(short) < len(key) {
		return strconv.Quote(short) + "…"
	}
	return strconv.Quote(key)
}

// cut returns the first max bytes at most, without half a character at the end.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for end := most; end > most-utf8.UTFMax; end-- {
		if utf8.RuneStart(s[end]) {
			return s[:end]
		}
	}
	return s[:most] // it is no text
}

// What servers put around the error of a script. Up to version 6 the place stands before it, twice at times, and later behind it;
// miniredis has a form of its own.
var (
	before = regexp.MustCompile(`^(?:ERR Error (?:running script \(call to f_[0-9a-f]+\): |compiling script \(new function\): :(\d+): )|` +
		`(?:ERR )?@?(?:user_script|enable_strict_lua): ?(\d+): )-?`)
	behind = regexp.MustCompile(`(?s)(?: script: [0-9a-f]{40}, (?:on @user_script:(\d+)\.|&c\.))?(?:\s+stack traceback:.*)?$`)
	coded  = regexp.MustCompile(`^[A-Z]+( |$)`)
)

// clean takes the place of the error in the script out of a server's text, and returns the line, 0 if it is not told.
func clean(text string) (string, int) {
	text, _, _ = strings.Cut(text, ", with args beginning with") // of a command that the server does not know
	line := ""
	if at := behind.FindStringSubmatch(text); at != nil {
		text, line = text[:len(text)-len(at[0])], at[1]
	}
	for at := before.FindStringSubmatch(text); at != nil; at = before.FindStringSubmatch(text) {
		text, line = text[len(at[0]):], cmp.Or(at[1], at[2], line)
	}
	if text != "" && !coded.MatchString(text) {
		text = "ERR " + text
	}
	if short := cut(text, maxText); short != text {
		text = short + "…"
	}
	n, _ := strconv.Atoi(line)
	return text, n
}

// spot is what a script does at the line of its error.
type spot struct {
	commands []string
	keys     []int // those on whose type a command there depends
}

// call is a command in a script of ours, with its key: KEYS[n], or the nth of the letters by which the scripts call their keys.
var call = regexp.MustCompile(`redis\.p?call\('(\w+)'(?:, (?:KEYS\[(\d)\]|([KQFGD])\b))?`)

const letters = "KQFGD"

// indifferent are commands that take a key of any type.
var indifferent = []string{"DEL", "EXISTS", "EXPIRE", "PEXPIRE", "PTTL", "SET", "TYPE"}

// spot looks a line up in the script.
func (at Place) spot(line int) (s spot) {
	lines := strings.Split(at.Script, "\n")
	if line < 1 || line > len(lines) {
		return s
	}
	for _, m := range call.FindAllStringSubmatch(lines[line-1], -1) {
		if !slices.Contains(s.commands, m[1]) {
			s.commands = append(s.commands, m[1])
		}
		n, _ := strconv.Atoi(m[2])
		if m[3] != "" {
			n = 1 + strings.Index(letters, m[3])
		}
		if n > 0 && !slices.Contains(indifferent, m[1]) && !slices.Contains(s.keys, n) {
			s.keys = append(s.keys, n)
		}
	}
	return s
}

// named is how a script names one of its keys in an error, and unnamed where it does so for an error of a command.
var (
	named   = regexp.MustCompile(`KEYS\[(\d)\]`)
	unnamed = regexp.MustCompile(`: KEYS\[\d\]$`)
)

// name puts the name of a key in the place of KEYS[n], and behind an error about the type of a key.
func (at Place) name(text string, s spot) string {
	if at.Key == nil {
		return text
	}
	told := false
	text = named.ReplaceAllStringFunc(text, func(n string) string {
		key := at.Key(int(n[len("KEYS[")] - '0'))
		if key == "" {
			return n
		}
		told = true
		return Quote(key)
	})
	if strings.HasPrefix(text, "WRONGTYPE ") && !told && len(s.keys) == 1 {
		if key := at.Key(s.keys[0]); key != "" {
			return text + ": " + Quote(key)
		}
	}
	return text
}

const (
	rights   = "docs/runbook.md lists the rights that are needed"
	tooOld   = "leasehold needs Redis 6.0 or newer"
	clusters = "this server is a node of a cluster: use redis.NewClusterClient"
	password = "the client gives no password: set Password, and Username if there is one, in its options"
)

// advices say what to do about an error that time does not cure, the first that fits.
var advices = []struct {
	text   *regexp.Regexp
	advice func(text string, s spot) string
}{
	{match(`^(MOVED|ASK) `), say(clusters)},
	{match(`cluster support disabled`), say("this server is no cluster: use redis.NewClient")},
	{match(`SELECT is not allowed in cluster mode`), say("a cluster has database 0 alone")},
	// Before it knows who asks, a server refuses a command of more than ten arguments before it asks for the password.
	{match(`^NOAUTH |unauthenticated (multi)?bulk length`), say(password)},
	{match(`WRONGPASS |ERR invalid password`), say("see Username and Password in the client's options")},
	{match(`permissions? to run the '|^ERR The user executing the script can't run`), func(text string, s spot) string {
		switch {
		case strings.Contains(text, " the '"):
			return rights
		case len(s.commands) == 0:
			return "see ACL LOG for the command; " + rights
		}
		return "the command is " + strings.Join(s.commands, " or ") + "; " + rights
	}},
	{match(`^NOPERM |^ERR The user executing the script can't|^ERR ACL failure`), say("see ACL LOG; " + rights)},
	{match(`(?i)^ERR unknown command .?eval`), say("leasehold needs EVALSHA and EVAL; a Sentinel has neither, and some providers disable them")},
	{match(`^ERR Unknown .*command called from`), func(_ string, s spot) string {
		if len(s.commands) == 0 {
			return tooOld
		}
		return fmt.Sprintf("%s, in which %s was not renamed", tooOld, strings.Join(s.commands, " or "))
	}},
	{match(`^ERR syntax error|^ERR Write commands (are )?not allowed after non deterministic commands`), say(tooOld)},
}

func match(pattern string) *regexp.Regexp { return regexp.MustCompile(pattern) }

func say(advice string) func(string, spot) string {
	return func(string, spot) string { return advice }
}

func advice(text string, s spot) string {
	for _, a := range advices {
		if a.text.MatchString(text) {
			return a.advice(text, s)
		}
	}
	return ""
}
