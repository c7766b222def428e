package policy

import (
	"context"
	"errors"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// Source is the level that a value in force comes from.
type Source string

// Levels of settings.
const (
	FromGroup    Source = "group"    // the group's own setting
	FromQueue    Source = "queue"    // the setting of the whole queue
	FromDefaults Source = "defaults" // the defaults of all queues of the prefix
	FromBuiltIn  Source = "built-in"
)

// InForce is a setting of a group, or of a whole queue, with the level that its value comes from.
type InForce struct {
	Setting
	Value Value // in force
	From  Source

	// Stored is the group's or queue's own setting, in the form of the hash; "" = it has none. An invalid one does not
	// count.
	Stored string

	// Inherited is the value in force if the group or queue has no setting of its own.
	Inherited     Value
	InheritedFrom Source
}

// IsOwn reports whether the value in force is the group's or the queue's own.
func (f InForce) IsOwn() bool { return f.Stored != "" && f.From != f.InheritedFrom }

// ReadInForce returns the settings of a group or, if group is "", of a queue, in the order in which they are shown,
// with their levels. For a group it leaves out the settings of a whole queue. Unlike Read, it does not raise RetryMax
// to RetryMin. One round trip.
func ReadInForce(ctx context.Context, c rueidis.Client, prefix, queue, group string) ([]InForce, error) {
	err := lua.CheckQueue(queue)
	if group != "" {
		err = errors.Join(err, lua.CheckGroup(group))
	}
	if err != nil {
		return nil, err
	}
	own, defaults, err := readHashes(ctx, c, prefix, queue)
	if err != nil {
		return nil, err
	}
	var all []InForce
	for _, s := range settings {
		if s.WholeQueue && group != "" {
			continue
		}
		levels := levelsOf(s, group, own, defaults)
		if group == "" && !s.WholeQueue {
			levels = levels[1:]
		}
		one := InForce{Setting: s, Stored: levels[0].hash[levels[0].name]}
		one.Value, one.From = s.firstOf(levels)
		one.Inherited, one.InheritedFrom = s.firstOf(levels[1:])
		all = append(all, one)
	}
	return all, nil
}

// firstOf returns the first valid value, or else the built-in one.
func (s Setting) firstOf(levels []level) (Value, Source) {
	for _, level := range levels {
		if v, err := s.parse(level.hash[level.name]); err == nil && level.hash[level.name] != "" {
			return v, level.from
		}
	}
	return s.Get(Default()), FromBuiltIn
}

// ParseStored reads a value in the form of the hash, and checks its limits.
func (s Setting) ParseStored(text string) (Value, error) { return s.parse(text) }
