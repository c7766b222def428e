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

// taking is the extra work of a replacement that concerns several partitions.
type taking struct {
	to     int           // the partition to which the message goes
	from   []version     // cancelled after the message is stored
	window time.Duration // dedup window of its ID there; zero = by the message
	own    bool          // the ID was scheduled in partition to before
}

// version is a scheduled message of an ID in one partition.
type version struct {
	partition int
	is        lua.Version
}

// replace notes the extra work of a message that replaces scheduled messages of its ID. A message with a key goes to
// the partition of its key, where it takes its turn. A message without a key goes to the partition of the old one, so
// that a single script call replaces it.
//
// The new message is added before the old one is cancelled. If the producer dies in between, both are scheduled;
// repeating the call cancels the old one. If the old one is drained in between, it is delivered, as if it had been
// drained just before the call.
//
// A call cancels only versions that it saw before it added its own message, and the version of its own message is
// unique. So if several calls replace an ID at the same moment, none cancels the message that was added last, wherever
// any of them stops.
func (s *batchRoute) replace(at int, m *Message, seen *sighting) {
	slices.SortFunc(seen.scheduled, func(a, b version) int { return cmp.Compare(a.partition, b.partition) })
	t := taking{to: s.counts.Of(m.place()), from: seen.scheduled, own: seen.own}
	switch {
	case seen.own:
	case m.Key == "":
		t.to, t.from = seen.scheduled[0].partition, seen.scheduled[1:]
	default: // cancelling the old message also ends its dedup window
		t.window = seen.window
	}
	s.take(at, t)
}

func (s *batchRoute) take(at int, t taking) {
	if s.takes == nil {
		s.takes = map[int]taking{}
	}
	s.takes[at] = t
}

