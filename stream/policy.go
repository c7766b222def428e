package stream

import (
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/duestream/duestream/internal/view"
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
	SettingBurst       = "burst"        // how many become ready at once; 0 = the rate of a tenth of a second
	SettingFreeRetries = "free_retries" // 1 = retries are not subject to the rate
	SettingReadyLimit  = "ready_limit"  // how many may wait for the slowest group; 0 = no limit
	SettingHistory     = "history"      // how many changes of state the history keeps, in each partition; 0 = none
	SettingHistoryAge  = "history_ms"   // how long it keeps them
	SettingKeyFailure  = "key_failure"  // block or skip
)

// Policy is the set of rules for one group of a queue. It is stored in Redis: a setting that a queue lacks comes from
// the defaults of the prefix, which a bridge can write at its start. Policy is comparable. Get one from ReadPolicy or
// DefaultPolicy: the zero value is invalid.
type Policy struct {
	// VisibilityTimeout is how long an entry may stay pending without an extension before it counts as abandoned: 100ms
	// to 7 days. It must exceed the handling time of workers that do not extend. Too low: a message is given to a
	// second worker while the first one still handles it. Too high: messages of a dead worker wait that long.
	VisibilityTimeout time.Duration

	// MaxAttempts is the number of deliveries to a group before a message is dead-lettered, unless the message sets its
	// own: 1 to 1,000,000.
	MaxAttempts int

	// RetryMin is about the delay after the first failed attempt; each further one is about twice the one before, jittered by
	// half. From 1ms.
	RetryMin time.Duration

	// RetryMax is the greatest delay; at least RetryMin, at most ten years.
	RetryMax time.Duration

	// RetryDelays, when set, replace the delays from RetryMin to RetryMax, without jitter: the n-th delay follows the
	// n-th failed attempt, the last one all further attempts. A single one is a fixed delay. See NewDelays.
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

	// HandlerTimeout is the time limit of a handler. After it the handler's context is cancelled, and its attempt fails
	// with reason "handler_timeout". Zero: each worker's own HandlerTimeout, by default no limit. At most ten years.
	// Workers apply a change to running handlers. Too low: work is cut short. Too high: a handler that hangs keeps its
	// message, its slot and its key for that long.
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

	// ReadyLimit is the backlog of the slowest group at which messages stay scheduled; each partition counts for
	// itself. Retries and redriven dead letters pass. Zero is no limit; at most 1,000,000,000.
	ReadyLimit int

	// History is how many changes of state the history of the queue keeps, in each partition: the newest, up to about a
	// hundred more, and none much older than HistoryAge. Zero, the built-in value: no history; at most 10,000,000.
	History int

	// HistoryAge is how long the history keeps them: 1 minute to 90 days.
	HistoryAge time.Duration

	// KeyFailure decides whether the next message of a key waits for a retry. Empty is KeyBlock.
	KeyFailure KeyFailure
}

// KeyFailure decides whether messages with a key wait for the retries of the message before them.
type KeyFailure string

// Values of KeyFailure.
const (
	KeyBlock KeyFailure = "block" // the next message waits until this one is done or dead-lettered: their order is kept
	KeySkip  KeyFailure = "skip"  // the next message goes on while a retry waits; the retry takes a new turn
)

// DefaultPolicy returns the built-in policy.
func DefaultPolicy() Policy {
	return Policy{VisibilityTimeout: DefaultVisibilityTimeout, MaxAttempts: DefaultMaxAttempts, RetryMin: DefaultRetryMin,
		RetryMax: DefaultRetryMax, HistoryAge: DefaultHistoryAge}
}

// Validate returns an error that names each field outside its limits, with value and rule; nil if there is none. The
// error wraps lua.ErrInvalid.
func (p Policy) Validate() error {
	var errs []error
	p.HistoryAge = cmp.Or(p.HistoryAge, DefaultHistoryAge) // programs from before histories leave it out
	for _, s := range settings {
		errs = append(errs, s.validate(&p))
	}
	if p.RetryMax < p.RetryMin {
		errs = append(errs, lua.Invalid(SettingRetryMax, p.RetryMax.String(), "must be at least %s, which is %s", SettingRetryMin,
			p.RetryMin))
	}
	return errors.Join(errs...)
}

// Attempts returns the policy in the form that scripts take. Its delays are RetryDelays, or else drawn anew by every
// call: exponential from RetryMin, jittered by half, none above RetryMax. They continue past MaxAttempts, because a
// message may carry its own.
func (p Policy) Attempts() lua.Attempts {
	a := lua.Attempts{Max: p.MaxAttempts, For: p.RetryFor, MaxSnoozes: p.MaxSnoozes, MaxCrashes: p.MaxCrashes}
	if a.Delays = p.RetryDelays.List(); a.Delays != nil {
		return a
	}
	ends := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(p.RetryMin), backoff.WithMultiplier(2), backoff.WithRandomizationFactor(0.5),
		backoff.WithMaxInterval(p.RetryMax), backoff.WithMaxElapsedTime(0))
	for middle := p.RetryMin; ; middle *= 2 {
		a.Delays = append(a.Delays, min(ends.NextBackOff(), p.RetryMax))
		if middle >= p.RetryMax || middle <= 0 {
			return a
		}
	}
}

