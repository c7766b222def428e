package bridgetest

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// state is the state of all queues of a kit at one moment.
type state struct {
	partitions []*partition
}

// partition is the state of one partition of a queue.
type partition struct {
	queue string // without the number of the partition
	name  string // of the partition
	keys  lua.Keys
	isOne bool // the first partition of its queue, which holds the recurrences

	due            time.Time // of the message that is due first; zero = none is scheduled, or all wait for their keys
	lastID         view.EntryID
	hasEntry       bool
	groups         []view.GroupInfo
	turns          int64     // members of the zset of ordering keys
	lease          time.Time // end of the lease that ends first; zero = there is none
	leases         map[entryOf]time.Time
	recurs         int64  // recurrences
	revision       string // changes when somebody changes a recurrence
	areWorkersHeld bool   // the policy makes workers take nothing

	held []heldEntry // pending entries
}

// heldEntry is an entry that a consumer holds.
type heldEntry struct {
	group, id string
	consumer  string
	idle      time.Duration // by the server's own clock
}

// look reads the state of all queues, and notes how long entries are pending. It takes one round trip, another one if
// there are new queues, and one for each group with pending entries.
func (b *steppedBridge) look(ctx context.Context) (*state, error) {
	if err := b.registerFound(ctx); err != nil {
		return nil, err
	}
	for {
		s := b.knownPartitions()
		queues := map[string]string{}
		questions := []view.Question{view.Into(b.client.B().Hgetall().Key(lua.NewGlobals(b.prefix).Queues).Build(), &queues,
			rueidis.RedisResult.AsStrMap)}
		for _, p := range s.partitions {
			questions = append(questions, b.questions(p)...)
		}
		if err := view.Ask(ctx, b.client, questions...); err != nil {
			return nil, fmt.Errorf("look at the queues: %w", err)
		}
		if !maps.Equal(queues, b.queues) {
			b.queues = queues
			continue
		}
		for _, p := range s.partitions {
			for _, g := range p.groups {
				if g.Pending > 0 {
					if err := b.readHeld(ctx, p, g.Name); err != nil {
						return nil, fmt.Errorf("look at the pending entries of %s/%s: %w", p.name, g.Name, err)
					}
				}
			}
		}
		return s, b.noteAges(ctx, s)
	}
}

// registerFound registers the queues of schedules that plain commands have written. A bridge finds them by a scan.
func (b *steppedBridge) registerFound(ctx context.Context) error {
	var found []string
	for _, key := range b.written() {
		if queue, _, ok := lua.QueueOf(b.prefix, key); ok && b.queues[queue] == "" {
			found = append(found, queue)
		}
	}
	if len(found) == 0 {
		return nil
	}
	_, err := lua.Register(ctx, b.client, lua.NewGlobals(b.prefix), found)
	return err
}

// knownPartitions returns the partitions of the queues that the registry had at the last look.
func (b *steppedBridge) knownPartitions() *state {
	s := &state{}
	for _, queue := range slices.Sorted(maps.Keys(b.queues)) {
		if lua.CheckQueue(queue) != nil { // a note about deleted queues
			continue
		}
		for i, name := range lua.ParseCounts(b.queues[queue]).Names(queue) {
			s.partitions = append(s.partitions,
				&partition{queue: queue, name: name, keys: lua.NewKeys(b.prefix, name).As(b.actor), isOne: i == 0})
		}
	}
	return s
}

func (b *steppedBridge) questions(p *partition) []view.Question {
	c := b.client
	first := func(reply rueidis.RedisResult) (time.Time, error) {
		scores, err := reply.AsZScores()
		if err != nil || len(scores) == 0 {
			return time.Time{}, err
		}
		due, waits := lua.DueScore(scores[0].Score)
		if waits {
			return time.Time{}, nil
		}
		ms := math.Ceil(min(max(due, 1), 1e14)) // a due time of 0 or less is long ago; nothing is due after the year 5138
		return time.UnixMilli(int64(ms)), nil
	}
	leases := func(reply rueidis.RedisResult) (time.Time, error) {
		scores, err := reply.AsZScores()
		p.leases = map[entryOf]time.Time{}
		for _, one := range scores { // the member is length, entry and group
			if parts := strings.SplitN(one.Member, lua.Separator, 3); len(parts) == 3 {
				p.leases[entryOf{p.keys.Stream, parts[2], parts[1]}] = time.UnixMilli(int64(one.Score))
			}
		}
		if len(scores) == 0 {
			return time.Time{}, err
		}
		return time.UnixMilli(int64(scores[0].Score)), err
	}
	last := func(reply rueidis.RedisResult) (id view.EntryID, err error) {
		entries, err := reply.AsXRange()
		if err != nil || len(entries) == 0 {
			return id, err
		}
		p.hasEntry = true
		return view.ParseEntryID(entries[0].ID)
	}
	return []view.Question{
		view.GroupsOf(c, p.keys.Stream, &p.groups),
		view.Into(c.B().Xrevrange().Key(p.keys.Stream).End("+").Start("-").Count(1).Build(), &p.lastID, last),
		view.Into(c.B().Zrange().Key(p.keys.Due).Min("0").Max("0").Withscores().Build(), &p.due, first),
		view.Into(c.B().Zrange().Key(p.keys.Leases).Min("0").Max("999").Withscores().Build(), &p.lease, leases),
		view.Number(c.B().Zcard().Key(p.keys.Turns).Build(), &p.turns),
		view.Number(c.B().Hlen().Key(p.keys.Recurring).Build(), &p.recurs),
		view.Into(c.B().Hget().Key(p.keys.Policy).Field(policy.SettingHeldWorkers).Build(), &p.areWorkersHeld,
			func(reply rueidis.RedisResult) (bool, error) {
				text, err := optionalText(reply)
				return text == "1", err
			}),
		view.Into(c.B().Hget().Key(p.keys.Planned).Field("").Build(), &p.revision, optionalText),
	}
}

