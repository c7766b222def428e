package inspect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Bounds of one look of a Watcher.
const (
	glancePartitions = 512             // partitions; of more, the queues take turns
	glanceBatch      = 64              // partitions asked in one pipeline
	glanceGroups     = 64              // groups of a partition that are looked at one by one
	glanceConsumers  = 500             // consumers of a group; of more, all count as alive
	glanceRetries    = 100             // members of the schedule in which retries are counted
	glanceNewest     = 10              // entries whose lateness is looked at
	glanceBytes      = 2 << 20         // of the newest entries, of all queues together
	glanceUnknown    = 32 << 10        // what an entry counts for that was not seen yet
	glanceTimeout    = 2 * time.Second // of each pipeline
	consumerAlive    = time.Minute     // since a consumer last asked for entries
)

// Glance is what a Watcher sees of a queue, in all its partitions together: figures that cost the server next to nothing. What
// they cannot say exactly, Stats does.
type Glance struct {
	Queue      string `json:"queue"`
	Partitions int    `json:"partitions"`
	Held       bool   `json:"held"`
	Err        error  `json:"-"` // the queue could not be looked at; the rest is of the last time that it could

	Scheduled int64       `json:"scheduled"` // with retries, and with what is overdue
	Overdue   int64       `json:"overdue"`
	Behind    view.Millis `json:"behind_ms"` // how late the oldest overdue message is by now

	// Late is the greatest lateness of the newest entries: when each became ready − when it was due. Nil: none was seen within a
	// minute. Entries that a worker was quicker to acknowledge are not seen.
	Late *view.Millis `json:"late_ms,omitempty"`

	Ready       int64         `json:"ready"` // see QueueStats
	ReadyApprox bool          `json:"ready_approx,omitempty"`
	Entries     int64         `json:"entries"`
	Dead        int64         `json:"dead"`
	PerSecond   *QueueRates   `json:"per_second,omitempty"` // since the look before; nil at the first
	Groups      []GroupGlance `json:"groups"`
	MoreGroups  int           `json:"more_groups,omitempty"` // that were not looked at
}

// QueueRates is what happened in a queue, per second. Nil: the server does not say.
type QueueRates struct {
	In   *float64 `json:"in"`   // became scheduled, retries included; what was cancelled meanwhile is taken off
	Out  *float64 `json:"out"`  // became ready
	Done *float64 `json:"done"` // were freed, because every group was done with them
}

// GroupGlance is what a Watcher sees of a group.
type GroupGlance struct {
	Name      string       `json:"name"`
	Lag       int64        `json:"lag"`
	LagApprox bool         `json:"lag_approx,omitempty"` // at most this, where the server does not say
	Pending   int64        `json:"pending"`
	Oldest    *view.Millis `json:"oldest_idle_ms,omitempty"` // how long the oldest pending entry has been without a sign of life

	// Alive is how many consumers asked for entries within the last minute, of Consumers. AliveApprox: before Redis 7.2 a
	// consumer without work cannot be told from one that is gone, and all count.
	Alive       int64 `json:"alive"`
	AliveApprox bool  `json:"alive_approx,omitempty"`
	Consumers   int64 `json:"consumers"`

	// Retrying is how many retries for the group are among the 100 members of each partition that are due next. RetryingMore: the
	// schedule is longer than that.
	Retrying     int64 `json:"retrying"`
	RetryingMore bool  `json:"retrying_more,omitempty"`

	// Done is how many deliveries ended per second: acknowledged, failed, or skipped because they are for another group.
	Done *float64 `json:"done_per_second,omitempty"`
}

// glancedPartition is what was read of one partition.
type glancedPartition struct {
	name                                     string
	keys                                     lua.Keys
	err                                      error
	scheduled, overdue, metas, entries, dead int64
	head                                     float64
	hasHead                                  bool
	held                                     bool
	groups                                   []view.GroupInfo
	details                                  []groupDetail // of the first glanceGroups groups
	retries                                  map[string]int64
	late                                     *view.Millis
	newest                                   time.Time // when the newest entry became ready
}

type groupDetail struct {
	oldest    *view.Millis
	consumers map[string]bool // → alive
	many      bool            // more than are looked at
	approx    bool
}

// read looks at partitions, in two round trips per batch: one for the queue, one for its groups. now is the server's clock.
func (w *Watcher) read(ctx context.Context, parts []*glancedPartition, now time.Time) {
	for batch := range slices.Chunk(parts, glanceBatch) {
		for _, step := range []func(context.Context, []*glancedPartition, time.Time){w.readFirst, w.readSecond} {
			call, cancel := context.WithTimeout(ctx, glanceTimeout)
			step(call, batch, now)
			cancel()
		}
	}
}

const firstCommands = 8

