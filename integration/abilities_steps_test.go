package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/bridge/gateway"
	"github.com/duestream/duestream/bridge/once"
	"github.com/duestream/duestream/bridge/push"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// The functions of this file do what the abilities in the table of docs/operations/users.md name. They fail the test if
// the server denies something to the user.

// asPlain sends commands as the user, one by one on one connection, as a client without our SDK does.
func (a *asUser) asPlain(commands ...[]string) {
	a.t.Helper()
	c, free := a.redis.Client.Dedicate()
	defer free()
	for _, words := range commands {
		if err := c.Do(a.t.Context(), c.B().Arbitrary(words...).Build()).Error(); err != nil {
			a.t.Fatalf("%v: %v", words, err)
		}
	}
}

func (a *asUser) plainSchedule(id string) {
	k, g := a.keys(id), lua.NewGlobals(a.prefix)
	a.asPlain([]string{"HSETNX", g.Queues, a.queue, "1"}, []string{"HGET", g.Queues, a.queue}, []string{"TIME"},
		[]string{"MULTI"},
		[]string{"HSET", k.Payload, id, "x"}, []string{"HSET", k.Meta, id, `{"h:a":"b"}`}, []string{"ZADD", k.Due, "1", id},
		[]string{"XADD", k.Wake, "MAXLEN", "1", "*", "due_ms", "1"}, []string{"EXEC"},
		[]string{"XADD", g.Wake, "MAXLEN", "1", "*", "queues", "1"})
}

func plainCancel(a *asUser) {
	k := a.keys("m")
	a.feedLater("m")
	a.asPlain([]string{"ZSCORE", k.Due, "m"}, []string{"MULTI"}, []string{"ZREM", k.Due, "m"},
		[]string{"HDEL", k.Payload, "m"},
		[]string{"HDEL", k.Meta, "m"}, []string{"ZREM", k.Seen, "m"}, []string{"EXEC"})
	a.awaitEmpty()
}

// plainRead reads an entry as the user, and returns its stream and ID.
func (a *asUser) plainRead(id string) (stream, entry string) {
	stream = a.keys(id).Stream
	a.asPlain([]string{"HGETALL", a.keys(id).Policy}, []string{"HGETALL", lua.NewGlobals(a.prefix).Defaults})
	a.eventually(func() (bool, string) {
		read := a.redis.Client.B().Arbitrary("XREADGROUP", "GROUP", abilityGroup, "c", "COUNT", "1", "STREAMS", stream,
			">").Build()
		got, err := a.redis.Client.Do(a.t.Context(), read).AsXRead()
		if err != nil || len(got[stream]) == 0 {
			return false, fmt.Sprint("nothing to read: ", err)
		}
		entry = got[stream][0].ID
		return true, ""
	})
	return stream, entry
}

func plainReceive(a *asUser) {
	k, g := a.keys("m"), lua.NewGlobals(a.prefix)
	a.asPlain(
		[]string{"HSETNX", g.Queues, a.queue, "1"},
		[]string{"XADD", g.Wake, "MAXLEN", "1", "*", "queues", "1"},
		[]string{"XGROUP", "CREATE", k.Stream, "another", "0", "MKSTREAM"},
		[]string{"HMGET", k.Policy, "visibility_ms"},
		[]string{"HGET", g.Defaults, "visibility_ms"},
	)
	a.do("XGROUP", "DESTROY", k.Stream, "another")
	a.feed("m")
	stream, entry := a.plainRead("m")
	a.asPlain([]string{"XACK", stream, abilityGroup, entry})
	a.awaitEmpty()
}

func plainExtend(a *asUser) {
	a.feed("m")
	stream, entry := a.plainRead("m")
	a.asPlain([]string{"XCLAIM", stream, abilityGroup, "c", "0", entry, "JUSTID"},
		[]string{"XACK", stream, abilityGroup, entry})
	a.awaitEmpty()
}

func sendBatch(a *asUser) {
	var batch []bridge.NewMessage
	for _, id := range manyNames(40) {
		batch = append(batch, bridge.NewMessage{ID: id, Headers: map[string]string{"a": "b"}})
	}
	results, err := a.client().ScheduleBatch(a.t.Context(), a.queue, batch)
	for _, r := range results {
		err = errors.Join(err, r.Err)
	}
	a.must(err)
	a.awaitDelivered(manyNames(40)...)
}

