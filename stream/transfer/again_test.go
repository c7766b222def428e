package transfer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// queueWithEveryKind returns a queue with 18 records:
//   - scheduled messages, one with an expiry, one with an ordering key;
//   - messages with an ordering key that wait for a retry or for a pending message of that key;
//   - messages that are ready, pending, retried and snoozed;
//   - dead letters, with and without an ordering key, one expired, and a redriven one;
//   - a member that a record keeps as bytes, and a recurrence.
func queueWithEveryKind(t *testing.T) *queuetest.Rig {
	r := queuetest.New(t, redistest.Shared(t))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := stream.EnsureGroup(t.Context(), r.Client, r.Prefix, r.Queue, "g")
	must(err)
	now := time.Now()
	put := func(id, key string, due time.Time) {
		asks := lua.Retries{KeepResult: time.Hour}.Fields()
		meta := lua.EncodeMeta(map[string]string{"header": id}, 0, time.Time{}, asks...)
		if key != "" {
			meta = lua.EncodeMeta(nil, 0, time.Time{}, lua.FieldValue{Field: lua.FieldKey, Value: key})
		}
		if strings.HasPrefix(id, "expire") {
			meta = lua.EncodeMeta(nil, 0, due.Add(10*time.Second))
		}
		_, err := lua.Enqueue(t.Context(), r.Client, r.Keys, lua.Token{}, []lua.Item{
			{ID: id, When: lua.At(due), Payload: []byte("p " + id), Meta: meta}}, lua.Durability{})
		must(err)
	}
	drain := func() {
		_, err := lua.Drain(t.Context(), r.Client, r.Keys, 100, 1<<20)
		must(err)
	}
	fail := func(action lua.Action, entry string) {
		out, err := lua.Retry(t.Context(), r.Client, r.Keys, "g", policy.Default().Attempts(), []lua.Failure{
			{Held: lua.Held{Entry: entry}, Action: action, Delay: time.Hour, Reason: "gave_up", Error: "no",
				Progress: []byte("page 7")}})
		must(err)
		if out[0] == lua.Lost {
			t.Fatal("lost")
		}
	}
	ago := func(seconds int) time.Time { return now.Add(-time.Duration(seconds) * time.Second) }
	for i, one := range []struct{ id, key string }{{"dead", ""}, {"dead-a", "a"}, {"dead-b", "b"}, {"redriven", "c"},
		{"retried", ""}, {"retried-k", "k"}, {"snoozed", ""}, {"pending", ""}, {"pending-l", "l"}} {
		put(one.id, one.key, ago(100-i))
	}
	drain()
	entries := r.Take("g", "c", 100)
	if len(entries) != 9 {
		t.Fatalf("%d entries", len(entries))
	}
	for i, action := range []lua.Action{lua.ActionDead, lua.ActionDead, lua.ActionDead, lua.ActionDead,
		lua.ActionRetry, lua.ActionRetry, lua.ActionSnooze} {
		fail(action, entries[i])
	}
	letters := r.Do("XRANGE", r.Keys.Dead, "-", "+")
	found, err := letters.AsXRange()
	must(err)
	_, err = lua.RedriveDead(t.Context(), r.Client, r.Keys, []lua.Redrive{
		{Letter: found[3].ID, When: lua.After(time.Hour)}})
	must(err)
	put("waits-k", "k", ago(50))
	put("waits-l", "l", ago(40))
	drain()
	put("expired", "", ago(60))
	drain()
	put("later", "", now.Add(time.Hour))
	put("expires", "", now.Add(time.Hour))
	put("later-m", "m", now.Add(time.Hour))
	r.Do("ZADD", r.Keys.Due, "9000000000000", "\xff")
	put("ready", "", ago(30))
	drain()
	r.Do("HSET", r.Keys.Recurring, "daily", `{"cron":"0 9 * * *","tz":"UTC"}`)
	return r
}

