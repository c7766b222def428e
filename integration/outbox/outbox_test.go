package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/once"
	"github.com/duestream/duestream/bridge/outbox"
	"github.com/duestream/duestream/integration/redistest"
)

type order struct {
	ID int `json:"id"`
}

var closeOrder = bridge.Kind[order]{Name: "close-order", Queue: "orders"}

// newBox returns an outbox with a table of its own.
func newBox(t *testing.T, db *sql.DB) *outbox.Outbox {
	t.Helper()
	box := redistest.Must(outbox.New(outbox.Config{Table: fmt.Sprintf("t%08x", rand.Uint32())}))
	if err := box.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	return box
}

// runRelays runs relays until the test ends.
func runRelays(t *testing.T, n int, cfg outbox.RelayConfig) (all []*outbox.Relay) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait() })
	for range n {
		relay := redistest.Must(outbox.NewRelay(cfg))
		running.Go(func() {
			if err := relay.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		all = append(all, relay)
	}
	return all
}

// empty waits until no row waits.
func empty(t *testing.T, box *outbox.Outbox, db *sql.DB) outbox.Status {
	t.Helper()
	var s outbox.Status
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		s = redistest.Must(box.Status(t.Context(), db))
		return s.Waiting == 0, fmt.Sprintf("%+v", s)
	})
	return s
}

// book records hand-overs. It takes a random time for each, and fails now and then.
type book struct {
	mu    sync.Mutex
	fail  bool
	calls map[string][]string // by queue and ID, or by ordering key
}

func (b *book) add(key, what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls[key] = append(b.calls[key], what)
}

func (b *book) work() bool {
	<-time.After(time.Duration(rand.IntN(3)) * time.Millisecond)
	return !b.fail || rand.IntN(10) > 0
}

func (b *book) SendBatch(_ context.Context, queue string, ms []bridge.NewMessage) ([]bridge.Result, error) {
	results := make([]bridge.Result, len(ms))
	for i, m := range ms {
		switch {
		case !b.work():
			results[i].Err = bridge.ErrUnavailable
		case m.Key != "":
			b.add("key "+m.Key, string(m.Payload))
		default:
			b.add(queue+"/"+m.ID, string(m.Payload))
		}
	}
	return results, nil
}

func (b *book) Cancel(_ context.Context, queue, id string, _ ...bridge.Scope) error {
	if !b.work() {
		return bridge.ErrUnavailable
	}
	b.add(queue+"/"+id, "cancel")
	return nil
}

