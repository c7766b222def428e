package queues_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/queues"
	"github.com/duestream/duestream/integration/redistest"
)

// recordsOf returns the records of an export, sorted, without the fields that differ between a queue and its copy:
// names of letters, and entries of ready messages.
func recordsOf(t *testing.T, export string) (records []string) {
	t.Helper()
	for line := range strings.Lines(export) {
		var fields map[string]any
		clitest.Decode(t, line, &fields)
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
	a := clitest.New(t)
	b := elsewhere(a)
	const groups = "mailer audit"
	a.OK("queue", "partitions", "q", "--create", "3")
	b.OK("queue", "partitions", "copy", "--create", "2")
	for group := range strings.FieldsSeq(groups) {
		for _, name := range []string{"q", "q/1", "q/2"} {
			a.Do("XGROUP", "CREATE", a.Key(name, "stream"), group, "0", "MKSTREAM")
		}
	}
	ledgers := map[string]*redistest.Ledger{"mailer": {}, "audit": {}}
	// sent notes that these groups must get a message.
	sent := func(id string, dueMs int64, groups ...string) {
		for _, group := range groups {
			ledgers[group].Sent(id, dueMs)
		}
	}
	wants := map[string]string{} // payloads by message ID
	later := time.Now().Add(time.Hour).UnixMilli()
	for i := range 40 {
		id := fmt.Sprintf("später-%d", i)
		payload := []string{"text <b>&ü\u2028", "\x00\xff binary", "", `{"json":1}`}[i%4]
		call := []string{"schedule", "q", "--id", id, "--at", time.UnixMilli(later).Format(time.RFC3339Nano), "--header",
			"n=ü " + fmt.Sprint(i), "--max-attempts", "4"}
		if payload == "" { // an empty standard input is refused
			call = append(call, "")
		}
		if r := a.RunIn(payload, call...); r.Code != exit.OK {
			t.Fatal(r.Err)
		}
		wants[id] = payload
	}
	for i := range 9 { // ready messages: some will be held or acknowledged by the group mailer, others stay untouched
		id := fmt.Sprint("now-", i)
		a.RunIn("p\xff"+id, "schedule", "q", "--id", id)
		wants[id] = "p\xff" + id
	}
	a.OK("queue", "set", "q", "--create", "held=true")
	for _, name := range []string{"q", "q/1", "q/2"} {
		key := a.Key(name, "stream")
		m := a.Do("XREADGROUP", "GROUP", "mailer", "w", "COUNT", "2", "STREAMS", key, ">")
		streams, err := m.AsXRead()
		if err != nil {
			continue // empty stream
		}
		for i, entry := range streams[key] {
			if i == 0 {
				a.Do("XACK", key, "mailer", entry.ID)
				sent(entry.FieldValues["id"], 0, "audit")
			}
		}
	}
	// After the import each group must get two sets of ready messages: those that it held, and those that it had not read.
	for i := range 9 {
		var places []admin.Place
		a.JSON(&places, "show", "q", fmt.Sprint("now-", i))
		for _, p := range places {
			if p.State == "pending" {
				sent(fmt.Sprint("now-", i), 0, p.Group)
			}
			for _, group := range p.Groups {
				sent(fmt.Sprint("now-", i), 0, group)
			}
		}
	}
	// A retry and dead letters, in the form that the scripts write. The member of a retry is: message ID, group and
	// entry ID, separated by \x1f.
	retry := "again\x1fmailer\x1f1700000000000-0"
	a.Do("ZADD", a.Key("q/1", "due"), fmt.Sprint(later), retry)
	a.Do("HSET", a.Key("q/1", "payload"), retry, "r\x00")
	a.Do("HSET", a.Key("q/1", "meta"), retry, `{"id":"again","for":"mailer","attempt":"3","error":"oops","h:k":"v"}`)
	wants["again"] = "r\x00"
	for i, name := range []string{"q", "q/1", "q/2", "q"} {
		a.Do("XADD", a.Key(name, "dead"), fmt.Sprintf("%d-0", 1_700_000_000_000+i), "id", fmt.Sprint("dead-", i),
			"payload", "d\xff", "group", "mailer", "reason", "max_attempts",
			"dead_ms", "1700000000000", "attempt", "5", "h:k", "v")
	}
	a.Do("XADD", a.Key("q", "dead"), "1800000000000-0", "id", "lost", "reason", "body_lost")

	export := a.Run("export", "q")
	if export.Code != exit.OK || !strings.Contains(export.Out, `"held":true`) ||
		!strings.Contains(export.Out, `{"kind":"end",`) {
		t.Fatalf("%d %s%s", export.Code, export.Out, export.Err)
	}
	r := b.RunIn(export.Out, "import", "copy", "--json")
	var tally queues.ImportTally
	clitest.Decode(t, r.Out, &tally)
	if r.Code != exit.OK || !tally.Whole || tally.Taken != tally.Lines || tally.Refused+tally.Duplicates > 0 ||
		fmt.Sprint(tally.Groups) != "[audit mailer]" {
		t.Fatalf("exit code %d: %+v %s", r.Code, tally, r.Err)
	}
	r = b.RunIn(export.Out, "import", "copy", "--json")
	clitest.Decode(t, r.Out, &tally)
	if r.Code != exit.Partly || tally.Taken > 0 || tally.Duplicates != tally.Lines ||
		!strings.Contains(r.Err, "line 2: it is there already") {
		t.Errorf("again: exit code %d: %+v %s", r.Code, tally, r.Err)
	}
	// After the import, ready messages are ready, and all others are in their former state.
	again := b.Run("export", "copy")
	if before, after := recordsOf(t, export.Out), recordsOf(t, again.Out); !slices.Equal(before, after) {
		t.Errorf("before:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	var letters []string
	for line := range strings.Lines(b.OK("dead", "list", "copy", "--json")) {
		var l admin.Letter
		clitest.Decode(t, line, &l)
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
		b.OK("reschedule", "copy", id, "--at", time.UnixMilli(soon).Format(time.RFC3339Nano))
	}
	sent("again", soon, "mailer")
	for _, name := range []string{"copy", "copy/1"} {
		b.Do("ZADD", b.Key(name, "due"), "XX", fmt.Sprint(soon), retry)
	}
	b.Serve()
	for group, ledger := range ledgers {
		redistest.Eventually(t, 40*time.Second, func() (bool, string) {
			for _, name := range []string{"copy", "copy/1"} {
				key := b.Key(name, "stream")
				m := b.Do("XREADGROUP", "GROUP", group, "w", "COUNT", "100", "STREAMS", key, ">")
				streams, err := m.AsXRead()
				if err != nil {
					continue
				}
				for _, entry := range streams[key] {
					id := entry.FieldValues["id"]
					if owner := entry.FieldValues["for"]; owner != "" && owner != group {
						continue // a retry for another group
					}
					var due int64
					fmt.Sscan(entry.FieldValues["due_ms"], &due)
					ledger.Delivered(group, id, serverMs(t, b), due)
					if entry.FieldValues["payload"] != wants[id] {
						t.Errorf("%s: payload %q", id, entry.FieldValues["payload"])
					}
					// The retry is a third attempt, all others are first ones.
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

// serverMs returns the time of the server, in milliseconds since 1970.
func serverMs(t *testing.T, c *clitest.CLI) int64 {
	t.Helper()
	m := c.Do("TIME")
	parts, err := m.AsIntSlice()
	if err != nil {
		t.Fatal(err)
	}
	return parts[0]*1000 + parts[1]/1000
}

// An export tells three things: which records its flags left out, that a queue is not paused and so may change, and how
// many damaged entries it could not read. If a partition cannot be read, the file has no last line, so an import finds
// that it is incomplete.
func TestExportIsNeverSilentlyPartial(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("schedule", "q", "--id", "a", "--in", "1h", "x")
	c.OK("schedule", "q", "--id", "now", "x")
	c.Do("XADD", c.Key("q", "dead"), "*", "id", "d")
	c.Do("XGROUP", "CREATE", c.Key("q", "stream"), "g", "0")
	for args, says := range map[string][]string{
		"--scheduled": {"not exported, because of the flags: about 1 ready", "not exported, because of the flags: 1 dead",
			"exported 1: ready 0, scheduled 1, dead 0"},
		"--dead": {"not exported, because of the flags: 1 scheduled", "exported 1: ready 0, scheduled 0, dead 1"},
		"--all":  {"the queue is not paused", "exported 3: ready 1, scheduled 1, dead 1"},
	} {
		r := c.Run("export", "q", args)
		for _, text := range says {
			if r.Code != exit.OK || !strings.Contains(r.Err, text) {
				t.Errorf("%s: stderr does not say %q:\n%s", args, text, r.Err)
			}
		}
	}
	c.Do("XREADGROUP", "GROUP", "g", "c", "STREAMS", c.Key("q", "stream"), ">")
	m := c.Do("XRANGE", c.Key("q", "stream"), "-", "+")
	entries, err := m.AsXRange()
	if err != nil {
		t.Fatal(err)
	}
	c.Do("XDEL", c.Key("q", "stream"), entries[0].ID) // the entry is pending, and has lost its body
	r := c.Fails(exit.Partly, []string{"1 entries are damaged, or lost their body"}, "export", "q")
	if !strings.HasSuffix(r.Out, `{"kind":"end","count":2,"ready":0,"scheduled":1,"dead":1,"left_out":1}`+"\n") {
		t.Error(r.Out)
	}
	c.Do("SET", c.Key("q/1", "due"), "no schedule")
	c.Do("HSET", c.Prefix+":queues", "q", "1,2")
	if r := c.Run("export", "q", "--scheduled"); r.Code == exit.OK || strings.Contains(r.Out, `"end"`) {
		t.Errorf("a partition that cannot be read: %+v", r)
	}
	c.Fails(exit.Invalid, nil, "export", "q", "--dead", "--scheduled")
	c.Fails(exit.Invalid, nil, "export", "q/1")
}

// An export of more records than one step reads has every record once. Memory is bounded, because a step is written
// before the next one is read.
func TestExportOfManyIsReadInSteps(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	var file bytes.Buffer
	fmt.Fprintln(&file, `{"kind":"header","version":1,"queue":"q","prefix":"p"}`)
	const n, year2100 = 5000, 4102444800000 // year2100 in milliseconds since 1970
	for i := range n {
		fmt.Fprintf(&file, `{"kind":"scheduled","id":"m-%d","due_ms":%d,"payload":"x"}`+"\n", i, year2100+i/100)
	}
	fmt.Fprintf(&file, `{"kind":"end","count":%d}`+"\n", n)
	if r := c.RunIn(file.String(), "import", "q"); r.Code != exit.OK {
		t.Fatalf("%+v", r)
	}
	r := c.Run("export", "q")
	ids := map[string]bool{}
	for line := range strings.Lines(r.Out) {
		var record admin.Record
		if json.Unmarshal([]byte(line), &record) == nil && record.Kind == admin.RecordScheduled {
			ids[record.ID] = true
		}
	}
	if r.Code != exit.OK || len(ids) != n || !strings.Contains(r.Out, `{"kind":"end","count":5000,`) {
		t.Errorf("exit code %d, %d records: %s", r.Code, len(ids), r.Err)
	}
}

// elsewhere returns a client with another, empty prefix on the same server.
func elsewhere(c *clitest.CLI) *clitest.CLI {
	return &clitest.CLI{T: c.T, Server: c.Server, URL: c.URL, Prefix: c.Server.Prefix(c.T)}
}
