package fault

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// says is an error of a server's.
type says string

func (e says) Error() string { return string(e) }
func (says) RedisError()     {}

// What stands around the error of a script.
const (
	v6 = "ERR Error running script (call to f_0c6697dde645c37c473a2c32a54ea8af3975a710): @user_script:2: "
	v7 = " script: 0c6697dde645c37c473a2c32a54ea8af3975a710, on @user_script:2."
)

// place is a script with one command, and with two, at a line.
var place = Place{
	Script: "-- lock\nlocal x = redis.call('ZRANGE', Q, 0, -1)\nredis.call('GET', KEYS[3]) redis.pcall('HGET', G, x)\nredis.call('PTTL', K) redis.call('GET', KEYS[1])",
	Key: func(n int) string {
		if n > 4 {
			return ""
		}
		return [...]string{"k", "line", "fence", "marks"}[n-1]
	},
}

// The texts are those of Redis 6.0.16, 7.0.15 and 8.0.2, of Valkey 8.1.1 and of miniredis, as they were seen.
func TestAServersErrorIsReadAsWhatItMeans(t *testing.T) {
	const (
		rights   = " (docs/runbook.md lists the rights that are needed)"
		log      = " (see ACL LOG; docs/runbook.md lists the rights that are needed)"
		zrange   = " (the command is ZRANGE; docs/runbook.md lists the rights that are needed)"
		unknown  = " (see ACL LOG for the command; docs/runbook.md lists the rights that are needed)"
		password = " (the client gives no password: set Password, and Username if there is one, in its options)"
		wrong    = " (see Username and Password in the client's options)"
		old      = " (leasehold needs Redis 6.0 or newer)"
		cluster  = " (this server is a node of a cluster: use redis.NewClusterClient)"
		noEval   = " (leasehold needs EVALSHA and EVAL; a Sentinel has neither, and some providers disable them)"
	)
	same := func(text, advice string) [2]string { return [2]string{text, text + advice} }
	passing := [][2]string{
		same("LOADING Redis is loading the dataset in memory", ""),
		same("READONLY You can't write against a read only replica.", ""),
		same("TRYAGAIN Multiple keys request during rehashing of slot", ""),
		same("CLUSTERDOWN Hash slot not served", ""),
		same("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", ""),
		same("NOREPLICAS Not enough good replicas to write.", ""),
		same("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", ""),
		same("OOM command not allowed when used memory > 'maxmemory'.", ""),
		same("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", ""),
		same("MOVED 7 127.0.0.1:6379", ""),
		same("ASK 7 127.0.0.1:6379", ""),
		same("UNBLOCKED client unblocked via CLIENT UNBLOCK", ""),
		same("ERR max number of clients reached", ""),
		{v6 + "@user_script: 2: -READONLY You can't write against a read only replica.", "READONLY You can't write against a read only replica."},
		{v6 + "@user_script: 2: -OOM command not allowed when used memory > 'maxmemory'.", "OOM command not allowed when used memory > 'maxmemory'."},
		{v6 + "-MISCONF Redis is configured to save RDB snapshots", "MISCONF Redis is configured to save RDB snapshots"},
		{"READONLY You can't write against a read only replica." + v7, "READONLY You can't write against a read only replica."},
		{"OOM command not allowed when used memory > 'maxmemory'.: KEYS[3]", "OOM command not allowed when used memory > 'maxmemory'."},
		{"NOREPLICAS Not enough good replicas to write." + v7, "NOREPLICAS Not enough good replicas to write."},
	}
	final := [][2]string{
		// The password.
		same("NOAUTH Authentication required.", password),
		same("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used", password),
		same("ERR Protocol error: unauthenticated multibulk length", password),
		same("ERR Protocol error: unauthenticated bulk length", password),
		same("WRONGPASS invalid username-password pair", wrong),
		same("WRONGPASS invalid username-password pair or user is disabled.", wrong),
		same("ERR invalid password", wrong),
		// Rights.
		same("NOPERM this user has no permissions to run the 'evalsha' command or its subcommand", rights),
		same("NOPERM this user has no permissions to run the 'evalsha' command", rights),
		same("NOPERM User u has no permissions to run the 'evalsha' command", rights),
		same("NOPERM this user has no permissions to access one of the keys used as arguments", log),
		same("NOPERM this user has no permissions to access one of the channels used as arguments", log),
		same("NOPERM No permissions to access a key", log),
		same("NOPERM No permissions to access a channel", log),
		{
			v6 + "@user_script: 2: The user executing the script can't run this command or subcommand",
			"ERR The user executing the script can't run this command or subcommand" + zrange,
		},
		{
			"@user_script: 1: The user executing the script can't run this command or subcommand",
			"ERR The user executing the script can't run this command or subcommand" + unknown,
		},
		{
			"ERR The user executing the script can't run this command or subcommand" + v7,
			"ERR The user executing the script can't run this command or subcommand" + zrange,
		},
		same("ERR The user executing the script can't run this command or subcommand", unknown),
		{
			"ERR ACL failure in script: User u has no permissions to run the 'set' command" + v7,
			"ERR ACL failure in script: User u has no permissions to run the 'set' command" + rights,
		},
		{
			v6 + "@user_script: 2: The user executing the script can't access at least one of the keys mentioned in the command arguments",
			"ERR The user executing the script can't access at least one of the keys mentioned in the command arguments" + log,
		},
		{"ERR ACL failure in script: No permissions to access a key" + v7, "ERR ACL failure in script: No permissions to access a key" + log},
		{"ERR The user executing the script can't publish to the channel mentioned in the command" + v7, "ERR The user executing the script can't publish to the channel mentioned in the command" + log},
		// The wrong server.
		{"ERR unknown command `evalsha`, with args beginning with: `1a2b`, `1`, `k`, ", "ERR unknown command `evalsha`" + noEval},
		{"ERR unknown command 'EVAL', with args beginning with: 'return' '1' 'k' ", "ERR unknown command 'EVAL'" + noEval},
		{v6 + "ERR syntax error", "ERR syntax error" + old},
		{"ERR syntax error" + v7, "ERR syntax error" + old},
		{v6 + "@user_script: 2: Unknown Redis command called from Lua script", "ERR Unknown Redis command called from Lua script (leasehold needs Redis 6.0 or newer, in which ZRANGE was not renamed)"},
		{"ERR Unknown Redis command called from script" + v7, "ERR Unknown Redis command called from script (leasehold needs Redis 6.0 or newer, in which ZRANGE was not renamed)"},
		{"ERR Unknown command called from script", "ERR Unknown command called from script" + old},
		{v6 + "@user_script: 2: Write commands not allowed after non deterministic commands. Call redis.replicate_commands()", "ERR Write commands not allowed after non deterministic commands. Call redis.replicate_commands()" + old},
		same("ERR This instance has cluster support disabled", " (this server is no cluster: use redis.NewClient)"),
		same("ERR SELECT is not allowed in cluster mode", " (a cluster has database 0 alone)"),
		same("ERR DB index is out of range", ""),
		same("DENIED Redis is running in protected mode", ""),
		// The wrong data. The second line of the script reads its second key.
		{v6 + "WRONGTYPE Operation against a key holding the wrong kind of value", `WRONGTYPE Operation against a key holding the wrong kind of value: "line"`},
		{"WRONGTYPE Operation against a key holding the wrong kind of value" + v7, `WRONGTYPE Operation against a key holding the wrong kind of value: "line"`},
		{"ERR Error compiling script (new function): :2: WRONGTYPE Operation against a key\nstack traceback:\n\t[G]: ?", `WRONGTYPE Operation against a key: "line"`},
		{"WRONGTYPE Operation against a key" + strings.Replace(v7, ":2", ":4", 1), `WRONGTYPE Operation against a key: "k"`}, // PTTL takes any
		{"WRONGTYPE Operation against a key" + strings.Replace(v7, ":2", ":3", 1), `WRONGTYPE Operation against a key`},      // of which of two is not known
		{"WRONGTYPE Operation against a key" + strings.Replace(v7, ":2", ":99", 1), `WRONGTYPE Operation against a key`},
		same("WRONGTYPE Operation against a key", ""),
		{"WRONGTYPE Operation against a key: KEYS[3]" + v7, `WRONGTYPE Operation against a key: "fence"`},
		{"ERR increment or decrement would overflow: KEYS[3]", `ERR increment or decrement would overflow: "fence"`},
		{"ERR leasehold: the fencing counter KEYS[3] holds no number", `ERR leasehold: the fencing counter "fence" holds no number`},
		same("ERR leasehold: KEYS[7] is none of these", ""),
		// Anything else.
		same("CROSSSLOT Keys in request don't hash to the same slot", ""),
		same("NOSCRIPT No matching script. Please use EVAL.", ""),
		{"ERR user_script:2: boom" + v7, "ERR boom"},
		{v6 + "user_script:2: boom", "ERR boom"},
		{v6 + "@enable_strict_lua:8: user_script:3: Script attempted to access nonexistent global variable 'x'", "ERR Script attempted to access nonexistent global variable 'x'"},
		same("ERR", ""),
		same("", ""),
		// A message may quote what looks like a code.
		same("ERR leasehold: the key ROOM 7 is no number", ""),
		{"ERR unknown command 'what', with args beginning with: '1a2b' '5' 'TASK 1'", "ERR unknown command 'what'"},
		same("NOPERM No permissions to access the 'BUSY hour' key", log),
		same("ERR no such thing as READONLY mode", ""),
		// An essay.
		{"DENIED " + strings.Repeat("ä", 300), "DENIED " + strings.Repeat("ä", 196) + "…"},
	}
	check := func(t *testing.T, said, want string, passes bool) {
		t.Helper()
		for _, err := range []error{says(said), fmt.Errorf("failed to authenticate: %w", says(said))} {
			got := Read(err, place)
			var read *Error
			require.ErrorAs(t, got, &read)
			assert.Equal(t, passes, read.Passes, said)
			if err == says(said) || !strings.HasPrefix(want, said) {
				assert.Equal(t, want, got.Error())
			} else {
				assert.Equal(t, "failed to authenticate: "+want, got.Error(), "what stands before it is lost")
			}
			var server redis.Error
			require.ErrorAs(t, got, &server)
		}
	}
	for _, row := range passing {
		check(t, row[0], row[1], true)
	}
	for _, row := range final {
		check(t, row[0], row[1], false)
	}
	direct := place
	direct.Direct = true
	for _, text := range []string{"MOVED 7 127.0.0.1:6379", "ASK 7 127.0.0.1:6379"} {
		err := Read(says(text), direct)
		assert.False(t, err.(*Error).Passes, "nobody follows it")
		assert.Equal(t, text+cluster, err.Error())
	}
}

