package bridge

import (
	"cmp"
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/planner"
	"github.com/duestream/duestream/scheduler/producer"
	"github.com/duestream/duestream/stream/await"
)

// ClientConfig configures a Client. Redis is required.
type ClientConfig struct {
	Redis  *Redis
	Prefix string // of all keys; default "duestream"

	// RetryTimeout is how long a call is repeated after temporary errors (a lost reply, a failover). A repeated call
	// never stores a message twice. Default 10s; negative = no repetition.
	RetryTimeout time.Duration

	// Durability is the confirmation that Schedule, Cancel and Reschedule wait for before they return nil: Accepted
	// (the default), Fsynced or Replicated(n). Concurrent calls share one wait. Without a confirmation within its
	// Timeout (2s by default) the error is a *NotDurableError, and the change was made all the same. The first call
	// checks that the server supports the level. If not, every call is refused before anything is sent: with
	// ErrUnsupported, or with ErrDenied if the user may not check.
	Durability Durability

	// AllowOldBridges accepts messages with an ordering key, recurrences and CancelRunning while a bridge is alive that
	// may not serve them, because it is of an earlier release. By default these calls are then refused with
	// ErrOldBridge. The check costs one small read every 5s.
	AllowOldBridges bool

	// Middleware wraps every call of Send, Schedule, SendBatch and Kind.Schedule, the first one outermost. It does not
	// see the occurrences of recurrences, because bridges schedule them. It does not see messages that operators import
	// or redrive either.
	Middleware []SendMiddleware

	Name     string       // name of this client in the histories of queues; default: "client", host and process
	Observer Observer     // gets events and durations of this client; nil = none
	Logger   *slog.Logger // nil = discard
}

// Client schedules, cancels and reschedules messages. It is safe for concurrent use: concurrent calls share a round
// trip. Close it before its Redis. To find a message use admin.Admin.Locate, which needs the rights of an operator.
type Client struct {
	producer     *producer.Producer
	planner      *planner.Planner
	sender       Sender // the producer in the middleware; nil = there is no middleware
	retryTimeout time.Duration
	closed       atomic.Bool
	waiter       *await.Waiter
}

// Durability is the confirmation that a write waits for: see [lua.Durability].
type Durability = lua.Durability

// Durability levels. With Accepted, a crash loses writes that the append-only file had not yet brought to disk, and a
// failover loses writes that the new master had not yet received. Fsynced and Replicated may be combined:
// Durability{Fsync: true, Replicas: 1}.
var (
	Accepted = Durability{}            // the server has executed the write
	Fsynced  = Durability{Fsync: true} // the append-only file with the write is on disk; needs Redis 7.2 or Valkey
)

// ParseDurability reads "accepted", "fsynced", "replicated=2", or "fsynced,replicated=2".
func ParseDurability(text string) (Durability, error) { return lua.ParseDurability(text) }

// Replicated returns a Durability that waits until the given number of replicas hold the write in memory.
func Replicated(replicas int) Durability { return Durability{Replicas: replicas} }

// NewClient checks the configuration; the error names all its faults, each an *InvalidError. Redis is not touched
// before the first call of a method.
func NewClient(cfg ClientConfig) (*Client, error) {
	cfg.Prefix = withPrefix(cfg.Prefix)
	redis, _ := cfg.Redis.observed(cfg.Observer)
	p, err := producer.New(producer.Config{
		Client: redis, Prefix: cfg.Prefix, RetryTimeout: cfg.RetryTimeout,
		Durability: cfg.Durability, Name: cfg.Name, Observer: cfg.Observer, Logger: cfg.Logger,
		AllowOldBridges: cfg.AllowOldBridges,
	})
	c := &Client{producer: p}
	faults := []error{err}
	if len(cfg.Middleware) > 0 {
		wrapped, wrong := chain(c.store, cfg.Middleware)
		c.sender, faults = wrapped, append(faults, wrong...)
	}
	if err := lua.Faults("client", faults...); err != nil {
		return nil, err
	}
	c.retryTimeout = cmp.Or(max(cfg.RetryTimeout, -1), producer.DefaultRetryTimeout)
	c.waiter = await.NewWaiter(redis, cfg.Prefix)
	c.planner = planner.New(redis, cfg.Prefix, cfg.Name, cfg.Logger)
	if cfg.AllowOldBridges {
		c.planner = c.planner.AllowOldBridges()
	}
	return c, nil
}

func withPrefix(prefix string) string {
	if prefix == "" {
		return lua.DefaultPrefix
	}
	return prefix
}

// NewMessage is a message to schedule, as Send takes it; each Option sets one field: see [producer.Message].
type NewMessage = producer.Message

