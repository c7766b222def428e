package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/observe"
)

// A message and a cancellation exist if and only if their transaction committed.
func TestOnlyCommittedRowsAreHandedOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec("CREATE TABLE orders (id integer)")
	for i, commit := range []bool{true, false, true} {
		tx := redistest.Must(r.db.BeginTx(r.ctx, nil))
		if _, err := tx.ExecContext(r.ctx, "INSERT INTO orders VALUES (?)", i); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Schedule(r.ctx, tx, "orders", nil, bridge.WithID(fmt.Sprint("close-", i))); err != nil {
			t.Fatal(err)
		}
		if err := r.Cancel(r.ctx, tx, "orders", fmt.Sprint("remind-", i)); err != nil {
			t.Fatal(err)
		}
		end := tx.Rollback
		if commit {
			end = tx.Commit
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	r.drain()
	calls := r.to.took()
	slices.Sort(calls)
	redistest.Want(t, "calls", strings.Join(calls, ", "), "orders: cancel remind-0, orders: cancel remind-2, "+
		"orders: schedule close-0, orders: schedule close-2")
	redistest.Want(t, "stats", r.relay.Stats(), RelayStats{Scheduled: 2, Cancelled: 2})
	r.wantRows(0, 0)
}

// Operations on one ID, and messages of one ordering key, are handed over in their order. Others do not wait for them.
// While one of them waits, those behind it wait too, and one that is refused stops none.
func TestOneIDAndOneKeyKeepTheirOrder(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{3, 4, 5, DefaultBatch} {
		r := newRig(t)
		r.relay.cfg.Batch = batch
		r.schedule("orders", "a")
		r.cancel("orders", "a")
		r.schedule("orders", "k1", bridge.Key("k"))
		r.schedule("orders", "a", bridge.Key("k"))
		r.schedule("orders", "k2", bridge.Key("k"))
		r.schedule("orders", "refused", bridge.Key("k"))
		r.schedule("orders", "waits", bridge.Key("k"))
		r.schedule("orders", "behind", bridge.Key("k"))
		r.schedule("orders", "waits", bridge.Key("other"))
		r.schedule("orders", "other2", bridge.Key("other"))
		r.schedule("bills", "a", bridge.Key("k"))
		r.to.refuse["waits"], r.to.refuse["refused"] = errors.New("ERR odd"), bridge.ErrInvalid
		r.drain()
		var bills, ids, keys []string
		for _, call := range r.to.took() {
			queue, what, _ := strings.Cut(call, ": ")
			switch what {
			case "schedule a":
				if queue == "bills" {
					bills = append(bills, what)
					continue
				}
				ids, keys = append(ids, what), append(keys, what)
			case "cancel a":
				ids, keys = append(ids, what), append(keys, what)
			default:
				keys = append(keys, what)
			}
		}
		redistest.Want(t, "bills", strings.Join(bills, ", "), "schedule a")
		redistest.Want(t, "ID", strings.Join(ids, ", "), "schedule a, cancel a, schedule a")
		order := strings.Join(slices.DeleteFunc(keys, func(what string) bool { return what == "cancel a" }), ", ")
		if order != "schedule a, schedule k1, schedule a, schedule k2" && order != "schedule k1, schedule a, "+
			"schedule a, schedule k2" {
			t.Errorf("batch %d: %s", batch, order)
		}
		r.wantRows(4, 1)
		r.to.refuse = map[string]error{}
		r.exec("UPDATE duestream_outbox SET try_ms = 0")
		r.drain()
		redistest.Want(t, "behind it", strings.Join(r.to.took(), ", "),
			"orders: schedule waits, orders: schedule behind, orders: schedule waits, orders: schedule other2")
	}
}

// A pass hands a run of rows over in their order, and the next one goes on behind it. After a row that waits
// for its server, no other is tried.
func TestAPassTakesARun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.relay.cfg.Batch = 20
	var want []string
	for i := range 50 {
		r.schedule("orders", fmt.Sprint(i), bridge.Key("k"))
		want = append(want, fmt.Sprint("orders: schedule ", i))
	}
	for _, n := range []int{20, 20, 10, 0} {
		if _, err := r.relay.pass(r.ctx); err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, "pass", strings.Join(r.to.took(), ", "), strings.Join(want[:n], ", "))
		want = want[n:]
	}
	r.schedule("orders", "a", bridge.Key("k"))
	r.schedule("orders", "b", bridge.Key("k"))
	r.to.refuse["a"] = bridge.ErrFull
	r.drain()
	redistest.Want(t, "behind a full queue", len(r.to.took()), 0)
	r.wantRows(2, 0)
}

