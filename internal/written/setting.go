package written

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// ParseSetting reads a value of a setting: 1m30s, 5, true, 1m,3m,5m, 500/s or skip. It does not check the limits.
func ParseSetting(s policy.Setting, text string) (v policy.Value, err error) {
	switch s.Kind {
	case policy.Duration:
		d, err := ParseDuration(text)
		return policy.Value{Number: d.Milliseconds()}, err
	case policy.Count:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return v, errors.New("must be a whole number")
		}
		return policy.Value{Number: n}, nil
	case policy.Switch:
		on, err := strconv.ParseBool(text)
		if err != nil {
			return v, errors.New("must be true or false")
		}
		if on {
			v.Number = 1
		}
		return v, nil
	case policy.Delays:
		list, err := ParseDelays(text)
		return policy.Value{Text: string(list)}, err
	case policy.Rate:
		if text == "0" {
			return v, nil
		}
		return policy.Value{Text: string(lua.Rate(text).Normal())}, nil
	}
	return policy.Value{Text: text}, nil
}

// Setting formats a value of a setting in the form that ParseSetting reads.
func Setting(s policy.Setting, v policy.Value) string {
	switch s.Kind {
	case policy.Duration:
		return Duration(time.Duration(v.Number) * time.Millisecond)
	case policy.Count:
		return strconv.FormatInt(v.Number, 10)
	case policy.Switch:
		return strconv.FormatBool(v.Number == 1)
	case policy.Delays:
		return Delays(lua.Delays(v.Text))
	}
	return v.Text
}

// Describe returns the description of a setting, with its limits in the form of ParseSetting. nameOf returns the name
// under which the caller shows another setting that the description mentions.
func Describe(s policy.Setting, nameOf func(policy.Setting) string) string {
	text := s.Meaning
	for _, other := range policy.Settings() {
		// Names without _ms, such as rate or history, are also ordinary words of the text: they stay.
		if strings.HasSuffix(other.Name, "_ms") {
			text = strings.ReplaceAll(text, other.Name, nameOf(other))
		}
	}
	switch s.Kind {
	case policy.Switch:
		text = "true: " + text
	case policy.Delays:
		text += " (1m,3m,5m)"
	case policy.Rate:
		text += " (500/s, 30/m or 1/h)"
	case policy.Duration, policy.Count:
		low, high := Setting(s, policy.Value{Number: s.Low}), Setting(s, policy.Value{Number: s.High})
		if s.Low == 0 {
			text += " (up to " + high + ")"
		} else {
			text += " (" + low + " to " + high + ")"
		}
	}
	if s.Zero != "" {
		text += ". 0: " + s.Zero
	}
	return text
}
