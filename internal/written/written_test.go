package written

import (
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// Each default of a setting must be written so that it is read as the same value.
func TestSettingsAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	p := policy.Default()
	p.RetryDelays, p.Rate, p.KeyFailure = lua.NewDelays(time.Minute, 36*time.Hour), "30/m", policy.KeySkip
	for _, s := range policy.Settings() {
		text := Setting(s, s.Get(p))
		if s.Kind == policy.Rate || s.Kind == policy.Word || text != "" {
			v, err := ParseSetting(s, text)
			redistest.Want(t, s.Name+" "+text, v, s.Get(p))
			redistest.Want(t, s.Name+": error", err, nil)
		}
	}
}

func TestDurationsAndDelays(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"500ms": 500 * time.Millisecond, "1h30m": 90 * time.Minute, "7d": 7 * 24 * time.Hour, "1d12h": 36 * time.Hour,
	} {
		d, err := ParseDuration(text)
		redistest.Want(t, text, d, want)
		redistest.Want(t, text+": error", err, nil)
		redistest.Want(t, text+" written", Duration(d), text)
	}
	for _, text := range []string{"", "5", "d", "1d-1h", "36501d", "1w", "-"} {
		if d, err := ParseDuration(text); err == nil {
			t.Errorf("%q is read as %s", text, d)
		}
	}
	list, err := ParseDelays("1m,36h")
	redistest.Want(t, "delays", Delays(list), "1m,1d12h")
	redistest.Want(t, "error", err, nil)
	if list, err := ParseDelays("1m,x"); err == nil {
		t.Errorf("a list with x is read as %s", list)
	}
}