// A server that answers slowly ends a run early, and no hand-over is cut off.
func TestASlowServerEndsARunEarly(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	slow := &slowSender{fakeSender: r.to}
	r.relay = redistest.Must(NewRelay(RelayConfig{Outbox: r.Outbox, DB: r.db, Client: slow, Timeout: 2 * time.Second,
		Logger: r.log.Logger()}))
	for i := range 3 {
		r.schedule("orders", fmt.Sprint(i), bridge.Key("k"))
	}
	for i := range 3 {
		if _, err := r.relay.pass(r.ctx); err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, "pass", strings.Join(r.to.took(), ", "), fmt.Sprint("orders: schedule ", i))
	}
	redistest.Want(t, "lines", len(r.log.Turns()), 0)
}

// slowSender answers when little more than half of the time has passed.
type slowSender struct{ *fakeSender }

func (s *slowSender) SendBatch(ctx context.Context, queue string, ms []bridge.NewMessage) ([]bridge.Result, error) {
	deadline, _ := ctx.Deadline()
	<-time.After(time.Until(deadline) - 990*time.Millisecond) // 10 ms less than half of it are left
	return s.fakeSender.SendBatch(ctx, queue, ms)
}

// A row that is refused is kept with its error, and is neither handed over again nor in the way of others, not even of
// those with its ID. An operator can retry and delete it.
func TestARefusedRowStopsNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.schedule("orders", "bad")
	r.schedule("orders", "good")
	r.cancel("orders", "bad")
	r.exec(`UPDATE duestream_outbox SET message = '{"id":"bad","max_attempts":0}' WHERE seq = 1`)
	r.exec(`UPDATE duestream_outbox SET queue = 'no such/queue' WHERE seq = 1`)
	r.to.refuse["no such/queue"] = bridge.ErrInvalid
	r.drain()
	r.wantRows(0, 1)
	redistest.Want(t, "stats", r.relay.Stats(), RelayStats{Scheduled: 1, Cancelled: 1, Refused: 1})
	redistest.Want(t, "lines", r.log.Count("outbox row refused"), 1)
	failed := redistest.Must(r.Failed(r.ctx, r.db, 0, 10))
	if len(failed) != 1 || failed[0].Seq != 1 || !strings.Contains(failed[0].Error, "max_attempts") ||
		failed[0].ID != "bad" || failed[0].Operation != "schedule" || failed[0].Failed.Before(failed[0].Written) {
		t.Fatalf("failed rows: %+v", failed)
	}
	r.exec(`UPDATE duestream_outbox SET message = '{"id":"bad"}', queue = 'orders' WHERE seq = 1`)
	redistest.Want(t, "retried", redistest.Must(r.Retry(r.ctx, r.db, 1, 2, 77)), 1)
	r.to.refuse["bad"] = bridge.ErrInvalid
	r.drain()
	r.wantRows(0, 1)
	redistest.Want(t, "deleted", redistest.Must(r.Delete(r.ctx, r.db, failed[0].Seq)), 1)
	r.wantRows(0, 0)
	redistest.Want(t, "none", redistest.Must(r.Delete(r.ctx, r.db)), 0)
}

