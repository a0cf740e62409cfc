// Command leasehold runs commands under a lock on Redis, and looks after locks by hand.
//
//	leasehold run -key KEY -ttl 30s -- COMMAND ARG…   runs a command while it holds a lock
//	leasehold inspect KEY…                             says who holds a lock, for how long, how many wait
//	leasehold list -prefix P                           lists the locks whose keys begin with P
//	leasehold watch KEY                                shows a lock while it changes
//	leasehold release KEY                              takes a lock from whoever holds it
//	leasehold doctor                                   looks for what is wrong with a Redis for locks
//	leasehold demo                                     plays four scenes on a Redis of its own
//
// "leasehold help" lists all commands, and "leasehold COMMAND -h" explains one, with its exit statuses.
package main

import (
	"context"
	"os"
)

//go:generate sh -c "go run . markdown >../../docs/cli.md"

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
