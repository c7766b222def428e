package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// MemoryConfig configures Memory. Messages is 200,000 by default, Rounds 1.
type MemoryConfig struct {
	Config
	Rest time.Duration // how long memory must stay constant until it counts; default 6s
}

// DefaultRest is longer than a server takes to shrink the buffers of idle clients.
const DefaultRest = 6 * time.Second

// Memory measures the server's memory per message in each state: scheduled, ready, pending for one group, and for a
// second one. It also measures the memory left after both groups have acknowledged everything. The measure is
// used_memory without client buffers, which vary. No bridge runs.
func Memory(ctx context.Context, cfg MemoryConfig) (Result, error) {
	cfg.Config, cfg.Rest = cfg.Config.withDefaults(200_000, 1), cmp.Or(cfg.Rest, DefaultRest)
	return on(ctx, cfg.Config, func(ctx context.Context, r *rig) (Result, error) {
		m := &memory{
			rig: r, scheduled: lower("memory_scheduled", "bytes/msg"), ready: lower("memory_ready", "bytes/msg"),
			pending: lower("memory_pending_per_group", "bytes/msg"), left: lower("memory_left_when_acknowledged", "% of empty"),
		}
		slow := r.slowLog(ctx)
		n := r.Messages
		r.Messages = min(n, chunk) // a warm-up, so that scripts and buffers are allocated
		if err := m.round(ctx, 0); err != nil {
			return Result{}, err
		}
		r.Messages = n
		err := r.rounds("memory round", func() error { return m.round(ctx, cfg.Rest) })
		return noted(result("memory", m.scheduled, m.ready, m.pending, m.left),
			"used_memory without mem_clients_normal; IDs of 26 bytes", slow(ctx)), err
	})
}

type memory struct {
	*rig
	scheduled, ready, pending, left *series
}

// round takes the messages through all states. rest is 0 for a round that does not count.
func (m *memory) round(ctx context.Context, rest time.Duration) error {
	if err := m.clear(ctx); err != nil {
		return err
	}
	empty, err := m.rested(ctx, rest)
	if err != nil {
		return err
	}
	last := empty
	grownPerMessage := func() (float64, error) { // since the last call
		now, err := m.used(ctx)
		grown := (now - last) / float64(m.Messages)
		last = now
		return grown, err
	}
	if err := m.fillDue(ctx, twoGroups...); err != nil {
		return err
	}
	if err := m.client.Close(); err != nil { // so that the client forgets the tokens of its calls
		return err
	}
	client, err := m.newClient()
	if err != nil {
		return err
	}
	m.client = client
	scheduled, err := grownPerMessage()
	if err != nil {
		return err
	}
	if err := m.hold(ctx, false); err != nil {
		return err
	}
	if _, err := m.drainAlone(ctx); err != nil {
		return err
	}
	drained, err := grownPerMessage()
	if err != nil {
		return err
	}
	var pending []float64
	unsettled := func(context.Context, string, []rueidis.XRangeSlice) error { return nil }
	for _, g := range twoGroups {
		if _, err := m.readAlone(ctx, g, unsettled); err != nil {
			return err
		}
		read, err := grownPerMessage()
		if err != nil {
			return err
		}
		pending = append(pending, read)
	}
	for _, g := range twoGroups {
		if err := m.ackAll(ctx, g); err != nil {
			return err
		}
	}
	left, err := m.rested(ctx, rest)
	if err != nil || rest == 0 {
		return err
	}
	m.scheduled.add(scheduled)
	m.ready.add(scheduled + drained)
	for _, read := range pending {
		m.pending.add(read)
	}
	m.left.add(100 * (left - empty) / empty)
	return nil
}

// used returns the server's memory, once the server has freed all unlinked memory in the background.
func (r *rig) used(ctx context.Context) (float64, error) {
	_ = r.c.Do(ctx, r.c.B().MemoryPurge().Build().SetSlot(r.keys.Due)).Error() // a user may lack the right to it
	if err := r.freed(ctx); err != nil {
		return 0, err
	}
	used, err := r.usedMemory(ctx)
	if err == nil && used == 0 {
		err = errors.New("memory: the server does not report used_memory by INFO")
	}
	return used, err
}

// usedMemory returns the server's memory without client buffers, in bytes, or 0 if the server does not report it.
func (r *rig) usedMemory(ctx context.Context) (float64, error) {
	values, err := r.info(ctx, "memory")
	if values["used_memory"] == 0 {
		return 0, err
	}
	return values["used_memory"] - values["mem_clients_normal"], err
}

const restSlack = 4 << 10 // bytes: the effect of one more or one less request

// rested returns the result of used once the result has been constant for the time rest, because the server updates its
// client buffers only now and then. After four times rest it returns the last result.
func (r *rig) rested(ctx context.Context, rest time.Duration) (float64, error) {
	last, err := r.used(ctx)
	for since, begin := time.Now(), time.Now(); err == nil && time.Since(since) < rest && time.Since(begin) < 4*rest; {
		r.Progress("waiting for the server to rest", int(time.Since(begin).Seconds()), 0)
		if err = pause(ctx, rest/20); err != nil {
			break
		}
		var now float64
		if now, err = r.used(ctx); math.Abs(now-last) > restSlack {
			last, since = now, time.Now()
		}
	}
	return last, err
}

// slowLog begins to watch the server's slow log. The returned function returns a note if the log has grown: its
// entries hold arguments, whose memory belongs to no message.
func (r *rig) slowLog(ctx context.Context) (grown func(context.Context) string) {
	size := func(ctx context.Context) int {
		n, err := r.number(ctx, r.c.B().SlowlogLen().Build().SetSlot(r.keys.Due))
		if err != nil { // a user may lack the right to it
			return 0
		}
		return n
	}
	before := size(ctx)
	return func(ctx context.Context) string {
		if n := size(ctx) - before; n > 0 {
			return fmt.Sprintf("the server's slow log grew by %d entries of at most some KiB, which are in what is left", n)
		}
		return ""
	}
}

// ackAll acknowledges all entries that a group holds, and frees the entries that no other group needs.
func (r *rig) ackAll(ctx context.Context, group string) error {
	for {
		rows, err := r.c.Do(ctx,
			r.c.B().Xpending().Key(r.keys.Stream).Group(group).Start("-").End("+").Count(floorLimit).Build()).ToArray()
		if err != nil || len(rows) == 0 {
			return lua.Classify("XPENDING", err)
		}
		held := make([]lua.Held, len(rows))
		for i := range rows {
			cells, err := rows[i].ToArray()
			if err != nil || len(cells) == 0 {
				return lua.Classify("XPENDING", err)
			}
			if held[i].Entry, err = cells[0].ToString(); err != nil {
				return err
			}
		}
		if _, err := lua.Ack(ctx, r.c, r.keys, group, held); err != nil {
			return err
		}
	}
}

const sampleInterval = 20 * time.Millisecond

// sampleMemory samples the memory until the returned function is called, which returns the maximum.
func (r *rig) sampleMemory(ctx context.Context) (end func() (maximum float64, err error)) {
	ctx, cancel := context.WithCancel(ctx)
	var maximum float64
	var failure error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			used, err := r.usedMemory(ctx)
			if err != nil {
				if ctx.Err() == nil { // the end of the sampling is no failure
					failure = err
				}
				return
			}
			maximum = max(maximum, used)
			_ = pause(ctx, sampleInterval)
		}
	}()
	return func() (float64, error) {
		cancel()
		<-ended
		return maximum, failure
	}
}