// A full server lets the rows of its queue wait, without a change of the table. The rows of other queues go on. The log
// tells the beginning and the end.
func TestAFullServerLetsTheRowsOfItsQueueWait(t *testing.T) {
	t.Parallel()
	for _, kind := range []error{bridge.ErrFull, bridge.ErrUnavailable, bridge.ErrDenied, bridge.ErrUncertain,
		bridge.ErrWrongType, bridge.ErrClosed, bridge.ErrNotDurable, context.DeadlineExceeded,
		fmt.Errorf("%w: %w", bridge.ErrDuplicate, bridge.ErrNotDurable)} {
		r := newRig(t)
		for i := range 3 {
			r.schedule("full", fmt.Sprint("a", i))
			r.schedule("others", fmt.Sprint("b", i))
		}
		r.to.refuse["full"] = kind
		r.drain()
		redistest.Want(t, "hand-overs", len(r.to.took()), 3)
		r.wantRows(3, 0)
		if failed := r.relay.Stats(); failed.PutOff != 0 || failed.Refused != 0 {
			t.Errorf("%v: %+v", kind, failed)
		}
		delete(r.to.refuse, "full")
		redistest.Eventually(t, time.Minute, func() (bool, string) {
			r.drain()
			return r.status().Waiting == 0, "rows wait"
		})
		redistest.Want(t, "lines", strings.Join(r.log.Turns(), " "), "failing again")
	}
}

// A queue that takes some rows and refuses others is tried again soon. Regression: the pause doubled up to 10 s, though
// each pass handed rows over.
func TestAQueueThatTakesRowsIsTriedAgainSoon(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.to.refuse["bad"] = bridge.ErrUnavailable
	r.schedule("q", "bad")
	for i := range 10 {
		r.schedule("q", fmt.Sprint("good", i))
		if waiting := r.relay.waiting["q"]; waiting != nil {
			waiting.until = time.Now() // its pause is over
		}
		r.drain()
		r.wantRows(1, 0)
	}
	pause := r.relay.waiting["q"].backoff.NextBackOff()
	redistest.Want(t, fmt.Sprintf("the next pause, %s, is short", pause), pause < time.Second, true)
}

// If the client is closed, or cannot reach its durability, the log tells the operator the remedy. Regression: the log
// asked for a bug report.
func TestTheLogSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for _, kind := range []error{bridge.ErrNotDurable, bridge.ErrClosed} {
		r := newRig(t)
		r.schedule("orders", "a")
		r.to.refuse["orders"] = kind
		r.drain()
		text := strings.Join(r.log.Lines("is failing"), "")
		if !strings.Contains(text, "hint=") || strings.Contains(text, "please report") {
			t.Errorf("%v: %s", kind, text)
		}
	}
}

// A message that fails for a reason of its own is put off alone, and refused after many tries. Regression of a design:
// it would have failed all messages of its call.
func TestAnUnknownErrorStaysWithItsMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, id := range []string{"a", "odd", "b"} {
		r.schedule("orders", id)
	}
	r.to.whole = map[string]error{"odd": errors.New("ERR odd")}
	r.drain()
	slices.Sort(r.to.calls)
	redistest.Want(t, "calls", strings.Join(r.to.took(), ", "), "orders: schedule a, orders: schedule b")
	r.wantRows(1, 0)
	r.exec("UPDATE duestream_outbox SET tries = 58, try_ms = 0")
	r.drain()
	r.wantRows(1, 0)
	r.exec("UPDATE duestream_outbox SET try_ms = 0")
	r.drain()
	r.wantRows(0, 1)
	redistest.Want(t, "error", redistest.Must(r.Failed(r.ctx, r.db, 0, 1))[0].Error, "ERR odd")
	for tries, want := range map[int64]time.Duration{
		0: time.Second, 5: 32 * time.Second, 6: time.Minute, 59: time.Minute,
	} {
		redistest.Want(t, "wait", nextWait(tries), want)
	}
}

// Middleware of the client that panics fails its message only.
// Regression: it ended the process, again after each start.
func TestAPanicStaysWithItsMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, id := range []string{"a", "odd", "b"} {
		r.schedule("orders", id)
	}
	r.to.panics = "odd"
	r.drain()
	slices.Sort(r.to.calls)
	redistest.Want(t, "calls", strings.Join(r.to.took(), ", "), "orders: schedule a, orders: schedule b")
	r.wantRows(1, 0)
	r.exec("UPDATE duestream_outbox SET tries = 59, try_ms = 0")
	r.drain()
	if text := redistest.Must(r.Failed(r.ctx, r.db, 0, 1))[0].Error; !strings.HasPrefix(text, "the client panicked: odd") {
		t.Error(text)
	}
}

