package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// errDatabase is the kind of all errors of the database in the log.
var errDatabase = lua.NewHinted("the database of the outbox fails",
	"check that the database is up, that the table exists (Outbox.Migrate), and that the user may read and write it")

// pass takes a batch of rows, hands them over, and deletes them, in one transaction. found reports whether there was a
// row, or whether the search is not at its end yet. The error is that of the database; an error of Redis is reported
// for its queue.
func (r *Relay) pass(ctx context.Context) (found bool, err error) {
	r.passing.Lock()
	defer r.passing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 2*r.cfg.Timeout)
	defer cancel()
	found, err = r.tryPass(ctx)
	if err != nil {
		return false, fmt.Errorf("%w: %w", errDatabase, err)
	}
	return found, nil
}

func (r *Relay) tryPass(ctx context.Context) (found bool, err error) {
	options := &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	if r.cfg.Outbox.sql.dialect == SQLite {
		options = nil
	}
	tx, err := r.cfg.DB.BeginTx(ctx, options)
	if err != nil {
		return false, err
	}
	defer tx.Rollback() // after a commit it does nothing
	rows, later, err := r.take(ctx, tx)
	if err != nil || len(rows) == 0 {
		return r.search.goesOn, err
	}
	results := r.handOver(ctx, rows)
	settled, err := r.settle(ctx, tx, rows, results)
	if err != nil || len(settled) == 0 {
		return true, err // the queues of these rows wait now, so the next pass finds others
	}
	if err := tx.Commit(); err != nil {
		return false, err
	}
	r.runs.later = later
	for _, count := range settled {
		count()
	}
	return true, nil
}

// take locks and reads the next rows, except the rows of queues that wait. It also returns the rows behind them for
// which the batch has no room.
func (r *Relay) take(ctx context.Context, tx *sql.Tx) (rows, later []*row, err error) {
	if err := r.prepare(ctx, tx); err != nil {
		return nil, nil, err
	}
	first, err := r.lockFirst(ctx, tx)
	if err != nil || len(first) == 0 {
		return nil, nil, err
	}
	rows, later, err = r.addBehind(ctx, tx, first)
	if err != nil {
		return nil, nil, err
	}
	rows = chosen(rows, r.batchBytes)
	return rows, later, r.readMessages(ctx, tx, rows)
}

// addBehind fills a batch with rows behind the given ones: rows of the same IDs and ordering keys. It adds a row only
// together with all rows before it. The rows are returned in the order of their numbers.
func (r *Relay) addBehind(ctx context.Context, tx *sql.Tx, first []*row) (rows, later []*row, err error) {
	room := r.cfg.Batch - len(first)
	if room > 0 {
		// One row more than an equal share, so that the next one of a longer run is known.
		rows, err = r.rowsOf(ctx, tx, true, r.cfg.Outbox.sql.behind, numbersOf(first), max(1, room/len(first))+1)
		if err != nil {
			return nil, nil, err
		}
	}
	byNumber := func(a, b *row) int { return cmp.Compare(a.seq, b.seq) }
	slices.SortFunc(rows, byNumber)
	taken := map[int64]bool{0: true} // 0 = there is no row before
	for _, one := range first {
		taken[one.seq] = true
	}
	for _, one := range rows {
		switch {
		case !taken[one.beforeOfID] || !taken[one.beforeOfKey]:
		case room == 0:
			later = append(later, one)
		default:
			room--
			taken[one.seq] = true
			first = append(first, one)
		}
	}
	slices.SortFunc(first, byNumber)
	return first, later, nil
}

// prepare sets the limits of the transaction. A relay is idle in it while it hands rows over, for Timeout at most.
func (r *Relay) prepare(ctx context.Context, tx *sql.Tx) error {
	var limits []any
	if r.cfg.Outbox.sql.dialect == PostgreSQL {
		idleMs := min((2 * r.cfg.Timeout).Milliseconds(), math.MaxInt32) // PostgreSQL takes no longer time
		limits = append(limits, strconv.FormatInt(idleMs, 10))
	}
	_, err := tx.ExecContext(ctx, r.cfg.Outbox.sql.begin, limits...)
	return err
}

