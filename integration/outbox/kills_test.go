package outbox

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/outbox"
	"github.com/duestream/duestream/integration/redistest"
)

// These environment variables make this test binary run one part instead of the tests, so that a test can kill it.
const (
	childPart     = "DUESTREAM_OUTBOX_CHILD" // "application" or "relay"
	childRedis    = "DUESTREAM_OUTBOX_REDIS"
	childPrefix   = "DUESTREAM_OUTBOX_PREFIX"
	childDatabase = "DUESTREAM_OUTBOX_DATABASE"
	childLedger   = "DUESTREAM_OUTBOX_LEDGER"
	childFrom     = "DUESTREAM_OUTBOX_FROM" // number of the first transaction of an application
)

const (
	transactions = 10_000
	applications = 2 // one with database/sql, one with pgx
	killQueue    = "orders"
	killGroup    = "shop"
)

func runChild(part string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	db, err := sql.Open("pgx", os.Getenv(childDatabase))
	if err != nil {
		return 1
	}
	defer db.Close()
	box := redistest.Must(outbox.New(outbox.Config{}))
	write := appendTo(os.Getenv(childLedger))
	if part == "application" {
		return runApplication(ctx, db, box, write)
	}
	r, err := bridge.DialWait(ctx, os.Getenv(childRedis), slog.New(slog.DiscardHandler))
	if err != nil {
		return 1
	}
	defer r.Close()
	client := redistest.Must(bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: os.Getenv(childPrefix)}))
	defer client.Close()
	relay := redistest.Must(outbox.NewRelay(outbox.RelayConfig{Outbox: box, DB: db, Client: &recorder{client, write},
		Batch: 50, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}))
	if relay.Run(ctx) != nil {
		return 1
	}
	return 0
}

// appendTo opens a ledger file. It returns a function that appends a line in one write, so that a kill tears no line.
func appendTo(path string) func(format string, args ...any) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	return func(format string, args ...any) {
		if _, err := fmt.Fprintf(file, format+"\n", args...); err != nil {
			panic(err)
		}
	}
}

// recorder writes each message to the ledger before it is handed over, with the time.
type recorder struct {
	*bridge.Client
	write func(format string, args ...any)
}

func (r *recorder) SendBatch(ctx context.Context, queue string, ms []bridge.NewMessage) ([]bridge.Result, error) {
	ids := make([]string, len(ms))
	for i, m := range ms {
		ids[i] = m.ID
	}
	r.write("%d %s", time.Now().UnixNano(), strings.Join(ids, " "))
	return r.Client.SendBatch(ctx, queue, ms)
}

// runApplication makes the transactions of one application, each with an order and a message. Every second one is
// rolled back. Of every 20 transactions, one schedules a message for the next hour instead, the next one cancels it and
// is rolled back, and every second time the one after that cancels it and commits. If the database does not answer, it
// is unknown whether the transaction committed; the table of orders tells. Each number is used once.
func runApplication(ctx context.Context, db *sql.DB, box *outbox.Outbox, write func(string, ...any)) int {
	from, _ := strconv.Atoi(os.Getenv(childFrom))
	random := rand.New(rand.NewPCG(uint64(from), 0))
	withPgx := from/(transactions/applications) == 1
	for i := from; i%(transactions/applications) != 0 || i == from; i++ {
		write("%d", i)
		work := func(exec func(query string, args ...any) error, tx outbox.Tx) error {
			if err := exec(`INSERT INTO orders (id) VALUES ($1)`, i); err != nil {
				return err
			}
			switch {
			case i%20 == 4:
				id := bridge.WithID(fmt.Sprint("late-", i))
				_, err := box.Schedule(ctx, tx, killQueue, nil, id, bridge.In(time.Hour))
				return err
			case i%20 == 5, i%40 == 6:
				late := i - i%20 + 4
				if err := exec(`INSERT INTO cancelled (id) VALUES ($1)`, late); err != nil {
					return err
				}
				return box.Cancel(ctx, tx, killQueue, fmt.Sprint("late-", late))
			}
			delay := time.Duration(max(0, random.IntN(1000)-500)) * time.Millisecond
			_, err := box.Schedule(ctx, tx, killQueue, nil, bridge.WithID(fmt.Sprint("m-", i)), bridge.In(delay))
			return err
		}
		run := inSQL
		if withPgx {
			run = inPgx
		}
		if err := run(ctx, db, i%2 == 0, work); err != nil {
			write("%d failed", i)
			awaitDatabase(ctx, db)
		}
	}
	write("end")
	return 0
}