// optionalText reads a text; "" if there is none.
func optionalText(reply rueidis.RedisResult) (string, error) {
	text, err := reply.ToString()
	if rueidis.IsRedisNil(err) {
		return "", nil
	}
	return text, err
}

// mostHeld bounds the pending entries of a group that are read.
const mostHeld = 10_000

func (b *steppedBridge) readHeld(ctx context.Context, p *partition, group string) error {
	c := b.client
	rows, err := c.Do(ctx, c.B().Xpending().Key(p.keys.Stream).Group(group).Start("-").End("+").Count(mostHeld).Build()).
		ToArray()
	if err != nil {
		return lua.Classify("XPENDING", err)
	}
	for _, row := range rows {
		cells, err := row.ToArray()
		if err != nil || len(cells) < 3 {
			return fmt.Errorf("unexpected row of XPENDING: %w", err)
		}
		one := heldEntry{group: group}
		one.id, _ = cells[0].ToString() // these three are always there
		one.consumer, _ = cells[1].ToString()
		idle, _ := cells[2].AsInt64()
		one.idle = time.Duration(idle) * time.Millisecond
		p.held = append(p.held, one)
	}
	return nil
}

// ages remembers since when entries are pending, by the clock of the kit, because a real server counts the time by its
// own clock.
type ages struct {
	clock *kitClock
	since map[entryOf]*age
}

type entryOf struct{ stream, group, id string }

type age struct {
	since time.Time     // by the clock of the kit
	idle  time.Duration // by the server's clock, at the last look
	seen  time.Time     // real time of the first look
}

// noteAges notes new pending entries, and forgets those that are gone. If the idle time of an entry became shorter, its
// consumer has extended it.
func (b *steppedBridge) noteAges(ctx context.Context, s *state) error {
	now, present := b.clock.Now(), map[entryOf]*age{}
	for _, p := range s.partitions {
		var timeouts map[string]time.Duration
		for _, held := range p.held {
			key := entryOf{p.keys.Stream, held.group, held.id}
			one, end := b.ages.since[key], p.leases[key]
			switch {
			case one == nil && !end.IsZero(): // the entry is as old as if its lease ended with the visibility timeout
				if timeouts == nil {
					var err error
					if timeouts, err = b.timeouts(ctx, p); err != nil {
						return err
					}
				}
				one = &age{since: end.Add(-timeouts[held.group]), seen: time.Now()}
			case one == nil:
				one = &age{since: now, seen: time.Now()}
			case held.idle < one.idle && !end.IsZero():
				one.since = now.Add(-held.idle)
			case held.idle < one.idle:
				one.since = now
			}
			one.idle = held.idle
			present[key] = one
		}
	}
	b.ages.since = present
	return nil
}

// of returns for how long an entry is pending.
func (a *ages) of(p *partition, held heldEntry) time.Duration {
	one := a.since[entryOf{p.keys.Stream, held.group, held.id}]
	if one == nil {
		return 0
	}
	return max(0, a.clock.Now().Sub(one.since))
}

// seen returns the real time of the first look that found an entry.
func (a *ages) seen(p *partition, held heldEntry) time.Time {
	if one := a.since[entryOf{p.keys.Stream, held.group, held.id}]; one != nil {
		return one.seen
	}
	return time.Now()
}

// noteIdle notes the idle time that the kit has set at the server.
func (a *ages) noteIdle(p *partition, held heldEntry, idle time.Duration) {
	if one := a.since[entryOf{p.keys.Stream, held.group, held.id}]; one != nil {
		one.idle = idle
	}
}
