package stream

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// What a person with redis-cli, or a worker in another language, does to a queue.

// do runs any command.
func (r *rig) do(args ...string) rueidis.RedisMessage {
	r.t.Helper()
	reply, err := r.c.Do(context.WithoutCancel(r.t.Context()), r.c.B().Arbitrary(args[0]).Args(args[1:]...).Build()).ToMessage()
	if err != nil && !rueidis.IsRedisNil(err) {
		r.t.Fatalf("%.100q: %v", args, err)
	}
	return reply
}

func (r *rig) number(args ...string) int64 {
	r.t.Helper()
	reply := r.do(args...)
	n, err := reply.AsInt64()
	if err != nil {
		r.t.Fatalf("%.100q: %v", args, err)
	}
	return n
}

func (r *rig) groups(names ...string) {
	r.t.Helper()
	for _, name := range names {
		if _, err := lua.EnsureGroup(r.t.Context(), r.c, r.k, name); err != nil {
			r.t.Fatal(err)
		}
	}
}

// fill makes n messages ready, m-0 to m-<n-1>.
func (r *rig) fill(n int) {
	r.t.Helper()
	for first := 0; first < n; first += 500 {
		var ids []string
		for i := first; i < min(n, first+500); i++ {
			ids = append(ids, fmt.Sprint("m-", i))
		}
		r.ready(ids...)
	}
}

// take reads at most n new entries and returns their IDs.
func (r *rig) take(group, consumer string, n int) []string {
	r.t.Helper()
	var ids []string
	for len(ids) < n {
		reply := r.do("XREADGROUP", "GROUP", group, consumer, "COUNT", fmt.Sprint(min(1000, n-len(ids))), "STREAMS", r.k.Stream, ">")
		streams, err := reply.AsXReadSlices()
		if err != nil && !rueidis.IsRedisNil(err) {
			r.t.Fatal(err)
		}
		for _, entry := range streams[r.k.Stream] {
			ids = append(ids, entry.ID)
		}
		if len(streams[r.k.Stream]) == 0 {
			break
		}
	}
	return ids
}

// xack is a plain XACK.
func (r *rig) xack(group string, ids ...string) {
	r.t.Helper()
	for len(ids) > 0 {
		batch := ids[:min(1000, len(ids))]
		ids = ids[len(batch):]
		r.do(append([]string{"XACK", r.k.Stream, group}, batch...)...)
	}
}

// age makes entries look idle for an hour. It counts no delivery.
func (r *rig) age(group, consumer string, ids ...string) {
	r.t.Helper()
	for len(ids) > 0 {
		batch := ids[:min(1000, len(ids))]
		ids = ids[len(batch):]
		args := append([]string{"XCLAIM", r.k.Stream, group, consumer, "0"}, batch...)
		r.do(append(args, "IDLE", strconv.Itoa(int(time.Hour.Milliseconds())), "JUSTID")...)
	}
}

func (r *rig) reclaimer() *Reclaimer {
	return NewReclaimer(ReclaimerConfig{Client: r.c, Prefix: r.prefix, Queue: r.queue})
}

// reclaim does passes until nothing more is taken, and adds up what they did.
func (r *rig) reclaim() (sum ReclaimResult) {
	r.t.Helper()
	reclaimer := r.reclaimer()
	for {
		one, err := reclaimer.Reclaim(r.t.Context())
		if err != nil {
			r.t.Fatal(err)
		}
		sum.Retried += one.Retried
		sum.Buried += one.Buried
		sum.Skipped += one.Skipped
		sum.Stuck += one.Stuck
		if one.Moved() == 0 {
			return sum
		}
	}
}

func (r *rig) trim() TrimResult {
	r.t.Helper()
	result, err := NewTrimmer(r.c, r.prefix, r.queue).Trim(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return result
}

func (r *rig) deadLetters() *DeadLetters { return NewDeadLetters(r.c, r.prefix) }

// letters returns all dead letters, oldest first.
func (r *rig) letters() (all []Letter) {
	r.t.Helper()
	for letter, err := range r.deadLetters().List(context.WithoutCancel(r.t.Context()), r.queue, Filter{}) {
		if err != nil {
			r.t.Fatal(err)
		}
		all = append(all, letter)
	}
	return all
}

// kill makes messages ready, and dead-letters each for the group with the error given.
func (r *rig) kill(group, reason, text string, ids ...string) {
	r.t.Helper()
	r.groups(group)
	for len(ids) > 0 {
		batch := ids[:min(200, len(ids))]
		ids = ids[len(batch):]
		r.ready(batch...)
		var failures []lua.Failure
		for _, entry := range r.take(group, "c", len(batch)) {
			failures = append(failures, lua.Failure{Held: lua.Held{Entry: entry}, Action: lua.ActionDead, Delay: -1, Reason: reason, Error: text})
		}
		if _, err := lua.Retry(r.t.Context(), r.c, r.k, group, DefaultPolicy().Attempts(), failures); err != nil {
			r.t.Fatal(err)
		}
	}
}

// logBook is a logger whose lines can be counted.
type logBook struct {
	mu    sync.Mutex
	lines []string
}

func (b *logBook) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, string(line))
	return len(line), nil
}

func (b *logBook) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (b *logBook) count(text string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}
