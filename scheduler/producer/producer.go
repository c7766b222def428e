package producer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/oklog/ulid/v2"
	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// Defaults of Config.
const (
	DefaultRetryTimeout      = 10 * time.Second
	DefaultMaxCommit         = 256
	DefaultMaxCommitBytes    = 512 << 10
	DefaultDurabilityTimeout = 2 * time.Second
)

const (
	maxCommit       = 10_000          // bounds the work of one script call (G7)
	tryTimeout      = 5 * time.Second // of one script call
	tokenWindow     = time.Minute     // the least one; a token must outlive the repeats of its commit
	registerEvery   = 5 * time.Second // per queue in use: greatest age of the known partition counts
	registerTimeout = time.Second     // of one try; on a cluster messages wait this long for a server that hangs
	registerRetry   = 2 * time.Second
	restedAfter     = 2 * registerEvery // older counts are read again before a message that needs them
	cancelChunk     = 1000              // IDs per script call
	closeTimeout    = 2 * time.Second   // for clearing tokens
	forgetAfter     = time.Second       // after the last commit the tokens of a queue are cleared
	longWayFor      = 10 * time.Second
	retryInitial    = 20 * time.Millisecond
	retryMax        = time.Second
)

// Config configures a Producer.
type Config struct {
	// Client serves every call. Whoever made it closes it. Required.
	Client rueidis.Client
	// Prefix starts every key. Default lua.DefaultPrefix.
	Prefix string
	// RetryTimeout is how long a call repeats after errors that may pass, counted from its beginning. Default 10s;
	// negative = no repeats. Too low: callers see each failover. Too high: callers without a deadline hang for that
	// long.
	RetryTimeout time.Duration
	// MaxCommit is the greatest number of messages in one script call. Default 256, at most 10,000. The server does
	// nothing else while the script runs: some 3 µs per message.
	MaxCommit int
	// MaxCommitBytes is the size of a script call beyond which it takes no further message. Default 512 KiB. One
	// message always goes.
	MaxCommitBytes int
	// Durability is the guarantee that every call waits for before it returns nil; paid once per commit. Default: the
	// server has executed the call. Its Timeout is 2s by default, at most 1m. After the timeout the error is a
	// *lua.NotDurableError, and the call has taken effect. The first call asks the server, for 5s at most, whether it
	// supports this durability. If not, the call fails with lua.ErrUnsupported or lua.ErrDenied, and nothing was sent.
	Durability lua.Durability
	// Name is this producer's name in the histories of queues, at most 256 bytes. Default: lua.ActorClient, host and
	// process.
	Name string
	// Observer gets the outcomes of messages. Default: nil, no observer.
	Observer observe.Observer
	// AllowOldBridges accepts messages that a live bridge may not serve: those with a key, if its protocol level is
	// below lua.LevelKeys. Default: they are refused with lua.ErrOldBridge.
	AllowOldBridges bool
	// Logger gets a line when registering a queue starts to fail, and when it works again. Default: discard.
	Logger *slog.Logger
	// NewID makes the IDs of messages without one. They must be unique; messages with equal due times are delivered in
	// the order of their IDs. It is called under a lock and must not block. Default: monotonic ULIDs.
	NewID func() string
}

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, lua.DefaultPrefix)
	c.Name = cmp.Or(c.Name, lua.Actor(lua.ActorClient))
	c.RetryTimeout = cmp.Or(c.RetryTimeout, DefaultRetryTimeout)
	c.MaxCommit = cmp.Or(c.MaxCommit, DefaultMaxCommit)
	c.MaxCommitBytes = cmp.Or(c.MaxCommitBytes, DefaultMaxCommitBytes)
	c.Durability.Timeout = cmp.Or(c.Durability.Timeout, DefaultDurabilityTimeout)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.NewID == nil {
		c.NewID = newIDs().next
	}
	return c
}

func (c Config) validate() error {
	return errors.Join(lua.Required("redis", c.Client != nil), lua.CheckPrefix(c.Prefix), lua.CheckActor(c.Name),
		lua.Between("MaxCommit", c.MaxCommit, 1, maxCommit), lua.AtLeast("MaxCommitBytes", c.MaxCommitBytes, 1),
		c.Durability.Validate())
}

// Producer puts messages into the schedule. All methods are safe for concurrent use. It keeps some hundred bytes for
// each queue that it was used with.
type Producer struct {
	cfg     Config
	globals lua.Globals
	name    string // random; prefix of its tokens
	tokens  atomic.Uint64
	window  time.Duration // of tokens
	try     time.Duration // of one script call, including the wait for its durability
	durable durability
	levels  *lua.Levels // of the live bridges; nil = not checked

	mu     sync.Mutex
	routes map[string]*route // by queue
	closed chan struct{}
	busy   sync.WaitGroup // calls and committers; grows from zero only under mu and before closed
	forget sync.Once
}