// chosen returns as many rows as fit into a batch of this size, at least one. Each queue has an equal share, and at
// least one row if there is room. The order of the queues changes from call to call, so that no queue is always the
// last.
func chosen(rows []*row, size int64) (batch []*row) {
	byQueue := map[string][]*row{}
	for _, one := range rows {
		byQueue[one.queue] = append(byQueue[one.queue], one)
	}
	share := size / int64(len(byQueue))
	for _, ofQueue := range byQueue { // in random order
		for used := int64(0); len(ofQueue) > 0 && used < share && size > 0; ofQueue = ofQueue[1:] {
			used += ofQueue[0].size
			size -= ofQueue[0].size
			batch = append(batch, ofQueue[0])
		}
	}
	return batch
}

// rowsOf returns the rows of a query, without their messages. behind says that the query also returns the numbers of
// the rows before.
func (r *Relay) rowsOf(ctx context.Context, tx *sql.Tx, behind bool, query string,
	args ...any) (rows []*row, err error) {
	found, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	for found.Next() {
		one := &row{}
		var ageMs int64
		fields := []any{&one.seq, &one.operation, &one.queue, &one.id, &one.key, &ageMs, &one.tries, &one.size}
		if behind {
			fields = append(fields, &one.beforeOfID, &one.beforeOfKey)
		}
		if err := found.Scan(fields...); err != nil {
			return nil, err
		}
		one.age = time.Duration(ageMs) * time.Millisecond
		rows = append(rows, one)
	}
	return rows, found.Err()
}

// numbersOf returns the numbers of rows as the statements take them.
func numbersOf(rows []*row) string {
	numbers := make([]string, len(rows))
	for i, one := range rows {
		numbers[i] = strconv.FormatInt(one.seq, 10)
	}
	return strings.Join(numbers, ",")
}

func (r *Relay) readMessages(ctx context.Context, tx *sql.Tx, rows []*row) error {
	bySeq := map[int64]*row{}
	for _, one := range rows {
		bySeq[one.seq] = one
	}
	found, err := tx.QueryContext(ctx, r.cfg.Outbox.sql.read, numbersOf(rows))
	if err != nil {
		return err
	}
	defer found.Close()
	for found.Next() {
		var seq int64
		var text string
		if err := found.Scan(&seq, &text); err != nil {
			return err
		}
		bySeq[seq].text = text
	}
	return found.Err()
}

// leftOut returns the queues that wait after an error.
func (r *Relay) leftOut() []string {
	names := []string{}
	for name, queue := range r.waiting {
		if time.Now().Before(queue.until) {
			names = append(names, name)
		}
	}
	return names
}

// handOver hands each row over, and returns their results in the same order. Queues do not wait for each other, because
// they may be on different servers.
func (r *Relay) handOver(ctx context.Context, rows []*row) []error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	byQueue := map[string][]int{}
	for i, one := range rows {
		byQueue[one.queue] = append(byQueue[one.queue], i)
	}
	results := make([]error, len(rows))
	var queues sync.WaitGroup
	for queue, indexes := range byQueue {
		queues.Go(func() { r.handOverQueue(ctx, queue, rows, indexes, results) })
	}
	queues.Wait()
	return results
}

// errBehind is the result of a row that was not handed over, because an earlier one must come first.
var errBehind = errors.New("an earlier row waits")

// handOverQueue hands the rows of one queue over, and sets their results. It hands over the rows of one ID, or of one
// ordering key, one after another. Each row follows after the confirmation of the row before, because within one call
// the next message could overtake a refused one, for example on a full server. A row behind a row that still waits
// stays. Rows for which no time is left stay too, because a hand-over that is cut off is repeated.
func (r *Relay) handOverQueue(ctx context.Context, queue string, rows []*row, indexes []int, results []error) {
	deadline, _ := ctx.Deadline()
	waits := map[string]bool{} // IDs and ordering keys with a row that stays
	isLate := false            // for further waves
	for n, wave := range wavesOf(rows, indexes) {
		isLate = isLate || n > 0 && time.Until(deadline) < r.cfg.Timeout/2
		var now []int
		for _, i := range wave {
			if isLate || slices.ContainsFunc(rows[i].names(), func(name string) bool { return waits[name] }) {
				results[i] = errBehind
				continue
			}
			now = append(now, i)
		}
		r.handOverWave(ctx, queue, rows, now, results)
		for _, i := range wave {
			switch verdictOf(results[i]) {
			case done, refuse:
				continue
			case waitQueue:
				isLate = true
			}
			for _, name := range rows[i].names() {
				waits[name] = true
			}
		}
	}
}

