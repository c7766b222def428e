package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"log/slog"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/outbox"
	"github.com/duestream/duestream/bridge/tracing"
)

// The two messages about an order. The payload is the ID of the order. Handlers read the row of the order, because a
// copy in the message may be out of date.
var RemindOrder = bridge.Kind[string]{Name: "remind-order", Queue: "orders"}
var CloseOrder = bridge.Kind[string]{Name: "close-order", Queue: "orders"}

// An order is unpaid, and then paid or closed.
const schema = `CREATE TABLE IF NOT EXISTS orders
	(id text PRIMARY KEY, item text NOT NULL, state text NOT NULL, reminded boolean NOT NULL DEFAULT false)`

// Shop keeps orders in a database, and closes orders that nobody pays in time.
type Shop struct {
	Config
	DB      *sql.DB
	Outbox  *outbox.Outbox
	Mail    func(ctx context.Context, order, text string) error
	Tracing tracing.Config
}

// Migrate creates the tables unless they exist.
func (s *Shop) Migrate(ctx context.Context) error {
	_, err := s.DB.ExecContext(ctx, schema)
	return errors.Join(err, s.Outbox.Migrate(ctx, s.DB))
}

// Place stores an order and its two messages in one transaction. One reminds the customer, and the other closes the
// order.
func (s *Shop) Place(ctx context.Context, item string) (id string, err error) {
	id = rand.Text()
	return id, outbox.Transact(ctx, s.DB, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO orders (id, item, state) VALUES ($1, $2, 'unpaid')", id, item)
		if err != nil {
			return err
		}
		return errors.Join(
			s.schedule(ctx, tx, RemindOrder, id, s.RemindAfter),
			s.schedule(ctx, tx, CloseOrder, id, s.CloseAfter))
	})
}

func (s *Shop) schedule(ctx context.Context, tx *sql.Tx, kind bridge.Kind[string], id string, in time.Duration) error {
	_, err := outbox.ScheduleKind(ctx, s.Outbox, tx, kind, id, bridge.WithID(messageID(kind, id)), bridge.In(in),
		tracing.Option(ctx, s.Tracing))
	return err
}

// messageID names the message of a kind about an order, so that Pay can cancel it.
func messageID(kind bridge.Kind[string], order string) string { return kind.Name + "-" + order }

// Pay marks an order as paid and cancels its messages, in one transaction. A second payment changes nothing. For a
// closed order it returns sql.ErrNoRows.
func (s *Shop) Pay(ctx context.Context, id string) error {
	return outbox.Transact(ctx, s.DB, func(tx *sql.Tx) error {
		if _, err := update(ctx, tx, "UPDATE orders SET state = 'paid' WHERE id = $1 AND state <> 'closed'", id); err != nil {
			return err
		}
		return errors.Join(
			s.Outbox.Cancel(ctx, tx, RemindOrder.Queue, messageID(RemindOrder, id)),
			s.Outbox.Cancel(ctx, tx, CloseOrder.Queue, messageID(CloseOrder, id)))
	})
}

// Mux returns the handlers of the messages.
func (s *Shop) Mux(log *slog.Logger) *bridge.Mux {
	mux := &bridge.Mux{}
	mux.Use(bridge.LogHandled(log))
	RemindOrder.Handle(mux, func(ctx context.Context, d *bridge.Delivery[string]) error {
		return s.updateAndMail(ctx, d.Value, "Please pay your order: ",
			"UPDATE orders SET reminded = true WHERE id = $1 AND state = 'unpaid' AND NOT reminded")
	})
	CloseOrder.Handle(mux, func(ctx context.Context, d *bridge.Delivery[string]) error {
		return s.updateAndMail(ctx, d.Value, "We have closed your order: ",
			"UPDATE orders SET state = 'closed' WHERE id = $1 AND state = 'unpaid'")
	})
	return mux
}

// updateAndMail sends a mail if the statement changes the order. A message that comes again, or after the payment,
// finds nothing to change. If the process dies after the mail and before the commit, the mail is sent twice.
func (s *Shop) updateAndMail(ctx context.Context, id, text, statement string) error {
	return outbox.Transact(ctx, s.DB, func(tx *sql.Tx) error {
		item, err := update(ctx, tx, statement, id)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		return s.Mail(ctx, id, text+item)
	})
}

// update changes one order, and returns its item. sql.ErrNoRows means that the statement fits no order.
func update(ctx context.Context, tx *sql.Tx, statement, id string) (item string, err error) {
	err = tx.QueryRowContext(ctx, statement+" RETURNING item", id).Scan(&item)
	return item, err
}