func (w *Watcher) readFirst(ctx context.Context, parts []*glancedPartition, now time.Time) {
	b, ms := w.c.B, strconv.FormatInt(now.UnixMilli(), 10)
	cmds := make([]rueidis.Completed, 0, firstCommands*len(parts))
	for _, p := range parts {
		cmds = append(cmds,
			b().Zcard().Key(p.keys.Due).Build(),
			b().Zcount().Key(p.keys.Due).Min("-inf").Max(ms).Build(),
			b().Hlen().Key(p.keys.Meta).Build(),
			b().Xlen().Key(p.keys.Stream).Build(),
			b().Xlen().Key(p.keys.Dead).Build(),
			b().Zrange().Key(p.keys.Due).Min("0").Max("0").Withscores().Build(),
			b().Hget().Key(p.keys.Policy).Field(stream.SettingHeld).Build(),
			b().XinfoGroups().Key(p.keys.Stream).Build(),
		)
	}
	replies := w.c.DoMulti(ctx, cmds...)
	for i, p := range parts {
		p.err = p.first(replies[i*firstCommands : (i+1)*firstCommands])
	}
}

func (p *glancedPartition) first(replies []rueidis.RedisResult) (err error) {
	k := p.keys
	for i, n := range []*int64{&p.scheduled, &p.overdue, &p.metas, &p.entries, &p.dead} {
		if *n, err = replies[i].AsInt64(); err != nil {
			return lua.Classify([]string{"ZCARD " + k.Due, "ZCOUNT " + k.Due, "HLEN " + k.Meta, "XLEN " + k.Stream, "XLEN " +
				k.Dead}[i], err)
		}
	}
	head, err := replies[5].AsZScores()
	if err != nil {
		return lua.Classify("ZRANGE "+k.Due, err)
	}
	if p.hasHead = len(head) > 0; p.hasHead {
		p.head = head[0].Score
	}
	held, err := replies[6].ToString()
	if err != nil && !rueidis.IsRedisNil(err) {
		return lua.Classify("HGET "+k.Policy, err)
	}
	p.held = held == "1"
	groups, err := replies[7].ToArray()
	if err != nil && !strings.Contains(err.Error(), "no such key") {
		return lua.Classify("XINFO GROUPS "+k.Stream, err)
	}
	for _, one := range groups {
		g, err := view.ParseGroup(one)
		if err != nil {
			return fmt.Errorf("XINFO GROUPS %s: unexpected reply: %w", k.Stream, err)
		}
		p.groups = append(p.groups, g)
	}
	return nil
}

// readSecond asks for what the first look said is there. What fails here is left out: the stream may be gone by now.
func (w *Watcher) readSecond(ctx context.Context, parts []*glancedPartition, _ time.Time) {
	var cmds []rueidis.Completed
	var takes []func(rueidis.RedisResult)
	ask := func(cmd rueidis.Completed, take func(rueidis.RedisResult)) {
		cmds, takes = append(cmds, cmd), append(takes, take)
	}
	for _, p := range parts {
		if p.err != nil {
			continue
		}
		b, stream := w.c.B, p.keys.Stream
		if p.metas > 0 && p.scheduled > 0 { // each retry has meta
			ask(b().Zrange().Key(p.keys.Due).Min("0").Max(strconv.Itoa(glanceRetries-1)).Build(), p.takeRetries)
		}
		if p.entries > 0 && w.bytes > 0 {
			newest := b().Xrevrange().Key(stream).End("+").Start("-").Count(w.spend(p.name)).Build()
			ask(newest, func(r rueidis.RedisResult) { w.takeNewest(p, r) })
		}
		p.details = make([]groupDetail, min(len(p.groups), glanceGroups))
		for i := range p.details {
			g, d := p.groups[i], &p.details[i]
			if g.Pending > 0 {
				ask(b().Xpending().Key(stream).Group(g.Name).Start("-").End("+").Count(1).Build(), d.takeOldest)
			}
			switch {
			case g.Consumers > glanceConsumers:
				d.many = true
			case g.Consumers > 0:
				ask(b().XinfoConsumers().Key(stream).Group(g.Name).Build(), d.takeConsumers)
			}
		}
	}
	if len(cmds) == 0 {
		return
	}
	for i, reply := range w.c.DoMulti(ctx, cmds...) {
		takes[i](reply)
	}
}

func (p *glancedPartition) takeRetries(reply rueidis.RedisResult) {
	members, err := reply.AsStrSlice()
	if err != nil {
		return
	}
	p.retries = map[string]int64{}
	for _, member := range members {
		if m := lua.ParseMember(member); m.Kind != lua.MemberFirst {
			p.retries[m.Group]++
		}
	}
}

func (d *groupDetail) takeOldest(reply rueidis.RedisResult) {
	if rows, err := view.ParsePending(reply); err == nil && len(rows) > 0 {
		oldest := view.Millis(rows[0].Idle)
		d.oldest = &oldest
	}
}

func (d *groupDetail) takeConsumers(reply rueidis.RedisResult) {
	list, err := view.ParseConsumers(reply)
	if err != nil {
		return
	}
	d.consumers = make(map[string]bool, len(list))
	for _, one := range list {
		if one.Name == lua.ReclaimConsumer {
			continue
		}
		d.approx = d.approx || !one.Tells // else idle is the time since it asked, not since it got something
		d.consumers[one.Name] = !one.Tells || one.Idle <= consumerAlive
	}
}

