package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// ErrNotEmpty: the queue to be deleted holds messages, recurrences or push targets.
var ErrNotEmpty = errors.New("the queue is not empty")

// ErrUnknownQueue: the queue is not registered and has no keys.
var ErrUnknownQueue = errors.New("no such queue")

// Contents counts and names the data that is deleted with a queue.
type Contents struct {
	Scheduled int64    `json:"scheduled"`
	Entries   int64    `json:"entries"` // of the streams: ready, pending, or not freed yet
	Dead      int64    `json:"dead"`
	Groups    []string `json:"groups"`
	// "group/consumer" of consumers that read within the last ten seconds: they will create the queue again
	Readers     []string `json:"readers"`
	Recurrences []string `json:"recurrences"`
	Targets     []string `json:"push_targets"` // groups whose messages are posted to a URL
}

// Messages returns the number of all messages.
func (c Contents) Messages() int64 { return c.Scheduled + c.Entries + c.Dead }

// Empty reports whether the queue can be deleted without force. Groups do not count.
func (c Contents) Empty() bool {
	return c.Messages() == 0 && len(c.Recurrences) == 0 && len(c.Targets) == 0
}

// String returns a text like "3 scheduled, 1 dead, 2 recurrences (nightly, weekly), 1 push target (mailer)".
func (c Contents) String() string {
	var parts []string
	for _, count := range []struct {
		n    int64
		what string
	}{{c.Scheduled, "scheduled"}, {c.Entries, "ready or pending"}, {c.Dead, "dead"}} {
		if count.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count.n, count.what))
		}
	}
	parts = appendNamed(parts, "recurrence", c.Recurrences)
	parts = appendNamed(parts, "push target", c.Targets)
	return strings.Join(parts, ", ")
}

const maxNamed = 10 // names of one kind in an error

// appendNamed adds a text like "2 recurrences (nightly, weekly)" if there are names.
func appendNamed(parts []string, kind string, names []string) []string {
	switch n := len(names); {
	case n == 0:
		return parts
	case n == 1:
		return append(parts, fmt.Sprintf("1 %s (%s)", kind, names[0]))
	case n <= maxNamed:
		return append(parts, fmt.Sprintf("%d %ss (%s)", n, kind, strings.Join(names, ", ")))
	default:
		return append(parts, fmt.Sprintf("%d %ss (%s, …)", n, kind, strings.Join(names[:maxNamed], ", ")))
	}
}

// aliveWithin is the greatest age of a live worker's last read: it reads every few seconds.
const aliveWithin = 10 * time.Second

// DeleteQueue removes a queue: the keys of all its partitions, also of partitions that a growth prepared and did not
// publish, with groups, settings and dedup windows, and then its registration. It returns what the queue held.
//
// It returns ErrNotEmpty if the queue holds messages, recurrences or push targets, and force is false. If it finds them
// at the start, it deletes nothing; if an earlier deletion was interrupted, it restores the groups and the policy.
//
// It also returns ErrNotEmpty if messages come during the deletion. They are not lost, because the script that removes
// a partition checks again. The partitions removed before have then lost their dedup windows. They get groups and
// policy back from partition 0, which is removed last; until then nothing becomes ready in them. Messages that come to
// a removed partition before the queue is gone stay scheduled, and bridges move them.
//
// It returns ErrUnknownQueue for a queue that is not registered and has no keys. It works on a full server. After any
// other error repeat it, or keep the queue by calling Grow with the current count.
//
// The results of its messages stay until they expire, like the buckets of the rates of groups that no longer exist.
//
// Bridges do not register the queue again. A producer that still schedules, or a worker that still reads, creates it
// again, with one partition: clients of this release forget the partition counts that the queue had.
func DeleteQueue(ctx context.Context, c rueidis.Client, prefix, queue string, force bool) (Contents, error) {
	if err := errors.Join(lua.CheckPrefix(prefix), lua.CheckQueue(queue)); err != nil {
		return Contents{}, err
	}
	d := deletion{c: c, prefix: prefix, queue: queue, force: force}
	if err := d.run(ctx); err != nil {
		return d.had, fmt.Errorf("delete queue %s: %w", queue, err)
	}
	return d.had, nil
}

// deletion is one call of DeleteQueue.
type deletion struct {
	c             rueidis.Client
	prefix, queue string
	force         bool

	counts lua.Counts
	names  []string // of all partitions, also of partitions beyond the count
	had    Contents // what the queue held
}

