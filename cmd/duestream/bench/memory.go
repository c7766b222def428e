package bench

import (
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
	cfg.Config = cfg.Config.withDefaults(200_000, 1)
	preset(map[*time.Duration]time.Duration{&cfg.Rest: DefaultRest})
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
		for round := range r.Rounds {
			r.Progress("memory round", round, r.Rounds)
			if err := m.round(ctx, cfg.Rest); err != nil {
				return Result{}, err
			}
		}
		return noted(result("memory", m.scheduled, m.ready, m.pending, m.left),
			"used_memory without mem_clients_normal; IDs of 26 bytes", slow(ctx)), nil
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
	groups := []string{group, group + "-2"}
	held := empty
	per := func() (float64, error) {
		now, err := m.used(ctx)
		grown := (now - held) / float64(m.Messages)
		held = now
		return grown, err
	}
	if err := m.due(ctx, "fill", groups...); err != nil {
		return err
	}
	if err := m.client.Close(); err != nil { // forgets the tokens of its calls
		return err
	}
	client, err := m.newClient()
	if err != nil {
		return err
	}
	m.client = client
	scheduled, err := per()
	if err != nil {
		return err
	}
	if err := m.hold(ctx, false); err != nil {
		return err
	}
	if _, err := m.drainAlone(ctx); err != nil {
		return err
	}
	grown, err := per()
	if err != nil {
		return err
	}
	var pending []float64
	for _, g := range groups {
		if _, err := m.readAlone(ctx, g, func(context.Context, []rueidis.XRangeSlice) error { return nil }); err != nil {
			return err
		}
		one, err := per()
		if err != nil {
			return err
		}
		pending = append(pending, one)
	}
	for _, g := range groups {
		if err := m.ackAll(ctx, g); err != nil {
			return err
		}
	}
	left, err := m.rested(ctx, rest)
	if err != nil || rest == 0 {
		return err
	}
	m.scheduled.add(scheduled)
	m.ready.add(scheduled + grown)
	for _, one := range pending {
		m.pending.add(one)
	}
	m.left.add(100 * (left - empty) / empty)
	return nil
}

// used returns the server's memory, once the server has freed all unlinked memory in the background.
func (r *rig) used(ctx context.Context) (float64, error) {
	_ = r.c.Do(ctx, r.c.B().MemoryPurge().Build().SetSlot(r.keys.Due)).Error() // an error means that it is not allowed
	if err := r.freed(ctx); err != nil {
		return 0, err
	}
	values, err := r.info(ctx, "memory")
	if err == nil && values["used_memory"] == 0 {
		err = errors.New("memory: the server does not tell used_memory by INFO")
	}
	return values["used_memory"] - values["mem_clients_normal"], err
}

const restSlack = 4 << 10 // bytes: the effect of one more or one less request

// rested returns used once it has been constant for the time rest, because the server updates its client buffers only
// now and then. After four times rest it returns the last value.
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
		if err != nil { // not allowed
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

// ackAll acknowledges all entries that a group holds, and frees those that no other group needs.
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

const sampleEvery = 20 * time.Millisecond

// watch samples the memory until the returned function is called. That function returns the maximum.
func (r *rig) watch(ctx context.Context) (most func() (float64, error)) {
	ctx, cancel := context.WithCancel(ctx)
	type seen struct {
		most float64
		err  error
	}
	ended := make(chan seen, 1)
	go func() {
		var s seen
		for s.err == nil && ctx.Err() == nil {
			var values map[string]float64
			values, s.err = r.info(ctx, "memory")
			s.most = max(s.most, values["used_memory"]-values["mem_clients_normal"])
			_ = pause(ctx, sampleEvery)
		}
		if ctx.Err() != nil {
			s.err = nil
		}
		ended <- s
	}()
	return func() (float64, error) {
		cancel()
		s := <-ended
		return s.most, s.err
	}
}
