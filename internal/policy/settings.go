package policy

import (
	"time"

	"github.com/duestream/duestream/lua"
)

// Built-in values of a Policy, for settings that neither the queue nor duestream:defaults has.
const (
	DefaultVisibilityTimeout = 30 * time.Second
	DefaultMaxAttempts       = 40 // with the delays below: about a day
	DefaultRetryMin          = time.Second
	DefaultRetryMax          = time.Hour
	DefaultHistoryAge        = 24 * time.Hour
)

// Limits of a Policy.
const (
	MinVisibilityTimeout = 100 * time.Millisecond
	MaxVisibilityTimeout = 7 * 24 * time.Hour
	MinRetryDelay        = time.Millisecond
	MaxHistory           = 10_000_000
	MaxReadyLimit        = 1_000_000_000
	MinHistoryAge        = time.Minute
	MaxHistoryAge        = 90 * 24 * time.Hour
)

// Names of the settings in a policy hash; values are integers, durations in ms. A group's own settings are prefixed
// with `group:<percent-encoded group>:`.
const (
	SettingVisibility  = "visibility_ms"
	SettingMaxAttempts = "max_attempts"
	SettingRetryMin    = "retry_min_ms"
	SettingRetryMax    = "retry_max_ms"
	SettingRetryDelays = "retry_delays_ms" // a list with commas between; 0 = none
	SettingRetryFor    = "retry_for_ms"    // 0 = no limit
	SettingMaxSnoozes  = "max_snoozes"     // 0 = 1,000
	SettingMaxCrashes  = "max_crashes"     // 0 = a crash is a failed attempt

	SettingHandlerTimeout = "handler_timeout_ms" // 0 = by the configuration of each worker

	// Only for a whole queue:
	SettingHeld        = "held"         // 1 = held
	SettingHeldWorkers = "held_workers" // 1 = workers take nothing new
	SettingRate        = "rate"         // how many become ready per unit of time: 500/s, 30/m, 1/h; 0 = no limit
	SettingBurst       = "burst"        // how many become ready at once; 0 = as many as in a tenth of a second
	SettingFreeRetries = "free_retries" // 1 = retries are not subject to the rate
	SettingReadyLimit  = "ready_limit"  // how many may wait for the slowest group; 0 = no limit
	SettingHistory     = "history"      // how many changes of state the history keeps, in each partition; 0 = none
	SettingHistoryAge  = "history_ms"   // how long the history keeps changes of state
	SettingKeyFailure  = "key_failure"  // block or skip
)

// Policy is the set of rules for one group of a queue. It is stored in Redis: a setting that a queue lacks comes from
// the defaults of the prefix, which a bridge can write at its start. Policy is comparable. Get one from Read or
// Default: the zero value is invalid.
type Policy struct {
	// VisibilityTimeout is how long an entry may stay pending without an extension before it counts as abandoned: 100ms
	// to 7 days. It must exceed the handling time of workers that do not extend. Too low: a message is given to a
	// second worker while the first one still handles it. Too high: messages of a dead worker wait that long.
	VisibilityTimeout time.Duration

	// MaxAttempts is the number of deliveries to a group before a message is dead-lettered, unless the message sets its
	// own: 1 to 1,000,000.
	MaxAttempts int

	// RetryMin is the approximate delay after the first failed attempt. Each further delay is about twice the one
	// before, jittered by half. From 1ms.
	RetryMin time.Duration

	// RetryMax is the greatest delay; at least RetryMin, at most ten years.
	RetryMax time.Duration

	// RetryDelays, when set, replace the delays from RetryMin to RetryMax, without jitter: the n-th delay follows the
	// n-th failed attempt, and the last delay follows all further attempts. A single delay is a fixed delay. See
	// lua.NewDelays.
	RetryDelays lua.Delays

	// RetryFor is how long a message is retried, from its first due time. A retry that would be due later makes a dead
	// letter "retry_for" instead. Zero is no limit; at most ten years.
	RetryFor time.Duration

	// MaxSnoozes is how often a group may snooze a message; one more makes a dead letter "max_snoozes". Zero is 1,000;
	// at most 1,000,000.
	MaxSnoozes int

	// MaxCrashes, when set, counts abandoned deliveries (the worker ended or hung, and the visibility timeout passed)
	// apart from failures. Such a message is delivered again with the same attempt; the delivery that reaches
	// MaxCrashes makes a dead letter "crashes". Zero: an abandoned delivery is a failed attempt. At most 1,000,000.
	MaxCrashes int

	// HandlerTimeout is the time limit of a handler. After that time the handler's context is cancelled, and its
	// attempt fails with reason "handler_timeout". Zero: each worker's own HandlerTimeout, by default no limit. At most
	// ten years. Workers apply a change to running handlers. Too low: work is cut short. Too high: a handler that hangs
	// keeps its message, its slot and its key for that long.
	HandlerTimeout time.Duration

	// Held pauses the queue for all groups: messages do not become ready. Ready messages are delivered.
	Held bool

	// HeldWorkers pauses the workers of all groups: they take nothing new, and finish the messages that they hold.
	HeldWorkers bool

	// Rate is how many messages become ready per second, minute or hour, evenly; empty is no limit. Each partition of a
	// queue has its own token bucket.
	Rate lua.Rate

	// Burst is the size of the token bucket: how many messages may become ready at once after a pause; at most
	// 1,000,000. No second has more than Rate and Burst together. Zero is the rate of a tenth of a second, at least
	// one. A burst of less than 50 ms of the rate makes the queue slower while another bridge takes over.
	Burst int

	// FreeRetries exempts retries and redriven dead letters from the Rate: they become ready when due, and use no
	// token.
	FreeRetries bool

	// ReadyLimit is the backlog of the slowest group at which messages stay scheduled. Each partition has the limit for
	// itself. Retries and redriven dead letters become ready all the same. Zero is no limit; at most 1,000,000,000.
	ReadyLimit int

	// History is how many changes of state the history of the queue keeps, in each partition. It keeps the newest ones,
	// up to about a hundred more than this number, and none much older than HistoryAge. Zero, the built-in value, is no
	// history; at most 10,000,000.
	History int

	// HistoryAge is how long the history keeps changes of state: 1 minute to 90 days.
	HistoryAge time.Duration

	// KeyFailure decides whether the next message of an ordering key waits for a retry of the message before it. Empty
	// is KeyBlock.
	KeyFailure KeyFailure
}

