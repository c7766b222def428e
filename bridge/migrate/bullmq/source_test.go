package bullmq

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A job of every state becomes a message with the same data, name, due time, attempts and delays. The report counts
// what a message cannot say, and what stays.
func TestWhatAJobBecomes(t *testing.T) {
	t.Parallel()
	o := newOld(t)
	hour := o.now.Add(time.Hour)
	o.job("plain", `{"attempts":0}`)
	o.job("lifo", `{"lifo":true,"attempts":3,"backoff":{"type":"fixed","delay":1500}}`)
	o.wait("plain")
	o.do("RPUSH", "bull:mail:wait", "lifo")
	o.job("paused-1", `{"attempts":2}`) // of BullMQ 5: BullMQ 6 has no list for paused jobs
	o.do("LPUSH", "bull:mail:paused", "paused-1")
	o.job("prio", `{"priority":5,"attempts":3,"backoff":700}`, "priority", "5")
	o.do("ZADD", "bull:mail:prioritized", "21474836481", "prio")
	o.job("late", `{"delay":3600000}`, "deid", "dd")
	o.delay("late", hour)
	o.job("again", `{"attempts":5,"backoff":{"type":"exponential","delay":60000,"jitter":0.5}}`, "atm", "2", "ats", "2",
		"failedReason", "busy")
	o.delay("again", hour.Add(time.Second))
	o.job("custom", `{"attempts":5,"backoff":{"type":"mine"}}`, "attemptsMade", "9") // as BullMQ 4 counts
	o.wait("custom")
	o.job("active-1", `{"attempts":3}`, "ats", "1", "progress", "50")
	o.do("LPUSH", "bull:mail:active", "active-1")
	o.do("SET", "bull:mail:active-1:lock", "token", "PX", "600000")
	o.do("RPUSH", "bull:mail:active-1:logs", "a line")
	o.job("crashed", `{}`)
	o.do("LPUSH", "bull:mail:active", "crashed")
	o.job("done", `{}`, "returnvalue", "42")
	o.do("ZADD", "bull:mail:completed", millis(o.now), "done")
	o.job("failed-1", `{"attempts":2}`, "atm", "2", "failedReason", "no way")
	o.do("ZADD", "bull:mail:failed", millis(o.now.Add(-time.Second)), "failed-1")
	o.job("parent", `{}`) // all of its children are done
	o.do("HSET", "bull:mail:parent:processed", "bull:mail:child", "1")
	o.wait("parent")
	o.job("broken", `no JSON`)
	o.wait("broken")
	o.wait("gone") // an ID without a job
	o.do("HSET", "bull:mail:meta", "opts.maxLenEvents", "10000")
	o.do("SET", "bull:mail:id", "17")
	o.do("SET", "bull:mail:text", "of another program")
	o.do("HSET", "bull:mail:hash", "of", "another program")

	tally, refused := o.move(Options{}, false)
	redistest.Want(t, "moved", fmt.Sprint(tally.States),
		"map[active:2 delayed:2 paused:1 prioritized:1 wait:4]")
	redistest.Want(t, "stay", fmt.Sprint(tally.Stay), "map[completed:1 failed:1]")
	redistest.Want(t, "unsaid", fmt.Sprint(tally.Unsaid), "map[backoff of the type mine:1 deduplication:1 "+
		"jitter of the backoff:1 lifo:1 logs:1 priority:1 progress:1 results of children:1]")
	if len(refused) != 1 || !errors.Is(refused["broken"], lua.ErrInvalid) {
		t.Errorf("refused: %v", refused)
	}
	found := o.holds()
	redistest.Want(t, "messages", len(found), 10)
	is := func(id string, due time.Time, attempt, attempts int, delays, text string) {
		t.Helper()
		r := found[id]
		away := time.UnixMilli(r.Due).Sub(due).Abs()
		if r.Kind == admin.RecordDead || string(r.Payload) != `{"id":"`+id+`"}` || r.Headers["kind"] != "send" ||
			r.Attempt != attempt && attempt != 1 || r.MaxAttempts != attempts || away > 5*time.Second ||
			r.Extra[lua.FieldRetryDelays] != delays || r.Extra[lua.FieldMaxCrashes] != "2" || r.Error != text {
			t.Errorf("%s: due %s away: %+v", id, away, r)
		}
	}
	added := o.now.Add(-time.Minute)
	is("plain", added, 1, 1, "", "")
	is("lifo", added, 1, 3, "1500", "")
	is("paused-1", added, 1, 2, "1", "")
	is("prio", added, 1, 3, "700", "")
	is("late", hour, 1, 1, "", "")
	is("again", hour.Add(time.Second), 3, 5, "60000,120000,240000,480000", "busy")
	is("custom", added, 5, 5, "", "")
	is("active-1", o.now.Add(10*time.Minute), 1, 3, "1", "")
	is("crashed", added, 1, 1, "", "")
	is("parent", added, 1, 1, "", "")
	redistest.Want(t, "due of a delayed job", found["late"].Due, hour.UnixMilli())

	tally, _ = o.move(Options{FailedTo: "mailer"}, false)
	redistest.Want(t, "then", fmt.Sprint(tally.States, tally.Known), "map[failed:1] 10")
	r := o.holds()["failed-1"]
	redistest.Want(t, "dead letter", fmt.Sprint(r.Kind, " ", r.Group, " ", r.Reason, " ", r.Error, " ", r.Attempt),
		"dead mailer max_attempts no way 2")
}

