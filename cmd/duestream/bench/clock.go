package bench

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/duestream/duestream/lua"
)

// clock computes the server's time from the clock of this process.
type clock struct{ offset time.Duration }

const clockReadings = 25 // the reading with the shortest round trip counts

const clockSlack = 200 * time.Microsecond // servers read their clock once for several commands

// clock compares the server's clock with the clock of this process, by TIME. It ignores a difference that the round
// trip may explain. It corrects a larger difference, and returns a note with its size and accuracy.
func (r *rig) clock(ctx context.Context) (clock, string, error) {
	best, offset := time.Duration(math.MaxInt64), time.Duration(0)
	for range clockReadings {
		begin := time.Now()
		reply, err := r.c.Do(ctx, r.c.B().Time().Build().SetSlot(r.keys.Due)).AsIntSlice()
		took := time.Since(begin)
		if err != nil || len(reply) != 2 {
			return clock{}, "", fmt.Errorf("compare clocks: %w", lua.Classify("TIME", err))
		}
		if took < best {
			best, offset = took, time.Unix(reply[0], reply[1]*1000).Sub(begin.Add(took/2))
		}
	}
	if offset.Abs() <= best/2+clockSlack {
		return clock{}, "", nil
	}
	note := fmt.Sprintf("the server's clock is %s from ours, give or take %s, by TIME: lateness is corrected by this",
		offset.Round(time.Microsecond), (best / 2).Round(time.Microsecond))
	return clock{offset}, note, nil
}

func (c clock) now() time.Time { return time.Now().Add(c.offset) }