// sendOnce sends a message with a dedup window, and sends it again in the window.
func sendOnce(a *asUser) {
	a.send("m", bridge.Dedup(time.Minute))
	a.awaitDelivered("m")
	_, err := a.client().Schedule(a.t.Context(), a.queue, nil, bridge.WithID("m"), bridge.Dedup(time.Minute))
	if !errors.Is(err, bridge.ErrDuplicate) {
		a.t.Error(err)
	}
}

func sendKeyed(a *asUser, client *bridge.Client) {
	for i := range 5 {
		_, err := client.Schedule(a.t.Context(), a.queue, nil, bridge.WithID(fmt.Sprint("m", i)), bridge.Key("customer"))
		a.must(err)
	}
	a.awaitDelivered(manyNames(5)...)
}

// replaceScheduled replaces a scheduled message by one that is due soon.
func replaceScheduled(a *asUser) {
	a.send("m", bridge.In(time.Hour))
	a.send("m", bridge.Replace, bridge.In(10*time.Millisecond))
	a.awaitDelivered("m")
}

// sendAndCancel schedules a message for an hour from now, and cancels it.
func (a *asUser) sendAndCancel(id string, options ...bridge.Option) {
	a.send(id, append(options, bridge.In(time.Hour))...)
	a.must(a.client().Cancel(a.t.Context(), a.queue, id))
	a.awaitEmpty()
}

// cancelKeyed cancels a message that waits for its ordering key, which another message holds.
func cancelKeyed(a *asUser) {
	hold := make(chan struct{})
	handled := a.startWorker(a.admin, func(m *bridge.Message) error {
		if m.ID == "first" {
			<-hold
		}
		return nil
	})
	a.send("first", bridge.Key("k"))
	a.send("second", bridge.Key("k"))
	keys := a.keys("k") // an ordering key belongs to a partition as an ID does, and its messages are all there
	a.eventually(func() (bool, string) {
		return a.count("ZCOUNT", keys.Due, lua.ParkedFrom, lua.ParkedTo) == 1, "the second message does not wait"
	})
	a.must(a.client().Cancel(a.t.Context(), a.queue, "second"))
	close(hold)
	a.await(handled, "first")
	a.awaitEmpty()
}

// makeRetryWait makes a retry of a message that is due in an hour. A later attempt succeeds.
func (a *asUser) makeRetryWait(id string) {
	a.feed(id)
	a.startWorker(a.admin, func(m *bridge.Message) error {
		if m.Attempt == 1 {
			return bridge.RetryAfter(time.Hour, errors.New("later"))
		}
		return nil
	})
	halfAnHour := fmt.Sprint(time.Now().Add(30 * time.Minute).UnixMilli()) // nothing else in the schedule is due after it
	a.eventually(func() (bool, string) {
		return a.count("ZCOUNT", a.keys(id).Due, halfAnHour, "+inf") == 1, "no retry waits"
	})
}

func cancelRetry(a *asUser) {
	a.makeRetryWait("m")
	a.must(a.client().Cancel(a.t.Context(), a.queue, "m", bridge.Retries()))
	a.awaitEmpty()
}

func moveScheduled(a *asUser) {
	a.send("m", bridge.In(time.Hour))
	_, err := a.client().Reschedule(a.t.Context(), a.queue, "m", bridge.In(10*time.Millisecond))
	a.must(err)
	a.awaitDelivered("m")
}

func moveRetry(a *asUser) {
	a.makeRetryWait("m")
	_, err := a.client().Reschedule(a.t.Context(), a.queue, "m", bridge.In(10*time.Millisecond), bridge.Retries())
	a.must(err)
	a.awaitEmpty()
}

func cancelRunning(a *asUser) {
	client := a.client()
	a.send("m")
	a.send("later", bridge.In(time.Hour))
	done, err := client.CancelRunning(a.t.Context(), a.queue, "", "m", "later")
	a.must(err)
	for _, one := range done {
		if one.Verdict != bridge.VerdictCancelled {
			a.t.Errorf("%+v", one)
		}
	}
}

