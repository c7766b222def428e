package lookup

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/deadletter"
)

// wantWhy finds a message, and checks that each of its places has a reason that matches the pattern. TIME in a pattern
// stands for a time.
func (r *rig) wantWhy(id string, patterns ...string) {
	r.T.Helper()
	f, err := Find(r.T.Context(), r.Client, r.Prefix, id, FindOptions{Queues: []string{r.Queue}})
	if err != nil || len(f.Places) != len(patterns) {
		r.T.Errorf("%s: %+v, %v", id, f.Places, err)
		return
	}
	for i, p := range f.Places {
		if !regexp.MustCompile("^" + strings.ReplaceAll(patterns[i], "TIME", `20\S+`) + "$").MatchString(p.Why) {
			r.T.Errorf("%s: why %q, want %q", id, p.Why, patterns[i])
		}
	}
}

// An operator who searches a message wants to know why it is not delivered.
func TestFindSaysWhyAMessageInTheScheduleIsNotDelivered(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	hour := lua.After(time.Hour)
	r.Enqueue(lua.Item{ID: "later", When: hour, Meta: lua.EncodeMeta(map[string]string{"k": "v"}, 0, time.Time{})})
	r.Do("ZADD", r.Keys.Due, fmt.Sprint(time.Now().Add(-time.Minute).UnixMilli()), "late")
	r.Do("ZADD", r.Keys.Due, fmt.Sprint(time.Now().UnixMilli()), "now")
	retry := lua.Member{Kind: lua.MemberRetry, ID: "again", Group: "g", Of: "1-1"}.String()
	r.Do("HSET", r.Keys.Meta, retry, `{"id":"again","for":"g","attempt":"3"}`)
	r.Do("ZADD", r.Keys.Due, fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), retry)
	r.Policy(map[string]string{policy.SettingMaxAttempts: "7"})

	r.BridgeLives(false)
	r.wantWhy("later", "waits for its time, TIME; no bridge is alive")
	r.wantWhy("late", "no bridge is alive: it is due since TIME")
	r.wantWhy("again", `waits for its retry for g at TIME \(attempt 3 of 7\); no bridge is alive`)
	r.BridgeLives(true)
	r.wantWhy("later", "waits for its time, TIME")
	r.wantWhy("late", "the bridges are behind: it is due since TIME")
	r.wantWhy("again", `waits for its retry for g at TIME \(attempt 3 of 7\)`)
	r.Do("ZADD", r.Keys.Due, fmt.Sprint(time.Now().UnixMilli()), "now")
	r.wantWhy("now", "it is due since TIME: a bridge is about to take it")
	r.Policy(map[string]string{policy.SettingHeld: "1"})
	r.wantWhy("later", "waits for its time, TIME; the queue is paused")
	r.wantWhy("late", "the queue is paused: it is due since TIME")
	r.BridgeLives(false)
	r.wantWhy("late", "the queue is paused, and no bridge is alive: it is due since TIME")
}

// A full Redis stops the schedule, and may have refused a message that is nowhere: Find must say both.
func TestFindSaysThatRedisIsFull(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Own(t))
	r.BridgeLives(true)
	r.Do("ZADD", r.Keys.Due, "1", "late")
	r.Do("CONFIG", "SET", "maxmemory", "1")
	r.wantWhy("late", "Redis is full: it is due since 1970.*")
	f, err := Find(t.Context(), r.Client, r.Prefix, "refused", FindOptions{Queues: []string{r.Queue}})
	redistest.Want(t, "nowhere", fmt.Sprint(errors.Is(err, deadletter.ErrNotFound), " ", f.Why),
		"true Redis is full: it may have been refused")
}