// New returns a Producer. It does not touch Redis.
func New(cfg Config) (*Producer, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	try := tryTimeout + cfg.Durability.Timeout
	var levels *lua.Levels
	if !cfg.AllowOldBridges {
		levels = lua.NewLevels(cfg.Client, cfg.Prefix)
	}
	return &Producer{
		levels: levels, cfg: cfg, globals: lua.NewGlobals(cfg.Prefix), name: ulid.Make().String(),
		try: try, window: max(tokenWindow, 2*cfg.RetryTimeout+2*try),
		routes: map[string]*route{}, closed: make(chan struct{}),
	}, nil
}

// keys returns the keys of a partition, with this producer as the actor.
func (p *Producer) keys(partition string) lua.Keys {
	return lua.NewKeys(p.cfg.Prefix, partition).As(p.cfg.Name)
}

// Schedule puts one message into a queue. Once it returns nil, the message is delivered at least once to every group,
// or cancelled, or dead-lettered. The receipt holds the ID even beside an error.
//
// It blocks until the server has answered. While the server is unavailable, that is at most RetryTimeout plus 5s plus
// the Timeout of its Durability. If ctx ends first, the message may still be stored: ErrUncertain. A call whose reply
// was lost is repeated, without storing the message twice. Messages of concurrent calls share a script call; one round
// trip, O(log n) in the number of scheduled messages.
//
// The first call for a queue also asks the registry for its partitions, for a second at most; then the message goes to
// partition 0. A message with a key or a chosen ID waits for the partitions for RetryTimeout at most; then it is
// refused, and nothing was sent. From then on the registry is asked every 5s, in the background.
//
// An ID belongs to its queue, whatever the key of its message. So in a queue with several partitions a chosen ID is
// looked up in all of them at once, which takes one more round trip. With Replace and a Key the message goes to the
// partition of its key. The messages that it replaces in other partitions are looked up before it is stored, and
// cancelled afterwards: a round trip each. Then its ID is looked up once more, unless it was scheduled in that
// partition alone. If one of the last two steps fails, the error is ErrUncertain: both messages may be delivered. If
// several calls replace an ID at the same moment, the message that was added last stays, wherever any of the calls
// stops.
//
// ErrDuplicate is best effort in two cases. First, for some seconds after a growth a producer may not know the new
// count, and store an ID in its old partition while it is scheduled in its new one. Second, of concurrent calls with
// the same ID that know different counts, or have keys of different partitions, several may succeed.
//
// Errors: *lua.InvalidError before Redis is touched; ErrDuplicate; lua.ErrFull; ErrUncertain; ErrClosed;
// lua.ErrNotDurable, with which the message is stored and the receipt complete; lua.ErrUnsupported for a durability
// that the server cannot give, with which nothing was sent; and other errors of the server.
func (p *Producer) Schedule(ctx context.Context, queue string, m Message) (Receipt, error) {
	results, err := p.ScheduleBatch(ctx, queue, []Message{m})
	if err != nil {
		return Receipt{}, err
	}
	return results[0].Receipt, results[0].Err
}

// ScheduleBatch is Schedule for many messages: one result for each, in order, each with its own verdict. Messages with
// equal due times and without IDs keep their order within a partition. The error is set only if none was tried: an
// illegal queue name, more than lua.MaxBatch messages, a closed producer, a context that ended before, a durability
// that the server cannot give, or an ExpiresIn without an answer from the server's clock. The batch is not atomic; it
// goes out in calls of at most MaxCommit messages.
func (p *Producer) ScheduleBatch(ctx context.Context, queue string, ms []Message) ([]Result, error) {
	if len(ms) > lua.MaxBatch {
		return nil, wrap("schedule", queue, "", lua.Invalid("batch", fmt.Sprint(len(ms)), "must be at most %d messages",
			lua.MaxBatch))
	}
	began := time.Now()
	r, err := p.enter(ctx, queue)
	if err != nil {
		return nil, wrap("schedule", queue, "", err)
	}
	defer p.busy.Done()
	l, err := r.batchRoute(ctx, ms, began)
	if err == nil {
		ms, err = p.expiring(ctx, queue, ms)
	}
	if err != nil {
		return nil, wrap("schedule", queue, "", err)
	}
	first, rest := l.apart(ms)
	if rest == nil {
		return l.schedule(ctx, ms, began), nil
	}
	results := make([]Result, len(ms))
	for len(first) > 0 {
		some := make([]Message, len(first))
		for i, at := range first {
			some[i] = ms[at]
		}
		round := batchRoute{route: r, counts: l.counts, unread: l.unread}
		for i, result := range round.schedule(ctx, some, time.Now()) {
			results[first[i]] = result
		}
		first, rest = l.apartOf(ms, rest)
	}
	return results, nil
}

// schedule sends messages, and waits for their results. Repeats are counted from since.
func (s *batchRoute) schedule(ctx context.Context, ms []Message, since time.Time) []Result {
	results := s.store(ctx, ms, s.duplicates(ctx, ms), since)
	s.takeAway(ctx, ms, results)
	if some := s.contested(ctx, ms, results); len(some) > 0 {
		s.again(ctx, ms, some, results)
	}
	return results
}

