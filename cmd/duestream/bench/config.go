package bench

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

// Config holds the settings that all scenarios share. Redis, Prefix and Queue are required.
type Config struct {
	// Redis is the connection of both floor and product.
	Redis  *bridge.Redis
	Prefix string
	// Queue must be empty and used by nobody else. No other bridge may serve the prefix.
	Queue string

	// Messages is the number of messages in a round, for the floor and for the product. Default: by scenario.
	Messages int
	// Payload is the size of each message in bytes. Default 256; negative = empty.
	Payload int
	// Backlog is the number of messages that stay scheduled, due in two days, during the measurement. Default 0.
	Backlog int
	// Rounds is the number of rounds, each with the floor and the product. Default 5, unless the scenario has its
	// own.
	Rounds int
	// Concurrency is the number of messages that a worker holds. Default 1,000.
	Concurrency int

	// Progress, if set, gets the current step, and how much of it is done. It is called from several goroutines.
	Progress func(step string, done, of int)
}

// limits holds the lowest and highest value of each setting.
var limits = map[string][2]int{
	"messages": {1, 20_000_000}, "payload": {0, lua.MaxPayloadBytes}, "backlog": {0, 20_000_000}, "rounds": {1, 1000},
	"concurrency": {1, 10_000}, "callers": {1, 10_000}, "batch": {1, lua.MaxBatch}, "calls": {1, 20_000_000},
	"rate": {1, 1_000_000}, "rates": {1, 1_000_000},
	"queues": {1, 100_000}, "bridges": {1, 64}, "attempts": {1, 1000}, "flight": {chunk, 20_000_000},
}

// Limits of the duration of a round.
const (
	MinDuration = 100 * time.Millisecond
	MaxDuration = time.Hour
)

// Check refuses numbers outside the limits of a setting, as the scenarios do. The error is a *lua.InvalidError with
// the name of the setting.
func Check(setting string, numbers ...int) error {
	for _, n := range numbers {
		if l := limits[setting]; n < l[0] || n > l[1] {
			return lua.Invalid(setting, strconv.Itoa(n), "must be between %d and %d", l[0], l[1])
		}
	}
	return nil
}

// CheckDuration refuses a duration of a round outside 100ms to 1h.
func CheckDuration(d time.Duration) error {
	if d < MinDuration || d > MaxDuration {
		return lua.Invalid("duration", d.String(), "must be between %s and %s", MinDuration, MaxDuration)
	}
	return nil
}

func (c Config) withDefaults(messages, rounds int) Config {
	preset(map[*int]int{&c.Messages: messages, &c.Payload: 256, &c.Rounds: rounds, &c.Concurrency: 1000})
	c.Payload = max(0, c.Payload)
	if c.Progress == nil {
		c.Progress = func(string, int, int) {}
	}
	return c
}

// preset sets fields that are zero to their defaults.
func preset[T int | time.Duration](fields map[*T]T) {
	for field, value := range fields {
		if *field == 0 {
			*field = value
		}
	}
}

func (c Config) validate() error {
	if c.Redis == nil {
		return errors.New("no connection to Redis is given")
	}
	return errors.Join(lua.CheckPrefix(c.Prefix), lua.CheckQueue(c.Queue), Check("messages", c.Messages),
		Check("payload", c.Payload),
		Check("backlog", c.Backlog), Check("rounds", c.Rounds), Check("concurrency", c.Concurrency))
}

// step measures one side, floor or product, of one round. ctx can end it.
type step func(ctx context.Context) (float64, error)

// turns runs the rounds, each with the floor first and then the product.
func (c Config) turns(ctx context.Context, s *series, floor, product step) error {
	for round := range c.Rounds {
		low, err := c.one(ctx, s, "floor", round, floor)
		if err != nil {
			return err
		}
		high, err := c.one(ctx, s, "product", round, product)
		if err != nil {
			return err
		}
		s.pair(high, low)
	}
	return nil
}

func (c Config) one(ctx context.Context, s *series, side string, round int, do step) (float64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	c.Progress(s.figure.Name+" "+side, round, c.Rounds)
	return do(ctx)
}
