package once

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// Defaults of a RedisConfig.
const (
	// DefaultHold is RedisConfig.Hold if it is zero.
	DefaultHold = time.Minute
	// DefaultKeep is RedisConfig.Keep if it is zero.
	DefaultKeep = 7 * 24 * time.Hour
)

// answerTimeout is the time for which an attempt tries to claim an effect, or to record it. It is longer than a
// failover usually takes: an attempt that cannot claim fails, and an effect that is not recorded is repeated.
const answerTimeout = 30 * time.Second

// ErrStale means that the claim of an attempt ended too early: the effect took longer than RedisConfig.Hold, and
// another attempt has claimed it since; or the attempt was paused for longer than Hold before its effect began. It is
// also the cause of the context of an effect that runs for longer than Hold.
var ErrStale = errors.New("once: the claim has ended, and another attempt may have the effect")

// RedisConfig configures a Redis.
type RedisConfig struct {
	// Redis is the server of the queues. Required.
	Redis *bridge.Redis
	// Prefix is the prefix of the worker. Default lua.DefaultPrefix.
	Prefix string
	// Hold is the longest time for which one attempt may hold the claim, 1 s to 24 h. The context of the effect ends
	// then. Too low, and effects are cut off; too high, and a message waits for long after its worker died. Default
	// DefaultHold.
	Hold time.Duration
	// Keep is the time for which a record stays after its last change, longer than Hold, at most 10 years. If a message
	// comes again later, its effect is repeated. So Keep must be longer than all retries, snoozes and redrives of a
	// message take. Each record takes about 240 bytes of Redis for that time: at 100 messages a second, 15 GB in a week.
	// Default DefaultKeep.
	Keep time.Duration
	// Key returns the text that identifies a message within its queue and group, as Config.Key does. It need not be
	// UTF-8. Default: the message ID.
	Key func(m *bridge.Message) string
}

// Redis records effects in Redis, for effects that are not in a database. It is safe for concurrent use.
//
// An attempt claims the effect, calls it, and records that it happened. Meanwhile other attempts wait. If the process
// dies after the effect and before the record, the effect is repeated: no record in another system can prevent this.
// The fencing token helps the system in which the effect happens: see Do.
type Redis struct {
	cfg RedisConfig
}

// NewRedis checks the configuration; the error names all its faults, each a *bridge.InvalidError. It sends nothing.
func NewRedis(cfg RedisConfig) (*Redis, error) {
	if cfg.Prefix == "" {
		cfg.Prefix = lua.DefaultPrefix
	}
	if cfg.Hold == 0 {
		cfg.Hold = DefaultHold
	}
	if cfg.Keep == 0 {
		cfg.Keep = DefaultKeep
	}
	if cfg.Key == nil {
		cfg.Key = func(m *bridge.Message) string { return m.ID }
	}
	faults := []error{lua.CheckPrefix(cfg.Prefix), lua.Between("hold", cfg.Hold, time.Second, lua.MaxHold),
		lua.Between("keep", cfg.Keep, cfg.Hold+time.Millisecond, 10*365*24*time.Hour)}
	if cfg.Redis == nil || cfg.Redis.Client == nil {
		faults = append(faults, lua.Invalid("redis", "", "is missing"))
	}
	if err := lua.Faults("once", faults...); err != nil {
		return nil, err
	}
	return &Redis{cfg: cfg}, nil
}

