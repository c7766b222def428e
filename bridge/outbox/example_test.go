package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	_ "modernc.org/sqlite"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/outbox"
	"github.com/duestream/duestream/integration/redistest"
)

type Order struct {
	ID int `json:"id"`
}

var CloseOrder = bridge.Kind[Order]{Name: "close-order", Queue: "orders"}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// begin opens a database in a directory of its own, and connects a client to a server.
func begin() (ctx context.Context, db *sql.DB, client *bridge.Client, end func()) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	dir, err := os.MkdirTemp("", "outbox")
	check(err)
	db, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+"?_pragma=busy_timeout(10000)")
	check(err)
	_, err = db.ExecContext(ctx, "CREATE TABLE orders (id integer, state text)")
	check(err)
	url, prefix, giveBack := redistest.Lend()
	redis, err := bridge.Dial(ctx, url)
	check(err)
	client, err = bridge.NewClient(bridge.ClientConfig{Redis: redis, Prefix: prefix})
	check(err)
	return ctx, db, client, func() {
		check(client.Close())
		redis.Close()
		giveBack()
		check(db.Close())
		check(os.RemoveAll(dir))
		cancel()
	}
}

// until waits for a condition, and panics after a minute.
func until(condition func() bool) {
	for deadline := time.Now().Add(time.Minute); !condition(); {
		if time.Now().After(deadline) {
			panic("not so after a minute")
		}
		<-time.After(10 * time.Millisecond)
	}
}

func Example() {
	ctx, db, client, end := begin()
	defer end()

	box, err := outbox.New(outbox.Config{Dialect: outbox.SQLite}) // default: outbox.PostgreSQL
	check(err)
	check(box.Migrate(ctx, db))

	// The order and the message that will close it are stored together, or not at all.
	tx, err := db.BeginTx(ctx, nil)
	check(err)
	_, err = tx.ExecContext(ctx, "INSERT INTO orders VALUES (42, 'unpaid')")
	check(err)
	id, err := outbox.ScheduleKind(ctx, box, tx, CloseOrder, Order{ID: 42},
		bridge.WithID("close-42"), bridge.In(30*time.Minute))
	check(err)
	check(tx.Commit())
	fmt.Println(id)

	// A relay brings the message to Redis.
	relay, err := outbox.NewRelay(outbox.RelayConfig{Outbox: box, DB: db, Client: client})
	check(err)
	stop, stopped := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { check(relay.Run(stop)) })
	relay.Wake() // after a commit: do not wait for the next look
	until(func() bool { return relay.Stats().Scheduled == 1 })

	// When the order is paid, the message is cancelled in the same way.
	tx, err = db.BeginTx(ctx, nil)
	check(err)
	_, err = tx.ExecContext(ctx, "UPDATE orders SET state = 'paid' WHERE id = 42")
	check(err)
	check(box.Cancel(ctx, tx, "orders", "close-42"))
	check(tx.Commit())
	until(func() bool { return relay.Stats().Cancelled == 1 })

	stopped()
	running.Wait()
	fmt.Printf("%+v\n", relay.Stats())
	// Output:
	// close-42
	// {Scheduled:1 Cancelled:1 Duplicates:0 TooLate:0 Refused:0 PutOff:0}
}

// In a test, Flush takes the place of a running relay.
func ExampleRelay_Flush() {
	ctx, db, client, end := begin()
	defer end()
	box, err := outbox.New(outbox.Config{Dialect: outbox.SQLite})
	check(err)
	check(box.Migrate(ctx, db))
	relay, err := outbox.NewRelay(outbox.RelayConfig{Outbox: box, DB: db, Client: client})
	check(err)
	check(outbox.Transact(ctx, db, func(tx *sql.Tx) error {
		_, err := box.Schedule(ctx, tx, "orders", []byte("42"), bridge.WithID("close-42"), bridge.In(30*time.Minute))
		return err
	}))
	check(relay.Flush(ctx))
	fmt.Println(relay.Stats().Scheduled)
	// Output:
	// 1
}

// A message is handed over as it was written. A row that duestream refuses is kept: here the table was changed by hand.
func ExampleOutbox_Failed() {
	ctx, db, client, end := begin()
	defer end()
	box, err := outbox.New(outbox.Config{Dialect: outbox.SQLite, Table: "jobs"})
	check(err)
	check(box.Migrate(ctx, db))
	for _, id := range []string{"close-42", "close-43"} {
		_, err = box.Schedule(ctx, db, "orders", []byte(`{"id":42}`), bridge.WithID(id), bridge.In(time.Hour))
		check(err)
	}
	_, err = db.ExecContext(ctx, `UPDATE jobs SET message = '{"id":"close-43","max_attempts":0}' WHERE id = 'close-43'`)
	check(err)

	relay, err := outbox.NewRelay(outbox.RelayConfig{Outbox: box, DB: db, Client: client})
	check(err)
	stop, stopped := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { check(relay.Run(stop)) })
	until(func() bool { return relay.Stats().Refused == 1 && relay.Stats().Scheduled == 1 })
	stopped()
	running.Wait()

	status, err := box.Status(ctx, db)
	check(err)
	fmt.Println(status.Waiting, "wait,", status.Failed, "failed")
	rows, err := box.Failed(ctx, db, 0, 100)
	check(err)
	for _, row := range rows {
		fmt.Println(row.Operation, row.ID+":", row.Error)
	}
	deleted, err := box.Delete(ctx, db, rows[0].Seq) // or Retry, when the row can succeed
	check(err)
	fmt.Println(deleted, "deleted")
	// Output:
	// 0 wait, 1 failed
	// schedule close-43: max_attempts "0": must be between 1 and 1000000
	// 1 deleted
}

// Pgx makes a transaction of pgx usable, without an import of pgx by this package.
func ExamplePgx() {
	ctx := context.Background()
	box, err := outbox.New(outbox.Config{})
	check(err)
	tx := pgxTx{} // of pool.Begin(ctx)
	_, err = box.Schedule(ctx, outbox.Pgx(tx), "orders", nil, bridge.WithID("close-42"))
	check(err)
	// Output:
	// INSERT INTO "duestream_outbox"
}

// pgxTx stands for a pgx.Tx.
type pgxTx struct{}

type commandTag struct{}

func (commandTag) RowsAffected() int64 { return 1 }

func (pgxTx) Exec(_ context.Context, query string, _ ...any) (commandTag, error) {
	fmt.Println(query[:len(`INSERT INTO "duestream_outbox"`)])
	return commandTag{}, nil
}
