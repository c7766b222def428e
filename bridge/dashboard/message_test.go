package dashboard

import (
	"context"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// messageAddress returns the address of the page of a message.
func messageAddress(queue, id string) string {
	return "message?" + url.Values{"queue": {queue}, "id": {id}}.Encode()
}

// tags matches the tags of a page.
var tags = regexp.MustCompile(`<[^>]*>`)

// words returns the text of a page as a person reads it, with single blanks.
func words(page string) string {
	return strings.Join(strings.Fields(html.UnescapeString(tags.ReplaceAllString(page, " "))), " ")
}

// wantMessage checks that the page of a message has texts. It returns the page.
func (v *viewer) wantMessage(queue, id string, texts ...string) string {
	v.t.Helper()
	status, page := v.get(messageAddress(queue, id))
	redistest.Want(v.t, "status of the page of "+id, status, http.StatusOK)
	for _, text := range texts {
		if !strings.Contains(words(page), text) {
			v.t.Errorf("the page of %s lacks %q:\n%s", id, text, words(page))
		}
	}
	return page
}

// fail settles the entry of a group as failed, so that it is retried after a delay, or dead if the delay is negative.
func (r *rig) fail(group string, delay time.Duration, entries ...string) {
	r.T.Helper()
	failure := lua.Failure{Held: lua.Held{Entry: entries[0]}, Delay: -1, Error: "the partner answered 503"}
	if delay < 0 {
		failure.Action, failure.Reason = lua.ActionDead, lua.ReasonDeadLetter
	}
	attempts := lua.Attempts{Max: 5, Delays: []time.Duration{max(delay, time.Second)}}
	if _, err := lua.Retry(r.T.Context(), r.Client, r.Keys, group, attempts, []lua.Failure{failure}); err != nil {
		r.T.Fatal(err)
	}
}

// send schedules a message.
func (r *rig) send(queue, id, payload string, options ...bridge.Option) {
	r.T.Helper()
	options = append(options, bridge.WithID(id))
	if _, err := r.client.Schedule(r.T.Context(), queue, []byte(payload), options...); err != nil {
		r.T.Fatal(err)
	}
}

// The page must say in one sentence why a message is not delivered, in every state.
func TestMessagePageSaysWhyAMessageIsNotDelivered(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer(access.Verbs(), "*")
	r.BridgeLives(true)
	q := r.Queue

	r.send(q, "later", "p", bridge.In(time.Hour), bridge.Header("tenant", "acme"), bridge.ExpiresIn(2*time.Hour))
	v.wantMessage(q, "later", "scheduled in "+q, "waits for its time", "Due", "Expires", "tenant acme", "Run now",
		"Reschedule…", "Expire…", "Cancel…", "Repeat…", "keeps no history")

	r.send(q, "first", "p", bridge.Key("customer-7"))
	r.send(q, "second", "p", bridge.Key("customer-7"))
	if err := r.op.MakeReady(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	v.wantMessage(q, "second", "waiting for its key", "customer-7", "message first of it is in flight", "Open first",
		"all messages of this key")
	v.wantMessage(q, "first", "ready in "+q, "no group is on the stream: it waits for one")

	r.Groups("mailer")
	v.wantMessage(q, "first", "nobody reads group mailer", "Unread by mailer")
	entries := r.Take("mailer", "host-1", 1)
	v.wantMessage(q, "first", "pending for mailer", "held by consumer host-1 of group mailer", "Attempt 1 of", "Delivered")

	r.fail("mailer", time.Hour, entries...)
	v.wantMessage(q, "first", "retrying for mailer", "waits for its retry for mailer", "Attempt 2 of",
		"Last error: the partner answered 503")
	page := v.wantMessage(q, "second", "message first of it is in front, and waits for its retry for mailer at")
	lacks(t, page, `name="now"`) // it would still wait for its key

	r.Kill("mailer", lua.ReasonMaxAttempts, "no route", "gone")
	v.wantMessage(q, "gone", "dead for mailer", "its attempts are used up", "Last error: no route", "Redrive", "Purge…")

	r.Policy(map[string]string{policy.SettingRate: "5/s"})
	r.Do("ZADD", r.Keys.Due, "1700000000000", "later")
	v.wantMessage(q, "later", "the queue has a release rate of 5/s: it is due since", "release rate 5/s", "Was due")
	r.Policy(map[string]string{policy.SettingHeld: "1"})
	v.wantMessage(q, "later", "the queue is paused: it is due since", "paused")

	v.wantMessage(q, "unknown", "nowhere", "Searched: queue "+q, "The message is in none of them")
}

// The page of a message that is done must say so, by whom and when, and that its ID is still refused.
func TestMessagePageTellsTheStoryOfADoneMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer([]access.Verb{access.Inspect}, "*")
	r.Policy(map[string]string{policy.SettingHistory: "1000", policy.SettingHistoryAge: "3600000"})
	r.Groups("mailer")
	r.send(r.Queue, "order-42", "p", bridge.In(0), bridge.Dedup(time.Hour))
	r.DrainAll()
	entries := r.Take("mailer", "host-1", 1)
	v.wantMessage(r.Queue, "order-42", "pending for mailer", "Ready, attempt 1")
	if _, err := lua.Ack(t.Context(), r.Client, r.Keys, "mailer", []lua.Held{{Entry: entries[0]}}); err != nil {
		t.Fatal(err)
	}
	page := v.wantMessage(r.Queue, "order-42", "done acknowledged by mailer at", "Acknowledged by mailer",
		"refuses another message with this ID until", "after it was ready")
	if strings.Contains(page, "data-live") || strings.Contains(page, "Repeat") {
		t.Errorf("the page of a done message is kept up to date, or offers to repeat it:\n%s", page)
	}
	v.wantMessage(r.Queue, "order-43", "nowhere", "does not mention this message")
	status, page := v.get("message?id=order-42")
	redistest.Want(t, "status of the search in all queues", status, http.StatusOK)
	if !strings.Contains(words(page), "done acknowledged by mailer at") {
		t.Errorf("the search in all queues does not tell the story:\n%s", words(page))
	}
}

// Without a queue in the address, the page must search the queues that the token may inspect, and no others. If only
// one holds the message, its page is shown.
func TestMessagePageSearchesTheQueuesOfTheToken(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	for _, queue := range []string{"shop.orders", "shop.mails", "secret"} {
		r.send(queue, "everywhere", "p", bridge.In(time.Hour))
	}
	r.send("secret", "hidden", "p", bridge.In(time.Hour))
	r.send("shop.mails", "single", "p", bridge.In(time.Hour))
	v := r.viewer([]access.Verb{access.Inspect}, "shop.*")
	_, page := v.get("message?id=everywhere")
	for _, queue := range []string{"shop.orders", "shop.mails"} {
		if !strings.Contains(page, "queue="+queue) {
			t.Errorf("the page lacks the place in %s:\n%s", queue, words(page))
		}
	}
	for _, address := range []string{"message?id=everywhere", "message?id=hidden", "message?id=hidden&all=1"} {
		if _, page := v.get(address); strings.Contains(page, "secret") {
			t.Errorf("%s shows a queue that the token may not see:\n%s", address, words(page))
		}
	}
	if _, page := v.get("message?id=single"); !strings.Contains(page, "Search all queues") {
		t.Errorf("the viewer is not sent to the only queue with the message:\n%s", words(page))
	}
	if _, page := v.get("message?id=single&all=1"); strings.Contains(page, "Search all queues") {
		t.Errorf("the viewer is sent to one queue, and had asked for all:\n%s", words(page))
	}
	for _, file := range []string{"payload", "message-json"} {
		status, _ := v.get(file + "?queue=secret&id=hidden")
		redistest.Want(t, file+" of a queue that the token may not see", status, http.StatusForbidden)
	}
	status, _ := v.get("payload?id=hidden")
	redistest.Want(t, "payload without a queue", status, http.StatusBadRequest)
	status, text := v.get("message-json?id=everywhere")
	redistest.Want(t, "JSON of all queues", status, http.StatusOK)
	if strings.Contains(text, "secret") || strings.Count(text, `"queue": "shop.`) < 2 {
		t.Errorf("the JSON of a message in several queues:\n%s", text)
	}
	nothing := r.viewer([]access.Verb{access.Inspect}, "nothing.*")
	if status, page := nothing.get("message?id=hidden"); status != http.StatusOK || strings.Contains(page, "secret") {
		t.Errorf("a token without queues: %d\n%s", status, words(page))
	}
	v.wantMessage("shop.secret", "x", "nowhere queue shop.secret: no such queue")
	misspelt := r.viewer([]access.Verb{access.Inspect}, "secre")
	if _, page := misspelt.get(messageAddress("secre", "x")); strings.Contains(page, "secret") {
		t.Errorf("the page suggests a queue that the token may not see:\n%s", words(page))
	}
	r.viewer([]access.Verb{access.Inspect}, "*").wantMessage("secre", "x", "secret")
	status, _ = nothing.get("message-json?id=hidden")
	redistest.Want(t, "JSON for a token without queues", status, http.StatusForbidden)
	if status, page := v.get("message"); status != http.StatusOK || !strings.Contains(page, `name="id"`) {
		t.Errorf("the page without an ID: %d\n%s", status, page)
	}
	if status, page := v.get("message?id=%00"); status != http.StatusBadRequest {
		t.Errorf("the page of an ID that cannot be: %d\n%s", status, page)
	}
}

// stuck is a client on which a script that is called with this key alone never ends.
type stuck struct {
	rueidis.Client
	key string
}

// Do implements rueidis.Client.
func (c stuck) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	words := cmd.Commands()
	if strings.HasPrefix(words[0], "EVAL") && slices.Equal(words[2:4], []string{"1", c.key}) {
		<-ctx.Done()
	}
	return c.Client.Do(ctx, cmd)
}

