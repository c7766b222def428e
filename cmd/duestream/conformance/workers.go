package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// message is one that the kit schedules for a worker.
type message struct {
	id          string
	work        string // of the contract
	payload     string
	headers     map[string]string
	in          time.Duration
	maxAttempts int
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

// several returns n messages of the same kind, with IDs from a letter.
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
func (t *trial) schedule(messages ...message) error {
	now, err := t.now()
	if err != nil {
		return err
	}
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
		if m.payload != "" {
			cmds = append(cmds, c.B().Hset().Key(k.Payload).FieldValue().FieldValue(m.id, m.payload).Build())
		}
		if len(fields) > 0 {
			meta, err := json.Marshal(fields)
			if err != nil {
				return err
			}
			cmds = append(cmds, c.B().Hset().Key(k.Meta).FieldValue().FieldValue(m.id, string(meta)).Build())
		}
		cmds = append(cmds, c.B().Arbitrary("ZADD").Keys(k.Due).Args(due, m.id).Build(),
			c.B().Arbitrary("XADD").Keys(k.Wake).Args("MAXLEN", "1", "*", "due_ms", due).Build())
	}
	for _, reply := range c.DoMulti(t.ctx, cmds...) {
		if err := reply.Error(); err != nil {
			return couldNot("schedule", err)
		}
	}
	return nil
}

// add adds an entry to the stream by a plain XADD, and returns its ID. Name and value take turns.
func (t *trial) add(fields ...string) (string, error) {
	id, _, err := t.text("XADD", t.keys(0).Stream, append([]string{"*"}, fields...)...)
	return id, err
}

// worker starts a worker of the trial's group.
func (t *trial) worker(name string) (*program, error) { return t.workerOf(t.group, name) }

