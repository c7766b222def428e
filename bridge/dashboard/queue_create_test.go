package dashboard

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// place returns the only place of a message of the rig's queue.
func (r *rig) place(id string) admin.Sighting {
	r.T.Helper()
	found, err := r.op.Find(r.T.Context(), id, admin.FindOptions{Queues: []string{r.Queue}})
	if err != nil || len(found.Places) != 1 {
		r.T.Fatalf("message %q has %d places: %v", id, len(found.Places), err)
	}
	return found.Places[0]
}

// A message that the form creates must be in Redis with everything that was typed.
func TestCreateAMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	for name, verbs := range map[string][]access.Verb{"operator": operate, "publisher": publish} {
		v := r.viewer(verbs, r.Queue)
		_, text := v.get("queue?queue=" + r.Queue + "&tab=create")
		contains(t, text, `action="do-queue-create"`, "In UTC.")
		base, err := url.Parse(v.base)
		if err != nil {
			t.Fatal(err)
		}
		v.http.Jar.SetCookies(base, []*http.Cookie{{Name: zoneCookie, Value: "Europe/Berlin"}})
		status, text := v.post("do-queue-create", url.Values{
			"queue": {r.Queue}, "id": {name}, "at": {"2031-07-01T12:00"}, "kind": {"json"}, "key": {"tenant"},
			"payload": {"{\r\n \"n\": 9007199254740993}"}, "headers": {"trace: a:b\r\n\r\n  lang:de"},
			"expires_at": {"2031-07-02T12:00:30"}, "dedup": {"1h"}, "max_attempts": {"4"}, "retry_delays": {"1m,3m"},
			"retry_for": {"1d"}, "max_snoozes": {"5"}, "max_crashes": {"6"}, "handler_timeout": {"10s"},
		})
		redistest.Want(t, name+": status", status, http.StatusOK)
		contains(t, text, "Message "+name+" is scheduled.")
		p := r.place(name)
		redistest.Want(t, "payload", string(p.Payload), "{\n \"n\": 9007199254740993}")
		redistest.Want(t, "due", p.Due.UTC(), time.Date(2031, 7, 1, 10, 0, 0, 0, time.UTC))
		redistest.Want(t, "expires", p.Expires.UTC(), time.Date(2031, 7, 2, 10, 0, 30, 0, time.UTC))
		redistest.Want(t, "key", p.Key, "tenant")
		redistest.Want(t, "max attempts", p.MaxAttempts, 4)
		redistest.Want(t, "headers", headerText(p.Headers), "lang: de\ntrace: a:b")
		meta := r.Do("HGET", r.Keys.Meta, name)
		stored, err := meta.ToString()
		redistest.Want(t, "error", err, nil)
		contains(t, stored, `"60000,180000"`, `86400000`, `10000`)
		status, text = v.post("do-queue-create", url.Values{"queue": {r.Queue}, "id": {name}, "in": {"1h"}})
		redistest.Want(t, name+": status of a second message with the ID", status, http.StatusConflict)
		contains(t, text, `id="fault-id"`, "the ID is remembered until", `value="`+name+`"`, `value="1h"`)
	}
	v := r.viewer(publish, r.Queue)
	status, text := v.post("do-queue-create", url.Values{"queue": {r.Queue}, "id": {"operator"}, "in": {"2h"},
		"replace": {"replace"}, "payload": {"new"}})
	redistest.Want(t, "status of replacing", status, http.StatusOK)
	contains(t, text, "replaced the scheduled one")
	redistest.Want(t, "payload after replacing", string(r.place("operator").Payload), "new")
	status, _ = v.post("do-queue-create", url.Values{"queue": {r.Queue}, "id": {"bytes"}, "in": {"1h"}, "kind": {"base64"},
		"payload": {"AAH\n/"}})
	redistest.Want(t, "status of bytes", status, http.StatusOK)
	redistest.Want(t, "payload in base64", string(r.place("bytes").Payload), "\x00\x01\xff")
}

