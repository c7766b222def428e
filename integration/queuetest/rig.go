// Package queuetest helps tests to work on a queue by hand: to do what a producer, a person with redis-cli, or a worker
// in another language does. The tests of several packages share it. It imports only the scripts (package lua) and the
// test servers (package redistest), so that the tests of all packages above these can use it.
package queuetest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Rig is a queue on a server for which no bridge runs, so a test does the work by hand. Its methods end the test at an
// error.
type Rig struct {
	T                *testing.T
	Server           *redistest.Server
	Client, Blocking rueidis.Client
	Prefix           string
	Queue            string
	Keys             lua.Keys
}

// New returns a new queue on a server.
func New(t *testing.T, s *redistest.Server) *Rig {
	t.Helper()
	r := &Rig{T: t, Server: s, Prefix: s.Prefix(t), Queue: redistest.Queue(t)}
	r.Client = s.Client(t)
	r.Blocking = s.Client(t, func(o *rueidis.ClientOption) { o.AlwaysPipelining = true })
	r.Keys = lua.NewKeys(r.Prefix, r.Queue)
	return r
}

// Do runs any command.
func (r *Rig) Do(args ...string) rueidis.RedisMessage {
	r.T.Helper()
	reply, err := r.Client.Do(context.WithoutCancel(r.T.Context()),
		r.Client.B().Arbitrary(args[0]).Args(args[1:]...).Build()).ToMessage()
	if err != nil && !rueidis.IsRedisNil(err) {
		r.T.Fatalf("%.100q: %v", args, err)
	}
	return reply
}

// Number runs a command that answers with an integer.
func (r *Rig) Number(args ...string) int64 {
	r.T.Helper()
	reply := r.Do(args...)
	n, err := reply.AsInt64()
	if err != nil {
		r.T.Fatalf("%.100q: %v", args, err)
	}
	return n
}

// Exists returns how many of these keys exist.
func (r *Rig) Exists(keys ...string) int64 {
	r.T.Helper()
	return r.Number(append([]string{"EXISTS"}, keys...)...)
}

// Groups creates consumer groups that get every entry, including those that exist already.
func (r *Rig) Groups(names ...string) {
	r.T.Helper()
	for _, name := range names {
		if _, err := lua.EnsureGroup(r.T.Context(), r.Client, r.Keys, name); err != nil {
			r.T.Fatal(err)
		}
	}
}

// Fill makes n messages ready, m-0 to m-<n-1>.
func (r *Rig) Fill(n int) {
	r.T.Helper()
	for first := 0; first < n; first += 500 {
		var ids []string
		for i := first; i < min(n, first+500); i++ {
			ids = append(ids, fmt.Sprint("m-", i))
		}
		r.Ready(ids...)
	}
}

// Take reads at most n new entries as a consumer of the group, and returns their IDs. The entries stay pending.
func (r *Rig) Take(group, consumer string, n int) []string {
	r.T.Helper()
	var ids []string
	for len(ids) < n {
		reply := r.Do("XREADGROUP", "GROUP", group, consumer, "COUNT", fmt.Sprint(min(1000, n-len(ids))), "STREAMS",
			r.Keys.Stream, ">")
		streams, err := reply.AsXReadSlices()
		if err != nil && !rueidis.IsRedisNil(err) {
			r.T.Fatal(err)
		}
		for _, entry := range streams[r.Keys.Stream] {
			ids = append(ids, entry.ID)
		}
		if len(streams[r.Keys.Stream]) == 0 {
			break
		}
	}
	return ids
}

// Xack acknowledges entries with plain XACK.
func (r *Rig) Xack(group string, ids ...string) {
	r.T.Helper()
	for len(ids) > 0 {
		batch := ids[:min(1000, len(ids))]
		ids = ids[len(batch):]
		r.Do(append([]string{"XACK", r.Keys.Stream, group}, batch...)...)
	}
}