// Delay returns the delay after the attempt-th failed delivery (from 1), drawn anew by every call.
func (p Policy) Delay(attempt int) time.Duration {
	delays := p.Attempts().Delays
	return delays[min(max(1, attempt), len(delays))-1]
}

// TriedFor returns about how long a message that always fails is tried: from its first attempt to its dead letter,
// without the time of the attempts themselves. It is the sum of the mean delays, at most RetryFor. Limits that a
// message carries are not considered.
func (p Policy) TriedFor() time.Duration {
	tried := p.triedByAttempts()
	if p.RetryFor > 0 {
		return min(tried, p.RetryFor)
	}
	return tried
}

func (p Policy) triedByAttempts() time.Duration {
	var sum float64
	if list := p.RetryDelays.List(); list != nil {
		for i := range min(p.MaxAttempts-1, len(list)) {
			sum += float64(list[i])
		}
		sum += float64(max(0, p.MaxAttempts-1-len(list))) * float64(list[len(list)-1])
		return time.Duration(min(sum, math.MaxInt64/2)).Round(time.Second)
	}
	delay, longest := float64(p.RetryMin), float64(p.RetryMax)
	for left := p.MaxAttempts - 1; left > 0; left-- {
		if delay >= longest { // all further delays are longest, too
			sum += float64(left) * meanDelay(longest, longest)
			break
		}
		sum += meanDelay(delay, longest)
		delay *= 2
	}
	return time.Duration(min(sum, math.MaxInt64/2)).Round(time.Second)
}

// meanDelay returns the mean of a delay that is jittered by half and cut at longest.
func meanDelay(delay, longest float64) float64 {
	if 1.5*delay <= longest {
		return delay
	}
	below := (longest - delay/2) / delay
	return below*(delay/2+longest)/2 + (1-below)*longest
}

// policyText is the JSON form of a Policy: its settings by their names in the policy hash.
type policyText struct {
	VisibilityTimeout view.Millis `json:"visibility_ms"`
	MaxAttempts       int         `json:"max_attempts"`
	RetryMin          view.Millis `json:"retry_min_ms"`
	RetryMax          view.Millis `json:"retry_max_ms"`
	RetryDelays       lua.Delays  `json:"retry_delays_ms,omitempty"`
	RetryFor          view.Millis `json:"retry_for_ms,omitempty"`
	MaxSnoozes        int         `json:"max_snoozes,omitempty"`
	MaxCrashes        int         `json:"max_crashes,omitempty"`
	HandlerTimeout    view.Millis `json:"handler_timeout_ms,omitempty"`
	Held              bool        `json:"held"`
	HeldWorkers       bool        `json:"held_workers,omitempty"`
	Rate              lua.Rate    `json:"rate,omitempty"`
	Burst             int         `json:"burst,omitempty"`
	FreeRetries       bool        `json:"free_retries,omitempty"`
	ReadyLimit        int         `json:"ready_limit,omitempty"`
	History           int         `json:"history"`
	HistoryAge        view.Millis `json:"history_ms"`
	KeyFailure        KeyFailure  `json:"key_failure,omitempty"`
}

// MarshalJSON returns the settings by their names in the policy hash.
func (p Policy) MarshalJSON() ([]byte, error) {
	return json.Marshal(policyText{view.Millis(p.VisibilityTimeout), p.MaxAttempts, view.Millis(p.RetryMin),
		view.Millis(p.RetryMax), p.RetryDelays, view.Millis(p.RetryFor), p.MaxSnoozes, p.MaxCrashes,
		view.Millis(p.HandlerTimeout), p.Held, p.HeldWorkers, p.Rate, p.Burst, p.FreeRetries, p.ReadyLimit, p.History,
		view.Millis(p.HistoryAge), p.KeyFailure})
}

// UnmarshalJSON parses the form of MarshalJSON.
func (p *Policy) UnmarshalJSON(text []byte) error {
	var t policyText
	if err := json.Unmarshal(text, &t); err != nil {
		return err
	}
	*p = Policy{time.Duration(t.VisibilityTimeout), t.MaxAttempts, time.Duration(t.RetryMin), time.Duration(t.RetryMax),
		t.RetryDelays, time.Duration(t.RetryFor), t.MaxSnoozes, t.MaxCrashes, time.Duration(t.HandlerTimeout),
		t.Held, t.HeldWorkers,
		t.Rate, t.Burst, t.FreeRetries, t.ReadyLimit, t.History, time.Duration(t.HistoryAge), t.KeyFailure}
	return nil
}
