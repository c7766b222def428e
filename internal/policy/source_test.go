package policy

import (
	"fmt"
	"testing"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
)

// Each setting must be told with its level, with the own setting even if it is invalid, and with the value that would
// be in force without it.
func TestSettingsInForceTellTheirLevel(t *testing.T) {
	t.Parallel()
	r := queuetest.New(t, redistest.Shared(t))
	r.Policy(map[string]string{
		"max_attempts": "7", "group:g:max_attempts": "9", "group:g:retry_min_ms": "soon", "rate": "5/s", "held": "1",
	})
	p := Default()
	p.RetryMin, p.MaxAttempts = 2e9, 3
	if err := WriteDefaults(t.Context(), r.Client, r.Prefix, p); err != nil {
		t.Fatal(err)
	}
	read := func(group string) map[string]string {
		all, err := ReadInForce(t.Context(), r.Client, r.Prefix, r.Queue, group)
		if err != nil {
			t.Fatal(err)
		}
		texts := map[string]string{}
		for _, f := range all {
			texts[f.Name] = fmt.Sprintf("%s %s, own %q, else %s %s, is own %v", f.stored(f.Value), f.From, f.Stored,
				f.stored(f.Inherited), f.InheritedFrom, f.IsOwn())
		}
		return texts
	}
	group, queue := read("g"), read("")
	for name, want := range map[string]string{
		"max_attempts": `9 group, own "9", else 7 queue, is own true`,
		"retry_min_ms": `2000 defaults, own "soon", else 2000 defaults, is own false`,
		"max_crashes":  `0 built-in, own "", else 0 built-in, is own false`,
		"rate":         "",
	} {
		redistest.Want(t, "group: "+name, group[name], want)
	}
	for name, want := range map[string]string{
		"max_attempts": `7 queue, own "7", else 3 defaults, is own true`,
		"rate":         `5/s queue, own "5/s", else 0 built-in, is own true`,
		"held":         `1 queue, own "1", else 0 built-in, is own true`,
	} {
		redistest.Want(t, "queue: "+name, queue[name], want)
	}
	redistest.Want(t, "settings of a queue", len(queue), len(settings))
}
