package conformance

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// store is the queue of a trial as the kit itself reads and changes it. A command that fails ends the case.
type store struct {
	*rig
	ctx   context.Context
	queue string
	group string             // the group of the trial's workers
	read  map[string][]entry // entries that kept has read, by stream
}

// entry is an entry of a stream.
type entry struct {
	ID     string
	Fields map[string]string
}

// ready returns the time at which the entry was added.
func (e entry) ready() time.Time { return lua.EntryTime(e.ID) }

// couldNot ends the case if the kit itself failed to do something.
func couldNot(what string, err error) {
	if err != nil {
		check(&ownError{lua.Classify(what, err)})
	}
}

// do sends a command. words are its name and the arguments before the key.
func (s *store) do(words, key string, args ...string) rueidis.RedisResult {
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
	defer cancel()
	c := s.redis.Client
	return c.Do(ctx, c.B().Arbitrary(strings.Fields(words)...).Keys(key).Args(args...).Build())
}

// number returns an integer reply. No reply, as for a missing key, is 0.
func (s *store) number(words, key string, args ...string) int {
	n, err := s.do(words, key, args...).AsInt64()
	if !rueidis.IsRedisNil(err) {
		couldNot(words, err)
	}
	return int(n)
}

// text returns a string reply; ok is false if there is none.
func (s *store) text(words, key string, args ...string) (text string, ok bool) {
	text, err := s.do(words, key, args...).ToString()
	if rueidis.IsRedisNil(err) {
		return "", false
	}
	couldNot(words, err)
	return text, true
}

// mustDo sends a command whose reply is not needed.
func (s *store) mustDo(words, key string, args ...string) {
	couldNot(words, s.do(words, key, args...).Error())
}

// now returns the time by the server's clock.
func (s *store) now() time.Time {
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
	defer cancel()
	now, err := view.ServerTime(ctx, s.redis.Client)
	couldNot("TIME", err)
	return now
}

// keys returns the keys of a partition.
func (s *store) keys(partition int) lua.Keys {
	return lua.NewKeys(s.prefix, lua.PartitionName(s.queue, partition))
}

// register makes the queue known to the bridge.
func (s *store) register() {
	_, err := lua.Register(s.ctx, s.redis.Client, lua.NewGlobals(s.prefix), []string{s.queue})
	couldNot("register the queue", err)
}

// policy sets settings of the queue. Names and values alternate.
func (s *store) policy(settings ...string) { s.mustDo("HSET", s.keys(0).Policy, settings...) }

// unhurry gives the queue a visibility timeout that is longer than any case.
func (s *store) unhurry() {
	s.policy(admin.SettingVisibility, strconv.FormatInt(unhurried.Milliseconds(), 10))
}

// createGroup creates a group on partition 0.
func (s *store) createGroup(group string) {
	_, err := lua.EnsureGroup(s.ctx, s.redis.Client, s.keys(0), group)
	couldNot("create group "+group, err)
}

// grow gives the queue n partitions.
func (s *store) grow(n int) {
	_, err := stream.Grow(s.ctx, s.redis.Client, s.prefix, s.queue, n, nil)
	couldNot("add partitions", err)
}

// entries returns all entries of a stream.
func (s *store) entries(stream string) []entry { return s.entriesFrom(stream, "-") }

// entriesFrom returns the entries of a stream from an entry ID on.
func (s *store) entriesFrom(stream, from string) []entry {
	reply, err := s.do("XRANGE", stream, from, "+").AsXRange()
	couldNot("XRANGE", err)
	all := make([]entry, len(reply))
	for i, e := range reply {
		all[i] = entry{e.ID, e.FieldValues}
	}
	return all
}

// kept returns all entries of a stream that only grows. It reads each entry once.
func (s *store) kept(stream string) []entry {
	if s.read == nil {
		s.read = map[string][]entry{}
	}
	from := "-"
	if known := s.read[stream]; len(known) > 0 {
		from = "(" + known[len(known)-1].ID
	}
	s.read[stream] = append(s.read[stream], s.entriesFrom(stream, from)...)
	return s.read[stream]
}