type work func(exec func(query string, args ...any) error, tx outbox.Tx) error

func inSQL(ctx context.Context, db *sql.DB, commit bool, do work) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	err = do(func(query string, args ...any) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	}, tx)
	if err != nil || !commit {
		return err
	}
	return tx.Commit()
}

var connection *pgx.Conn // of an application with pgx

func inPgx(ctx context.Context, _ *sql.DB, commit bool, do work) (err error) {
	if connection == nil || connection.IsClosed() {
		if connection, err = pgx.Connect(ctx, os.Getenv(childDatabase)); err != nil {
			return err
		}
	}
	tx, err := connection.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	err = do(func(query string, args ...any) error {
		_, err := tx.Exec(ctx, query, args...)
		return err
	}, outbox.Pgx(tx))
	if err != nil || !commit {
		return err
	}
	return tx.Commit(ctx)
}

func awaitDatabase(ctx context.Context, db *sql.DB) {
	for db.PingContext(ctx) != nil && ctx.Err() == nil {
		<-time.After(20 * time.Millisecond)
	}
}

// child is a process that the test kills and starts again.
type child struct {
	part   string
	from   int // application: number of its first transaction
	ledger string
	env    []string
	cmd    *exec.Cmd
}

func (c *child) start(t *testing.T) {
	t.Helper()
	from := c.from
	for _, line := range linesOf(c.ledger) {
		if n, err := strconv.Atoi(line); err == nil && c.part == "application" {
			from = n + 1
		}
	}
	c.cmd = exec.Command(redistest.Must(os.Executable()))
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.cmd.Env = append(append(os.Environ(), c.env...), childPart+"="+c.part, childLedger+"="+c.ledger,
		childFrom+"="+strconv.Itoa(from))
	log, err := os.OpenFile(c.ledger+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	c.cmd.Stderr = log
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// ended reports whether an application has made all its transactions.
func (c *child) ended() bool {
	lines := linesOf(c.ledger)
	last := c.from + transactions/applications - 1
	return slices.Contains(lines, "end") || slices.Contains(lines, strconv.Itoa(last))
}

func linesOf(path string) (lines []string) {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		lines = append(lines, scanner.Text())
	}
	return lines
}

// deliveries records the deliveries of each message.
type deliveries struct {
	mu    sync.Mutex
	first map[string]map[string]bool // ID → entries with attempt 1: one for each time that the message was stored
	again int                        // further deliveries
}

func (d *deliveries) handle(_ context.Context, m *bridge.Message) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.first[m.ID] == nil {
		d.first[m.ID] = map[string]bool{}
	}
	if m.Attempt > 1 || d.first[m.ID][m.EntryID] {
		d.again++
		return nil
	}
	d.first[m.ID][m.EntryID] = true
	return nil
}

