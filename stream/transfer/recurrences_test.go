package transfer

import (
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A bridge may plan occurrences while an export reads the schedule. The exported plan must then remember the
// occurrences that are in the file, so that they are not planned again after the import. It must not remember others,
// which are to be planned. Other messages, and retries, are no occurrences.
func TestWhatIsPlannedDuringAnExportIsRemembered(t *testing.T) {
	t.Parallel()
	plan, ok := lua.ParsePlan("v t 5-2000 3 1000,2000")
	if !ok {
		t.Fatal("does not parse")
	}
	p := recurrencePlans{"a@b": plan}
	for _, r := range []Record{
		{Kind: RecordScheduled, ID: "a@b@3000"}, {Kind: RecordScheduled, ID: "a@b@4000"},
		{Kind: RecordScheduled, ID: "a@b@2000"},                                                 // known
		{Kind: RecordScheduled, ID: "a@b@1500"},                                                 // by another program
		{Kind: RecordScheduled, ID: "a@b@5000", Entry: "1-0"},                                   // a retry
		{Kind: RecordScheduled, ID: "a@b@6000", Letter: "1-0"}, {Kind: RecordDead, ID: "a@b@1"}, // a letter
		{Kind: RecordScheduled, ID: "a@b@7000-run"}, {Kind: RecordScheduled, ID: "a@b"}, {ID: ""}, // by hand, and others
	} {
		p.noteOccurrence(r)
	}
	redistest.Want(t, "remembered", p["a@b"].String(), "v t 5-2000 5 1000,2000,3000,4000")
	r := Record{Kind: RecordRecurrence, ID: "a@b", Payload: []byte("{}"), Plan: p["a@b"].String()}
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

// An occurrence that was ready at the export is scheduled again by the import. While it waits in the schedule of the
// target, for example because of a pause, the planner must see that it is unfinished, also if the target has more
// partitions. A second import must not take it again.
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
				_, records := exportAll(t, from)
				redistest.Want(t, "records", len(records), 1)
				wantUnfinished := func(when string, want bool) {
					t.Helper()
					left, done, err := lua.FindUnfinished(t.Context(), to.Client, to.Keys, &lua.Unfinished{}, 100, []string{id})
					if left != want || !done || err != nil {
						t.Errorf("%s: unfinished is %v, want %v; %v %v", when, left, want, done, err)
					}
				}
				wantUnfinished("before the import", false)
				importAgain := func(when string) {
					t.Helper()
					taken, known := importRecords(t, to, records, from.Queue)
					redistest.Want(t, "taken and known "+when, fmt.Sprint(taken, known), "0 1")
				}
				taken, _ := importRecords(t, to, records, from.Queue)
				redistest.Want(t, "taken", taken, 1)
				wantUnfinished("in the schedule", true)
				importAgain("while it waits")
				_, exported := exportAll(t, to)
				taken, known := importRecords(t, to, exported, to.Queue)
				redistest.Want(t, "taken and known of the target's own export", fmt.Sprint(taken, known), "0 1")
				to.DrainAll()
				wantUnfinished("ready", true)
				importAgain("when it is ready")
				to.Groups("g")
				to.Xack("g", to.Take("g", "c", 10)...)
				wantUnfinished("done", false)
			})
		}
	}
}

// An earlier release named an imported occurrence by its entry. An import must know such an occurrence, and must not
// take it again.
func TestAnOccurrenceThatAnEarlierReleaseImportedIsNotTakenAgain(t *testing.T) {
	t.Parallel()
	r := queuetest.New(t, redistest.Shared(t))
	record := Record{Kind: RecordReady, ID: "r@5", For: "g", Entry: "17-0", Extra: map[string]string{lua.FieldOverlap: "skip"}}
	before, meta := record.member()
	r.Enqueue(lua.Item{ID: before, When: lua.After(time.Hour), Meta: meta, Dedup: lua.Refuse})
	second := record
	second.Entry = "18-0" // of the same message, for the same group
	taken, known := importRecords(t, r, []Record{record, second}, "elsewhere")
	redistest.Want(t, "taken and known", fmt.Sprint(taken, known), "1 1")
	taken, known = importRecords(t, r, []Record{record, second}, "elsewhere")
	redistest.Want(t, "taken and known of a second import", fmt.Sprint(taken, known), "0 2")
}
