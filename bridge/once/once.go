package once

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/database"
	"github.com/duestream/duestream/lua"
)

// DefaultTable is the table of a Once whose Config names none.
const DefaultTable = "duestream_once"

// Dialect is a kind of database.
type Dialect int

// Dialects.
const (
	PostgreSQL Dialect = iota // the default
	SQLite                    // for quick tests
)

// Config configures a Once. The zero value means the table DefaultTable in PostgreSQL.
type Config struct {
	// Table is the name of the table, with or without a schema: "once", "shop.once". A name has 1 to 40 characters of
	// a-z, 0-9 and _, and does not begin with a digit. Default DefaultTable.
	Table string
	// Dialect is the database. Default PostgreSQL.
	Dialect Dialect
	// Key returns the text that identifies a message within its queue and group, at most 1,000 bytes of UTF-8 without
	// NUL. It must be the same at each delivery of the message: do not use Attempt, EntryID or Due. Default: the
	// message ID.
	Key func(m *bridge.Message) string
}

// Tx is a transaction of the program: a *sql.Tx, or a transaction of pgx by way of Pgx.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Pgx makes a Tx of a pgx.Tx. For Migrate and Clean it also takes a *pgxpool.Pool.
func Pgx[R interface{ RowsAffected() int64 }](tx interface {
	Exec(ctx context.Context, query string, args ...any) (R, error)
}) Tx {
	return database.OfPgx(tx.Exec)
}

// SchemaPostgreSQL creates the table DefaultTable in PostgreSQL. Once.Schema returns the same statements for a table of
// another name.
const SchemaPostgreSQL = `CREATE TABLE IF NOT EXISTS "duestream_once" (
  queue   text   NOT NULL,
  "group" text   NOT NULL,
  id      text   NOT NULL, -- of the message, or the key of Config.Key
  done_ms bigint NOT NULL, -- Unix milliseconds by the clock of the database
  PRIMARY KEY (queue, "group", id)
);
CREATE INDEX IF NOT EXISTS "duestream_once_done" ON "duestream_once" (done_ms);
`

// Once records handled messages in one table. It holds no connection, and is safe for concurrent use.
type Once struct {
	key                            func(m *bridge.Message) string
	isSQLite                       bool
	schema, record, forget, remove string // statements
}

// New checks the configuration; the error names all its faults, each a *bridge.InvalidError. No database is touched.
func New(cfg Config) (*Once, error) {
	cfg.Table = cmp.Or(cfg.Table, DefaultTable)
	if cfg.Key == nil {
		cfg.Key = func(m *bridge.Message) string { return m.ID }
	}
	err := lua.Faults("once", database.CheckTable(cfg.Table), lua.Between("dialect", cfg.Dialect, PostgreSQL, SQLite))
	if err != nil {
		return nil, err
	}
	isSQLite := cfg.Dialect == SQLite
	prefix, name := database.Split(cfg.Table)
	table := prefix + `"` + name + `"`
	statement := func(text string) string {
		text = strings.NewReplacer("TABLE_NAME", table, "NOW", database.Now(isSQLite)).Replace(text)
		return database.Parameters(isSQLite, text)
	}
	schema := strings.NewReplacer(`EXISTS "duestream_once" (`, `EXISTS `+table+` (`, `ON "duestream_once"`, `ON `+table,
		"duestream_once", name).Replace(SchemaPostgreSQL)
	if isSQLite { // there the schema stands before the name of the index
		schema = strings.ReplaceAll(schema, "ON "+table, `ON "`+name+`"`)
		schema = strings.ReplaceAll(schema, `INDEX IF NOT EXISTS "`, `INDEX IF NOT EXISTS `+prefix+`"`)
	}
	// With the time limit as a subquery, PostgreSQL computes it once, and finds the old records by the index. Without the
	// subquery, PostgreSQL reads all records. The rows are selected by ctid, because a join on the primary key may read
	// all records, too. Two calls at the same time lock rows in the order of ctid, so there is no deadlock.
	// If the program has partitioned the table, places of several partitions are equal, so the age is checked again.
	old := `done_ms < (SELECT NOW - CAST($1 AS bigint))`
	first := `FROM TABLE_NAME WHERE ` + old + ` ORDER BY done_ms LIMIT CAST($2 AS bigint)`
	remove := `DELETE FROM TABLE_NAME WHERE ctid = ANY(ARRAY(SELECT ctid ` + first + `)) AND ` + old
	if isSQLite {
		remove = `DELETE FROM TABLE_NAME WHERE rowid IN (SELECT rowid ` + first + `)`
	}
	return &Once{
		key: cfg.Key, isSQLite: isSQLite, schema: schema,
		record: statement(`INSERT INTO TABLE_NAME (queue, "group", id, done_ms) VALUES ($1, $2, $3, NOW)
ON CONFLICT DO NOTHING`),
		forget: statement(`DELETE FROM TABLE_NAME WHERE queue = $1 AND "group" = $2 AND id = $3`),
		remove: statement(remove),
	}, nil
}

