// Package postgres shows how a table of PostgreSQL refuses the writes of a holder whose lease is over. It is
// meant to be read and copied, not imported.
//
// Each row remembers the highest fencing token that has touched it, and every statement that reads for a later
// write, or writes, says which token it comes with:
//
//	lease, err := locker.Acquire(ctx, "account:7", 10*time.Second)
//	…
//	balance, err := Get(ctx, db, "account:7", lease.FencingToken())
//	… any pause …
//	err = Set(ctx, db, "account:7", balance+100, lease.FencingToken()) // leasehold.ErrStale: it was too long
package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/go-leasehold/leasehold"
)

// Schema is the table. A row must not be deleted, for its mark would go with it: mark it as deleted instead.
const Schema = `
CREATE TABLE account (
	name          text   PRIMARY KEY,
	balance       bigint NOT NULL,
	fencing_token bigint NOT NULL CHECK (fencing_token > 0) -- the highest seen
)`

// DB is a *pgxpool.Pool, a *pgx.Conn or a pgx.Tx.
type DB interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Set writes the balance, unless the row has seen a higher token; the error then matches leasehold.ErrStale.
//
// The first write inserts the row. Of two first writes at once PostgreSQL makes one wait for the other and then
// take the UPDATE, which looks at the row as it is by then. That holds at the default isolation level, READ
// COMMITTED; at the higher ones the second fails with a serialization error, which is safe too.
func Set(ctx context.Context, db DB, name string, balance, fencingToken int64) error {
	const set = `
		INSERT INTO account AS a (name, balance, fencing_token) VALUES ($1, $2, $3)
		ON CONFLICT (name) DO UPDATE
			SET balance = excluded.balance, fencing_token = excluded.fencing_token
			WHERE a.fencing_token <= excluded.fencing_token
		RETURNING balance`
	err := db.QueryRow(ctx, set, name, balance, fencingToken).Scan(&balance)
	return told(ctx, db, name, fencingToken, err)
}

// Get reads a balance that a later Set will depend on; that of a new account is 0. It raises the row's mark.
// Without that, the holder before could still write between this Get and the Set, and its write be lost.
func Get(ctx context.Context, db DB, name string, fencingToken int64) (balance int64, err error) {
	const claim = `
		INSERT INTO account AS a (name, balance, fencing_token) VALUES ($1, 0, $2)
		ON CONFLICT (name) DO UPDATE
			SET fencing_token = excluded.fencing_token
			WHERE a.fencing_token <= excluded.fencing_token
		RETURNING balance`
	err = db.QueryRow(ctx, claim, name, fencingToken).Scan(&balance)
	return balance, told(ctx, db, name, fencingToken, err)
}

// Transfer reads and writes two accounts in one transaction, under one lease that covers both. On an error
// neither has changed.
//
// The first statement on a row is the Get. It compares the tokens and also locks the row until the commit, so
// nobody comes between it and the Set. A process that is paused in here makes others wait at the database, the
// new holder among them: keep such a transaction short and set idle_in_transaction_session_timeout.
func Transfer(ctx context.Context, db DB, from, to string, amount, fencingToken int64) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		for _, step := range []struct {
			name   string
			amount int64
		}{{from, -amount}, {to, amount}} {
			balance, err := Get(ctx, tx, step.name, fencingToken)
			if err != nil {
				return err
			}
			if balance+step.amount < 0 {
				return errors.New("not enough money in " + step.name)
			}
			if err := Set(ctx, tx, step.name, balance+step.amount, fencingToken); err != nil {
				return err
			}
		}
		return nil
	})
}

// told turns "no row was touched", which is how the database refuses a token, into an error with both numbers.
func told(ctx context.Context, db DB, name string, fencingToken int64, err error) error {
	if !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	// A mark only rises, so what is read now is still above the token.
	stale := &leasehold.StaleError{Token: fencingToken}
	if err := db.QueryRow(ctx, `SELECT fencing_token FROM account WHERE name = $1`, name).Scan(&stale.Highest); err != nil {
		return err
	}
	return &leasehold.Error{Op: "update account", Key: name, Err: stale}
}