// BullMQ numbers its jobs, and begins anew when a queue is deleted. A new job is not taken for the job that had its ID.
func TestAnIDThatBeginsAnew(t *testing.T) {
	t.Parallel()
	o := newOld(t)
	o.job("1", `{}`)
	o.wait("1")
	_, _ = o.move(Options{}, true)
	o.job("1", `{}`, "timestamp", millis(o.now))
	o.wait("1")
	tally, _ := o.move(Options{}, true)
	redistest.Want(t, "moved, known, removed", fmt.Sprint(tally.Moved, tally.Known, tally.Removed), "1 0 1")
	records := 0
	for range o.op.Export("mail", admin.RecordScheduled, admin.RecordReady).Records(t.Context()) {
		records++
	}
	redistest.Want(t, "messages", records, 2)
}

// A flow stays together: neither the parent that waits nor its children are moved. A job with a successor by
// deduplication stays, too.
func TestFlowsStayTogether(t *testing.T) {
	t.Parallel()
	o := newOld(t)
	o.job("parent", `{}`)
	o.do("ZADD", "bull:mail:waiting-children", millis(o.now), "parent")
	o.do("SADD", "bull:mail:parent:dependencies", "bull:mail:child")
	o.job("child", `{}`, "parentKey", "bull:mail:parent")
	o.delay("child", o.now)
	o.job("busy", `{}`, "deid", "dd")
	o.do("LPUSH", "bull:mail:active", "busy")
	o.do("SET", "bull:mail:busy:lock", "token", "PX", "600000")
	o.do("HSET", "bull:mail:dn:dd", "name", "send", "data", "{}", "opts", "{}", "jid", "8")
	before := o.left()
	tally, refused := o.move(Options{}, true)
	redistest.Want(t, "moved, refused, removed", fmt.Sprint(tally.Moved, tally.Refused, tally.Removed), "0 3 0")
	for id, words := range map[string]string{"parent": "waits for its children", "child": "child of job bull:mail:parent",
		"busy": `successor with the deduplication ID "dd"`} {
		if err := refused[id]; err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", id, err)
		}
	}
	redistest.Want(t, "keys that stay", len(o.left()), len(before))
}

