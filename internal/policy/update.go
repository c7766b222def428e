package policy

import (
	"errors"

	"github.com/duestream/duestream/lua"
)

// Check returns all faults of an update for a group or, if group is "", for a queue. The error wraps lua.ErrInvalid.
func (u Update) Check(group string) error {
	_, err := u.Fields(group)
	return err
}

// Fields returns the update as fields of a queue's policy hash, and all its faults.
func (u Update) Fields(group string) ([]lua.FieldValue, error) {
	if group == "" {
		return u.values(func(setting string) string { return setting })
	}
	values, err := u.values(func(setting string) string { return groupSetting(group, setting) })
	return values, errors.Join(lua.CheckGroup(group), u.checkGroup(), err)
}

// FieldOf returns the field of a queue's policy hash that holds a setting of a group or, if group is "", of the queue.
func FieldOf(group, setting string) string {
	if group == "" {
		return setting
	}
	return groupSetting(group, setting)
}

// values returns the update as fields of a hash, and all its faults.
func (u Update) values(name func(string) string) ([]lua.FieldValue, error) {
	var values []lua.FieldValue
	var errs []error
	for _, s := range settings {
		if value, given := s.change(&u); given {
			errs = append(errs, s.check(value))
			values = append(values, lua.FieldValue{Field: name(s.Name), Value: s.stored(value)})
		}
	}
	if u.RetryMin != nil && u.RetryMax != nil && *u.RetryMax < *u.RetryMin {
		errs = append(errs, lua.Invalid(SettingRetryMax, u.RetryMax.String(),
			"must be at least %s, which is %s", SettingRetryMin, *u.RetryMin))
	}
	for _, cleared := range u.Clear {
		s, known := Named(cleared)
		if !known {
			errs = append(errs, lua.Invalid("setting", cleared, "is not known"))
		} else if _, given := s.change(&u); given {
			errs = append(errs, lua.Invalid("setting", cleared, "cannot be set and cleared at once"))
		}
		values = append(values, lua.FieldValue{Field: name(cleared)})
	}
	return values, errors.Join(errs...)
}

// checkGroup refuses settings that only a whole queue can have.
func (u Update) checkGroup() error {
	var errs []error
	for _, cleared := range u.Clear {
		if s, known := Named(cleared); known && s.WholeQueue {
			errs = append(errs, lua.Invalid(cleared, "", "can be cleared for a whole queue only"))
		}
	}
	for _, s := range settings {
		if value, given := s.change(&u); given && s.WholeQueue {
			errs = append(errs, lua.Invalid(s.Name, s.shown(value), "can be set for a whole queue only"))
		}
	}
	return errors.Join(errs...)
}
