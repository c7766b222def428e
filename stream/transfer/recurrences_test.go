package transfer

import (
	"testing"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A bridge plans while an export reads the schedule: what is in the file is not planned again where it is imported, and what is
// not in it is. Other messages, and retries, are no occurrences.
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
		{Kind: RecordScheduled, ID: "a@b@1500"},                                                 // by somebody else
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
