package migrate

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Keys of lmstfy's Redis.
const (
	timerKey = "timer_set"
	poolKey  = "j" // j/NAMESPACE/QUEUE/ID: a string, which expires with the job
	readyKey = "q" // q/NAMESPACE/QUEUE: a list, the oldest job at its end
	deadKey  = "d" // d/NAMESPACE/QUEUE: a list, the oldest job at its end
)

const (
	pageSize  = 1000 // members or elements in one reply
	callLimit = 30 * time.Second

	// maxScore is the largest score that lmstfy writes to timer_set: a Unix time plus a delay. Each of the two is a
	// number of seconds in 32 bits.
	maxScore = 2 * math.MaxUint32
)

// State is the state of a job in lmstfy.
type State string

// States of a job.
const (
	Ready    State = "ready"
	Delayed  State = "delayed"
	InFlight State = "in_flight" // delivered to a consumer, and its ttr has not ended
	Dead     State = "dead"
	Stray    State = "stray" // in no structure: the server died while moving the job, so lmstfy will never deliver it
)

// queueID identifies a queue of lmstfy.
type queueID struct{ namespace, name string }

func (q queueID) key(prefix string) string { return prefix + "/" + q.namespace + "/" + q.name }

// entry is a job in a structure of lmstfy.
type entry struct {
	queue queueID
	id    string
	state State
	due   time.Time // score in timer_set, whole seconds
	tries int       // remaining tries
	raw   string    // the member of the zset, or the element of the list
}

func (e entry) key() string { return e.queue.key(poolKey) + "/" + e.id }

// body is the value of a job's own key.
type body struct {
	exists  bool
	foreign bool // the key is not a string
	bytes   []byte
	expires time.Time // zero = never
}

// source is the Redis of an lmstfy.
type source struct {
	c        rueidis.Client
	isWanted func(queueID) bool
}

// do sends commands in one round trip, within callLimit. It returns the server's first error, unless the error means
// that a key is missing or has a foreign type.
func (s *source) do(ctx context.Context, cmds ...rueidis.Completed) ([]rueidis.RedisResult, error) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	answers := s.c.DoMulti(call, cmds...)
	for _, answer := range answers {
		if err := answer.Error(); err != nil && !rueidis.IsRedisNil(err) && !isForeign(err) {
			return nil, fmt.Errorf("read lmstfy's Redis: %w", err)
		}
	}
	return answers, nil
}

// isForeign reports whether an error means that a key has a type that lmstfy does not write. Such a key was written by
// another program that shares the Redis.
func isForeign(err error) bool {
	answer, is := rueidis.IsRedisErr(err)
	return is && strings.HasPrefix(answer.Error(), "WRONGTYPE")
}

// jobs calls visit for every job of the wanted queues, by the jobs' own keys. It may miss a job whose key is created or
// deleted during the scan. It may visit a job twice.
func (s *source) jobs(ctx context.Context, visit func(queue queueID, id string)) error {
	for cursor := uint64(0); ; {
		answers, err := s.do(ctx, s.c.B().Scan().Cursor(cursor).Match(poolKey+"/*").Count(pageSize).Build())
		if err != nil {
			return err
		}
		page, err := answers[0].AsScanEntry()
		if err != nil {
			return fmt.Errorf("read lmstfy's Redis: %w", err)
		}
		for _, key := range page.Elements {
			parts := strings.Split(key, "/")
			if len(parts) != 4 {
				continue
			}
			if queue := (queueID{parts[1], parts[2]}); s.isWanted(queue) {
				visit(queue, parts[3])
			}
		}
		if cursor = page.Cursor; cursor == 0 {
			return nil
		}
	}
}

// timer returns the jobs in timer_set by queue, in the order of their due times. It may miss a job that is added or
// removed during the scan.
func (s *source) timer(ctx context.Context) (map[queueID][]entry, error) {
	found := map[queueID][]entry{}
	for cursor := uint64(0); ; {
		answers, err := s.do(ctx, s.c.B().Zscan().Key(timerKey).Cursor(cursor).Count(pageSize).Build())
		if err != nil {
			return nil, err
		}
		page, err := answers[0].AsScanEntry()
		if err != nil {
			return nil, fmt.Errorf("read lmstfy's Redis: %w", err)
		}
		for pair := range slices.Chunk(page.Elements, 2) {
			if e, ok := timerEntry(pair); ok && s.isWanted(e.queue) {
				found[e.queue] = append(found[e.queue], e)
			}
		}
		if cursor = page.Cursor; cursor == 0 {
			break
		}
	}
	for _, all := range found {
		slices.SortFunc(all, func(a, b entry) int { return a.due.Compare(b.due) })
	}
	return found, nil
}

