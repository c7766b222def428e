package dashboard

import (
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// until returns the first update that has a text.
func (w *watched) until(text string) string {
	w.t.Helper()
	for {
		name, update := w.next()
		redistest.Want(w.t, "event", name, "update")
		if strings.Contains(words(update), text) {
			return update
		}
	}
}

// The page must follow a message from its schedule to its end, and then ask for no more updates.
func TestMessagePageFollowsTheMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Policy(map[string]string{policy.SettingHistory: "1000", policy.SettingHistoryAge: "3600000"})
	r.Groups("mailer")
	r.send(r.Queue, "order-42", "p", bridge.In(time.Hour))
	v := r.viewer(access.Verbs(), "*")
	page := v.wantMessage(r.Queue, "order-42", "waits for its time")
	if !strings.Contains(page, `data-live="live-message?`) {
		t.Errorf("the page is not kept up to date:\n%s", page)
	}
	address, _ := strings.CutPrefix(messageAddress(r.Queue, "order-42"), "message")
	stream := v.watch("live-message" + address)
	stream.until("waits for its time")
	v.wantAct("move", r.Queue, "order-42", []string{"now", "1"})
	stream.until("it is due since")
	if err := r.op.MakeReady(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	entries := r.Take("mailer", "host-1", 1)
	update := stream.until("held by consumer host-1 of group mailer")
	for _, want := range []string{"Moved from", "Ready, attempt 1"} {
		if !strings.Contains(words(update), want) {
			t.Errorf("the update lacks %q of the story:\n%s", want, words(update))
		}
	}
	if strings.Contains(update, "data-rest") {
		t.Errorf("the page of a message that a worker holds ends its updates:\n%s", update)
	}
	if _, err := lua.Ack(t.Context(), r.Client, r.Keys, "mailer", []lua.Held{{Entry: entries[0]}}); err != nil {
		t.Fatal(err)
	}
	if update := stream.until("acknowledged by mailer at"); !strings.Contains(update, "data-rest") {
		t.Errorf("the page of a done message does not end its updates:\n%s", update)
	}
}

// A look at a watched message must not read Redis if that was costly before, or if it is another message's turn.
func TestMessagePageLooksNoMoreThanItMay(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.send(r.Queue, "a", "p", bridge.In(time.Hour))
	w := &messageWatch{d: r.dashboard, queue: r.Queue, id: "a"}
	places := func() int {
		one, err := w.look(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(one.value.(messageState).finding.Places)
	}
	redistest.Want(t, "places at the first look", places(), 1)
	r.Do("ZREM", r.Keys.Due, "a")
	r.dashboard.messageTurns.last = time.Now()
	redistest.Want(t, "places while it is another message's turn", places(), 1)
	r.dashboard.messageTurns.last = time.Time{}
	w.last.requests = maxLiveRequests + 1
	redistest.Want(t, "places after a costly look", places(), 1)
	w.last.requests, w.isIdle = maxLiveRequests, true
	redistest.Want(t, "places after an idle look", places(), 1)
	redistest.Want(t, "the next message has its turn", r.dashboard.messageTurns.take(), true)
	r.dashboard.messageTurns.last = time.Time{}
	r.dashboard.hub.changed("")
	redistest.Want(t, "places after somebody changed something", places(), 0)
	r.dashboard.messageTurns.last = time.Time{}
	r.send(r.Queue, "a", "p", bridge.In(time.Hour))
	redistest.Want(t, "places at the next look", places(), 1)
}

// The page of a message in a large queue must not be kept up to date by itself, and offer to look again.
func TestMessagePageOfALargeQueueIsStill(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.send(r.Queue, "a", "p", bridge.In(time.Hour))
	var s messageState
	var err error
	if s, err = r.dashboard.lookAtMessage(t.Context(), inQueue(r.Queue), "a", nil); err != nil {
		t.Fatal(err)
	}
	v := messageView{messageState: s, ID: "a", Queue: r.Queue}
	redistest.Want(t, "a scheduled message is still", v.Still(), false)
	v.requests = maxLiveRequests + 1
	redistest.Want(t, "a message in a large queue is still", v.Still(), true)
	page := r.viewer(access.Verbs(), "*").wantMessage(r.Queue, "a")
	if strings.Contains(words(page), "Refresh") {
		t.Errorf("a page that is kept up to date offers to look again:\n%s", words(page))
	}
	r.Do("DEL", r.Keys.Due)
	r.viewer(access.Verbs(), "*").wantMessage(r.Queue, "a", "Refresh")
}
