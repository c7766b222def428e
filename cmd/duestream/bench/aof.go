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

// appended returns the size of the append-only file in bytes; negative if there is none, or the server does not say.
func (r *rig) appended(ctx context.Context) (float64, error) {
	persistence, err := r.info(ctx, "persistence")
	if persistence["aof_enabled"] != 1 {
		return -1, err
	}
	return persistence["aof_current_size"], err
}

// perMessage returns the bytes appended per message since the file had the size before; negative if unknown.
func (r *rig) perMessage(ctx context.Context, before float64) (float64, error) {
	after, err := r.appended(ctx)
	if before < 0 || after < before { // the file was rewritten
		return -1, err
	}
	return (after - before) / float64(r.Messages), err
}

// setBytes returns the bytes that a SET takes in the file besides its value: command, lengths, line ends and key.
func setBytes(key string) int { return len("*3\r\n$3\r\nSET\r\n$00\r\n\r\n$000\r\n\r\n") + len(key) }

// beside measures how long the append-only file delays any command. Each millisecond, one request of SETs makes the
// server append as many bytes as rate messages a second of this size would. Each millisecond, a PING is due, too. It
// returns the times from that moment to the replies of the PINGs, sorted.
func (r *rig) beside(ctx context.Context, rate int, bytes float64, d time.Duration) (took []time.Duration, err error) {
	var mu sync.Mutex
	var calls sync.WaitGroup
	var errs []error
	key := r.keys.Dead // clear deletes this key
	value, sent, c := rueidis.BinaryString(make([]byte, max(1, int(bytes)-setBytes(key)))), 0, r.Redis.Blocking
	begin := time.Now()
	for tick := time.Duration(0); tick < d && err == nil; tick += time.Millisecond {
		r.Progress("floor", int(tick/time.Millisecond), int(d/time.Millisecond))
		at := begin.Add(tick)
		err = pause(ctx, time.Until(at))
		var writes rueidis.Commands
		for ; sent < int((tick+time.Millisecond).Seconds()*float64(rate)); sent++ {
			writes = append(writes, r.c.B().Set().Key(key).Value(value).Build())
		}
		calls.Go(func() {
			written := failed("SET", r.c.DoMulti(ctx, writes...))
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, written)
		})
		calls.Go(func() {
			answer := c.Do(ctx, c.B().Arbitrary("PING").Build().SetSlot(key)).Error()
			mu.Lock()
			defer mu.Unlock()
			took, errs = append(took, time.Since(at)), append(errs, lua.Classify("PING", answer))
		})
	}
	calls.Wait()
	slices.Sort(took)
	return took, errors.Join(append(errs, err, r.clear(ctx))...)
}
