package stream

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// OrphanAge is how long a body must have been without a member of the schedule before it is deleted.
const OrphanAge = orphanConfirm

// orphanLooks is how often DeleteOrphans looks whether a body has got a member, before it deletes it.
const orphanLooks = 6

// DeleteOrphans deletes those of the given fields of a partition's payload and meta that are without a member of the schedule now, and whenever
// it looks until age from now, and says how many: a producer may be about to add the member. A field that has got one, or another body, stays, though
// it may be an orphan again by then. Wait is called between the looks. One round trip per 500 fields and look.
func DeleteOrphans(ctx context.Context, c rueidis.Client, keys lua.Keys, payload, meta []string, age time.Duration, wait func(time.Duration) error) (deleted int, err error) {
	hashes, watched := []string{keys.Payload, keys.Meta}, make([][]lua.Watched, 2)
	for h, fields := range [][]string{payload, meta} {
		for _, field := range fields {
			watched[h] = append(watched[h], lua.Watched{Orphan: lua.Orphan{Field: field, Length: -1}})
		}
	}
	for look := range orphanLooks + 1 {
		if look > 0 {
			if err := wait(age / orphanLooks); err != nil {
				return 0, err
			}
		}
		for h, hash := range hashes {
			n := 0
			if watched[h], n, err = watchAgain(ctx, c, keys.Due, hash, watched[h], look == orphanLooks); err != nil {
				return deleted, fmt.Errorf("stream: delete orphans of %s: %w", hash, err)
			}
			deleted += n
		}
	}
	return deleted, nil
}

// watchAgain returns those that still are the orphans they were, as they are now. If they are ripe they are deleted.
func watchAgain(ctx context.Context, c rueidis.Client, due, hash string, watched []lua.Watched, ripe bool) (left []lua.Watched, deleted int, err error) {
	for _, batch := range watchBatches(watched) {
		for i := range batch {
			batch[i].Ripe = ripe
		}
		swept, err := lua.SweepOrphans(ctx, c, due, hash, "", 0, batch)
		if err != nil {
			return nil, deleted, err
		}
		deleted += swept.Deleted
		for i, length := range swept.Left {
			if length >= 0 {
				left = append(left, lua.Watched{Orphan: lua.Orphan{Field: batch[i].Field, Length: length}})
			}
		}
	}
	return left, deleted, nil
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