// A message with an ordering key that is refused while an old bridge is alive waits by itself.
func TestAMessageThatNeedsANewBridgeWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.schedule("orders", "keyed", bridge.Key("k"))
	r.schedule("orders", "plain")
	r.to.refuse["keyed"] = bridge.ErrOldBridge
	r.drain()
	r.wantRows(1, 0)
	redistest.Want(t, "stats", r.relay.Stats(), RelayStats{Scheduled: 1, PutOff: 1})
	delete(r.to.refuse, "keyed")
	r.exec("UPDATE duestream_outbox SET try_ms = 0")
	r.drain()
	r.wantRows(0, 0)
}

// An operation or a field that a newer release wrote waits for a relay of that release.
func TestARowOfANewerReleaseWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.schedule("orders", "a")
	r.schedule("orders", "b")
	r.exec(`UPDATE duestream_outbox SET operation = 'reschedule' WHERE seq = 1`)
	r.exec(`UPDATE duestream_outbox SET message = '{"id":"b","colour":"red"}' WHERE seq = 2`)
	r.drain()
	r.wantRows(2, 0)
	redistest.Want(t, "put off", r.relay.Stats().PutOff, 2)
}

// An ID that is scheduled already, and a message that is not scheduled any more, end their rows: a relay may have died
// after it handed them over.
func TestARowThatWasHandedOverBeforeIsDone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.schedule("orders", "a")
	r.cancel("orders", "b")
	r.to.refuse["a"], r.to.refuse["b"] = bridge.ErrDuplicate, bridge.ErrNotScheduled
	r.drain()
	r.wantRows(0, 0)
	redistest.Want(t, "stats", r.relay.Stats(), RelayStats{Duplicates: 1, TooLate: 1})
}

// Relative times count from the statement: they become shorter by the age of the row, and never by more.
func TestATimeCountsFromTheStatement(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	at := time.Now().Add(2 * hour).Truncate(time.Millisecond)
	r.schedule("orders", "in", bridge.In(hour))
	r.schedule("orders", "past", bridge.In(10*time.Minute), bridge.ExpiresIn(2*hour))
	r.schedule("orders", "spread", bridge.In(hour), bridge.Spread(hour))
	r.schedule("orders", "at", bridge.At(at), bridge.Spread(hour), bridge.ExpiresIn(9*hour))
	r.schedule("orders", "expired", bridge.In(time.Minute), bridge.ExpiresIn(20*time.Minute))
	r.exec("UPDATE duestream_outbox SET written_ms = written_ms - 1800000")
	r.drain()
	sent := map[string]bridge.NewMessage{}
	for _, m := range r.to.sent {
		sent[m.ID] = m
		if err := m.Check(); err != nil {
			t.Errorf("%s: %v", m.ID, err)
		}
	}
	near := func(what string, got, want time.Duration) {
		t.Helper()
		if got > want || got < want-time.Minute {
			t.Errorf("%s: %v, want %v or little less", what, got, want)
		}
	}
	near("in", sent["in"].Delay, hour/2+2*time.Millisecond)
	near("past", sent["past"].Delay, 0)
	near("past expires", sent["past"].ExpiresIn, 3*hour/2+2*time.Millisecond)
	if m := sent["spread"]; m.Delay < 29*time.Minute || m.Delay > 3*hour/2 || m.Spread != 0 {
		t.Errorf("spread: %v and %v", m.Delay, m.Spread)
	}
	redistest.Want(t, "at", sent["at"].At.Equal(at) && sent["at"].Spread == hour, true)
	near("at expires", sent["at"].ExpiresIn, 17*hour/2+2*time.Millisecond)
	redistest.Want(t, "expired", sent["expired"].Expires.Before(time.Now()), true)
	for _, age := range []time.Duration{0, time.Millisecond, 59 * time.Minute} {
		m := after(bridge.NewMessage{ID: "x", Delay: hour, Spread: hour, ExpiresIn: 2*hour + time.Second}, age)
		if err := m.Check(); err != nil || m.Delay < hour-age {
			t.Errorf("after %v: %v, %v", age, m.Delay, err)
		}
	}
	redistest.Want(t, "a clock that went back", after(bridge.NewMessage{Delay: hour}, max(0, -hour)).Delay, hour)
}

