package queues_test

import (
	"strings"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/queues"
)

// A group's setting wins over the queue's, and the queue's over the default. An empty value removes a setting. Some
// settings, like held, exist for a whole queue only.
func TestQueueSetChangesThePolicy(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("queue", "set", "q", "--create", "max_attempts=4", "visibility_timeout=1d", "held=true")
	c.OK("queue", "set", "q", "--create", "--group", "g", "max_attempts=5")
	var got struct {
		MaxAttempts       int   `json:"max_attempts"`
		VisibilityTimeout int64 `json:"visibility_timeout_ms"`
		RetryMax          int64 `json:"retry_max_ms"`
		Held              bool
	}
	c.JSON(&got, "queue", "show", "q", "--group", "g")
	if got.MaxAttempts != 5 || got.VisibilityTimeout != 86_400_000 || got.RetryMax != 3_600_000 || !got.Held {
		t.Errorf("%+v", got)
	}
	c.JSON(&got, "queue", "set", "q", "--create", "--group", "g", "max_attempts=")
	if got.MaxAttempts != 4 {
		t.Errorf("%+v", got)
	}
	if out := c.OK("queue", "show", "q"); !strings.Contains(out, "visibility_timeout  1d\n") {
		t.Error(out)
	}
	c.Fails(exit.Invalid, []string{"can be set for a whole queue only"}, "queue", "set", "q", "--group", "g", "held=true")
}

// The rate, the ready limit and the pause of workers are set, shown and removed, and their limits are checked.
func TestAQueueHasARateAReadyLimitAndAPauseForWorkers(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	says := func(out string, all ...string) {
		t.Helper()
		for _, one := range all {
			if !strings.Contains(strings.Join(strings.Fields(out), " "), one) {
				t.Errorf("%q is not in:\n%s", one, out)
			}
		}
	}
	c.OK("schedule", "q", "--in", "1h", "x")
	says(c.OK("queue", "set", "q", "--create", "rate=500", "ready_limit=10000", "free_retries=true"),
		"rate 500/s burst 50 free_retries true (",
		"ready_limit 10000")
	says(c.OK("queue", "set", "q", "--create", "rate=30/m", "burst=7"), "rate 30/m burst 7")
	says(c.OK("stats", "q"), "q (30/m) (ready limit 10000) 1 0")
	c.Fails(exit.Invalid, []string{`rate "fast": must be a whole number`}, "queue", "set", "q", "--create", "rate=fast")
	c.Fails(exit.Invalid, []string{`burst "-1"`, `ready_limit "1000000001"`}, "queue", "set", "q", "--create",
		"burst=-1", "ready_limit=1000000001")
	c.Fails(exit.Invalid, []string{"can be set for a whole queue only"}, "queue", "set", "q", "--group", "g", "rate=1/s")
	var got queues.QueuePolicy
	c.JSON(&got, "queue", "show", "q")
	if got.Rate != "30/m" || got.Burst != 7 || !got.FreeRetries || got.ReadyLimit != 10000 {
		t.Errorf("%+v", got)
	}
	out := c.OK("queue", "set", "q", "--create", "rate=0", "burst=", "ready_limit=", "free_retries=")
	if strings.Contains(out, "rate") || strings.Contains(out, "ready_limit") {
		t.Error(out)
	}
	says(c.OK("pause", "q", "--workers"), "q paused, with its workers: they finish their messages, and take no new ones")
	says(c.OK("pause", "q", "--workers"), "q was paused already")
	says(c.OK("queue", "show", "q"), "held_workers true (paused)")
	says(c.OK("resume", "q"), "q resumed: ")
	if out := c.OK("queue", "show", "q"); strings.Contains(out, "held_workers") {
		t.Error(out)
	}
}

