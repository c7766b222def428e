package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// Defaults of RelayConfig.
const (
	DefaultBatch   = 200                   // of RelayConfig.Batch
	DefaultPoll    = 50 * time.Millisecond // of RelayConfig.Poll
	DefaultMaxPoll = time.Second           // of RelayConfig.MaxPoll
	DefaultTimeout = 5 * time.Second       // of RelayConfig.Timeout
)

const (
	// maxBatchBytes ends a batch early, so that large messages do not fill the memory of the relay.
	maxBatchBytes = 8 << 20
	maxBackoff    = 10 * time.Second
	// maxCancels is the number of messages of a queue that are cancelled at the same moment.
	maxCancels = 16
)

// Sender is the part of a *bridge.Client that a relay needs.
type Sender interface {
	SendBatch(ctx context.Context, queue string, messages []bridge.NewMessage) ([]bridge.Result, error)
	Cancel(ctx context.Context, queue, id string, scopes ...bridge.Scope) error
}

// RelayConfig configures a Relay. Outbox, DB and Client are required.
type RelayConfig struct {
	Outbox *Outbox
	// DB is the database with the table. The relay uses one connection at a time. A program with a pool of pgx passes
	// stdlib.OpenDBFromPool(pool). The user needs SELECT, UPDATE and DELETE on the table.
	DB *sql.DB
	// Client is a *bridge.Client. It decides the durability of the messages: a row is deleted after the confirmation.
	// Close it after Run has returned.
	Client Sender

	// Batch is the greatest number of rows of one hand-over: 1 to 10,000. A batch also ends after 8 MiB of messages.
	// Rows of a batch are locked until its end, and are handed over again if it fails. Default 200.
	Batch int
	// Poll is the pause after a pass that found no row. It doubles with each such pass, up to MaxPoll. Wake ends the
	// pause. On an empty table a pass costs one transaction with two statements. Defaults 50 ms and 1 s.
	Poll, MaxPoll time.Duration
	// Timeout ends a hand-over to a server that does not answer. A pass whose database does not answer ends after twice
	// this time. The rows are handed over again later. Default 5s.
	Timeout time.Duration

	// Observer is a Metrics of package bridge/metrics, which shows the rows and the counts of the relay. At each scrape
	// it reads the whole table once. nil = none.
	Observer bridge.Observer
	Logger   *slog.Logger // nil = discard
}

// Relay hands the rows of an outbox over to duestream, and deletes them. Any number of relays may serve a table.
//
// If Redis is full or does not answer, rows wait. The relay then tries each queue again after 50 ms, and then after
// pauses that double, up to about 10 s. The pauses begin anew when the queue takes a row. The queues of other servers
// of a cluster are not delayed. The log has one line when a queue or the database begins to fail, and one when it works
// again.
//
// If duestream refuses a row because of the row itself, the relay keeps it with its error: see Outbox.Failed. Such a
// row stops no other row. A row that may be accepted later, for example with an ordering key while an old bridge is
// alive, is tried for about an hour first.
type Relay struct {
	cfg      RelayConfig
	wake     chan struct{}
	reporter loop.Reporter
	floods   loop.Floods
	counts   counts

	batchBytes int64                    // a batch ends after this many bytes
	passing    sync.Mutex               // held during a pass: Flush may be called while Run runs
	waiting    map[string]*waitingQueue // used only during a pass
	runs       runs                     // used only during a pass
	search     search                   // used only during a pass
}

// waitingQueue is a queue whose rows are left out until a point in time, because its server failed.
type waitingQueue struct {
	until   time.Time
	backoff *backoff.ExponentialBackOff
}

type counts struct{ scheduled, cancelled, duplicates, tooLate, refused, putOff atomic.Int64 }

// RelayStats counts the rows of a relay since it was made. Each deleted row is counted in one of the first four fields.
type RelayStats struct {
	Scheduled int64 // messages that were stored
	Cancelled int64 // messages that were cancelled
	// Duplicates are messages that were dropped, because their ID was scheduled: mostly by an earlier hand-over of the
	// same row.
	Duplicates int64
	TooLate    int64 // cancellations that found no scheduled message
	Refused    int64 // rows that were kept with an error
	PutOff     int64 // hand-overs of single rows that failed, and will be repeated
}