// A generated ID gets the dedup window of the configuration, an ID of the program does not.
func TestDedupOfTheConfigurationIsForGeneratedIDs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Outbox = redistest.Must(New(Config{Dialect: SQLite, Dedup: hour}))
	if _, err := r.Schedule(r.ctx, r.db, "orders", nil); err != nil {
		t.Fatal(err)
	}
	r.schedule("orders", "mine")
	r.drain()
	for _, m := range r.to.sent {
		redistest.Want(t, m.ID, m.Dedup == hour, m.ID != "mine")
	}
}

// A mistake of the program is refused before anything is written, as Client.Schedule refuses it.
func TestMisuseIsToldAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, call := range map[string]func() error{
		"queue":   func() error { _, err := r.Schedule(r.ctx, r.db, "no such/queue", nil); return err },
		"at":      func() error { _, err := r.Schedule(r.ctx, r.db, "q", nil, bridge.At(time.Time{})); return err },
		"id":      func() error { _, err := r.Schedule(r.ctx, r.db, "q", nil, bridge.WithID("")); return err },
		"option":  func() error { _, err := r.Schedule(r.ctx, r.db, "q", nil, nil); return err },
		"delay":   func() error { _, err := r.Schedule(r.ctx, r.db, "q", nil, bridge.In(-1)); return err },
		"dedup":   func() error { _, err := r.Schedule(r.ctx, r.db, "q", nil, bridge.Dedup(hour)); return err },
		"replace": func() error { _, err := r.Schedule(r.ctx, r.db, "q", nil, bridge.Replace); return err },
		"cancel":  func() error { return r.Cancel(r.ctx, r.db, "q", "") },
		"kind": func() error {
			_, err := ScheduleKind(r.ctx, r.Outbox, r.db, bridge.Kind[func()]{Queue: "q"}, nil)
			return err
		},
		"config": func() error { _, err := New(Config{Table: `a"b`, Dialect: 7, Dedup: -1}); return err },
		"relay":  func() error { _, err := NewRelay(RelayConfig{Batch: -1, Poll: -1, Timeout: -1}); return err },
	} {
		if err := call(); !errors.Is(err, bridge.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.wantRows(0, 0)
	_, err := NewRelay(RelayConfig{Client: (*bridge.Client)(nil), Batch: -1})
	for _, field := range []string{"outbox", "db", "client", "batch"} {
		if !strings.Contains(fmt.Sprint(err), field) {
			t.Errorf("no %q in %v", field, err)
		}
	}
}

// The names of table and indexes are those of the configuration.
func TestTheTableHasItsName(t *testing.T) {
	t.Parallel()
	for table, want := range map[string]string{
		"":         `CREATE TABLE IF NOT EXISTS "duestream_outbox" (`,
		"shop.out": `CREATE INDEX IF NOT EXISTS "out_key" ON "shop"."out" (queue, key, seq)`,
	} {
		if text := redistest.Must(New(Config{Table: table})).Schema(); !strings.Contains(text, want) {
			t.Errorf("%q: %s", table, text)
		}
	}
	redistest.Want(t, "default", redistest.Must(New(Config{})).Schema(), SchemaPostgreSQL)
	r := newRig(t)
	r.Outbox = redistest.Must(New(Config{Dialect: SQLite, Table: "main.jobs"}))
	if err := r.Migrate(r.ctx, r.db); err != nil {
		t.Fatal(err)
	}
	r.schedule("orders", "a")
	r.wantRows(1, 0)
}

// A relay is woken, hands over, and ends cleanly. While the database fails, it tries on, with one line in the log.
func TestARelayRunsUntilItIsStopped(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.relay = redistest.Must(NewRelay(RelayConfig{Outbox: r.Outbox, DB: r.db, Client: r.to, Poll: hour, Batch: 2,
		Timeout: time.Minute, Logger: r.log.Logger()}))
	ctx, stop := context.WithCancel(r.ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.relay.Run(ctx) }()
	for i := range 5 {
		r.schedule("orders", fmt.Sprint(i))
	}
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		r.relay.Wake()
		s := r.status()
		return s.Waiting == 0, fmt.Sprint(s)
	})
	r.exec("ALTER TABLE duestream_outbox RENAME TO away")
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		r.relay.Wake()
		return r.log.Count("is failing") == 1, "no line"
	})
	r.exec("ALTER TABLE away RENAME TO duestream_outbox")
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		return r.log.Count("works again") == 1, "no line"
	})
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "turns", strings.Join(r.log.Turns(), " "), "failing again")
}

