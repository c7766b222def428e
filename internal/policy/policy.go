package policy

import (
	"cmp"
	"errors"
	"math"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/duestream/duestream/lua"
)

// KeyFailure decides whether messages with a key wait for the retries of the message before them.
type KeyFailure string

// Values of KeyFailure.
const (
	KeyBlock KeyFailure = "block" // the next message waits until this one is finished or dead: their order is kept
	KeySkip  KeyFailure = "skip"  // the next message goes on while a retry waits; the retry takes a new turn
)

// Default returns the built-in policy.
func Default() Policy {
	return Policy{
		VisibilityTimeout: DefaultVisibilityTimeout,
		MaxAttempts:       DefaultMaxAttempts,
		RetryMin:          DefaultRetryMin,
		RetryMax:          DefaultRetryMax,
		HistoryAge:        DefaultHistoryAge,
	}
}

// Validate returns an error that names each field outside its limits, with value and rule; nil if there is none. The
// error wraps lua.ErrInvalid.
func (p Policy) Validate() error {
	var errs []error
	p.HistoryAge = cmp.Or(p.HistoryAge, DefaultHistoryAge) // programs written before histories existed do not set it
	for _, s := range settings {
		errs = append(errs, s.check(s.get(&p)))
	}
	if p.RetryMax < p.RetryMin {
		errs = append(errs, lua.Invalid(SettingRetryMax, p.RetryMax.String(),
			"must be at least %s, which is %s", SettingRetryMin, p.RetryMin))
	}
	return errors.Join(errs...)
}

// Attempts returns the policy in the form that scripts take. The delays are RetryDelays if that is set. Else each call
// draws them anew: they grow exponentially from RetryMin, are jittered by half, and do not exceed RetryMax. The list
// does not end at MaxAttempts, because a message may have its own max_attempts.
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

// Delay returns the delay after the failed attempt with this number, from 1. Each call draws it anew.
func (p Policy) Delay(attempt int) time.Duration {
	delays := p.Attempts().Delays
	return delays[min(max(1, attempt), len(delays))-1]
}

// TriedFor returns about how long a message that always fails is tried: the time from its first attempt to its dead
// letter, without the time that the attempts take. It is the sum of the mean delays, at most RetryFor. It does not
// consider limits that a message has itself.
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