func (d *deletion) run(ctx context.Context) (err error) {
	if d.counts, err = view.ReadCounts(ctx, d.c, d.prefix, d.queue); err != nil {
		return err
	}
	registry := lua.NewGlobals(d.prefix)
	registered, err := d.c.Do(ctx, d.c.B().Hexists().Key(registry.Queues).Field(d.queue).Build()).AsBool()
	if err != nil {
		return lua.Classify("HEXISTS "+registry.Queues, err)
	}
	beyond, err := d.partitionsBeyond(ctx)
	if err != nil {
		return err
	}
	d.names = append(d.counts.Names(d.queue), beyond...)
	parts, err := d.readContents(ctx)
	if err != nil {
		return err
	}
	if !d.had.Empty() && !d.force {
		return d.refuse(ctx, parts)
	}
	if err := d.removeAll(ctx); err != nil {
		return err
	}
	if err := lua.DropGroupRates(ctx, d.c, lua.NewKeys(d.prefix, d.queue), d.had.Groups); err != nil {
		return err
	}
	exists := slices.ContainsFunc(parts, func(part partContents) bool { return part.exists })
	if !registered && !exists {
		return ErrUnknownQueue
	}
	return lua.Unregister(ctx, d.c, registry, d.queue, d.counts.With(partitionsOf(d.names)))
}

// partitionsOf returns the smallest partition count of a queue that has all of these partitions, given in order.
func partitionsOf(names []string) int {
	_, last, _ := lua.SplitPartition(names[len(names)-1])
	return last + 1
}

// readContents reads the contents of all partitions, before the first one is removed, and adds them up.
func (d *deletion) readContents(ctx context.Context) ([]partContents, error) {
	// empty lists, not nil: they become [] in JSON
	d.had = Contents{Groups: []string{}, Readers: []string{}, Recurrences: []string{}, Targets: []string{}}
	parts, err := view.ReadPartitions(d.prefix, d.names, func(_ int, keys lua.Keys) (partContents, error) {
		return contentsOf(ctx, d.c, keys)
	})
	if err != nil {
		return nil, err
	}
	for _, part := range parts {
		d.had.add(part.Contents)
	}
	return parts, nil
}

// refuse returns ErrNotEmpty. If an earlier deletion was interrupted, some partitions are held or lack groups: then it
// restores them first.
func (d *deletion) refuse(ctx context.Context, parts []partContents) error {
	someLackGroups := slices.ContainsFunc(parts[:d.counts.Latest()], func(part partContents) bool {
		return lacksAny(part.Groups, parts[0].Groups)
	})
	someAreHeld, err := d.someAreHeld(ctx)
	if err != nil {
		return errors.Join(d.refusal(), err)
	}
	if someAreHeld || someLackGroups {
		return d.restore(ctx)
	}
	return d.refusal()
}

func (d *deletion) refusal() error { return fmt.Errorf("%w: it holds %s", ErrNotEmpty, d.had) }

// lacksAny reports whether any of the wanted names is missing.
func lacksAny(names, wanted []string) bool {
	return slices.ContainsFunc(wanted, func(name string) bool { return !slices.Contains(names, name) })
}

// someAreHeld reports whether the hold of any partition, by its policy, differs from that of partition 0, the first
// name. A deletion that was killed leaves the partitions that it removed held. One round trip.
func (d *deletion) someAreHeld(ctx context.Context) (bool, error) {
	names := d.counts.Names(d.queue)
	held := make([]string, len(names))
	questions := make([]view.Question, len(names))
	for i, name := range names {
		ask := d.c.B().Hget().Key(lua.NewKeys(d.prefix, name).Policy).Field("held").Build()
		questions[i] = view.Into(ask, &held[i], func(reply rueidis.RedisResult) (string, error) {
			text, err := reply.ToString()
			if rueidis.IsRedisNil(err) {
				err = nil
			}
			return text, err
		})
	}
	if err := view.AskLong(ctx, d.c, questions...); err != nil {
		return false, err
	}
	return slices.ContainsFunc(held[1:], func(other string) bool { return other != held[0] }), nil
}

// removeAll removes all partitions, partition 0 last, because restore copies groups and policy from it. Without force,
// it checks all other partitions once more before it removes partition 0.
func (d *deletion) removeAll(ctx context.Context) error {
	first, others := d.names[:1], d.names[1:]
	order := slices.Concat(others, others, first)
	if d.force {
		order = slices.Concat(others, first)
	}
	for _, name := range order {
		keys := lua.NewKeys(d.prefix, name)
		err := removePartition(ctx, d.c, keys, d.force, name != d.queue)
		if errors.Is(err, ErrNotEmpty) {
			part, readErr := contentsOf(ctx, d.c, keys)
			d.had.add(part.Contents)
			return errors.Join(d.restore(ctx), readErr)
		}
		if err != nil {
			return err
		}
	}
	if d.force {
		return nil
	}
	return d.releaseEmpty(ctx, others)
}