// timerEntry reads a member of timer_set and its score. A member holds namespace, queue, tries and ID, packed by Lua's
// struct library with the format Hc0Hc0HHc0.
func timerEntry(pair []string) (e entry, ok bool) {
	if len(pair) != 2 {
		return e, false
	}
	score, err := strconv.ParseFloat(pair[1], 64)
	namespace, rest, hasNamespace := cutCounted(pair[0])
	queue, rest, hasQueue := cutCounted(rest)
	hasScore := err == nil && score >= 0 && score <= maxScore
	if !hasScore || !hasNamespace || !hasQueue || len(rest) < 2 {
		return e, false
	}
	e = entry{queue: queueID{namespace, queue}, state: Delayed, due: time.Unix(int64(score), 0), raw: pair[0]}
	e.tries = int(binary.LittleEndian.Uint16([]byte(rest)))
	id, rest, ok := cutCounted(rest[2:])
	e.id = id
	return e, ok && rest == ""
}

// cutCounted splits off a text that follows its length in two bytes.
func cutCounted(s string) (text, rest string, ok bool) {
	if len(s) < 2 {
		return "", "", false
	}
	n := int(binary.LittleEndian.Uint16([]byte(s)))
	if len(s) < 2+n {
		return "", "", false
	}
	return s[2 : 2+n], s[2+n:], true
}

// list returns the jobs in one of a queue's lists, the oldest first, as entries with the given state. Jobs that lmstfy
// removes meanwhile may be missing.
func (s *source) list(ctx context.Context, queue queueID, prefix string, state State) (found []entry, _ error) {
	for last := int64(-1); ; last -= pageSize {
		answers, err := s.do(ctx, s.c.B().Lrange().Key(queue.key(prefix)).Start(last-pageSize+1).Stop(last).Build())
		if err != nil {
			return nil, err
		}
		page, err := answers[0].AsStrSlice()
		if isForeign(err) {
			return found, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read lmstfy's Redis: %w", err)
		}
		for _, raw := range slices.Backward(page) {
			if len(raw) < 2 {
				continue
			}
			if id, rest, ok := cutCounted(raw[2:]); ok && rest == "" {
				tries := int(binary.LittleEndian.Uint16([]byte(raw)))
				found = append(found, entry{queue: queue, id: id, state: state, tries: tries, raw: raw})
			}
		}
		if len(page) < pageSize {
			return found, nil
		}
	}
}

// bodies returns the values of the jobs' own keys, and the server's time.
func (s *source) bodies(ctx context.Context, entries []entry) (found []body, now time.Time, _ error) {
	cmds := rueidis.Commands{s.c.B().Time().Build()}
	for _, e := range entries {
		cmds = append(cmds, s.c.B().Pttl().Key(e.key()).Build(), s.c.B().Get().Key(e.key()).Build())
	}
	answers, err := s.do(ctx, cmds...)
	if err != nil {
		return nil, now, err
	}
	clock, err := answers[0].AsIntSlice()
	if err != nil || len(clock) != 2 {
		return nil, now, fmt.Errorf("read lmstfy's Redis: no time: %w", err)
	}
	now = time.UnixMilli(clock[0]*1000 + clock[1]/1000)
	for pair := range slices.Chunk(answers[1:], 2) {
		ttl, _ := pair[0].AsInt64() // ms; negative = the key is missing or never expires
		bytes, err := pair[1].AsBytes()
		b := body{exists: err == nil, foreign: isForeign(err), bytes: bytes}
		if ttl >= 0 {
			b.expires = now.Add(time.Duration(ttl) * time.Millisecond)
		}
		found = append(found, b)
	}
	return found, now, nil
}

// drop deletes jobs from lmstfy. It deletes the job's own key first, as an acknowledgement does, because lmstfy ignores
// a job without that key. Then it removes the job from its structure.
func (s *source) drop(ctx context.Context, entries []entry) error {
	var cmds rueidis.Commands
	for _, e := range entries {
		cmds = append(cmds, s.c.B().Del().Key(e.key()).Build())
		switch e.state {
		case Delayed, InFlight:
			cmds = append(cmds, s.c.B().Zrem().Key(timerKey).Member(e.raw).Build())
		case Ready:
			cmds = append(cmds, s.c.B().Lrem().Key(e.queue.key(readyKey)).Count(-1).Element(e.raw).Build())
		case Dead:
			cmds = append(cmds, s.c.B().Lrem().Key(e.queue.key(deadKey)).Count(-1).Element(e.raw).Build())
		}
	}
	_, err := s.do(ctx, cmds...)
	return err
}
