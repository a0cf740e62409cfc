package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/go-leasehold/leasehold"
)

// The exit statuses of run that are not the command's. They stand beside those of timeout(1) and env(1).
const (
	exitHeld        = 121
	exitLost        = 122
	exitUnreachable = 123
	exitRunUsage    = 125
	exitCannotRun   = 126
	exitNotFound    = 127
	exitSignal      = 128 // and the number of the signal
)

const runText = `run waits for the lock KEY, runs COMMAND while it holds and renews it, and then
releases it. It is flock(1) for many machines. Without -wait and -try it waits
for as long as it takes, also while Redis is away.

The command finds in its environment:

	LEASEHOLD_KEY            the Redis key of the lock
	LEASEHOLD_FENCING_TOKEN  greater than that of every earlier lease of the key
	LEASEHOLD_DEADLINE       until when (RFC 3339) the lease is valid if nothing
	                         renews it; leasehold does, so it moves on

Signals that leasehold gets are passed to the command's process group. If the
lease is lost, the group gets TERM, and KILL after -grace, or earlier. Redis
keeps the key for -grace and a second longer than the lease is trusted. So where
renewals fail, the group is dead before anybody else can have the lock. Where
the key was deleted or forced from its holder, another holder may be at work at
once: only fencing tokens keep the two apart. What the command leaves running in
its process group is ended before the lock is released. A process that leaves
the group, as setsid does, is not.

If leasehold itself is killed with KILL, Linux kills the command, but not what
the command has started; elsewhere the command goes on. The key then expires
with its TTL, so let the command write with the fencing token. On Windows there
are no signals: the command and what it started are killed at once.

The exit status is that of the command, or 128 and the number of the signal that
ended it. Otherwise:

	121  somebody else holds the lock
	122  the lease was lost, or -max-hold was over, and the command was ended
	123  Redis could not be asked
	125  a wrong call
	126  the command cannot be run
	127  the command is not found

Examples:

	leasehold run -key nightly-report -try -- ./report --all
	leasehold run -key deploy -ttl 1m -wait 10m -max-hold 1h -- make deploy
`

// slack is for how long Redis keeps the key after the group was killed: processes take a moment to die.
const slack = time.Second

// A runner is one call of run.
type runner struct {
	*program
	key                       string
	minHold                   time.Duration
	ttl, wait, maxHold, grace time.Duration
	try, verbose              bool
	owner                     string
	args                      []string
	signals                   chan os.Signal
}

func newRun() *command {
	c := newCommand("run", "runs a command while it holds a lock",
		"-key KEY [-ttl 30s] [-wait D | -try] [-max-hold D] [-min-hold D] [-grace 5s]\n           [-redis URL] [-prefix P] [-owner L] [-v] [--] COMMAND [ARG…]", runText)
	c.takes("COMMAND", 1<<20)
	c.verbatim, c.usageStatus = true, exitRunUsage
	c.withRedis()
	r := &runner{}
	c.StringVar(&r.key, "key", "", "the `KEY` of the lock")
	c.DurationVar(&r.ttl, "ttl", 30*time.Second, "the lease lasts for `D` after each renewal; default 30s")
	c.DurationVar(&r.wait, "wait", -1, "wait for the lock for at most `D`")
	c.BoolVar(&r.try, "try", false, "do not wait")
	c.DurationVar(&r.maxHold, "max-hold", 0, "end the command after `D`, as if the lease were lost")
	c.DurationVar(&r.minHold, "min-hold", 0, "keep others out for `D` after the lock was won, also if the command ends before")
	c.DurationVar(&r.grace, "grace", 5*time.Second, "`D` from TERM to KILL; default 5s")
	c.StringVar(&r.owner, "owner", "", "the label `L` that inspect shows; default is the host, the process and the command")
	c.BoolVar(&r.verbose, "v", false, "say on standard error when the lock is won and released")
	c.do = func(p *program) (int, error) {
		r.program, r.args = p, c.args
		switch {
		case r.key == "":
			return exitRunUsage, errors.New("-key is missing")
		case r.try && r.wait >= 0:
			return exitRunUsage, errors.New("want -wait or -try, not both")
		case r.grace < 0 || r.maxHold < 0:
			return exitRunUsage, errors.New("-grace and -max-hold: want 0 or more")
		}
		locker, _, done, err := c.servers.open()
		if err != nil {
			return exitRunUsage, err
		}
		defer done()
		return r.run(locker)
	}
	return c
}

// label says in inspect who holds the lock.
func (r *runner) label() string {
	if r.owner != "" {
		return r.owner
	}
	host, _ := os.Hostname()
	text := fmt.Sprintf("%s pid %d: %s", host, os.Getpid(), r.args[0])
	text = strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, text)
	return text[:min(len(text), 64)]
}

func (r *runner) run(locker *leasehold.Locker) (int, error) {
	r.signals = make(chan os.Signal, 16)
	defer catch(r.signals)()
	lease, sig, err := r.acquire(locker)
	if sig != nil {
		if lease != nil {
			_ = lease.Release(context.WithoutCancel(r.ctx))
		}
		return exitSignal + number(sig), nil
	}
	switch {
	case errors.Is(err, leasehold.ErrHeld):
		return exitHeld, err
	case errors.Is(err, leasehold.ErrInvalid):
		return exitRunUsage, err
	case err != nil:
		return exitUnreachable, err
	}
	r.say("has the lock %q with fencing token %d", lease.Key(), lease.FencingToken())
	status, lost, err := r.supervise(lease)
	if gone := lease.Release(context.WithoutCancel(r.ctx)); lost == nil && gone != nil {
		if errors.Is(gone, leasehold.ErrLost) {
			lost = gone
		} else {
			fmt.Fprintf(r.errw, "leasehold run: %v\n", gone) // the key expires with its TTL
		}
	}
	if lost != nil {
		return exitLost, lost
	}
	r.say("has released the lock %q", lease.Key())
	return status, err
}

