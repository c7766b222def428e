package conformance

import (
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

const (
	firstTimeout  = 7 * time.Second  // the visibility timeout that is set when the work has begun
	secondTimeout = 4 * time.Second  // the visibility timeout that is set later
	secondAfter   = 6 * time.Second  // time from the first setting to the second
	workDuration  = 11 * time.Second // duration of the work
)

// policyCases: settings of a queue, and of a group.
var policyCases = []Case{
	{
		Name: "policy-of-queue", Level: Good, Section: "8, step 7, and 11", unhurried: true,
		Rule: "A worker extends by the visibility timeout of its queue, where that has one, and not by the default.",
		worker: func(t *workerTrial) {
			t.policy(admin.SettingVisibility, t.visibility())
			t.longWork()
		},
	},
	{
		Name: "policy-of-group", Level: Good, Section: "8, step 7, and 11",
		Rule: "A worker extends by the visibility timeout of its group, where that has one, and not by that of the queue; in the setting's name the group is percent-encoded.",
		worker: func(t *workerTrial) {
			t.group = `équipe "1"`
			name := "group:" + strings.ReplaceAll(url.QueryEscape(t.group), "+", "%20") + ":" + admin.SettingVisibility
			t.unhurry()
			t.policy(name, t.visibility(), "group:other:"+admin.SettingVisibility, "60000")
			t.longWork()
		},
	},
	{
		Name: "policy-changes", Level: Good, Section: "8, step 7",
		Rule: "The visibility timeout may become shorter at any time, so a worker reads it anew every few seconds, and lets no more than 5 s pass from one extension to the next.",
		worker: func(t *workerTrial) {
			t.unhurry()
			t.served("one")
			t.schedule(message{id: "long", work: "slow " + strconv.FormatInt(workDuration.Milliseconds(), 10)})
			t.awaitBegun(0, "long", 1)
			// Each step is a visibility timeout, and the time until the next step or the end of the work.
			for _, step := range [][2]time.Duration{
				{firstTimeout, secondAfter}, {secondTimeout, workDuration - secondAfter},
			} {
				t.policy(admin.SettingVisibility, strconv.FormatInt(step[0].Milliseconds(), 10))
				t.watching(step[1], "long")
			}
			t.done(0, "long")
			t.killAll()
			t.once("long")
		},
	},
	{
		Name: "policy-of-retries", Level: Complete, Section: "11 and 17",
		Rule: "A worker that calls retry passes the max_attempts and the delays of its queue and group.",
		worker: func(t *workerTrial) {
			t.policy("group:workers:"+admin.SettingMaxAttempts, "2", admin.SettingMaxAttempts, "5", admin.SettingRetryMin, "4000", admin.SettingRetryMax, "4000")
			t.unhurry()
			t.served("one")
			t.schedule(message{id: "hopeless", work: "fail 1000"}, message{id: "own", work: "fail 2", maxAttempts: 3})
			letter := t.letter("hopeless", 0)
			if got := letter.Fields[lua.FieldAttempt]; got != "2" {
				failf("the group's max_attempts is 2, and the dead letter has attempt %s", got)
			}
			t.awaitAttempts("own", 1, 2, 3)
			all := t.begunOf("hopeless")
			if waited := all[1].at.Sub(all[0].at); waited < 1800*time.Millisecond {
				failf("the second attempt began %s after the first; retry_min_ms is 4000, jittered by half", waited.Round(time.Millisecond))
			}
			t.done(0, "hopeless", "own")
		},
	},
}

// visibility returns the visibility timeout of the kit as the value of a setting.
func (t *workerTrial) visibility() string {
	return strconv.FormatInt(t.cfg.Visibility.Milliseconds(), 10)
}

// longWork lets a worker work for three visibility timeouts of the kit.
func (t *workerTrial) longWork() {
	t.served("one")
	t.schedule(message{id: "long", work: t.slow(3)})
	t.doneOnce("long")
}
