package asynq

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// old is a Redis in which a test writes tasks in the form of asynq. (integration/migrate uses asynq itself.)
type old struct {
	t *testing.T
	c rueidis.Client
}

func newOld(t *testing.T) *old { return &old{t: t, c: redistest.Own(t).Client(t)} }

func (o *old) do(words ...string) {
	o.t.Helper()
	if err := o.c.Do(o.t.Context(), o.c.B().Arbitrary(words...).Build()).Error(); err != nil {
		o.t.Fatal(words, " ", err)
	}
}

// encode is the inverse of decode.
func encode(m message) string {
	var b []byte
	text := func(n protowire.Number, value string) {
		b = protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), value)
	}
	number := func(n protowire.Number, value int64) {
		b = protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), uint64(value))
	}
	text(fieldType, m.kind)
	text(fieldPayload, string(m.payload))
	text(fieldID, m.id)
	text(fieldQueue, m.queue)
	number(fieldRetry, m.retries)
	number(fieldRetried, m.retried)
	text(fieldError, m.lastError)
	number(fieldTimeout, m.timeout)
	number(fieldDeadline, m.deadline)
	text(fieldUniqueKey, m.uniqueKey)
	number(fieldLastFailed, m.lastFailed)
	number(fieldRetention, m.retention)
	text(fieldGroupKey, m.groupKey)
	for name, value := range m.headers {
		entry := protowire.AppendString(protowire.AppendTag(nil, fieldMapKey, protowire.BytesType), name)
		entry = protowire.AppendString(protowire.AppendTag(entry, fieldMapValue, protowire.BytesType), value)
		b = protowire.AppendBytes(protowire.AppendTag(b, fieldHeaders, protowire.BytesType), entry)
	}
	number(99, 1) // of a later asynq
	b = protowire.AppendFixed64(protowire.AppendTag(b, 98, protowire.Fixed64Type), 1)
	return string(b)
}

// add stores a task with 5 retries in a state, with the score that the state's structure has for it.
func (o *old) add(queue, id, state string, score time.Time, with ...func(*message)) {
	o.t.Helper()
	m := message{kind: "mail:send", id: id, queue: queue, payload: []byte("\x00\xff" + id), retries: 5,
		timeout: 1800}
	for _, set := range with {
		set(&m)
	}
	at := fmt.Sprint(score.Unix())
	o.do("HSET", taskKey(queue, id), "msg", encode(m), "state", state)
	switch state {
	case pending:
		o.do("HSET", taskKey(queue, id), "pending_since", fmt.Sprint(score.UnixNano()))
		o.do("LPUSH", key(queue, pending), id)
	case active:
		o.do("LPUSH", key(queue, active), id)
		o.do("ZADD", key(queue, lease), at, id)
	case aggregating:
		o.do("HSET", taskKey(queue, id), "group", m.groupKey)
		o.do("ZADD", key(queue, "g:"+m.groupKey), at, id)
		o.do("SADD", key(queue, "groups"), m.groupKey)
	default:
		o.do("ZADD", key(queue, state), at, id)
	}
	if m.uniqueKey != "" {
		o.do("SET", m.uniqueKey, id)
	}
}

