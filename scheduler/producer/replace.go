package producer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/duestream/duestream/lua"
)

// replacement is the extra work for a message that replaces others in several partitions.
type replacement struct {
	to     int             // the partition to which the message goes
	from   []storedVersion // messages of other partitions, cancelled after the message is stored
	window time.Duration   // dedup window of the ID in partition to; zero = the window that the message asks for
	own    bool            // before the call, the ID was scheduled in the message's own partition
}

// storedVersion is one scheduled message with an ID, in one partition.
type storedVersion struct {
	partition int
	version   lua.Version
}

// replace notes the extra work of a message that replaces scheduled messages of its ID. A message with an ordering key
// goes to the partition of that key, where it waits behind earlier messages with the key. A message without an ordering
// key goes to the partition of the old message, so that a single script call replaces the old message.
//
// The new message is added before the old one is cancelled. If the producer dies in between, both are scheduled;
// repeating the call cancels the old one. If the old one is drained in between, it is delivered, as if it had been
// drained just before the call.
//
// A call cancels only versions that it saw before it added its own message, and the version of its own message is
// unique. So if several calls replace an ID at the same moment, none of them cancels the message that was added last,
// even if some calls fail half-way.
func (b *batchRoute) replace(at int, m *Message, seen *sighting) {
	slices.SortFunc(seen.scheduled, func(a, b storedVersion) int { return cmp.Compare(a.partition, b.partition) })
	t := replacement{to: b.counts.Of(m.place()), from: seen.scheduled, own: seen.own}
	switch {
	case seen.own: // the script enqueue replaces the message in the own partition
	case m.Key == "":
		t.to, t.from = seen.scheduled[0].partition, seen.scheduled[1:]
	default: // cancelling the old message ends its dedup window, so the new message carries the window over
		t.window = seen.window
	}
	b.noteReplacement(at, t)
}

func (b *batchRoute) noteReplacement(at int, t replacement) {
	if b.replacements == nil {
		b.replacements = map[int]replacement{}
	}
	b.replacements[at] = t
}