// exportAll exports a queue. It returns the records as sorted lines of JSON, and as they are. The lines lack the names
// of dead letters, because an import may have to give a letter another partition and another entry ID.
func exportAll(t *testing.T, r *queuetest.Rig) (all []string, records []Record) {
	t.Helper()
	export := NewExport(r.Client, r.Prefix, r.Queue, RecordReady, RecordScheduled, RecordDead, RecordRecurrence)
	for record, err := range export.Records(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, record)
		if record.Kind == RecordDead {
			record.Letter = ""
		}
		text, err := json.Marshal(record)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(text))
	}
	slices.Sort(all)
	return all, records
}

// importRecords imports records, and returns how many were taken, and how many were known.
func importRecords(t *testing.T, r *queuetest.Rig, records []Record, from string) (taken, known int) {
	t.Helper()
	im, err := NewImport(t.Context(), r.Client, r.Prefix, r.Queue, from, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for i, err := range im.Write(t.Context(), records) {
		switch {
		case err == nil:
			taken++
		case err == ErrKnown:
			known++
		default:
			t.Fatalf("%+v: %v", records[i], err)
		}
	}
	return taken, known
}

// An export after an import must give the same records as the first export. The target is the same queue, an empty
// queue, a queue with more partitions, a queue that grows between two imports, or a queue in use. A second import must
// take nothing.
func TestExportAfterImportIsTheSame(t *testing.T) {
	t.Parallel()
	for _, target := range []string{"the same", "empty", "with partitions", "grown", "in use"} {
		t.Run(target, func(t *testing.T) {
			t.Parallel()
			r := queueWithEveryKind(t)
			want, records := exportAll(t, r)
			redistest.Want(t, "records", len(records), 18)
			text := strings.Join(want, "\n")
			for _, field := range []string{lua.FieldProgress, lua.FieldResult} {
				redistest.Want(t, "a record has the field "+field, strings.Contains(text, `"`+field+`":`), true)
			}
			to := r
			if target != "the same" {
				to = queuetest.New(t, redistest.Shared(t))
			}
			grow := func() { to.Do("HSET", lua.NewGlobals(to.Prefix).Queues, to.Queue, "1,8") }
			switch target {
			case "with partitions":
				grow()
			case "in use":
				to.Do("ZADD", to.Keys.Due, "8000000000000", "its own")
				to.Do("XADD", to.Keys.Dead, "*", "id", "its own")
				own, _ := exportAll(t, to)
				want = append(want, own...)
				slices.Sort(want)
			}
			taken, known := importRecords(t, to, records, r.Queue)
			if target == "the same" {
				redistest.Want(t, "taken and known", fmt.Sprint(taken, known), fmt.Sprint(0, len(records)))
			} else {
				redistest.Want(t, "taken and known", fmt.Sprint(taken, known), fmt.Sprint(len(records), 0))
			}
			if target == "grown" {
				grow()
			}
			got, again := exportAll(t, to)
			if !slices.Equal(got, want) {
				t.Errorf("exported again:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			taken, known = importRecords(t, to, records, r.Queue)
			redistest.Want(t, "taken and known of a second import", fmt.Sprint(taken, known), fmt.Sprint(0, len(records)))
			if target == "with partitions" {
				counts := lua.ParseCounts("1,8")
				for _, record := range again {
					if partition, _, found := strings.Cut(record.Letter, "/"); found && record.Kind == RecordDead {
						redistest.Want(t, "partition of "+record.ID, partition, fmt.Sprint(counts.Of(record.place())))
					}
				}
			}
		})
	}
}

// A waiting retry holds its ordering key, so after an import the next message of that key must not overtake the retry,
// unless key_failure says "skip".
func TestAnImportedRetryHoldsItsKey(t *testing.T) {
	t.Parallel()
	for _, failure := range []string{"", "skip"} {
		r, to := queueWithEveryKind(t), queuetest.New(t, redistest.Shared(t))
		to.Do("HSET", to.Keys.Policy, "key_failure", failure)
		_, records := exportAll(t, r)
		importRecords(t, to, records, r.Queue)
		if _, err := lua.Drain(t.Context(), to.Client, to.Keys, 100, 1<<20); err != nil {
			t.Fatal(err)
		}
		var given []string
		stored := to.Do("XRANGE", to.Keys.Stream, "-", "+")
		entries, err := stored.AsXRange()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			given = append(given, e.FieldValues[lua.FieldID])
		}
		redistest.Want(t, "the next one of the key is given with key_failure="+failure, slices.Contains(given, "waits-k"),
			failure == "skip")
		redistest.Want(t, "the next one of a key that is pending is given", slices.Contains(given, "waits-l"), false)
	}
}

// An expiry is exported as a time. A record that is past its expiry at the import must become a dead letter, for its
// group or for all groups.
func TestWhatExpiresBeforeItIsImportedIsADeadLetter(t *testing.T) {
	t.Parallel()
	r := queuetest.New(t, redistest.Shared(t))
	r.Groups("g")
	common := Record{Due: 1_700_000_000_000, Expires: 1_700_000_100_000, Payload: []byte("p")}
	var records []Record
	for _, kind := range []string{"first", "retry", "ready"} {
		record := common
		record.ID, record.Kind = kind, RecordScheduled
		if kind != "first" {
			record.For, record.Attempt, record.Entry = "g", 2, "1700000000000-0"
		}
		if kind == "ready" {
			record.Kind = RecordReady
		}
		records = append(records, record)
	}
	taken, _ := importRecords(t, r, records, "elsewhere")
	redistest.Want(t, "taken", taken, 3)
	if _, err := lua.Drain(t.Context(), r.Client, r.Keys, 100, 1<<20); err != nil {
		t.Fatal(err)
	}
	_, letters := exportAll(t, r)
	redistest.Want(t, "letters", len(letters), 3)
	for _, l := range letters {
		group := map[string]string{"first": "", "retry": "g", "ready": "g"}[l.ID]
		redistest.Want(t, l.ID, fmt.Sprintf("%s %q %s", l.Kind, l.Group, l.Reason),
			fmt.Sprintf("dead %q %s", group, lua.ReasonExpired))
	}
}

// An ID must be unique in the whole queue. So a message must not be taken if its ID is scheduled or remembered in any
// partition, for example under another ordering key.
func TestImportTakesNoIDASecondTime(t *testing.T) {
	t.Parallel()
	counts := lua.ParseCounts("1,8")
	for _, key := range []string{"due", "seen"} {
		r := queuetest.New(t, redistest.Shared(t))
		r.Do("HSET", lua.NewGlobals(r.Prefix).Queues, r.Queue, counts.String())
		for partition := range 8 {
			record := Record{Kind: RecordScheduled, ID: "order-42", Due: 9_000_000_000_000, Payload: []byte("p"),
				Extra: map[string]string{lua.FieldKey: queuetest.IDOf(counts, partition)}}
			other := lua.NewKeys(r.Prefix, lua.PartitionName(r.Queue, (partition+3)%8))
			at := map[string]string{"due": other.Due, "seen": other.Seen}[key]
			r.Do("ZADD", at, "9000000000000", "order-42")
			taken, known := importRecords(t, r, []Record{record}, "elsewhere")
			redistest.Want(t, fmt.Sprint("taken and known with one in ", at), fmt.Sprint(taken, known), "0 1")
			r.Do("ZREM", at, "order-42")
		}
	}
}

// A file may have two records with the same ID and different ordering keys, if a message was replaced during the
// export. Only the first record must be imported, or the second one if the first is invalid. Regression: if both were
// in one batch, both were imported, each in the partition of its key.
func TestABatchTakesAnIDOnce(t *testing.T) {
	t.Parallel()
	counts := lua.Counts{1, 8}
	own := counts.Of("order-42")
	keyed := func(due int64, partition int) Record {
		return Record{Kind: RecordScheduled, ID: "order-42", Due: due,
			Extra: map[string]string{lua.FieldKey: queuetest.IDOf(counts, partition)}}
	}
	const later = 9_000_000_000_000
	broken := Record{Kind: RecordScheduled, Member: []byte("order-42"), Meta: []byte("["), Due: 1}
	for what, c := range map[string]struct {
		window        time.Duration
		first, second Record
		taken         int // index of the record that is imported
	}{
		"scheduled":             {time.Hour, keyed(later, (own+1)%8), keyed(later, (own+2)%8), 0},
		"scheduled, no window":  {0, keyed(later, (own+1)%8), keyed(later, (own+2)%8), 0},
		"due":                   {time.Hour, keyed(1, (own+1)%8), keyed(1, (own+2)%8), 0},
		"due, no window":        {0, keyed(1, (own+1)%8), keyed(1, (own+2)%8), 0},
		"the first is invalid":  {time.Hour, broken, keyed(later, (own+2)%8), 1},
		"the second is invalid": {time.Hour, keyed(1, (own+1)%8), broken, 0},
	} {
		r := queuetest.New(t, redistest.Shared(t))
		queuetest.PublishCount(t, r.Client, r.Prefix, r.Queue, 8)
		im, err := NewImport(t.Context(), r.Client, r.Prefix, r.Queue, "elsewhere", c.window)
		if err != nil {
			t.Fatal(err)
		}
		results := im.Write(t.Context(), []Record{c.first, c.second})
		redistest.Want(t, what+": taken", results[c.taken], nil)
		redistest.Want(t, what+": the other one is refused", results[1-c.taken] != nil, true)
		n := int64(0)
		for partition := range 8 {
			k := r.Part(partition).Keys
			n += r.Number("ZCARD", k.Due) + r.Length(k.Stream)
		}
		redistest.Want(t, what+": messages", n, int64(1))
	}
}

// A record with an ordering key must not be written while a live bridge does not support keys. Regression: a record
// that keeps its member and meta as bytes was written, because its key was not seen.
func TestNoRecordWithAKeyIsWrittenBesideAnOldBridge(t *testing.T) {
	t.Parallel()
	meta := lua.EncodeMeta(nil, 0, time.Time{}, lua.FieldValue{Field: lua.FieldKey, Value: "k"})
	named := []string{"id", "order-42", "payload", "p", "group", "g", "reason", "max_attempts", "key", "k"}
	var fields [][]byte
	for _, text := range named {
		fields = append(fields, []byte(text))
	}
	for what, record := range map[string]Record{
		"named":  {Kind: RecordScheduled, ID: "order-42", Due: 1, Extra: map[string]string{lua.FieldKey: "k"}},
		"raw":    {Kind: RecordScheduled, Member: []byte("order-42"), Meta: []byte(meta), Due: 1},
		"letter": {Kind: RecordDead, Letter: "1000-1", Fields: fields},
	} {
		r := queuetest.New(t, redistest.Shared(t))
		r.Do("ZADD", lua.NewGlobals(r.Prefix).Bridges, fmt.Sprint(queuetest.Now(t, r.Client).Add(4*time.Second).UnixMilli()),
			"01M7ZMPW4AFDJS68SPX5258FR1 web-1 7 v1.2.3")
		im, err := NewImport(t.Context(), r.Client, r.Prefix, r.Queue, "elsewhere", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if err := im.Write(t.Context(), []Record{record})[0]; !errors.Is(err, lua.ErrOldBridge) {
			t.Errorf("%s: %v", what, err)
		}
		im.AllowOldBridges()
		redistest.Want(t, what+": allowed", im.Write(t.Context(), []Record{record})[0], nil)
	}
}
