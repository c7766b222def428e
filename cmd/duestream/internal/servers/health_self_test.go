package servers

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// trouble judges a health file by two times: Written, when the process last wrote the file, and Turned, when the
// heartbeat loop last made a turn. Besides, write follows no link, and readHealthState refuses a file that is not a
// health file.
func TestVitals(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_900_000_000_000)
	ago := func(d time.Duration) int64 { return now.Add(-d).UnixMilli() }
	for name, c := range map[string]struct {
		v    healthState
		says string
	}{
		"fresh":                 {healthState{Written: ago(time.Second), Turned: ago(2 * time.Second)}, ""},
		"before the first turn": {healthState{State: "starts", Written: ago(time.Second)}, ""},
		"redis hangs":           {healthState{Written: ago(0), Turned: ago(12 * time.Second)}, ""},
		"stale": {healthState{Written: ago(6 * time.Second), Turned: ago(6 * time.Second)},
			"has said nothing for 6s"},
		"of the future": {healthState{Written: ago(-time.Hour), Turned: ago(-time.Hour)}, "has said nothing"},
		"nothing in it": {healthState{}, "has said nothing"},
		"the heartbeat is stuck": {healthState{State: "runs", Written: ago(0), Turned: ago(40 * time.Second)},
			"heartbeat loop has made no turn for 40s"},
		"a clean stop takes longer": {healthState{State: "stops", Written: ago(0), Turned: ago(40 * time.Second)}, ""},
	} {
		err := c.v.trouble(now)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	dir := t.TempDir()
	file, precious := filepath.Join(dir, "health"), filepath.Join(dir, "precious")
	if err := errors.Join(os.WriteFile(precious, []byte("x"), 0o600), os.Symlink(precious, file+".new")); err != nil {
		t.Fatal(err)
	}
	if err := (healthState{PID: 7}).write(file); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(precious); string(text) != "x" {
		t.Errorf("a link was followed: %q", text)
	}
	if v, err := readHealthState(file); err != nil || v.PID != 7 {
		t.Errorf("%+v %v", v, err)
	}
	for _, bad := range []string{dir, precious, filepath.Join(dir, "none")} {
		if _, err := readHealthState(bad); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
}