// schedule schedules messages with the plain commands of the protocol.
func (s *store) schedule(messages ...message) {
	now := s.now()
	c := s.redis.Client
	var cmds rueidis.Commands
	for _, m := range messages {
		k, due := s.keys(m.partition), strconv.FormatInt(now.Add(m.in).UnixMilli(), 10)
		fields := map[string]string{}
		for name, value := range m.allHeaders() {
			fields[lua.HeaderPrefix+name] = value
		}
		if m.maxAttempts > 0 {
			fields[lua.FieldMaxAttempts] = strconv.Itoa(m.maxAttempts)
		}
		if m.key != "" {
			fields[lua.FieldKey] = m.key
		}
		if m.payload != "" {
			cmds = append(cmds, c.B().Hset().Key(k.Payload).FieldValue().FieldValue(m.id, m.payload).Build())
		}
		if len(fields) > 0 {
			meta, err := json.Marshal(fields)
			check(err)
			cmds = append(cmds, c.B().Hset().Key(k.Meta).FieldValue().FieldValue(m.id, string(meta)).Build())
		}
		cmds = append(cmds, c.B().Arbitrary("ZADD").Keys(k.Due).Args(due, m.id).Build(),
			c.B().Arbitrary("XADD").Keys(k.Wake).Args("MAXLEN", "1", "*", "due_ms", due).Build())
	}
	for _, reply := range c.DoMulti(s.ctx, cmds...) {
		couldNot("schedule", reply.Error())
	}
}

// add adds an entry to the stream by a plain XADD, and returns its ID. Field names and values alternate.
func (s *store) add(fields ...string) string {
	id, _ := s.text("XADD", s.keys(0).Stream, append([]string{"*"}, fields...)...)
	return id
}

// pending returns the IDs of the entries that a consumer has not acknowledged; for "" those of all consumers.
func (s *store) pending(group, consumer string) []string {
	return s.pendingOf(group, view.PendingRange{Consumer: consumer})
}

// pendingFor returns the IDs of the entries that were neither extended nor acknowledged for the time idle.
func (s *store) pendingFor(idle time.Duration) []string {
	return s.pendingOf(s.group, view.PendingRange{MinIdle: idle})
}

// pendingOf returns the IDs of the pending entries in a range, at most a thousand.
func (s *store) pendingOf(group string, which view.PendingRange) (entries []string) {
	which.Count = 1000
	list, err := view.ReadPending(s.ctx, s.redis.Client, s.keys(0).Stream, group, which)
	couldNot("XPENDING", err)
	for _, one := range list {
		entries = append(entries, one.ID.String())
	}
	return entries
}

// readAs reads the new entries of a group as the kit's consumer, without blocking. It acknowledges them if
// acknowledge is set.
func (s *store) readAs(group string, acknowledge bool) []entry {
	reply, err := s.do("XREADGROUP GROUP "+group+" "+kit+" COUNT 100 STREAMS", s.keys(0).Stream, ">").AsXRead()
	if rueidis.IsRedisNil(err) {
		return nil
	}
	couldNot("XREADGROUP", err)
	var all []entry
	for _, e := range reply[s.keys(0).Stream] {
		all = append(all, entry{e.ID, e.FieldValues})
		if acknowledge {
			s.number("XACK", s.keys(0).Stream, group, e.ID)
		}
	}
	return all
}

// consumers returns the names of the consumers of the trial's group.
func (s *store) consumers() (names []string) {
	list, err := view.ReadConsumers(s.ctx, s.redis.Client, s.keys(0).Stream, s.group)
	couldNot("XINFO CONSUMERS", err)
	for _, one := range list {
		names = append(names, one.Name)
	}
	return names
}

// unsettled describes work of the queue that groups have not done. It returns "" if everything is acknowledged, dead,
// or due later.
func (s *store) unsettled(groups ...string) string {
	counts, err := lua.ReadCounts(s.ctx, s.redis.Client, lua.NewGlobals(s.prefix), s.queue)
	couldNot("HGET queues", err)
	for i := range counts.Latest() {
		k := s.keys(i)
		now := s.now()
		// A retry moves from the stream to the schedule and back: the schedule is read before and after the stream.
		before, held, after := s.scheduledBefore(k, now), s.heldBy(k, groups), s.scheduledBefore(k, now)
		if left := cmp.Or(before, held, after); left != "" {
			return left
		}
	}
	return ""
}