// follower notes the relays that run.
type follower struct {
	bridge.Observer
	running []observe.RelayView
}

func (f *follower) RelayStarted(r observe.RelayView) (ended func()) {
	f.running = append(f.running, r)
	return func() { f.running = nil }
}

// While a relay runs, its observer may read the rows and the counts.
func TestARelayIsObserved(t *testing.T) {
	t.Parallel()
	r, f := newRig(t), &follower{}
	r.schedule("orders", "a")
	r.schedule("orders", "b")
	r.to.refuse["b"] = bridge.ErrInvalid
	ctx, stop := context.WithCancel(r.ctx)
	defer stop()
	var rows observe.RelayRows
	var counts observe.RelayCounts
	r.to.sends = func() { // the observer sees the rows of the first hand-over
		rows = redistest.Must(f.running[0].Rows(r.ctx))
		counts = f.running[0].Counts()
		stop()
	}
	r.relay.cfg.Observer = f
	if err := r.relay.Run(ctx); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "rows", fmt.Sprint(rows.Waiting, rows.Failed, rows.Oldest > 0), "2 0 true")
	redistest.Want(t, "counts", counts, observe.RelayCounts{})
	redistest.Want(t, "running", len(f.running), 0)
}

// A batch ends when it is large, and the rest follows in the next one.
func TestABatchIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.relay.batchBytes = 8 << 10
	for i := range 4 {
		if _, err := r.Schedule(r.ctx, r.db, "q", make([]byte, 3<<10), // 4 KiB in base64
			bridge.WithID(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int{2, 2, 0} {
		if _, err := r.relay.pass(r.ctx); err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, "messages", len(r.to.took()), want)
	}
}

// Each queue has an equal share of a batch, and at least one row.
func TestQueuesShareABatch(t *testing.T) {
	t.Parallel()
	var rows []*row
	for _, queue := range []string{"a", "b"} {
		for range 10 {
			rows = append(rows, &row{queue: queue, size: 30})
		}
	}
	count := map[string]int{}
	for _, one := range chosen(append(rows, &row{queue: "c", size: 100}), 330) {
		count[one.queue]++
	}
	redistest.Want(t, "rows", fmt.Sprint(count), "map[a:4 b:4 c:1]")
	redistest.Want(t, "one huge row", len(chosen([]*row{{queue: "a", size: 1000}}, 300)), 1)
}

// An adapter for pgx passes statements, numbers of rows and errors.
func TestPgxIsATx(t *testing.T) {
	t.Parallel()
	fake := &fakePgx{}
	r := newRig(t)
	if _, err := r.Schedule(r.ctx, Pgx(fake), "orders", nil); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "statements", strings.HasPrefix(fake.query, "INSERT INTO") && len(fake.args) == 7, true)
	redistest.Want(t, "rows", redistest.Must(r.Retry(r.ctx, Pgx(fake), 1)), 3)
	fake.err = sql.ErrTxDone
	if err := r.Cancel(r.ctx, Pgx(fake), "orders", "a"); !errors.Is(err, sql.ErrTxDone) {
		t.Error(err)
	}
}

type commandTag struct{}

func (commandTag) RowsAffected() int64 { return 3 }

type fakePgx struct {
	query string
	args  []any
	err   error
}

func (f *fakePgx) Exec(_ context.Context, query string, args ...any) (commandTag, error) {
	f.query, f.args = query, args
	return commandTag{}, f.err
}