func TestAnErrorOnTheWayPassesUnlessTheWayIsWrong(t *testing.T) {
	for err, passes := range map[error]bool{
		io.EOF: true, io.ErrUnexpectedEOF: true, redis.ErrPoolTimeout: true, redis.ErrPoolExhausted: true, os.ErrDeadlineExceeded: true,
		&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}:  true,
		&net.DNSError{Err: "no such host", IsNotFound: true}: true,
		errors.New("anything else"):                          true,

		redis.ErrClosed: false,
		&net.OpError{Op: "dial", Err: &net.AddrError{Err: "missing port in address", Addr: "redis"}}: false,
		tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}:                false,
		&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}:                         false,
		x509.UnknownAuthorityError{}:                            false,
		x509.HostnameError{Certificate: &x509.Certificate{}}:    false,
		x509.CertificateInvalidError{Cert: &x509.Certificate{}}: false,
		Panicked("in a hook"):                                   false,
		ErrExited:                                               false,
	} {
		got := Read(fmt.Errorf("in between: %w", err), Place{})
		assert.Equal(t, passes, got.(*Error).Passes, "%v", err)
		assert.ErrorIs(t, got, err)
	}
	assert.NoError(t, Read(nil, place))
	assert.EqualError(t, Read(redis.ErrClosed, place), "redis: client is closed (it was closed before the Locker was)")
	assert.EqualError(t, Panicked("no"), "the redis client panicked: no")
}