// Do calls effect unless it happened in an earlier delivery of the message to the group. It returns whether effect was
// called. Return the error from the handler:
//
//   - nil: the effect happened, now or earlier, and is recorded.
//   - A bridge.Snooze: another attempt holds the claim. The message comes again when that claim ends, and no attempt is
//     counted.
//   - The error of effect: the claim was given back, and the next attempt calls effect again.
//   - ErrStale: effect returned nil, but another attempt has claimed it since. Or effect was not called, because the
//     attempt was paused for longer than Hold. The next attempt calls effect, unless it is recorded by then.
//   - Another error: Redis refused the call, or did not answer for 30 s. If effect was called and returned nil, it is
//     unknown whether this is recorded, so the effect may be repeated.
//
// Do takes two round trips, or one if it does not call effect.
//
// The token of an attempt is above the tokens of all earlier attempts for the record. A store of the program can
// remember the highest token for each message, and refuse a write with a lower one, in one atomic step. A process that
// was paused for longer than Hold then changes nothing. Tokens fit into 53 bits. They also grow after the record is
// gone, unless the clock of the server was set back, or another server with a clock that is behind took over.
//
// The context of effect ends after Hold, with the cause ErrStale. An effect that goes on after that may run at the same
// time as the effect of the next attempt.
//
// Do stores no result: if called is false, call Message.SetResult outside of effect.
func (r *Redis) Do(ctx context.Context, m *bridge.Message,
	effect func(ctx context.Context, token int64) error) (called bool, err error) {
	text := r.cfg.Key(m)
	if len(text) == 0 || len(text) > 1000 || strings.ContainsRune(text, 0) {
		return false, lua.Invalid("key", text, "must be 1 to 1,000 bytes without NUL")
	}
	if err := errors.Join(lua.CheckQueue(m.Queue), lua.CheckGroup(m.Group)); err != nil {
		return false, fmt.Errorf("once: %w", err)
	}
	c := claim{client: r.cfg.Redis.Client, keep: r.cfg.Keep, claimer: rand.Text(), subject: m.Queue + "/" + m.ID,
		key: lua.NewKeys(r.cfg.Prefix, m.Queue).Once(m.Group, text)}
	var began time.Time
	var held time.Duration
	err = untilAnswered(ctx, func(ctx context.Context) (err error) {
		began = time.Now()
		c.token, held, err = lua.Claim(ctx, c.client, c.key, c.claimer, r.cfg.Hold, r.cfg.Keep)
		return err
	})
	switch {
	case err != nil:
		return false, fmt.Errorf("once: claim %s: %w", c.subject, err)
	case held > 0:
		return false, bridge.Snooze(held)
	case c.token == 0:
		return false, nil
	}
	// Hold is counted from before the claim, so the effect ends before the claim does.
	effectCtx, cancel := context.WithDeadlineCause(ctx, began.Add(r.cfg.Hold), ErrStale)
	defer cancel()
	happened := false
	defer func() {
		if happened {
			return
		}
		if failure := c.giveBack(ctx); failure != nil { // also if effect panics
			err = errors.Join(err, failure)
		}
	}()
	// After a pause of the process, the timer of the context may not have ended it yet.
	if deadline, _ := effectCtx.Deadline(); time.Until(deadline) <= 0 {
		return false, ErrStale
	}
	if err := effect(effectCtx, c.token); err != nil {
		return true, err
	}
	happened = true
	return true, c.record(ctx)
}

// Handler returns a handler that calls handle once for each message and group, within the limits of Do.
func (r *Redis) Handler(handle func(ctx context.Context, token int64, m *bridge.Message) error) bridge.Handler {
	return func(ctx context.Context, m *bridge.Message) error {
		_, err := r.Do(ctx, m, func(ctx context.Context, token int64) error { return handle(ctx, token, m) })
		return err
	}
}

// claim is the claim of one attempt.
type claim struct {
	client  rueidis.Client
	key     string
	claimer string
	token   int64
	keep    time.Duration
	subject string // queue and message ID, for errors
}

// record records that the effect happened, also if the context of the handler has ended.
func (c claim) record(ctx context.Context) error {
	var isLast bool
	err := untilAnswered(context.WithoutCancel(ctx), func(ctx context.Context) (err error) {
		isLast, err = lua.EndClaim(ctx, c.client, c.key, c.claimer, c.token, true, c.keep)
		return err
	})
	if err != nil {
		return fmt.Errorf("once: record %s: %w", c.subject, err)
	}
	if !isLast {
		return ErrStale
	}
	return nil
}

// giveBack tries once, because the claim ends by itself.
func (c claim) giveBack(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loop.CallTimeout)
	defer cancel()
	if _, err := lua.EndClaim(ctx, c.client, c.key, c.claimer, c.token, false, c.keep); err != nil {
		return fmt.Errorf("once: give back the claim of %s: %w", c.subject, err)
	}
	return nil
}

// untilAnswered repeats a call while Redis does not answer, for answerTimeout at most. A call ends after
// loop.CallTimeout.
func untilAnswered(ctx context.Context, call func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	pause := loop.NewBackoff(time.Second)
	for {
		callCtx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		err := call(callCtx)
		cancel()
		unanswered := errors.Is(err, lua.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
		if !unanswered || !loop.Sleep(ctx, pause.NextBackOff()) {
			return err
		}
	}
}
