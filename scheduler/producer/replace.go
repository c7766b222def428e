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

// taking is what a message has to do besides to take the place of those of its ID in other partitions.
type taking struct {
	to     int           // the partition that it goes to
	from   []version     // what is cancelled when it was taken
	window time.Duration // for how long its ID is remembered there; zero = as the message says
}

// version is what was scheduled under an ID in a partition.
type version struct {
	partition int
	is        lua.Version
}

// replace notes what a message has to do to take the place of those of its ID that are scheduled. One with a key goes
// to the partition of its key, where it has its turn; one without stays where the ID is, so that a single script call
// replaces it.
//
// The new message is added before the old one is taken away. When the producer dies in between, both are scheduled; the
// same call, repeated, takes the old one away. When the old one is drained in between, it is delivered, as one that was
// drained just before the call.
//
// A call takes away only what it saw before it added its own, and what it adds is equal to nothing else. So, of calls
// that replace an ID at the same moment, none takes away the message that was added last, wherever any of them stops.
func (s *batchRoute) replace(at int, m *Message, seen *sighting) {
	slices.SortFunc(seen.scheduled, func(a, b version) int { return cmp.Compare(a.partition, b.partition) })
	t := taking{to: s.counts.Of(m.place()), from: seen.scheduled}
	switch {
	case seen.own:
	case m.Key == "":
		t.to, t.from = seen.scheduled[0].partition, seen.scheduled[1:]
	default: // cancelling the old one ends the window that began with it
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

// takeAway cancels what messages that were taken have replaced in other partitions. One round trip, in which all are
// asked; none when there is nothing.
func (s *batchRoute) takeAway(ctx context.Context, ms []Message, results []Result) {
	type old struct {
		at int // of the message that has replaced it
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

// contested returns the messages of a batch, by their places in it, that have to begin again after they were taken and
// have replaced others, because another call that replaces the same ID did so at the same moment. Either a message is
// scheduled nowhere any more although its time has not come. Or it is scheduled beside another one in another partition,
// which the call did not see before it added its own: of several calls the last to look sees that. Of messages with one
// ID the last one counts, which has replaced the others. One round trip, in which all partitions are asked; none where
// the message has only replaced what was in its own partition.
func (s *batchRoute) contested(ctx context.Context, ms []Message, results []Result) []int {
	if len(s.takes) == 0 {
		return nil
	}
	last := map[string]int{} // by ID
	for at := range s.takes {
		if r := &results[at]; r.Err == nil || errors.Is(r.Err, lua.ErrNotDurable) {
			last[ms[at].ID] = max(at, last[ms[at].ID])
		}
	}
	var asked []batchMessage
	for id, at := range last {
		r := &results[at]
		if !r.Ready && (len(s.takes[at].from) > 0 || !r.Replaced) { // not replaced: what it saw there had gone
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
		case own && others > 0 && ms[one.at].Replace == lua.Replace: // later and earlier would refuse their own message
			again = append(again, one.at)
		case own || others > 0:
		case failed != nil:
			err := fmt.Errorf("%w: another call with the same ID may have cancelled it: %w", ErrUncertain, failed)
			r.Err = wrap("schedule", s.route.queue, one.id, err)
		case r.Due.UnixMilli() > held[to][i].now:
			again = append(again, one.at)
		}
	}
	return again
}

// again has messages of a batch begin again that are contested.
func (s *batchRoute) again(ctx context.Context, ms []Message, contested []int, results []Result, since time.Time) {
	p := s.route.p
	if time.Since(since) > max(p.cfg.RetryTimeout, p.try) {
		for _, at := range contested {
			err := fmt.Errorf("%w: other calls replace the same ID again and again", ErrUncertain)
			results[at].Err = wrap("schedule", s.route.queue, ms[at].ID, err)
		}
		return
	}
	round, some := s.anew(ms, contested, results)
	for i, result := range round.schedule(ctx, some, since) {
		result.Replaced = true // it was, by the call before
		results[contested[i]] = result
	}
}

// anew returns the way of some messages of a batch that begin again, for the time that they were to be due at.
func (s *batchRoute) anew(ms []Message, some []int, results []Result) (batchRoute, []Message) {
	again := make([]Message, len(some))
	for i, at := range some {
		again[i] = ms[at]
		again[i].At, again[i].Delay, again[i].Spread = results[at].Due, 0, 0
	}
	return batchRoute{route: s.route, counts: s.counts, unread: s.unread}, again
}

// cancelIn cancels versions of messages in one partition, and says which were there. waited says why that is not as
// durable as asked.
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

// apart parts the messages of a batch into those that go out together, and those that must wait for their answers:
// messages with the ID of an earlier one that has another key. rest is nil when all go out together, and first with it.
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

// apartOf is apart for some messages of a batch, which are given and returned by their places in it.
func (s *batchRoute) apartOf(ms []Message, some []int) (first, rest []int) {
	type group struct {
		key   string // of the first message with an ID
		waits bool   // a message with the ID waits for the first
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
