// Package worker drains: it has as many jobs under way as it may, and when it is asked to end, it finishes them and
// begins no other.
package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-leasehold/leasehold"
)

// ttl is how long a job's lock outlives a worker that dies. The jobs may take longer: their leases are renewed.
const ttl = 10 * time.Second

// Pool works on jobs, each under its lock, so that no other process works on the same.
type Pool struct {
	Locker *leasehold.Locker
	Size   int                                         // jobs under way at once
	Grace  time.Duration                               // for the jobs under way, once the pool is asked to end
	Do     func(ctx context.Context, job string) error // leasehold.FromContext finds the lease, for its fencing token
	// Failed is told of each job that has failed, or was taken when the pool had ended, so that it can be given back. It
	// must be safe for concurrent use, as Do.
	Failed func(job string, err error)
}

// Run works on jobs until ctx ends or jobs is closed. Then it waits for the jobs under way: for the Grace until their
// contexts end, and then for 5 s until their locks are given up. It closes the Locker.
func (p *Pool) Run(ctx context.Context, jobs <-chan string) error {
	var workers sync.WaitGroup
	for range p.Size {
		workers.Go(func() {
			for ctx.Err() == nil {
				select {
				case <-ctx.Done():
				case job, open := <-jobs:
					if !open {
						return
					}
					p.work(job)
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() { defer close(finished); workers.Wait() }()
	select {
	case <-ctx.Done():
	case <-finished:
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.Grace)
	defer cancel()
	err := p.Locker.Shutdown(grace)
	<-finished
	return err
}

// work does one job. Its context does not descend from the one that ends the pool: that would break the job off.
func (p *Pool) work(job string) {
	err := p.Locker.TryWithLock(context.Background(), "job:"+job, ttl, func(ctx context.Context, _ *leasehold.Lease) error {
		return p.Do(ctx, job)
	})
	switch {
	case err == nil, errors.Is(err, leasehold.ErrHeld): // another process works on it
	default:
		p.Failed(job, err)
	}
}