// A fault of the form must stand beside its field, what was typed must stay, and no message must be stored.
func TestWrongMessagesKeepTheForm(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(publish, r.Queue)
	for _, c := range []struct {
		field, typed, fault string
		with                url.Values
	}{
		{"id", strings.Repeat("x", 257), "must be at most 256 bytes", nil},
		{"id", "a\x01b", "must not hold control characters", nil},
		{"in", "soon", "must be a duration", nil},
		{"in", "4000d", "must be between 0 and 3650d", nil},
		{"at", "tomorrow", "must be a date and a time", nil},
		{"at", "2031-01-01T00:00", "must be empty if a delay is given", url.Values{"in": {"1h"}}},
		{"at", "1999-01-01T00:00", "must be between 2001-09-09", nil},
		{"payload", "{", "is not JSON", url.Values{"kind": {"json"}}},
		{"payload", "???", "is not base64", url.Values{"kind": {"base64"}}},
		{"payload", "x", "must be text, json, base64 or same", url.Values{"kind": {"other"}}},
		{"headers", "no colon", "must be a line with a new name: value", nil},
		{"headers", "a: 1\na: 2", "must be a line with a new name: value", nil},
		{"headers", `{"a": 1}`, "must be an object of strings", nil},
		{"key", strings.Repeat("k", 257), "must be at most 256 bytes", nil},
		{"expires_in", "1s", "must be", url.Values{"in": {"1h"}}},
		{"expires_at", "2030-01-01T00:00", "must be after the due time", url.Values{"at": {"2031-01-01T00:00"}}},
		{"expires_at", "2020-01-01T00:00", "must be after the due time", url.Values{"in": {"1h"}}},
		{"dedup", "1h", "needs an ID", nil},
		{"replace", "later", "needs an ID", nil},
		{"max_attempts", "0", "must be a whole number from 1", nil},
		{"retry_delays", "1x", "must be delays separated by commas", nil},
		{"retry_for", hostileText, "must be a duration", nil},
		{"max_snoozes", "1000001", "must be a whole number from 1 to 1000000", nil},
		{"max_crashes", "1.5", "must be a whole number", nil},
		{"handler_timeout", "-1s", "must be between 0", nil},
		{"spread", "-1s", "must be between 0", nil},
	} {
		form := url.Values{"queue": {r.Queue}, c.field: {c.typed}}
		for name, values := range c.with {
			form[name] = values
		}
		if c.field != "headers" {
			form.Set("headers", "kept: <i>value</i>")
		}
		status, text := v.post("do-queue-create", form)
		redistest.Want(t, c.field+" "+c.typed, status, http.StatusBadRequest)
		contains(t, text, `id="fault-`+c.field+`"`, c.fault)
		if c.field != "headers" {
			contains(t, text, "kept: &lt;i&gt;value&lt;/i&gt;</textarea>")
		}
		lacks(t, text, "<script>alert", "<i>value")
	}
	redistest.Want(t, "scheduled messages", r.Number("ZCARD", r.Keys.Due), 0)
}

// A repeated message must have the same payload, headers and key, whatever bytes they hold, and an ID of its own.
func TestRepeatAMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer(publish, r.Queue)
	large := strings.Repeat("0123456789abcdef", maxPrefilled/16+1)
	for name, payload := range map[string]string{
		"text": "\nfirst line\n  <b>&amp;\n", "json": `{"n": 12345678901234567890}`, "returns": "a\r\nb\rc",
		"bytes": "\x00\xff",
		"empty": "", "large": large, "</textarea>": "</textarea>" + hostileText,
	} {
		headers := bridge.Header("a:b", " two\nlines ")
		if name == "text" {
			headers = bridge.Header("trace", "1: 2")
		}
		_, err := r.client.Schedule(t.Context(), r.Queue, []byte(payload), bridge.WithID(name), bridge.In(time.Hour), headers,
			bridge.Key("k"), bridge.MaxAttempts(7))
		if err != nil {
			t.Fatal(err)
		}
		_, text := v.get("queue?queue=" + r.Queue + "&tab=create&from=" + url.QueryEscape(name))
		lacks(t, text, "<script>alert", "<b>&")
		form := hiddenFields(t, text, "do-queue-create")
		form.Set("from", name)
		form.Set("in", "2h")
		form.Set("id", "again "+name)
		kind := kindOf([]byte(payload))
		form.Set("kind", kind)
		contains(t, text, `<option value="`+kind+`" selected>`, `value="7"`, `value="k"`)
		switch kind {
		case payloadBase64:
			form.Set("payload", base64.StdEncoding.EncodeToString([]byte(payload)))
			contains(t, text, form.Get("payload"))
		case payloadText, payloadJSON:
			form.Set("payload", strings.ReplaceAll(payload, "\n", "\r\n")) // as browsers send it
		}
		place := r.place(name)
		form.Set("headers", headerText(place.Headers))
		form.Set("key", "k")
		status, page := v.post("do-queue-create", form)
		redistest.Want(t, name+": status", status, http.StatusOK)
		contains(t, page, "is scheduled.")
		again := r.place("again " + name)
		redistest.Want(t, name+": payload", string(again.Payload), payload)
		redistest.Want(t, name+": headers", headerText(again.Headers), headerText(place.Headers))
		redistest.Want(t, name+": key", again.Key, "k")
	}
	_, text := v.get("queue?queue=" + r.Queue + "&tab=create&from=gone")
	contains(t, text, admin.ErrNotFound.Error(), `action="do-queue-create"`)
	status, text := v.post("do-queue-create", url.Values{"queue": {r.Queue}, "from": {"gone"}, "kind": {"same"}})
	redistest.Want(t, "status without the message", status, http.StatusNotFound)
	contains(t, text, `id="fault-payload"`)
}