func TestAKeyIsPrintedWithTwoHundredBytesAtMost(t *testing.T) {
	assert.Equal(t, `"k"`, Quote("k"))
	assert.Equal(t, `""`, Quote(""))
	full := strings.Repeat("x", 200)
	assert.Equal(t, `"`+full+`"`, Quote(full))
	assert.Equal(t, `"`+full+`"…`, Quote(full+"y"))
	assert.Equal(t, `"x`+strings.Repeat("ä", 99)+`"…`, Quote("x"+strings.Repeat("ä", 100)), "no half characters")
	assert.Equal(t, `"`+strings.Repeat(`\x80`, 200)+`"…`, Quote(strings.Repeat("\x80", 300)))
	assert.True(t, utf8.ValidString(Quote(strings.Repeat("\U0001F512", 100))))
}

func TestAWaitThatIsOverSaysWhatWasWaitedFor(t *testing.T) {
	err := Overdue(ErrHeld, 2*time.Second)
	assert.ErrorIs(t, err, ErrHeld)
	assert.False(t, Unavailable(err))
	assert.ErrorContains(t, err, "WithWait(2s) is over")

	err = Overdue(nil, 2*time.Second) // nothing was answered
	assert.True(t, Unavailable(err))
	assert.NotErrorIs(t, err, ErrHeld)
	assert.True(t, Has[*NoAnswer](err))
	assert.ErrorContains(t, err, "WithWait(2s) is over")
	for _, ended := range []error{context.DeadlineExceeded, context.Canceled} {
		assert.NotErrorIs(t, err, ended, "no context has ended")
	}
}
