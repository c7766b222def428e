package crashpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// The commands of an operator are interrupted at each request, and run again if they fail. Dead letters are redriven
// and purged exactly once, settings and groups exist, and reading commands return an error or the truth.
func TestOperatorInterrupted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.bridge(r.redis)
	broken := []mode{unsent, unheard, dies}
	operation{name: "dead letters", modes: broken, serial: true, run: r.letters}.sweep(t)
	operation{name: "settings", modes: broken, serial: true, run: r.settings}.sweep(t)
	operation{name: "reading", modes: []mode{unsent, unheard}, serial: true, run: r.reading}.sweep(t)
}

// again repeats a command until it succeeds: in the same process, or in another one if it died. There is only one
// fault, so it must succeed by the third try.
func again(t *testing.T, r *rig, f *fuse, do func(*bridge.Redis) error) {
	t.Helper()
	redis := f.redis(t, r.server)
	for tries := 1; ; tries++ {
		err := do(redis)
		if err == nil {
			return
		}
		if tries == 3 || !f.blown() {
			t.Fatalf("try %d: %v", tries, err)
		}
		if f.mode == dies {
			redis = r.redis
		}
	}
}

// bury creates dead letters of group a, with the errors "of <id>".
func (l *load) bury(ids ...string) {
	var messages []bridge.NewMessage
	for _, id := range ids {
		messages = append(messages, message(id, 0))
	}
	l.send(messages...)
	var failures []lua.Failure
	for _, e := range l.readRaw("a", "c1") {
		failures = append(failures, lua.Failure{Held: lua.Held{Entry: e.EntryID}, Action: lua.ActionDead,
			Reason: lua.ReasonDeadLetter, Error: "of " + e.ID})
	}
	if len(failures) != len(ids) {
		l.Fatalf("%d entries where %d belong", len(failures), len(ids))
	}
	_, err := lua.Retry(l.ctx(), l.redis.Client, l.k, "a", attempts, failures)
	l.must(err)
}

func (r *rig) letters(t *testing.T, f *fuse) {
	l := r.load(t)
	l.groups("a")
	l.setLongVisibility("")
	l.bury("one", "two", "edited", "purged", "old")
	l.ledger.NotExpected("purged")
	l.ledger.NotExpected("old")
	ctx, payload := l.ctx(), []byte(anyIDPayload)

	again(t, r, f, func(redis *bridge.Redis) error {
		d := operator(redis, r.prefix).DeadLetters()
		for _, text := range []string{"of one", "of two"} {
			o := admin.RedriveOptions{Progress: func(done, total int) {}}
			if _, err := d.RedriveMatching(ctx, l.queue, admin.LetterFilter{ErrorText: text}, o); err != nil {
				return err
			}
		}
		var letters []string
		for letter, err := range d.List(ctx, l.queue, admin.LetterFilter{ID: "edi*"}) {
			if err != nil {
				return err
			}
			letters = append(letters, letter.Letter)
		}
		_, err := d.Redrive(ctx, l.queue, letters, admin.RedriveOptions{Payload: &payload, Delay: time.Millisecond})
		if err != nil {
			return err
		}
		if _, err := d.PurgeProgress(ctx, l.queue, admin.LetterFilter{ID: "purged"}, func(int) {}); err != nil {
			return err
		}
		_, err = d.PurgeProgress(ctx, l.queue, admin.LetterFilter{OlderThan: time.Millisecond}, func(int) {})
		return err
	})
	l.worker(r.redis, "a", "", nil)
	l.rest("a")
	l.checkAttempts(nil, 0)
	l.checkCalls(nil)
}

func (r *rig) settings(t *testing.T, f *fuse) {
	r = r.of(t)
	r.prefix = r.server.Prefix(t)
	l := r.load(t)
	ctx, visibility, most := l.ctx(), 7*time.Second, 3
	defaults := bridge.DefaultPolicy()
	defaults.RetryMax = 11 * time.Minute
	again(t, r, f, func(redis *bridge.Redis) error {
		if err := operator(redis, r.prefix).WriteDefaults(ctx, defaults); err != nil {
			return err
		}
		attempts := admin.PolicyUpdate{MaxAttempts: &most}
		if err := operator(redis, r.prefix).WritePolicy(ctx, l.queue, "", attempts); err != nil {
			return err
		}
		if err := operator(redis, r.prefix).WritePolicy(ctx, l.queue, "a",
			admin.PolicyUpdate{VisibilityTimeout: &visibility}); err != nil {
			return err
		}
		_, err := bridge.CreateGroup(ctx, redis, r.prefix, l.queue, "a")
		return err
	})
	want := defaults
	want.VisibilityTimeout, want.MaxAttempts = visibility, most
	got, warning, err := operator(r.redis, r.prefix).ReadPolicy(ctx, l.queue, "a")
	if err := errors.Join(warning, err); err != nil || got != want {
		t.Errorf("the policy is %+v, and must be %+v: %v", got, want, err)
	}
	if l.pendingError("a") != nil {
		t.Error("the group is not there")
	}
}

func (l *load) pendingError(group string) error { return l.do("XPENDING", l.k.Stream, group).Error() }

// reading runs all reading calls through the fuse, and compares their results with those of undisturbed calls. At most
// one call may return an error, that of the interrupted request. Results that change with time are left out.
func (r *rig) reading(t *testing.T, f *fuse) {
	l := r.load(t)
	l.groups("a", "b")
	l.setLongVisibility("")
	l.bury("dead")
	l.send(message("held", 0), message("later", time.Hour))
	l.readRaw("a", "c1")
	ctx := context.Background()
	ask := func(redis *bridge.Redis) map[string]any {
		truth := map[string]any{}
		tell := func(name string, value any, err error) {
			if err == nil {
				truth[name] = value
			}
		}
		for _, id := range []string{"dead", "held", "later", "unknown"} {
			places, err := operator(redis, r.prefix).Locate(ctx, l.queue, id)
			found := []string{}
			for _, p := range places {
				found = append(found, fmt.Sprint(p.State, p.Group, p.Consumer))
			}
			if errors.Is(err, admin.ErrNotFound) {
				found, err = []string{"nowhere"}, nil
			}
			tell("place of "+id, found, err)
		}
		stats, err := operator(redis, r.prefix).Stats(ctx, l.queue)
		tell("scheduled and dead", []int64{stats.Scheduled, stats.Dead}, err)
		pending, err := operator(redis, r.prefix).Pending(ctx, l.queue, "a", admin.PendingFilter{}, 10)
		held := []string{}
		for _, one := range pending {
			held = append(held, one.ID+" at "+one.Consumer)
		}
		tell("pending", held, err)
		n, err := operator(redis, r.prefix).DeadLetters().Count(ctx, l.queue, admin.LetterFilter{})
		tell("letters", n, err)
		consumers, err := operator(redis, r.prefix).Consumers(ctx, l.queue, "a")
		tell("consumers", len(consumers), err)
		bridges, err := operator(redis, r.prefix).Bridges(ctx)
		tell("bridges", len(bridges), err)
		return truth
	}
	want := ask(r.redis)
	got := ask(f.redis(t, r.server))
	unanswered := 0
	for name, value := range want {
		is, told := got[name]
		if !told {
			unanswered++
			continue
		}
		a, _ := json.Marshal(is)
		b, _ := json.Marshal(value)
		if string(a) != string(b) {
			t.Errorf("%s is said to be %s, and is %s", name, a, b)
		}
	}
	if unanswered > 1 || unanswered == 1 && !f.blown() {
		t.Errorf("%d questions were not answered", unanswered)
	}
}