// cancelReplaced cancels the messages in other partitions that the stored messages replace. It takes one round trip for
// all partitions, or none if there are no such messages.
func (b *batchRoute) cancelReplaced(ctx context.Context, ms []Message, results []Result) {
	type old struct {
		index   int // of the message that replaces the old one
		version lua.Version
	}
	places := map[int][]old{} // by partition
	for at, t := range b.replacements {
		if results[at].Err != nil && !errors.Is(results[at].Err, lua.ErrNotDurable) {
			continue
		}
		for _, v := range t.from {
			places[v.partition] = append(places[v.partition], old{at, v.version})
		}
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for partition, olds := range places {
		all.Go(func() {
			for some := range slices.Chunk(olds, cancelChunk) {
				ids, versions := make([]string, len(some)), make([]lua.Version, len(some))
				for i, old := range some {
					ids[i], versions[i] = ms[old.index].ID, old.version
				}
				gone, notDurable, err := b.cancelIn(ctx, partition, ids, versions)
				mu.Lock()
				for i, old := range some {
					r := &results[old.index]
					switch {
					case err != nil:
						err := fmt.Errorf("%w: the message was stored, and the message that it replaces "+
							"may be delivered from partition %d as well: %w", ErrUncertain, partition, err)
						r.Err = wrap("schedule", b.route.queue, ids[i], err)
					case gone[i]:
						r.Replaced = true
						r.Err = cmp.Or(r.Err, wrap("schedule", b.route.queue, ids[i], notDurable))
					}
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
}

// contested returns the indexes of messages that must be scheduled again, because a concurrent call replaced the same
// ID. There are three cases:
//
//   - The message is scheduled nowhere although it is not due yet, and its own partition had the ID before the call.
//     Then a producer of an earlier release may have cancelled the message, because it took the message for the old
//     one. If its own partition did not have the ID before, a concurrent call counts as the one that cancelled the
//     message and won, so the message is not scheduled again.
//   - Another partition has a message with the ID, which the call did not see before it added its own message. Of
//     several concurrent calls the last one to look sees the other messages.
//   - The message copied a dedup window from another partition, and was refused because of that window: the ID has come
//     to the message's own partition meanwhile. In that partition the message can replace the other one.
//
// Of messages with one ID in the batch only the last counts, because it has replaced the others. contested takes one
// round trip for all partitions, or none if the messages only replaced messages in their own partitions.
func (b *batchRoute) contested(ctx context.Context, ms []Message, results []Result) []int {
	last := map[string]int{} // by ID
	refused := func(at int) bool { return b.replacements[at].window > 0 && errors.Is(results[at].Err, ErrDuplicate) }
	for at := range b.replacements {
		if r := &results[at]; r.Err == nil || errors.Is(r.Err, lua.ErrNotDurable) || refused(at) {
			last[ms[at].ID] = max(at, last[ms[at].ID])
		}
	}
	var asked []batchMessage
	for id, at := range last {
		r := &results[at]
		// A message that replaced another one in its own partition needs no second look, unless it also replaces
		// messages of other partitions. If it replaced nothing although the call had seen the ID in its partition,
		// somebody has taken that message away, so look again.
		replacedAlone := r.Replaced && len(b.replacements[at].from) == 0
		if refused(at) || !r.Ready && !replacedAlone {
			asked = append(asked, batchMessage{at, id})
		}
	}
	if len(asked) == 0 {
		return nil
	}
	held := make([][]idState, b.counts.Latest()) // by partition, then in the order of asked
	errs := make([]error, len(held))
	since := time.Now()
	var looks sync.WaitGroup
	for partition := range held {
		looks.Go(func() {
			keys := b.route.producer.keys(lua.PartitionName(b.route.queue, partition))
			errs[partition] = b.route.producer.repeatIdempotent(ctx, since, func(ctx context.Context) error {
				var err error
				held[partition], err = lookUpIDs(ctx, b.route.producer.cfg.Client, keys, asked)
				return err
			})
		})
	}
	looks.Wait()
	failed := errors.Join(errs...)
	var again []int
	for i, one := range asked {
		r, to := &results[one.index], b.replacements[one.index].to
		isReplace := ms[one.index].Replace == lua.Replace
		scheduled := func(partition int) bool { return len(held[partition]) > i && held[partition][i].scheduled }
		own, others := scheduled(to), 0
		for partition := range held {
			if partition != to && scheduled(partition) {
				others++
			}
		}
		switch {
		case refused(one.index):
			switch {
			case own:
				again = append(again, one.index)
			case errs[to] != nil: // else ErrDuplicate would claim that the message is there
				r.Err = wrap("schedule", b.route.queue, one.id, errs[to])
			}
		// In the modes lua.ReplaceLater and lua.ReplaceEarlier the message is not scheduled again, because its own
		// first version would refuse the second one.
		case own && others > 0 && isReplace:
			again = append(again, one.index)
		case own && failed != nil && isReplace:
			err := fmt.Errorf("%w: the message was stored, and another message with its ID may be delivered "+
				"as well: %w", ErrUncertain, failed)
			r.Err = wrap("schedule", b.route.queue, one.id, err)
		case own || others > 0: // the message is scheduled, or that of a call that won: nothing to do
		case failed != nil:
			err := fmt.Errorf("%w: another call with the same ID may have cancelled the message: %w",
				ErrUncertain, failed)
			r.Err = wrap("schedule", b.route.queue, one.id, err)
		case b.replacements[one.index].own && r.Due.UnixMilli() > held[to][i].now:
			again = append(again, one.index)
		}
	}
	return again
}

// scheduleAgain schedules contested messages once more. If the call has repeated this for too long, the messages get
// ErrUncertain.
func (b *batchRoute) scheduleAgain(ctx context.Context, ms []Message, contested []int, results []Result) {
	p := b.route.producer
	if b.contestedSince.IsZero() {
		b.contestedSince = time.Now()
	}
	if time.Since(b.contestedSince) > max(p.cfg.RetryTimeout, p.callTimeout) {
		for _, at := range contested {
			err := fmt.Errorf("%w: other calls replace the same ID again and again", ErrUncertain)
			results[at].Err = wrap("schedule", b.route.queue, ms[at].ID, err)
		}
		return
	}
	round, some := b.retryBatch(ms, contested, results)
	for i, result := range round.schedule(ctx, some, b.contestedSince) {
		result.Replaced = result.Replaced || results[contested[i]].Replaced // in this round, or in one before
		results[contested[i]] = result
	}
}

// retryBatch returns the messages that must be scheduled again, at their original due times, and a new batchRoute for
// them.
func (b *batchRoute) retryBatch(ms []Message, some []int, results []Result) (batchRoute, []Message) {
	again := make([]Message, len(some))
	for i, at := range some {
		again[i] = ms[at]
		if due := results[at].Due; !due.IsZero() {
			again[i].At, again[i].Delay, again[i].Spread = due, 0, 0
		}
	}
	return batchRoute{route: b.route, counts: b.counts, unread: b.unread, contestedSince: b.contestedSince}, again
}

// cancelIn cancels versions of messages in one partition, and returns for each whether it was found. notDurable is set
// if the cancellation is not as durable as the producer's Durability.
func (b *batchRoute) cancelIn(ctx context.Context, partition int, ids []string,
	versions []lua.Version) (gone []bool, notDurable, err error) {
	p := b.route.producer
	keys := p.keys(lua.PartitionName(b.route.queue, partition))
	_, err = p.repeat(ctx, time.Now(), func(ctx context.Context) error {
		var err error
		gone, err = lua.CancelVersions(ctx, p.cfg.Client, keys, ids, versions, p.cfg.Durability)
		notDurable, err = splitNotDurable(err)
		return err
	})
	return gone, notDurable, err
}

// scheduleApart schedules a batch in rounds, because some messages may have to wait for the answers to others: see
// apart.
func (b *batchRoute) scheduleApart(ctx context.Context, ms []Message, since time.Time) []Result {
	all := make([]int, len(ms))
	for i := range ms {
		all[i] = i
	}
	first, rest := apart(ms, all)
	if len(rest) == 0 {
		return b.schedule(ctx, ms, since)
	}
	results := make([]Result, len(ms))
	for len(first) > 0 {
		some := make([]Message, len(first))
		for i, at := range first {
			some[i] = ms[at]
		}
		together := batchRoute{route: b.route, counts: b.counts, unread: b.unread}
		for i, result := range together.schedule(ctx, some, time.Now()) {
			results[first[i]] = result
		}
		first, rest = apart(ms, rest)
	}
	return results
}

// apart splits some messages of a batch, given and returned by index. The messages in first go out together. The
// messages in rest must wait for the answers, because an earlier message has the same ID with another ordering key.
func apart(ms []Message, some []int) (first, rest []int) {
	type group struct {
		key   string // ordering key of the first message with the ID
		waits bool   // a later message with the ID must wait for the first one
	}
	groups := make(map[string]group, len(some)) // by ID
	for _, at := range some {
		m := &ms[at]
		if m.ID == "" {
			first = append(first, at)
			continue
		}
		sameID, known := groups[m.ID]
		if known && (sameID.waits || sameID.key != m.Key) {
			groups[m.ID] = group{key: sameID.key, waits: true}
			rest = append(rest, at)
			continue
		}
		groups[m.ID] = group{key: m.Key}
		first = append(first, at)
	}
	return first, rest
}
