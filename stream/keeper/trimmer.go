package keeper

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// Bounds of one trim call, and of one pass.
const (
	trimLimit     = 1000    // per call: entries freed, and dedup windows ended
	trimBytes     = 1 << 20 // per call: bytes of entries that the sweep reads
	trimCalls     = 100     // per pass
	trimFruitless = 8       // per pass: calls in which the sweep frees nothing
	// trimLeases is the number of removed leases after which another call follows. A call looks at 200 leases: if so
	// many of them were of settled entries, most other leases are as well.
	trimLeases = 100
	// trimCursors is the same for cursors of progress. A call looks at about 100 of them.
	trimCursors = 50

	turnLimit = 100 // ordering keys per call
	turnCalls = 20  // per pass

	minSweepWait = time.Second      // shortest rest of the sweep, and between two passes over ordering keys
	maxSweepWait = 30 * time.Second // longest rest
)

// Trimmer frees acknowledged entries for consumers that only run XACK, and ended dedup windows. It keeps a cursor
// between passes. Not safe for concurrent use; any number of processes may trim the same queue.
type Trimmer struct {
	client rueidis.Client
	queue  string
	keys   lua.Keys

	// The sweep frees entries that lie behind an entry that stays pending.
	cursor    string        // of the sweep
	hasFreed  bool          // the sweep has freed an entry in its present round
	sweepWait time.Duration // length of the sweep's last rest
	sweepFrom time.Time     // end of the sweep's rest

	orphans [2]orphanSweep // of payload and meta

	turns lua.TurnsPassed // progress through the ordering keys

	events observe.Series // nil: there is no observer
}

// report reports n events to the observer.
func (t *Trimmer) report(e observe.Event, n int) {
	if t.events != nil && n > 0 {
		t.events.Add(e, n)
	}
}

// NewTrimmer returns a Trimmer for one queue.
func NewTrimmer(c rueidis.Client, prefix, queue string) *Trimmer {
	keys := lua.NewKeys(prefix, queue)
	return &Trimmer{
		client: c, queue: queue, keys: keys,
		orphans: [2]orphanSweep{newOrphanSweep(keys.Payload), newOrphanSweep(keys.Meta)},
	}
}

// TrimResult counts the actions of one pass.
type TrimResult struct {
	Freed   int  // entries freed
	Windows int  // dedup windows that had ended, and were deleted
	Groups  int  // groups of the stream; without groups no entry is ever freed
	Turns   bool // messages have ordering keys
	More    bool // a bound ended the pass, so the next pass should follow at once
}

// Trim makes one pass. First it frees all entries before the oldest entry that some group still needs. Then it sweeps
// the other entries for those that no group needs. A sweep that freed no entry in a whole round rests: longer each
// time, at most 30s, until wake is called or an entry is freed. It takes one round trip per 1,000 entries.
func (t *Trimmer) Trim(ctx context.Context) (TrimResult, error) {
	var result TrimResult
	fruitless := 0
	for range trimCalls {
		sweeping := !time.Now().Before(t.sweepFrom)
		maxBytes := trimBytes
		if !sweeping {
			maxBytes = 0
		}
		done, err := lua.Trim(ctx, t.client, t.keys, t.cursor, trimLimit, maxBytes)
		if err != nil {
			return result, fmt.Errorf("trim %s: %w", t.queue, err)
		}
		t.report(observe.Freed, done.Freed)
		t.report(observe.WindowEnded, done.Windows)
		result.Freed += done.Freed
		result.Windows += done.Windows
		result.Groups, result.Turns = done.Groups, done.Turns
		if sweeping {
			t.cursor = done.Cursor
		}
		switch {
		case done.Freed > 0:
			t.hasFreed = true
			t.wake()
		case done.Windows == trimLimit, done.Leases >= trimLeases, done.Cursors >= trimCursors:
			// there are more windows, leases or cursors to delete
		case !sweeping || done.Groups == 0:
			return result, nil
		case done.Cursor == "": // the sweep has finished a round
			if !t.hasFreed {
				t.rest()
			}
			t.hasFreed = false
			return result, nil
		default:
			if fruitless++; fruitless == trimFruitless {
				return result, nil
			}
		}
	}
	result.More = true
	return result, nil
}

// PassTurns makes one pass over the ordering keys. If the message that holds a key is gone or finished, it releases the
// next message of the key. It returns the number of changes: messages released, missing holders, and places without a
// message. It takes one round trip per 100 keys, at most turnCalls; the next pass continues where this pass ended.
func (t *Trimmer) PassTurns(ctx context.Context) (changes int, err error) {
	// Each call continues three walks. The pass ends when each walk has reached its end.
	keysDone, membersDone, placesDone := false, false, false
	for n := 0; n < turnCalls && !(keysDone && membersDone && placesDone); n++ {
		if t.turns, err = lua.PassTurns(ctx, t.client, t.keys, t.turns, turnLimit); err != nil {
			t.turns = lua.TurnsPassed{}
			return changes, fmt.Errorf("pass turns of %s: %w", t.queue, err)
		}
		changes += t.turns.Moved + t.turns.Freed + t.turns.Cleared
		keysDone = keysDone || t.turns.Cursor == ""
		membersDone = membersDone || t.turns.Rank == 0
		placesDone = placesDone || t.turns.Place == ""
	}
	return changes, nil
}

// wake ends the rest of the sweep. It is called when the stream or its groups have changed.
func (t *Trimmer) wake() { t.sweepWait, t.sweepFrom = 0, time.Time{} }

// rest lets the sweep rest, twice as long as the last time.
func (t *Trimmer) rest() {
	t.sweepWait = min(max(2*t.sweepWait, minSweepWait), maxSweepWait)
	t.sweepFrom = time.Now().Add(t.sweepWait)
}

// Trim frees the entries of one partition that no group needs, and deletes ended dedup windows. name is the partition's
// name, as lua.PartitionName gives it.
func Trim(ctx context.Context, c rueidis.Client, prefix, name string) (freed, windows int, err error) {
	t := NewTrimmer(c, prefix, name)
	for {
		done, err := t.Trim(ctx)
		freed, windows = freed+done.Freed, windows+done.Windows
		if err != nil || !done.More {
			return freed, windows, err
		}
	}
}
