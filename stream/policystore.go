package stream

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// ReadPolicy returns the policy in force for a group. Each setting comes from the first level that has it: the group's
// own in the queue's policy, the queue's, duestream:defaults, the built-in default. Settings of a whole queue, such as
// Held, come from the queue only. An invalid value (not a number, outside its limits) is skipped and named in warning.
// Of several partitions, partition 0 is read. One round trip, two HGETALL.
func ReadPolicy(ctx context.Context, c rueidis.Client, prefix, queue, group string) (p Policy, warning, err error) {
	policies, warning, err := ReadPolicies(ctx, c, prefix, queue, []string{group})
	return policies[group], warning, err
}

// ReadPolicies is ReadPolicy for several groups of a queue in the same round trip.
func ReadPolicies(ctx context.Context, c rueidis.Client, prefix, queue string,
	groups []string) (policies map[string]Policy, warning, err error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	var hashes [2]map[string]string
	keys := []string{lua.NewKeys(prefix, queue).Policy, lua.NewGlobals(prefix).Defaults}
	for i, reply := range c.DoMulti(ctx, c.B().Hgetall().Key(keys[0]).Build(), c.B().Hgetall().Key(keys[1]).Build()) {
		if hashes[i], err = reply.AsStrMap(); err != nil {
			return nil, nil, fmt.Errorf("read policy of %s at %s: %w", queue, keys[i], lua.Classify("HGETALL", err))
		}
	}
	policies, warning = ResolveAll(groups, hashes[0], hashes[1])
	return policies, warning, nil
}

// ResolveAll returns the policy of each group from the hashes of its queue and of the defaults; see ReadPolicy. The
// warning names each skipped value once.
func ResolveAll(groups []string, queue, defaults map[string]string) (policies map[string]Policy, warning error) {
	policies = make(map[string]Policy, len(groups))
	var warnings []error
	for _, group := range groups {
		p, err := resolvePolicy(group, queue, defaults)
		policies[group] = p
		warnings = append(warnings, err)
	}
	return policies, joinUnique(warnings)
}

// resolvePolicy looks up each setting, level by level.
func resolvePolicy(group string, queue, defaults map[string]string) (Policy, error) {
	p := DefaultPolicy()
	var warnings []error
	for _, s := range settings {
		levels := []struct {
			hash map[string]string
			name string
			at   string
		}{
			{queue, groupSetting(group, s.name), "policy"}, {queue, s.name, "policy"}, {defaults, s.name, "defaults"},
		}
		if s.whole { // scripts only read the setting of the queue
			levels = levels[1:2]
		}
		for _, level := range levels {
			value, ok := level.hash[level.name]
			if !ok || value == "" {
				continue
			}
			err := s.read(&p, value)
			if err == nil {
				break
			}
			warnings = append(warnings, fmt.Errorf("%s: field %s: %w", level.at, level.name, err))
		}
	}
	if p.RetryMax < p.RetryMin {
		warnings = append(warnings, fmt.Errorf("%s (%s) is less than %s, and counts as %s", SettingRetryMax, p.RetryMax,
			SettingRetryMin, p.RetryMin))
		p.RetryMax = p.RetryMin
	}
	return p, errors.Join(warnings...)
}

// GroupsWithSettings returns the groups with settings of their own in a queue's policy, sorted. One round trip.
func GroupsWithSettings(ctx context.Context, c rueidis.Client, prefix, queue string) ([]string, error) {
	key := lua.NewKeys(prefix, queue).Policy
	settings, err := c.Do(ctx, c.B().Hgetall().Key(key).Build()).AsStrMap()
	if err != nil {
		return nil, fmt.Errorf("read policy of %s: %w", queue, lua.Classify("HGETALL", err))
	}
	var groups []string
	for field := range settings {
		rest, ok := strings.CutPrefix(field, "group:")
		escaped, _, ok2 := strings.Cut(rest, ":")
		group, err := url.PathUnescape(escaped)
		if ok && ok2 && err == nil && !slices.Contains(groups, group) {
			groups = append(groups, group)
		}
	}
	slices.Sort(groups)
	return groups, nil
}

// groupSetting returns the field of a queue's policy hash for a group's own setting.
func groupSetting(group, setting string) string {
	return "group:" + strings.ReplaceAll(url.QueryEscape(group), "+", "%20") + ":" + setting
}

