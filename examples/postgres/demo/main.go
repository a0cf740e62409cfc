// Command demo lets workers that pause past the end of their leases write to a table of PostgreSQL: without fencing until
// updates are lost, with the writes fenced and not the reads until some are lost again, and fenced, where none may be.
//
//	go run ./demo
//
// It starts a PostgreSQL and a Redis of its own, takes some seconds, and checks what it says: it exits with 0 if all
// of that has happened and with 1 if not, or if a server is not installed.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-leasehold/leasehold/examples/postgres"
	"github.com/go-leasehold/leasehold/examples/postgres/internal/servers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run is the demo. It returns an error if anything did not go as it must.
func run(ctx context.Context, out io.Writer) error {
	s, err := servers.Start(ctx)
	if err != nil {
		return err
	}
	defer s.Stop()
	if _, err := s.DB.Exec(ctx, postgres.Schema); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d workers add 1 to a balance in PostgreSQL, %d times each, under a lease of %v from Redis.\n", workers, rounds, ttl)
	fmt.Fprintf(out, "Between the read and the write they pause for up to %v: some leases are over by the write.\n\n", maxPause)
	return play(ctx, out, &crew{db: s.DB, redis: s.Redis}, scenes)
}

// A scene lasts until the pauses have done what they can do to its store.
type scene struct {
	name  string
	store store
	fault func(result) int64
	safe  bool // no update may be lost
}

var scenes = []scene{
	{"without fencing", unfenced, lost, false},
	{"only the writes fenced", writesFenced, lost, false},
	{"reads and writes fenced", fenced, refused, true},
}

func lost(r result) int64    { return r.lost }
func refused(r result) int64 { return r.refused }

// play returns an error if a scene shows no fault, or a safe one loses an update.
func play(ctx context.Context, out io.Writer, c *crew, scenes []scene) error {
	fmt.Fprintf(out, "%-24s %8s %8s %8s\n", "updates", "written", "refused", "lost")
	for _, scene := range scenes {
		r, err := c.untilFault(ctx, scene.store, scene.fault)
		if err != nil {
			return fmt.Errorf("%s: %w", scene.name, err)
		}
		fmt.Fprintf(out, "%-24s %8d %8d %8d\n", scene.name, r.written, r.refused, r.lost)
		if scene.safe && r.lost != 0 {
			return fmt.Errorf("%s: %d updates were written and are not in the balance", scene.name, r.lost)
		}
	}
	_, err := fmt.Fprint(out, "\nA lost update was written by a worker whose lease was over, or written over by one. Fenced, such a write is\n"+
		"refused and its worker told so: every update that was written is in the balance.\n")
	return err
}
