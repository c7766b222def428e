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
	trimLimit     = 1000
	trimBytes     = 1 << 20
	trimCalls     = 100
	trimFruitless = 8 // of these, calls of the sweep that free nothing
	// trimLeases is the number of removed leases after which another call follows. A call looks at 200 leases: if so many
	// of them were of settled entries, most other leases are as well.
	trimLeases = 100

	turnLimit = 100 // keys per call
	turnCalls = 20

	minSweepWait = time.Second
	maxSweepWait = 30 * time.Second
)

// Trimmer frees acknowledged entries for consumers that only run XACK, and ended dedup windows. It keeps a cursor
// between passes. Not safe for concurrent use; any number of processes may trim the same queue.
type Trimmer struct {
	client rueidis.Client
	queue  string
	keys   lua.Keys

	cursor    string // of the sweep behind entries that stay pending
	fruitful  bool   // the sweep freed something in its present round
	sweepWait time.Duration
	sweepFrom time.Time // the sweep rests until then

	orphans [2]orphanSweep

	turns lua.TurnsPassed // progress through the keys of messages

	tell observe.Series // nil = no observer
}

// told reports n events to the observer.
func (t *Trimmer) told(e observe.Event, n int) {
	if t.tell != nil && n > 0 {
		t.tell.Add(e, n)
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
	Freed   int  // entries
	Windows int  // dedup windows that had ended
	Groups  int  // of the stream; with none, no entry is ever freed
	Turns   bool // messages have keys
	More    bool // a bound ended the pass: continue at once
}

// Trim makes one pass. It frees everything before the oldest entry that some group still needs. Then it sweeps the rest
// for entries that no group needs. A sweep that freed nothing in a whole round rests, longer each time, at most 30s,
// until wake is called or something is freed. One round trip per 1,000 entries.
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
		t.told(observe.Freed, done.Freed)
		t.told(observe.WindowEnded, done.Windows)
		result.Freed += done.Freed
		result.Windows += done.Windows
		result.Groups, result.Turns = done.Groups, done.Turns
		if sweeping {
			t.cursor = done.Cursor
		}
		switch {
		case done.Freed > 0:
			t.fruitful = true
			t.wake()
		case done.Windows == trimLimit, done.Leases >= trimLeases:
		case !sweeping || done.Groups == 0:
			return result, nil
		case done.Cursor == "":
			if !t.fruitful {
				t.rest()
			}
			t.fruitful = false
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

// PassTurns makes one pass over the keys of messages. If the holder of a key is gone or done, it releases the key's
// next message. It returns the number of changes: messages released, missing holders, and places without a message. One
// round trip per 100 keys, at most turnCalls; the next pass continues from there.
func (t *Trimmer) PassTurns(ctx context.Context) (moved int, err error) {
	keys, members, places := false, false, false // each is complete
	for n := 0; n < turnCalls && !(keys && members && places); n++ {
		if t.turns, err = lua.PassTurns(ctx, t.client, t.keys, t.turns, turnLimit); err != nil {
			t.turns = lua.TurnsPassed{}
			return moved, fmt.Errorf("pass turns of %s: %w", t.queue, err)
		}
		moved += t.turns.Moved + t.turns.Freed + t.turns.Cleared
		keys, members, places = keys || t.turns.Cursor == "", members || t.turns.Rank == 0, places || t.turns.Place == ""
	}
	return moved, nil
}

// wake ends the rest of the sweep, because something changed.
func (t *Trimmer) wake() { t.sweepWait, t.sweepFrom = 0, time.Time{} }

func (t *Trimmer) rest() {
	t.sweepWait = min(max(2*t.sweepWait, minSweepWait), maxSweepWait)
	t.sweepFrom = time.Now().Add(t.sweepWait)
}

// Trim frees the entries of one partition that no group needs, and ended dedup windows. name is that of
// lua.PartitionName.
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