func recurInGo(a *asUser) {
	client, ctx := a.client(), a.t.Context()
	_, err := client.Recur(ctx, bridge.Recurrence{Queue: a.queue, Name: "tick", Every: time.Hour, Payload: []byte("x"),
		Headers: map[string]string{"a": "b"}})
	a.must(err)
	states, err := client.Recurrences(ctx, a.queue)
	if err != nil || len(states) != 1 {
		a.t.Fatal(states, err)
	}
	a.must(client.PauseRecurrence(ctx, a.queue, "tick"))
	a.must(client.ResumeRecurrence(ctx, a.queue, "tick"))
	receipt, err := client.RunRecurrence(ctx, a.queue, "tick")
	a.must(err)
	a.awaitDelivered(receipt.ID)
	a.must(client.RemoveRecurrence(ctx, a.queue, "tick"))
}

func recurByCommand(a *asUser) {
	file := filepath.Join(a.t.TempDir(), "recurrences.yaml")
	a.must(os.WriteFile(file, []byte("owner: us\nrecurrences:\n  - {queue: "+a.queue+", name: tock, every: 1h}\n"), 0o600))
	a.command("recur", "add", a.queue, "tick", "--every", "1h", "x")
	a.command("recur", "list", a.queue)
	a.command("recur", "list")
	a.command("recur", "show", a.queue, "tick")
	a.command("recur", "pause", a.queue, "tick")
	a.command("recur", "resume", a.queue, "tick")
	a.command("recur", "run", a.queue, "tick")
	a.command("recur", "rm", a.queue, "tick")
	a.command("recur", "apply", "--file", file)
}

// extendLong handles a message for longer than the visibility timeout. The worker must extend the delivery, so that
// there is only one attempt.
func extendLong(a *asUser) {
	attempts := make(chan int, 100)
	a.work(func(m *bridge.Message) error {
		attempts <- m.Attempt
		<-time.After(1500 * time.Millisecond) // longer than the visibility timeout
		return nil
	})
	a.feed("m")
	a.awaitEmpty()
	if first := <-attempts; first != 1 || len(attempts) > 0 {
		a.t.Errorf("attempt %d first, and %d more", first, len(attempts))
	}
}

// keepOrder handles messages of one ordering key, of which one fails at first. They must be handled in their order.
func keepOrder(a *asUser) {
	fail := failOnce()
	handled := a.work(func(m *bridge.Message) error {
		if m.ID == "m1" {
			return fail(errors.New("once more"))(m)
		}
		return nil
	})
	client, begin := a.clientOf(a.admin), time.Now()
	for i, id := range manyNames(5) {
		_, err := client.Schedule(a.t.Context(), a.queue, nil, bridge.WithID(id), bridge.Key("k"),
			bridge.At(begin.Add(time.Duration(i)*time.Millisecond)))
		a.must(err)
	}
	for _, want := range manyNames(5) {
		select {
		case got := <-handled:
			if got != want {
				a.t.Errorf("%s was handled, want %s", got, want)
			}
		case <-time.After(30 * time.Second):
			a.t.Fatalf("%s was not handled", want)
		}
	}
	a.awaitEmpty()
}

// healGroup deletes the group. The worker must create it again.
func healGroup(a *asUser) {
	for _, partition := range a.partitions() {
		a.do("XGROUP", "DESTROY", lua.NewKeys(a.prefix, partition).Stream, abilityGroup)
	}
	handled := a.work(nil)
	a.feed("m")
	a.await(handled, "m")
}

func shareRate(a *asUser) {
	handled := a.startWorker(a.redis, nil, func(c *bridge.WorkerConfig) { c.GroupRate, c.GroupBurst = "1000/s", 1 })
	ids := manyNames(5)
	a.feed(ids...)
	a.await(handled, ids...)
}

func recordEffect(a *asUser) {
	o, err := once.NewRedis(once.RedisConfig{Redis: a.redis, Prefix: a.prefix})
	a.must(err)
	for _, called := range []bool{true, false} {
		got, err := o.Do(a.t.Context(), &bridge.Message{ID: "m", Queue: a.queue, Group: abilityGroup},
			func(context.Context, int64) error { return nil })
		a.must(err)
		redistest.Want(a.t, "called", got, called)
	}
}

