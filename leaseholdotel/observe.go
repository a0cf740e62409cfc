package leaseholdotel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/metric"

	"github.com/go-leasehold/leasehold"
)

// Observe reports, whenever metrics are collected, what the Locker counts itself: the leases held, the acquires that
// wait and how often they found Redis unavailable, and the renewals. They are read from [leasehold.Locker.Stats] and
// not made of events, which may be missed, so what is held or waits is never negative and does not drift.
//
// Unregister the result when the Locker has been closed. Lockers that report to one provider need an attribute that
// tells them apart, see [WithAttributes]: without it their numbers meet in one series.
func Observe(l *leasehold.Locker, opts ...Option) (metric.Registration, error) {
	c := newConfig(opts)
	m := c.meters.Meter(scope)
	var errs [4]error
	held, err := m.Int64ObservableUpDownCounter("leasehold.held", metric.WithUnit("{lease}"),
		metric.WithDescription("Leases that have not ended."))
	errs[0] = err
	waiting, err := m.Int64ObservableUpDownCounter("leasehold.waiting", metric.WithUnit("{acquire}"),
		metric.WithDescription("Acquires that wait."))
	errs[1] = err
	renewals, err := m.Int64ObservableCounter("leasehold.renewals", metric.WithUnit("{renewal}"),
		metric.WithDescription("Renewals, by hand or in the background, by outcome."))
	errs[2] = err
	retries, err := m.Int64ObservableCounter("leasehold.retries", metric.WithUnit("{retry}"),
		metric.WithDescription("Times that an acquire which waits found Redis unavailable."))
	errs[3] = err
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	all, yes, no := c.labels(nil), c.labels(nil, outcomeKey.String("renewed")), c.labels(nil, outcomeKey.String(failed))
	return m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := l.Stats()
		o.ObserveInt64(held, int64(s.Held), all)
		o.ObserveInt64(waiting, int64(s.Waiting), all)
		o.ObserveInt64(renewals, s.Renewed, yes)
		o.ObserveInt64(renewals, s.RenewalsFailed, no)
		o.ObserveInt64(retries, s.Retried, all)
		return nil
	}, held, waiting, renewals, retries)
}
