package conformance

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// message is a message that the kit schedules for a worker.
type message struct {
	id          string
	work        string // task of the handler, in the form of the contract
	payload     string
	headers     map[string]string
	in          time.Duration
	maxAttempts int
	key         string
	partition   int
}

func (m message) allHeaders() map[string]string {
	all := map[string]string{}
	maps.Copy(all, m.headers)
	if m.work != "" {
		all["work"] = m.work
	}
	return all
}

// several returns n messages with the same work. Their IDs begin with letter.
func several(n int, letter, work string) []message {
	all := make([]message, n)
	for i := range all {
		all[i] = message{id: fmt.Sprintf("%s-%02d", letter, i+1), work: work}
	}
	return all
}

func ids(messages []message) []string {
	var all []string
	for _, m := range messages {
		all = append(all, m.id)
	}
	return all
}

// schedule schedules messages with the plain commands of the protocol.
func (t *trial) schedule(messages ...message) {
	now := t.now()
	c := t.redis.Client
	var cmds rueidis.Commands
	for _, m := range messages {
		k, due := t.keys(m.partition), strconv.FormatInt(now.Add(m.in).UnixMilli(), 10)
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
	for _, reply := range c.DoMulti(t.ctx, cmds...) {
		couldNot("schedule", reply.Error())
	}
}

// add adds an entry to the stream by a plain XADD, and returns its ID. Field names and values alternate.
func (t *trial) add(fields ...string) string {
	id, _ := t.text("XADD", t.keys(0).Stream, append([]string{"*"}, fields...)...)
	return id
}

// worker starts a worker of the trial's group.
func (t *trial) worker(name string) *program { return t.workerOf(t.group, name) }

func (t *trial) workerOf(group, name string) *program {
	t.mu.Lock()
	defer t.mu.Unlock()
	program := t.programName(name)
	t.watch.starts(program, group, name)
	return t.launched(program, []string{"GROUP=" + group, "CONSUMER=" + name}, false, func(line []byte) error {
		b, err := readBegun(line)
		if err == nil {
			b.by = name
			if t.untapped == "" {
				t.watch.begins(program, b)
			}
			t.mu.Lock()
			defer t.mu.Unlock()
			t.log = append(t.log, b)
		}
		return err
	})
}

// programName returns the name of a worker in reports. A worker that is started again under the same consumer name is
// another program. The caller holds t.mu.
func (t *trial) programName(consumer string) string {
	name := "worker " + consumer
	for n := 2; slices.ContainsFunc(t.programs, func(p *program) bool { return p.name == name }); n++ {
		name = fmt.Sprintf("worker %s, started for the %d. time", consumer, n)
	}
	return name
}

// stop sends SIGTERM to a worker.
func (t *trial) stop(w *program) {
	t.watch.stops(w.name)
	w.terminate()
}

// served registers the queue, starts a worker, and returns when the worker has done a first message.
func (t *trial) served(name string) *program {
	t.register()
	w := t.worker(name)
	t.marker("first-of-" + name)
	return w
}

// marker schedules a message, and returns when a worker has done it. The worker has then received all earlier
// messages.
func (t *trial) marker(id string) {
	t.schedule(message{id: id})
	t.done(0, id)
}

// begunOf returns the lines of workers that began a message, in order.
func (t *trial) begunOf(id string) []begun {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []begun
	for _, b := range t.log {
		if b.ID == id {
			all = append(all, b)
		}
	}
	return all
}

func attempts(all []begun) []int {
	var numbers []int
	for _, b := range all {
		numbers = append(numbers, b.Attempt)
	}
	return numbers
}

// awaitBegun waits until a message was begun n times, and returns the n-th line.
func (t *trial) awaitBegun(limit time.Duration, id string, n int) begun {
	t.await(limit, func() string {
		if all := t.begunOf(id); len(all) < n {
			return fmt.Sprintf("message %q was begun %s, with attempts %v", id, times(len(all)), attempts(all))
		}
		return ""
	})
	return t.begunOf(id)[n-1]
}

// awaitAnyBegun waits until any of the messages was begun. It returns the ID of the begun message that is last in the
// list.
func (t *trial) awaitAnyBegun(messages []message) (id string) {
	t.await(0, func() string {
		for _, m := range messages {
			if len(t.begunOf(m.id)) > 0 {
				id = m.id
			}
		}
		return missingIf(id == "", "no message was begun")
	})
	return id
}

func times(n int) string {
	switch n {
	case 0:
		return "never"
	case 1:
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// done waits until all messages were begun, and nothing is left to be delivered or acknowledged.
func (t *trial) done(limit time.Duration, ids ...string) {
	t.await(limit, func() string {
		for _, id := range ids {
			if len(t.begunOf(id)) == 0 {
				return fmt.Sprintf("message %q was not begun", id)
			}
		}
		return t.unsettled(t.group)
	})
}

// unsettled describes work of the queue that groups have not done. It returns "" if everything is acknowledged, dead,
// or due later.
func (t *trial) unsettled(groups ...string) string {
	counts, err := lua.ReadCounts(t.ctx, t.redis.Client, lua.NewGlobals(t.prefix), t.queue)
	couldNot("HGET queues", err)
	for i := range counts.Latest() {
		k := t.keys(i)
		now := t.now()
		// A retry moves from the stream to the schedule and back: the schedule is read before and after the stream.
		before, held, after := t.scheduledBefore(k, now), t.heldBy(k, groups), t.scheduledBefore(k, now)
		if left := cmp.Or(before, held, after); left != "" {
			return left
		}
	}
	return ""
}

// scheduledBefore names a message that is due within 30 seconds of now, or returns "".
func (t *trial) scheduledBefore(k lua.Keys, now time.Time) string {
	soon, err := t.do("ZRANGEBYSCORE", k.Due, "-inf", strconv.FormatInt(now.Add(30*time.Second).UnixMilli(), 10),
		"LIMIT", "0", "1").AsStrSlice()
	if couldNot("ZRANGEBYSCORE", err); len(soon) == 0 {
		return ""
	}
	return fmt.Sprintf("%q is scheduled", strings.ReplaceAll(soon[0], lua.Separator, " "))
}

// heldBy describes the entries of a group that are unread or unacknowledged.
func (t *trial) heldBy(k lua.Keys, groups []string) string {
	entries, err := view.ReadStream(t.ctx, t.redis.Client, k.Stream)
	couldNot("XINFO GROUPS", err)
	newest, _, err := view.ReadLastID(t.ctx, t.redis.Client, k.Stream)
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

// pending returns the IDs of the entries that a consumer has not acknowledged; for "" those of all consumers.
func (t *trial) pending(group, consumer string) []string {
	return t.pendingOf(group, view.PendingRange{Consumer: consumer})
}

// pendingFor returns the IDs of the entries that were neither extended nor acknowledged for the time idle.
func (t *trial) pendingFor(idle time.Duration) []string {
	return t.pendingOf(t.group, view.PendingRange{MinIdle: idle})
}

func (t *trial) pendingOf(group string, which view.PendingRange) (entries []string) {
	which.Count = 1000
	list, err := view.ReadPending(t.ctx, t.redis.Client, t.keys(0).Stream, group, which)
	couldNot("XPENDING", err)
	for _, one := range list {
		entries = append(entries, one.ID.String())
	}
	return entries
}

// once checks that each message was begun exactly once, with attempt 1.
func (t *trial) once(ids ...string) {
	for _, id := range ids {
		if got := attempts(t.begunOf(id)); !slices.Equal(got, []int{1}) {
			failf("message %q was begun %s, with attempts %v; wanted once, with attempt 1", id, times(len(got)), got)
		}
	}
}

// asSent checks that a worker received a message as it was sent.
func asSent(b begun, m message) {
	if !bytes.Equal(b.Payload, []byte(m.payload)) {
		failf("message %q: the payload has %d bytes, %s; it was sent with %d", b.ID, len(b.Payload), difference(string(b.Payload), m.payload), len(m.payload))
	}
	if want := m.allHeaders(); !maps.Equal(b.Headers, want) {
		failf("message %q: its headers are %q; it was sent with %q", b.ID, b.Headers, want)
	}
}

func difference(got, want string) string {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("and byte %d is %#02x where %#02x was sent", i, got[i], want[i])
		}
	}
	return "and is the same as far as it goes"
}

// exited waits until a worker that was told to stop has ended, and checks that it exited with 0.
func (t *trial) exited(w *program, within time.Duration) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-w.proc.Done():
	case <-timer.C:
		failf("%s still runs %s after SIGTERM", w.name, within)
	}
	if state := w.cmd.ProcessState; state.ExitCode() != 0 {
		failf("%s, which was stopped by SIGTERM, ended with %s; wanted exit status 0", w.name, state)
	}
	<-w.proc.Done() // all its output was read
	t.watch.ended(w.name)
	check(t.watch.verdict())
	check(errors.Join(w.misprint(), w.ended()))
}