// Several relays hand over the operations on one ID, and the messages of one ordering key, in the order in which they
// were written. With SKIP LOCKED alone, one relay would take a cancellation while another still holds the message
// before it, and the message would be delivered although it was cancelled.
func TestOperationsOnOneIDKeepTheirOrder(t *testing.T) {
	t.Parallel()
	db := sharedPostgres(t).open(t)
	box, to := newBox(t, db), &book{calls: map[string][]string{}, fail: true}
	runRelays(t, 4, outbox.RelayConfig{Outbox: box, DB: db, Client: to, Batch: 7, Poll: time.Millisecond})
	const names, operations = 20, 30
	var writers sync.WaitGroup
	for name := range names {
		writers.Go(func() {
			for i := range operations {
				var err error
				switch {
				case name%2 == 1: // the messages of a key, each with an ID of its own
					_, err = box.Schedule(t.Context(), db, "q", []byte(fmt.Sprint(i)), bridge.Key(fmt.Sprint(name)))
				case i%2 == 1:
					err = box.Cancel(t.Context(), db, fmt.Sprint("q", name%4), fmt.Sprint(name))
				default:
					_, err = box.Schedule(t.Context(), db, fmt.Sprint("q", name%4), []byte(fmt.Sprint(i)),
						bridge.WithID(fmt.Sprint(name)))
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	empty(t, box, db)
	redistest.Want(t, "IDs and keys", len(to.calls), names)
	for key, calls := range to.calls {
		var want []string
		for i := range operations {
			if isKey := strings.HasPrefix(key, "key "); i%2 == 1 && !isKey {
				want = append(want, "cancel")
			} else {
				want = append(want, fmt.Sprint(i))
			}
		}
		if !slices.Equal(calls, want) {
			t.Errorf("%s: %v", key, calls)
		}
	}
}

// gated records hand-overs. It keeps the first one waiting until it is opened.
type gated struct {
	*book
	reached, open chan struct{}
	first         sync.Once
}

func (g *gated) SendBatch(ctx context.Context, queue string, ms []bridge.NewMessage) ([]bridge.Result, error) {
	g.first.Do(func() { close(g.reached); <-g.open })
	return g.book.SendBatch(ctx, queue, ms)
}

// While a relay hands rows over, a row with an earlier number may appear: its transaction commits later, or an operator
// retries it. Another relay takes this row, and leaves the rows behind it to the first relay. Regression: the other
// relay handed them over as well. So it repeated a cancellation after the first relay had scheduled the message again,
// and the message was lost.
func TestARowThatAppearsLateTakesNoOther(t *testing.T) {
	t.Parallel()
	db := sharedPostgres(t).open(t)
	for _, retried := range []bool{false, true} {
		box, to := newBox(t, db), &book{calls: map[string][]string{}}
		schedule := func(tx outbox.Tx, payload string) {
			t.Helper()
			redistest.Must(box.Schedule(t.Context(), tx, "q", []byte(payload), bridge.WithID("a")))
		}
		late := redistest.Must(db.BeginTx(t.Context(), nil))
		defer late.Rollback()
		if schedule(late, "late"); retried {
			if _, err := late.ExecContext(t.Context(), "UPDATE "+tableOf(box)+" SET failed_ms = 1"); err != nil {
				t.Fatal(err)
			}
			if err := late.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		schedule(db, "first")
		if err := box.Cancel(t.Context(), db, "q", "a"); err != nil {
			t.Fatal(err)
		}
		schedule(db, "last")
		slow := &gated{book: to, reached: make(chan struct{}), open: make(chan struct{})}
		relayTo := func(client outbox.Sender, timeout time.Duration) *outbox.Relay {
			return redistest.Must(outbox.NewRelay(outbox.RelayConfig{Outbox: box, DB: db, Client: client, Timeout: timeout}))
		}
		ended := make(chan error, 1)
		go func() { ended <- relayTo(slow, time.Minute).Flush(t.Context()) }()
		<-slow.reached
		if retried {
			redistest.Want(t, "retried", redistest.Must(box.Retry(t.Context(), db, 1)), 1)
		} else if err := late.Commit(); err != nil {
			t.Fatal(err)
		}
		// The rows of the first relay still wait.
		if err := relayTo(to, 15*time.Second).Flush(t.Context()); err == nil || !strings.Contains(err.Error(), "3 rows") {
			t.Error("the other relay: ", err)
		}
		close(slow.open)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		redistest.Want(t, "calls", strings.Join(to.calls["q/a"], " "), "late first cancel last")
	}
}

// Relays share the rows: together they hand each row over once.
func TestRelaysShareTheRows(t *testing.T) {
	t.Parallel()
	db := sharedPostgres(t).open(t)
	box, to := newBox(t, db), &book{calls: map[string][]string{}}
	const rows = 2000
	tx := redistest.Must(db.BeginTx(t.Context(), nil))
	for range rows {
		if _, err := box.Schedule(t.Context(), tx, "q", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	relays := runRelays(t, 4, outbox.RelayConfig{Outbox: box, DB: db, Client: to, Batch: 20})
	empty(t, box, db)
	redistest.Eventually(t, time.Minute, func() (bool, string) { // a relay counts after its commit
		var counted int64
		for _, relay := range relays {
			counted += relay.Stats().Scheduled
		}
		return counted == rows, fmt.Sprint(counted)
	})
	redistest.Want(t, "messages", len(to.calls), rows)
	for id, calls := range to.calls {
		redistest.Want(t, id, len(calls), 1)
	}
	working := 0
	for _, relay := range relays {
		if relay.Stats().Scheduled > 0 {
			working++
		}
	}
	if working < 2 {
		t.Errorf("%d relays handed rows over", working)
	}
}

// A relay reads few index entries for each row, and never the table, however many rows wait in its queue or in another
// one that is full. Regression: with the plan that PostgreSQL chose by itself, each pass read the whole table.
func TestABacklogIsReadOnce(t *testing.T) { // not parallel: see readOnce
	readOnce(t, 10_000, 100, `CASE WHEN g % 3 = 0 THEN CAST(g AS text) ELSE '' END`)
}

// The rows of one ordering key wait for each other, and are not read again for each of them. Regression: a pass handed
// one of them over, and read all others.
func TestARunOfOneKeyIsReadOnce(t *testing.T) { // not parallel: see readOnce
	readOnce(t, 5000, 200, `'k'`) // a design that reads all rows for each one reads 7,500
}

// readOnce hands over a queue of many rows with these ordering keys, and counts the index entries that are read.
func readOnce(t *testing.T, rows, perRow int64, key string) {
	t.Helper()
	server := sharedPostgres(t)
	db, ofRelay := server.open(t), server.open(t)
	box := newBox(t, db)
	for _, queue := range []string{"full", "q"} {
		if _, err := db.ExecContext(t.Context(), fmt.Sprintf(`INSERT INTO %s
			(operation, queue, id, key, message, written_ms, due_ms)
			SELECT 'schedule', '%s', g, %s, '{"id":"' || g || '"}', 1, 1
			FROM generate_series(1, %d) AS g`, tableOf(box), queue, key, rows)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	relay := redistest.Must(outbox.NewRelay(outbox.RelayConfig{Outbox: box, DB: ofRelay, Client: fullQueue("full")}))
	begin := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		return relay.Stats().Scheduled == rows, fmt.Sprintf("%+v", relay.Stats())
	})
	t.Logf("%d rows in %v, %+v", rows, time.Since(begin), relay.Stats())
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := ofRelay.Close(); err != nil { // a connection that ends reports what it has read
		t.Fatal(err)
	}
	var index, sequential int64
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		err := db.QueryRowContext(t.Context(), `SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes
			WHERE relname = $1), (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname = $1)`,
			tableOf(box)).Scan(&index, &sequential)
		return err == nil && index > rows, fmt.Sprint(index, err)
	})
	// Index entries of deleted rows count too, until no transaction is older than their deletion. So no other test may
	// have a transaction open meanwhile.
	if index > perRow*rows || sequential > 2*rows {
		t.Errorf("%d index entries and %d rows were read for %d rows", index, sequential, rows)
	}
	t.Logf("%d index entries and %d rows were read for %d rows", index, sequential, rows)
}

// fullQueue accepts all messages but those of a queue whose server is full.
type fullQueue string

func (f fullQueue) SendBatch(_ context.Context, queue string, ms []bridge.NewMessage) ([]bridge.Result, error) {
	results := make([]bridge.Result, len(ms))
	for i := range results {
		if queue == string(f) {
			results[i].Err = bridge.ErrFull
		}
	}
	return results, nil
}

func (f fullQueue) Cancel(context.Context, string, string, ...bridge.Scope) error { return nil }

// Transactions of pgx are committed and rolled back with their rows, as those of database/sql. The refused row can be
// listed, retried and deleted. The user of a relay needs few rights.
func TestPgxWritesRows(t *testing.T) {
	t.Parallel()
	server := sharedPostgres(t)
	db := server.open(t)
	pool := redistest.Must(pgxpool.New(t.Context(), server.url()))
	t.Cleanup(pool.Close)
	box := redistest.Must(outbox.New(outbox.Config{Table: "public.pgx_outbox"}))
	var migrations sync.WaitGroup
	for range 8 { // programs that start at once
		migrations.Go(func() {
			if err := box.Migrate(t.Context(), outbox.Pgx(pool)); err != nil {
				t.Error(err)
			}
		})
	}
	migrations.Wait()
	for i, commit := range []bool{true, false, true} {
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			id := bridge.WithID(fmt.Sprint("close-", i))
			if _, err := outbox.ScheduleKind(t.Context(), box, outbox.Pgx(tx), closeOrder, order{i}, id); err != nil {
				return err
			}
			err := box.Cancel(t.Context(), outbox.Pgx(tx), "orders", fmt.Sprint("remind-", i))
			if err != nil || commit {
				return err
			}
			return errors.New("rolled back")
		})
		redistest.Want(t, "committed", err == nil, commit)
	}
	role := fmt.Sprintf("relay%08x", rand.Uint32())
	for _, statement := range []string{
		`CREATE ROLE ` + role + ` LOGIN`, `GRANT SELECT, UPDATE, DELETE ON pgx_outbox TO ` + role,
	} {
		if _, err := pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	small := redistest.Must(sql.Open("pgx", strings.Replace(server.url(), "shop@", role+"@", 1)))
	t.Cleanup(func() { small.Close() })
	if _, err := pool.Exec(t.Context(), `UPDATE pgx_outbox SET message = '{"id":"close-2","max_attempts":0}'
		WHERE id = 'close-2'`); err != nil {
		t.Fatal(err)
	}
	to := &book{calls: map[string][]string{}}
	runRelays(t, 1, outbox.RelayConfig{Outbox: box, DB: small, Client: to})
	redistest.Want(t, "failed", empty(t, box, db).Failed, 1)
	redistest.Want(t, "calls", fmt.Sprint(to.calls),
		`map[orders/close-0:[{"id":0}] orders/remind-0:[cancel] orders/remind-2:[cancel]]`)
	failed := redistest.Must(box.Failed(t.Context(), db, 0, 10))
	redistest.Want(t, "failed row", failed[0].ID, "close-2")
	if took := failed[0].Failed.Sub(failed[0].Written); took < 0 || took > time.Minute {
		t.Errorf("it was refused %v after it was written", took)
	}
	redistest.Want(t, "retried", redistest.Must(box.Retry(t.Context(), outbox.Pgx(pool), failed[0].Seq)), 1)
	redistest.Want(t, "refused again", empty(t, box, db).Failed, 1)
	redistest.Want(t, "deleted", redistest.Must(box.Delete(t.Context(), db, failed[0].Seq)), 1)
}

// The time of a statement is that of the database, and counts from the statement, not from the beginning or the end of
// its transaction.
func TestTimesAreThoseOfTheStatement(t *testing.T) {
	t.Parallel()
	db := sharedPostgres(t).open(t)
	box := newBox(t, db)
	tx := redistest.Must(db.BeginTx(t.Context(), nil))
	defer tx.Rollback()
	now := func() (ms int64) {
		if err := tx.QueryRowContext(t.Context(),
			"SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint").Scan(&ms); err != nil {
			t.Fatal(err)
		}
		return ms
	}
	if _, err := tx.ExecContext(t.Context(), "SELECT pg_sleep(0.05)"); err != nil {
		t.Fatal(err)
	}
	before := now()
	if _, err := box.Schedule(t.Context(), tx, "q", nil, bridge.In(time.Hour)); err != nil {
		t.Fatal(err)
	}
	after := now()
	redistest.Want(t, "read", fmt.Sprintf("%+v", redistest.Must(box.Status(t.Context(), db))),
		"{Waiting:0 Failed:0 Oldest:0s}")
	var written, due int64
	if err := tx.QueryRowContext(t.Context(), strings.Replace("SELECT written_ms, due_ms FROM TABLE", "TABLE",
		tableOf(box), 1)).Scan(&written, &due); err != nil {
		t.Fatal(err)
	}
	if written < before || written > after+1 || due < written+time.Hour.Milliseconds() ||
		due > after+1+time.Hour.Milliseconds() {
		t.Errorf("%d, %d: written %d, due %d", before, after, written, due)
	}
}

// tableOf returns the name of the table of an outbox.
func tableOf(box *outbox.Outbox) string {
	_, name, _ := strings.Cut(box.Schema(), `"`)
	name, _, _ = strings.Cut(name, `"`)
	return name
}

// A program that starts calls Migrate. On a table that exists it waits for no open transaction, and needs no right to
// create. Regression: it waited for a lock, and everybody who wrote into the table waited behind it.
func TestMigrateLeavesAnExistingTableAlone(t *testing.T) {
	t.Parallel()
	server := sharedPostgres(t)
	db := server.open(t)
	for _, statement := range []string{
		`CREATE SCHEMA store`, `CREATE ROLE application LOGIN`, `GRANT USAGE ON SCHEMA store TO application`,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	box := redistest.Must(outbox.New(outbox.Config{Table: "store.outbox"}))
	records := redistest.Must(once.New(once.Config{Table: "store.once"}))
	if err := errors.Join(box.Migrate(t.Context(), db), records.Migrate(t.Context(), db)); err != nil {
		t.Fatal(err)
	}
	tx := redistest.Must(db.BeginTx(t.Context(), nil))
	defer tx.Rollback()
	redistest.Must(box.Schedule(t.Context(), tx, "q", nil))
	redistest.Must(records.Do(t.Context(), tx, &bridge.Message{ID: "a", Queue: "q", Group: "g"},
		func() error { return nil }))
	small := redistest.Must(sql.Open("pgx", strings.Replace(server.url(), "shop@", "application@", 1)))
	t.Cleanup(func() { small.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := errors.Join(box.Migrate(ctx, small), records.Migrate(ctx, small)); err != nil {
		t.Error(err)
	}
	// A table of the same name in a later schema of the search path is another one.
	other := redistest.Must(sql.Open("pgx", server.url()+"&search_path=store,public"))
	t.Cleanup(func() { other.Close() })
	plain, later := redistest.Must(outbox.New(outbox.Config{Table: "later"})), ""
	if err := errors.Join(plain.Migrate(t.Context(), db), plain.Migrate(t.Context(), other)); err != nil {
		t.Fatal(err)
	}
	if err := db.QueryRowContext(t.Context(), `SELECT string_agg(schemaname || '.' || indexname, ' ' ORDER BY schemaname)
		FROM pg_indexes WHERE indexname = 'later_failed'`).Scan(&later); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "indexes", later, "public.later_failed store.later_failed")
}

// A pass looks at a part of the rows that wait, however many there are, and the passes together look at all of them.
// Regression: each pass looked at all rows. With 100,000 rows of 100 ordering keys it did not end within its time, and
// the relay handed nothing over.
func TestAPassLooksAtAPartOfTheRows(t *testing.T) {
	t.Parallel()
	server := sharedPostgres(t)
	db, ofRelay := server.open(t), server.open(t)
	box := newBox(t, db)
	if _, err := db.ExecContext(t.Context(), fmt.Sprintf(`INSERT INTO %s
		(operation, queue, id, key, message, written_ms, due_ms)
		SELECT 'schedule', 'q', g, 'k', '{"id":"' || g || '"}', 1, 1 FROM generate_series(1, 20000) AS g`,
		tableOf(box))); err != nil {
		t.Fatal(err)
	}
	slow := &gated{book: &book{calls: map[string][]string{}}, reached: make(chan struct{}), open: make(chan struct{})}
	relay := redistest.Must(outbox.NewRelay(outbox.RelayConfig{Outbox: box, DB: ofRelay, Client: slow, Batch: 1,
		Timeout: time.Minute}))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	<-slow.reached
	stop() // after this pass
	close(slow.open)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "handed over", relay.Stats().Scheduled, 1)
	if err := ofRelay.Close(); err != nil { // a connection that ends reports what it has read
		t.Fatal(err)
	}
	var index, deleted int64
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		err := db.QueryRowContext(t.Context(), `SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes
			WHERE relname = $1), n_tup_del FROM pg_stat_user_tables WHERE relname = $1`, tableOf(box)).Scan(&index, &deleted)
		return err == nil && deleted == 1, fmt.Sprint(deleted, err)
	})
	if index > 5000 {
		t.Errorf("%d index entries were read", index)
	}
	// The first row of the key may only be tried in the far future, and the other rows of the key wait behind it. One row
	// without a key stands behind all of them, and may be taken.
	if _, err := db.ExecContext(t.Context(), fmt.Sprintf(`UPDATE %s SET try_ms = written_ms + 1e15 WHERE seq = 2`,
		tableOf(box))); err != nil {
		t.Fatal(err)
	}
	redistest.Must(box.Schedule(t.Context(), db, "q", nil, bridge.WithID("behind")))
	relay = redistest.Must(outbox.NewRelay(outbox.RelayConfig{Outbox: box, DB: db, Client: slow}))
	if err := relay.Flush(t.Context()); err == nil || !strings.Contains(err.Error(), "19999 rows") {
		t.Error(err)
	}
	redistest.Want(t, "handed over", len(slow.calls["q/behind"]), 1)
}

// A relay that is cut off from the database keeps its rows only until PostgreSQL ends its session. Regression: the rows
// stayed locked for as long as TCP kept the connection, and the rows of their IDs and keys waited behind them.
func TestARelayThatIsCutOffKeepsNoRows(t *testing.T) {
	t.Parallel()
	server := sharedPostgres(t)
	db := server.open(t)
	box := newBox(t, db)
	for _, statement := range []string{
		`CREATE TABLE settings_seen (jit text, idle text)`,
		`CREATE FUNCTION note_settings() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN
			INSERT INTO settings_seen VALUES (current_setting('jit', true),
				current_setting('idle_in_transaction_session_timeout'));
			RETURN OLD; END $f$`,
		fmt.Sprintf(`CREATE TRIGGER note BEFORE DELETE ON %s FOR EACH ROW EXECUTE PROCEDURE note_settings()`, tableOf(box)),
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	redistest.Must(box.Schedule(t.Context(), db, "q", nil))
	cut := &cutOff{}
	config := redistest.Must(pgx.ParseConfig(server.url()))
	config.DialFunc = cut.dial
	broken := stdlib.OpenDB(*config)
	t.Cleanup(func() { broken.Close() })
	t.Cleanup(cut.close)
	runRelays(t, 1, outbox.RelayConfig{Outbox: box, DB: broken, Client: cut, Timeout: time.Second})
	redistest.Eventually(t, time.Minute, func() (bool, string) { return cut.isCut.Load(), "no hand-over" })
	runRelays(t, 1, outbox.RelayConfig{Outbox: box, DB: db, Client: fullQueue("")})
	empty(t, box, db)
	var jit, idle string
	if err := db.QueryRowContext(t.Context(), `SELECT coalesce(jit, 'off'), idle FROM settings_seen`).
		Scan(&jit, &idle); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "jit", jit, "off") // it took longer than the query, in each pass
	redistest.Want(t, "idle", idle, "10s")
}

// cutOff is a connection to a database that is cut during the first hand-over: nothing arrives, not even its end.
type cutOff struct {
	isCut atomic.Bool
	mu    sync.Mutex
	all   []net.Conn
}

func (c *cutOff) SendBatch(_ context.Context, _ string, ms []bridge.NewMessage) ([]bridge.Result, error) {
	c.isCut.Store(true)
	return make([]bridge.Result, len(ms)), nil
}

func (c *cutOff) Cancel(context.Context, string, string, ...bridge.Scope) error { return nil }

func (c *cutOff) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if c.isCut.Load() {
		return nil, errors.New("cut off")
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, conn)
	return cutConn{conn, c}, nil
}

func (c *cutOff) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.all {
		conn.Close()
	}
}

type cutConn struct {
	net.Conn
	of *cutOff
}

func (c cutConn) Write(data []byte) (int, error) {
	if c.of.isCut.Load() {
		return len(data), nil
	}
	return c.Conn.Write(data)
}

func (c cutConn) Close() error {
	if c.of.isCut.Load() {
		return nil
	}
	return c.Conn.Close()
}

// A hand-over has at most RelayConfig.Batch rows, even if more queues than that have rows.
func TestABatchOfManyQueuesHasItsSize(t *testing.T) {
	t.Parallel()
	db := sharedPostgres(t).open(t)
	box := redistest.Must(outbox.New(outbox.Config{Table: "many_queues"}))
	if err := box.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	const queues, batch = 10, 3
	for i := range queues {
		redistest.Must(box.Schedule(t.Context(), db, fmt.Sprint("q", i), nil))
	}
	to := &lockCounter{db: db}
	relay := redistest.Must(outbox.NewRelay(outbox.RelayConfig{Outbox: box, DB: db, Client: to, Batch: batch}))
	if err := relay.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "most rows that a relay holds", to.most, batch)
	redistest.Want(t, "handed over", relay.Stats().Scheduled, queues)
}

// lockCounter counts the rows that are locked during a hand-over.
type lockCounter struct {
	outbox.Sender
	db   *sql.DB
	mu   sync.Mutex // the query locks free rows for a moment, which another query would count
	most int64
}

func (c *lockCounter) SendBatch(ctx context.Context, _ string, ms []bridge.NewMessage) ([]bridge.Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var locked int64
	err := c.db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM many_queues)
  - (SELECT count(*) FROM (SELECT 1 FROM many_queues FOR UPDATE SKIP LOCKED) AS free)`).Scan(&locked)
	c.most = max(c.most, locked)
	return make([]bridge.Result, len(ms)), err
}
