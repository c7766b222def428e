package stream

import (
	"fmt"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
)

// SettingInfo describes a setting of a policy, for documents and help texts.
type SettingInfo struct {
	Name       string // its field in the policy hash
	Meaning    string
	Unit       string // of its values, such as "ms"; empty for a plain number or a word
	Default    string // the built-in value, in the form of the hash
	Limits     string // the values that are accepted, in the form of the hash
	WholeQueue bool   // neither groups nor duestream:defaults have it
}

// Settings describes all settings of a policy.
func Settings() []SettingInfo {
	builtIn := DefaultPolicy()
	var all []SettingInfo
	for _, s := range settings {
		all = append(all, SettingInfo{
			Name: s.name, Meaning: s.meaning, Unit: s.unitName(), Default: s.value(&builtIn), Limits: s.limits(),
			WholeQueue: s.whole,
		})
	}
	return all
}

func (s setting) unitName() string {
	switch {
	case s.list != nil || s.unit == time.Millisecond:
		return "ms"
	case s.rate != nil:
		return "per s, m or h"
	}
	return ""
}

func (s setting) limits() string {
	switch {
	case s.list != nil:
		return fmt.Sprintf("0, or up to %d numbers from 1 to %d, with commas", lua.MaxDelays, lua.MaxDelay.Milliseconds())
	case s.rate != nil:
		return fmt.Sprintf("0, or 1 to %d with /s, /m or /h", lua.MaxRate)
	case s.words != nil:
		return strings.Join(s.words, ", ")
	}
	return fmt.Sprintf("%d to %d", s.low, s.high)
}