// read returns the jobs of a queue by ID, and the IDs in the order of Scan.
func read(t *testing.T, s *Source, queue string) (map[string]migrate.Job, []string) {
	t.Helper()
	var ids []string
	err := s.Scan(t.Context(), func(found, id string) {
		if found == queue && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	jobs, err := s.Read(t.Context(), queue, ids)
	if err != nil {
		t.Fatal(err)
	}
	byID := map[string]migrate.Job{}
	for _, job := range jobs {
		byID[job.ID] = job
	}
	return byID, ids
}

// A task of every state becomes a message or a dead letter with the same ID, payload, headers and due time, and with
// the number of its attempt. What a message cannot have is named.
func TestWhatATaskBecomes(t *testing.T) {
	t.Parallel()
	o, now := newOld(t), time.Now().Truncate(time.Second)
	for i, name := range []string{"pending-1", "pending-2"} {
		o.add("q", name, pending, now.Add(time.Duration(i-9)*time.Second))
	}
	failed := func(m *message) { m.retried, m.lastError = 2, "oops" }
	o.add("q", "scheduled", scheduled, now.Add(time.Minute), func(m *message) {
		m.headers = map[string]string{"tenant": "acme"}
		m.uniqueKey, m.retention, m.deadline, m.timeout = key("q", "unique:x"), 60, now.Unix()+99, 7
	})
	o.add("q", "retry", retry, now.Add(time.Hour), failed)
	o.add("q", "active", active, now.Add(20*time.Second), failed)
	o.add("q", "active-last", active, now.Add(21*time.Second), func(m *message) { m.retried = 5 })
	o.add("q", "no-retries", scheduled, now.Add(time.Minute), func(m *message) { m.retries = 0 })
	o.add("q", "archived", archived, now.Add(-time.Hour), failed)
	o.add("q", "completed", completed, now)
	o.add("q", "grouped", aggregating, now, func(m *message) { m.groupKey = "g" })
	o.add("q", "grouped-later", scheduled, now.Add(time.Minute), func(m *message) { m.groupKey = "g" })
	o.add("q", "lost", scheduled, now)
	o.do("ZREM", key("q", scheduled), "lost")
	o.add("q", "kind", pending, now, func(m *message) { m.headers = map[string]string{"kind": "another"} })
	o.add("q", "odd", "sleeping", now)
	o.add("q", "renamed", pending, now, func(m *message) { m.id = "another" })
	o.do("HSET", taskKey("q", "no-msg"), "state", pending)
	o.do("HSET", taskKey("q", "broken"), "state", pending, "msg", "\xff\xff")
	o.do("SET", taskKey("q", "foreign"), "x")
	o.do("LPUSH", key("q", pending), "ended")
	o.add("other", "x", pending, now)

	for _, c := range []struct {
		options Options
		wants   map[string]string
	}{
		{Options{Queues: []string{"q"}}, map[string]string{
			"pending-1":     "fate 0 pending scheduled due -9s attempt 1/6",
			"pending-2":     "fate 0 pending scheduled due -8s attempt 1/6",
			"scheduled":     "fate 0 scheduled scheduled due 60s attempt 1/6 [deadline unique lock]",
			"retry":         "fate 0 retry scheduled due 3600s attempt 3/6 oops",
			"active":        "fate 0 active scheduled due 20s attempt 4/6 oops",
			"active-last":   "fate 0 active scheduled due 21s attempt 6/6",
			"no-retries":    "fate 0 scheduled scheduled due 60s attempt 1/1",
			"archived":      "fate 2 archived",
			"completed":     "fate 2 completed",
			"grouped":       "fate 2 aggregating",
			"grouped-later": "fate 2 aggregating",
			"lost":          "fate 3 scheduled scheduled due 0s attempt 1/6",
			"ended":         "fate 1 ",
			"kind":          "fate 4 pending", "odd": "fate 4 sleeping", "renamed": "fate 4 pending",
			"no-msg": "fate 4 pending", "broken": "fate 4 pending", "foreign": "fate 4 ",
		}},
		{Options{ArchivedTo: "g", Aggregating: true}, map[string]string{
			"archived":      "fate 0 archived dead due -3600s attempt 3/6 oops group g",
			"grouped":       "fate 0 aggregating scheduled due 0s attempt 1/6 [group]",
			"grouped-later": "fate 0 scheduled scheduled due 60s attempt 1/6 [group]",
			"completed":     "fate 2 completed",
		}},
	} {
		jobs, ids := read(t, redistest.Must(New(t.Context(), o.c, c.options)), "q")
		redistest.Want(t, "pending tasks are first, the oldest first", fmt.Sprint(ids[:2]), "[pending-1 pending-2]")
		redistest.Want(t, "tasks", len(ids), 19)
		for id, want := range c.wants {
			redistest.Want(t, id, inWords(t, id, jobs[id], now), want)
		}
	}
}

// inWords writes a job, and checks what all jobs have in common.
func inWords(t *testing.T, id string, job migrate.Job, now time.Time) string {
	t.Helper()
	text, r := fmt.Sprintf("fate %d %s", job.Fate, job.State), job.Entry
	if r.ID == "" {
		return text
	}
	redistest.Want(t, id+": ID and payload", r.ID+" "+string(r.Payload), id+" \x00\xff"+id)
	headers := "map[kind:mail:send]"
	if id == "scheduled" {
		headers = "map[kind:mail:send tenant:acme]"
	}
	redistest.Want(t, id+": headers", fmt.Sprint(r.Headers), headers)
	settings := "map[handler_timeout_ms:1800000]"
	if id == "scheduled" {
		settings = "map[handler_timeout_ms:7000 result_ms:60000]"
	}
	redistest.Want(t, id+": settings", fmt.Sprint(r.Extra), settings)
	seconds := time.UnixMilli(r.Due).Sub(now).Truncate(time.Second) / time.Second
	if job.Fate == migrate.Unsettled || job.State == aggregating { // due at once, by the server's clock
		seconds = 0
	}
	text += fmt.Sprintf(" %s due %ds attempt %d/%d", r.Kind, seconds, r.Attempt, r.MaxAttempts)
	for _, more := range []string{r.Error, r.Group} {
		if more != "" {
			text += map[bool]string{true: " group ", false: " "}[more == r.Group] + more
		}
	}
	if len(job.Unsaid) > 0 {
		text += fmt.Sprintf(" %v", job.Unsaid)
	}
	if r.Kind != admin.RecordDead {
		redistest.Want(t, id+": check", r.Check(), nil)
	}
	return text
}

// Remove deletes a task from every structure, and its unique lock if it still holds it. Tasks that asynq has completed
// meanwhile, or aggregates, stay.
func TestRemovedTasksLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	o, now := newOld(t), time.Now()
	unique := func(m *message) { m.uniqueKey = key("q", "unique:"+m.id) }
	for _, state := range []string{pending, active, scheduled, retry, archived} {
		o.add("q", state, state, now, unique)
	}
	grouped := func(m *message) { m.groupKey = "g" }
	o.add("q", "grouped", aggregating, now, grouped)
	o.add("q", "staged", aggregating, now, grouped)
	o.add("q", "done", active, now)
	s := redistest.Must(New(t.Context(), o.c, Options{ArchivedTo: "g", Aggregating: true}))
	jobs, _ := read(t, s, "q")
	o.do("ZREM", key("q", "g:g"), "staged") // an asynq server has it in a set that it aggregates
	o.do("HSET", taskKey("q", "done"), "state", completed)
	o.do("SET", key("q", "unique:retry"), "a later task")
	var removing []migrate.Job
	var left []string
	for _, job := range jobs {
		removing = append(removing, job)
	}
	removed, err := s.Remove(t.Context(), "q", removing)
	if err != nil {
		t.Fatal(err)
	}
	for i, job := range removing {
		if !removed[i] {
			left = append(left, job.ID)
		}
	}
	slices.Sort(left)
	redistest.Want(t, "tasks that stay", strings.Join(left, " "), "done staged")
	keys, err := o.c.Do(t.Context(), o.c.B().Keys().Pattern("*").Build()).AsStrSlice()
	slices.Sort(keys)
	redistest.Want(t, "keys that are left", fmt.Sprint(keys, err), "[asynq:{q}:active asynq:{q}:groups asynq:{q}:lease "+
		"asynq:{q}:t:done asynq:{q}:t:staged asynq:{q}:unique:retry] <nil>")
}

// A Redis Cluster and a group that is no group are refused.
func TestWhatNewRefuses(t *testing.T) {
	t.Parallel()
	_, err := New(t.Context(), redistest.Cluster(t, 3, 0).Server().Client(t), Options{})
	redistest.Want(t, "a cluster", strings.Contains(fmt.Sprint(err), "must be a single Redis"), true)
	_, err = New(t.Context(), newOld(t).c, Options{ArchivedTo: "\x00"})
	redistest.Want(t, "a group", strings.Contains(fmt.Sprint(err), "group"), true)
}

// No bytes make decode fail in another way than with an error, and what encode writes is read.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(encode(message{kind: "k", id: "i", payload: []byte("p"), headers: map[string]string{"a": "b"}})))
	f.Add([]byte("\x7a\x02\x0a\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decode(data)
		if err != nil {
			return
		}
		again, err := decode([]byte(encode(m)))
		if err != nil || fmt.Sprint(again) != fmt.Sprint(m) {
			t.Errorf("%v: %v, then %v", err, m, again)
		}
	})
}
