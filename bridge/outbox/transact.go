package outbox

import (
	"context"
	"database/sql"
)

// Transact calls a function with a new transaction of a database, and commits it. If the function returns an error or
// panics, it rolls the transaction back, and returns the error. It uses the isolation level of the database.
func Transact(ctx context.Context, db *sql.DB, do func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // after a commit it does nothing
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}
