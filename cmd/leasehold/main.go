// Command leasehold shows what the leases of the leasehold library do, and looks after locks by hand.
//
//	leasehold demo               four scenes in about ten seconds, each checked by the program itself
//	leasehold inspect KEY        who holds a lock, for how long, how many wait
//	leasehold release KEY        take a lock from whoever holds it
//
// The demo brings its own Redis; -redis URL names a real one. It exits with 0 if everything asked for has
// happened, with 1 if not, and with 2 if it was called in a way that it does not understand.
package main

import "os"

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