// wavesOf divides rows, which are in the order of their numbers. Each wave has at most one row of each ID and of each
// ordering key. Earlier rows of the same ID or key are in earlier waves.
func wavesOf(rows []*row, indexes []int) (waves [][]int) {
	next := map[string]int{} // the first wave that has no row of this ID or key, and none behind it
	for _, i := range indexes {
		wave := 0
		for _, name := range rows[i].names() {
			wave = max(wave, next[name])
		}
		for _, name := range rows[i].names() {
			next[name] = wave + 1
		}
		if wave == len(waves) {
			waves = append(waves, nil)
		}
		waves[wave] = append(waves[wave], i)
	}
	return waves
}

// handOverWave hands rows of one queue over, and sets their results. No two of the rows have the same ID or ordering
// key.
func (r *Relay) handOverWave(ctx context.Context, queue string, rows []*row, indexes []int, results []error) {
	var messages []bridge.NewMessage
	var scheduled, cancelled []int // indexes
	for _, i := range indexes {
		switch rows[i].operation {
		case cancelRow:
			cancelled = append(cancelled, i)
		case scheduleRow:
			m, err := rows[i].message()
			if err != nil {
				results[i] = err
				continue
			}
			messages, scheduled = append(messages, m), append(scheduled, i)
		default: // of a newer release
			results[i] = fmt.Errorf("unknown operation %q", rows[i].operation)
		}
	}
	for at, err := range r.send(ctx, queue, messages) {
		results[scheduled[at]] = err
	}
	var running sync.WaitGroup
	slots := make(chan struct{}, maxCancels)
	for _, i := range cancelled {
		slots <- struct{}{}
		running.Go(func() {
			results[i] = r.cfg.Client.Cancel(ctx, queue, rows[i].id)
			<-slots
		})
	}
	running.Wait()
}

// send sends the messages of a queue, and returns one error for each. Messages that fail for an unknown reason are sent
// once more, each alone, so that one message cannot spoil the call for the others.
func (r *Relay) send(ctx context.Context, queue string, messages []bridge.NewMessage) []error {
	errs := r.sendTogether(ctx, queue, messages)
	if len(messages) == 1 {
		return errs
	}
	for i, err := range errs {
		if verdictOf(err) == waitRow && !errors.Is(err, bridge.ErrOldBridge) {
			errs[i] = r.sendTogether(ctx, queue, messages[i:i+1])[0]
		}
	}
	return errs
}

// sendTogether sends messages in one call. If the middleware of the client panics, the panic is the error of each
// message. Without this, the panic would end the process, and again after each restart, because the row stays.
func (r *Relay) sendTogether(ctx context.Context, queue string, messages []bridge.NewMessage) (errs []error) {
	errs = make([]error, len(messages))
	if len(messages) == 0 {
		return errs
	}
	defer func() {
		if value := recover(); value != nil {
			for i := range errs {
				errs[i] = fmt.Errorf("the client panicked: %v\n%s", value, debug.Stack())
			}
		}
	}()
	results, err := r.cfg.Client.SendBatch(ctx, queue, messages)
	for i := range errs {
		errs[i] = err
		if err == nil {
			errs[i] = results[i].Err
		}
	}
	return errs
}