// post runs the push runner as the user, and waits until it has posted five messages to a server of this test.
func post(a *asUser, target push.Target) {
	arrived := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		arrived <- string(body)
	}))
	a.t.Cleanup(server.Close)
	target.Queue, target.Group, target.URL, target.AllowHTTP = a.queue, abilityGroup, server.URL, true
	target.Networks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	_, err := a.op.SetPushTarget(a.t.Context(), target)
	a.must(err)
	runner, err := push.NewRunner(push.Config{Redis: a.redis, Prefix: a.prefix, LookInterval: 50 * time.Millisecond})
	a.must(err)
	(&stack{t: a.t}).run("runner", runner.Run)
	ids := manyNames(5)
	a.feed(ids...)
	for range ids {
		select {
		case <-arrived:
		case <-time.After(30 * time.Second):
			a.t.Fatalf("not all is posted: %v", runner.Ready())
		}
	}
	a.awaitEmpty()
}

func postAtRate(a *asUser) { post(a, push.Target{Rate: "50/s", Burst: 1}) }

// ownBridge gives the fixture a new prefix that no other bridge serves, and runs a bridge as the user there.
func (a *asUser) ownBridge() {
	a.t.Helper()
	prefix := a.server.Prefix(a.t)
	words := strings.Fields(strings.ReplaceAll(a.users[a.user].Line, "~duestream:", "~"+prefix+":"))
	words[2] = a.login // the line is ACL SETUSER <name> …: it gives this user the rights for the new prefix
	a.must(a.do(words...).Error())
	own := *a.guests // a copy, because the fixtures of other users share the original with the old prefix
	own.prefix = prefix
	a.guests, a.op = &own, redistest.Must(admin.New(a.admin, prefix))
	a.settings(a.queue)
	_, err := lua.RegisterCounts(a.t.Context(), a.admin.Client, lua.NewGlobals(prefix),
		map[string]lua.Counts{a.queue: grownCounts})
	a.must(err)
	_, err = bridge.CreateGroup(a.t.Context(), a.admin, prefix, a.queue, abilityGroup)
	a.must(err)
	b, err := bridge.NewBridge(bridge.Config{Redis: a.redis, Prefix: prefix, AnyServer: true, Defaults: quick()})
	a.must(err)
	(&stack{t: a.t}).run("bridge", b.Run)
}

func bridgeDrains(a *asUser) {
	a.ownBridge()
	_, err := a.clientOf(a.admin).Schedule(a.t.Context(), a.queue, nil, bridge.WithID("m"), bridge.In(50*time.Millisecond),
		bridge.Key("k"))
	a.must(err)
	a.awaitDelivered("m")
}

func bridgePlans(a *asUser) {
	a.ownBridge()
	_, err := a.clientOf(a.admin).Recur(a.t.Context(), bridge.Recurrence{Queue: a.queue, Name: "tick", Every: time.Second,
		Overlap: bridge.OverlapSkip})
	a.must(err)
	handled := a.startWorker(a.admin, nil)
	for range 3 {
		select {
		case <-handled:
		case <-time.After(30 * time.Second):
			a.t.Fatal("three occurrences do not come")
		}
	}
	a.must(a.clientOf(a.admin).RemoveRecurrence(a.t.Context(), a.queue, "tick"))
	a.awaitEmpty()
}

// sendAndAbandon schedules a message as an administrator, and reads it with a consumer that never comes back.
func (a *asUser) sendAndAbandon(id string, options ...bridge.Option) {
	_, err := a.clientOf(a.admin).Schedule(a.t.Context(), a.queue, nil, append(options, bridge.WithID(id))...)
	a.must(err)
	a.eventually(func() (bool, string) {
		for _, partition := range a.partitions() {
			stream := lua.NewKeys(a.prefix, partition).Stream
			read, err := a.do("XREADGROUP", "GROUP", abilityGroup, "gone", "COUNT", "1", "STREAMS", stream, ">").AsXRead()
			if err == nil && len(read[stream]) == 1 {
				return true, ""
			}
		}
		return false, "nothing to read"
	})
}

func bridgeReclaims(a *asUser) {
	a.ownBridge()
	a.sendAndAbandon("m")
	a.awaitDelivered("m")
}

