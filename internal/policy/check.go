package policy

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/duestream/duestream/lua"
)

// CheckSettings checks the fields of a queue's policy or, with defaults, of the defaults. bad holds the fields whose
// values are ignored, each with the reason. unknown lists the fields whose names are no settings of that hash.
func CheckSettings(fields map[string]string, defaults bool) (bad map[string]error, unknown []string) {
	bad = map[string]error{}
	values := map[string]int64{}
	for field, value := range fields {
		name, group, wellFormed := field, "", true
		if rest, ok := strings.CutPrefix(field, "group:"); ok && !defaults {
			group, name, wellFormed = splitGroupSetting(rest)
		}
		s, known := Named(name)
		forQueueOnly := s.WholeQueue && (defaults || group != "")
		if !wellFormed || !known || forQueueOnly {
			unknown = append(unknown, field)
			continue
		}
		if v, err := s.parse(value); err != nil {
			bad[field] = err
		} else {
			values[field] = v.Number
		}
	}
	slices.Sort(unknown)
	for field, least := range values {
		scope, isMin := strings.CutSuffix(field, SettingRetryMin)
		if !isMin {
			continue
		}
		most := scope + SettingRetryMax
		if n, ok := values[most]; ok && n < least {
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
