package migrate

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A job that was moved is not moved again by a later run, although meanwhile it ended in duestream and has another
// state in the program.
func TestMovingAgainMovesNothingTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 300 { // several batches
		r.p.add("old:q", fmt.Sprintf("%03d", i))
	}
	dry := r.move(func(c *Config) { c.To = nil })
	redistest.Want(t, "a dry run", brief(dry), "old:q→q map[scheduled:300] moved 300 stayed 0 known 0 refused 0 removed 0")
	redistest.Want(t, "the first time", brief(r.move()), brief(dry))
	for record := range r.holds("q") {
		if err := r.c.Cancel(t.Context(), "q", record); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 300 {
		r.p.add("old:q", fmt.Sprintf("%03d", i), func(j *Job) {
			j.State, j.Entry = "archived", DeadLetter(j.Entry, "g", "oops", time.Now())
		})
	}
	redistest.Want(t, "the second time", brief(r.move(removing)),
		"old:q→q map[] moved 0 stayed 0 known 300 refused 0 removed 300")
	redistest.Want(t, "messages", len(r.holds("q")), 0)
	redistest.Want(t, "the third time", brief(r.move(removing)), "")
}

// A job in no structure is read again in two more passes. If it is then in none still, it is moved as a stray job.
func TestAJobInNoStructureIsReadAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	unsettled := func(j *Job) { j.Fate = Unsettled }
	r.p.add("q", "lost", unsettled)
	r.p.add("q", "settles", unsettled)
	passes := 0
	r.p.scanned = func() {
		if passes++; passes == 2 {
			r.p.add("q", "settles")
		}
	}
	redistest.Want(t, "moved", brief(r.move()),
		"q→q map[scheduled:1 stray:1] moved 2 stayed 0 known 0 refused 0 removed 0")
	redistest.Want(t, "messages", len(r.holds("q")), 2)
}

// A job that changes between Read and Remove stays, and the next pass removes it. It is counted once.
func TestAJobThatChangesIsRemovedByTheNextPass(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.p.add("q", "a")
	r.p.add("q", "always")
	r.p.changed["a"], r.p.changed["always"] = 1, 99
	redistest.Want(t, "moved", brief(r.move(removing)),
		"q→q map[scheduled:2] moved 2 stayed 0 known 0 refused 0 removed 1")
}

// Jobs that duestream cannot take, or that another message of the queue looks like, are reported and stay. The other
// jobs are moved.
func TestWhatIsRefusedStaysWhereItIs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.p.add("q", "good")
	r.p.add("no queue", "x")
	r.p.add("q", "bad id", func(j *Job) { j.Entry.ID = "\x00" })
	r.p.add("q", "done", func(j *Job) { j.Fate = Stays })
	r.p.add("q", "unread", func(j *Job) { *j = Refuse("unread", "", lua.Invalid("job", "unread", "is broken")) })
	im, err := r.op.Import(t.Context(), "q", "another", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	r.p.add("q", "taken")
	r.p.add("q", "same")
	same := r.p.jobs["q"]["same"].Entry
	for _, err := range im.Write(t.Context(), []admin.Record{same,
		{Kind: admin.RecordScheduled, ID: "taken", Payload: []byte("another"), Due: same.Due}}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	refused := map[string]bool{}
	all := r.move(removing, func(c *Config) {
		c.Refused = func(queue, id string, err error) {
			refused[queue+"/"+id] = true
			if !errors.Is(err, lua.ErrInvalid) {
				t.Error(err)
			}
		}
	})
	redistest.Want(t, "moved", brief(all), "no queue→ map[] moved 0 stayed 0 known 0 refused 1 removed 0\n"+
		"q→q map[scheduled:1] moved 1 stayed 1 known 1 refused 3 removed 2")
	redistest.Want(t, "refused", fmt.Sprint(refused), "map[no queue/:true q/bad id:true q/taken:true q/unread:true]")
	redistest.Want(t, "jobs that stay", len(r.p.jobs["q"])+len(r.p.jobs["no queue"]), 5)
	// Regression: a second run took the job whose ID is taken for one that an interrupted run had stored.
	redistest.Want(t, "again", brief(r.move(removing)), "no queue→ map[] moved 0 stayed 0 known 0 refused 1 removed 0\n"+
		"q→q map[] moved 0 stayed 1 known 0 refused 3 removed 0")
}

// A run that was killed after it stored a job, and before it remembered that, has begun the job. The next run knows by
// that, without looking for the message, that the job was moved.
func TestAKilledRunIsContinued(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.p.add("q", "a")
	im, err := r.op.Import(t.Context(), "q", r.p.Program(), time.Hour)
	if err == nil {
		err = im.Remember(t.Context(), names("q", []string{"a"}, begun))
	}
	if err == nil {
		err = im.Write(t.Context(), []admin.Record{r.p.jobs["q"]["a"].Entry})[0]
	}
	if err == nil { // as if it had been delivered and acknowledged
		err = r.redis.Do(t.Context(), r.redis.B().Del().Key("duestream:{q}:due", "duestream:{q}:payload").Build()).Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "moved", brief(r.move(removing)), "q→q map[] moved 0 stayed 0 known 1 refused 0 removed 1")
}

// Jobs of two queues can be put into one queue of duestream. The second of two jobs with one ID is refused, although
// they look the same.
func TestTwoQueuesBecomeOne(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.p.add("a", "1")
	r.p.add("a", "same")
	r.p.add("b", "2")
	r.p.jobs["b"]["same"] = r.p.jobs["a"]["same"]
	into := func(c *Config) { c.Rename, c.Groups = map[string]string{"a": "c", "b": "c"}, []string{"g"} }
	redistest.Want(t, "moved", brief(r.move(into)), "a→c map[scheduled:2] moved 2 stayed 0 known 0 refused 0 removed 0\n"+
		"b→c map[scheduled:1] moved 1 stayed 0 known 0 refused 1 removed 0")
	redistest.Want(t, "again", brief(r.move(into, removing)),
		"a→c map[] moved 0 stayed 0 known 2 refused 0 removed 2\n"+
			"b→c map[] moved 0 stayed 0 known 1 refused 1 removed 1")
	redistest.Want(t, "messages", len(r.holds("c")), 3)
}
