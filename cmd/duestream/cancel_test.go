package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func TestCancelSaysWhatItCancelled(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, id := range []string{"a", "b", "c"} {
		c.ok("schedule", "q", "--id", id, "--in", "1h", "x")
	}
	if out := c.ok("cancel", "q", "a"); out != "a  cancelled\n" {
		t.Error(out)
	}
	c.fails(exitNotFound, []string{"hint: it became ready"}, "cancel", "q", "a")
	r := c.fails(exitPartly, []string{"not scheduled: 1 of 3 messages", "with --running"}, "cancel", "q", "b", "a", "c", "--json")
	var answers []cancelled
	decode(t, r.out, &answers)
	if fmt.Sprint(answers) != "[{b true []} {a false []} {c true []}]" {
		t.Error(answers)
	}
	if n := c.scheduled("q"); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// retries schedules retries of a message, as after failed attempts of groups.
func (c *cli) retries(queue, id string, due time.Time, groups ...string) {
	c.t.Helper()
	client, k := c.s.Client(c.t), lua.NewKeys(c.prefix, queue)
	for _, group := range groups {
		member := lua.Member{Kind: lua.MemberRetry, ID: id, Group: group, Of: "1-1"}.String()
		for _, words := range [][]string{
			{"HSET", k.Payload, member, "p"}, {"HSET", k.Meta, member,
				fmt.Sprintf(`{"id":%q,"for":%q,"attempt":"2"}`, id, group)},
			{"ZADD", k.Due, fmt.Sprint(due.UnixMilli()), member},
		} {
			if err := client.Do(c.t.Context(), client.B().Arbitrary(words...).Build()).Error(); err != nil {
				c.t.Fatal(err)
			}
		}
	}
}

// A payment arrives after the first failed attempt: the retries of the callback are cancelled.
func TestCancelTakesRetriesThatWait(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	due := time.Now().Add(time.Hour)
	c.retries("q", "a", due, "g", "h", "i")
	c.ok("schedule", "q", "--id", "a", "--in", "1h", "x")
	c.fails(exitNotFound, nil, "cancel", "q", "a", "--group", "nobody")
	if out := c.ok("cancel", "q", "a", "--group", "g"); !strings.HasPrefix(out, "a  cancelled: retry for g that was due ") ||
		strings.Contains(out, ",") {
		t.Error(out)
	}
	// Only the message itself: retries are searched only if there is no such message.
	if out := c.ok("cancel", "q", "a"); out != "a  cancelled\n" {
		t.Error(out)
	}
	var answers []cancelled
	c.json(&answers, "cancel", "q", "a")
	if len(answers) != 1 || !answers[0].Cancelled || len(answers[0].Retries) != 2 ||
		answers[0].Retries[0].Due.UnixMilli() != due.UnixMilli() {
		t.Errorf("%+v", answers)
	}
	c.fails(exitNotFound, nil, "cancel", "q", "a")
	c.retries("q", "b", due, "g")
	c.ok("schedule", "q", "--id", "b", "--in", "1h", "x")
	if out := c.ok("cancel", "q", "b", "--retries"); !strings.HasPrefix(out,
		"b  cancelled: retry for g") || c.scheduled("q") != 0 {
		t.Errorf("%s%d are left", out, c.scheduled("q"))
	}
	c.fails(exitInvalid, nil, "cancel", "q", "b", "--retries", "--group", "g")
}

// With --running, a message is cancelled in any state, and each message gets a verdict.
func TestCancelRunning(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	client, k := c.s.Client(t), lua.NewKeys(c.prefix, "q")
	do := func(words ...string) {
		t.Helper()
		if err := client.Do(t.Context(), client.B().Arbitrary(words...).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	for _, group := range []string{"g", "h"} {
		do("XGROUP", "CREATE", k.Stream, group, "0", "MKSTREAM")
	}
	do("XADD", k.Stream, "*", "id", "held", "payload", "p", "attempt", "1")
	do("XREADGROUP", "GROUP", "g", "web-1", "STREAMS", k.Stream, ">")
	do("XREADGROUP", "GROUP", "h", "web-2", "STREAMS", k.Stream, ">")
	do("XADD", k.Stream, "*", "id", "ready", "payload", "p", "attempt", "1")
	c.ok("schedule", "q", "--id", "later", "--in", "1h", "x")
	r := c.fails(exitPartly, []string{"group g has not read 1 of 1 message yet"},
		"cancel", "q", "ready", "--running", "--group", "g")
	redistest.Want(t, "unread", r.out, "ready  unread\n")
	redistest.Want(t, "for one group", c.ok("cancel", "q", "held", "--running", "--group", "g"), "held  cancelling, web-1 of g\n")
	r = c.fails(exitPartly, []string{"group g has not read 1 of 1 message yet"},
		"cancel", "q", "later", "--running", "--group", "g")
	redistest.Want(t, "what waits for its time", r.out, "later  unread\n")
	r = c.fails(exitPartly, []string{"not found: 1 of 4 messages"},
		"cancel", "q", "held", "ready", "later", "nobody", "--running")
	redistest.Want(t, "all", r.out,
		"held  cancelling, web-1 of g, web-2 of h\nready  cancelled\nlater  cancelled\nnobody  not found\n")
	var answers []cancelledRunning
	c.json(&answers, "cancel", "q", "held", "--running")
	if len(answers) != 1 || answers[0].Verdict != bridge.VerdictCancelling || len(answers[0].Holders) != 2 {
		t.Errorf("%+v", answers)
	}
	c.fails(exitNotFound, nil, "cancel", "q", "nobody", "--running")
	c.fails(exitNotFound, []string{"held by a worker is cancelled with --running"}, "cancel", "q", "held")
	for _, of := range [][]string{{"pending", "q", "g"}, {"find", "held"}} {
		if out := c.ok(of...); !strings.Contains(out, "cancelled") || strings.Contains(out, "10000000000") {
			t.Errorf("%s: %s", of[0], out)
		}
	}
	if out := c.ok("export", "q"); !strings.Contains(out, `"count":0`) {
		t.Errorf("exported what nobody is to get again: %s", out)
	}
	c.fails(exitInvalid, nil, "cancel", "q", "held", "--running", "--retries")
}