// takeNewest takes the lateness of a stream's newest entries, and remembers how large they are.
func (w *Watcher) takeNewest(p *glancedPartition, reply rueidis.RedisResult) {
	entries, err := reply.AsXRangeSlices()
	if err != nil || len(entries) == 0 {
		return
	}
	bytes := 0
	for _, e := range entries {
		bytes += view.EntrySize(e)
		id, err := view.ParseEntryID(e.ID)
		at := slices.IndexFunc(e.FieldValues, func(f lua.FieldValue) bool { return f.Field == lua.FieldDue })
		if err != nil || at < 0 {
			continue
		}
		due, err := strconv.ParseInt(e.FieldValues[at].Value, 10, 64)
		if err != nil {
			continue
		}
		ready := time.UnixMilli(int64(id.MS))
		late := view.Millis(max(0, ready.Sub(time.UnixMilli(due))))
		if p.late == nil || late > *p.late {
			p.late = &late
		}
		if ready.After(p.newest) {
			p.newest = ready
		}
	}
	w.sizes[p.name] = bytes / len(entries)
}

// spend says how many of the newest entries of a partition are asked for, and takes their bytes off what this look may still
// read.
func (w *Watcher) spend(name string) (entries int64) {
	size, known := w.sizes[name]
	entries = 1
	if known {
		entries = int64(min(glanceNewest, max(1, 4<<10/max(1, size))))
	} else {
		size = glanceUnknown
	}
	w.bytes -= int(entries) * size
	return entries
}

// gatherGlance returns what the partitions of a queue hold together.
func gatherGlance(queue string, parts []*glancedPartition, now time.Time) Glance {
	g := Glance{Queue: queue, Partitions: len(parts), Groups: []GroupGlance{}}
	groups, alive := map[string]*GroupGlance{}, map[string]map[string]bool{}
	var errs []error
	for _, p := range parts {
		if p.err != nil {
			errs = append(errs, p.err)
			continue
		}
		g.Held = g.Held || p.held
		g.Scheduled += p.scheduled
		g.Overdue += p.overdue
		g.Entries += p.entries
		g.Dead += p.dead
		if p.hasHead && p.overdue > 0 {
			g.Behind = max(g.Behind, view.Millis(max(0, now.Sub(view.ScoreTime(p.head)))))
		}
		if p.late != nil && (g.Late == nil || *p.late > *g.Late) && now.Sub(p.newest) < time.Minute {
			g.Late = p.late
		}
		ready, approx := p.ready()
		g.Ready += ready
		g.ReadyApprox = g.ReadyApprox || approx
		g.MoreGroups = max(g.MoreGroups, len(p.groups)-len(p.details))
		for i, d := range p.details {
			info := p.groups[i]
			one := groups[info.Name]
			if one == nil {
				one = &GroupGlance{Name: info.Name}
				groups[info.Name], alive[info.Name] = one, map[string]bool{}
			}
			lag, approx := p.lag(info)
			one.Lag += lag
			one.LagApprox = one.LagApprox || approx
			one.Pending += info.Pending
			if d.oldest != nil && (one.Oldest == nil || *d.oldest > *one.Oldest) {
				one.Oldest = d.oldest
			}
			for name, lives := range d.consumers {
				alive[info.Name][name] = alive[info.Name][name] || lives
			}
			if d.many {
				one.Consumers, one.Alive = max(one.Consumers, info.Consumers), max(one.Alive, info.Consumers)
			}
			one.AliveApprox = one.AliveApprox || d.approx || d.many
			one.Retrying += p.retries[info.Name]
			one.RetryingMore = one.RetryingMore || p.metas > 0 && p.scheduled > glanceRetries
		}
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		one, living := groups[name], int64(0)
		for _, lives := range alive[name] {
			if lives {
				living++
			}
		}
		one.Consumers, one.Alive = max(one.Consumers, int64(len(alive[name]))), max(one.Alive, living)
		g.Groups = append(g.Groups, *one)
	}
	g.Err = errors.Join(errs...)
	return g
}

// lag returns the server's figure; where it has none, what it can be at most: what is pending was delivered.
func (p *glancedPartition) lag(g view.GroupInfo) (n int64, approx bool) {
	most := max(0, p.entries-g.Pending)
	switch {
	case g.Lag < 0:
		return most, most > 0
	case g.Read < 0: // the server has to guess, too
		return min(g.Lag, most), false
	}
	return min(g.Lag, p.entries), false
}

// ready returns how many entries at least one group has not been given yet.
func (p *glancedPartition) ready() (n int64, approx bool) {
	if len(p.groups) == 0 {
		return p.entries, false
	}
	for _, g := range p.groups {
		if lag, about := p.lag(g); lag >= n {
			n, approx = lag, about
		}
	}
	return n, approx
}
