package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// elsewhere returns a client with another, empty prefix on the same server.
func (c *cli) elsewhere() *cli {
	return &cli{t: c.t, s: c.s, url: c.url, prefix: c.s.Prefix(c.t)}
}

// do runs a plain command.
func (c *cli) do(words ...string) rueidis.RedisMessage {
	c.t.Helper()
	r := c.redis()
	m, err := r.Do(c.t.Context(), r.B().Arbitrary(words[0]).Args(words[1:]...).Build()).ToMessage()
	if err != nil && !rueidis.IsRedisNil(err) {
		c.t.Fatalf("%q: %v", words, err)
	}
	return m
}

// recordsOf returns the records of an export, sorted, without the parts that depend on their place: names of letters,
// and entries of ready messages.
func recordsOf(t *testing.T, export string) (records []string) {
	t.Helper()
	for line := range strings.Lines(export) {
		var fields map[string]any
		decode(t, line, &fields)
		switch fields["kind"] {
		case "header", "end":
			continue
		case "ready":
			delete(fields, "entry")
		}
		delete(fields, "letter")
		text, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, string(text))
	}
	slices.Sort(records)
	return records
}

// Export and import keep all messages: the same messages arrive, each group gets those that it had not acknowledged,
// and an export of the copy has the same lines. The copy has another name and another number of partitions.
func TestExportAndImportGiveTheSameMessages(t *testing.T) {
	t.Parallel()
	a := newCLI(t)
	b := a.elsewhere()
	const groups = "mailer audit"
	a.ok("queue", "partitions", "q", "--create", "3")
	b.ok("queue", "partitions", "copy", "--create", "2")
	for group := range strings.FieldsSeq(groups) {
		for _, name := range []string{"q", "q/1", "q/2"} {
			a.do("XGROUP", "CREATE", a.key(name, "stream"), group, "0", "MKSTREAM")
		}
	}
	ledgers := map[string]*redistest.Ledger{"mailer": {}, "audit": {}}
	sent := func(id string, dueMs int64, groups ...string) {
		for _, group := range groups {
			ledgers[group].Sent(id, dueMs)
		}
	}
	wants := map[string]string{} // id → payload
	later := time.Now().Add(time.Hour).UnixMilli()
	for i := range 40 {
		id := fmt.Sprintf("später-%d", i)
		payload := []string{"text <b>&ü\u2028", "\x00\xff binary", "", `{"json":1}`}[i%4]
		call := []string{"schedule", "q", "--id", id, "--at", time.UnixMilli(later).Format(time.RFC3339Nano), "--header",
			"n=ü " + fmt.Sprint(i), "--max-attempts", "4"}
		if payload == "" { // an empty standard input is refused
			call = append(call, "")
		}
		if r := a.runIn(payload, call...); r.code != exitOK {
			t.Fatal(r.err)
		}
		wants[id] = payload
	}
	for i := range 9 { // ready messages: held, acknowledged by one group, retried by one, dead for one, untouched
		id := fmt.Sprint("now-", i)
		a.runIn("p\xff"+id, "schedule", "q", "--id", id)
		wants[id] = "p\xff" + id
	}
	a.ok("queue", "set", "q", "--create", "held=true")
	for _, name := range []string{"q", "q/1", "q/2"} {
		key := a.key(name, "stream")
		m := a.do("XREADGROUP", "GROUP", "mailer", "w", "COUNT", "2", "STREAMS", key, ">")
		streams, err := m.AsXRead()
		if err != nil {
			continue // empty stream
		}
		for i, entry := range streams[key] {
			if i == 0 {
				a.do("XACK", key, "mailer", entry.ID)
				sent(entry.FieldValues["id"], 0, "audit")
			}
		}
	}
	for i := range 9 {
		var places []admin.Place
		a.json(&places, "show", "q", fmt.Sprint("now-", i))
		for _, p := range places {
			if p.State == "pending" {
				sent(fmt.Sprint("now-", i), 0, p.Group)
			}
			for _, group := range p.Groups {
				sent(fmt.Sprint("now-", i), 0, group)
			}
		}
	}
	// A retry and dead letters, in the form that the scripts write.
	retry := "again\x1fmailer\x1f1700000000000-0"
	a.do("ZADD", a.key("q/1", "due"), fmt.Sprint(later), retry)
	a.do("HSET", a.key("q/1", "payload"), retry, "r\x00")
	a.do("HSET", a.key("q/1", "meta"), retry, `{"id":"again","for":"mailer","attempt":"3","error":"oops","h:k":"v"}`)
	wants["again"] = "r\x00"
	for i, name := range []string{"q", "q/1", "q/2", "q"} {
		a.do("XADD", a.key(name, "dead"), fmt.Sprintf("%d-0", 1_700_000_000_000+i), "id", fmt.Sprint("dead-", i), "payload", "d\xff", "group", "mailer", "reason", "max_attempts",
			"dead_ms", "1700000000000", "attempt", "5", "h:k", "v")
	}
	a.do("XADD", a.key("q", "dead"), "1800000000000-0", "id", "lost", "reason", "body_lost")

	export := a.run("export", "q")
	if export.code != exitOK || !strings.Contains(export.out, `"held":true`) || !strings.Contains(export.out, `{"kind":"end",`) {
		t.Fatalf("%d %s%s", export.code, export.out, export.err)
	}
	r := b.runIn(export.out, "import", "copy", "--json")
	var tally importTally
	decode(t, r.out, &tally)
	if r.code != exitOK || !tally.Whole || tally.Taken != tally.Lines || tally.Refused+tally.Duplicates > 0 ||
		fmt.Sprint(tally.Groups) != "[audit mailer]" {
		t.Fatalf("exit code %d: %+v %s", r.code, tally, r.err)
	}
	r = b.runIn(export.out, "import", "copy", "--json")
	decode(t, r.out, &tally)
	if r.code != exitPartly || tally.Taken > 0 || tally.Duplicates != tally.Lines ||
		!strings.Contains(r.err, "line 2: it is there already") {
		t.Errorf("again: exit code %d: %+v %s", r.code, tally, r.err)
	}
	// After the import, ready messages are ready, and all others are in their former state.
	again := b.run("export", "copy")
	if before, after := recordsOf(t, export.out), recordsOf(t, again.out); !slices.Equal(before, after) {
		t.Errorf("before:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	var letters []string
	for line := range strings.Lines(b.ok("dead", "list", "copy", "--json")) {
		var l admin.Letter
		decode(t, line, &l)
		letters = append(letters, l.ID)
	}
	if fmt.Sprint(letters) != "[lost dead-3 dead-2 dead-1 dead-0]" {
		t.Errorf("letters, newest first: %q", letters)
	}

	// Make the messages due that were scheduled in an hour.
	soon := serverMs(t, b) + 1000
	for i := range 40 {
		id := fmt.Sprintf("später-%d", i)
		sent(id, soon, "mailer", "audit")
		b.ok("reschedule", "copy", id, "--at", time.UnixMilli(soon).Format(time.RFC3339Nano))
	}
	sent("again", soon, "mailer")
	for _, name := range []string{"copy", "copy/1"} {
		b.do("ZADD", b.key(name, "due"), "XX", fmt.Sprint(soon), retry)
	}
	b.serve()
	for group, ledger := range ledgers {
		redistest.Eventually(t, 40*time.Second, func() (bool, string) {
			for _, name := range []string{"copy", "copy/1"} {
				key := b.key(name, "stream")
				m := b.do("XREADGROUP", "GROUP", group, "w", "COUNT", "100", "STREAMS", key, ">")
				streams, err := m.AsXRead()
				if err != nil {
					continue
				}
				for _, entry := range streams[key] {
					id := entry.FieldValues["id"]
					if owner := entry.FieldValues["for"]; owner != "" && owner != group {
						continue
					}
					var due int64
					fmt.Sscan(entry.FieldValues["due_ms"], &due)
					ledger.Delivered(group, id, serverMs(t, b), due)
					if entry.FieldValues["payload"] != wants[id] {
						t.Errorf("%s: payload %q", id, entry.FieldValues["payload"])
					}
					if attempt := entry.FieldValues["attempt"]; attempt != map[bool]string{true: "3", false: "1"}[id == "again"] {
						t.Errorf("%s: attempt %s", id, attempt)
					}
				}
			}
			sum := ledger.Summary(group)
			return sum.Delivered == sum.Sent, sum.String()
		})
		if sum := ledger.Check(t, group); sum.Duplicated > 0 {
			t.Error(group, sum)
		}
	}
}

func serverMs(t *testing.T, c *cli) int64 {
	t.Helper()
	m := c.do("TIME")
	parts, err := m.AsIntSlice()
	if err != nil {
		t.Fatal(err)
	}
	return parts[0]*1000 + parts[1]/1000
}

func TestExportIsNeverSilentlyPartial(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("schedule", "q", "--id", "a", "--in", "1h", "x")
	c.ok("schedule", "q", "--id", "now", "x")
	c.do("XADD", c.key("q", "dead"), "*", "id", "d")
	c.do("XGROUP", "CREATE", c.key("q", "stream"), "g", "0")
	for args, says := range map[string][]string{
		"--scheduled": {"left out as told: about 1 ready", "left out as told: 1 dead", "exported 1: ready 0, scheduled 1, dead 0"},
		"--dead":      {"left out as told: 1 scheduled", "exported 1: ready 0, scheduled 0, dead 1"},
		"--all":       {"the queue is not paused", "exported 3: ready 1, scheduled 1, dead 1"},
	} {
		r := c.run("export", "q", args)
		for _, text := range says {
			if r.code != exitOK || !strings.Contains(r.err, text) {
				t.Errorf("%s: stderr does not say %q:\n%s", args, text, r.err)
			}
		}
	}
	c.do("XREADGROUP", "GROUP", "g", "c", "STREAMS", c.key("q", "stream"), ">")
	m := c.do("XRANGE", c.key("q", "stream"), "-", "+")
	entries, err := m.AsXRange()
	if err != nil {
		t.Fatal(err)
	}
	c.do("XDEL", c.key("q", "stream"), entries[0].ID)
	r := c.fails(exitPartly, []string{"1 entries are damaged, or lost their body"}, "export", "q")
	if !strings.HasSuffix(r.out, `{"kind":"end","count":2,"ready":0,"scheduled":1,"dead":1,"left_out":1}`+"\n") {
		t.Error(r.out)
	}
	c.do("SET", c.key("q/1", "due"), "no schedule")
	c.do("HSET", c.prefix+":queues", "q", "1,2")
	if r := c.run("export", "q", "--scheduled"); r.code == exitOK || strings.Contains(r.out, `"end"`) {
		t.Errorf("a partition that cannot be read: %+v", r)
	}
	c.fails(exitInvalid, nil, "export", "q", "--dead", "--scheduled")
	c.fails(exitInvalid, nil, "export", "q/1")
}

// Memory is bounded: a step is written before the next one is read.
func TestExportOfManyIsReadInSteps(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	var file bytes.Buffer
	fmt.Fprintln(&file, `{"kind":"header","version":1,"queue":"q","prefix":"p"}`)
	const n = 5000
	for i := range n {
		fmt.Fprintf(&file, `{"kind":"scheduled","id":"m-%d","due_ms":%d,"payload":"x"}`+"\n", i, 4102444800000+i/100)
	}
	fmt.Fprintf(&file, `{"kind":"end","count":%d}`+"\n", n)
	if r := c.runIn(file.String(), "import", "q"); r.code != exitOK {
		t.Fatalf("%+v", r)
	}
	r := c.run("export", "q")
	ids := map[string]bool{}
	for line := range strings.Lines(r.out) {
		var record admin.Record
		if json.Unmarshal([]byte(line), &record) == nil && record.Kind == admin.RecordScheduled {
			ids[record.ID] = true
		}
	}
	if r.code != exitOK || len(ids) != n || !strings.Contains(r.out, `{"kind":"end","count":5000,`) {
		t.Errorf("exit code %d, %d records: %s", r.code, len(ids), r.err)
	}
}
