package migrate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// This file shows what holds where a migration meets another feature: see docs/design/pairs-sdk.md.

// A full server stops a run, which names the reason. What is not stored stays in the program. When the server has room,
// a repeated run moves the rest, and nothing twice.
func TestAFullServerStopsARun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const jobs = 600
	for i := range jobs {
		r.p.add("q", fmt.Sprintf("%03d", i), func(j *Job) { j.Entry.Payload = []byte(strings.Repeat("x", 2000)) })
	}
	limit := func(bytes string) {
		t.Helper()
		if err := r.redis.Do(t.Context(), r.redis.B().ConfigSet().ParameterValue().
			ParameterValue("maxmemory", bytes).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	batches := 0
	all, err := Move(t.Context(), Config{From: r.p, To: r.op, Window: time.Hour, Remove: true, Progress: func(int64) {
		if batches++; batches == 2 {
			limit("1")
		}
	}})
	if !errors.Is(err, bridge.ErrFull) {
		t.Errorf("a full server: %v", err)
	}
	limit("0")
	redistest.Want(t, "first run", brief(all), "q→q map[scheduled:256] moved 256 stayed 0 known 0 refused 0 removed 256")
	redistest.Want(t, "jobs that stay", len(r.p.jobs["q"]), jobs-256)
	redistest.Want(t, "second run", brief(r.move(removing)),
		"q→q map[scheduled:344] moved 344 stayed 0 known 0 refused 0 removed 344")
	redistest.Want(t, "messages", len(r.holds("q")), jobs)
}

// The queue refuses the ID of a moved job for the window. A newer version may replace a moved job that is scheduled,
// and a repeated run does not bring the older one back.
func TestAProducerMeetsAMovedJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.p.add("q", "a")
	redistest.Want(t, "moved", brief(r.move()), "q→q map[scheduled:1] moved 1 stayed 0 known 0 refused 0 removed 0")
	_, err := r.c.Schedule(t.Context(), "q", []byte("newer"), bridge.WithID("a"), bridge.In(time.Hour))
	if !errors.Is(err, bridge.ErrDuplicate) {
		t.Errorf("the ID of a moved job: %v", err)
	}
	_, err = r.c.Schedule(t.Context(), "q", []byte("newer"), bridge.WithID("a"), bridge.In(time.Hour), bridge.Replace)
	redistest.Want(t, "replaced", err, nil)
	redistest.Want(t, "again", brief(r.move(removing)), "q→q map[] moved 0 stayed 0 known 1 refused 0 removed 1")
	redistest.Want(t, "payload", string(r.holds("q")["a"].Payload), "newer")
}

// A run was killed after it began to move a job, and before it stored it. Then a producer took the ID. The job is
// refused, and stays. Regression: the next run took the message for the job, and removed the job.
func TestAnIDThatAProducerTookMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.p.add("q", "a")
	im, err := r.op.Import(t.Context(), "q", r.p.Program(), time.Hour)
	if err == nil {
		err = im.Remember(t.Context(), names("q", []string{"a"}, begun))
	}
	if err == nil {
		_, err = r.c.Schedule(t.Context(), "q", []byte("another"), bridge.WithID("a"), bridge.In(time.Hour))
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		redistest.Want(t, "moved", brief(r.move(removing)), "q→q map[] moved 0 stayed 0 known 0 refused 1 removed 0")
	}
	redistest.Want(t, "jobs that stay", len(r.p.jobs["q"]), 1)
}

