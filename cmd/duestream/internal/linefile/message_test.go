package linefile

import (
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge"
)

// A field of a line wins over the flag of the same name; a limit of 0 means the policy of the queue. A line without an
// ID gets one that begins with its number. dedup_ms and replace are refused with a hint at the flag. The tests of
// package message cover the other fields.
func TestLinesOfAFile(t *testing.T) {
	t.Parallel()
	flags := bridge.NewMessage{MaxSnoozes: 3, MaxCrashes: 3}
	m, err := ParseMessage([]byte(`{"max_snoozes":0,"max_crashes":2}`), 7, flags)
	if err != nil || m.MaxSnoozes != 0 || m.MaxCrashes != 2 || !strings.HasPrefix(m.ID, "line-7-") {
		t.Errorf("%+v, %v", m, err)
	}
	for _, line := range []string{`{"dedup_ms":1}`, `{"replace":"always"}`} {
		if _, err := ParseMessage([]byte(line), 1, flags); err == nil || !strings.Contains(err.Error(), "--dedup") {
			t.Errorf("%s: %v", line, err)
		}
	}
}