// Update holds the settings to change; nil fields stay as they are. Clear names settings (the Setting constants)
// to remove, so that the next level is in force again.
type Update struct {
	VisibilityTimeout *time.Duration
	MaxAttempts       *int
	RetryMin          *time.Duration
	RetryMax          *time.Duration
	RetryDelays       *lua.Delays
	RetryFor          *time.Duration
	MaxSnoozes        *int
	MaxCrashes        *int
	HandlerTimeout    *time.Duration
	Held              *bool
	HeldWorkers       *bool
	Rate              *lua.Rate
	Burst             *int
	FreeRetries       *bool
	ReadyLimit        *int
	History           *int
	HistoryAge        *time.Duration
	KeyFailure        *KeyFailure
	Clear             []string
}

// settings is the table of all settings, in the order in which they are shown. A new setting needs a name above, a
// field in Policy and in Update, and a row here. Readers, checks, JSON, commands, variables, HTTP and reference follow
// it.
var settings = []Setting{
	{
		Name: SettingVisibility, Word: "visibility_timeout",
		Low: MinVisibilityTimeout.Milliseconds(), High: MaxVisibilityTimeout.Milliseconds(),
		Meaning: "how long an entry may stay pending without being extended before it counts as abandoned",
		place: duration(func(p *Policy) *time.Duration { return &p.VisibilityTimeout },
			func(u *Update) **time.Duration { return &u.VisibilityTimeout }),
	},
	{
		Name: SettingMaxAttempts, Word: "max_attempts", Low: 1, High: lua.MaxAttemptsLimit,
		Meaning: "deliveries to a group before a dead letter, unless the message has a limit of its own",
		place:   count(func(p *Policy) *int { return &p.MaxAttempts }, func(u *Update) **int { return &u.MaxAttempts }),
	},
	{
		Name: SettingRetryMin, Word: "retry_min", Low: MinRetryDelay.Milliseconds(), High: lua.MaxDelay.Milliseconds(),
		Meaning: "delay after the first failed attempt; each further delay is about twice the one before, " +
			"jittered by half",
		place: duration(func(p *Policy) *time.Duration { return &p.RetryMin },
			func(u *Update) **time.Duration { return &u.RetryMin }),
	},
	{
		Name: SettingRetryMax, Word: "retry_max", Low: MinRetryDelay.Milliseconds(), High: lua.MaxDelay.Milliseconds(),
		Meaning: "longest delay between attempts; at least retry_min_ms",
		place: duration(func(p *Policy) *time.Duration { return &p.RetryMax },
			func(u *Update) **time.Duration { return &u.RetryMax }),
	},
	{
		Name: SettingRetryDelays, Word: "retry_delays", Optional: true,
		Meaning: "exact delays after failed attempts, instead of those from retry_min_ms to retry_max_ms; " +
			"the last one repeats",
		Zero: "none",
		place: text(Delays, func(p *Policy) *lua.Delays { return &p.RetryDelays },
			func(u *Update) **lua.Delays { return &u.RetryDelays }),
	},
	{
		Name: SettingRetryFor, Word: "retry_for", High: lua.MaxDelay.Milliseconds(), Optional: true,
		Meaning: "how long a message is tried, from its first due time on: no retry is due later", Zero: "no limit",
		place: duration(func(p *Policy) *time.Duration { return &p.RetryFor },
			func(u *Update) **time.Duration { return &u.RetryFor }),
	},
	{
		Name: SettingMaxSnoozes, Word: "max_snoozes", High: lua.MaxAttemptsLimit, Optional: true,
		Meaning: "how often a group may snooze a message", Zero: "1000 times",
		place: count(func(p *Policy) *int { return &p.MaxSnoozes }, func(u *Update) **int { return &u.MaxSnoozes }),
	},
	{
		Name: SettingMaxCrashes, Word: "max_crashes", High: lua.MaxAttemptsLimit, Optional: true,
		Meaning: "how often the workers of a group may abandon a message, counted apart from failures; the last time " +
			"makes a dead letter",
		Zero:  "each time is a failed attempt",
		place: count(func(p *Policy) *int { return &p.MaxCrashes }, func(u *Update) **int { return &u.MaxCrashes }),
	},
	{
		Name: SettingHandlerTimeout, Word: "handler_timeout", High: lua.MaxDelay.Milliseconds(), Optional: true,
		Meaning: "how long a handler may take before its attempt fails",
		Zero:    "each worker's own limit counts, and by default there is none",
		place: duration(func(p *Policy) *time.Duration { return &p.HandlerTimeout },
			func(u *Update) **time.Duration { return &u.HandlerTimeout }),
	},
	{
		Name: SettingHeld, Word: "held", High: 1, WholeQueue: true,
		Meaning: "scheduled messages do not become ready",
		place:   onOff(func(p *Policy) *bool { return &p.Held }, func(u *Update) **bool { return &u.Held }),
	},
	{
		Name: SettingHeldWorkers, Word: "held_workers", High: 1, WholeQueue: true, Optional: true,
		Meaning: "workers take no new messages",
		place: onOff(func(p *Policy) *bool { return &p.HeldWorkers },
			func(u *Update) **bool { return &u.HeldWorkers }),
	},
	{
		Name: SettingRate, Word: "rate", WholeQueue: true, Optional: true,
		Meaning: "how many messages become ready in a second, a minute or an hour", Zero: "no limit",
		place: text(Rate, func(p *Policy) *lua.Rate { return &p.Rate }, func(u *Update) **lua.Rate { return &u.Rate }),
	},
	{
		Name: SettingBurst, Word: "burst", High: lua.MaxBurst, WholeQueue: true, Optional: true,
		Meaning: "how many messages may become ready at once after a quiet time",
		Zero:    "those of a tenth of a second, at least one",
		place:   count(func(p *Policy) *int { return &p.Burst }, func(u *Update) **int { return &u.Burst }),
	},
	{
		Name: SettingFreeRetries, Word: "free_retries", High: 1, WholeQueue: true, Optional: true,
		Meaning: "retries and redriven dead letters are not subject to the rate",
		place: onOff(func(p *Policy) *bool { return &p.FreeRetries },
			func(u *Update) **bool { return &u.FreeRetries }),
	},
	{
		Name: SettingReadyLimit, Word: "ready_limit", High: MaxReadyLimit, WholeQueue: true, Optional: true,
		Meaning: "messages stay scheduled while so many entries are ready that the slowest group has not been given; " +
			"retries pass",
		Zero:  "no limit",
		place: count(func(p *Policy) *int { return &p.ReadyLimit }, func(u *Update) **int { return &u.ReadyLimit }),
	},
	{
		Name: SettingHistory, Word: "history", High: MaxHistory, WholeQueue: true,
		Meaning: "how many changes of state the history keeps", Zero: "there is no history",
		place: count(func(p *Policy) *int { return &p.History }, func(u *Update) **int { return &u.History }),
	},
	{
		Name: SettingHistoryAge, Word: "history_age", WholeQueue: true,
		Low: MinHistoryAge.Milliseconds(), High: MaxHistoryAge.Milliseconds(),
		Meaning: "how long the history keeps them",
		place: duration(func(p *Policy) *time.Duration { return &p.HistoryAge },
			func(u *Update) **time.Duration { return &u.HistoryAge }),
	},
	{
		Name: SettingKeyFailure, Word: "key_failure", WholeQueue: true, Optional: true,
		Words: []string{string(KeyBlock), string(KeySkip)},
		Meaning: "block: messages with a key wait for the retries of the message before them; " +
			"skip: they go on while a retry waits",
		place: text(Word, func(p *Policy) *KeyFailure { return &p.KeyFailure },
			func(u *Update) **KeyFailure { return &u.KeyFailure }),
	},
}
