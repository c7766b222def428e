package stream

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/duestream/duestream/lua"
)

// CheckSettings checks the fields of a queue's policy, or of the defaults. bad are fields whose values are ignored,
// with the reason; unknown are fields whose names have no meaning there.
func CheckSettings(fields map[string]string, defaults bool) (bad map[string]error, unknown []string) {
	bad = map[string]error{}
	values := map[string]int64{}
	var read Policy
	for field, value := range fields {
		name, group, sound := field, "", true
		if rest, ok := strings.CutPrefix(field, "group:"); ok && !defaults {
			group, name, sound = splitGroupSetting(rest)
		}
		i := slices.IndexFunc(settings, func(s setting) bool { return s.name == name })
		if !sound || i < 0 || isOfWhole(name) && (defaults || group != "") {
			unknown = append(unknown, field)
			continue
		}
		if err := settings[i].read(&read, value); err != nil {
			bad[field] = err
		} else if settings[i].get != nil {
			values[field] = settings[i].get(&read)
		}
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

// splitGroupSetting splits `<percent-encoded group>:<setting>`. ok is false for a text that groupSetting does not
// produce.
func splitGroupSetting(text string) (group, name string, ok bool) {
	at := strings.LastIndex(text, ":")
	if at < 0 {
		return "", text, false
	}
	group, err := url.PathUnescape(text[:at])
	name = text[at+1:]
	return group, name, err == nil && group != "" && groupSetting(group, name) == "group:"+text
}
