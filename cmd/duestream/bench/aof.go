package bench

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// aofSize returns the size of the append-only file in bytes. It is negative if there is no such file, or if the server
// does not report it.
func (r *rig) aofSize(ctx context.Context) (float64, error) {
	persistence, err := r.info(ctx, "persistence")
	if persistence["aof_enabled"] != 1 {
		return -1, err
	}
	return persistence["aof_current_size"], err
}

// appendedPerMessage returns the bytes appended per message since the file had the given size. It is negative if it is
// unknown: there was no file, or the file was rewritten.
func (r *rig) appendedPerMessage(ctx context.Context, sizeBefore float64) (float64, error) {
	size, err := r.aofSize(ctx)
	if sizeBefore < 0 || size < sizeBefore {
		return -1, err
	}
	return (size - sizeBefore) / float64(r.Messages), err
}

// setBytes returns the bytes that a SET takes in the file besides its value: command, lengths, line ends and key.
func setBytes(key string) int { return len("*3\r\n$3\r\nSET\r\n$00\r\n\r\n$000\r\n\r\n") + len(key) }

// aofDelays measures how long the append-only file delays any command. Each millisecond, one request of SETs makes the
// server append as many bytes as rate messages a second, of this many bytes each, would. Also each millisecond, a PING
// is due. aofDelays returns the times from the due times of the PINGs to their replies, sorted.
func (r *rig) aofDelays(
	ctx context.Context, rate int, bytes float64, d time.Duration,
) (took []time.Duration, err error) {
	var mu sync.Mutex
	var calls sync.WaitGroup
	var errs []error
	key := r.keys.Dead // clear deletes this key
	value := rueidis.BinaryString(make([]byte, max(1, int(bytes)-setBytes(key))))
	pings := r.Redis.Blocking
	sent := 0 // SETs
	begin := time.Now()
	for tick := time.Duration(0); tick < d && err == nil; tick += time.Millisecond {
		r.Progress("floor", int(tick/time.Millisecond), int(d/time.Millisecond))
		due := begin.Add(tick)
		err = pause(ctx, time.Until(due))
		var writes rueidis.Commands
		for ; sent < int((tick+time.Millisecond).Seconds()*float64(rate)); sent++ {
			writes = append(writes, r.c.B().Set().Key(key).Value(value).Build())
		}
		calls.Go(func() {
			err := firstError("SET", r.c.DoMulti(ctx, writes...))
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
		calls.Go(func() {
			err := pings.Do(ctx, pings.B().Arbitrary("PING").Build().SetSlot(key)).Error()
			mu.Lock()
			defer mu.Unlock()
			took, errs = append(took, time.Since(due)), append(errs, lua.Classify("PING", err))
		})
	}
	calls.Wait()
	slices.Sort(took)
	return took, errors.Join(append(errs, err, r.clear(ctx))...)
}
