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
	timerKey  = "timer_set"
	poolKey   = "j" // j/NAMESPACE/QUEUE/ID: a string, which expires with the job
	readyKey  = "q" // q/NAMESPACE/QUEUE: a list, the oldest job at its end
	deadKey   = "d" // d/NAMESPACE/QUEUE: likewise
	pageSize  = 1000
	callLimit = 30 * time.Second
)

// State is the state of a job in lmstfy.
type State string

// States of a job.
const (
	Ready    State = "ready"
	Delayed  State = "delayed"
	InFlight State = "in_flight" // delivered to a consumer, and its ttr has not ended
	Dead     State = "dead"
	Stray    State = "stray" // in no structure: its server died while moving it, and would never deliver it
)

// place is a queue of lmstfy.
type place struct{ namespace, queue string }

func (p place) key(of string) string { return of + "/" + p.namespace + "/" + p.queue }

// entry is a job in a structure of lmstfy.
type entry struct {
	at    place
	id    string
	state State
	due   time.Time // score in timer_set, whole seconds
	tries int       // remaining tries
	raw   string    // the member of the zset, or the element of the list
}

func (e entry) key() string { return e.at.key(poolKey) + "/" + e.id }

// body is the value of a job's own key.
type body struct {
	there   bool
	foreign bool // the key is not a string
	bytes   []byte
	expires time.Time // zero = never
}

// source is the Redis of an lmstfy.
type source struct {
	c    rueidis.Client
	only func(place) bool
}

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

// isForeign reports whether an error means that a key has a type that lmstfy does not write. Another program that
// shares the Redis wrote it.
func isForeign(err error) bool {
	answer, is := rueidis.IsRedisErr(err)
	return is && strings.HasPrefix(answer.Error(), "WRONGTYPE")
}

// jobs calls see with every job whose own key exists from the beginning of the scan to its end. A job may come twice.
func (s *source) jobs(ctx context.Context, see func(at place, id string)) error {
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
			if len(parts) == 4 && s.only(place{parts[1], parts[2]}) {
				see(place{parts[1], parts[2]}, parts[3])
			}
		}
		if cursor = page.Cursor; cursor == 0 {
			return nil
		}
	}
}

// timer returns the jobs that are in timer_set from the beginning of the scan to its end, by queue, in the order of
// their due times.
func (s *source) timer(ctx context.Context) (map[place][]entry, error) {
	found := map[place][]entry{}
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
			if e, ok := timerEntry(pair); ok && s.only(e.at) {
				found[e.at] = append(found[e.at], e)
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
	namespace, rest, first := counted(pair[0])
	queue, rest, second := counted(rest)
	if err != nil || !(score >= 0 && score <= math.MaxUint32*2) || !first || !second || len(rest) < 2 {
		return e, false
	}
	e = entry{at: place{namespace, queue}, state: Delayed, due: time.Unix(int64(score), 0), raw: pair[0]}
	e.tries = int(binary.LittleEndian.Uint16([]byte(rest)))
	id, rest, ok := counted(rest[2:])
	e.id = id
	return e, ok && rest == ""
}

// counted splits off a text that has its length in front of it.
func counted(s string) (text, rest string, ok bool) {
	if len(s) < 2 {
		return "", "", false
	}
	n := int(binary.LittleEndian.Uint16([]byte(s)))
	if len(s) < 2+n {
		return "", "", false
	}
	return s[2 : 2+n], s[2+n:], true
}

// list returns the jobs of a list of a queue, the oldest first. Jobs that lmstfy removes meanwhile may be missing.
func (s *source) list(ctx context.Context, at place, of string, state State) (found []entry, _ error) {
	for last := int64(-1); ; last -= pageSize {
		answers, err := s.do(ctx, s.c.B().Lrange().Key(at.key(of)).Start(last-pageSize+1).Stop(last).Build())
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
			if id, rest, ok := counted(raw[2:]); ok && rest == "" {
				tries := int(binary.LittleEndian.Uint16([]byte(raw)))
				found = append(found, entry{at: at, id: id, state: state, tries: tries, raw: raw})
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
		left, _ := pair[0].AsInt64()
		bytes, err := pair[1].AsBytes()
		b := body{there: err == nil, foreign: isForeign(err), bytes: bytes}
		if left >= 0 {
			b.expires = now.Add(time.Duration(left) * time.Millisecond)
		}
		found = append(found, b)
	}
	return found, now, nil
}

// drop deletes jobs from lmstfy: first the job's own key, as an acknowledgement does. From then on lmstfy ignores the
// job in its structures. Then drop removes it from them.
func (s *source) drop(ctx context.Context, entries []entry) error {
	var cmds rueidis.Commands
	for _, e := range entries {
		cmds = append(cmds, s.c.B().Del().Key(e.key()).Build())
		switch e.state {
		case Delayed, InFlight:
			cmds = append(cmds, s.c.B().Zrem().Key(timerKey).Member(e.raw).Build())
		case Ready:
			cmds = append(cmds, s.c.B().Lrem().Key(e.at.key(readyKey)).Count(-1).Element(e.raw).Build())
		case Dead:
			cmds = append(cmds, s.c.B().Lrem().Key(e.at.key(deadKey)).Count(-1).Element(e.raw).Build())
		}
	}
	_, err := s.do(ctx, cmds...)
	return err
}
