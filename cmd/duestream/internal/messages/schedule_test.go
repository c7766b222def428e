package messages_test

import (
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
)

// Every byte of standard input is part of the payload: no line end is cut, and no encoding is assumed.
func TestScheduleKeepsEveryByteOfStandardInput(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	var payload strings.Builder
	for i := range 256 {
		payload.WriteByte(byte(i))
	}
	payload.WriteString("\r\n")
	for _, args := range [][]string{{"schedule", "q", "--in", "1h", "--id", "a"},
		{"schedule", "q", "-", "--in", "1h", "--id", "b"}} {
		if r := c.RunIn(payload.String(), args...); r.Code != exit.OK {
			t.Fatal(r)
		}
	}
	for _, id := range []string{"a", "b"} {
		var places []admin.Place
		c.JSON(&places, "show", "q", id)
		if len(places) != 1 || string(places[0].Payload) != payload.String() {
			t.Errorf("%s: %+v", id, places)
		}
	}
}

// schedule answers with the ID, the due time, and whether the message is ready at once, and stores what the flags say.
func TestScheduleSaysWhatItScheduled(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	at := time.Now().Add(90 * time.Minute).Truncate(time.Second)
	var got struct {
		Queue, ID string
		Due       time.Time
		DueMS     int64 `json:"due_ms"`
		Ready     bool
	}
	c.JSON(&got, "schedule", "q", "hello", "--at", at.Format(time.RFC3339), "--id", "a", "--header", "x=1=2,3",
		"--header", "y=",
		"--max-attempts", "4", "--expires-in", "2h", "--dedup", "1d")
	if got.Queue != "q" || got.ID != "a" || !got.Due.Equal(at) || got.DueMS != at.UnixMilli() || got.Ready {
		t.Errorf("%+v", got)
	}
	var places []admin.Place
	c.JSON(&places, "show", "q", "a")
	p := places[0]
	if p.State != "scheduled" || !p.Due.Equal(at) || p.Headers["x"] != "1=2,3" || len(p.Headers) != 2 || p.MaxAttempts != 4 ||
		time.Until(p.Expires).Round(time.Minute) != 2*time.Hour || string(p.Payload) != "hello" {
		t.Errorf("%+v", p)
	}
	c.JSON(&got, "schedule", "q", "hello")
	if !got.Ready || got.ID == "" {
		t.Errorf("%+v", got)
	}
	if out := c.OK("schedule", "q", "--in", "15m", "--id", "b", "hello"); !strings.HasPrefix(out, "b  due ") ||
		!strings.Contains(out, "(in 1") {
		t.Error(out)
	}
}

// An ID that is scheduled, or in its dedup window, is refused with an exit code of its own.
func TestScheduleRefusesADuplicate(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("schedule", "q", "--id", "a", "--in", "1h", "hello")
	c.Fails(exit.Duplicate, []string{"duestream: schedule q/a: duplicate message ID", "hint: "}, "schedule", "q",
		"--id", "a", "other")
	c.OK("schedule", "q", "--id", "b", "--dedup", "1h", "hello") // ready at once; the dedup window keeps its ID
	c.Fails(exit.Duplicate, nil, "schedule", "q", "--id", "b", "other")
}

// --replace puts a message in the place of the scheduled one with its ID: always, or only if the new one is due later
// or earlier. The last of four calls wins, and only one message is left.
func TestScheduleReplacesWhatIsScheduled(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	line := []string{"schedule", "q", "--id", "a", "--in"}
	if out := c.OK(append(line, "1h", "--replace", "always", "one")...); strings.Contains(out, "place") {
		t.Error(out)
	}
	if out := c.OK(append(line, "2h", "--replace", "later", "two")...); !strings.Contains(out, "(in ") ||
		!strings.Contains(out, "in the place of an earlier one") {
		t.Error(out)
	}
	c.Fails(exit.Duplicate, []string{"duplicate message ID"}, append(line, "1h", "--replace", "later", "three")...)
	if out := c.OK(append(line, "90m", "--replace", "earlier", "--json", "four")...); !strings.Contains(out,
		`"replaced":true`) {
		t.Error(out)
	}
	if out := c.OK("export", "q"); strings.Count(out, `"id":"a"`) != 1 || !strings.Contains(out, `"four"`) {
		t.Error(out)
	}
}

