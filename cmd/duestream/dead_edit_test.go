package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// oneLetter creates a dead letter of group g by plain commands, and returns its name.
func (c *cli) oneLetter(payload string) string {
	c.t.Helper()
	r := c.redis()
	// The letter's group and queue must exist.
	err := r.Do(c.t.Context(), r.B().XgroupCreate().Key(c.key("q", "stream")).Group("g").Id("0").Mkstream().Build()).Error()
	if err != nil && !strings.Contains(err.Error(), "BUSYGROUP") {
		c.t.Fatal(err)
	}
	letter, err := r.Do(c.t.Context(), r.B().Xadd().Key(c.key("q", "dead")).Id("*").FieldValue().FieldValue("id", "order-42").
		FieldValue("payload", payload).FieldValue("attempt", "3").FieldValue("h:tenant", "acme").
		FieldValue("h:debug", "1").FieldValue("max_attempts", "7").
		FieldValue("group", "g").FieldValue("reason", "max_attempts").FieldValue("error", "oops").Build()).ToString()
	if err != nil {
		c.t.Fatal(err)
	}
	return letter
}

func (c *cli) place(id string) admin.Place {
	c.t.Helper()
	var places []admin.Place
	c.json(&places, "show", "q", id)
	if len(places) != 1 {
		c.t.Fatalf("%+v", places)
	}
	return places[0]
}