// If the search takes too long, the page must show the places that were found, and say that there may be more.
func TestMessagePageShowsWhatALongSearchHasFound(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	keys := lua.Keys{}
	r := newRig(t, s, func(cfg *Config) {
		keys = lua.NewKeys(cfg.Prefix, "slow")
		cfg.Redis = &bridge.Redis{Client: stuck{cfg.Redis.Client, keys.Stream}}
		cfg.Timeout = 4 * time.Second
	})
	r.send("slow", "a", "p", bridge.In(time.Hour))
	r.Do("XADD", keys.Stream, "*", "id", "b")
	v := r.viewer(access.Verbs(), "*")
	page := v.wantMessage("slow", "a", "The search took too long", "there may be more places than these",
		"waits for its time", "Refresh")
	if strings.Contains(page, "data-live") {
		t.Errorf("the page of a long search is kept up to date:\n%s", words(page))
	}
	v.wantMessage("slow", "nobody", "The search took too long", "no place was found until then")
}

// However many viewers ask, only a few messages must be searched at the same time.
func TestMessagePageSearchesFewMessagesAtATime(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), func(cfg *Config) { cfg.Timeout = 2 * time.Second })
	v := r.viewer(access.Verbs(), "*")
	for range maxFinds {
		r.dashboard.finds <- struct{}{}
	}
	status, _ := v.get(messageAddress(r.Queue, "a"))
	redistest.Want(t, "status while other messages are searched", status, http.StatusServiceUnavailable)
	<-r.dashboard.finds
	v.wantMessage(r.Queue, "a", "nowhere")
	redistest.Want(t, "searches after the page", len(r.dashboard.finds), maxFinds-1)
}