// For a ready message Find must name the groups that have not read it, and why. For a held message it must name the
// consumer and the attempt.
func TestFindSaysWhyAReadyOrHeldMessageIsNotDone(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.BridgeLives(true)
		r.Ready("a")
		r.wantWhy("a", "no group is on the stream: it waits for one")
		r.Groups("g")
		r.wantWhy("a", "nobody reads group g")
		r.Take("g", "me", 1)
		r.wantWhy("a", `held by consumer me of group g since TIME \(attempt 1 of \d+\)`)
		r.Ready("b")
		r.wantWhy("b", "group g has not come to it, and holds 1")
		r.Groups("an odd name")
		r.wantWhy("b", `nobody reads group "an odd name"; group g has not come to it, and holds 1`)
		var names []string
		for i := range 20 {
			names = append(names, fmt.Sprint("many-", i))
		}
		r.Groups(names...)
		r.wantWhy("b", `(nobody reads group \S+; )+group g .*; and so for 14 more groups|`+
			`(nobody reads group .*; )+and so for 14 more groups`)
		r.Do("XGROUP", "DESTROY", r.Keys.Stream, "an odd name")
		for _, name := range names {
			r.Do("XGROUP", "DESTROY", r.Keys.Stream, name)
		}
		r.Policy(map[string]string{policy.SettingVisibility: "100"})
		redistest.Eventually(t, 20*time.Second, func() (bool, string) { // until consumer me has been idle for 100 ms
			f, err := Find(t.Context(), r.Client, r.Prefix, "b", FindOptions{Queues: []string{r.Queue}})
			return len(f.Places) == 1 && f.Places[0].Why == "nobody reads group g", fmt.Sprint(f.Places, err)
		})
	})
}

// No consumer holds a message that its worker gave back by XNACK. Find must say so, and say who will take the message.
func TestFindSaysThatAMessageWasGivenBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Ready("a")
	e := r.Take("g", "me", 1)[0]
	r.Do("XCLAIM", r.Keys.Stream, "g", "", "0", e, "TIME", "0", "JUSTID") // as XNACK with FAIL does
	const givenBack = `its worker of group g gave it back by XNACK \(attempt 1 of \d+\): `
	r.BridgeLives(true)
	r.wantWhy("a", givenBack+"a bridge is about to take it")
	r.BridgeLives(false)
	r.wantWhy("a", givenBack+"no bridge is alive: nobody takes it from there")
}

// For an abandoned entry Find must say who held it and what keeps it there, and for a dead letter why the message died.
// There must be a text for each reason.
func TestFindSaysWhyWhatIsAbandonedOrDeadIsNotDelivered(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g", "h")
	r.BridgeLives(false)
	r.Ready("a")
	ids := r.Take("g", "gone", 1)
	r.Xack("h", r.Take("h", "x", 1)...)
	r.Age("g", "gone", ids...)
	r.wantWhy("a", `held by consumer gone of group g since TIME \(attempt 1 of \d+\), without a sign of life for longer `+
		`than the visibility timeout; no bridge is alive: nobody takes it from there`)
	for reason, text := range map[string]string{
		lua.ReasonMaxAttempts:       `its attempts are used up \(1\)`,
		lua.ReasonVisibilityTimeout: `its attempts are used up \(1\): the last consumer .*`,
		lua.ReasonDeadLetter:        `its worker gave it up \(attempt 1\)`, lua.ReasonExpired: `it expired before .*`,
		lua.ReasonGroupGone: "its group is not .*",
		lua.ReasonMalformed: "what was found could .*", lua.ReasonBodyLost: "somebody deleted .*",
		"odd": `it was given up \(attempt 1\)`,
	} {
		r.Do("XADD", r.Keys.Dead, "*", "id", reason, "payload", "x", "attempt", "1", "group", "g", "reason", reason, "dead_ms",
			"1700000000000", "entry", "1-1")
		r.wantWhy(reason, "for group g "+text+": a dead letter since TIME")
	}
	for _, reason := range lua.Reasons() {
		if deathTexts[reason] == "" {
			t.Errorf("nothing is said of %s", reason)
		}
	}
}
