package producer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

const duplicatesChunk = 500 // IDs per pipeline

// batchMessage is a message of a batch, without the batch: one that has nothing to look for stays on its caller's stack.
type batchMessage struct {
	at int
	id string
}

// sighting is what the partitions that a message does not go to hold of its ID.
type sighting struct {
	refused   error         // why the message must not be stored; nil = nothing keeps it from that
	inWindow  error         // ErrDuplicate, of a dedup window: what is scheduled may be replaced in spite of it
	scheduled []version     // what is scheduled under the ID, and the message may take the place of
	window    time.Duration // what is left of the longest dedup window
	own       bool          // the ID is scheduled in the partition that the message goes to
}

// duplicates looks for messages with IDs that callers chose in the partitions that they do not go to: an ID belongs to
// its queue, and only the key that was given with it says in which partition it is. It returns why some messages must
// not be stored: ErrDuplicate, or an error where it could not find out. Script enqueue does the same for the partition
// that they go to. What a message that replaces has to do besides is in s.takes. Pipelined; one round trip per 500 IDs,
// in which all partitions are asked, and another one where something is to be replaced in them; none for a queue with
// one partition, and for generated IDs.
func (s *batchRoute) duplicates(ctx context.Context, ms []Message) map[int]error {
	if s.only != nil {
		return nil
	}
	places := map[int][]batchMessage{}
	for i := range ms {
		if ms[i].ID == "" || lua.CheckID(ms[i].ID) != nil {
			continue
		}
		own := s.counts.Of(ms[i].place())
		for partition := range s.counts.Latest() {
			if partition != own || ms[i].Replace != "" {
				places[partition] = append(places[partition], batchMessage{i, ms[i].ID})
			}
		}
	}
	if len(places) == 0 {
		return nil
	}
	sightings := s.sightings(ctx, ms, places)
	refused := map[int]error{}
	for at, seen := range sightings {
		replaces := ms[at].Replace != "" && (seen.own || len(seen.scheduled) > 0)
		switch {
		case seen.refused != nil:
			refused[at] = seen.refused
		case replaces:
			s.replace(at, &ms[at], seen)
		case seen.inWindow != nil:
			refused[at] = seen.inWindow
		case ms[at].Replace != "" && ms[at].Key != "":
			s.take(at, taking{to: s.counts.Of(ms[at].place())}) // another call may add its own at this moment
		}
	}
	return refused
}

// sightings looks for messages in partitions, in all at once.
func (s *batchRoute) sightings(ctx context.Context, ms []Message, places map[int][]batchMessage) map[int]*sighting {
	p, since := s.route.p, time.Now()
	var mu sync.Mutex
	sightings := map[int]*sighting{}
	refuse := func(seen *sighting, err error) {
		if seen.refused == nil || errors.Is(err, ErrDuplicate) { // certain, also when another partition does not answer
			seen.refused = err
		}
	}
	for _, messages := range places {
		for _, m := range messages {
			sightings[m.at] = cmp.Or(sightings[m.at], &sighting{})
		}
	}
	var looks sync.WaitGroup
	for partition, messages := range places { // from here on the looks read the map
		keys := p.keys(lua.PartitionName(s.route.queue, partition))
		looks.Go(func() {
			var held []holding
			var failed, twice error
			for chunk := range slices.Chunk(messages, duplicatesChunk) {
				failed = p.harmlessly(ctx, since, func(ctx context.Context) error {
					some, err := holds(ctx, p.cfg.Client, keys, chunk)
					if err == nil {
						err = s.versions(ctx, partition, ms, chunk, some)
					}
					if err == nil {
						held = append(held, some...)
					}
					return err
				})
				if failed != nil {
					break
				}
			}
			if slices.ContainsFunc(held, holding.mayRefuse) {
				twice = p.duplicate(ctx, keys)
			}
			mu.Lock()
			defer mu.Unlock()
			for i, one := range messages {
				m, seen := &ms[one.at], sightings[one.at]
				if i >= len(held) {
					refuse(seen, failed)
					continue
				}
				if partition == s.counts.Of(m.place()) { // enqueue compares
					seen.own = held[i].scheduled
					continue
				}
				seen.window = max(seen.window, held[i].window)
				switch {
				case held[i].refuses(m):
					refuse(seen, twice)
				case held[i].scheduled:
					seen.scheduled = append(seen.scheduled, version{partition, held[i].version})
				case held[i].window > 0:
					seen.inWindow = twice
				}
			}
		})
	}
	looks.Wait()
	return sightings
}

