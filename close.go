package leasehold

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// closeBound is the longest that Close waits for the functions that WithLock runs, and again for everything else.
const closeBound = 5 * time.Second

// Shutdown ends the Locker without breaking off the work. From its call on no lock can be taken ([ErrClosed]), and waits
// end with ErrClosed. All leases go on as before, renewed where they were, until the functions that WithLock runs have
// returned, or ctx ends. Then it does what Close does, and returns the same. An end of ctx is no error by itself.
//
// A function that runs may lock nothing more. It must not call Shutdown, which would wait for it. Shutdown may be called
// again, and by several goroutines: the first of their contexts that ends, or a Close, ends the patience of all.
func (l *Locker) Shutdown(ctx context.Context) error {
	l.life.Drain()
	defer context.AfterFunc(ctx, l.life.Close)()
	return l.shut.Do(l.shutDown)
}

// Close ends the Locker. It is a Shutdown whose context has ended. No lock can be taken any more ([ErrClosed]), waits
// end with ErrClosed, and the contexts of all leases end with it. Leases of WithLock are kept and renewed until their
// functions have returned, for at most 5 s. Then everything is released, and every goroutine of the Locker ends, within
// 6 s more. If a function does not return or Redis does not answer, the error names the lease. That lease has ended for
// its holder, and its key expires with its TTL. Close may be called at any time, again, and by several goroutines. All
// calls wait and return the same.
func (l *Locker) Close() error {
	l.life.Close()
	return l.shut.Do(l.shutDown)
}

func (l *Locker) shutDown() error {
	held := leases(l.keeper.Seal())
	for _, le := range held {
		if le.isScoped() {
			select {
			case <-le.Done():
			case <-l.life.Closing():
			}
		}
	}
	l.life.Close()
	for _, le := range held {
		le.endContexts(le.closing())
	}

	var errs []error
	late := time.NewTimer(closeBound)
	defer late.Stop()
	held = slices.DeleteFunc(held, func(le *Lease) bool {
		if !le.isScoped() {
			return false
		}
		select {
		case <-le.Done():
		case <-late.C:
			late.Reset(0) // for the next one
			errs = append(errs, le.fail("close", errors.New("WithLock's function has not returned; its lease goes with its ttl")))
		}
		return true
	})

	ctx, cancel := context.WithTimeout(context.Background(), closeBound)
	defer cancel()
	errs = append(errs, releaseAll(ctx, held)...)
	l.life.Wait(ctx)
	l.life.End() // whatever still repeats a clean-up gives up
	last, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	l.life.Wait(last)
	for _, le := range leases(l.keeper.Close(last)) {
		_ = le.end(&lossError{LossClosed, "it was not released in time", ErrClosed})
	}
	l.line.Close(last)
	if !l.backend.Close(ctx) {
		errs = append(errs, &Error{Op: "close", Err: errors.New("the redis client has not returned from a call; it will, with its own timeouts")})
	}
	return errors.Join(errs...)
}

// releaseAll releases the leases, so many at a time as a few round trips take.
func releaseAll(ctx context.Context, leases []*Lease) (errs []error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	next := make(chan *Lease)
	for range min(len(leases), 256) {
		all.Go(func() {
			for le := range next {
				err := le.fail("close", ctx.Err())
				if ctx.Err() == nil {
					err = le.Release(ctx)
				}
				if err != nil && !errors.Is(err, ErrLost) {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for _, le := range leases {
		next <- le
	}
	close(next)
	all.Wait()
	return errs
}