func (t *trial) workerOf(group, name string) (*program, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.ctx.Err(); err != nil {
		return nil, err
	}
	program := t.programName(name)
	environment, err := t.tapped(program)
	if err != nil {
		return nil, err
	}
	t.watch.starts(program, group, name)
	p, err := launch(t.cfg, program, append(environment, "GROUP="+group, "CONSUMER="+name), false, func(line []byte) error {
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
	if err == nil {
		t.programs = append(t.programs, p)
	}
	return p, err
}

// programName is what a worker is called in reports: one that is started again under the same name is another program. The caller holds t.mu.
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

// served registers the queue, starts a worker, and returns when that has done a first message.
func (t *trial) served(name string) (*program, error) {
	if err := t.register(); err != nil {
		return nil, err
	}
	w, err := t.worker(name)
	if err != nil {
		return nil, err
	}
	return w, t.marker("first-of-" + name)
}

// marker schedules a message and returns when a worker has done it: it works, and has had what was ready before.
func (t *trial) marker(id string) error {
	if err := t.schedule(message{id: id}); err != nil {
		return err
	}
	return t.done(0, id)
}

// begunOf returns what workers began of a message, in order.
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

// awaitBegun waits until a message was begun for the n-th time, and returns that.
func (t *trial) awaitBegun(limit time.Duration, id string, n int) (begun, error) {
	err := t.await(limit, func() (string, error) {
		if all := t.begunOf(id); len(all) < n {
			return fmt.Sprintf("message %q was begun %s, with attempts %v", id, times(len(all)), attempts(all)), nil
		}
		return "", nil
	})
	if err != nil {
		return begun{}, err
	}
	return t.begunOf(id)[n-1], nil
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

// done waits until messages were begun, and nothing is on its way to the workers any more.
func (t *trial) done(limit time.Duration, ids ...string) error {
	return t.await(limit, func() (string, error) {
		for _, id := range ids {
			if len(t.begunOf(id)) == 0 {
				return fmt.Sprintf("message %q was not begun", id), nil
			}
		}
		return t.unsettled(t.group)
	})
}

// unsettled says what of the queue a group has not done yet; "" when everything is acknowledged, dead, or due later.
func (t *trial) unsettled(groups ...string) (string, error) {
	counts, err := lua.ReadCounts(t.ctx, t.redis.Client, lua.NewGlobals(t.prefix), t.queue)
	if err != nil {
		return "", couldNot("HGET queues", err)
	}
	for i := range counts.Latest() {
		k := t.keys(i)
		now, err := t.now()
		if err != nil {
			return "", err
		}
		// A retry goes from the stream to the schedule and back: the schedule is looked at before and after.
		for _, look := range []func() (string, error){
			func() (string, error) { return t.scheduledBefore(k, now) },
			func() (string, error) { return t.heldBy(k, groups) },
			func() (string, error) { return t.scheduledBefore(k, now) },
		} {
			if left, err := look(); left != "" || err != nil {
				return left, err
			}
		}
	}
	return "", nil
}

// scheduledBefore says which messages are due within the next seconds.
func (t *trial) scheduledBefore(k lua.Keys, now time.Time) (string, error) {
	soon, err := t.do("ZRANGEBYSCORE", k.Due, "-inf", strconv.FormatInt(now.Add(30*time.Second).UnixMilli(), 10), "LIMIT", "0", "1").AsStrSlice()
	if err != nil || len(soon) == 0 {
		return "", couldNot("ZRANGEBYSCORE", err)
	}
	return fmt.Sprintf("%q is scheduled", strings.ReplaceAll(soon[0], lua.Separator, " ")), nil
}

// heldBy says what groups have not been given yet, or not acknowledged.
func (t *trial) heldBy(k lua.Keys, groups []string) (string, error) {
	info, err := t.do("XINFO STREAM", k.Stream).AsMap()
	if missingKey(err) {
		return "", nil
	}
	if err != nil {
		return "", couldNot("XINFO STREAM", err)
	}
	last, length := info["last-generated-id"], info["length"]
	newest, _ := last.ToString()
	if n, _ := length.AsInt64(); n == 0 {
		newest = "0-0" // what was there is done, and freed
	}
	reply, err := t.do("XINFO GROUPS", k.Stream).ToArray()
	if err != nil {
		return "", couldNot("XINFO GROUPS", err)
	}
	for _, group := range groups {
		found := false
		for _, g := range reply {
			about, err := g.AsMap()
			if err != nil {
				return "", couldNot("XINFO GROUPS", err)
			}
			field := func(name string) string {
				value := about[name]
				text, _ := value.ToString()
				return text
			}
			if field("name") != group {
				continue
			}
			found = true
			value := about["pending"]
			if n, _ := value.AsInt64(); n > 0 {
				return fmt.Sprintf("group %s has %d entries that are not acknowledged", group, n), nil
			}
			if field("last-delivered-id") != newest && newest != "0-0" {
				return fmt.Sprintf("group %s has not read all entries", group), nil
			}
		}
		if !found && newest != "0-0" {
			return fmt.Sprintf("there is no group %s on the stream", group), nil
		}
	}
	return "", nil
}

func missingKey(err error) bool {
	refused, ok := rueidis.IsRedisErr(err)
	return ok && strings.Contains(refused.Error(), "no such key")
}

// pending returns the IDs of the entries that a consumer has not acknowledged; of all consumers when it is "".
func (t *trial) pending(group, consumer string) ([]string, error) {
	args := []string{group, "-", "+", "1000"}
	if consumer != "" {
		args = append(args, consumer)
	}
	return t.pendingOf(args...)
}

// pendingFor returns the IDs of the entries that nobody has extended or acknowledged for so long.
func (t *trial) pendingFor(idle time.Duration) ([]string, error) {
	return t.pendingOf(t.group, "IDLE", strconv.FormatInt(idle.Milliseconds(), 10), "-", "+", "1000")
}

func (t *trial) pendingOf(args ...string) ([]string, error) {
	reply, err := t.do("XPENDING", t.keys(0).Stream, args...).ToArray()
	if err != nil {
		return nil, couldNot("XPENDING", err)
	}
	var all []string
	for _, one := range reply {
		parts, err := one.ToArray()
		if err != nil || len(parts) == 0 {
			return nil, couldNot("XPENDING", err)
		}
		id, err := parts[0].ToString()
		if err != nil {
			return nil, couldNot("XPENDING", err)
		}
		all = append(all, id)
	}
	return all, nil
}

// once checks that each message was begun once, as its first attempt.
func (t *trial) once(ids ...string) error {
	for _, id := range ids {
		if got := attempts(t.begunOf(id)); !slices.Equal(got, []int{1}) {
			return failf("message %q was begun %s, with attempts %v; wanted once, with attempt 1", id, times(len(got)), got)
		}
	}
	return nil
}

// asSent checks what a worker said about a message.
func asSent(b begun, m message) error {
	if !bytes.Equal(b.Payload, []byte(m.payload)) {
		return failf("message %q: the payload has %d bytes, %s; it was sent with %d", b.ID, len(b.Payload), difference(string(b.Payload), m.payload), len(m.payload))
	}
	if want := m.allHeaders(); !maps.Equal(b.Headers, want) {
		return failf("message %q: its headers are %q; it was sent with %q", b.ID, b.Headers, want)
	}
	return nil
}

func difference(got, want string) string {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("and byte %d is %#02x where %#02x was sent", i, got[i], want[i])
		}
	}
	return "and is the same as far as it goes"
}

// exited waits until a worker that was told to stop has ended, and checks how.
func (t *trial) exited(w *program, within time.Duration) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-w.proc.Done():
	case <-timer.C:
		return failf("%s still runs %s after SIGTERM", w.name, within)
	}
	if state := w.cmd.ProcessState; state.ExitCode() != 0 {
		return failf("%s, which was stopped by SIGTERM, ended with %s; wanted exit status 0", w.name, state)
	}
	<-w.proc.Done() // all that it printed was read
	t.watch.ended(w.name)
	if err := t.watch.verdict(); err != nil {
		return err
	}
	return w.trouble()
}
