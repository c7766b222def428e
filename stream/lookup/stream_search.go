package lookup

import (
	"context"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// searchStep is how many entries the server looks at in one call. During the call it serves no other client.
const searchStep = 250

// eachEntry calls add for every entry of the message in a stream, oldest first. It begins after the entry with the ID
// after, or at the beginning of the stream if after is "". It returns the ID of the newest entry that was looked at.
func (s *finder) eachEntry(
	ctx context.Context, key, after string, add func(context.Context, rueidis.XRangeSlice) error,
) (newest string, err error) {
	for step := (lua.EntrySearch{Cursor: after, Limit: searchStep, More: true}); ; {
		var entries []string
		step, entries, err = s.findEntries(ctx, key, step)
		if err != nil {
			return step.Cursor, err
		}
		for _, id := range entries {
			entry, ok, err := view.ReadEntry(ctx, s.c, key, id)
			if err != nil {
				return step.Cursor, err
			}
			if !ok { // it was deleted just now
				continue
			}
			if err := add(ctx, entry); err != nil {
				return step.Cursor, err
			}
		}
		s.addProgress(int64(step.Looked), 0)
		if !step.More {
			return step.Cursor, nil
		}
	}
}

func (s *finder) findEntries(ctx context.Context, key string, step lua.EntrySearch) (lua.EntrySearch, []string, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	return lua.FindEntries(ctx, s.c, key, s.id, step)
}
