package bench

import (
	"cmp"
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

	// Progress, if set, gets the current step, and how much of the step is done. Several goroutines call it.
	Progress func(step string, done, total int)
}

// limits holds the lowest and the highest value of each setting.
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
	c.Messages, c.Rounds = cmp.Or(c.Messages, messages), cmp.Or(c.Rounds, rounds)
	c.Concurrency = cmp.Or(c.Concurrency, 1000)
	c.Payload = max(0, cmp.Or(c.Payload, 256))
	if c.Progress == nil {
		c.Progress = func(string, int, int) {}
	}
	return c
}

func (c Config) validate() error {
	if c.Redis == nil {
		return errors.New("no connection to Redis is given")
	}
	return errors.Join(lua.CheckPrefix(c.Prefix), lua.CheckQueue(c.Queue), Check("messages", c.Messages),
		Check("payload", c.Payload),
		Check("backlog", c.Backlog), Check("rounds", c.Rounds), Check("concurrency", c.Concurrency))
}

// rounds calls round once for each round, and shows step as the progress.
func (c Config) rounds(step string, round func() error) error {
	for i := range c.Rounds {
		c.Progress(step, i, c.Rounds)
		if err := round(); err != nil {
			return err
		}
	}
	return nil
}

// measurement measures one side, floor or product, of one round.
type measurement func(ctx context.Context) (float64, error)

// turns runs the rounds, each with the floor first and then the product.
func (c Config) turns(ctx context.Context, s *series, floor, product measurement) error {
	for round := range c.Rounds {
		floorValue, err := c.measure(ctx, s.figure.Name+" floor", round, floor)
		if err != nil {
			return err
		}
		value, err := c.measure(ctx, s.figure.Name+" product", round, product)
		if err != nil {
			return err
		}
		s.pair(value, floorValue)
	}
	return nil
}

func (c Config) measure(ctx context.Context, step string, round int, m measurement) (float64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	c.Progress(step, round, c.Rounds)
	return m(ctx)
}
