// Package proof has no code of its own. Its directories check the protocols of leasehold: each explores every state that a
// small model of a protocol can reach, breadth first, so that a counterexample is a shortest one.
//
//	explore  the search that they share
//	line     the lock on one server: its waiters, who take turns, and those who adopt a lease
//	several  leases of one key that several hold at once: a protocol to come
//	turns    a lock that the goroutines of one process pass on in memory: a protocol to come
//	quorum   the lock on a majority of servers
//
// A model is a transcription of the Lua scripts and of the client's rules by hand, for a few clients, short times and
// counted faults. So a run that holds says that the rules are right within its bounds, and nothing about the Go code that
// follows them: that is what the simulation in the package itself is for.
//
// A model that misses a broken rule proves nothing. So each rule is left out once, and the run must see the property fail.
//
// go test -v prints the bounds of each run and, for each rule that is left out, the way to the violation.
//
// go test ./... takes some seconds. Runs with larger bounds are skipped unless LEASEHOLD_PROOF=all is set; they take
// minutes and some GB of memory, and are meant for each night:
//
//	LEASEHOLD_PROOF=all go test -timeout 2h ./...
package proof