// Settings of retries and of the handler timeout are set for a queue, a group, a single message, and the messages of a
// file. A message keeps its own ones, which the export shows in "extra".
func TestRetrySettingsOfQueueGroupAndMessage(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	says := func(out string, all ...string) {
		t.Helper()
		for _, one := range all {
			if !strings.Contains(out, one) {
				t.Errorf("%q is not in:\n%s", one, out)
			}
		}
	}
	says(c.OK("queue", "set", "q", "--create", "retry_delays=1m,3m,1d", "max_attempts=5", "retry_for=2d"),
		"retry_delays        1m,3m,1d (",
		"retry_for           2d\n", "tried for           about 2d0h,")
	says(c.OK("queue", "set", "q", "--create", "--group", "g", "retry_delays=90s", "retry_for=0"),
		"retry_delays        1m30s (",
		"tried for           about 6m,")
	out := c.OK("queue", "set", "q", "--create", "--group", "h", "retry_delays=0", "retry_for=0")
	if strings.Contains(out, "retry_delays") ||
		strings.Contains(out, "retry_for") {
		t.Error(out)
	}
	says(c.OK("queue", "set", "q", "--create", "max_snoozes=5", "max_crashes=20"), "max_snoozes         5\n",
		"max_crashes         20\n")
	c.Fails(exit.Invalid, []string{`max_crashes "-1"`, `max_snoozes "1000001"`}, "queue", "set", "q", "--create",
		"max_crashes=-1",
		"max_snoozes=1000001")
	says(c.OK("queue", "set", "q", "handler_timeout=90s"), "handler_timeout     1m30s\n")
	c.Fails(exit.Invalid, []string{`handler_timeout "-1s"`}, "queue", "set", "q", "handler_timeout=-1s")
	c.Fails(exit.Invalid, []string{`handler_timeout "`, "must be between 0s and 87600h0m0s"}, "queue", "set", "q",
		"handler_timeout=3651d")
	var group queues.QueuePolicy
	c.JSON(&group, "queue", "set", "q", "--group", "g", "handler_timeout=2m", "--json")
	if group.HandlerTimeout != 120_000 {
		t.Errorf("%+v", group)
	}
	c.OK("queue", "set", "q", "--group", "g", "handler_timeout=")
	var got queues.QueuePolicy
	c.JSON(&got, "queue", "show", "q", "--group", "g")
	if got.HandlerTimeout != 90_000 {
		t.Errorf("%+v", got)
	}
	if got.MaxSnoozes != 5 || got.MaxCrashes != 20 || got.Held || len(got.RetryDelays) != 1 ||
		got.RetryDelays[0] != 90_000 || got.RetryFor != 0 {
		t.Errorf("%+v", got)
	}
	c.OK("schedule", "q", "--id", "one", "--in", "1h", "--retry-delays", "1m,3m", "--retry-for", "1d", "--max-crashes",
		"3",
		"--max-snoozes", "4", "--handler-timeout", "8s", "x")
	clitest.Matches(t, c.OK("queue", "show"), `QUEUE +VISIBILITY .*`, `q +30s +5 +1m +24h +2d0h .*`)
	c.Fails(exit.Invalid, []string{`retry_delays "1m,soon"`, "like 1m,3m,5m"}, "queue", "set", "q", "--create",
		"retry_delays=1m,soon")
	c.Fails(exit.Invalid, []string{`retry_for "-1s"`}, "queue", "set", "q", "--create", "retry_for=-1s")
	c.Fails(exit.Invalid, []string{"retry_delays", "must be 1 to 100 numbers"}, "queue", "set", "q", "--create",
		"retry_delays=1m,0")
	c.OK("queue", "set", "q", "--create", "retry_delays=", "retry_for=")

	lines := `{"id":"two","retry_delays_ms":[1000],"retry_for_ms":5,"max_crashes":6,"max_snoozes":7,` +
		`"handler_timeout_ms":9}` + "\n" +
		`{"id":"three"}` + "\n" +
		`{"id":"bad-retry-for","retry_for_ms":-5}` + "\n" +
		`{"id":"bad-timeout","handler_timeout_ms":-5}`
	// The two bad lines are refused, and the others are scheduled.
	c.RunIn(lines, "schedule", "q", "--in", "1h", "--retry-delays", "7s", "--file", "-")
	out = c.OK("export", "q")
	for _, want := range []string{
		`"extra":{"handler_timeout_ms":"8000","max_crashes":"3","max_snoozes":"4","retry_delays_ms":"60000,180000","retry_for_ms":"86400000"}`,
		`"extra":{"handler_timeout_ms":"9","max_crashes":"6","max_snoozes":"7","retry_delays_ms":"1000","retry_for_ms":"5"}`,
		`"extra":{"retry_delays_ms":"7000"}`,
	} {
		if strings.Count(out, want) != 1 {
			t.Errorf("%s: %s", want, out)
		}
	}
	if strings.Contains(out, "bad-") {
		t.Error(out)
	}
}