func (r *runner) say(format string, args ...any) {
	if r.verbose {
		fmt.Fprintf(r.errw, "leasehold run: "+format+"\n", args...)
	}
}

// acquire waits for the lock, or for a signal that ends the wait.
func (r *runner) acquire(locker *leasehold.Locker) (*leasehold.Lease, os.Signal, error) {
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	opts := []leasehold.Option{
		leasehold.WithAutoRenew(true), leasehold.WithOwner(r.label()), leasehold.WithLockDelay(r.grace + slack), leasehold.WithMinHold(r.minHold),
	}
	switch {
	case r.try:
		opts = append(opts, leasehold.WithWait(0))
	case r.wait >= 0:
		opts = append(opts, leasehold.WithWait(r.wait))
	}
	type outcome struct {
		lease *leasehold.Lease
		err   error
	}
	won := make(chan outcome, 1)
	go func() {
		lease, err := locker.Acquire(ctx, r.key, r.ttl, opts...)
		won <- outcome{lease, err}
	}()
	var sig os.Signal
	for {
		select {
		case got := <-r.signals:
			if ends(got) {
				sig = got
				cancel()
			}
		case o := <-won:
			return o.lease, sig, o.err
		}
	}
}

// supervise runs the command and returns its status. Whenever it returns, no process of the group is left. lost says why
// the command had to be ended.
func (r *runner) supervise(lease *leasehold.Lease) (status int, lost, err error) {
	cmd := exec.Command(r.args[0], r.args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r.in, r.out, r.errw
	cmd.WaitDelay = 100 * time.Millisecond // for outputs that are no files; files need none
	cmd.Env = append(os.Environ(),
		"LEASEHOLD_KEY="+lease.Key(),
		"LEASEHOLD_FENCING_TOKEN="+strconv.FormatInt(lease.FencingToken(), 10),
		"LEASEHOLD_DEADLINE="+lease.ValidUntil().Format(time.RFC3339Nano))
	g, ended, err := start(cmd)
	switch {
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist):
		return exitNotFound, nil, err
	case err != nil:
		return exitCannotRun, nil, err
	}
	defer g.close()
	kill := time.NewTimer(time.Hour)
	kill.Stop()
	done := lease.Done()
	var limit <-chan time.Time // of -max-hold
	if r.maxHold > 0 {
		limit = time.After(r.maxHold)
	}
	lose := func(reason error, most time.Duration) {
		if lost == nil {
			lost = reason
			r.say("ends the command: %v", lost)
			g.terminate()
		}
		kill.Reset(max(min(r.grace, most), 0))
	}
	var poll <-chan time.Time // once the command has ended, for what it left behind
	killed := false
	for {
		select {
		case sig := <-r.signals:
			g.signal(sig)
		case <-done:
			done = nil
			// The key stays for the grace and the slack after ValidUntil, also if this process is late to notice.
			lose(lease.Err(), time.Until(lease.ValidUntil())+r.grace)
		case <-limit:
			lose(fmt.Errorf("the command ran for longer than -max-hold %v", r.maxHold), r.grace)
		case <-kill.C:
			g.kill()
			killed = true
			if poll != nil {
				g.awaitDeath()
				return status, lost, nil
			}
		case <-ended:
			ended, status = nil, g.status()
			if !g.alive() {
				return status, lost, nil
			}
			switch {
			case killed:
				kill.Reset(0) // what is left may be zombies that nobody reaps
			case lost == nil:
				g.terminate()
				kill.Reset(r.grace)
			}
			t := time.NewTicker(5 * time.Millisecond)
			defer t.Stop()
			poll = t.C
		case <-poll:
			if !g.alive() {
				return status, lost, nil
			}
		}
	}
}

// A group is the command and what it has started.
type group struct {
	cmd     *exec.Cmd
	restore func() // gives the terminal back
}

// start runs the command in a thread of its own: Linux kills the command when the thread that started it ends.
func start(cmd *exec.Cmd) (*group, <-chan struct{}, error) {
	g := &group{cmd: cmd}
	g.prepare()
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // its state says more
			close(ended)
		}
	}()
	if err := <-started; err != nil {
		g.close()
		return nil, nil, err
	}
	return g, ended, nil
}

func (g *group) close() {
	if g.restore != nil {
		g.restore()
	}
}

// awaitDeath waits for what was killed. A zombie that nobody reaps counts as alive, so the wait has an end.
func (g *group) awaitDeath() {
	for range 200 {
		if !g.alive() {
			return
		}
		<-time.After(5 * time.Millisecond)
	}
}

// isTerminal finds the file behind a reader that may be a terminal.
func isTerminal(r io.Reader) (*os.File, bool) {
	f, ok := r.(*os.File)
	if !ok {
		return nil, false
	}
	info, err := f.Stat()
	return f, err == nil && info.Mode()&os.ModeCharDevice != 0
}
