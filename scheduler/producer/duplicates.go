package producer

import (
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

// duplicates looks for messages with IDs that callers chose in the partitions of older counts. It returns why some messages must
// not be stored: ErrDuplicate, or an error where it could not find out. Script enqueue does the same for the partition that they
// go to. One that is to replace what is scheduled goes to where that is. Pipelined; one round trip per partition and 500 IDs, all
// partitions at once; none for a queue with one partition.
func (s *batchRoute) duplicates(ctx context.Context, ms []Message) map[int]error {
	if s.only != nil {
		return nil
	}
	places := map[int][]batchMessage{}
	for i := range ms {
		if ms[i].ID == "" || lua.CheckID(ms[i].ID) != nil {
			continue
		}
		for _, partition := range s.counts.Candidates(ms[i].place())[1:] {
			places[partition] = append(places[partition], batchMessage{i, ms[i].ID})
		}
	}
	if len(places) == 0 {
		return nil
	}
	p, since := s.route.p, time.Now()
	var mu sync.Mutex
	refused, replaces := map[int]error{}, map[int]int{}
	refuse := func(messages []batchMessage, err error) {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range messages {
			// A duplicate in one partition is certain, also when another one does not answer.
			if refused[m.at] == nil || errors.Is(err, ErrDuplicate) {
				refused[m.at] = err
			}
		}
	}
	var looks sync.WaitGroup
	for partition, messages := range places {
		keys := p.keys(lua.PartitionName(s.route.queue, partition))
		looks.Go(func() {
			var twice, replaced []batchMessage
			for chunk := range slices.Chunk(messages, duplicatesChunk) {
				err := p.harmlessly(ctx, since, func(ctx context.Context) error {
					held, err := holds(ctx, p.cfg.Client, keys, chunk)
					for i, how := range held {
						switch {
						case how == isScheduled && ms[chunk[i].at].Replace != "":
							replaced = append(replaced, chunk[i])
						case how != notHeld:
							twice = append(twice, chunk[i])
						}
					}
					return err
				})
				if err != nil {
					refuse(messages, err)
					break
				}
			}
			if len(twice) > 0 {
				refuse(twice, p.duplicate(ctx, keys))
			}
			mu.Lock()
			defer mu.Unlock()
			for _, m := range replaced {
				if other, more := replaces[m.at]; !more || other < partition {
					replaces[m.at] = partition
				}
			}
		})
	}
	looks.Wait()
	for at := range replaces {
		if errors.Is(refused[at], ErrDuplicate) { // by a window, which does not keep what is scheduled from being replaced
			delete(refused, at)
		}
	}
	s.replaces = replaces
	return refused
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
type holding int

const (
	notHeld holding = iota
	inWindow
	isScheduled
)

// holds says which of the messages are scheduled, or inside a dedup window, in a partition.
func holds(ctx context.Context, c rueidis.Client, k lua.Keys, messages []batchMessage) ([]holding, error) {
	n := len(messages)
	cmds := make(rueidis.Commands, 0, 2*n+1)
	for _, key := range []string{k.Due, k.Seen} {
		for _, m := range messages {
			cmds = append(cmds, c.B().Zscore().Key(key).Member(m.id).Build())
		}
	}
	cmds = append(cmds, c.B().Time().Build().SetSlot(k.Seen)) // the clock of the server that holds the window
	replies := c.DoMulti(ctx, cmds...)
	clock, err := replies[2*n].AsIntSlice()
	if err == nil && len(clock) != 2 {
		err = errors.New("TIME has not two parts")
	}
	if err != nil {
		return nil, lua.Classify("TIME", err)
	}
	now := float64(clock[0]*1000 + clock[1]/1000)
	held := make([]holding, n)
	for i, reply := range replies[:2*n] {
		score, err := reply.AsFloat64()
		if rueidis.IsRedisNil(err) {
			continue
		}
		if err != nil {
			return nil, lua.Classify("ZSCORE", err)
		}
		switch {
		case i < n:
			held[i] = isScheduled
		case score > now:
			held[i-n] = max(held[i-n], inWindow)
		}
	}
	return held, nil
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
