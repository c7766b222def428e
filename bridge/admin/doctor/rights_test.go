package doctor_test

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/integration/redistest"
)

// If the doctor runs as its documented user without one of that user's rights, it reports a finding, or an error that
// names the right.
// Regression: the doctor reported "nothing is wrong" for a server that evicts, because its user could not read the
// setting.
func TestDoctorSaysWhatItCouldNotLookAt(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/operations/users.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^> ACL SETUSER doctor on >\S+ (.*)$`).FindStringSubmatch(string(text))
	if line == nil {
		t.Fatal("docs/operations/users.md has no user doctor")
	}
	server := redistest.Own(t, sound...)
	p := newPatient(t, server)
	id := p.entry(p.keys, 0)
	p.read(p.keys, "c")
	p.do("XADD", p.keys.Dead, "*", "id", "a", "payload", "p", "group", "g", "reason", "max_attempts", "attempt", "1", "dead_ms",
		"1")
	p.do("XDEL", p.keys.Stream, id)
	rules := strings.ReplaceAll(line[1], "~duestream:", "~"+p.config.Prefix+":")
	harmless := map[string]string{ // rights whose absence needs no finding, each with what the right is for
		"+ping": "the client library asks whether the connection lives", "+dbsize": "for the display of progress",
		"+memory|usage": "to read small pages of large keys; without it all pages are small",
	}
	rights := append(regexp.MustCompile(`\+\S+`).FindAllString(rules, -1), "+config|get", "+function|list", "+fcall")
	needed := 0 // rights that the doctor tried to use without having them, by the server's ACL log
	for _, right := range rights {
		p.do("ACL", "DELUSER", "looks")
		p.do(append([]string{"ACL", "SETUSER", "looks", "on", ">x", "+config|get", "+function|list", "+fcall"},
			strings.Fields(rules)...)...)
		// The documented rules may begin with a reset, which takes these three away. Grant them again, and take away
		// the right that this round is about.
		p.do("ACL", "SETUSER", "looks", "+config|get", "+function|list", "+fcall", "-"+right[1:])
		r, err := bridge.Dial(t.Context(), strings.Replace(server.URL(), "redis://", "redis://looks:x@", 1))
		if err != nil {
			t.Fatal(err)
		}
		p.do("ACL", "LOG", "RESET")
		cfg := p.config
		cfg.Client = r.Client
		report, err := doctor.Examine(t.Context(), cfg)
		r.Close()
		reported := slices.ContainsFunc(report.Findings, func(f doctor.Finding) bool {
			return f.Code == "D113" || f.Code == "D114"
		})
		log, logErr := p.do("ACL", "LOG").ToArray()
		if logErr != nil {
			t.Fatal(logErr)
		}
		if len(log) == 0 || harmless[right] != "" { // the doctor did not need the right
			continue
		}
		needed++
		if !reported && !errors.Is(err, bridge.ErrDenied) {
			t.Errorf("without %s, the doctor does not report the missing right: %v, %+v", right, err, report.Findings)
		}
		if right == "+info" && (report.CountAtLeast(doctor.Warning) == 0 || err != nil) {
			t.Errorf("without +info, want a warning and no error: %+v %v", report.Findings, err)
		}
	}
	if needed < len(rights)/2 {
		t.Errorf("only %d of %d rights were needed", needed, len(rights))
	}
}
