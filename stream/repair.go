package stream

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// OrphanAge is how long a body must have been without a member of the schedule before it is deleted.
const OrphanAge = orphanConfirm

// DeleteOrphans deletes those of the given fields of a partition's payload and meta that are still without a member of the schedule, and
// says how many. They must have been so OrphanAge ago: a producer may be about to add the member. One round trip per 500 fields.
func DeleteOrphans(ctx context.Context, c rueidis.Client, keys lua.Keys, payload, meta []string) (deleted int, err error) {
	for _, one := range []struct {
		hash   string
		fields []string
	}{{keys.Payload, payload}, {keys.Meta, meta}} {
		for some := range slices.Chunk(one.fields, orphanLimit) {
			swept, err := lua.SweepOrphans(ctx, c, keys.Due, one.hash, "", 1, some)
			if err != nil {
				return deleted, fmt.Errorf("stream: delete orphans of %s: %w", one.hash, err)
			}
			deleted += swept.Deleted
		}
	}
	return deleted, nil
}

// CheckSettings says what is wrong with the fields of a queue's policy, or of the defaults: bad ones, whose value does not count, by field;
// and unknown ones, whose name means nothing there.
func CheckSettings(fields map[string]string, defaults bool) (bad map[string]error, unknown []string) {
	bad = map[string]error{}
	values := map[string]int64{}
	for field, value := range fields {
		name, group, sound := field, "", true
		if rest, ok := strings.CutPrefix(field, "group:"); ok && !defaults {
			group, name, sound = splitGroupSetting(rest)
		}
		i := slices.IndexFunc(settings, func(s setting) bool { return s.name == name })
		if !sound || i < 0 || name == SettingHeld && (defaults || group != "") {
			unknown = append(unknown, field)
			continue
		}
		n, err := settings[i].parse(value)
		if err != nil {
			bad[field] = err
			continue
		}
		values[field] = n
	}
	slices.Sort(unknown)
	for field, least := range values {
		most := strings.TrimSuffix(field, SettingRetryMin) + SettingRetryMax
		if n, ok := values[most]; ok && strings.HasSuffix(field, SettingRetryMin) && n < least {
			bad[most] = lua.Invalid(SettingRetryMax, fmt.Sprint(n), "must be at least %s, which is %d", SettingRetryMin, least)
		}
	}
	return bad, unknown
}

// splitGroupSetting takes `<percent-encoded group>:<setting>` apart; ok is false for what groupSetting does not write.
func splitGroupSetting(text string) (group, name string, ok bool) {
	at := strings.LastIndex(text, ":")
	if at < 0 {
		return "", text, false
	}
	group, err := url.PathUnescape(text[:at])
	name = text[at+1:]
	return group, name, err == nil && group != "" && groupSetting(group, name) == "group:"+text
}
