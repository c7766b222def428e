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

const mostNamed = 10 // in one error

func appendNamed(parts []string, what string, names []string) []string {
	switch n := len(names); {
	case n == 0:
		return parts
	case n == 1:
		return append(parts, fmt.Sprintf("1 %s (%s)", what, names[0]))
	case n <= mostNamed:
		return append(parts, fmt.Sprintf("%d %ss (%s)", n, what, strings.Join(names, ", ")))
	default:
		return append(parts, fmt.Sprintf("%d %ss (%s, …)", n, what, strings.Join(names[:mostNamed], ", ")))
	}
}

// aliveWithin is the greatest age of a live worker's last read: it reads every few seconds.
const aliveWithin = 10 * time.Second

// DeleteQueue removes a queue: the keys of all its partitions, also of partitions that a growth prepared and did not
// publish, with groups, settings and dedup windows, and then its registration. It returns what the queue held.
//
// ErrNotEmpty: the queue holds messages, recurrences or push targets, and force is false; groups and policy stay as
// they were. Messages written between the check and the removal of a partition are not lost: the script that removes it
// checks again. If it refuses, the partitions before it are gone, with their dedup windows; they get groups and policy
// again from partition 0, which is removed last. Until then nothing becomes ready in them. Messages that come to a
// removed partition before the queue is gone stay scheduled, and bridges move them. ErrUnknownQueue. It works on a full
// server. After any other error repeat it, or keep the queue by calling Grow with the current count.
//
// Bridges do not register the queue again. A producer that still schedules, or a worker that still reads, creates it
// again, with one partition: clients of this release forget the partition counts that the queue had.
func DeleteQueue(ctx context.Context, c rueidis.Client, prefix, queue string, force bool) (Contents, error) {
	if err := errors.Join(lua.CheckPrefix(prefix), lua.CheckQueue(queue)); err != nil {
		return Contents{}, err
	}
	fail := func(had Contents, err error) (Contents, error) {
		return had, fmt.Errorf("delete queue %s: %w", queue, err)
	}
	counts, err := view.ReadCounts(ctx, c, prefix, queue)
	if err != nil {
		return fail(Contents{}, err)
	}
	globals := lua.NewGlobals(prefix)
	registered, err := c.Do(ctx, c.B().Hexists().Key(globals.Queues).Field(queue).Build()).AsBool()
	if err != nil {
		return fail(Contents{}, lua.Classify("HEXISTS "+globals.Queues, err))
	}
	beyond, err := partitionsBeyond(ctx, c, prefix, queue, counts)
	if err != nil {
		return fail(Contents{}, err)
	}
	names := append(counts.Names(queue), beyond...)
	// empty lists, not nil: they become [] in JSON
	had := Contents{Groups: []string{}, Readers: []string{}, Recurrences: []string{}, Targets: []string{}}
	// all partitions, before the first one is removed
	parts, err := view.ReadPartitions(prefix, names, func(_ int, keys lua.Keys) (partContents, error) {
		return contentsOf(ctx, c, keys)
	})
	if err != nil {
		return fail(had, err)
	}
	there, bare := false, false
	for i, part := range parts {
		bare = bare || i < counts.Latest() && lacksAny(part.Groups, parts[0].Groups)
		had.add(part.Contents)
		there = there || part.exists
	}
	if !had.Empty() && !force {
		held, err := someAreHeld(ctx, c, prefix, counts.Names(queue))
		if err != nil || !held && !bare {
			return fail(had, errors.Join(refusal(had), err))
		}
		return fail(had, keepQueue(ctx, c, prefix, queue, had))
	}
	// Partition 0 has all groups and the policy, see keepQueue. Before it is removed, all others are checked once more.
	order := slices.Concat(names[1:], names[1:], names[:1])
	if force {
		order = slices.Concat(names[1:], names[:1])
	}
	for _, name := range order {
		keys := lua.NewKeys(prefix, name)
		err := removePartition(ctx, c, keys, force, name != queue)
		if errors.Is(err, ErrNotEmpty) {
			some, failed := contentsOf(ctx, c, keys)
			had.add(some.Contents)
			return fail(had, errors.Join(keepQueue(ctx, c, prefix, queue, had), failed))
		}
		if err != nil {
			return fail(had, err)
		}
	}
	if !force {
		if err := releaseEmpty(ctx, c, prefix, names[1:]); err != nil {
			return fail(had, err)
		}
	}
	if !registered && !there {
		return fail(had, ErrUnknownQueue)
	}
	if err := lua.Unregister(ctx, c, globals, queue, counts.With(partitionsOf(names))); err != nil {
		return fail(had, err)
	}
	return had, nil
}