// takeAway cancels the messages in other partitions that stored messages replace. One round trip for all partitions;
// none if there are no such messages.
func (s *batchRoute) takeAway(ctx context.Context, ms []Message, results []Result) {
	type old struct {
		at int // index of the message that replaces it
		is lua.Version
	}
	places := map[int][]old{} // by partition
	for at, t := range s.takes {
		if results[at].Err != nil && !errors.Is(results[at].Err, lua.ErrNotDurable) {
			continue
		}
		for _, v := range t.from {
			places[v.partition] = append(places[v.partition], old{at, v.is})
		}
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for partition, olds := range places {
		all.Go(func() {
			for some := range slices.Chunk(olds, cancelChunk) {
				ids, versions := make([]string, len(some)), make([]lua.Version, len(some))
				for i, old := range some {
					ids[i], versions[i] = ms[old.at].ID, old.is
				}
				gone, waited, err := s.cancelIn(ctx, partition, ids, versions)
				mu.Lock()
				for i, old := range some {
					r := &results[old.at]
					switch {
					case err != nil:
						err := fmt.Errorf("%w: it was taken, and the message that it replaces may be delivered from "+
							"partition %d as well: %w", ErrUncertain, partition, err)
						r.Err = wrap("schedule", s.route.queue, ids[i], err)
					case gone[i]:
						r.Replaced, r.Err = true, cmp.Or(r.Err, wrap("schedule", s.route.queue, ids[i], waited))
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
//   - The message is scheduled nowhere although it is not due yet. If its partition had the ID before, a producer of an
//     earlier release may have seen that and taken the message away. Otherwise another call cancelled it.
//   - Another partition has a message with the ID, which the call did not see before it added its own message. Of
//     several concurrent calls the last one to look sees the other messages.
//   - The dedup window that the message copies from another partition refused it, because its ID has come to its own
//     partition meanwhile. There the message can replace it.
//
// Of messages with one ID in the batch only the last counts: it has replaced the others. One round trip for all
// partitions; none if the message only replaced a message in its own partition.
func (s *batchRoute) contested(ctx context.Context, ms []Message, results []Result) []int {
	if len(s.takes) == 0 {
		return nil
	}
	last := map[string]int{} // by ID
	refused := func(at int) bool { return s.takes[at].window > 0 && errors.Is(results[at].Err, ErrDuplicate) }
	for at := range s.takes {
		if r := &results[at]; r.Err == nil || errors.Is(r.Err, lua.ErrNotDurable) || refused(at) {
			last[ms[at].ID] = max(at, last[ms[at].ID])
		}
	}
	var asked []batchMessage
	for id, at := range last {
		r := &results[at]
		// If nothing was replaced, the message that the call had seen in that partition was gone.
		if refused(at) || !r.Ready && (len(s.takes[at].from) > 0 || !r.Replaced) {
			asked = append(asked, batchMessage{at, id})
		}
	}
	if len(asked) == 0 {
		return nil
	}
	held := make([][]holding, s.counts.Latest())
	errs := make([]error, len(held))
	since := time.Now()
	var looks sync.WaitGroup
	for partition := range held {
		looks.Go(func() {
			keys := s.route.p.keys(lua.PartitionName(s.route.queue, partition))
			errs[partition] = s.route.p.harmlessly(ctx, since, func(ctx context.Context) error {
				var err error
				held[partition], err = holdsAll(ctx, s.route.p.cfg.Client, keys, asked)
				return err
			})
		})
	}
	looks.Wait()
	failed := errors.Join(errs...)
	var again []int
	for i, one := range asked {
		r, to := &results[one.at], s.takes[one.at].to
		scheduled := func(partition int) bool { return len(held[partition]) > i && held[partition][i].scheduled }
		own, others := scheduled(to), 0
		for partition := range held {
			if partition != to && scheduled(partition) {
				others++
			}
		}
		switch {
		case refused(one.at):
			switch {
			case own:
				again = append(again, one.at)
			case errs[to] != nil: // else ErrDuplicate would claim that the message is there
				r.Err = wrap("schedule", s.route.queue, one.id, errs[to])
			}
		case own && others > 0 && ms[one.at].Replace == lua.Replace: // later and earlier would refuse their own message
			again = append(again, one.at)
		case own && failed != nil && ms[one.at].Replace == lua.Replace:
			err := fmt.Errorf("%w: it was taken, and another message with its ID may be delivered as well: %w", ErrUncertain,
				failed)
			r.Err = wrap("schedule", s.route.queue, one.id, err)
		case own || others > 0:
		case failed != nil:
			err := fmt.Errorf("%w: another call with the same ID may have cancelled it: %w", ErrUncertain, failed)
			r.Err = wrap("schedule", s.route.queue, one.id, err)
		case s.takes[one.at].own && r.Due.UnixMilli() > held[to][i].now:
			again = append(again, one.at)
		}
	}
	return again
}

// again schedules contested messages once more. If messages of the call have begun again for too long, it returns
// ErrUncertain for them.
func (s *batchRoute) again(ctx context.Context, ms []Message, contested []int, results []Result) {
	p := s.route.p
	if s.contestedSince.IsZero() {
		s.contestedSince = time.Now()
	}
	if time.Since(s.contestedSince) > max(p.cfg.RetryTimeout, p.try) {
		for _, at := range contested {
			err := fmt.Errorf("%w: other calls replace the same ID again and again", ErrUncertain)
			results[at].Err = wrap("schedule", s.route.queue, ms[at].ID, err)
		}
		return
	}
	round, some := s.anew(ms, contested, results)
	for i, result := range round.schedule(ctx, some, s.contestedSince) {
		result.Replaced = result.Replaced || results[contested[i]].Replaced // in this round, or in one before
		results[contested[i]] = result
	}
}

// anew returns a new batchRoute and the messages that must be scheduled again, at their original due times.
func (s *batchRoute) anew(ms []Message, some []int, results []Result) (batchRoute, []Message) {
	again := make([]Message, len(some))
	for i, at := range some {
		again[i] = ms[at]
		if due := results[at].Due; !due.IsZero() {
			again[i].At, again[i].Delay, again[i].Spread = due, 0, 0
		}
	}
	return batchRoute{route: s.route, counts: s.counts, unread: s.unread, contestedSince: s.contestedSince}, again
}

// cancelIn cancels versions of messages in one partition, and returns which it found. waited is the error if that is
// not as durable as asked.
func (s *batchRoute) cancelIn(ctx context.Context, partition int, ids []string,
	versions []lua.Version) (gone []bool, waited, err error) {
	p := s.route.p
	keys := p.keys(lua.PartitionName(s.route.queue, partition))
	_, err = p.repeat(ctx, time.Now(), func(ctx context.Context) error {
		var err error
		gone, err = lua.CancelVersions(ctx, p.cfg.Client, keys, ids, versions, p.cfg.Durability)
		waited, err = setAside(err)
		return err
	})
	return gone, waited, err
}

// apart splits a batch into messages that go out together, and messages that must wait for their answers: those whose
// ID an earlier message has with another key. If all go out together, first and rest are nil.
func (s *batchRoute) apart(ms []Message) (first, rest []int) {
	chosen := func(m Message) bool { return m.ID != "" }
	if s.only != nil || len(ms) < 2 || !slices.ContainsFunc(ms, chosen) {
		return nil, nil
	}
	all := make([]int, len(ms))
	for i := range ms {
		all[i] = i
	}
	if first, rest = s.apartOf(ms, all); rest == nil {
		return nil, nil
	}
	return first, rest
}

// apartOf is apart for some messages of a batch, given and returned by index.
func (s *batchRoute) apartOf(ms []Message, some []int) (first, rest []int) {
	type group struct {
		key   string // of the first message with an ID
		waits bool   // a message with the ID waits for the first one
	}
	groups := make(map[string]group, len(some)) // by ID
	for _, at := range some {
		m := &ms[at]
		if m.ID == "" {
			first = append(first, at)
			continue
		}
		of, known := groups[m.ID]
		if known && (of.waits || of.key != m.Key) {
			groups[m.ID] = group{of.key, true}
			rest = append(rest, at)
			continue
		}
		groups[m.ID] = group{key: m.Key}
		first = append(first, at)
	}
	return first, rest
}
