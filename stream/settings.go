package stream

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
)

// setting describes one field of a policy hash: an integer within limits, a list of delays, a rate, or a word.
type setting struct {
	name      string
	meaning   string
	list      func(*Policy) *lua.Delays // set for a list; then there are no limits, get or set
	rate      func(*Policy) *lua.Rate   // set for a rate; likewise
	low, high int64
	unit      time.Duration // zero for a number that is no duration
	off       bool          // zero means not set
	get       func(*Policy) int64
	set       func(*Policy, int64)
	whole     bool     // for a whole queue only: neither groups nor the defaults have it
	words     []string // names of its values, from 0 on; nil = they are numbers
}

func durationSetting(
	name, meaning string, low, high time.Duration, field func(*Policy) *time.Duration,
) setting {
	return setting{
		name: name, meaning: meaning, low: low.Milliseconds(), high: high.Milliseconds(), unit: time.Millisecond,
		get: func(p *Policy) int64 { return field(p).Milliseconds() },
		set: func(p *Policy, n int64) { *field(p) = time.Duration(n) * time.Millisecond },
	}
}

func countSetting(name, meaning string, field func(*Policy) *int) setting {
	return setting{
		name: name, meaning: meaning, low: 0, high: lua.MaxAttemptsLimit,
		get: func(p *Policy) int64 { return int64(*field(p)) },
		set: func(p *Policy, n int64) { *field(p) = int(n) },
	}
}

var settings = []setting{
	durationSetting(SettingVisibility,
		"how long an entry may stay pending without being extended before it counts as abandoned",
		MinVisibilityTimeout, MaxVisibilityTimeout, func(p *Policy) *time.Duration { return &p.VisibilityTimeout }),
	{
		name:    SettingMaxAttempts,
		meaning: "deliveries to a group before a dead letter, unless the message has a limit of its own",
		low:     1, high: lua.MaxAttemptsLimit,
		get: func(p *Policy) int64 { return int64(p.MaxAttempts) },
		set: func(p *Policy, n int64) { p.MaxAttempts = int(n) },
	},
	durationSetting(SettingRetryMin,
		"delay after the first failed attempt; each further delay is about twice the one before, jittered by half",
		MinRetryDelay, lua.MaxDelay, func(p *Policy) *time.Duration { return &p.RetryMin }),
	durationSetting(SettingRetryMax, "longest delay between attempts; at least retry_min_ms",
		MinRetryDelay, lua.MaxDelay, func(p *Policy) *time.Duration { return &p.RetryMax }),
	{
		name: SettingRetryDelays,
		meaning: "exact delays after failed attempts, instead of those from retry_min_ms to retry_max_ms; the last one " +
			"repeats. 0: none",
		list: func(p *Policy) *lua.Delays { return &p.RetryDelays },
	},
	offAtZero(durationSetting(SettingRetryFor,
		"how long a message is tried, from its first due time on: no retry is due later. 0: no limit",
		0, lua.MaxDelay, func(p *Policy) *time.Duration { return &p.RetryFor })),
	offAtZero(countSetting(SettingMaxSnoozes, "how often a group may snooze a message. 0: 1000 times",
		func(p *Policy) *int { return &p.MaxSnoozes })),
	offAtZero(countSetting(SettingMaxCrashes,
		"how often the workers of a group may abandon a message, counted apart from failures; the last time makes a "+
			"dead letter. 0: each time is a failed attempt",
		func(p *Policy) *int { return &p.MaxCrashes })),
	offAtZero(durationSetting(SettingHandlerTimeout,
		"how long a handler may take before its attempt fails. 0: each worker's own limit counts, and by default there "+
			"is none",
		0, lua.MaxDelay, func(p *Policy) *time.Duration { return &p.HandlerTimeout })),
	switchSetting(SettingHeld, "1: scheduled messages do not become ready", func(p *Policy) *bool { return &p.Held }),
	offAtZero(switchSetting(SettingHeldWorkers, "1: workers take no new messages",
		func(p *Policy) *bool { return &p.HeldWorkers })),
	{
		name:    SettingRate,
		meaning: "how many messages become ready in a second, a minute or an hour. 0: no limit",
		rate:    func(p *Policy) *lua.Rate { return &p.Rate }, whole: true,
	},
	upTo(lua.MaxBurst, countSetting(SettingBurst,
		"how many messages may become ready at once after a quiet time. 0: those of a tenth of a second, at least one",
		func(p *Policy) *int { return &p.Burst })),
	offAtZero(switchSetting(SettingFreeRetries, "1: retries and redriven dead letters are not subject to the rate",
		func(p *Policy) *bool { return &p.FreeRetries })),
	upTo(MaxReadyLimit, countSetting(SettingReadyLimit,
		"messages stay scheduled while so many entries are ready that the slowest group has not been given; retries "+
			"pass. 0: no limit",
		func(p *Policy) *int { return &p.ReadyLimit })),
	{
		name:    SettingHistory,
		meaning: "how many changes of state the history keeps. 0: there is no history",
		low:     0, high: MaxHistory,
		get: func(p *Policy) int64 { return int64(p.History) },
		set: func(p *Policy, n int64) { p.History = int(n) }, whole: true,
	},
	{
		name: SettingKeyFailure,
		meaning: "block: messages with a key wait for the retries of the message before them; skip: they go on while a " +
			"retry waits",
		low: 0, high: 1, whole: true, off: true, words: []string{string(KeyBlock), string(KeySkip)},
		get: func(p *Policy) int64 {
			switch p.KeyFailure {
			case "", KeyBlock:
				return 0
			case KeySkip:
				return 1
			}
			return -1
		},
		set: func(p *Policy, n int64) { p.KeyFailure = []KeyFailure{"", KeySkip}[n] },
	},
	ofWhole(durationSetting(SettingHistoryAge, "how long the history keeps them",
		MinHistoryAge, MaxHistoryAge, func(p *Policy) *time.Duration { return &p.HistoryAge })),
}