// scheduler writes a job scheduler and its next job.
func (o *old) scheduler(name string, next time.Time, fields ...string) {
	o.t.Helper()
	id := "repeat:" + name + ":" + millis(next)
	o.job(id, `{"attempts":3}`, "rjk", name, "name", "report")
	o.delay(id, next)
	o.do("ZADD", "bull:mail:repeat", millis(next), name)
	o.do(append([]string{"HSET", "bull:mail:repeat:" + name, "name", "report", "ic", "2"}, fields...)...)
}

// Without the option, a scheduler and its next job stay. With it, both are moved, and the first occurrence of the
// recurrence is the one after the next job. A scheduler that cannot be moved keeps its next job.
func TestSchedulersAndTheirNextJobs(t *testing.T) {
	t.Parallel()
	o := newOld(t)
	next := o.now.Add(time.Hour)
	o.scheduler("nightly", next, "pattern", "0 15 3 * * *", "tz", "Europe/Paris", "data", `{"r":1}`,
		"opts", `{"attempts":3}`)
	o.scheduler("often", next, "every", "10000", "offset", "123", "limit", "7")
	o.scheduler("zoneless", next, "pattern", "15 3 * * *")
	o.scheduler("odd", next, "pattern", "0 0 L * *", "tz", "UTC")
	o.scheduler("quick", next, "every", "500")
	o.scheduler("over", next, "every", "10000", "limit", "2")
	o.scheduler("old", next, "pattern", "15 3 * * *")
	o.do("HDEL", "bull:mail:repeat:old", "ic")
	o.job("repeat:nightly:1", `{}`, "rjk", "nightly") // an earlier job of the scheduler, which failed and waits
	o.wait("repeat:nightly:1")

	tally, refused := o.move(Options{}, true)
	redistest.Want(t, "moved", fmt.Sprint(tally.States, tally.Stay, tally.Removed, len(refused)),
		"map[wait:1] map[job scheduler:7 next job of a job scheduler:7] 1 0")

	tally, refused = o.move(Options{Schedulers: true}, true)
	redistest.Want(t, "moved", fmt.Sprint(tally.States), "map[delayed:3 job scheduler:2]")
	redistest.Want(t, "stay", fmt.Sprint(tally.Stay), "map[ended job scheduler:1 next job of a job scheduler:4]")
	redistest.Want(t, "removed", tally.Removed, 5)
	redistest.Want(t, "unsaid", fmt.Sprint(tally.Unsaid), "map[attempts of a job scheduler:1]")
	for name, words := range map[string]string{"zoneless": "tz", "odd": "cron", "quick": "every", "old": "option repeat"} {
		if err := refused["repeat:"+name]; err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", name, err)
		}
	}
	found := o.holds()
	var spec bridge.Recurrence
	if err := spec.UnmarshalJSON(found["nightly"].Payload); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "its name and queue", spec.Name+" "+spec.Queue, "nightly ")
	redistest.Want(t, "a pattern", fmt.Sprint(spec.Cron, " ", spec.Zone, " ", string(spec.Payload), spec.Headers,
		spec.Start.Equal(next.Add(time.Millisecond))), `0 15 3 * * * Europe/Paris {"r":1}map[kind:report] true`)
	if err := spec.UnmarshalJSON(found["often"].Payload); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "an interval", fmt.Sprint(spec.Every, " ", string(spec.Payload), spec.Count), "10s {}5")
	redistest.Want(t, "its phase", spec.Phase.Milliseconds(), next.UnixMilli()%10000)
	redistest.Want(t, "the next job", found["repeat:often:"+millis(next)].Due, next.UnixMilli())

	tally, _ = o.move(Options{Schedulers: true, Zone: "Asia/Kathmandu"}, true)
	redistest.Want(t, "with a zone", fmt.Sprint(tally.States), "map[delayed:1 job scheduler:1]")

	// A scheduler that was added again with other times is refused, because the recurrence is there.
	o.scheduler("often", next, "every", "20000")
	_, refused = o.move(Options{Schedulers: true}, true)
	if err := refused["repeat:often"]; err == nil {
		t.Error("a changed scheduler was not refused")
	}
}