// bridgePassesOn acknowledges the only message that holds an ordering key with plain XACK. The bridge must notice it
// and pass the key on to the next message.
func bridgePassesOn(a *asUser) {
	a.ownBridge()
	a.sendAndAbandon("first", bridge.Key("k"))
	_, err := a.clientOf(a.admin).Schedule(a.t.Context(), a.queue, nil, bridge.WithID("second"), bridge.Key("k"))
	a.must(err)
	for _, partition := range a.partitions() { // XACK of the only entry, in whichever partition it is
		stream := lua.NewKeys(a.prefix, partition).Stream
		if entries, _ := a.do("XRANGE", stream, "-", "+").AsXRange(); len(entries) == 1 {
			a.do("XACK", stream, abilityGroup, entries[0].ID)
		}
	}
	a.awaitDelivered("second")
}

// bridgeTrims reads a message with NOACK, so that no acknowledgement deletes its entry. The bridge must trim it.
func bridgeTrims(a *asUser) {
	a.ownBridge()
	a.feed("m")
	a.eventually(func() (bool, string) {
		stream := a.keys("m").Stream
		read, err := a.do("XREADGROUP", "GROUP", abilityGroup, "c", "NOACK", "COUNT", "1", "STREAMS", stream, ">").AsXRead()
		return err == nil && len(read[stream]) == 1, "nothing to read"
	})
	a.awaitEmpty()
}

// bridgeFinds writes keys of a queue that is not in the registry: a payload without a message, and a message without a
// payload. The bridge must find the queue by its keys, and make the message ready.
func bridgeFinds(a *asUser) {
	a.ownBridge()
	k := lua.NewKeys(a.prefix, "stranger")
	a.do("HSET", k.Payload, "orphan", "x")
	a.do("ZADD", k.Due, "1", "m")
	a.eventually(func() (bool, string) { return a.count("XLEN", k.Stream) == 1, "the bridge does not find the queue" })
}

// web is a gateway that runs as the user.
type web struct {
	*asUser
	base, token string
}

// overHTTP runs a gateway as the user, and does the steps with a token that allows everything.
func overHTTP(a *asUser, steps ...func(w *web)) {
	store, err := access.Open(access.Config{Client: a.redis.Client, Prefix: a.prefix})
	a.must(err)
	g, err := gateway.New(gateway.Config{Redis: a.redis, Prefix: a.prefix, Access: store})
	a.must(err)
	go func() { _ = g.Run(context.Background()) }() // until Close
	a.t.Cleanup(func() { _ = g.Close() })
	// The duestream command calls First when it starts a gateway, so the gateway's user must be allowed to make a
	// token.
	_, err = store.First(a.t.Context())
	a.must(err)
	secret, err := a.op.AddToken(a.t.Context(), admin.Token{Name: a.login, Verbs: access.Verbs(), Queues: []string{"*"},
		Rate: "1000/s"})
	a.must(err)
	server := httptest.NewServer(g.Handler())
	a.t.Cleanup(server.Close)
	w := &web{a, server.URL + "/v1", secret}
	for _, step := range steps {
		step(w)
	}
}

