package postgres

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
)

const (
	zombieTTL = 300 * time.Millisecond
	zombieEnv = "LEASEHOLD_TEST_ZOMBIE" // the account, for the process that is to be stopped
	fencedEnv = "LEASEHOLD_TEST_FENCED" // "1": it tells the table its fencing token
)

// zombie is what the process does that the test stops: it takes the lock, reads, is stopped for longer than its
// lease lasts, and writes. It does not ask the lease again before the write, for a process may be stopped between
// that question and the write just as well.
func zombie() {
	ctx, name := context.Background(), os.Getenv(zombieEnv)
	locker := leasehold.New(client)
	defer locker.Close()
	lease, err := locker.TryAcquire(ctx, name, zombieTTL)
	check(err)
	balance, err := Get(ctx, db, name, lease.FencingToken())
	check(err)
	fmt.Println(lease.FencingToken())

	_, err = bufio.NewReader(os.Stdin).ReadString('\n') // the test answers after it has stopped us
	check(err)
	if os.Getenv(fencedEnv) == "1" {
		err = Set(ctx, db, name, balance+1, lease.FencingToken())
	} else {
		_, err = db.Exec(ctx, unfencedSet, name, balance+1)
	}
	var stale *leasehold.StaleError
	switch {
	case err == nil:
		fmt.Println("written")
	case errors.As(err, &stale):
		fmt.Println("stale", stale.Token, stale.Highest)
	default:
		fmt.Println(err)
	}
}

const unfencedSet = `UPDATE account SET balance = $2 WHERE name = $1`

func TestAStoppedProcessWritesNothingWhenItIsContinued(t *testing.T) {
	balance, said, zombieToken, laterToken := wakeZombie(t, true)
	assert.Equal(t, fmt.Sprintln("stale", zombieToken, laterToken), said)
	assert.Equal(t, int64(500), balance)
}

// The fault that fencing is for: without it, the same process wipes out what the later holder wrote.
func TestWithoutFencingAStoppedProcessOverwrites(t *testing.T) {
	balance, said, _, _ := wakeZombie(t, false)
	assert.Equal(t, "written\n", said)
	assert.Equal(t, int64(1), balance)
}

// wakeZombie stops a process that holds the lock, lets a later holder write 500, continues the process, and
// returns the balance after that and what the process said.
func wakeZombie(t *testing.T, fenced bool) (balance int64, said string, zombieToken, laterToken int64) {
	ctx, name := t.Context(), newAccount()
	process := exec.Command(os.Args[0])
	process.Env = append(os.Environ(), zombieEnv+"="+name)
	if fenced {
		process.Env = append(process.Env, fencedEnv+"=1")
	}
	process.Stderr = os.Stderr
	in, err := process.StdinPipe()
	require.NoError(t, err)
	pipe, err := process.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, process.Start())
	defer process.Wait()
	defer process.Process.Kill()

	out := bufio.NewReader(pipe)
	_, err = fmt.Fscanln(out, &zombieToken)
	require.NoError(t, err)
	require.NoError(t, process.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	_, err = syscall.Wait4(process.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped())
	_, err = fmt.Fprintln(in, "write")
	require.NoError(t, err)

	locker := leasehold.New(client)
	defer locker.Close()
	lease, err := locker.Acquire(ctx, name, time.Minute)
	require.NoError(t, err)
	laterToken = lease.FencingToken()
	require.Greater(t, laterToken, zombieToken)
	require.NoError(t, Set(ctx, db, name, 500, laterToken))
	require.NoError(t, lease.Release(ctx))

	require.NoError(t, process.Process.Signal(syscall.SIGCONT))
	said, err = out.ReadString('\n')
	require.NoError(t, err)
	balance, _ = row(t, name)
	return balance, said, zombieToken, laterToken
}
