package looking_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/looking"
	"github.com/duestream/duestream/integration/redistest"
)

// doctor reports two faults of a due key, repairs the one that has a repair, and reports the other one again. A healthy
// queue on a server without maxmemory gives a note (D103), so it is the third finding. A dry run changes nothing.
func TestDoctorSaysWhatIsWrongAndRepairs(t *testing.T) {
	t.Parallel()
	c := clitest.NewOn(t, redistest.Own(t, "--appendonly", "yes"))
	c.Serve()
	c.OK("schedule", "q", "--id", "a", "--in", "1h", "x")
	out := c.OK("doctor")
	for _, text := range []string{"append-only file everysec, no maxmemory", "looked at 1 queue, 1 partition\n",
		"note     D103  no-memory-limit\n", "  found   ", "  why     ", "  do      "} {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	c.Fails(exit.Unwell, []string{"something is wrong: 1 finding of severity note or worse"}, "doctor", "--severity",
		"note")

	r := c.Redis()
	key := c.Key("q", "due")
	if err := r.Do(t.Context(), r.B().Expire().Key(key).Seconds(1000).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	// A member due in the year 33658 is D307, which has no repair.
	if err := r.Do(t.Context(), r.B().Zadd().Key(key).ScoreMember().ScoreMember(1e15,
		"never\x1b").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	// D302 is the expiry of the key.
	wrong := c.Fails(exit.Unwell, []string{"1 finding of severity error or worse"}, "doctor", "q", "--severity", "error")
	if !strings.Contains(wrong.Out, "repair  --repair removes the expiry") || strings.Contains(wrong.Out, "\x1b") {
		t.Error(wrong.Out)
	}
	dry := c.Fails(exit.Unwell, nil, "doctor", "--repair", "--dry-run")
	if !strings.Contains(dry.Out, "\nrepair:\n  will  D302  removes the expiry (`PERSIST`): "+key+"\n") ||
		strings.Contains(dry.Out, "done") {
		t.Error(dry.Out)
	}
	var report looking.DoctorReport
	if out := c.Fails(exit.Unwell, nil, "doctor", "--json").Out; json.Unmarshal([]byte(out), &report) != nil ||
		len(report.Findings) != 3 ||
		report.Findings[0].Code != "D302" || report.Findings[0].Severity != doctor.Error ||
		report.Findings[0].Repair == "" || report.Repairs != nil {
		t.Error(out)
	}
	repaired := c.Fails(exit.Unwell, []string{"1 finding of severity warning or worse"}, "doctor", "--repair")
	if _, after, _ := strings.Cut(repaired.Out,
		"  done  D302  removed the expiry of "+key+"\n\nafter the repair:\n"); !strings.Contains(after, "D307") ||
		strings.Contains(after, "D302") {
		t.Error(repaired.Out)
	}
	if err := r.Do(t.Context(), r.B().Zrem().Key(key).Member("never\x1b").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	report = looking.DoctorReport{}
	if c.JSON(&report, "doctor", "--repair"); len(report.Findings) != 1 || len(report.Repairs) > 0 ||
		report.LeftOut == nil {
		t.Errorf("%+v", report)
	}
	if out := c.OK("doctor", "q", "--quick"); !strings.Contains(out, "quickly: settings, counts and samples") {
		t.Error(out)
	}
	c.Fails(exit.NotFound, []string{"no such queue", "hint: "}, "doctor", "nope")
}

// Bad arguments give exit.Invalid, although there is no server. Good arguments then give exit.Unavailable.
func TestDoctorRefusesBeforeRedisIsTouched(t *testing.T) {
	t.Parallel()
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	for _, args := range [][]string{{"{}"}, {"--severity", "bad"}, {"--dry-run"}, {"--quick", "--repair"},
		{"--prefix", "{}"}} {
		c.Fails(exit.Invalid, nil, append([]string{"doctor"}, args...)...)
	}
	c.Fails(exit.Unavailable, nil, "doctor")
}