func TestDeadEditSchedulesTheChangedMessage(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	letter := c.oneLetter("old")
	out := c.ok("dead", "edit", "q", letter, "--payload", "new", "--header", "tenant=other", "--unset-header", "debug",
		"--in", "1h", "--dry-run")
	for _, text := range []string{"would be redriven  order-42\n", "for                g\n", "header tenant      other\n",
		"due                in 1h\n", "payload (3 bytes):\nnew\n"} {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	if p := c.place("order-42"); p.State != "dead" {
		t.Errorf("a dry run: %+v", p)
	}
	c.ok("dead", "edit", "q", letter, "--payload", "new", "--header", "tenant=other", "--unset-header", "debug", "--in", "1h")
	p := c.place("order-42")
	if p.State != "retrying" || p.Group != "g" || p.Attempt != 1 || string(p.Payload) != "new" ||
		fmt.Sprint(p.Headers) != "map[tenant:other]" ||
		p.MaxAttempts != 7 || time.Until(p.Due) < 50*time.Minute {
		t.Errorf("%+v", p)
	}
	c.fails(exitNotFound, nil, "dead", "edit", "q", letter, "--payload", "again")
}

func TestDeadEditLeavesWhatIsNotChanged(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	letter := c.oneLetter("bytes \x00\xff")
	var got struct {
		ID      string
		Payload admin.Payload
		Headers map[string]string
		In      int64 `json:"in_ms"`
	}
	c.json(&got, "dead", "edit", "q", letter, "--unset-header", "debug", "--in", "1h")
	p := c.place("order-42")
	if string(p.Payload) != "bytes \x00\xff" || string(got.Payload) != string(p.Payload) ||
		got.In != 3600_000 || len(p.Headers) != 1 {
		t.Errorf("%+v %+v", p, got)
	}
}

func TestDeadEditIsRefusedBeforeRedisIsTouched(t *testing.T) {
	c := &cli{t: t, url: unreachable}
	large := strings.Repeat("x", admin.MaxPayloadBytes+1)
	for _, args := range [][]string{
		{"q", "1-1"}, {"q", "nonsense", "--payload", "x"}, {"q/1", "1-1", "--payload", "x"}, {"q", "1-1", "--payload", large},
		{"q", "1-1", "--header", "a=1", "--unset-header", "a"}, {"q", "1-1", "--header", "a=" + large[:10_000]},
		{"q", "1-1", "--payload", "x", "--payload-file", "y"}, {"q", "1-1", "--payload-file", "/does/not/exist"}, {"q", "1-1", "--payload", "x", "--in", "-1s"},
	} {
		c.fails(exitInvalid, nil, append([]string{"dead", "edit"}, args...)...)
	}
}

// Several users edit the same letter concurrently: one of them wins, and the group gets one message, with that
// payload.
func TestDeadEditOfOneLetterIsWonByOne(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("queue", "set", "q", "--create", "held=true")
	var ledger redistest.Ledger
	var all sync.WaitGroup
	codes := make([]int, 6)
	letter := c.oneLetter("old")
	for i := range codes {
		all.Go(func() { codes[i] = c.run("dead", "edit", "q", letter, "--payload", fmt.Sprint("by ", i)).code })
	}
	all.Wait()
	winner := -1
	for i, code := range codes {
		switch {
		case code == exitOK && winner < 0:
			winner = i
		case code != exitNotFound:
			t.Errorf("%d: exit code %d", i, code)
		}
	}
	if winner < 0 {
		t.Fatalf("nobody won: %v", codes)
	}
	ledger.Sent("order-42", 0)
	if p := c.place("order-42"); string(p.Payload) != fmt.Sprint("by ", winner) {
		t.Errorf("%q was scheduled, %d won", p.Payload, winner)
	}
	c.ok("queue", "set", "q", "--create", "held=false")
	c.serve()
	r := c.redis()
	redistest.Eventually(t, patience, func() (bool, string) {
		streams, err := r.Do(t.Context(), r.B().Xreadgroup().
			Group("g", "c").Count(10).Streams().Key(c.key("q", "stream")).Id(">").Build()).AsXRead()
		for _, entry := range streams[c.key("q", "stream")] {
			ledger.Delivered("g", entry.FieldValues["id"], time.Now().UnixMilli(), 0)
			if entry.FieldValues["payload"] != fmt.Sprint("by ", winner) || entry.FieldValues["for"] != "g" {
				t.Errorf("%+v", entry)
			}
		}
		return ledger.Summary("g").Delivered == 1, fmt.Sprint(err)
	})
	if got := ledger.Check(t, "g"); got.Duplicated > 0 {
		t.Error(got)
	}
	if n := c.scheduled("q"); n != 0 {
		t.Errorf("%d are scheduled besides", n)
	}
}

func TestEditorForm(t *testing.T) {
	writes := func(text string) func(context.Context, string) error {
		return func(_ context.Context, file string) error { return os.WriteFile(file, []byte(text), 0o600) }
	}
	replaces := func(old, new string) func(context.Context, string) error {
		return func(_ context.Context, file string) error {
			text, err := os.ReadFile(file)
			if err == nil && !strings.Contains(string(text), old) {
				err = fmt.Errorf("no %q in %s", old, text)
			}
			return errors.Join(err, os.WriteFile(file, []byte(strings.ReplaceAll(string(text), old, new)), 0o600))
		}
	}
	for name, c := range map[string]struct {
		payload admin.Payload
		editor  func(context.Context, string) error
		want    string // the new payload; "" = unchanged
		headers string // the new headers; "" = unchanged
		err     string
	}{
		"JSON": {admin.Payload(`{"a":1.50,"b":"<x>"}`), replaces("\"a\": 1.50", "\"a\": 2.50"),
			`{"a":2.50,"b":"<x>"}`, "", ""},
		"text":        {admin.Payload("a <b>\n"), replaces("a <b>", "c"), "c\n", "", ""},
		"spaced JSON": {admin.Payload(`{ "a":1}`), replaces(`{ \"a\":1}`, `{ \"a\":2}`), `{ "a":2}`, "", ""},
		"bytes":       {admin.Payload("\xff\x00"), replaces("/wA=", "/wE="), "\xff\x01", "", ""},
		"headers":     {admin.Payload("x"), replaces(`"k": "v"`, `"k": "w"`), "", "map[k:w]", ""},
		"nothing":     {admin.Payload("x"), replaces("x", "x"), "", "", "nothing was changed"},
		"no JSON":     {admin.Payload("x"), writes("{"), "", "", "the text is kept in "},
		"unknown":     {admin.Payload("x"), writes(`{"payloud":"x"}`), "", "", "unknown field"},
		"too much":    {admin.Payload("x"), writes(`{"payload":"x","headers":{"":"x"}}`), "", "", "header name"},
		"editor gives up": {admin.Payload("x"), func(context.Context, string) error {
			return errors.New("exit status 1")
		}, "", "", "the editor failed"},
		"lost":    {nil, writes(`{"payload":"y","headers":{"k":"v"}}`), "y", "", ""},
		"emptied": {admin.Payload("x"), writes(`{"payload":"","headers":{}}`), "", "map[]", ""},
	} {
		got, err := editLetter(t.Context(), admin.Letter{Payload: c.payload, Headers: map[string]string{"k": "v"}}, c.editor)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if changed := c.want != "" || name == "emptied"; err == nil &&
			((got.payload != nil) != changed || changed && string(*got.payload) != c.want) {
			t.Errorf("%s: payload %v", name, got.payload)
		}
		if (got.headers != nil) != (c.headers != "") || got.headers != nil && fmt.Sprint(*got.headers) != c.headers {
			t.Errorf("%s: headers %v", name, got.headers)
		}
		if _, kept, ok := strings.Cut(fmt.Sprint(err), "kept in "); ok {
			file, _, _ := strings.Cut(kept, ":")
			os.Remove(file)
		}
	}
}