// settle deletes or changes the rows by their results. It returns the functions to call after the commit, one for each
// row that is deleted or changed.
func (r *Relay) settle(ctx context.Context, tx *sql.Tx, rows []*row, results []error) (settled []func(), err error) {
	q := r.cfg.Outbox.sql
	var gone []string
	ofQueue := map[string]error{} // the first error of each queue that must wait; nil = it need not wait
	hasTaken := map[string]bool{} // queues to which a row was handed over
	for i, one := range rows {
		result := results[i]
		next := verdictOf(result)
		if next == waitRow && one.tries+1 >= maxTries {
			next = refuse
		}
		if _, known := ofQueue[one.queue]; !known {
			ofQueue[one.queue] = nil
		}
		switch next {
		case stay: // another one of its queue waits
		case done:
			gone = append(gone, strconv.FormatInt(one.seq, 10))
			hasTaken[one.queue] = true
			settled = append(settled, func() { r.countDone(one, result) })
		case waitQueue:
			ofQueue[one.queue] = cmp.Or(ofQueue[one.queue], result)
		case waitRow:
			wait := nextWait(one.tries)
			if _, err := tx.ExecContext(ctx, q.put, one.seq, textOf(result), wait.Milliseconds()); err != nil {
				return nil, err
			}
			settled = append(settled, func() { r.counts.putOff.Add(1) })
		case refuse:
			if _, err := tx.ExecContext(ctx, q.refuse, one.seq, textOf(result)); err != nil {
				return nil, err
			}
			settled = append(settled, func() { r.countRefused(one, result) })
		}
	}
	if len(gone) > 0 {
		if _, err := tx.ExecContext(ctx, q.remove, strings.Join(gone, ",")); err != nil {
			return nil, err
		}
	}
	for queue, err := range ofQueue {
		r.reportQueue(queue, hasTaken[queue], err)
	}
	return settled, nil
}

// reportQueue remembers whether a queue must wait, and logs the change. hasTaken reports that the queue took at least
// one row. Then its server works, although not for each call, so the pauses begin anew and stay short.
func (r *Relay) reportQueue(queue string, hasTaken bool, err error) {
	r.reporter.ReportPart("queue "+queue, explained(err))
	if err == nil {
		delete(r.waiting, queue)
		return
	}
	one := r.waiting[queue]
	if one == nil {
		one = &waitingQueue{backoff: loop.NewBackoff(maxBackoff)}
		r.waiting[queue] = one
	}
	if hasTaken {
		one.backoff.Reset()
	}
	one.until = time.Now().Add(one.backoff.NextBackOff())
}

// Kinds of errors in the log that say what to do about them.
var (
	errNotDurable = lua.NewHinted("the durability of the relay's client is not reached",
		"check the replicas and the append-only file of the Redis server; the rows wait until it is reached")
	errClosed = lua.NewHinted("the relay's client is closed", "close it after Relay.Run has returned")
)

// explained adds to an error of a queue what to do about it, unless it says so itself.
func explained(err error) error {
	switch {
	case err == nil || lua.Hint(err) != "":
		return err
	case errors.Is(err, bridge.ErrNotDurable):
		return fmt.Errorf("%w: %w", errNotDurable, err)
	case errors.Is(err, bridge.ErrClosed):
		return fmt.Errorf("%w: %w", errClosed, err)
	}
	return err
}

func (r *Relay) countDone(one *row, result error) {
	switch {
	case one.operation == cancelRow && result != nil:
		r.counts.tooLate.Add(1)
	case one.operation == cancelRow:
		r.counts.cancelled.Add(1)
	case result != nil:
		r.counts.duplicates.Add(1)
	default:
		r.counts.scheduled.Add(1)
	}
}

func (r *Relay) countRefused(one *row, result error) {
	r.counts.refused.Add(1)
	r.floods.Log(r.cfg.Logger, slog.LevelError, "outbox row refused", slog.String("queue", one.queue),
		slog.String("id", one.id), slog.Any("error", result),
		slog.String("hint", "it is kept with its error: Outbox.Failed lists such rows, Retry and Delete settle them"))
}

// textOf returns the text of an error as databases take it: valid UTF-8 without NUL, of a limited length.
func textOf(err error) string {
	const most = 1000
	text := err.Error()
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, "�"), "\x00", "�")
}