// Age makes pending entries look as if they were idle for an hour. Redis does not count this as a delivery.
func (r *Rig) Age(group, consumer string, ids ...string) {
	r.T.Helper()
	for len(ids) > 0 {
		batch := ids[:min(1000, len(ids))]
		ids = ids[len(batch):]
		args := append([]string{"XCLAIM", r.Keys.Stream, group, consumer, "0"}, batch...)
		r.Do(append(args, "IDLE", strconv.Itoa(int(time.Hour.Milliseconds())), "JUSTID")...)
	}
}

// Policy writes settings of the queue, by their names in its policy hash.
func (r *Rig) Policy(fields map[string]string) {
	r.T.Helper()
	hset := r.Client.B().Hset().Key(r.Keys.Policy).FieldValue()
	for name, value := range fields {
		hset = hset.FieldValue(name, value)
	}
	if err := r.Client.Do(r.T.Context(), hset.Build()).Error(); err != nil {
		r.T.Fatal(err)
	}
}

// Enqueue schedules messages.
func (r *Rig) Enqueue(items ...lua.Item) {
	r.T.Helper()
	if _, err := lua.Enqueue(r.T.Context(), r.Client, r.Keys, lua.Token{}, items, lua.Durability{}); err != nil {
		r.T.Fatal(err)
	}
}

// Ready makes messages ready, each with the payload "payload of <ID>".
func (r *Rig) Ready(ids ...string) {
	r.T.Helper()
	items := make([]lua.Item, len(ids))
	for i, id := range ids {
		items[i] = lua.Item{ID: id, When: lua.After(0), Payload: []byte("payload of " + id), Dedup: lua.Refuse}
	}
	r.Enqueue(items...)
}

// DrainAll drains the queue, as a bridge does, until nothing is scheduled. It waits for messages that are not due yet.
func (r *Rig) DrainAll() {
	r.T.Helper()
	redistest.Eventually(r.T, 20*time.Second, func() (bool, string) {
		d, err := lua.Drain(r.T.Context(), r.Client, r.Keys, 500, 1<<20)
		if err != nil {
			return false, err.Error()
		}
		return d.Wait < 0, fmt.Sprintf("next due in %s", d.Wait)
	})
}

// Pending returns how many entries of the group are pending, or -1 if there is no such group, as before the start of
// the worker that creates it.
func (r *Rig) Pending(group string) int64 {
	r.T.Helper()
	reply, err := r.Client.Do(context.WithoutCancel(r.T.Context()),
		r.Client.B().Xpending().Key(r.Keys.Stream).Group(group).Build()).ToArray()
	if refused, ok := rueidis.IsRedisErr(err); ok && strings.HasPrefix(refused.Error(), "NOGROUP") {
		return -1
	}
	if err != nil {
		r.T.Fatal(err)
	}
	n, _ := reply[0].AsInt64()
	return n
}

// Length returns how many entries a stream has.
func (r *Rig) Length(key string) int64 {
	r.T.Helper()
	n, err := r.Client.Do(context.WithoutCancel(r.T.Context()), r.Client.B().Xlen().Key(key).Build()).AsInt64()
	if err != nil {
		r.T.Fatal(err)
	}
	return n
}

// Part returns the rig of one partition.
func (r *Rig) Part(i int) *Rig { return r.On(lua.PartitionName(r.Queue, i)) }

// On returns the rig of another queue, with the same server and connections.
func (r *Rig) On(queue string) *Rig {
	one := *r
	one.Queue, one.Keys = queue, lua.NewKeys(r.Prefix, queue)
	return &one
}

// GroupNames returns the sorted names of the groups. It returns none if there is no stream.
func (r *Rig) GroupNames() []string { return r.names("XINFO", "GROUPS", r.Keys.Stream) }

// Consumers returns the sorted names of a group's consumers, including the reclaimer's own.
func (r *Rig) Consumers(group string) []string {
	return r.names("XINFO", "CONSUMERS", r.Keys.Stream, group)
}