// The same with a recurrence: that of the job is known, and another one of its name is refused.
func TestARecurrenceThatSomebodyAddedMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	spec := func(every time.Duration) []byte {
		return redistest.Must(bridge.Recurrence{Name: "nightly", Every: every}.MarshalJSON())
	}
	r.p.add("q", "nightly", func(j *Job) {
		j.Entry = admin.Record{Kind: admin.RecordRecurrence, ID: "nightly", Payload: spec(time.Hour)}
	})
	im, err := r.op.Import(t.Context(), "q", r.p.Program(), time.Hour)
	if err == nil {
		err = im.Remember(t.Context(), names("q", []string{"nightly"}, begun))
	}
	if err == nil {
		_, err = r.op.Recur(t.Context(), bridge.Recurrence{Queue: "q", Name: "nightly", Every: time.Minute})
	}
	if err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "moved", brief(r.move(removing)), "q→q map[] moved 0 stayed 0 known 0 refused 1 removed 0")
	if _, err := r.op.RemoveRecurrence(t.Context(), "q", "nightly"); err != nil {
		t.Fatal(err)
	}
	err = errors.Join(im.Write(t.Context(), []admin.Record{r.p.jobs["q"]["nightly"].Entry})...)
	redistest.Want(t, "restored", err, nil)
	redistest.Want(t, "again", brief(r.move(removing)), "q→q map[] moved 0 stayed 0 known 1 refused 0 removed 1")

	// A plan is left of a recurrence that was stored, planned and removed.
	r.p.add("q", "gone", func(j *Job) {
		j.Entry = admin.Record{Kind: admin.RecordRecurrence, ID: "gone", Payload: spec(time.Hour)}
	})
	plan := r.redis.B().Hset().Key("duestream:{q}:planned").FieldValue().FieldValue("gone", "plan").Build()
	err = errors.Join(im.Remember(t.Context(), names("q", []string{"gone"}, begun)), r.redis.Do(t.Context(), plan).Error())
	redistest.Want(t, "prepared", err, nil)
	redistest.Want(t, "removed", brief(r.move(removing)), "q→q map[] moved 0 stayed 0 known 1 refused 0 removed 1")
}

// A queue may grow between two runs, and while a run goes through its jobs. Every job is moved once.
func TestAMigrationIntoAQueueThatGrows(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 300 {
		r.p.add("q", fmt.Sprintf("%03d", i))
	}
	grow := func(partitions int) {
		t.Helper()
		if _, err := r.op.SetPartitions(t.Context(), "q", partitions, nil); err != nil {
			t.Fatal(err)
		}
	}
	batches := 0
	redistest.Want(t, "moved", brief(r.move(func(c *Config) {
		c.Progress = func(int64) {
			if batches++; batches == 1 {
				grow(3)
			}
		}
	})), "q→q map[scheduled:300] moved 300 stayed 0 known 0 refused 0 removed 0")
	grow(5)
	r.p.add("q", "new")
	redistest.Want(t, "again", brief(r.move(removing)),
		"q→q map[scheduled:1] moved 1 stayed 0 known 300 refused 0 removed 301")
	redistest.Want(t, "messages", len(r.holds("q")), 301)
}

