package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// The wall clock of a process with a bridge, a worker and a producer jumps by hours and weeks, forward and back, many
// times a second. Due times, lateness, leases and reclaims follow the server's clock and the monotonic clock, so all
// messages are delivered once, on time, as the first attempt. The process is built with a copy of package time whose
// Now shifts the wall time, but not the monotonic time.
func TestClientClockHasNoEffect(t *testing.T) {
	t.Parallel()
	program := shiftedProgram(t)
	s := newStack(t, redistest.Shared(t))
	cmd := exec.Command(program, s.server.URL(), s.prefix, s.queue)
	cmd.Stderr = os.Stderr
	started := time.Now()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// testdata/wallclock prints lines: "sent ID due-ms", "delivered ID entry-ms due-ms attempt" and "lost number".
	sent, latest := 0, time.Duration(0)
	for line := range strings.Lines(string(out)) {
		var what, id string
		var at, due, attempt int64
		switch n, _ := fmt.Sscan(line, &what, &id, &at, &due, &attempt); {
		case what == "sent" && n == 3:
			sent++
			s.ledger.Sent(id, at)
			if off := time.UnixMilli(at).Sub(started); off < -time.Second || off > time.Since(started)+2*time.Second {
				t.Errorf("%s is due %s after the start: the client's clock was in it", id, off)
			}
		case what == "delivered" && n == 5:
			s.ledger.Delivered("g", id, at, due)
			latest = max(latest, time.Duration(at-due)*time.Millisecond)
			if attempt != 1 {
				t.Errorf("%s: attempt %d", id, attempt)
			}
		case what == "lost" && n >= 2:
			if id != "0" {
				t.Errorf("%s deliveries were lost", id)
			}
		default:
			t.Errorf("odd line %q", line)
		}
	}
	t.Logf("latest: %s", latest)
	const wanted = 120 // the messages that testdata/wallclock sends
	if r := s.awaitSettled(10*time.Second, "g"); r.Sent != wanted || r.Sent != sent || r.Duplicated != 0 {
		t.Errorf("%s: the shifted clock had an effect", r)
	}
	if latest > 30*time.Second {
		t.Errorf("a message was %s late, while the smallest shift was an hour", latest)
	}
}

// shiftedProgram builds testdata/wallclock. The first build on a machine compiles the standard library anew, which
// takes about half a minute; Go's build cache keeps it.
func shiftedProgram(t *testing.T) string {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(original)
	if err != nil {
		t.Fatal(err)
	}
	const now = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if strings.Count(string(text), now) != 1 {
		t.Fatalf("%s does not hold the beginning of Now as this test knows it: teach it the new one\n%s", original, now)
	}
	shifted := strings.Replace(string(text), now, now+"\tsec += wallShift.seconds()\n", 1) + `
type shift struct{ value uintptr }

var wallShift shift

func (s *shift) seconds() int64 { return int64(loadShift(&s.value)) }

// ShiftWall has Now tell a wall clock that is ahead by so many seconds.
func ShiftWall(seconds int64) { storeShift(&wallShift.value, uintptr(seconds)) }

//go:linkname loadShift internal/runtime/atomic.Loaduintptr
func loadShift(ptr *uintptr) uintptr

//go:linkname storeShift internal/runtime/atomic.Storeuintptr
func storeShift(ptr *uintptr, value uintptr)
`
	dir := t.TempDir()
	overlay, copied, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "time.go"), filepath.Join(dir, "wallclock")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {original: copied}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(copied, []byte(shifted), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	build := exec.Command("go", "build", "-overlay", overlay, "-o", program, "./testdata/wallclock")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build against the shifted clock: %v\n%s", err, out)
	}
	t.Logf("built in %s", time.Since(begin).Round(100*time.Millisecond))
	return program
}