// Receipt is the ID and the due time of a stored message: see [producer.Receipt].
type Receipt = producer.Receipt

// Result is the answer to one message of a batch, a Receipt or an error: see [producer.Result].
type Result = producer.Result

// Option sets one field of the message that Schedule sends. For a message with all its fields use Client.Send.
type Option func(*NewMessage)

// apply sets the fields of a message. A nil option makes the message invalid.
func apply(m *NewMessage, options []Option) {
	for _, set := range options {
		if set == nil {
			m.Refuse("option", "nil", "must be an Option")
			continue
		}
		set(m)
	}
}

// In makes the message due d after the server stores it: 0 (the default: now) to ten years, in whole milliseconds.
func In(d time.Duration) Option { return func(m *NewMessage) { m.Delay = d } }

// At makes the message due at t, by the server's clock. A time in the past means now. The zero time is refused.
func At(t time.Time) Option {
	return func(m *NewMessage) {
		if t.IsZero() {
			m.Refuse("at", "zero time", "must be a time; without At and In the message is due now")
		}
		m.At = t
	}
}

// Spread delays the message by a further 0 to d, chosen by hashing its ID. So the due times of many messages for one
// instant are spread evenly over d, and a message that is scheduled again gets the same further delay. d is up to ten
// years, in whole milliseconds.
func Spread(d time.Duration) Option { return func(m *NewMessage) { m.Spread = d } }

// WithID names the message: 1 to 256 bytes of UTF-8 without control characters. While a message with this ID is
// scheduled, another message with the ID is refused with ErrDuplicate, whatever its ordering key. In a queue with
// several partitions two messages with one ID may both be stored in two cases: for some seconds after partitions were
// added, and by concurrent calls with different ordering keys. Default: a new ULID.
func WithID(id string) Option {
	return func(m *NewMessage) {
		if id == "" {
			m.Refuse("id", id, "must not be empty; without WithID the message gets a new ID")
		}
		m.ID = id
	}
}

// Header adds a header. Names and values are UTF-8.
func Header(name, value string) Option {
	return func(m *NewMessage) {
		if m.Headers == nil {
			m.Headers = map[string]string{}
		}
		m.Headers[name] = value
	}
}

// MaxAttempts limits how often the message is delivered to a group before it is dead-lettered: 1 to 1,000,000. Default:
// the policy of the queue.
func MaxAttempts(n int) Option {
	return func(m *NewMessage) {
		if n == 0 {
			m.Refuse("max attempts", "0", "must be at least 1; without MaxAttempts the policy of the queue counts")
		}
		m.MaxAttempts = n
	}
}

// Delays lists the delays after failed attempts. The last delay repeats: see [lua.Delays].
type Delays = lua.Delays

// NewDelays returns a list of delays.
func NewDelays(all ...time.Duration) Delays { return lua.NewDelays(all...) }

// RetryDelays sets the exact delays after the message's failed attempts, without jitter. The last delay repeats, so a
// single delay applies to all attempts. 1 to 100 delays of 1 ms to ten years each. Default: the policy of the queue.
func RetryDelays(all ...time.Duration) Option {
	return func(m *NewMessage) { m.RetryDelays = NewDelays(all...) }
}

// RetryFor limits retries to the time d after the message's due time. If the next retry would be later, the message
// becomes a dead letter with reason "retry_for". d is up to ten years. Default: the policy of the queue.
func RetryFor(d time.Duration) Option { return func(m *NewMessage) { m.RetryFor = d } }

// MaxSnoozes limits how often a group may snooze the message: 1 to 1,000,000. With the next snooze the message becomes
// a dead letter with reason "max_snoozes". Default: the policy of the queue, or 1,000 if the policy sets no limit.
func MaxSnoozes(n int) Option {
	return func(m *NewMessage) {
		if n == 0 {
			m.Refuse("max snoozes", "0", "must be at least 1; without MaxSnoozes the policy of the queue counts")
		}
		m.MaxSnoozes = n
	}
}

// MaxCrashes limits how often workers of a group may abandon the message because they end or hang: 1 to 1,000,000. When
// the message is abandoned for the n-th time, it becomes a dead letter with reason "crashes". If there is a limit, an
// abandoned delivery does not count as a failed attempt. Default: the policy of the queue.
func MaxCrashes(n int) Option {
	return func(m *NewMessage) {
		if n == 0 {
			m.Refuse("max crashes", "0", "must be at least 1; without MaxCrashes the policy of the queue counts")
		}
		m.MaxCrashes = n
	}
}

// HandlerTimeout limits how long the message's handler may take. After that time the attempt fails with reason
// "handler_timeout". Up to ten years. Default: the policy of the queue, or else WorkerConfig.HandlerTimeout.
func HandlerTimeout(d time.Duration) Option {
	return func(m *NewMessage) { m.HandlerTimeout = d }
}