// Two runs at the same moment move each job once.
func TestTwoRunsAtTheSameMoment(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 300 {
		r.p.add("q", fmt.Sprintf("%03d", i))
	}
	var mu sync.Mutex
	moved := int64(0)
	var runs sync.WaitGroup
	for range 3 {
		runs.Go(func() {
			all, err := Move(t.Context(), Config{From: r.p, To: r.op, Window: time.Hour})
			if err != nil || len(all) != 1 || all[0].Refused != 0 {
				t.Error(all, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			moved += all[0].Moved
		})
	}
	runs.Wait()
	redistest.Want(t, "moved", moved, 300)
	redistest.Want(t, "messages", len(r.holds("q")), 300)
}

// A queue that was moved to may be exported and imported elsewhere. A run into the new queue knows the jobs that are
// there, although the file does not say what was moved. It moves a job again that had ended before the export.
func TestAMigrationAfterAnExport(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.p.add("q", "a")
	r.p.add("q", "ended")
	redistest.Want(t, "moved", brief(r.move()), "q→q map[scheduled:2] moved 2 stayed 0 known 0 refused 0 removed 0")
	redistest.Want(t, "ended", r.c.Cancel(t.Context(), "q", "ended"), nil)
	im, err := r.op.Import(t.Context(), "copy", "file", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	all := slices.Collect(maps.Values(r.holds("q")))
	redistest.Want(t, "imported", errors.Join(im.Write(t.Context(), all)...), nil)
	redistest.Want(t, "moved to the copy", brief(r.move(removing, func(c *Config) {
		c.Rename = map[string]string{"q": "copy"}
	})), "q→copy map[scheduled:1] moved 1 stayed 0 known 1 refused 0 removed 2")
}

// A moved dead letter is redriven like any other, and a repeated run does not bring the letter back. Regression: the
// group of the letter was not created, so the letter could not be redriven.
func TestAMovedDeadLetterIsRedriven(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.p.add("q", "a", func(j *Job) { j.Entry = DeadLetter(j.Entry, "g", "oops", time.Now()) })
	redistest.Want(t, "moved", brief(r.move()), "q→q map[scheduled:1] moved 1 stayed 0 known 0 refused 0 removed 0")
	found, err := r.op.DeadLetters().RedriveMatching(t.Context(), "q", admin.LetterFilter{Group: "g"},
		admin.RedriveOptions{})
	redistest.Want(t, "redriven", fmt.Sprint(found.Scheduled, err), "1 <nil>")
	redistest.Want(t, "again", brief(r.move(removing)), "q→q map[] moved 0 stayed 0 known 1 refused 0 removed 1")
	redistest.Want(t, "it", r.holds("q")["a"].Kind, admin.RecordScheduled)
}

// A paused queue takes jobs that are due, and makes none of them ready.
func TestAMigrationIntoAPausedQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, err := r.op.Pause(t.Context(), "q", true); err != nil {
		t.Fatal(err)
	}
	r.p.add("q", "a", func(j *Job) { j.Entry.Due = 1 })
	redistest.Want(t, "moved", brief(r.move()), "q→q map[scheduled:1] moved 1 stayed 0 known 0 refused 0 removed 0")
	redistest.Want(t, "it", r.holds("q")["a"].Kind, admin.RecordScheduled)
}

// The history of a queue tells when a job was moved, and that an operator did it.
func TestAHistoryTellsWhatWasMoved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	history := 100
	if err := r.op.WritePolicy(t.Context(), "q", "", admin.PolicyUpdate{History: &history}); err != nil {
		t.Fatal(err)
	}
	r.p.add("q", "a")
	r.move()
	story, err := r.op.Story(t.Context(), "a", admin.StoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "changes", len(story.Changes), 1)
	change := story.Changes[0]
	redistest.Want(t, "change", fmt.Sprint(change.Event, " ", change.Due.UnixMilli(), " ", change.By),
		fmt.Sprint(admin.EventScheduled, " ", r.p.jobs["q"]["a"].Entry.Due, " ", r.op.Name()))
}

// Beside a bridge of an earlier release, jobs are moved, because they have no ordering key. A recurrence stops the run.
func TestAMigrationBesideAnOlderBridge(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	beat := func() {
		t.Helper()
		until := fmt.Sprint(time.Now().Add(4 * time.Second).UnixMilli())
		if err := r.redis.Do(t.Context(), r.redis.B().Arbitrary("ZADD", lua.NewGlobals("duestream").Bridges, until,
			"01M7ZMPW4AFDJS68SPX5258FR1 web-1 7 v1.2.3").Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	r.p.add("q", "a")
	beat()
	redistest.Want(t, "moved", brief(r.move()), "q→q map[scheduled:1] moved 1 stayed 0 known 0 refused 0 removed 0")
	spec, err := bridge.Recurrence{Queue: "q", Name: "nightly", Every: time.Hour}.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	r.p.add("q", "nightly", func(j *Job) {
		j.Entry = admin.Record{Kind: admin.RecordRecurrence, ID: "nightly", Payload: spec}
	})
	beat()
	_, err = Move(t.Context(), Config{From: r.p, To: r.op, Window: time.Hour, Remove: true})
	if !errors.Is(err, bridge.ErrOldBridge) {
		t.Errorf("a recurrence: %v", err)
	}
	redistest.Want(t, "jobs that stay", len(r.p.jobs["q"]), 2)
	r.op = r.op.AllowOldBridges()
	redistest.Want(t, "allowed", brief(r.move(removing)),
		"q→q map[scheduled:1] moved 1 stayed 0 known 1 refused 0 removed 2")
}

// Jobs are moved into partitions on all masters of a cluster, and none of them twice.
func TestAMigrationIntoACluster(t *testing.T) {
	t.Parallel()
	redis, err := bridge.Dial(t.Context(), redistest.Cluster(t, 3, 0).Server().URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Close)
	r := &rig{t: t, p: newProgram(), redis: redis.Client, op: redistest.Must(admin.New(redis, ""))}
	if _, err := r.op.SetPartitions(t.Context(), "q", 6, nil); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		r.p.add("q", fmt.Sprintf("%03d", i))
	}
	redistest.Want(t, "moved", brief(r.move()), "q→q map[scheduled:300] moved 300 stayed 0 known 0 refused 0 removed 0")
	redistest.Want(t, "again", brief(r.move(removing)), "q→q map[] moved 0 stayed 0 known 300 refused 0 removed 300")
	redistest.Want(t, "messages", len(r.holds("q")), 300)
}
