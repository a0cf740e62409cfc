package sim_test

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/script"
)

// simEvent is a line of the trace.
type simEvent struct {
	at    time.Duration
	host  *simHost
	what  string
	args  []string
	reply []byte
}

// note adds to the trace. r.mu is held.
func (r *simReferee) note(h *simHost, format string, args ...any) {
	r.events = append(r.events, simEvent{at: time.Since(r.start), host: h, what: fmt.Sprintf(format, args...)})
}

// violation notes what must not happen. r.mu is held.
func (r *simReferee) violation(format string, args ...any) {
	what := fmt.Sprintf("%v: ", time.Since(r.start)) + fmt.Sprintf(format, args...)
	r.note(nil, "VIOLATION %s", what)
	r.broken = append(r.broken, what)
}

// fail is violation for those who watch a call.
func (r *simReferee) fail(h *simHost, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violation("host %d: %s", h.n, fmt.Sprintf(format, args...))
}

// verdict is what was broken, and the trace before the first of it.
func (r *simReferee) verdict() (broken []string, trace string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	if i := slices.IndexFunc(events, func(e simEvent) bool { return strings.HasPrefix(e.what, "VIOLATION") }); i >= 0 {
		events = events[max(0, i-70) : i+1]
	}
	var b strings.Builder
	for _, e := range events {
		who := ""
		if e.host != nil {
			who = strconv.Itoa(e.host.n)
		}
		if e.args != nil {
			e.what = r.names(e.args) + " -> " + r.names(strings.Fields(showRESP(e.reply)))
		}
		fmt.Fprintf(&b, "%14v %2s %s\n", e.at, who, e.what)
	}
	return slices.Clone(r.broken), b.String()
}

// name makes a token readable: its host and the begin of its wake id.
func (r *simReferee) name(token string) string {
	if token == "" {
		return "(nobody)"
	}
	if len(token) < locktest.WakeIDAt+4 {
		return token
	}
	if t := r.tokens[token]; t != nil && t.host != nil {
		return fmt.Sprintf("%d.%s", t.host.n, token[locktest.WakeIDAt:locktest.WakeIDAt+4])
	}
	return "?." + token[locktest.WakeIDAt:locktest.WakeIDAt+4]
}

// names shortens a command or a reply.
func (r *simReferee) names(words []string) string {
	if calls := scriptCalls(words); calls != nil {
		text := words[0][4:]
		for _, c := range calls {
			text += fmt.Sprint(" ", cmp.Or(c.mode, "renew"), " ", c.key, " ", r.name(c.by))
		}
		return text
	}
	words = slices.Clone(words)
	for i, w := range words {
		if _, ok := r.tokens[w]; ok {
			words[i] = r.name(w)
		}
	}
	return strings.Join(words, " ")
}

// simCall is what a run of a script is for one lock.
type simCall struct{ key, by, mode string }

// scriptCalls reads the locks, the tokens and the modes out of a run of one of the scripts, of which the short ones may be for
// several locks; nil if it is none. The mode of a renewal is "".
func scriptCalls(args []string) (calls []simCall) {
	if len(args) < 5 || !strings.HasPrefix(strings.ToLower(args[0]), "eval") {
		return nil
	}
	n, _ := strconv.Atoi(args[2])
	keys, argv := args[3:3+n], args[3+n:]
	mode := ""
	for full, forms := range locktest.ShortScripts {
		for i, sc := range forms {
			if sc == nil || args[1] != sc.Hash && args[1] != sc.Src {
				continue
			}
			mode = map[*script.Script]string{locktest.AcquireScript: "short", locktest.ReleaseScript: "release"}[full]
			locks := 1
			if isMany := i == len(forms)-1; isMany && full == locktest.RenewScript {
				locks = n
			} else if isMany {
				locks = n / 2
			}
			for j := range locks {
				calls = append(calls, simCall{keys[j], argv[j], mode})
			}
			return calls
		}
	}
	if isAdoption(args) {
		mode = "adopt"
	}
	for _, arg := range argv[1:] {
		if slices.Contains([]string{"try", "join", "poll", "release", "told", "cancel", "force"}, arg) {
			mode = arg
		}
	}
	return []simCall{{keys[0], argv[0], mode}}
}

// formerOf is the former token in a run of adopt.lua.
func formerOf(args []string) string {
	if !isAdoption(args) {
		return ""
	}
	n, _ := strconv.Atoi(args[2])
	return args[3+n+2]
}

func isAdoption(args []string) bool {
	return len(args) > 5 && (args[1] == locktest.AdoptScript.Hash || args[1] == locktest.AdoptScript.Src)
}