// A removed job leaves no key behind, and BullMQ finds no ID without a job. Jobs that are not moved stay whole.
func TestRemovedJobsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	o := newOld(t)
	for _, id := range []string{"1", "2", "3"} {
		o.job(id, `{}`, "deid", "dd"+id)
		o.wait(id)
		o.do("SET", "bull:mail:de:dd"+id, id)
	}
	o.do("SET", "bull:mail:de:dd3", "another")
	o.job("4", `{}`)
	o.delay("4", o.now)
	o.do("RPUSH", "bull:mail:4:logs", "a")
	o.job("5", `{}`)
	o.do("LPUSH", "bull:mail:active", "5")
	o.do("SET", "bull:mail:5:lock", "token", "PX", "600000")
	o.do("SADD", "bull:mail:stalled", "5")
	o.job("6", `{"priority":1}`)
	o.do("ZADD", "bull:mail:prioritized", "1", "6")
	o.job("7", `{}`)
	o.do("ZADD", "bull:mail:failed", "1", "7")
	o.do("HSET", "bull:other:1", "name", "x", "data", "{}", "opts", "{}", "timestamp", "1")
	o.do("LPUSH", "bull:other:wait", "1")
	tally, _ := o.move(Options{Queues: []string{"mail"}, FailedTo: "mailer"}, true)
	redistest.Want(t, "moved and removed", fmt.Sprint(tally.Moved, tally.Removed), "7 7")
	left := o.left()
	for _, key := range []string{"bull:mail:de:dd3", "bull:other:1", "bull:other:wait"} {
		if !strings.Contains(left, key) {
			t.Errorf("%s is not left", key)
		}
	}
	redistest.Want(t, "keys left", len(strings.Fields(left)), 3)
}

// A job in no list and no zset is moved after a few passes. A job that BullMQ completes meanwhile is not removed.
func TestStrayAndCompletedJobs(t *testing.T) {
	t.Parallel()
	o := newOld(t)
	o.job("stray", `{}`)
	o.job("done", `{}`)
	o.wait("done")
	from, err := New(t.Context(), o.c, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	if err := from.Scan(t.Context(), func(_, id string) { ids = append(ids, id) }); err != nil {
		t.Fatal(err)
	}
	jobs, err := from.Read(t.Context(), "mail", ids[:1])
	if err != nil {
		t.Fatal(err)
	}
	o.do("DEL", "bull:mail:wait")
	o.do("ZADD", "bull:mail:completed", "1", "done")
	removed, err := from.Remove(t.Context(), "mail", jobs)
	redistest.Want(t, "removed", fmt.Sprint(removed, err, jobs[0].State), "[false] <nil>wait")
	tally, _ := o.move(Options{}, true)
	redistest.Want(t, "then", fmt.Sprint(tally.States, tally.Stay, tally.Removed), "map[stray:1] map[completed:1] 1")
}

// The prefix is an option. An option that cannot be right is refused.
func TestOptions(t *testing.T) {
	t.Parallel()
	o := newOld(t)
	o.do("HSET", "{my*}:mail:1", "name", "x", "data", "{}", "opts", "{}", "timestamp", "1")
	o.do("LPUSH", "{my*}:mail:wait", "1")
	o.do("HSET", "{myself}:mail:2", "name", "x", "data", "{}", "opts", "{}", "timestamp", "1")
	tally, _ := o.move(Options{Prefix: "{my*}"}, true)
	redistest.Want(t, "moved", fmt.Sprint(tally.Moved, tally.Removed), "1 1")
	for _, wrong := range []Options{{FailedTo: strings.Repeat("x", 300)}, {Zone: "Nowhere/Land"}} {
		if _, err := New(t.Context(), o.c, wrong); !errors.Is(err, lua.ErrInvalid) {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
}