// For every command, a wrong argument or flag gives exit.Invalid and an error that names it. There is no server, so the
// error comes before the command connects.
func TestWrongInputIsNamedAndDoesNotTouchRedis(t *testing.T) {
	t.Parallel()
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	long := strings.Repeat("x", 300)
	for _, test := range []struct {
		says string
		args []string
	}{
		{`queue "a b": must be 1 to 128 characters`, []string{"schedule", "a b", "x"}},
		{`in "-1s": must be between 0 and`, []string{"schedule", "q", "x", "--in", "-1s"}},
		{`in "96360h0m0s": must be between 0 and 3650d (ten years)`, []string{"schedule", "q", "x", "--in", "4015d"}},
		{`must be a duration, like 500ms`, []string{"schedule", "q", "x", "--in", "soon"}},
		{`must be RFC 3339 with a time zone`, []string{"schedule", "q", "x", "--at", "2030-01-01T00:00:00"}},
		{`at "1970-01-01T00:00:00Z": must be between 2001`, []string{"schedule", "q", "x", "--at", "1970-01-01T00:00:00Z"}},
		{`--at and --in exclude each other`, []string{"schedule", "q", "x", "--at", "2030-01-01T00:00:00Z", "--in", "1s"}},
		{`(300 bytes): must be at most 256 bytes`, []string{"schedule", "q", "x", "--id", long}},
		{`must not hold control characters`, []string{"schedule", "q", "x", "--id", "a\x1fb"}},
		{`must be name=value`, []string{"schedule", "q", "x", "--header", "name"}},
		{`header name "": must not be empty`, []string{"schedule", "q", "x", "--header", "=v"}},
		{`header "a" is given twice`, []string{"schedule", "q", "x", "--header", "a=1", "--header", "a=2"}},
		{`max_attempts "-1": must be between 1 and 1000000`, []string{"schedule", "q", "x", "--max-attempts", "-1"}},
		{`must be after the due time`, []string{"schedule", "q", "x", "--in", "1h", "--expires-in", "1h"}},
		{`replace always: needs --id`, []string{"schedule", "q", "x", "--replace", "always"}},
		{`replace later: needs --id, and no --dedup`, []string{"schedule", "q", "x", "--id", "a", "--replace", "later", "--dedup", "1h"}},
		{`replace "now": must be always, later or earlier`, []string{"schedule", "q", "x", "--id", "a", "--replace", "now"}},
		{`dedup 1h: needs --id`, []string{"schedule", "q", "x", "--dedup", "1h"}},
		{`duestream schedule takes <queue> [payload | -], and was given 0 arguments`, []string{"schedule"}},
		{`--file and --id exclude each other`, []string{"schedule", "q", "--file", "-", "--id", "a"}},
		{`cannot be given together`, []string{"schedule", "q", "x", "--file", "-"}},
		{`no such file`, []string{"schedule", "q", "--file", "/nowhere"}},
		{`unknown flag: --colour`, []string{"stats", "--colour"}},
		{`must be auto, always or never`, []string{"stats", "--color", "blue"}},
		{`unknown command "frob"`, []string{"frob"}},
		{`unknown command "frob" for "duestream dead"`, []string{"dead", "frob"}},
		{`unknown command "frob" for "duestream queue"`, []string{"queue", "frob"}},
		{`prefix "a b": must be`, []string{"stats", "--prefix", "a b"}},
		{`queue "": must be`, []string{"cancel", "", "a"}},
		{`id "": must not be empty`, []string{"cancel", "q", ""}},
		{`one of --in and --at is required`, []string{"reschedule", "q", "a"}},
		{`queue "a b"`, []string{"show", "a b", "id"}},
		{`queue "a b"`, []string{"stats", "a b"}},
		{`name a group`, []string{"pending", "q"}},
		{`group "g" and --group "h": give one`, []string{"pending", "q", "g", "--group", "h"}},
		{`id "": must not be empty`, []string{"find", ""}},
		{`queue "a b"`, []string{"find", "id", "--queue", "a b"}},
		{`number 0: must be between 1 and 10000`, []string{"peek", "q", "-n", "0"}},
		{`queue "a b"`, []string{"peek", "a b"}},
		{`queue "a b"`, []string{"consumers", "a b"}},
		{`name a queue, or give --all`, []string{"pause"}},
		{`not both`, []string{"resume", "q", "--all"}},
		{`queue "a b"`, []string{"pause", "q", "a b"}},
		{`queue "a b"`, []string{"queue", "show", "a b"}},
		{`limit 0: must be at least 1`, []string{"pending", "q", "--group", "g", "--limit", "0"}},
		{`limit -1: must not be negative`, []string{"dead", "list", "q", "--limit", "-1"}},
		{`letter "x": must be <milliseconds>-<sequence>`, []string{"dead", "show", "q", "x"}},
		{`or give --all`, []string{"dead", "redrive", "q"}},
		{`not both`, []string{"dead", "redrive", "q", "1-0", "--all"}},
		{`rate "fast": must be a number per second`, []string{"dead", "redrive", "q", "--all", "--rate", "fast"}},
		{`or give --all`, []string{"dead", "purge", "q"}},
		{`add --yes`, []string{"dead", "purge", "q", "--group", "g"}},
		{`must be setting=value`, []string{"queue", "set", "q", "--create", "max_attempts"}},
		{`colour "red": is not a setting: must be one of burst, free_retries, handler_timeout, held,`, []string{"queue", "set", "q", "--create", "colour=red"}},
		{`max_attempts "0": must be between 1 and`, []string{"queue", "set", "q", "--create", "max_attempts=0"}},
		{`visibility_timeout "1ms": must be between 100ms and`, []string{"queue", "set", "q", "--create", "visibility_timeout=1ms"}},
		{`retry_max "1s": must be at least`, []string{"queue", "set", "q", "--create", "retry_min=2s", "retry_max=1s"}},
		{`partitions "0": must be between 1 and 256`, []string{"queue", "partitions", "q", "0"}},
		{`partitions "257": must be between 1 and 256`, []string{"queue", "partitions", "q", "257"}},
		{`partitions "many": must be a whole number`, []string{"queue", "partitions", "q", "many"}},
		{`queue "q/1": must be`, []string{"queue", "partitions", "q/1"}},
		{`takes <queue> [<n>], and was given 0 arguments`, []string{"queue", "partitions"}},
		{`letter "0/1-1": must be <milliseconds>-<sequence>, or <partition>/`, []string{"dead", "show", "q", "0/1-1"}},
		{`the command must stand behind --`, []string{"work", "q", "--group", "g", "cat"}},
		{`there is no command behind --`, []string{"work", "q", "--group", "g", "--"}},
		{`one queue before --`, []string{"work", "--group", "g", "--", "cat"}},
		{`--group is required`, []string{"work", "q", "--", "cat"}},
		{`executable file not found`, []string{"work", "q", "--group", "g", "--", "no-such-command"}},
		{`queue "a b"`, []string{"work", "a b", "--group", "g", "--", "cat"}},
		{`concurrency 0: must be at least 1`, []string{"work", "q", "--group", "g", "-n", "0", "--", "cat"}},
		{`concurrency -1: must be at least 1`, []string{"work", "q", "--group", "g", "-n", "-1", "--", "cat"}},
		{`from-line 0: must be at least 1`, []string{"schedule", "q", "--file", "-", "--from-line", "0"}},
		{`takes <queue> [payload | -], and was given 3 arguments`, []string{"schedule", "q", "hello", "world"}},
		{`--timeout "-1s": must not be negative`, []string{"work", "q", "--group", "g", "--timeout", "-1s", "--", "cat"}},
		{`dev starts a server of its own`, []string{"dev"}},
	} {
		c.Fails(exit.Invalid, []string{"duestream: ", test.says}, test.args...)
	}
	payload := strings.Repeat("x", admin.MaxPayloadBytes+1)
	if r := c.RunIn(payload, "schedule", "q"); r.Code != exit.Invalid ||
		!strings.Contains(r.Err, "must be at most 16777216 bytes") {
		t.Error(r)
	}
}