// restore restores the groups and the policy of removed partitions, and returns ErrNotEmpty with the contents of the
// queue. It copies from partition 0, which is removed last. The policy of a removed partition holds the partition until
// it has its groups, so that a message that comes meanwhile reaches every group.
func (d *deletion) restore(ctx context.Context) error {
	refusal := d.refusal()
	parts := partitionSync{c: d.c, prefix: d.prefix, queue: d.queue}
	if err := parts.copyAll(ctx); err != nil {
		return fmt.Errorf("%w; some partitions lack groups and policy, and deliver nothing: set the partition count of "+
			"the queue to its present value, which restores them: %w", refusal, err)
	}
	return refusal
}

// releaseEmpty deletes the policies that hold removed partitions. A partition that has got messages meanwhile stays
// held: its messages wait in its schedule, and a bridge moves them to the partition in which they belong. Without the
// hold, a bridge that still serves the partition would make them ready in a stream that nobody reads.
func (d *deletion) releaseEmpty(ctx context.Context, names []string) error {
	return view.EachPartition(names, func(_ int, name string) error {
		ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		defer cancel()
		_, err := lua.DeleteEmpty(ctx, d.c, lua.NewKeys(d.prefix, name), false)
		return err
	})
}

// partitionsBeyond returns the partitions beyond the count that have keys: a failed growth has prepared them, or a
// producer has made up their names. One round trip; on a cluster one per server.
func (d *deletion) partitionsBeyond(ctx context.Context) ([]string, error) {
	names := d.counts.With(lua.MaxPartitions).Names(d.queue)[d.counts.Latest():]
	keys := make([]int64, len(names))
	questions := make([]view.Question, len(names))
	for i, name := range names {
		questions[i] = view.Number(d.c.B().Exists().Key(lua.NewKeys(d.prefix, name).All()...).Build(), &keys[i])
	}
	if err := view.AskLong(ctx, d.c, questions...); err != nil {
		return nil, err
	}
	var found []string
	for i, name := range names {
		if keys[i] > 0 {
			found = append(found, name)
		}
	}
	return found, nil
}

func (c *Contents) add(o Contents) {
	c.Scheduled, c.Entries, c.Dead = c.Scheduled+o.Scheduled, c.Entries+o.Entries, c.Dead+o.Dead
	for _, names := range []struct {
		all  *[]string
		some []string
	}{{&c.Groups, o.Groups}, {&c.Readers, o.Readers}, {&c.Recurrences, o.Recurrences}, {&c.Targets, o.Targets}} {
		for _, name := range names.some {
			if !slices.Contains(*names.all, name) {
				*names.all = append(*names.all, name)
			}
		}
	}
}

type partContents struct {
	Contents
	exists bool // it has any key
}

func contentsOf(ctx context.Context, c rueidis.Client, k lua.Keys) (had partContents, err error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	var keys int64
	err = view.Ask(ctx, c, view.Number(c.B().Zcard().Key(k.Due).Build(), &had.Scheduled),
		view.Number(c.B().Xlen().Key(k.Stream).Build(), &had.Entries),
		view.Number(c.B().Xlen().Key(k.Dead).Build(), &had.Dead),
		view.Number(c.B().Exists().Key(k.All()...).Build(), &keys),
		fieldsOf(c, k.Recurring, &had.Recurrences), fieldsOf(c, k.Push, &had.Targets))
	if err != nil {
		return had, err
	}
	had.exists = keys > 0
	entries, err := view.ReadStream(ctx, c, k.Stream)
	if err != nil {
		return had, err
	}
	for _, name := range entries.Names() {
		had.Groups = append(had.Groups, name)
		consumers, err := view.ReadConsumers(ctx, c, k.Stream, name)
		if err != nil {
			return had, err
		}
		for _, one := range consumers {
			if one.Idle < aliveWithin && one.Name != lua.ReclaimConsumer {
				had.Readers = append(had.Readers, name+"/"+one.Name)
			}
		}
	}
	return had, nil
}

// fieldsOf asks for the sorted field names of a hash.
func fieldsOf(c rueidis.Client, key string, names *[]string) view.Question {
	return view.Into(c.B().Hkeys().Key(key).Build(), names, func(reply rueidis.RedisResult) ([]string, error) {
		fields, err := reply.AsStrSlice()
		slices.Sort(fields)
		return fields, err
	})
}

// removePartition removes all keys of a partition. Without force it fails with ErrNotEmpty if the partition holds
// anything at that moment. Without force and with hold it leaves a policy under which nothing becomes ready.
func removePartition(ctx context.Context, c rueidis.Client, k lua.Keys, force, hold bool) error {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	if force {
		return lua.DeletePartition(ctx, c, k)
	}
	deleted, err := lua.DeleteEmpty(ctx, c, k, hold)
	if err != nil {
		return err
	}
	if !deleted {
		return ErrNotEmpty
	}
	return lua.DropHistory(ctx, c, k) // DeleteEmpty leaves it
}