// switchSetting returns a setting with values 0 and 1, for a whole queue.
func switchSetting(name, meaning string, field func(*Policy) *bool) setting {
	return setting{
		name: name, meaning: meaning, low: 0, high: 1, whole: true,
		get: func(p *Policy) int64 {
			if *field(p) {
				return 1
			}
			return 0
		},
		set: func(p *Policy, n int64) { *field(p) = n == 1 },
	}
}

// upTo returns a count of a whole queue that may be left out.
func upTo(high int64, s setting) setting {
	s.high = high
	return ofWhole(offAtZero(s))
}

func (s setting) text(n int64) string {
	if s.words != nil && n >= 0 && n < int64(len(s.words)) {
		return s.words[n]
	}
	if s.unit != 0 {
		return (time.Duration(n) * s.unit).String()
	}
	return strconv.FormatInt(n, 10)
}

func offAtZero(s setting) setting {
	s.off = true
	return s
}

func ofWhole(s setting) setting {
	s.whole = true
	return s
}

// isOfWhole reports whether a setting, named without a group, is for a whole queue only.
func isOfWhole(name string) bool {
	return slices.ContainsFunc(settings, func(s setting) bool { return s.name == name && s.whole })
}

// validate returns an error if the setting is invalid in a policy.
func (s setting) validate(p *Policy) error {
	if s.list != nil {
		return lua.CheckDelays(*s.list(p))
	}
	if s.rate != nil {
		return lua.CheckRate(*s.rate(p))
	}
	if s.words != nil && s.get(p) < 0 {
		return lua.Invalid(s.name, "", "must be one of %s", strings.Join(s.words, ", "))
	}
	if n := s.get(p); n < s.low || n > s.high {
		return lua.Invalid(s.name, s.text(n), "must be between %s and %s", s.text(s.low), s.text(s.high))
	}
	return nil
}

// value returns the setting of a policy in the form of the hash.
func (s setting) value(p *Policy) string {
	if s.list != nil {
		return cmp.Or(string(*s.list(p)), none)
	}
	if s.rate != nil {
		return cmp.Or(string(s.rate(p).Normal()), none)
	}
	if s.words != nil {
		return s.text(s.get(p))
	}
	return strconv.FormatInt(s.get(p), 10)
}

// none is the form of no delays, or of no rate limit, in a hash.
const none = "0"

// isOff reports whether the setting of a policy counts as not set.
func (s setting) isOff(p *Policy) bool {
	return (s.list != nil || s.rate != nil) && s.value(p) == none || s.off && s.get(p) == 0
}

// read sets the setting of a policy from the value in a hash. An invalid value leaves the policy unchanged.
func (s setting) read(p *Policy, value string) error {
	if s.list != nil {
		list := lua.Delays(value)
		if list == none {
			list = ""
		} else if len(list.List()) == 0 {
			return cmp.Or(lua.CheckDelays(list), lua.Invalid(s.name, value, "must be a list of delays in ms, or 0"))
		}
		*s.list(p) = list
		return nil
	}
	if s.rate != nil {
		rate := lua.Rate(value)
		if rate == none {
			rate = ""
		}
		if err := lua.CheckRate(rate); err != nil {
			return err
		}
		*s.rate(p) = rate.Normal()
		return nil
	}
	if s.words != nil {
		n := slices.Index(s.words, value)
		if n < 0 {
			return lua.Invalid(s.name, value, "must be one of %s", strings.Join(s.words, ", "))
		}
		s.set(p, int64(n))
		return nil
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < s.low || n > s.high {
		return lua.Invalid(s.name, value, "must be %s between %d and %d", s.kind(), s.low, s.high)
	}
	s.set(p, n)
	return nil
}

func (s setting) kind() string {
	if s.unit != 0 {
		return fmt.Sprint("a number of ", s.unit.String()[1:])
	}
	return "a number"
}
