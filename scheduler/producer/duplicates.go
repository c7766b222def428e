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

// batchMessage is the index and ID of a message in a batch. It lets a message that needs no lookup stay on its caller's
// stack.
type batchMessage struct {
	at int
	id string
}

// sighting is the state of one message's ID in the partitions that the message does not go to.
type sighting struct {
	refused   error         // why the message must not be stored; nil = no reason
	inWindow  error         // ErrDuplicate because of a dedup window; a replacement of a scheduled message ignores it
	scheduled []version     // scheduled messages with the ID that the message may replace
	window    time.Duration // remaining time of the longest dedup window
	own       bool          // the ID is scheduled in the message's own partition
}

// duplicates looks up caller-chosen IDs in the partitions that their messages do not go to. An ID belongs to its queue,
// and its message is in the partition of the key that it was scheduled with. It returns, by index, why a message must
// not be stored: ErrDuplicate, or the error of the lookup. Script enqueue checks the message's own partition. Further
// steps of a replacement are noted in s.takes. Pipelined: one round trip per 500 IDs for all partitions, and another
// one if messages there are to be replaced; none for a queue with one partition, or for generated IDs.
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
			s.take(at, taking{to: s.counts.Of(ms[at].place())}) // another call may add its own message at this moment
		}
	}
	return refused
}

// sightings looks the messages up in their partitions, all at once.
func (s *batchRoute) sightings(ctx context.Context, ms []Message, places map[int][]batchMessage) map[int]*sighting {
	p, since := s.route.p, time.Now()
	var mu sync.Mutex
	sightings := map[int]*sighting{}
	refuse := func(seen *sighting, err error) {
		if seen.refused == nil || errors.Is(err, ErrDuplicate) { // certain, even if a partition does not answer
			seen.refused = err
		}
	}
	for _, messages := range places {
		for _, m := range messages {
			sightings[m.at] = cmp.Or(sightings[m.at], &sighting{})
		}
	}
	var looks sync.WaitGroup
	for partition, messages := range places { // from here on the map is only read
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
				if partition == s.counts.Of(m.place()) { // script enqueue compares the due times there
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

// versions notes the versions of the messages in a partition that a message of another partition is to replace.
func (s *batchRoute) versions(ctx context.Context, partition int, ms []Message,
	asked []batchMessage, held []holding) error {
	var ids []string
	var at []int // index in asked
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
		h.version, h.scheduled = is, is != "" // it may have become ready in between
		if h.scheduled {
			h.due = is.Due() // it may have been moved or replaced in between
		}
	}
	return err
}

// duplicate returns ErrDuplicate, joined with the reason if the stored message is not as durable as asked. A server
// only confirms writes: so duplicate writes a token, waits for its durability, and clears it.
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
		// If this fails, the token ends with its window.
		_, _ = lua.Enqueue(ctx, p.cfg.Client, k, lua.Token{Done: token}, nil, lua.Durability{})
	}
	if err = errors.Join(err, waited); err != nil {
		return fmt.Errorf("%w: %w", ErrDuplicate, err)
	}
	return ErrDuplicate
}

// holding is the state of an ID in one partition.
type holding struct {
	scheduled bool
	due       int64         // of the scheduled message, Unix ms
	version   lua.Version   // of the scheduled message; only set if a message of another partition is to replace it
	window    time.Duration // remaining time of its dedup window; zero = none
	now       int64         // by the clock of the partition's server, Unix ms
}

// mayRefuse reports whether a message with the ID may be a duplicate.
func (h holding) mayRefuse() bool { return h.scheduled || h.window > 0 }

// refuses reports whether a message with the ID is a duplicate, whatever other partitions hold.
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

// holds returns the state of the messages' IDs in one partition.
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

// eachScore calls found for each member that has a score in a reply to ZMSCORE.
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

// harmlessly is repeat for calls without side effects: its error is never ErrUncertain.
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
	case errors.Is(last, context.DeadlineExceeded): // repeat's deadline, not the caller's
		return fmt.Errorf("%w: %v", lua.ErrUnavailable, last)
	}
	return last
}
