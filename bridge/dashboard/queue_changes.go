package dashboard

import (
	"strings"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/internal/policy"
)

// This file tells who changed the settings of a queue, and who paused it.

// settingMade is a recorded change of a setting, for people.
type settingMade struct {
	At       time.Time
	By       string // "" = unknown
	Group    string // "" = the whole queue
	Word     string
	Old, New string
}

// Changes returns the recorded changes, the newest first.
func (s queueState) Changes() []settingMade {
	made := make([]settingMade, len(s.Recorded))
	for i, c := range s.Recorded {
		made[i] = settingMade{At: c.At, Group: c.Group, Word: c.Setting, Old: recordedText(c.Setting, c.Old),
			New: recordedText(c.Setting, c.New)}
		if setting, known := policy.Named(c.Setting); known {
			made[i].Word = setting.Word
		}
		if c.By != "" {
			made[i].By = authorText(c.By)
		}
	}
	return made
}

// LastChange returns the newest recorded change; nil if there is none.
func (s queueState) LastChange() *settingMade {
	if all := s.Changes(); len(all) > 0 {
		return &all[0]
	}
	return nil
}

// PausedBy returns the change that paused the queue or its workers; nil if it is not recorded: the program that paused
// them keeps no record, or many changes followed.
func (s queueState) PausedBy() *settingMade {
	setting := admin.SettingHeld
	if s.Now.HeldWorkers {
		setting = admin.SettingHeldWorkers
	}
	for i, c := range s.Recorded {
		if c.Group == "" && c.Setting == setting {
			if c.New != "1" {
				return nil
			}
			return &s.Changes()[i]
		}
	}
	return nil
}

// mostRecorded is the length in bytes to which set_policy cuts the values of a recorded change.
const mostRecorded = 1024

// recordedText returns a stored value as people write it.
func recordedText(name, stored string) string {
	setting, known := policy.Named(name)
	if stored == "" {
		return "not set"
	}
	if !known {
		return recordedAsIs(stored)
	}
	v, err := setting.ParseStored(stored)
	if err != nil || len(stored) >= mostRecorded { // a list that is cut would look like a shorter one
		return recordedAsIs(stored)
	}
	return shown(setting, v)
}

// recordedAsIs returns a stored value as it is, with a mark if it may be cut.
func recordedAsIs(stored string) string {
	if len(stored) >= mostRecorded {
		return visible(strings.ToValidUTF8(stored, "")) + "…"
	}
	return visible(stored)
}
