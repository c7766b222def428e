package policy

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// MostChanges is the number of changes of settings that a queue keeps.
const MostChanges = 50

// Change is a recorded change of a setting. Programs that write the policy hash without the script set_policy, such as
// redis-cli and releases before the record existed, leave no record.
type Change struct {
	At       time.Time `json:"at"`              // by the server's clock
	By       string    `json:"by"`              // "token ana", "operator ann@ops-1 99"; "" = unknown
	Group    string    `json:"group,omitempty"` // "" = the whole queue
	Setting  string    `json:"setting"`         // one of the constants SettingVisibility and others
	Old, New string    // stored values, at most 1 KiB of each; "" = no value of the queue's or group's own
}

// ReadChanges returns the recorded changes of settings of a queue and its groups, the newest first, at most
// MostChanges. The record expires a year after the last change, and is deleted with the queue. One XREVRANGE.
func ReadChanges(ctx context.Context, c rueidis.Client, prefix, queue string) ([]Change, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	key := lua.NewKeys(prefix, queue).Changes
	entries, err := c.Do(ctx, c.B().Xrevrange().Key(key).End("+").Start("-").Count(MostChanges).Build()).AsXRange()
	if err != nil {
		return nil, fmt.Errorf("read changes of the settings of %s: %w", queue, lua.Classify("XREVRANGE "+key, err))
	}
	changes := make([]Change, 0, len(entries))
	for _, e := range entries {
		change := Change{At: lua.EntryTime(e.ID), By: e.FieldValues["by"], Setting: e.FieldValues["field"],
			Old: e.FieldValues["old"], New: e.FieldValues["new"]}
		if rest, ofGroup := strings.CutPrefix(change.Setting, "group:"); ofGroup {
			if group, setting, ok := splitGroupSetting(rest); ok {
				change.Group, change.Setting = group, setting
			}
		}
		changes = append(changes, change)
	}
	return changes, nil
}
