package producer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

const duplicatesChunk = 500 // IDs per pipeline

// batchMessage is the index and ID of a message in a batch.
type batchMessage struct {
	index int
	id    string
}

// sighting is the state of one message's ID in the partitions in which duplicates looked it up.
type sighting struct {
	refused   error           // why the message must not be stored; nil = no reason
	inWindow  error           // ErrDuplicate because of a dedup window; a replacement of a scheduled message ignores it
	scheduled []storedVersion // scheduled messages with the ID that the message may replace
	window    time.Duration   // remaining time of the longest dedup window
	own       bool            // the ID is scheduled in the message's own partition; only looked up for a replacement
}

// duplicates returns, by index, why a message with a caller-chosen ID must not be stored: ErrDuplicate, or the error of
// the lookup. It notes the further steps of a replacement in b.replacements.
//
// An ID belongs to its queue, but the message that has the ID may be in any partition, because an ordering key decides
// the partition. So duplicates looks the ID up in all partitions except the partition to which the new message goes:
// the script enqueue checks that one. For a replacement, duplicates looks the ID up in that partition, too.
//
// It takes one round trip per 500 IDs, all partitions at once, and a second one if a message is to replace a message of
// another partition. It takes none for generated IDs. A queue with one partition needs no such lookup.
func (b *batchRoute) duplicates(ctx context.Context, ms []Message) map[int]error {
	places := map[int][]batchMessage{}
	for i := range ms {
		if ms[i].ID == "" || lua.CheckID(ms[i].ID) != nil {
			continue
		}
		own := b.counts.Of(ms[i].place())
		for partition := range b.counts.Latest() {
			if partition != own || ms[i].Replace != "" {
				places[partition] = append(places[partition], batchMessage{i, ms[i].ID})
			}
		}
	}
	if len(places) == 0 {
		return nil
	}
	sightings := b.sightings(ctx, ms, places)
	refused := map[int]error{}
	for at, seen := range sightings {
		replaces := ms[at].Replace != "" && (seen.own || len(seen.scheduled) > 0)
		switch {
		case seen.refused != nil:
			refused[at] = seen.refused
		case replaces:
			b.replace(at, &ms[at], seen)
		case seen.inWindow != nil:
			refused[at] = seen.inWindow
		case ms[at].Replace != "" && ms[at].Key != "":
			// There is nothing to replace, but another call may add a message with the ID at this moment. So contested
			// looks the ID up again.
			b.noteReplacement(at, replacement{to: b.counts.Of(ms[at].place())})
		}
	}
	return refused
}

