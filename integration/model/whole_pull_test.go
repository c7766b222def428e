package model

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/pull"
)

// wholePolicy is the policy of the queue, and wholeSettings are the same settings as stored fields.
var (
	wholePolicy   = lua.Attempts{Max: 3, Delays: []time.Duration{time.Millisecond, time.Hour}}
	wholeSettings = []string{"max_attempts", "3", "retry_delays_ms", "1,3600000",
		"visibility_ms", decimal(idleTime.Milliseconds())}
)

// setPolicy writes the settings of the queue before it grows.
func (w *whole) setPolicy(skip bool) {
	part, failure := w.parts[0], "block"
	if skip {
		failure = "skip"
	}
	words := append([]string{"HSET", part.k.Policy}, wholeSettings...)
	part.plain("settings", [][]string{words}, func(*Queue) {})
	part.skipKeys(failure)
}

// pull receives messages as the HTTP API does: from all partitions, in any order, until there are enough.
func (w *whole) pull() {
	group, count := pick(w.parts[0], "group", groupNames[:len(w.parts[0].q.Groups)]...), pick(w.parts[0], "count", 1, 2, 10)
	within := pick(w.parts[0], "within", 0, time.Minute)
	var tokens []pull.Token
	do(w, fmt.Sprintf("pull %d for %s, within %s", count, group, within), func(ctx context.Context) ([]string, error) {
		found, err := w.puller.Pull(ctx, pull.Request{Queues: []string{w.queue}, Group: group, Count: count, Within: within})
		var names []string
		for _, d := range found {
			tokens, names = append(tokens, d.Token), append(names, fmt.Sprintf("%d %s %s", d.Partition, d.EntryID, d.ID))
		}
		slices.Sort(names)
		return names, err
	}, func(q *Whole, _ []string) []string { return q.Pull(group, count, w.told) })
	w.tokens = append(w.tokens, tokens...)
}

// token returns a token that a pull has returned at some time, and sometimes forges a part of it.
func (w *whole) token() pull.Ticket {
	w.unless(len(w.tokens) == 0)
	last := max(0, len(w.tokens)-8)
	t, err := w.tokens[last+pick(w.parts[0], "token", indices(w.tokens[last:])...)].Read()
	if err != nil {
		panic(err)
	}
	switch pick(w.parts[0], "forged", "", "", "", "", "partition", "group", "entry", "id") {
	case "partition":
		t.Partition = pick(w.parts[0], "partition", 0, 1, 7)
	case "group":
		t.Group = pick(w.parts[0], "group", append(groupNames, "nobody")...)
	case "entry":
		t.Entry = unknown
	case "id":
		t.ID = "another"
	}
	return t
}

// settleToken settles a delivery by its token, which may be late, used before, or forged.
func (w *whole) settleToken() {
	t := w.token()
	how := pick(w.parts[0], "how", "ack", "ack", "fail", "dead", "release", "extend")
	failed := map[string]error{"fail": errors.New("no"), "dead": stream.DeadLetter(errors.New("no")),
		"release": stream.Release(nil)}
	held := []lua.Held{{Entry: t.Entry, ID: t.ID, Key: t.Key}}
	var before *Queue
	if t.Partition < len(w.parts) {
		before = w.parts[t.Partition].q
	}
	answer := do(w, fmt.Sprintf("settle-%s %+v", how, t), func(ctx context.Context) (string, error) {
		tokens := []pull.Token{t.Token()}
		switch how {
		case "ack":
			done, err := w.puller.Ack(ctx, tokens)
			return fmt.Sprint(done), err
		case "extend":
			held, err := w.puller.Extend(ctx, tokens, []time.Duration{0})
			return fmt.Sprint(held), err
		}
		settled, err := w.puller.Fail(ctx, tokens, []error{failed[how]})
		return fmt.Sprint(settled), err
	}, func(q *Whole, _ string) string {
		var part *Queue
		if t.Partition < len(q.Parts) && q.Parts[t.Partition].Groups[t.Group].Pending != nil {
			part = q.Parts[t.Partition]
		}
		switch {
		case how == "ack" && part == nil:
			return "[false]"
		case how == "ack":
			return fmt.Sprint(part.Ack(t.Group, held))
		case how == "extend" && part == nil:
			return fmt.Sprint([]lua.Extended{lua.NotHeld})
		case how == "extend":
			return fmt.Sprint(part.Extend(t.Group, pull.DefaultConsumer, held))
		case part == nil:
			return fmt.Sprint([]stream.Settlement{stream.Lost})
		}
		failure := stream.FailureOf(failed[how])
		failure.Held = held[0]
		return fmt.Sprint([]stream.Settlement{stream.SettlementOf(part.Retry(t.Group, wholePolicy, []lua.Failure{failure})[0])})
	})
	if how == "ack" && answer == "[true]" {
		w.parts[t.Partition].book.done(t.Group, before.entry(t.Entry), t.Entry)
	}
}
