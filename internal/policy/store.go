package policy

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// Read returns the policy in force for a group. Each setting comes from the first level that has it: the group's own
// setting in the queue's policy, the queue's setting, the defaults of the prefix, the built-in default. Settings of a
// whole queue, such as Held, come from the queue or the built-in default only. A value that is invalid (not a number,
// or outside its limits) is skipped, and warning names it. Read reads the policy of partition 0. It takes one round
// trip with two HGETALL.
func Read(ctx context.Context, c rueidis.Client, prefix, queue, group string) (p Policy, warning, err error) {
	policies, warning, err := ReadGroups(ctx, c, prefix, queue, []string{group})
	return policies[group], warning, err
}

// ReadGroups is Read for several groups of a queue in the same round trip.
func ReadGroups(ctx context.Context, c rueidis.Client, prefix, queue string,
	groups []string) (policies map[string]Policy, warning, err error) {
	own, defaults, err := readHashes(ctx, c, prefix, queue)
	if err != nil {
		return nil, nil, err
	}
	policies, warning = Resolve(groups, own, defaults)
	return policies, warning, nil
}

// readHashes reads the policy of a queue and the defaults of the prefix, in one round trip.
func readHashes(
	ctx context.Context, c rueidis.Client, prefix, queue string,
) (own, defaults map[string]string, err error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	var hashes [2]map[string]string
	keys := []string{lua.NewKeys(prefix, queue).Policy, lua.NewGlobals(prefix).Defaults}
	for i, reply := range c.DoMulti(ctx, c.B().Hgetall().Key(keys[0]).Build(), c.B().Hgetall().Key(keys[1]).Build()) {
		if hashes[i], err = reply.AsStrMap(); err != nil {
			return nil, nil, fmt.Errorf("read policy of %s at %s: %w", queue, keys[i], lua.Classify("HGETALL", err))
		}
	}
	return hashes[0], hashes[1], nil
}

// Resolve returns the policy of each group from the hashes of its queue and of the defaults; see Read. The
// warning names each skipped value once.
func Resolve(groups []string, queue, defaults map[string]string) (policies map[string]Policy, warning error) {
	policies = make(map[string]Policy, len(groups))
	var warnings []error
	for _, group := range groups {
		p, err := resolveGroup(group, queue, defaults)
		policies[group] = p
		warnings = append(warnings, err)
	}
	return policies, joinUnique(warnings)
}

// resolveGroup looks up each setting, level by level.
func resolveGroup(group string, queue, defaults map[string]string) (Policy, error) {
	p := Default()
	var warnings []error
	for _, s := range settings {
		for _, level := range levelsOf(s, group, queue, defaults) {
			value, ok := level.hash[level.name]
			if !ok || value == "" {
				continue
			}
			v, err := s.parse(value)
			if err == nil {
				s.set(&p, v)
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

// level is a place of a setting.
type level struct {
	hash map[string]string
	name string // of the field
	at   string // for the warning
	from Source
}

// levelsOf returns the places of a setting, the one that counts most first.
func levelsOf(s Setting, group string, queue, defaults map[string]string) []level {
	levels := []level{
		{queue, groupSetting(group, s.Name), "policy", FromGroup}, {queue, s.Name, "policy", FromQueue},
		{defaults, s.Name, "defaults", FromDefaults},
	}
	if s.WholeQueue { // only the queue's setting counts, because scripts read no other one
		levels = levels[1:2]
	}
	return levels
}

// GroupsWithSettings returns the groups with settings of their own in a queue's policy, sorted. One round trip.
func GroupsWithSettings(ctx context.Context, c rueidis.Client, prefix, queue string) ([]string, error) {
	key := lua.NewKeys(prefix, queue).Policy
	fields, err := c.Do(ctx, c.B().Hgetall().Key(key).Build()).AsStrMap()
	if err != nil {
		return nil, fmt.Errorf("read policy of %s: %w", queue, lua.Classify("HGETALL", err))
	}
	var groups []string
	for field := range fields {
		rest, ok := strings.CutPrefix(field, "group:")
		escaped, _, named := strings.Cut(rest, ":")
		group, err := url.PathUnescape(escaped)
		if ok && named && err == nil && !slices.Contains(groups, group) {
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

// WriteDefaults writes the defaults for all queues of the prefix that lack settings of their own. It leaves out Held
// and other settings of a whole queue. One round trip; works on a full server; may be repeated.
func WriteDefaults(ctx context.Context, c rueidis.Client, prefix string, p Policy) error {
	if err := errors.Join(lua.CheckPrefix(prefix), p.Validate()); err != nil {
		return fmt.Errorf("write defaults: %w", err)
	}
	var values []lua.FieldValue
	for _, s := range settings {
		switch {
		case s.WholeQueue:
		case s.IsOff(s.get(&p)): // an older value no longer applies
			values = append(values, lua.FieldValue{Field: s.Name})
		default:
			values = append(values, lua.FieldValue{Field: s.Name, Value: s.stored(s.get(&p))})
		}
	}
	g := lua.NewGlobals(prefix)
	if err := lua.Configure(ctx, c, g.Defaults, g.Wake, values); err != nil {
		return fmt.Errorf("write defaults: %w", err)
	}
	return nil
}
