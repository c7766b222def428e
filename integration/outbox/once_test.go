package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/once"
	"github.com/duestream/duestream/integration/redistest"
)

// Deliveries of one message that run at once have one effect: the second waits for the transaction of the first. If the
// first is rolled back, the second has the effect. It holds with database/sql and with pgx.
func TestDeliveriesAtOnceHaveOneEffect(t *testing.T) {
	t.Parallel()
	server := sharedPostgres(t)
	db := server.open(t)
	pool := redistest.Must(pgxpool.New(t.Context(), server.url()))
	t.Cleanup(pool.Close)
	o := redistest.Must(once.New(once.Config{Table: "public.once"}))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if err := o.Migrate(t.Context(), once.Pgx(pool)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE effects (id text)"); err != nil {
		t.Fatal(err)
	}
	const messages, deliveries = 50, 4
	rolledBack := errors.New("rolled back")
	inSQL := func(first bool) bridge.Handler {
		return o.Handler(db, func(ctx context.Context, tx *sql.Tx, m *bridge.Message) error {
			if _, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES ($1)", m.ID); err != nil || !first {
				return err
			}
			return rolledBack
		})
	}
	inPgx := func(ctx context.Context, m *bridge.Message) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := o.Do(ctx, once.Pgx(tx), m, func() error {
				_, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1)", m.ID)
				return err
			})
			return err
		})
	}
	for i := range messages {
		for delivery := range deliveries {
			handler := inSQL(delivery == 0)
			if delivery == 1 {
				handler = inPgx
			}
			all.Go(func() {
				m := &bridge.Message{ID: fmt.Sprint(i), Queue: "q", Group: "g"}
				if err := handler(t.Context(), m); err != nil && !errors.Is(err, rolledBack) {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	var effects, different int
	if err := db.QueryRowContext(t.Context(), "SELECT count(*), count(DISTINCT id) FROM effects").
		Scan(&effects, &different); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "effects", fmt.Sprint(effects, different), fmt.Sprint(messages, messages))
	if _, err := db.ExecContext(t.Context(), "UPDATE once SET done_ms = done_ms - 7200000 WHERE id < '2'"); err != nil {
		t.Fatal(err)
	}
	removed := redistest.Must(o.Clean(t.Context(), once.Pgx(pool), time.Hour, 5))
	redistest.Want(t, "removed", removed, 5)
	redistest.Want(t, "forgotten", redistest.Must(o.Forget(t.Context(), once.Pgx(pool), "q", "g", "3")), true)
}

// Clean reads the old records, and few others. Regression: each call read all records of the table.
func TestCleanReadsOldRecordsOnly(t *testing.T) {
	t.Parallel()
	server := sharedPostgres(t)
	db, ofCleaner := server.open(t), server.open(t)
	o := redistest.Must(once.New(once.Config{Table: "many"}))
	if err := o.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `INSERT INTO many SELECT 'q', 'g', g,
		CASE WHEN g <= 20 THEN 1 ELSE (extract(epoch FROM now()) * 1000)::bigint END
		FROM generate_series(1, 20000) AS g`); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{15, 5, 0, 0, 0} {
		redistest.Want(t, "removed", redistest.Must(o.Clean(t.Context(), ofCleaner, time.Hour, 15)), want)
	}
	if err := ofCleaner.Close(); err != nil { // a connection that ends reports what it has read
		t.Fatal(err)
	}
	var index, sequential, deleted int64
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		err := db.QueryRowContext(t.Context(), `SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes
			WHERE relname = 'many'), seq_tup_read, n_tup_del FROM pg_stat_user_tables WHERE relname = 'many'`).
			Scan(&index, &sequential, &deleted)
		return err == nil && deleted == 20, fmt.Sprint(deleted, err)
	})
	if index > 200 || sequential > 200 {
		t.Errorf("%d index entries and %d rows were read for 20 records", index, sequential)
	}
}