// names returns the names in a reply of XINFO.
func (r *Rig) names(args ...string) []string {
	r.T.Helper()
	list, err := r.Client.Do(context.WithoutCancel(r.T.Context()), r.Client.B().Arbitrary(args...).Build()).ToArray()
	if err != nil && !strings.Contains(err.Error(), "no such key") {
		r.T.Fatal(err)
	}
	var names []string
	for _, one := range list {
		fields, err := one.AsMap()
		if err != nil {
			r.T.Fatal(err)
		}
		name := fields["name"]
		text, err := name.ToString()
		if err != nil {
			r.T.Fatal(err)
		}
		names = append(names, text)
	}
	slices.Sort(names)
	return names
}

// DeadIn adds a dead letter of a message to a partition. The letter's time is ms, in Unix ms.
func (r *Rig) DeadIn(partition, ms int, id string) {
	r.T.Helper()
	p := r.Part(partition)
	p.Do("XADD", p.Keys.Dead, fmt.Sprintf("%d-7", ms), "id", id, "payload", "p", "attempt", "1", "group", "g", "reason",
		"dead_letter", "dead_ms", fmt.Sprint(ms))
}

// Next drains the queue, delivers the ready entries to the group, acknowledges them, and returns them.
func (r *Rig) Next(group string) (all []lua.Entry) {
	r.T.Helper()
	r.DrainAll()
	for _, id := range r.Take(group, "c", 1000) {
		found, err := r.Client.Do(r.T.Context(),
			r.Client.B().Xrange().Key(r.Keys.Stream).Start(id).End(id).Build()).AsXRangeSlices()
		if err != nil || len(found) != 1 {
			r.T.Fatalf("entry %s: %d found, %v", id, len(found), err)
		}
		all = append(all, lua.ParseEntry(found[0].ID, found[0].FieldValues))
		r.Xack(group, id)
	}
	return all
}

// Texts runs a command that answers with a list of strings.
func (r *Rig) Texts(words ...string) []string {
	r.T.Helper()
	list, err := r.Client.Do(context.WithoutCancel(r.T.Context()), r.Client.B().Arbitrary(words...).Build()).AsStrSlice()
	if err != nil {
		r.T.Fatal(err)
	}
	return list
}

// BridgeLives deletes all heartbeats, and then writes one as a live bridge of this release does if lives is true. In
// both cases, the registry of bridges also has a member that is no bridge.
func (r *Rig) BridgeLives(lives bool) {
	r.T.Helper()
	key := lua.NewGlobals(r.Prefix).Bridges
	r.Do("DEL", key)
	// This member does not have the form of a bridge's identity.
	r.Do("ZADD", key, fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), "somebody else's")
	if lives {
		r.Do("ZADD", key, fmt.Sprint(time.Now().Add(time.Minute).UnixMilli()), lua.NewIdentity("host", 1, "v1").String())
	}
}

// EventuallyLength waits until the queue's stream has n entries.
func (r *Rig) EventuallyLength(n int64) {
	r.T.Helper()
	redistest.Eventually(r.T, 10*time.Second, func() (bool, string) {
		got := r.Length(r.Keys.Stream)
		return got == n, fmt.Sprintf("length %d, want %d", got, n)
	})
}

// Kill makes messages ready, delivers them to the group, and makes a dead letter of each, with this reason and error
// text.
func (r *Rig) Kill(group, reason, text string, ids ...string) {
	r.T.Helper()
	r.Groups(group)
	for len(ids) > 0 {
		batch := ids[:min(200, len(ids))]
		ids = ids[len(batch):]
		r.Ready(batch...)
		var failures []lua.Failure
		for _, entry := range r.Take(group, "c", len(batch)) {
			failures = append(failures, lua.Failure{Held: lua.Held{Entry: entry}, Action: lua.ActionDead, Delay: -1,
				Reason: reason, Error: text})
		}
		if _, err := lua.Retry(r.T.Context(), r.Client, r.Keys, group, lua.Attempts{Max: 1, Delays: []time.Duration{time.Second}},
			failures); err != nil {
			r.T.Fatal(err)
		}
	}
}