// Exactly the messages of committed transactions arrive, and exactly the committed cancellations have an effect, while
// applications, relays, Redis and PostgreSQL are killed by kill -9 at random times and started again. A message that
// arrives twice was handed over twice, with a kill in between; or its acknowledgement was lost with Redis.
func TestKillsLoseNothing(t *testing.T) {
	redistest.Long(t)
	seed := uint64(time.Now().UnixNano())
	if given, err := strconv.ParseUint(os.Getenv("DUESTREAM_TEST_SEED"), 10, 64); err == nil {
		seed = given
	}
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	ctx := t.Context()
	database := ownPostgres(t)
	redis := redistest.Own(t, "--appendonly", "yes", "--appendfsync", "always")
	prefix := "kills"
	db := database.open(t)
	box := redistest.Must(outbox.New(outbox.Config{}))
	if err := box.Migrate(ctx, db); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"orders", "cancelled"} {
		if _, err := db.ExecContext(ctx, "CREATE TABLE "+table+" (id integer PRIMARY KEY)"); err != nil {
			t.Fatal(err)
		}
	}

	arrived := &deliveries{first: map[string]map[string]bool{}}
	r := redistest.Must(bridge.Dial(ctx, redis.URL()))
	t.Cleanup(r.Close)
	serve(t, r, prefix, arrived)

	dir := t.TempDir()
	env := []string{childRedis + "=" + redis.URL(), childPrefix + "=" + prefix, childDatabase + "=" + database.url()}
	var apps, relays []*child
	for i := range applications {
		apps = append(apps, &child{part: "application", from: i * transactions / applications,
			ledger: filepath.Join(dir, fmt.Sprint("application-", i)), env: env})
		relays = append(relays, &child{part: "relay", ledger: filepath.Join(dir, fmt.Sprint("relay-", i)), env: env})
	}
	for _, c := range slices.Concat(apps, relays) {
		c.start(t)
		t.Cleanup(c.kill)
	}

	var faults []fault
	begin := time.Now()
	for running := apps; len(running) > 0; {
		<-time.After(time.Duration(50+random.IntN(350)) * time.Millisecond)
		running = slices.DeleteFunc(running, (*child).ended)
		one := fault{from: time.Now()}
		kind := random.IntN(8)
		if first := []int{0, 1, 3, 5}; len(faults) < len(first) { // each kind at least once, also on a fast machine
			kind = first[len(faults)]
		}
		switch {
		case kind == 0:
			one.what = "PostgreSQL"
			database.kill()
			if err := database.start(); err != nil {
				t.Fatal(err)
			}
		case kind <= 2:
			one.what = "Redis"
			redis.Kill()
			redis.Start()
		case kind <= 4 && len(running) > 0:
			one.what = "application"
			c := running[random.IntN(len(running))]
			c.kill()
			c.start(t)
		default:
			one.what = "relay"
			c := relays[random.IntN(len(relays))]
			c.kill()
			c.start(t)
		}
		one.to = time.Now()
		faults = append(faults, one)
	}
	faulty := time.Since(begin)
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		s, err := box.Status(ctx, db)
		return err == nil && s.Waiting == 0, fmt.Sprintf("%+v, %v", s, err)
	})
	l := ledger{arrived: arrived, faults: faults, handedOver: map[string][]int64{}}
	l.readDatabase(t, db)
	for _, c := range relays {
		l.readRelay(t, c.ledger)
	}
	redistest.Eventually(t, time.Minute, l.complete)
	l.compareSchedule(t, r, prefix)
	l.check(t, box, db)
	t.Logf("%v with kills, %v in all", faulty.Round(time.Second), time.Since(begin).Round(time.Second))
}

// serve runs a bridge and a worker until the test ends.
func serve(t *testing.T, r *bridge.Redis, prefix string, to *deliveries) {
	t.Helper()
	b := redistest.Must(bridge.NewBridge(bridge.Config{Redis: r, Prefix: prefix, Defaults: bridge.Policy{
		VisibilityTimeout: 5 * time.Second, MaxAttempts: 100, RetryMin: 100 * time.Millisecond,
		RetryMax: time.Second}}))
	w := redistest.Must(bridge.NewWorker(bridge.WorkerConfig{Redis: r, Prefix: prefix, Queue: killQueue,
		Group: killGroup, Handler: to.handle}))
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{b.Run, w.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { stop(); running.Wait() })
}

// fault is a kill, and the time until the killed part ran again.
type fault struct {
	what     string
	from, to time.Time
}

// ledger compares what was committed with what was handed over and what arrived.
type ledger struct {
	arrived    *deliveries
	faults     []fault
	handedOver map[string][]int64 // ID → times
	committed  map[int]bool       // transactions with an order
	cancelled  map[int]bool       // messages whose cancellation was committed
}

func (l *ledger) readDatabase(t *testing.T, db *sql.DB) {
	t.Helper()
	read := func(table string) map[int]bool {
		all := map[int]bool{}
		rows, err := db.QueryContext(t.Context(), "SELECT id FROM "+table)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var id int
			if err := rows.Scan(&id); err != nil {
				t.Fatal(err)
			}
			all[id] = true
		}
		if rows.Err() != nil {
			t.Fatal(rows.Err())
		}
		return all
	}
	l.committed, l.cancelled = read("orders"), read("cancelled")
}

