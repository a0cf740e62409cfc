package script_test

import (
	"testing"

	"github.com/go-leasehold/leasehold/internal/locktest"
)

func TestScriptsCheckTheirArgumentsBeforeTheyWrite(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, s locktest.ScriptServer) {
		for _, bad := range []locktest.ScriptCase{
			{Name: "0 ms", Px: 0},
			{Name: "-1 ms", Px: -1},
			{Name: "a fraction of a ms", Px: "1.5"},
			{Name: "a word for ms", Px: "soon"},
			{Name: "no ms", Px: ""},
			{Name: "no number of ms", Px: "nan"},
			{Name: "no token", Token: "-"},
		} {
			bad.Reply, bad.After = "ERR", "="
			for _, state := range []string{"", "holds('me', 30000)", "waits('me', 1000) waits('b', 1000)"} {
				bad.Arrange = state
				for _, mode := range []string{"try", "join", "poll"} {
					locktest.RunScriptCases(t, s, locktest.AcquireScript, mode, bad)
				}
				for _, mode := range []string{"adopt", "cancel"} {
					locktest.RunScriptCases(t, s, locktest.AdoptScript, mode, bad)
				}
				locktest.RunScriptCases(t, s, locktest.RenewScript, "", bad)
			}
		}
	})
}