// partitionsOf returns the smallest partition count of a queue that has all of these partitions, given in order.
func partitionsOf(names []string) int {
	_, last, _ := lua.SplitPartition(names[len(names)-1])
	return last + 1
}

func refusal(had Contents) error { return fmt.Errorf("%w: it holds %s", ErrNotEmpty, had) }

// lacksAny reports whether any of the wanted names is missing.
func lacksAny(names, wanted []string) bool {
	return slices.ContainsFunc(wanted, func(name string) bool { return !slices.Contains(names, name) })
}

// someAreHeld reports whether some partitions are held while partition 0, the first name, is not: a deletion that was
// killed leaves the partitions that it removed held. One round trip.
func someAreHeld(ctx context.Context, c rueidis.Client, prefix string, names []string) (bool, error) {
	held := make([]string, len(names))
	questions := make([]view.Question, len(names))
	for i, name := range names {
		ask := c.B().Hget().Key(lua.NewKeys(prefix, name).Policy).Field("held").Build()
		questions[i] = view.Into(ask, &held[i], func(reply rueidis.RedisResult) (string, error) {
			text, err := reply.ToString()
			if rueidis.IsRedisNil(err) {
				err = nil
			}
			return text, err
		})
	}
	if err := view.AskLong(ctx, c, questions...); err != nil {
		return false, err
	}
	return slices.ContainsFunc(held[1:], func(other string) bool { return other != held[0] }), nil
}

// keepQueue restores the groups and the policy of removed partitions, and returns ErrNotEmpty with the contents of the
// queue. It copies from partition 0, which is removed last. A removed partition is held by its policy until it has its
// groups, so a message that comes meanwhile reaches every group.
func keepQueue(ctx context.Context, c rueidis.Client, prefix, queue string, had Contents) error {
	err := refusal(had)
	kept := partitionSync{c: c, prefix: prefix, queue: queue}
	if failed := kept.all(ctx); failed != nil {
		return fmt.Errorf("%w; some partitions lack groups and policy, and deliver nothing: set the partition count of the "+
			"queue to its present value, which restores them: %w", err, failed)
	}
	return err
}

// releaseEmpty deletes the policies that hold removed partitions. A partition that has got messages meanwhile stays
// held: its messages wait in its schedule, and a bridge moves them to the partition in which they belong. Without the
// hold, a bridge that still serves the partition would make them ready in a stream that nobody reads.
func releaseEmpty(ctx context.Context, c rueidis.Client, prefix string, names []string) error {
	return view.EachPartition(names, func(_ int, name string) error {
		ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		defer cancel()
		_, err := lua.DeleteEmpty(ctx, c, lua.NewKeys(prefix, name), false)
		return err
	})
}

// partitionsBeyond returns the partitions beyond the count that have keys: a failed growth has prepared them, or a
// producer has made up their names. One round trip; on a cluster one per server.
func partitionsBeyond(ctx context.Context, c rueidis.Client, prefix, queue string,
	counts lua.Counts) ([]string, error) {
	names := counts.With(lua.MaxPartitions).Names(queue)[counts.Latest():]
	keys := make([]int64, len(names))
	questions := make([]view.Question, len(names))
	for i, name := range names {
		questions[i] = view.Number(c.B().Exists().Key(lua.NewKeys(prefix, name).All()...).Build(), &keys[i])
	}
	if err := view.AskLong(ctx, c, questions...); err != nil {
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
	keys := k.All()
	if !force {
		deleted, err := lua.DeleteEmpty(ctx, c, k, hold)
		if err != nil {
			return err
		}
		if !deleted {
			return ErrNotEmpty
		}
		keys = []string{k.History}
	}
	return lua.Classify("UNLINK "+keys[0], c.Do(ctx, c.B().Unlink().Key(keys...).Build()).Error())
}