func (l *ledger) readRelay(t *testing.T, path string) {
	t.Helper()
	for _, line := range linesOf(path) {
		cells := strings.Fields(line)
		at, err := strconv.ParseInt(cells[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range cells[1:] {
			l.handedOver[id] = append(l.handedOver[id], at)
		}
	}
}

// expected returns the messages that must arrive, and those that must stay scheduled.
func (l *ledger) expected() (arrive, stay map[string]bool) {
	arrive, stay = map[string]bool{}, map[string]bool{}
	for i := range l.committed {
		switch {
		case i%20 == 4 && !l.cancelled[i]:
			stay[fmt.Sprint("late-", i)] = true
		case i%20 == 4, i%20 == 5, i%40 == 6:
		default:
			arrive[fmt.Sprint("m-", i)] = true
		}
	}
	return arrive, stay
}

// complete reports whether everything that must arrive has arrived.
func (l *ledger) complete() (bool, string) {
	arrive, _ := l.expected()
	l.arrived.mu.Lock()
	defer l.arrived.mu.Unlock()
	missing := 0
	for id := range arrive {
		if len(l.arrived.first[id]) == 0 {
			missing++
		}
	}
	return missing == 0, fmt.Sprint(missing, " messages are missing")
}

// compareSchedule compares the messages that are still scheduled with those that must be.
func (l *ledger) compareSchedule(t *testing.T, r *bridge.Redis, prefix string) {
	t.Helper()
	_, stay := l.expected()
	operator := redistest.Must(admin.New(r, prefix))
	var wrong []string
	for i := 4; i < transactions; i += 20 {
		id := fmt.Sprint("late-", i)
		found, err := operator.Locate(t.Context(), killQueue, id)
		if err != nil && !errors.Is(err, admin.ErrNotFound) {
			t.Fatal(err)
		}
		if (len(found) > 0) != stay[id] {
			wrong = append(wrong, id)
		}
	}
	if len(wrong) > 0 {
		t.Errorf("%d messages are scheduled and should not be, or the other way round: %v", len(wrong), wrong)
	}
}

// check prints the ledger, and fails unless every message is as it must be.
func (l *ledger) check(t *testing.T, box *outbox.Outbox, db *sql.DB) {
	t.Helper()
	arrive, stay := l.expected()
	l.arrived.mu.Lock()
	defer l.arrived.mu.Unlock()
	phantoms, handedOverAgain, arrivedAgain := 0, 0, 0
	for id, entries := range l.arrived.first {
		if !arrive[id] {
			phantoms++
			t.Errorf("%s arrived, and its transaction was not committed", id)
		}
		if len(entries) > len(l.handedOver[id]) {
			t.Errorf("%s was stored %d times, and handed over %d times", id, len(entries), len(l.handedOver[id]))
		}
		if len(entries) > 1 {
			arrivedAgain++
		}
	}
	for id, times := range l.handedOver {
		slices.Sort(times)
		if len(times) > 1 {
			handedOverAgain++
		}
		for i := range len(times) - 1 {
			if !l.faultBetween(times[i], times[i+1]) {
				t.Errorf("%s was handed over twice, and nothing was killed in between", id)
			}
		}
	}
	kills := map[string]int{}
	for _, one := range l.faults {
		kills[one.what]++
	}
	status := redistest.Must(box.Status(t.Context(), db))
	t.Logf("ledger: %d transactions, %d committed, %d not; kills: %v", transactions, len(l.committed),
		transactions-len(l.committed), kills)
	t.Logf("ledger: %d messages expected, %d arrived, %d of them not committed; %d stay scheduled, %d cancelled",
		len(arrive), len(l.arrived.first), phantoms, len(stay), len(l.cancelled))
	t.Logf("ledger: %d handed over again after a kill, of which %d arrived again; %d deliveries repeated by the queue",
		handedOverAgain, arrivedAgain, l.arrived.again)
	redistest.Want(t, "failed rows", status.Failed, 0)
	if len(l.committed) < transactions*4/10 || len(l.committed) > transactions/2 {
		t.Errorf("%d of %d transactions committed", len(l.committed), transactions)
	}
}

// faultBetween reports whether a kill explains that a message was handed over at both times. A kill of a relay does so
// until the relay is dead. A kill of a server does so until clients have reached the new server.
func (l *ledger) faultBetween(earlier, later int64) bool {
	const reconnected = 2 * time.Second
	return slices.ContainsFunc(l.faults, func(one fault) bool {
		end := one.to
		if one.what == "Redis" || one.what == "PostgreSQL" {
			end = end.Add(reconnected)
		}
		return one.what != "application" && one.from.UnixNano() <= later && end.UnixNano() >= earlier
	})
}
