package campaign

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

const (
	plainCount = 8                      // COUNT of a read
	plainBlock = 300 * time.Millisecond // BLOCK of a read, divided by the number of partitions
	plainPause = 100 * time.Millisecond // pause after an error
	plainTries = 5                      // most tries of an acknowledgement
)

// plainWorker works like a worker in another language: XREADGROUP, a comparison of the field "for", and XACK. It uses
// no scripts, and does not know visibility timeouts. If the plan of a message says that the attempt fails, it leaves
// the message unacknowledged.
type plainWorker struct {
	part   part
	ledger *ledger
	client rueidis.Client
}

func (p part) plain(ctx context.Context, l *ledger) error {
	opt, err := rueidis.ParseURL(p.URL)
	if err != nil {
		return err
	}
	opt.DisableCache, opt.ForceSingleClient, opt.DisableRetry, opt.AlwaysPipelining = true, len(opt.InitAddress) == 1, true, true
	client, err := rueidis.NewClient(opt)
	for err != nil { // the server or the network is down
		if client != nil {
			client.Close()
		}
		if !pause(ctx, plainPause) {
			return nil
		}
		client, err = rueidis.NewClient(opt)
	}
	defer client.Close()
	w := &plainWorker{part: p, ledger: l, client: client}
	for ctx.Err() == nil {
		for i := range p.Partitions {
			if err := w.pass(lua.PartitionName(queueMain, i), plainBlock/time.Duration(p.Partitions)); err != nil &&
				!pause(ctx, plainPause) {
				return nil
			}
		}
		if err := w.pass(queueSide, 0); err != nil && !pause(ctx, plainPause) {
			return nil
		}
	}
	return nil
}

// pass reads a partition once, and handles the entries one by one.
func (w *plainWorker) pass(place string, block time.Duration) error {
	key := lua.NewKeys(w.part.Prefix, place).Stream
	queue, _, _ := lua.SplitPartition(place)
	ctx, cancel := context.WithTimeout(context.Background(), block+3*time.Second)
	defer cancel()
	args := []string{"XREADGROUP", "GROUP", w.part.Group, w.part.Name, "COUNT", number(plainCount)}
	if block > 0 {
		args = append(args, "BLOCK", number(block.Milliseconds()))
	}
	command := w.client.B().Arbitrary(append(args, "STREAMS")...).Keys(key).Args(">")
	var reply rueidis.RedisResult
	if block > 0 {
		reply = w.client.Do(ctx, command.Blocking())
	} else {
		reply = w.client.Do(ctx, command.Build())
	}
	streams, err := reply.AsXReadSlices()
	switch {
	case err != nil && rueidis.IsRedisNil(err):
		return nil
	case errors.Is(lua.Classify("XREADGROUP", err), lua.ErrNoGroup):
		return w.client.Do(ctx, keyed(w.client, []string{"XGROUP", "CREATE", key, w.part.Group, "0", "MKSTREAM"})).Error()
	case err != nil:
		return err
	}
	var done []bridge.Message
	var skip []string
	for _, one := range streams[key] {
		m := stream.Delivered(lua.ParseEntry(one.ID, one.FieldValues), queue, 0, w.part.Group)
		switch {
		case m.For != "" && m.For != w.part.Group:
			skip = append(skip, m.EntryID)
		case w.handle(&m):
			done = append(done, m)
		}
	}
	w.acknowledge(key, done, skip)
	return nil
}

// handle takes no time, because a plain worker does not extend. It returns false if the entry must not be
// acknowledged.
func (w *plainWorker) handle(m *bridge.Message) bool {
	w.part.recordStart(w.ledger, m)
	plan, _ := planOf(m.ID)
	_, end, _ := plan.handling(m.ID, m.Group, m.Attempt, 0)
	if isFeature(plan.kind) {
		end = plan.featured(m, true)
	}
	if end != endOK {
		end = endAbandon
	}
	w.ledger.must(line{verbEnd, bookedAs(m.ID, m.Payload), []any{m.EntryID, end}})
	return end == endOK
}

// acknowledge repeats XACK a few times after a lost reply. A reply of 0 after a repeat proves nothing.
func (w *plainWorker) acknowledge(stream string, done []bridge.Message, skip []string) {
	if len(skip) > 0 {
		// If this fails, the entries are reclaimed, and skipped again.
		_ = w.command(append([]string{"XACK", stream, w.part.Group}, skip...)).Error()
	}
	certain := true // no reply was lost, so a reply of 0 means that somebody else had removed the entry
	for range plainTries {
		if len(done) == 0 {
			return
		}
		commands := make(rueidis.Commands, len(done))
		for i, m := range done {
			commands[i] = keyed(w.client, []string{"XACK", stream, w.part.Group, m.EntryID})
		}
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		replies := w.client.DoMulti(ctx, commands...)
		cancel()
		var left []bridge.Message
		lines := make([]line, 0, len(done))
		for i, m := range done {
			n, err := replies[i].AsInt64()
			if err != nil {
				left = append(left, m)
				continue
			}
			result := bridge.Unknown
			switch {
			case n == 1:
				result = bridge.Acknowledged
			case certain:
				result = bridge.Lost
			}
			lines = append(lines, line{verbSettle, bookedAs(m.ID, m.Payload), []any{m.EntryID, string(result)}})
		}
		if len(lines) > 0 {
			w.ledger.must(lines...)
		}
		if done = left; len(done) > 0 {
			certain = false
			<-time.After(plainPause)
		}
	}
	for _, m := range done {
		w.ledger.must(line{verbSettle, bookedAs(m.ID, m.Payload), []any{m.EntryID, string(bridge.Unknown)}})
	}
}

func (w *plainWorker) command(args []string) rueidis.RedisResult {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	return w.client.Do(ctx, keyed(w.client, args))
}

// pause waits for d. It returns false if ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