// ExpiresAt dead-letters the message with reason "expired", instead of delivering it, if it becomes ready after t by
// the server's clock. For a time counted from now use ExpiresIn: this machine's clock may differ from the server's.
// The zero time is refused.
func ExpiresAt(t time.Time) Option {
	return func(m *NewMessage) {
		if t.IsZero() {
			m.Refuse("expires", "zero time", "must be a time; without ExpiresAt and ExpiresIn the message never expires")
		}
		m.Expires = t
	}
}

// ExpiresIn is ExpiresAt with a time counted from now by the server's clock. It takes one more round trip. d must be
// longer than In and Spread together; up to ten years.
func ExpiresIn(d time.Duration) Option { return func(m *NewMessage) { m.ExpiresIn = d } }

// Dedup refuses further messages with the same ID for the time d from now, with ErrDuplicate, even after this message
// was delivered. d is up to ten years. It needs WithID.
func Dedup(d time.Duration) Option { return func(m *NewMessage) { m.Dedup = d } }

// Key sets the ordering key: messages of a queue with the same ordering key are delivered one at a time, in the order
// of their due times. Messages with other keys do not wait for them. The next message becomes ready when the message
// before it was acknowledged by every group, cancelled or dead-lettered. The policy's KeyFailure decides whether the
// next message also waits for retries. 1 to 256 bytes of UTF-8 without control characters.
func Key(key string) Option {
	return func(m *NewMessage) {
		if key == "" {
			m.Refuse("key", key, "must not be empty; without Key the message waits for no other")
		}
		m.Key = key
	}
}

// Replace replaces the scheduled message that has the same ID: payload, headers and due time. So many changes in a
// short time leave one message (debounce). If no message with the ID is scheduled, the message is stored as a new one.
// Replace needs WithID, and no Dedup. A message with another ordering key is replaced as well; the new message waits
// behind the messages of its own key.
func Replace(m *NewMessage) { m.Replace = lua.Replace }

// ReplaceLater is Replace if the new due time is later than that of the scheduled message, else ErrDuplicate.
func ReplaceLater(m *NewMessage) { m.Replace = lua.ReplaceLater }

// ReplaceEarlier is Replace if the new due time is earlier than that of the scheduled message, else ErrDuplicate.
func ReplaceEarlier(m *NewMessage) { m.Replace = lua.ReplaceEarlier }

// Send stores one message. Once it returns nil, the message will be delivered at least once to every group of the
// queue, unless it is cancelled or dead-lettered.
//
// With ErrInvalid, ErrDuplicate, ErrFull, ErrDenied, ErrOldBridge or ErrUnsupported the message was not stored.
// ErrUnsupported means that the server cannot give the Durability. With ErrNotDurable the message was stored. With
// ErrUnavailable, or the error of the context, the message may have been stored.
//
// With ClientConfig.Middleware, the error may also be one of the middleware.
func (c *Client) Send(ctx context.Context, queue string, m NewMessage) (Receipt, error) {
	if c.sender == nil {
		return c.producer.Schedule(ctx, queue, m)
	}
	results, err := c.sendThrough(ctx, queue, []NewMessage{m})
	if err != nil {
		return Receipt{}, err
	}
	return results[0].Receipt, results[0].Err
}

// Schedule is Send for a message that is given as a payload and options. Each Option sets one field of a NewMessage.
func (c *Client) Schedule(ctx context.Context, queue string, payload []byte, options ...Option) (Receipt, error) {
	m := NewMessage{Payload: payload}
	apply(&m, options)
	return c.Send(ctx, queue, m)
}

// SendBatch is Send for many messages. It returns one result for each message, in their order. If the error is not nil,
// no message was stored, unless it is an error of the middleware. The batch is not atomic.
func (c *Client) SendBatch(ctx context.Context, queue string, messages []NewMessage) ([]Result, error) {
	if c.sender != nil {
		return c.sendThrough(ctx, queue, messages)
	}
	return c.store(ctx, queue, messages)
}

func (c *Client) store(ctx context.Context, queue string, messages []NewMessage) ([]Result, error) {
	return c.producer.ScheduleBatch(ctx, queue, messages)
}

// ScheduleBatch is the former name of SendBatch.
func (c *Client) ScheduleBatch(ctx context.Context, queue string, messages []NewMessage) ([]Result, error) {
	return c.SendBatch(ctx, queue, messages)
}

// Close refuses new calls with ErrClosed, and waits for calls in flight.
func (c *Client) Close() error {
	c.closed.Store(true)
	return c.producer.Close()
}