// sightings looks the messages up in their partitions, all at once.
func (b *batchRoute) sightings(ctx context.Context, ms []Message, places map[int][]batchMessage) map[int]*sighting {
	p, since := b.route.producer, time.Now()
	var mu sync.Mutex
	sightings := map[int]*sighting{}
	refuse := func(seen *sighting, err error) {
		// ErrDuplicate replaces the error of a lookup: one partition that has the ID is enough.
		if seen.refused == nil || errors.Is(err, ErrDuplicate) {
			seen.refused = err
		}
	}
	for _, messages := range places {
		for _, m := range messages {
			sightings[m.index] = cmp.Or(sightings[m.index], &sighting{})
		}
	}
	var looks sync.WaitGroup
	for partition, messages := range places { // the map sightings is complete, so the goroutines only read it
		keys := p.keys(lua.PartitionName(b.route.queue, partition))
		looks.Go(func() {
			var held []idState
			var failed, twice error
			for chunk := range slices.Chunk(messages, duplicatesChunk) {
				failed = p.repeatIdempotent(ctx, since, func(ctx context.Context) error {
					some, err := lookUpChunk(ctx, p.cfg.Client, keys, chunk)
					if err == nil {
						err = b.versions(ctx, partition, ms, chunk, some)
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
			if slices.ContainsFunc(held, idState.mayRefuse) {
				twice = p.duplicate(ctx, keys)
			}
			mu.Lock()
			defer mu.Unlock()
			for i, one := range messages {
				m, seen := &ms[one.index], sightings[one.index]
				if i >= len(held) {
					refuse(seen, failed)
					continue
				}
				if partition == b.counts.Of(m.place()) { // the script enqueue compares the due times in this partition
					seen.own = held[i].scheduled
					continue
				}
				seen.window = max(seen.window, held[i].window)
				switch {
				case held[i].refuses(m):
					refuse(seen, twice)
				case held[i].scheduled:
					seen.scheduled = append(seen.scheduled, storedVersion{partition, held[i].version})
				case held[i].window > 0:
					seen.inWindow = twice
				}
			}
		})
	}
	looks.Wait()
	return sightings
}

// versions reads the versions of those scheduled messages in a partition that a message of another partition will
// replace, and sets them in held. It takes one round trip, or none if there are no such messages.
func (b *batchRoute) versions(ctx context.Context, partition int, ms []Message,
	asked []batchMessage, held []idState) error {
	var ids []string
	var indexes []int // in asked, of each ID
	for i, one := range asked {
		m := &ms[one.index]
		if m.Replace != "" && held[i].scheduled && !held[i].refuses(m) && partition != b.counts.Of(m.place()) {
			ids, indexes = append(ids, one.id), append(indexes, i)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	p := b.route.producer
	versions, err := lua.Versions(ctx, p.cfg.Client, p.keys(lua.PartitionName(b.route.queue, partition)), ids)
	for i, version := range versions {
		h := &held[indexes[i]]
		h.version, h.scheduled = version, version != "" // "" = the message has become ready in between
		if h.scheduled {
			h.due = version.Due() // the message may have been moved or replaced in between
		}
	}
	return err
}

// duplicate returns ErrDuplicate. If the stored message is not as durable as the producer's Durability, it also wraps
// the reason. A server only confirms the durability of writes. So duplicate writes a token, waits for its durability,
// and clears the token.
func (p *Producer) duplicate(ctx context.Context, k lua.Keys) error {
	if !p.cfg.Durability.Waits() {
		return ErrDuplicate
	}
	token := p.newToken()
	var notDurable error
	err := p.repeatIdempotent(ctx, time.Now(), func(ctx context.Context) error {
		named := lua.Token{Name: token, Window: p.tokenWindow}
		_, err := lua.Enqueue(ctx, p.cfg.Client, k, named, nil, p.cfg.Durability)
		notDurable, err = splitNotDurable(err)
		return err
	})
	if err == nil {
		// If this fails, the token ends with its window.
		_, _ = lua.Enqueue(ctx, p.cfg.Client, k, lua.Token{Done: token}, nil, lua.Durability{})
	}
	if err = errors.Join(err, notDurable); err != nil {
		return fmt.Errorf("%w: %w", ErrDuplicate, err)
	}
	return ErrDuplicate
}

// idState is the state of an ID in one partition.
type idState struct {
	scheduled bool
	due       int64         // due time of the scheduled message, Unix ms
	version   lua.Version   // of the scheduled message; only set if a message of another partition is to replace it
	window    time.Duration // remaining time of the ID's dedup window; zero = none
	now       int64         // time of the lookup by the clock of the partition's server, Unix ms
}

// mayRefuse reports whether a message with the ID may be a duplicate.
func (h idState) mayRefuse() bool { return h.scheduled || h.window > 0 }

// refuses reports whether a message with the ID is a duplicate, whatever other partitions hold.
func (h idState) refuses(m *Message) bool {
	if m.Replace == "" {
		return h.mayRefuse()
	}
	return h.scheduled && !m.mayReplace(h.due, h.now)
}

// lookUpIDs returns the state of the messages' IDs in one partition. It takes a round trip per duplicatesChunk
// messages.
func lookUpIDs(ctx context.Context, c rueidis.Client, k lua.Keys, messages []batchMessage) ([]idState, error) {
	held := make([]idState, 0, len(messages))
	for chunk := range slices.Chunk(messages, duplicatesChunk) {
		some, err := lookUpChunk(ctx, c, k, chunk)
		if err != nil {
			return nil, err
		}
		held = append(held, some...)
	}
	return held, nil
}

// lookUpChunk is lookUpIDs for at most duplicatesChunk messages.
func lookUpChunk(ctx context.Context, c rueidis.Client, k lua.Keys, messages []batchMessage) ([]idState, error) {
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
	held := make([]idState, len(ids))
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