// After an error of a form, the page must offer to look again, at its own address.
func TestMessagePageAfterAnErrorLeadsToItself(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer(access.Verbs(), "*")
	_, page := v.post("do-message-cancel", url.Values{"queue": {r.Queue}, "id": {"a"}, "do": {"cancel"}})
	if !strings.Contains(page, `<a class="button" href="message?id=a&amp;queue=`+r.Queue+`">Refresh</a>`) {
		t.Errorf("the page does not lead to itself:\n%s", page)
	}
}

// A story must tell no negative wait after a clock was set back, and say when the history begins if it has lost the
// changes of the message.
func TestStoryOfAClockThatWasSetBackAndOfALostHistory(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return time.Date(2031, 1, 1, 0, 0, second, 0, time.UTC) }
	var s messageState
	s.finding.At = at(30)
	s.story.Changes = []admin.Change{
		{At: at(10), Event: admin.EventScheduled}, {At: at(5), Event: admin.EventReady, By: "client web-1 4711"},
		{Event: admin.EventDead}, {At: at(20), Event: admin.EventRedriven},
	}
	for i, one := range s.Story() {
		redistest.Want(t, fmt.Sprint("wait before change ", i), one.Wait, 0)
	}
	redistest.Want(t, "author", s.Story()[1].Facts[0].Value, "a client on web-1, process 4711")
	redistest.Want(t, "author of another form", authorText("cron"), "cron")
	s.story.Since = at(20)
	s.finding.History = []admin.Moment{{At: at(10), What: admin.MomentDead}, {At: at(40), What: admin.MomentExpires}}
	redistest.Want(t, "the history begins after the last change", s.HistoryBegins(), at(20))
	s.finding.History[0].At = at(25)
	redistest.Want(t, "the history begins before the last change", s.HistoryBegins().IsZero(), true)
}