// Only a token that may publish to the queue, or operate it, may create messages.
func TestCreateIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Fill(1)
	for name, v := range map[string]*viewer{
		"inspect": r.viewer(inspect, "*"), "another queue": r.viewer(publish, "other"),
	} {
		status, _ := v.post("do-queue-create", url.Values{"queue": {r.Queue}, "id": {"x"}, "in": {"1h"}})
		redistest.Want(t, name, status, http.StatusForbidden)
	}
	_, text := r.viewer(inspect, "*").get("queue?queue=" + r.Queue + "&tab=create")
	lacks(t, text, "do-queue-create", "Create a message")
	if _, err := r.op.Find(t.Context(), "x", admin.FindOptions{}); !errors.Is(err, admin.ErrNotFound) {
		t.Errorf("the message was stored: %v", err)
	}
}

// The repetition of a message whose payload is lost must not silently have an empty payload.
func TestALostPayloadIsNotRepeated(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Do("XADD", r.Keys.Dead, "*", "id", "lost", "attempt", "1", "group", "g", "reason", "body_lost", "dead_ms",
		"1700000000000")
	v := r.viewer(publish, r.Queue)
	status, text := v.get("queue?queue=" + r.Queue + "&tab=create&from=lost")
	redistest.Want(t, "status of the form", status, http.StatusConflict)
	contains(t, text, "the payload of message lost is lost")
	status, text = v.post("do-queue-create", url.Values{"queue": {r.Queue}, "from": {"lost"}, "kind": {"same"}})
	redistest.Want(t, "status", status, http.StatusBadRequest)
	contains(t, text, "is lost: type one")
	redistest.Want(t, "scheduled", r.Length(r.Keys.Due), 0)
}

// The ID of the copied message must be shown without characters that reverse or hide the text beside it.
func TestACopyShowsNoInvisibleCharacters(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	id := "a\u202egnp.exe"
	r.send(r.Queue, id, "p", bridge.In(time.Hour))
	_, text := r.viewer(publish, r.Queue).get("queue?queue=" + r.Queue + "&tab=create&from=" + url.QueryEscape(id))
	contains(t, text, `>the same as a\u202egnp.exe, 1 B<`)
	lacks(t, text, "the same as a\u202e")
}

// The page says in plain words that Redis is full, and what to check. Regression: the page showed the text of the
// command.
func TestCreateTellsThatRedisIsFull(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t, "--appendonly", "yes", "--maxmemory-policy", "noeviction")
	r := newRig(t, server, nil)
	r.Fill(1)
	v := r.viewer(access.Verbs(), "*")
	r.Do("CONFIG", "SET", "maxmemory", "1")
	form := url.Values{"queue": {r.Queue}, "tab": {"create"}, "id": {"m"}, "payload": {"p"}, "encoding": {"text"}}
	_, text := v.post("do-queue-create", form)
	contains(t, text, "Redis is full, and refuses new messages until memory is free. A change of one message was not made")
	lacks(t, text, "OOM")
	text = v.eventuallyShows("", "MiB are used (")
	contains(t, text, `<a href="servers#memory">See which queue holds the most</a>`)
}

// A form must not take much more memory than its text. Regression: a payload of 16 MiB that was checked by decoding it
// took half a gigabyte, and so did headers.
func TestAFormOfAMessageUsesLittleMemory(t *testing.T) { // not parallel: it counts allocations
	objects := "[" + strings.Repeat("{},", 10_000) + "{}]"
	q := &request{query: url.Values{"kind": {payloadJSON}, "payload": {objects}}}
	var payload []byte
	allocations := testing.AllocsPerRun(1, func() { payload = redistest.Must(q.typedPayload()) })
	redistest.Want(t, "payload", string(payload), objects)
	if allocations > 1000 {
		t.Errorf("%v allocations to check %d objects", allocations, 10_001)
	}
	_, err := parseHeaders("{" + strings.Repeat(" ", maxHeaderText) + "}")
	contains(t, fmt.Sprint(err), "headers of 262146 bytes: must be at most 262144 bytes")
	headers := redistest.Must(parseHeaders("{" + strings.Repeat(" ", maxHeaderText-2) + "}"))
	redistest.Want(t, "number of headers", len(headers), 0)
}