// store sends the messages except the refused ones (errors by index in the batch), and waits for their results.
func (s *batchRoute) store(ctx context.Context, ms []Message, refused map[int]error, since time.Time) []Result {
	queue, served := s.route.queue, s.served(ctx, ms)
	c := newBatchCall(ctx, len(ms))
	var one [1]waiting
	ws := one[:0]
	if len(ms) > 1 {
		ws = make([]waiting, 0, len(ms))
	}
	copies := payloads(ms)
	for i := range ms {
		item, err := ms[i].item(copies)
		if err == nil && s.unread != nil && needsPartitions(ms[i]) {
			err = fmt.Errorf("a key or a chosen ID needs the number of partitions, which is not known: %w", s.unread)
		}
		if err == nil && ms[i].Key != "" {
			err = served
		}
		if err == nil {
			err = refused[i]
		}
		if err != nil {
			c.answer(i, Result{Receipt{ID: ms[i].ID}, wrap("schedule", queue, ms[i].ID, err)})
			continue
		}
		ws = append(ws, waiting{call: c, at: i, item: item, since: since, spread: ms[i].Spread, key: ms[i].Key})
	}
	s.add(ws)
	s.start(c)
	return c.wait(queue)
}

// served returns lua.ErrOldBridge for messages with a key that a live bridge does not serve. It costs nothing for
// batches without a key, or if the messages are refused anyway because the partitions are not known.
func (s *batchRoute) served(ctx context.Context, ms []Message) error {
	if s.unread != nil || !hasKeys(ms) {
		return nil
	}
	return s.route.p.levels.Allow(ctx, lua.LevelKeys, "messages with a key")
}

// needsPartitions reports whether a message must wait until the partitions of its queue are known. In partition 0 a
// message could overtake others with its key, and a chosen ID could be accepted twice while another partition holds or
// remembers it.
func needsPartitions(m Message) bool { return m.Key != "" || m.ID != "" }

func hasKeys(ms []Message) bool {
	return slices.ContainsFunc(ms, func(m Message) bool { return m.Key != "" })
}

// enter begins a call. The caller ends it with busy.Done.
func (p *Producer) enter(ctx context.Context, queue string) (*route, error) {
	if err := lua.CheckQueue(queue); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !p.begin() {
		return nil, ErrClosed
	}
	if err := p.canWait(ctx); err != nil {
		p.busy.Done()
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.routes[queue]
	if r == nil {
		r = newRoute(p, queue)
		p.routes[queue] = r
	}
	return r, nil
}

// begin makes Close wait until busy.Done. It returns false if the producer is closed.
func (p *Producer) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.beginLocked()
}

func (p *Producer) beginLocked() bool {
	select {
	case <-p.closed:
		return false
	default:
	}
	p.busy.Add(1)
	return true
}

// Close refuses further calls, waits for those in flight, and clears their tokens in Redis (best effort, at most 2s;
// they expire after a minute or more anyway). It does not close the client.
func (p *Producer) Close() error {
	p.mu.Lock()
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	p.mu.Unlock()
	p.busy.Wait()
	p.forget.Do(p.forgetTokens)
	return nil
}

func (p *Producer) forgetTokens() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	for _, r := range p.routes {
		if r.state.IsFailing() { // a caller that closes soon after a failed try makes no other
			_, err := r.sync(ctx, r.producing)
			r.state.Report(err)
		}
		for _, l := range r.commits {
			if l != nil {
				l.clear(ctx, l.idle)
			}
		}
	}
}

// repeat calls try until it succeeds, fails for good, or RetryTimeout has passed since the given time. clean: no failed
// try can have been executed. If one can, and none succeeded, the error is ErrUncertain.
func (p *Producer) repeat(ctx context.Context, since time.Time, try func(context.Context) error) (clean bool, err error) {
	b := backoff.NewExponentialBackOff(backoff.WithInitialInterval(retryInitial), backoff.WithMaxInterval(retryMax),
		backoff.WithMaxElapsedTime(max(1, p.cfg.RetryTimeout-time.Since(since))))
	clean = true
	err = backoff.Retry(func() error {
		one, cancel := context.WithTimeout(ctx, p.try)
		defer cancel()
		err := try(one)
		if err == nil {
			return nil
		}
		if one.Err() != nil && ctx.Err() == nil { // the deadline of the try has passed, not the caller's
			err = fmt.Errorf("%w: no reply within %s", lua.ErrUnavailable, p.try)
		}
		clean = clean && !uncertain(err)
		if p.cfg.RetryTimeout < 0 || !lua.Temporary(err) || errors.Is(err, rueidis.ErrClosing) {
			return backoff.Permanent(err)
		}
		return err
	}, backoff.WithContext(b, ctx))
	if err != nil && !clean {
		err = joinUncertain(err)
	}
	return clean, err
}
