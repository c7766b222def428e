package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/database"
	"github.com/duestream/duestream/lua"
)

// DefaultTable is the table of an Outbox whose Config names none.
const DefaultTable = "duestream_outbox"

// Config configures an Outbox. The zero value means the table DefaultTable in PostgreSQL.
type Config struct {
	// Table is the name of the table, with or without a schema: "outbox", "shop.outbox". A name has 1 to 40 characters
	// of a-z, 0-9 and _, and does not begin with a digit. Default DefaultTable.
	Table string
	// Dialect is the database. Default PostgreSQL.
	Dialect Dialect
	// Dedup is the dedup window of messages whose ID the outbox makes. If a row is handed over twice within this time,
	// the message is stored once, even if it was delivered in between. It costs about 100 bytes of Redis memory for
	// each message in this time. Whole milliseconds. Default 0: a row that is handed over again after its delivery is
	// delivered again.
	Dedup time.Duration
}

// Outbox writes rows into one table. It holds no connection, and is safe for concurrent use.
type Outbox struct {
	table string
	dedup time.Duration
	sql   queries
}

// New checks the configuration; the error names all its faults, each a *bridge.InvalidError. No database is touched.
func New(cfg Config) (*Outbox, error) {
	cfg.Table = cmp.Or(cfg.Table, DefaultTable)
	err := lua.Faults("outbox",
		database.CheckTable(cfg.Table),
		lua.Between("dialect", cfg.Dialect, PostgreSQL, SQLite),
		lua.CheckDelay("dedup", cfg.Dedup),
	)
	if err != nil {
		return nil, err
	}
	return &Outbox{table: cfg.Table, dedup: cfg.Dedup, sql: queriesFor(cfg.Dialect, cfg.Table)}, nil
}

// Tx is a transaction of the program: a *sql.Tx, or a transaction of pgx by way of Pgx. With a *sql.DB each call is a
// transaction of its own.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Pgx makes a Tx of a pgx.Tx. It also takes a *pgx.Conn and a *pgxpool.Pool, with which each call is a transaction of
// its own.
func Pgx[R interface{ RowsAffected() int64 }](tx interface {
	Exec(ctx context.Context, query string, args ...any) (R, error)
}) Tx {
	return database.OfPgx(tx.Exec)
}

// Schedule writes a row for a message, in the transaction, and returns the ID that the message will have: the ID of
// bridge.WithID, or else a new ULID. Once the transaction has committed, the message is handed over as Client.Schedule
// would send it.
//
// A relative time (In, Spread, ExpiresIn) counts from this call and not from the hand-over. The clock of the database
// measures the time until the hand-over, and the clock of the Redis server measures the rest. So the two clocks may
// differ. If the time has passed when the transaction commits, or when Redis comes back, the message is due at once, or
// has expired. The times of bridge.At and bridge.ExpiresAt are times of the Redis server's clock, as always. A dedup
// window begins with the hand-over.
//
// If the ID is scheduled already, or its dedup window has not ended, the relay drops the message, because it cannot
// distinguish it from a second hand-over of the same row. RelayStats counts it. With bridge.Replace the new message
// wins.
//
// ErrInvalid means that nothing was written. After any other error, the database decides the state of the transaction:
// PostgreSQL accepts no further statement in it.
func (o *Outbox) Schedule(ctx context.Context, tx Tx, queue string, payload []byte,
	options ...bridge.Option) (id string, err error) {
	m := bridge.NewMessage{Payload: payload}
	for _, set := range options {
		if set == nil {
			m.Refuse("option", "nil", "must be an Option")
			continue
		}
		set(&m)
	}
	return o.Send(ctx, tx, queue, m)
}

// Send is Schedule for a message with all its fields.
func (o *Outbox) Send(ctx context.Context, tx Tx, queue string, m bridge.NewMessage) (id string, err error) {
	if err := errors.Join(lua.CheckQueue(queue), m.Check()); err != nil {
		return "", fmt.Errorf("outbox: schedule %s/%s: %w", queue, m.ID, err)
	}
	if m.ID == "" {
		m.ID, m.Dedup = ulid.Make().String(), o.dedup
	}
	text, err := encode(m)
	if err != nil {
		return "", fmt.Errorf("outbox: schedule %s/%s: %w", queue, m.ID, err)
	}
	dueMs := int64(0) // 0 = the time of the statement
	if !m.At.IsZero() {
		dueMs = m.At.UnixMilli()
	}
	delayMs := (m.Delay + lua.SpreadOf(m.ID, m.Spread)).Milliseconds()
	err = o.write(ctx, tx, scheduleRow, queue, m.ID, m.Key, text, dueMs, delayMs)
	return m.ID, err
}

// ScheduleKind is Outbox.Schedule for a value of a typed kind. Kind.Schedule is the same for a Client.
func ScheduleKind[T any](ctx context.Context, o *Outbox, tx Tx, kind bridge.Kind[T], value T,
	options ...bridge.Option) (id string, err error) {
	m, err := kind.Message(value, options...)
	if err != nil {
		return "", fmt.Errorf("outbox: %w", err)
	}
	return o.Send(ctx, tx, kind.Queue, m)
}

// Cancel writes a row that cancels a message, in the transaction. A relay hands it over as a call of Client.Cancel,
// after all earlier rows with the same ID. If the message is ready by then, or was delivered, nothing happens, and
// RelayStats counts it as too late. The program does not learn of this, so the handler must check whether its work is
// still wanted. Retries are not cancelled. Errors are those of Schedule.
func (o *Outbox) Cancel(ctx context.Context, tx Tx, queue, id string) error {
	if err := errors.Join(lua.CheckQueue(queue), lua.CheckID(id)); err != nil {
		return fmt.Errorf("outbox: cancel %s/%s: %w", queue, id, err)
	}
	return o.write(ctx, tx, cancelRow, queue, id, "", "", 0, 0)
}

// write inserts a row. dueMs is the due time, to which delayMs is added; 0 = the time of the statement.
func (o *Outbox) write(ctx context.Context, tx Tx, operation, queue, id, key, message string,
	dueMs, delayMs int64) error {
	if _, err := tx.ExecContext(ctx, o.sql.insert, operation, queue, id, key, message, dueMs, delayMs); err != nil {
		return fmt.Errorf("outbox: %s %s/%s: write the row: %w", operation, queue, id, err)
	}
	return nil
}