// NewRelay checks the configuration; the error names all its faults, each a *bridge.InvalidError. Neither the database
// nor Redis is touched before Run.
func NewRelay(cfg RelayConfig) (*Relay, error) {
	cfg.Batch = cmp.Or(cfg.Batch, DefaultBatch)
	cfg.Poll, cfg.MaxPoll = cmp.Or(cfg.Poll, DefaultPoll), cmp.Or(cfg.MaxPoll, max(cfg.Poll, DefaultMaxPoll))
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultTimeout)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	client, isClient := cfg.Client.(*bridge.Client)
	if err := lua.Faults("outbox relay",
		lua.Required("outbox", cfg.Outbox != nil),
		lua.Required("db", cfg.DB != nil),
		lua.Required("client", cfg.Client != nil && (!isClient || client != nil)),
		lua.Between("batch", cfg.Batch, 1, 10_000),
		lua.AtLeast("poll", cfg.Poll, time.Millisecond),
		lua.AtLeast("max poll", cfg.MaxPoll, cfg.Poll),
		lua.AtLeast("timeout", cfg.Timeout, time.Millisecond),
	); err != nil {
		return nil, err
	}
	return &Relay{
		cfg:        cfg,
		batchBytes: maxBatchBytes,
		wake:       make(chan struct{}, 1),
		reporter:   loop.Reporter{Log: cfg.Logger, Activity: "outbox relay"},
		waiting:    map[string]*waitingQueue{},
	}, nil
}

// Wake makes the relay look for rows at once. A program calls it after a commit, so that its message does not wait for
// the next look. It never blocks, and may be called at any time by any goroutine.
func (r *Relay) Wake() { loop.Poke(r.wake) }

// Stats returns the counts so far.
func (r *Relay) Stats() RelayStats {
	return RelayStats{
		Scheduled:  r.counts.scheduled.Load(),
		Cancelled:  r.counts.cancelled.Load(),
		Duplicates: r.counts.duplicates.Load(),
		TooLate:    r.counts.tooLate.Load(),
		Refused:    r.counts.refused.Load(),
		PutOff:     r.counts.putOff.Load(),
	}
}

// Run hands rows over until ctx is cancelled. Then it finishes the hand-over that has begun, and returns nil within
// twice RelayConfig.Timeout. Call it once. After every error of the database or of Redis, it tries again.
func (r *Relay) Run(ctx context.Context) error {
	defer r.floods.Close()
	defer r.observed()()
	failures := loop.NewBackoff(maxBackoff)
	for pause := time.Duration(0); loop.SleepUntil(ctx, pause, r.wake); {
		// The pass is not interrupted, because its rows would be handed over again.
		found, err := r.pass(context.WithoutCancel(ctx))
		r.reporter.ReportPart("database", err)
		switch {
		case err != nil:
			pause = failures.NextBackOff()
		case found:
			failures.Reset()
			pause = 0
		default:
			failures.Reset()
			pause = min(max(2*pause, r.cfg.Poll), r.cfg.MaxPoll)
		}
	}
	return nil
}

// observed tells the observer that the relay runs. The returned function tells it the end.
func (r *Relay) observed() (ended func()) {
	follows, ok := r.cfg.Observer.(observe.RelayObserver)
	if !ok {
		return func() {}
	}
	ended = follows.RelayStarted(observe.RelayView{
		Table: r.cfg.Outbox.table,
		Rows: func(ctx context.Context) (observe.RelayRows, error) {
			s, err := r.cfg.Outbox.Status(ctx, r.cfg.DB)
			return observe.RelayRows(s), err
		},
		Counts: func() observe.RelayCounts { return observe.RelayCounts(r.Stats()) },
	})
	if ended == nil {
		return func() {}
	}
	return ended
}
