package once_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/once"
	"github.com/duestream/duestream/integration/redistest"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// shop opens a database with an account of 5,000 cents.
func shop() (ctx context.Context, db *sql.DB, end func()) {
	ctx = context.Background()
	dir, err := os.MkdirTemp("", "once")
	check(err)
	db, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db"))
	check(err)
	_, err = db.ExecContext(ctx, "CREATE TABLE accounts AS SELECT 7 AS id, 5000 AS balance")
	check(err)
	return ctx, db, func() {
		check(db.Close())
		check(os.RemoveAll(dir))
	}
}

func balance(ctx context.Context, db *sql.DB) (cents int) {
	check(db.QueryRowContext(ctx, "SELECT balance FROM accounts WHERE id = 7").Scan(&cents))
	return cents
}

func Example() {
	ctx, db, end := shop()
	defer end()

	charges, err := once.New(once.Config{Dialect: once.SQLite}) // default: once.PostgreSQL
	check(err)
	check(charges.Migrate(ctx, db))
	handler := charges.Handler(db, func(ctx context.Context, tx *sql.Tx, m *bridge.Message) error {
		_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 999 WHERE id = 7")
		return err // an error rolls the record back as well
	})

	// The handler of a worker. Here the message is delivered twice.
	m := &bridge.Message{ID: "charge-42", Queue: "charges", Group: "bank"}
	fmt.Println(handler(ctx, m), handler(ctx, m))
	fmt.Println(balance(ctx, db))

	// Regularly: remove records that are older than any retry and redrive.
	_, err = charges.Clean(ctx, db, 30*24*time.Hour, 10_000)
	check(err)
	// Output:
	// <nil> <nil>
	// 4001
}

// With a typed kind, or with pgx (once.Pgx), the handler begins the transaction itself.
func ExampleOnce_Do() {
	ctx, db, end := shop()
	defer end()
	charges, err := once.New(once.Config{Dialect: once.SQLite})
	check(err)
	check(charges.Migrate(ctx, db))

	type Charge struct{ Cents int }
	handler := func(ctx context.Context, d *bridge.Delivery[Charge]) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		_, err = charges.Do(ctx, tx, d.Message, func() error {
			_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - ? WHERE id = 7", d.Value.Cents)
			return err
		})
		if err != nil {
			return err
		}
		return tx.Commit()
	}

	m := &bridge.Message{ID: "charge-42", Queue: "charges", Group: "bank"}
	d := &bridge.Delivery[Charge]{Message: m, Value: Charge{Cents: 999}}
	fmt.Println(handler(ctx, d), handler(ctx, d))
	fmt.Println(balance(ctx, db))
	// Output:
	// <nil> <nil>
	// 4001
}

// store is a system that compares fencing tokens.
type store struct {
	highest map[string]int64
	charged []string
}

func (s *store) charge(_ context.Context, token int64, id string) error {
	if token < s.highest[id] {
		return errors.New("another attempt has claimed this charge")
	}
	s.highest[id] = token
	s.charged = append(s.charged, id)
	return nil
}

// connect connects to a server.
func connect() (ctx context.Context, r *bridge.Redis, prefix string, end func()) {
	ctx = context.Background()
	url, prefix, giveBack := redistest.Lend()
	r, err := bridge.Dial(ctx, url)
	check(err)
	return ctx, r, prefix, func() {
		r.Close()
		giveBack()
	}
}

// The effect is in another system, so it is claimed in Redis.
func ExampleRedis() {
	ctx, r, prefix, end := connect()
	defer end()
	bank := &store{highest: map[string]int64{}}

	charges, err := once.NewRedis(once.RedisConfig{Redis: r, Prefix: prefix})
	check(err)
	handler := charges.Handler(func(ctx context.Context, token int64, m *bridge.Message) error {
		return bank.charge(ctx, token, m.ID)
	})

	// The handler of a worker. Here the message is delivered twice.
	m := &bridge.Message{ID: "charge-42", Queue: "charges", Group: "bank"}
	fmt.Println(handler(ctx, m), handler(ctx, m))
	fmt.Println(bank.charged)
	// Output:
	// <nil> <nil>
	// [charge-42]
}

// While one attempt holds the claim, other attempts are snoozed.
func ExampleRedis_Do() {
	ctx, r, prefix, end := connect()
	defer end()
	charges, err := once.NewRedis(once.RedisConfig{Redis: r, Prefix: prefix})
	check(err)

	m := &bridge.Message{ID: "charge-42", Queue: "charges", Group: "bank"}
	called, err := charges.Do(ctx, m, func(ctx context.Context, token int64) error {
		_, err := charges.Do(ctx, m, func(context.Context, int64) error { return nil }) // by another worker
		fmt.Println(bridge.OutcomeOf(err).Action)
		return nil
	})
	fmt.Println(called, err)
	// Output:
	// snooze
	// true <nil>
}

// Records stay for longer than the default of 7 days, because letters may be redriven for a month.
func ExampleRedisConfig() {
	_, r, prefix, end := connect()
	defer end()
	_, err := once.NewRedis(once.RedisConfig{Redis: r, Prefix: prefix, Hold: 5 * time.Minute, Keep: 40 * 24 * time.Hour})
	fmt.Println(err)
	// Output:
	// <nil>
}

// A program that uses an ID again on purpose tells the messages apart by a header.
func ExampleConfig() {
	ctx, db, end := shop()
	defer end()
	charges, err := once.New(once.Config{Dialect: once.SQLite, Key: func(m *bridge.Message) string {
		return m.ID + "@" + m.Headers["version"]
	}})
	check(err)
	check(charges.Migrate(ctx, db))
	handler := charges.Handler(db, func(ctx context.Context, tx *sql.Tx, m *bridge.Message) error {
		_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 999 WHERE id = 7")
		return err
	})
	for _, version := range []string{"1", "1", "2"} {
		check(handler(ctx, &bridge.Message{ID: "charge-42", Queue: "charges", Group: "bank",
			Headers: map[string]string{"version": version}}))
	}
	fmt.Println(balance(ctx, db))
	// Output:
	// 3002
}
