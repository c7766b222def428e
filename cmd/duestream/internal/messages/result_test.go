package messages_test

import (
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/messages"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// held makes messages ready in queue q, and gives them to a consumer of group g.
func held(c *clitest.CLI, ids ...string) map[string]lua.Held {
	c.T.Helper()
	c.Do("XGROUP", "CREATE", c.Key("q", "stream"), "g", "0", "MKSTREAM")
	for _, id := range ids {
		c.OK("schedule", "q", "x", "--id", id, "--keep-result", "1h")
	}
	keys := lua.NewKeys(c.Prefix, "q")
	if _, err := lua.Drain(c.T.Context(), c.Redis(), keys, 100, 1<<20); err != nil {
		c.T.Fatal(err)
	}
	client := c.Redis()
	streams, err := client.Do(c.T.Context(), client.B().Xreadgroup().Group("g", "c").Count(100).Streams().
		Key(keys.Stream).Id(">").Build()).AsXRead()
	if err != nil || len(streams[keys.Stream]) != len(ids) {
		c.T.Fatal(streams, err)
	}
	all := map[string]lua.Held{}
	for _, entry := range streams[keys.Stream] {
		id := entry.FieldValues["id"]
		all[id] = lua.Held{Entry: entry.ID, ID: id}
	}
	return all
}

// succeed acknowledges a message with a result, as a worker does.
func succeed(c *clitest.CLI, h lua.Held, value string) {
	c.T.Helper()
	keys := lua.NewKeys(c.Prefix, "q")
	ok, err := lua.AckResult(c.T.Context(), c.Redis(), keys, "g", h, 2, time.Hour, []byte(value))
	if err != nil || !ok {
		c.T.Fatal(ok, err)
	}
}

// die makes a message a dead letter.
func die(c *clitest.CLI, h lua.Held) {
	c.T.Helper()
	failure := lua.Failure{Held: h, Action: lua.ActionDead, Reason: lua.ReasonDeadLetter, Error: "no such card"}
	_, err := lua.Retry(c.T.Context(), c.Redis(), lua.NewKeys(c.Prefix, "q"), "g",
		lua.Attempts{Max: 3, Delays: []time.Duration{time.Second}}, []lua.Failure{failure})
	if err != nil {
		c.T.Fatal(err)
	}
}

// result prints the result of a message for people, for programs and as bytes, and is not found before there is one.
func TestResultPrintsWhatAHandlerSet(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	all := held(c, "a", "empty", "open")
	c.Fails(exit.NotFound, []string{"no result", "hint: only a message that was scheduled with --keep-result"},
		"result", "q", "open", "--group", "g")
	succeed(c, all["a"], "paid\x00")
	succeed(c, all["empty"], "")
	clitest.Matches(t, c.OK("result", "q", "a", "--group", "g"),
		`state +done`, `group +g`, `attempt +2`, `done +\S.*`, ``, `value \(5 bytes\):`, `"paid\\x00"`)
	clitest.Matches(t, c.OK("result", "q", "empty", "-g", "g"),
		`state +done`, `group +g`, `attempt +2`, `done +\S.*`, ``, `value \(0 bytes\):`, ``)
	redistest.Want(t, "raw", c.OK("result", "q", "a", "--raw"), "paid\x00") // g is the only group
	var got messages.ResultAnswer
	c.JSON(&got, "result", "q", "empty", "--group", "g")
	if got.ID != "empty" || got.Queue != "q" || got.Group != "g" || got.State != bridge.AwaitDone || got.Attempt != 2 ||
		got.Value == nil || len(*got.Value) != 0 || got.Done.IsZero() {
		t.Errorf("%+v", got)
	}
	c.Fails(exit.NotFound, []string{"no result"}, "result", "q", "a", "--group", "other")
	c.Fails(exit.Invalid, []string{"given 1 argument"}, "result", "q")
	c.Fails(exit.Invalid, []string{"raw", "json"}, "result", "q", "a", "--raw", "--json")
	c.Do("XGROUP", "CREATE", c.Key("q", "stream"), "h", "0")
	c.Fails(exit.Invalid, []string{"queue q has 2 groups: give one with --group: g, h"}, "result", "q", "a")
}

// wait ends with the result as soon as there is one, and otherwise tells by its exit code why there is none.
func TestWaitTellsWhatBecameOfAMessage(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	all := held(c, "a", "dies", "open")
	waiting := c.Start("wait", "q", "a", "--group", "g", "--timeout", "1m", "--json")
	dying := c.Start("wait", "q", "dies", "--group", "g", "--timeout", "1m", "--state", "dead")
	succeed(c, all["a"], "paid")
	redistest.Want(t, "exit code of a message that is done", waiting.Wait(), exit.OK)
	var got messages.ResultAnswer
	clitest.Decode(t, waiting.Out.String(), &got)
	if got.State != bridge.AwaitDone || got.Value == nil || string(*got.Value) != "paid" {
		t.Errorf("%+v", got)
	}
	die(c, all["dies"])
	redistest.Want(t, "exit code of an awaited death", dying.Wait(), exit.OK)
	clitest.Matches(t, dying.Out.String(), `state +dead`, `group +g`)
	clitest.Matches(t, c.OK("wait", "q", "open", "--state", "ready"), `state +ready`, `group +g`)
	c.Fails(exit.Failure, []string{"is a dead letter", "reason dead_letter: no such card",
		"hint: `duestream dead list <queue>`"}, "wait", "q", "dies", "--group", "g")
	c.Fails(exit.Failure, []string{"is done", "hint: `duestream result"}, "wait", "q", "a", "--state", "dead")
	c.Fails(exit.NotFound, []string{"the message is nowhere", "hint: "}, "wait", "q", "never", "--group", "g")
	c.Fails(exit.NotYet, []string{"wait until open in q is done for g: not yet, after 20ms", "hint: the same command"},
		"wait", "q", "open", "--timeout", "20ms")
	for flag, says := range map[string]string{
		"--state=paid": `state "paid": must be ready, done or dead`, "--timeout=0s": "timeout 0s: must be longer than 0s",
		"--group=a\nb": "group",
	} {
		c.Fails(exit.Invalid, []string{says}, "wait", "q", "a", flag)
	}
	c.Fails(exit.Invalid, []string{"--raw prints the result"}, "wait", "q", "a", "--state", "ready", "--raw")
}

// wait without a group asks for one while the queue has none. A shell offers the states.
func TestWaitNeedsAGroup(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("schedule", "q", "x", "--id", "a", "--in", "1h")
	c.Fails(exit.Invalid, []string{"queue q has no group yet: give --group"}, "wait", "q", "a")
	names, _ := c.Offers("wait", "q", "a", "--state", "")
	if len(names) != 3 {
		t.Errorf("the shell offers %q", names)
	}
}
