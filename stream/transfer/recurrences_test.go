package transfer

import (
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A bridge plans while an export reads the schedule. Occurrences in the file are not planned again after the import,
// and those that are not in it are planned. Other messages, and retries, are no occurrences.
func TestWhatIsPlannedDuringAnExportIsRemembered(t *testing.T) {
	t.Parallel()
	plan, ok := lua.ParsePlan("v t 5-2000 3 1000,2000")
	if !ok {
		t.Fatal("does not parse")
	}
	p := &planned{plans: map[string]lua.Plan{"a@b": plan}}
	for _, r := range []Record{
		{Kind: RecordScheduled, ID: "a@b@3000"}, {Kind: RecordScheduled, ID: "a@b@4000"},
		{Kind: RecordScheduled, ID: "a@b@2000"},                                                 // known
		{Kind: RecordScheduled, ID: "a@b@1500"},                                                 // by another program
		{Kind: RecordScheduled, ID: "a@b@5000", Entry: "1-0"},                                   // a retry
		{Kind: RecordScheduled, ID: "a@b@6000", Letter: "1-0"}, {Kind: RecordDead, ID: "a@b@1"}, // a letter
		{Kind: RecordScheduled, ID: "a@b@7000-run"}, {Kind: RecordScheduled, ID: "a@b"}, {ID: ""}, // by hand, and others
	} {
		p.see(r)
	}
	redistest.Want(t, "remembered", p.plans["a@b"].String(), "v t 5-2000 5 1000,2000,3000,4000")
	r := Record{Kind: RecordRecurrence, ID: "a@b", Payload: []byte("{}"), Plan: p.plans["a@b"].String()}
	redistest.Want(t, "it can be imported", r.Check(), nil)
	for what, wrong := range map[string]Record{
		"plan": {Kind: RecordRecurrence, ID: "a", Payload: []byte("{}"), Plan: "nonsense"},
		"more": {Kind: RecordRecurrence, ID: "a", Payload: []byte("{}"), Plan: r.Plan + "\n"},
		"name": {Kind: RecordRecurrence, ID: "a\n", Payload: []byte("{}")},
	} {
		if wrong.Check() == nil {
			t.Errorf("%s: not refused", what)
		}
	}
}

// An occurrence was ready when it was exported. While a pause or a rate keeps it in the target's schedule, also in one
// with more partitions, the planner sees that it is unfinished.
func TestAnImportedOccurrenceKeepsTheNextOneBack(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{1, 4} {
		for _, group := range []string{"g", ""} {
			t.Run(fmt.Sprint(partitions, group), func(t *testing.T) {
				t.Parallel()
				from, to := queuetest.New(t, redistest.Shared(t)), queuetest.New(t, redistest.Shared(t))
				counts := lua.Counts{partitions}
				queuetest.PublishCount(t, to.Client, to.Prefix, to.Queue, partitions)
				id := queuetest.IDOf(counts, partitions-1)
				if group != "" {
					from.Groups(group)
				}
				from.Enqueue(lua.Item{ID: id, When: lua.After(0), Payload: []byte("p"), Dedup: lua.Refuse,
					Meta: lua.EncodeMeta(nil, 0, time.Time{}, lua.FieldValue{Field: lua.FieldOverlap, Value: "skip"})})
				from.DrainAll()
				_, records := facts(t, from)
				redistest.Want(t, "records", len(records), 1)
				is := func(when string, want bool) {
					t.Helper()
					left, done, err := lua.FindUnfinished(t.Context(), to.Client, to.Keys, &lua.Unfinished{}, 100, []string{id})
					if left != want || !done || err != nil {
						t.Errorf("%s: left is %v, want %v; %v %v", when, left, want, done, err)
					}
				}
				is("before the import", false)
				again := func(when string) {
					t.Helper()
					taken, known := into(t, to, records, from.Queue)
					redistest.Want(t, "taken and known "+when, fmt.Sprint(taken, known), "0 1")
				}
				taken, _ := into(t, to, records, from.Queue)
				redistest.Want(t, "taken", taken, 1)
				is("in the schedule", true)
				again("while it waits")
				_, exported := facts(t, to)
				taken, known := into(t, to, exported, to.Queue)
				redistest.Want(t, "taken and known of its own export", fmt.Sprint(taken, known), "0 1")
				to.DrainAll()
				is("ready", true)
				again("when it is ready")
				to.Groups("g")
				to.Xack("g", to.Take("g", "c", 10)...)
				is("done", false)
			})
		}
	}
}

// An import by an earlier release named the record by its entry: it is known.
func TestAnOccurrenceThatAnEarlierReleaseImportedIsNotTakenAgain(t *testing.T) {
	t.Parallel()
	r := queuetest.New(t, redistest.Shared(t))
	record := Record{Kind: RecordReady, ID: "r@5", For: "g", Entry: "17-0", Extra: map[string]string{lua.FieldOverlap: "skip"}}
	before, meta := record.member()
	r.Enqueue(lua.Item{ID: before, When: lua.After(time.Hour), Meta: meta, Dedup: lua.Refuse})
	second := record
	second.Entry = "18-0" // of the same message, for the same group
	taken, known := into(t, r, []Record{record, second}, "elsewhere")
	redistest.Want(t, "taken and known", fmt.Sprint(taken, known), "1 1")
	taken, known = into(t, r, []Record{record, second}, "elsewhere")
	redistest.Want(t, "again", fmt.Sprint(taken, known), "0 2")
}