// ask sends a request that must succeed, and returns the body of the response.
func (w *web) ask(method, path, body string) string {
	w.t.Helper()
	request, err := http.NewRequestWithContext(w.t.Context(), method,
		w.base+strings.ReplaceAll(path, "{q}", "/queues/"+w.queue),
		strings.NewReader(body))
	w.must(err)
	request.Header.Set("Authorization", "Bearer "+w.token)
	switch {
	case strings.HasSuffix(path, "/batch"):
		request.Header.Set("Content-Type", "application/x-ndjson")
	case strings.HasSuffix(path, "/settlements"):
		request.Header.Set("Content-Type", "application/json")
	}
	answer, err := http.DefaultClient.Do(request)
	w.must(err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode >= http.StatusBadRequest {
		w.t.Fatalf("%s %s: %d %s (%v)", method, path, answer.StatusCode, text, err)
	}
	return string(text)
}

func publishHTTP(w *web) {
	w.ask("POST", "{q}/messages?id=m", "x")
	w.ask("POST", "{q}/messages?id=keyed&key=k&dedup_ms=60000", "x")
	w.ask("POST", "{q}/batch", `{"id":"b","payload":"x"}`+"\n")
}

func publishAndReceive(a *asUser) { overHTTP(a, publishHTTP, receiveHTTP) }

func changeHTTP(w *web) {
	w.ask("POST", "{q}/messages?id=m&in_ms=600000&key=k", "x")
	w.ask("PATCH", "{q}/messages/m?in_ms=700000", "")
	w.ask("DELETE", "{q}/messages/m", "")
	w.awaitEmpty()
}

// receiveHTTP receives the three messages of publishHTTP, and extends and acknowledges each.
func receiveHTTP(w *web) {
	for range 3 {
		w.eventually(func() (bool, string) {
			got := w.ask("POST", "{q}/deliveries?wait_ms=2000&group="+abilityGroup, "")
			_, token, ok := strings.Cut(got, `"token":"`)
			token, _, _ = strings.Cut(token, `"`)
			if !ok {
				return false, got
			}
			w.ask("POST", "/settlements", `[{"token":"`+token+`","outcome":"extend"}]`)
			w.ask("POST", "/settlements", `[{"token":"`+token+`"}]`)
			return true, ""
		})
	}
	w.awaitEmpty()
}

func lookHTTP(w *web) {
	for _, path := range []string{"/queues", "/messages/m", "{q}/stats", "{q}/forecast", "{q}/schedule",
		"{q}/pending?group=" + abilityGroup,
		"{q}/consumers?group=" + abilityGroup, "{q}/policy", "{q}/messages/m"} {
		w.ask("GET", path, "")
	}
}

// makeDeadLetters schedules these messages as an administrator, and makes a dead letter of each.
func (a *asUser) makeDeadLetters(ids ...string) {
	a.feed(ids...)
	a.startWorker(a.admin, func(m *bridge.Message) error {
		if slices.Contains(ids, m.ID) {
			return bridge.DeadLetter(errors.New("no good"))
		}
		return nil
	})
	a.eventually(func() (bool, string) {
		n := a.total("XLEN", func(k lua.Keys) string { return k.Dead })
		return n == int64(len(ids)), fmt.Sprint(n, " dead letters")
	})
}

func lettersHTTP(w *web) {
	w.makeDeadLetters("m", "n")
	w.ask("GET", "{q}/dead", "")
	w.ask("POST", "{q}/dead/redrive?all=true&in_ms=600000", "")
	w.ask("GET", "{q}/schedule", "")
}

// searchHTTP searches each state, and carries out each action. Two groups read the stream, and one holds an entry.
func searchHTTP(w *web) {
	w.makeDeadLetters("m", "n", "o")
	w.ask("POST", "{q}/messages?id=held", "red")
	w.ask("POST", "{q}/deliveries?wait_ms=2000&group=another", "")
	w.ask("POST", "{q}/messages?id=later&in_ms=600000&key=k", "red")
	w.ask("POST", "{q}/messages?id=expires&in_ms=600000", "red")
	run := func(path, body, says string) {
		w.t.Helper()
		body = strings.ReplaceAll(body, "{q}", w.queue)
		if got := w.ask("POST", path, body); !strings.Contains(got, says) || !strings.Contains(got, `"complete":true`) {
			w.t.Errorf("%s %s answers %s", path, body, got)
		}
	}
	run("/search", `{"filter":{"queues":["{q}"],"text":"red","headers":{}}}`, `"later"`)
	run("/search", `{"filter":{"queues":["{q}"],"error":"no good"}}`, `"dead"`)
	const filter = `"filter":{"queues":["{q}"],"text":"red","ids":`
	run("/act", `{"action":"reschedule",`+filter+`["later"]},"in_ms":700000}`, `"changed":1`)
	run("/act", `{"action":"expire",`+filter+`["expires"]}}`, `"changed":1`)
	run("/act", `{"action":"cancel",`+filter+`["held","later"]}}`, `"complete"`)
	run("/act", `{"action":"redrive","filter":{"queues":["{q}"],"ids":["m"]},"in_ms":600000}`, `"changed":1`)
	run("/act", `{"action":"purge","filter":{"queues":["{q}"],"ids":["n"]}}`, `"changed":1`)
}

func recurrencesHTTP(w *web) {
	w.ask("PUT", "{q}/recurrences/tick", `{"every_ms":3600000,"payload":"x"}`)
	w.ask("GET", "{q}/recurrences", "")
	w.ask("GET", "{q}/recurrences/tick", "")
	w.ask("POST", "{q}/recurrences/tick/pause", "")
	w.ask("POST", "{q}/recurrences/tick/resume", "")
	w.ask("POST", "{q}/recurrences/tick/run", "")
	w.ask("DELETE", "{q}/recurrences/tick", "")
}

func settingsHTTP(w *web) {
	w.ask("PATCH", "{q}/policy", `{"max_attempts":5,"rate":"50/s"}`)
	w.ask("POST", "{q}/pause?workers=true", "")
	w.ask("POST", "{q}/resume", "")
}

func operatorLooks(a *asUser) {
	a.feedLater("m")
	a.makeDeadLetters("d")
	for _, words := range []string{"stats", "stats Q", "forecast Q", "find m", "show Q m", "peek Q",
		"pending Q " + abilityGroup, "consumers Q",
		"story d", "dead list Q", "dead list Q --summary", "queue show Q", "push list", "recur list", "token list",
		"health"} {
		a.command(strings.Fields(strings.ReplaceAll(words, "Q", a.queue))...)
	}
}

func operatorSets(a *asUser) {
	a.command("queue", "set", a.queue, "rate=50/s", "history=10")
	a.command("pause", a.queue)
	a.command("resume", a.queue)
	a.command("queue", "partitions", a.queue, "8")
}

func operatorLetters(a *asUser) {
	a.makeDeadLetters("m", "n")
	a.command("dead", "redrive", a.queue, "--all", "--in", "1h")
	a.command("bulk", "expire", a.queue, "--all")
}

func operatorMoves(a *asUser) {
	a.feed("m")
	a.feedLater("keyed", bridge.Key("k"))
	file := filepath.Join(a.t.TempDir(), "export")
	a.must(os.WriteFile(file, []byte(a.command("export", a.queue)), 0o600))
	a.command("import", a.queue+"-copy", file)
}

func operatorBulk(a *asUser) {
	a.feedLater("m", bridge.Key("k"))
	a.command("bulk", "reschedule", a.queue, "--all", "--in", "2h")
	a.command("bulk", "cancel", a.queue, "--all", "--yes")
	a.awaitEmpty()
}

func operatorSearches(a *asUser) {
	a.makeDeadLetters("m", "n")
	a.feedLater("later", bridge.Key("k"))
	a.feedLater("moved")
	a.command("search", a.queue, "--text", "x", "--header", "a=b")
	a.command("search", a.queue, "--error", "no good")
	a.command("act", "reschedule", a.queue, "--id", "moved", "--in", "2h")
	a.command("act", "expire", a.queue, "--id", "moved")
	a.command("act", "cancel", a.queue, "--id", "later", "--yes")
	a.command("act", "redrive", a.queue, "--id", "m", "--in", "1h")
	a.command("act", "purge", a.queue, "--id", "n", "--yes")
}

func operatorLoads(a *asUser) {
	a.command("functions", "load", "--force")
	a.command("functions", "show")
}

func operatorDeletes(a *asUser) {
	a.feed("m")
	a.command("queue", "delete", a.queue, "--force", "--yes")
	if n := a.count("EXISTS", a.keys("m").Stream, a.keys("").Policy); n != 0 {
		a.t.Errorf("%d keys are left", n)
	}
}

// examineAs runs the doctor as the user. Its findings name what was denied to it (NOPERM).
func examineAs(a *asUser) {
	a.feed("m")
	a.makeDeadLetters("d")
	ctx := context.WithoutCancel(a.t.Context())
	report, err := redistest.Must(admin.New(a.redis, a.prefix)).Doctor(ctx, doctor.Config{})
	a.must(err)
	// Two rows of the table "Also needed" grant these commands. The doctor works without them. a.also is the row that
	// this user has in addition: that for functions, or none.
	a.optional = []string{"config|get", "function|list"}
	for _, f := range report.Findings {
		for _, example := range f.Examples {
			missing := strings.Contains(example, "NOPERM")
			optional := slices.ContainsFunc(a.optional, func(what string) bool {
				return strings.Contains(example, "'"+what+"'")
			})
			if missing && !optional {
				a.t.Error(example)
			}
			if missing && a.also != "" && strings.Contains(example, "function") {
				a.t.Errorf("with the row for functions: %s", example)
			}
		}
	}
}