// versions notes what a partition holds of messages that are to be replaced by others that go elsewhere.
func (s *batchRoute) versions(ctx context.Context, partition int, ms []Message, asked []batchMessage, held []holding) error {
	var ids []string
	var at []int // among those that were asked for
	for i, one := range asked {
		m := &ms[one.at]
		if m.Replace != "" && held[i].scheduled && !held[i].refuses(m) && partition != s.counts.Of(m.place()) {
			ids, at = append(ids, one.id), append(at, i)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	p := s.route.p
	versions, err := lua.Versions(ctx, p.cfg.Client, p.keys(lua.PartitionName(s.route.queue, partition)), ids)
	for i, is := range versions {
		h := &held[at[i]]
		h.version, h.scheduled = is, is != "" // it may have become ready since
		if h.scheduled {
			h.due = is.Due() // it may have been moved or replaced since
		}
	}
	return err
}

// duplicate is ErrDuplicate, joined with the reason when the stored message is not as durable as asked. A server confirms writes
// only, so duplicate writes a token to wait behind, and clears it again.
func (p *Producer) duplicate(ctx context.Context, k lua.Keys) error {
	if d := p.cfg.Durability; !d.Fsync && d.Replicas == 0 {
		return ErrDuplicate
	}
	token := p.newToken()
	var waited error
	err := p.harmlessly(ctx, time.Now(), func(ctx context.Context) error {
		_, err := lua.Enqueue(ctx, p.cfg.Client, k, lua.Token{Name: token, Window: p.window}, nil, p.cfg.Durability)
		waited, err = setAside(err)
		return err
	})
	if err == nil {
		// When this fails the token ends with its window.
		_, _ = lua.Enqueue(ctx, p.cfg.Client, k, lua.Token{Done: token}, nil, lua.Durability{})
	}
	if err = errors.Join(err, waited); err != nil {
		return fmt.Errorf("%w: %w", ErrDuplicate, err)
	}
	return ErrDuplicate
}

// holding is how a partition holds an ID.
type holding struct {
	scheduled bool
	due       int64         // of what is scheduled, Unix ms
	version   lua.Version   // of what is scheduled; only where it is to be replaced by a message that goes elsewhere
	window    time.Duration // what is left of its dedup window; zero: it is in none
	now       int64         // by the clock of the partition's server, Unix ms
}

// mayRefuse says whether a message with the ID may be a duplicate.
func (h holding) mayRefuse() bool { return h.scheduled || h.window > 0 }

// refuses says whether a message with the ID is a duplicate, whatever other partitions hold.
func (h holding) refuses(m *Message) bool {
	if m.Replace == "" {
		return h.mayRefuse()
	}
	return h.scheduled && !m.mayReplace(h.due, h.now)
}

// holdsAll is holds for any number of messages.
func holdsAll(ctx context.Context, c rueidis.Client, k lua.Keys, messages []batchMessage) ([]holding, error) {
	held := make([]holding, 0, len(messages))
	for chunk := range slices.Chunk(messages, duplicatesChunk) {
		some, err := holds(ctx, c, k, chunk)
		if err != nil {
			return nil, err
		}
		held = append(held, some...)
	}
	return held, nil
}

// holds says how a partition holds the IDs of messages.
func holds(ctx context.Context, c rueidis.Client, k lua.Keys, messages []batchMessage) ([]holding, error) {
	ids := make([]string, len(messages))
	for i, m := range messages {
		ids[i] = m.id
	}
	replies := c.DoMulti(ctx,
		c.B().Zmscore().Key(k.Due).Member(ids...).Build(),
		c.B().Zmscore().Key(k.Seen).Member(ids...).Build(),
		c.B().Time().Build().SetSlot(k.Seen)) // the clock of the server that holds the window
	clock, err := replies[2].AsIntSlice()
	if err == nil && len(clock) != 2 {
		err = errors.New("TIME has not two parts")
	}
	if err != nil {
		return nil, lua.Classify("TIME", err)
	}
	held := make([]holding, len(ids))
	now := clock[0]*1000 + clock[1]/1000
	for i := range held {
		held[i].now = now
	}
	err = eachScore(replies[0], len(ids), func(i int, score float64) {
		due, _ := lua.DueScore(score)
		held[i].scheduled, held[i].due = true, int64(due)
	})
	if err == nil {
		err = eachScore(replies[1], len(ids), func(i int, end float64) {
			held[i].window = max(0, time.Duration(end-float64(now))*time.Millisecond)
		})
	}
	return held, lua.Classify("ZMSCORE", err)
}

// eachScore calls found for each member that a reply to ZMSCORE has the score of.
func eachScore(reply rueidis.RedisResult, members int, found func(i int, score float64)) error {
	scores, err := reply.ToArray()
	if err == nil && len(scores) != members {
		err = fmt.Errorf("%d scores of %d members", len(scores), members)
	}
	if err != nil {
		return err
	}
	for i := range scores {
		score, err := scores[i].AsFloat64()
		if rueidis.IsRedisNil(err) {
			continue
		}
		if err != nil {
			return err
		}
		found(i, score)
	}
	return nil
}

func (p *Producer) newToken() string { return p.name + "-" + strconv.FormatUint(p.tokens.Add(1), 36) }

// harmlessly is repeat for calls that change nothing: its error is never ErrUncertain.
func (p *Producer) harmlessly(ctx context.Context, since time.Time, try func(context.Context) error) error {
	var last error
	_, err := p.repeat(ctx, since, func(ctx context.Context) error {
		last = try(ctx)
		return last
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(last, context.DeadlineExceeded): // of repeat, not of the caller
		return fmt.Errorf("%w: %v", lua.ErrUnavailable, last)
	}
	return last
}