// joinUnique joins errors, and leaves out repeated texts.
func joinUnique(errs []error) error {
	seen := map[string]bool{}
	var kept []error
	for _, err := range errs {
		if err != nil && !seen[err.Error()] {
			seen[err.Error()] = true
			kept = append(kept, err)
		}
	}
	return errors.Join(kept...)
}

// PolicyUpdate holds the settings to change; nil fields stay as they are. Clear names settings (the Setting constants)
// to remove, so that the next level is in force again.
type PolicyUpdate struct {
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

// Check returns all faults of an update for a group, or with group "" for a queue. ErrInvalid.
func (u PolicyUpdate) Check(group string) error {
	_, err := u.fields(group)
	return err
}

// fields returns the update as fields of a queue's policy hash, and all its faults.
func (u PolicyUpdate) fields(group string) ([]lua.FieldValue, error) {
	if group == "" {
		return u.values(func(setting string) string { return setting })
	}
	values, err := u.values(func(setting string) string { return groupSetting(group, setting) })
	return values, errors.Join(lua.CheckGroup(group), u.checkGroup(), err)
}

// values returns the update as fields of a hash, and all its faults.
func (u PolicyUpdate) values(name func(string) string) ([]lua.FieldValue, error) {
	var p Policy
	given := map[string]bool{}
	setGiven(u.VisibilityTimeout, &p.VisibilityTimeout, given, SettingVisibility)
	setGiven(u.MaxAttempts, &p.MaxAttempts, given, SettingMaxAttempts)
	setGiven(u.RetryMin, &p.RetryMin, given, SettingRetryMin)
	setGiven(u.RetryMax, &p.RetryMax, given, SettingRetryMax)
	setGiven(u.RetryDelays, &p.RetryDelays, given, SettingRetryDelays)
	setGiven(u.RetryFor, &p.RetryFor, given, SettingRetryFor)
	setGiven(u.MaxSnoozes, &p.MaxSnoozes, given, SettingMaxSnoozes)
	setGiven(u.MaxCrashes, &p.MaxCrashes, given, SettingMaxCrashes)
	setGiven(u.HandlerTimeout, &p.HandlerTimeout, given, SettingHandlerTimeout)
	setGiven(u.Held, &p.Held, given, SettingHeld)
	setGiven(u.HeldWorkers, &p.HeldWorkers, given, SettingHeldWorkers)
	setGiven(u.Rate, &p.Rate, given, SettingRate)
	setGiven(u.Burst, &p.Burst, given, SettingBurst)
	setGiven(u.FreeRetries, &p.FreeRetries, given, SettingFreeRetries)
	setGiven(u.ReadyLimit, &p.ReadyLimit, given, SettingReadyLimit)
	setGiven(u.History, &p.History, given, SettingHistory)
	setGiven(u.HistoryAge, &p.HistoryAge, given, SettingHistoryAge)
	setGiven(u.KeyFailure, &p.KeyFailure, given, SettingKeyFailure)

	var values []lua.FieldValue
	var errs []error
	known := map[string]bool{}
	for _, s := range settings {
		known[s.name] = true
		if given[s.name] {
			errs = append(errs, s.validate(&p))
			values = append(values, lua.FieldValue{Field: name(s.name), Value: s.value(&p)})
		}
	}
	if given[SettingRetryMin] && given[SettingRetryMax] && p.RetryMax < p.RetryMin {
		errs = append(errs, lua.Invalid(SettingRetryMax, p.RetryMax.String(), "must be at least %s, which is %s", SettingRetryMin,
			p.RetryMin))
	}
	for _, s := range u.Clear {
		switch {
		case !known[s]:
			errs = append(errs, lua.Invalid("setting", s, "is not known"))
		case given[s]:
			errs = append(errs, lua.Invalid("setting", s, "cannot be set and cleared at once"))
		}
		values = append(values, lua.FieldValue{Field: name(s)})
	}
	return values, errors.Join(errs...)
}

// checkGroup refuses settings that only a whole queue can have.
func (u PolicyUpdate) checkGroup() error {
	var errs []error
	for _, name := range u.Clear {
		if isOfWhole(name) {
			errs = append(errs, lua.Invalid(name, "", "can be cleared for a whole queue only"))
		}
	}
	refuse(&errs, SettingHeld, u.Held)
	refuse(&errs, SettingHeldWorkers, u.HeldWorkers)
	refuse(&errs, SettingRate, u.Rate)
	refuse(&errs, SettingBurst, u.Burst)
	refuse(&errs, SettingFreeRetries, u.FreeRetries)
	refuse(&errs, SettingReadyLimit, u.ReadyLimit)
	refuse(&errs, SettingHistory, u.History)
	refuse(&errs, SettingHistoryAge, u.HistoryAge)
	refuse(&errs, SettingKeyFailure, u.KeyFailure)
	return errors.Join(errs...)
}

func refuse[T any](errs *[]error, name string, value *T) {
	if value != nil {
		*errs = append(*errs, lua.Invalid(name, fmt.Sprint(*value), "can be set for a whole queue only"))
	}
}

func setGiven[T any](from, to *T, given map[string]bool, name string) {
	if from != nil {
		*to, given[name] = *from, true
	}
}

// WritePolicy changes settings of a queue, or with a group the group's own, and wakes the bridges. Held is a setting of
// a whole queue. A retry_max below the retry_min of another level is raised to it when the policy is read. Works on a
// full server; may be repeated.
//
// A history that is switched off is deleted.
//
// Partition 0 is written first, and its policy is then copied to the others. After an error some may have the old one:
// repeat it. One round trip, one to the registry, and about two per further partition.
//
// A rate or a ready limit is refused with lua.ErrOldBridge while a live bridge does not serve it.
func WritePolicy(ctx context.Context, c rueidis.Client, prefix, queue, group string, u PolicyUpdate) error {
	return WritePolicyBeside(ctx, c, lua.NewLevels(c, prefix), prefix, queue, group, u)
}

// WritePolicyBeside is WritePolicy with the protocol levels of the live bridges given; with nil they are not checked.
func WritePolicyBeside(ctx context.Context, c rueidis.Client, levels *lua.Levels, prefix, queue, group string,
	u PolicyUpdate) error {
	values, err := u.fields(group)
	if err := errors.Join(lua.CheckPrefix(prefix), lua.CheckQueue(queue), err); err != nil {
		return fmt.Errorf("write policy of %s: %w", queue, err)
	}
	if u.Rate != nil && u.Rate.Interval() > 0 || u.ReadyLimit != nil && *u.ReadyLimit > 0 {
		if err := levels.Allow(ctx, lua.LevelFlow, "release rates and ready limits"); err != nil {
			return fmt.Errorf("write policy of %s: %w", queue, err)
		}
	}
	keys := lua.NewKeys(prefix, queue)
	if err := lua.Configure(ctx, c, keys.Policy, keys.Wake, values); err != nil {
		return fmt.Errorf("write policy of %s: %w", queue, err)
	}
	// Read after the write: either this call sees the new partitions of a growth, or the growth sees the new policy.
	parts := &partitionSync{c: c, prefix: prefix, queue: queue}
	err = parts.policy(ctx)
	if err == nil && (u.History != nil && *u.History == 0 || slices.Contains(u.Clear, SettingHistory)) {
		err = parts.dropHistories(ctx)
	}
	if err != nil {
		return fmt.Errorf("write policy of %s: %w", queue, err)
	}
	return nil
}

// WriteDefaults writes the defaults for all queues of the prefix that lack settings of their own. It leaves out Held
// and other settings of a whole queue. One round trip; works on a full server; may be repeated.
func WriteDefaults(ctx context.Context, c rueidis.Client, prefix string, p Policy) error {
	if err := errors.Join(lua.CheckPrefix(prefix), p.Validate()); err != nil {
		return fmt.Errorf("write defaults: %w", err)
	}
	var values []lua.FieldValue
	for _, s := range settings {
		switch {
		case s.whole:
		case s.isOff(&p): // an older value no longer applies
			values = append(values, lua.FieldValue{Field: s.name})
		default:
			values = append(values, lua.FieldValue{Field: s.name, Value: s.value(&p)})
		}
	}
	g := lua.NewGlobals(prefix)
	if err := lua.Configure(ctx, c, g.Defaults, g.Wake, values); err != nil {
		return fmt.Errorf("write defaults: %w", err)
	}
	return nil
}