// scheduledBefore names a message that is due within 30 seconds of now, or returns "".
func (s *store) scheduledBefore(k lua.Keys, now time.Time) string {
	soon, err := s.do("ZRANGEBYSCORE", k.Due, "-inf", strconv.FormatInt(now.Add(30*time.Second).UnixMilli(), 10),
		"LIMIT", "0", "1").AsStrSlice()
	if couldNot("ZRANGEBYSCORE", err); len(soon) == 0 {
		return ""
	}
	return fmt.Sprintf("%q is scheduled", strings.ReplaceAll(soon[0], lua.Separator, " "))
}

// heldBy describes the entries of a group that are unread or unacknowledged.
func (s *store) heldBy(k lua.Keys, groups []string) string {
	entries, err := view.ReadStream(s.ctx, s.redis.Client, k.Stream)
	couldNot("XINFO GROUPS", err)
	newest, _, err := view.ReadLastID(s.ctx, s.redis.Client, k.Stream)
	couldNot("XINFO STREAM", err)
	for _, name := range groups {
		switch group, found := entries.Group(name); {
		case group.Pending > 0:
			return fmt.Sprintf("group %s has %d entries that are not acknowledged", name, group.Pending)
		case entries.Length == 0: // every entry is done, and deleted
		case !found:
			return fmt.Sprintf("there is no group %s on the stream", name)
		case group.Last != newest:
			return fmt.Sprintf("group %s has not read all entries", name)
		}
	}
	return ""
}

// loseGroup removes the group of a partition and adds a message. One script does both, so that the message is there
// before the worker can notice the loss.
func (s *store) loseGroup(partition int, lose, id string) {
	script := lose + " return redis.call('XADD', KEYS[1], '*', 'id', ARGV[2], 'payload', '', 'attempt', '1')"
	c := s.redis.Client
	eval := c.B().Eval().Script(script).Numkeys(1).Key(s.keys(partition).Stream).Arg(s.group, id).Build()
	couldNot("EVAL", c.Do(s.ctx, eval).Error())
}

// tokens returns the ID of the last wake token of each partition, or "".
func (s *store) tokens(count int) []string {
	all := make([]string, count)
	for i := range all {
		if entries := s.entries(s.keys(i).Wake); len(entries) > 0 {
			all[i] = entries[len(entries)-1].ID
		}
	}
	return all
}

// partitionOf returns the partition whose schedule holds a message, or -1.
func (s *store) partitionOf(id string, count int) int {
	var found []int
	for i := range count {
		if _, ok := s.text("ZSCORE", s.keys(i).Due, id); ok {
			found = append(found, i)
		}
	}
	if len(found) > 1 {
		failf("message %q is in the partitions %v: it is delivered twice", id, found)
	}
	return append(found, -1)[0]
}

// stored is a scheduled message as Redis stores it.
type stored struct {
	score, payload, meta string
	fields               map[string]string // parsed meta
}

// scheduled returns a scheduled message; ok is false if it is not scheduled.
func (s *store) scheduled(id string) (m stored, ok bool) {
	k := s.keys(0)
	if m.score, ok = s.text("ZSCORE", k.Due, id); !ok {
		return m, false
	}
	m.payload, _ = s.text("HGET", k.Payload, id)
	if m.meta, _ = s.text("HGET", k.Meta, id); m.meta == "" {
		return m, true
	}
	if json.Unmarshal([]byte(m.meta), &m.fields) != nil {
		failf("the meta of %q is %s; wanted a JSON object whose values are all strings", id, m.meta)
	}
	return m, true
}

// removeScripts removes all functions and cached scripts of the server.
func (s *store) removeScripts() {
	for _, what := range []string{"FUNCTION FLUSH", "SCRIPT FLUSH"} {
		s.mustDo(what, "SYNC")
	}
}
