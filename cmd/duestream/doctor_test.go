package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/integration/redistest"
)

func TestDoctorSaysWhatIsWrongAndRepairs(t *testing.T) {
	t.Parallel()
	c := newCLIOn(t, redistest.Own(t, "--appendonly", "yes"))
	c.serve()
	c.ok("schedule", "q", "--id", "a", "--in", "1h", "x")
	out := c.ok("doctor")
	for _, text := range []string{"append-only file everysec, no maxmemory", "looked at 1 queue, 1 partition\n",
		"note     D103  no-memory-limit\n", "  found   ", "  why     ", "  do      "} {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	c.fails(exitUnwell, []string{"something is wrong: 1 finding of severity note or worse"}, "doctor", "--severity", "note")

	r := c.redis()
	key := c.key("q", "due")
	if err := r.Do(t.Context(), r.B().Expire().Key(key).Seconds(1000).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	if err := r.Do(t.Context(), r.B().Zadd().Key(key).ScoreMember().ScoreMember(1e15, "never\x1b").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	wrong := c.fails(exitUnwell, []string{"1 finding of severity error or worse"}, "doctor", "q", "--severity", "error")
	if !strings.Contains(wrong.out, "repair  --repair removes the expiry") || strings.Contains(wrong.out, "\x1b") {
		t.Error(wrong.out)
	}
	dry := c.fails(exitUnwell, nil, "doctor", "--repair", "--dry-run")
	if !strings.Contains(dry.out, "\nrepair:\n  will  D302  removes the expiry (`PERSIST`): "+key+"\n") ||
		strings.Contains(dry.out, "done") {
		t.Error(dry.out)
	}
	var report doctorReport
	if out := c.fails(exitUnwell, nil, "doctor", "--json").out; json.Unmarshal([]byte(out), &report) != nil ||
		len(report.Findings) != 3 ||
		report.Findings[0].Code != "D302" || report.Findings[0].Severity != doctor.Error ||
		report.Findings[0].Repair == "" || report.Repairs != nil {
		t.Error(out)
	}
	repaired := c.fails(exitUnwell, []string{"1 finding of severity warning or worse"}, "doctor", "--repair")
	if _, after, _ := strings.Cut(repaired.out,
		"  done  D302  removed the expiry of "+key+"\n\nafter the repair:\n"); !strings.Contains(after, "D307") || strings.Contains(after, "D302") {
		t.Error(repaired.out)
	}
	if err := r.Do(t.Context(), r.B().Zrem().Key(key).Member("never\x1b").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	report = doctorReport{}
	if c.json(&report, "doctor", "--repair"); len(report.Findings) != 1 || len(report.Repairs) > 0 || report.LeftOut == nil {
		t.Errorf("%+v", report)
	}
	if out := c.ok("doctor", "q", "--quick"); !strings.Contains(out, "quickly: settings, counts and samples") {
		t.Error(out)
	}
	c.fails(exitNotFound, []string{"no such queue", "hint: "}, "doctor", "nope")
}

func TestDoctorRefusesBeforeRedisIsTouched(t *testing.T) {
	t.Parallel()
	c := &cli{t: t, url: unreachable}
	for _, args := range [][]string{{"{}"}, {"--severity", "bad"}, {"--dry-run"}, {"--quick", "--repair"}, {"--prefix", "{}"}} {
		c.fails(exitInvalid, nil, append([]string{"doctor"}, args...)...)
	}
	c.fails(exitUnavailable, nil, "doctor")
}
