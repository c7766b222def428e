package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Reader is a *sql.DB, *sql.Conn or *sql.Tx.
type Reader interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Status is the number of rows of an outbox.
type Status struct {
	Waiting, Failed int
	Oldest          time.Duration // age of the oldest waiting row; 0 = none waits
}

// Status counts the rows of the table. It reads the whole table. Set alerts on Failed and on Oldest, which is about the
// time that a message spends in the outbox.
func (o *Outbox) Status(ctx context.Context, db Reader) (Status, error) {
	var s Status
	rows, err := db.QueryContext(ctx, o.sql.status)
	if err != nil {
		return s, fmt.Errorf("outbox: count the rows: %w", err)
	}
	defer rows.Close()
	var oldestMs int64
	for rows.Next() {
		if err := rows.Scan(&s.Waiting, &s.Failed, &oldestMs); err != nil {
			return s, fmt.Errorf("outbox: count the rows: %w", err)
		}
	}
	s.Oldest = time.Duration(max(0, oldestMs)) * time.Millisecond
	return s, rows.Err()
}

// Row is a refused row.
type Row struct {
	Seq       int64  // its number, for Retry and Delete
	Operation string // "schedule" or "cancel"
	Queue, ID string
	Message   string    // JSON of the message; empty for a cancellation
	Written   time.Time // by the clock of the database, like Due and Failed
	Due       time.Time // about when the message was to be due
	Failed    time.Time // when it was refused
	Error     string
}

// Failed returns the refused rows with a number above after, in the order of their numbers, at most limit.
func (o *Outbox) Failed(ctx context.Context, db Reader, after int64, limit int) ([]Row, error) {
	rows, err := db.QueryContext(ctx, o.sql.failed, after, limit)
	if err != nil {
		return nil, fmt.Errorf("outbox: list refused rows: %w", err)
	}
	defer rows.Close()
	var all []Row
	for rows.Next() {
		var one Row
		var written, due, failed int64
		err := rows.Scan(&one.Seq, &one.Operation, &one.Queue, &one.ID, &one.Message, &written, &due, &failed,
			&one.Error)
		if err != nil {
			return nil, fmt.Errorf("outbox: list refused rows: %w", err)
		}
		one.Written, one.Due, one.Failed = time.UnixMilli(written), time.UnixMilli(due), time.UnixMilli(failed)
		all = append(all, one)
	}
	return all, rows.Err()
}

// Retry lets refused rows wait for a relay again, and returns their number. Numbers of other rows have no effect. A row
// keeps its number, so it is handed over before all rows of its ID that still wait. Rows of its ID that were handed
// over in the meantime have overtaken it: check whether a cancellation is among them.
func (o *Outbox) Retry(ctx context.Context, tx Tx, seqs ...int64) (int, error) {
	return o.change(ctx, tx, "retry", o.sql.retry, seqs)
}

// Delete deletes refused rows, and returns their number. Their messages are lost. Numbers of other rows have no effect.
func (o *Outbox) Delete(ctx context.Context, tx Tx, seqs ...int64) (int, error) {
	return o.change(ctx, tx, "delete", o.sql.discard, seqs)
}

func (o *Outbox) change(ctx context.Context, tx Tx, verb, query string, seqs []int64) (int, error) {
	numbers := make([]string, len(seqs))
	for i, seq := range seqs {
		numbers[i] = strconv.FormatInt(seq, 10)
	}
	result, err := tx.ExecContext(ctx, query, strings.Join(numbers, ","))
	if err != nil {
		return 0, fmt.Errorf("outbox: %s refused rows: %w", verb, err)
	}
	n, err := result.RowsAffected()
	return int(n), err
}