// Schema returns the statements that create the table and its index unless they exist, for a program that migrates its
// database with a tool of its own.
func (o *Once) Schema() string { return o.schema }

// Migrate creates the table and its index unless they exist. db is a *sql.DB, or a pool of pgx by way of Pgx. Any
// number of programs may call it at once.
func (o *Once) Migrate(ctx context.Context, db Tx) error {
	for _, statement := range database.Statements(o.isSQLite, o.schema) {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("once: create the table: %w", err)
		}
	}
	return nil
}

// Do records the message in the transaction, and calls effect if no record of it existed. It returns whether effect was
// called, and the error of effect. After an error, roll the transaction back: the record then vanishes too, and the
// next attempt begins anew. Otherwise commit, and let the handler return nil, also if effect was not called.
//
// If another transaction has recorded the message and has not ended yet, Do waits in PostgreSQL until that transaction
// or ctx ends. So set WorkerConfig.HandlerTimeout. If the program of that transaction is frozen or cut off, its session
// may live for hours. The setting idle_in_transaction_session_timeout of PostgreSQL ends such a session.
func (o *Once) Do(ctx context.Context, tx Tx, m *bridge.Message, effect func() error) (called bool, err error) {
	key := o.key(m)
	if len(key) == 0 || len(key) > 1000 || !utf8.ValidString(key) || strings.ContainsRune(key, 0) {
		return false, lua.Invalid("key", key, "must be 1 to 1,000 bytes of UTF-8 without NUL")
	}
	result, err := tx.ExecContext(ctx, o.record, m.Queue, m.Group, key)
	var recorded int64
	if err == nil {
		recorded, err = result.RowsAffected()
	}
	if err != nil {
		return false, fmt.Errorf("once: record %s/%s: %w", m.Queue, m.ID, err)
	}
	if recorded == 0 {
		return false, nil
	}
	return true, effect()
}

// Handler returns a handler that calls handle in a transaction, once for each message and group. If handle returns nil,
// the transaction is committed. Otherwise it is rolled back, and the handler returns the error of handle. A message
// that was handled before is acknowledged. If it is unknown whether the commit succeeded, the message is retried, and
// the record decides. For typed kinds, or with pgx, use Do.
func (o *Once) Handler(db *sql.DB,
	handle func(ctx context.Context, tx *sql.Tx, m *bridge.Message) error) bridge.Handler {
	return func(ctx context.Context, m *bridge.Message) (err error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return fmt.Errorf("once: begin a transaction: %w", err)
		}
		defer tx.Rollback() // also if handle panics; after a commit it does nothing
		called, err := o.Do(ctx, tx, m, func() error { return handle(ctx, tx, m) })
		if err != nil || !called {
			return err
		}
		if err := tx.Commit(); err != nil {
			return fmt.Errorf("once: commit: %w", err)
		}
		return nil
	}
}

// Forget removes the record of a message, so that its next delivery has an effect again. id is the message ID, or the
// key of Config.Key. known reports whether there was a record.
func (o *Once) Forget(ctx context.Context, tx Tx, queue, group, id string) (known bool, err error) {
	if err := errors.Join(lua.CheckQueue(queue), lua.CheckGroup(group)); err != nil {
		return false, fmt.Errorf("once: forget: %w", err)
	}
	result, err := tx.ExecContext(ctx, o.forget, queue, group, id)
	var removed int64
	if err == nil {
		removed, err = result.RowsAffected()
	}
	if err != nil {
		return false, fmt.Errorf("once: forget %s/%s: %w", queue, id, err)
	}
	return removed > 0, nil
}

// Clean removes at most limit records that are older than age by the clock of the database, the oldest first. It
// returns the number of removed records. Call it regularly, and again at once if it returns limit. A message that comes
// again after its record was removed has an effect again.
func (o *Once) Clean(ctx context.Context, tx Tx, age time.Duration, limit int) (removed int, err error) {
	if err := errors.Join(lua.CheckDelay("age", age), lua.Between("limit", limit, 1, 1_000_000)); err != nil {
		return 0, fmt.Errorf("once: clean: %w", err)
	}
	result, err := tx.ExecContext(ctx, o.remove, age.Milliseconds(), limit)
	var n int64
	if err == nil {
		n, err = result.RowsAffected()
	}
	if err != nil {
		return 0, fmt.Errorf("once: remove old records: %w", err)
	}
	return int(n), nil
}