// Regression: settings of a queue with a misspelt name were accepted. With --create they still are: settings may come
// before the first message.
func TestAMisspeltQueueOrGroupIsRefusedAndTheRightOneSuggested(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("schedule", "emails", "--in", "1h", "--id", "m", "x")
	c.OK("queue", "set", "emails", "--create", "--group", "mailer", "max_attempts=3")
	for line, says := range map[string]string{
		"pause emials":                                `queue emials: no such queue; did you mean "emails"?`,
		"resume emials":                               `did you mean "emails"?`,
		"queue set emials max_attempts=3":             `did you mean "emails"?`,
		"queue partitions emials 2":                   `did you mean "emails"?`,
		"queue delete emials":                         `did you mean "emails"?`,
		"cancel emials m":                             `did you mean "emails"?`,
		"reschedule emials m --in 2h":                 `did you mean "emails"?`,
		"dead list Emails":                            `did you mean "emails"?`,
		"pause callbacks":                             `queue callbacks: no such queue`,
		"queue set emails --group maler max_crashes=": `group maler of queue emails: no such consumer group; did you mean "mailer"?`,
		"queue show emails --group maler":             `did you mean "mailer"?`,
		"dead list emails --group maler":              `did you mean "mailer"?`,
		"dead list emails --group maler --summary":    `did you mean "mailer"?`,
		"dead redrive emails --group maler":           `did you mean "mailer"?`,
		"dead purge emails --group maler --yes":       `did you mean "mailer"?`,
	} {
		for _, more := range []string{"", " --json"} {
			if more != "" {
				says = strings.ReplaceAll(says, `"`, `\"`)
			}
			c.Fails(exit.NotFound, []string{says}, strings.Fields(line+more)...)
		}
	}
	if n := c.Scheduled("emails"); n != 1 {
		t.Error(n, "messages are scheduled")
	}
	if known := c.OK("stats", "--json"); strings.Contains(known, "emials") || strings.Contains(known, "callbacks") {
		t.Error("a misspelt queue was made:", known)
	}
}

// --create writes the settings of a queue, a group or its partitions before the first message, and may be repeated.
// After that, no flag is needed.
func TestSettingsMayBeWrittenBeforeTheFirstMessage(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	for _, line := range []string{"queue set a --create max_attempts=3", "pause b --create", "queue partitions c 4 --create",
		"queue set a --create --group g max_attempts=4"} {
		c.OK(strings.Fields(line)...)
		c.OK(strings.Fields(line)...) // it may be repeated
	}
	var all []queues.QueuePolicy
	c.JSON(&all, "queue", "show")
	if len(all) != 3 || all[0].MaxAttempts != 3 || !all[1].Held || all[2].Partitions != 4 {
		t.Errorf("%+v", all)
	}
	c.OK("resume", "b")
	c.OK("queue", "set", "a", "--group", "g", "max_attempts=5")
}

// A producer that only knows ZADD registers no queue; a bridge finds the queue later. Until then its settings are shown
// and changed with a note.
func TestSettingsOfAnUnknownQueueComeWithANote(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	const note = "no bridge knows a queue q yet"
	c.Do("ZADD", c.Key("q", "due"), "4102444800000", "one") // due in the year 2100
	for _, args := range [][]string{{"queue", "show", "q"}, {"queue", "set", "q", "max_attempts=5"}} {
		if r := c.Run(args...); r.Code != exit.OK || !strings.Contains(r.Err, note) {
			t.Errorf("%q: %+v", args, r)
		}
	}
	c.OK("schedule", "q", "--in", "1h", "x")
	if r := c.Run("queue", "show", "q"); r.Code != exit.OK || strings.Contains(r.Err, note) {
		t.Errorf("%+v", r)
	}
}
