package stream

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// With Snooze a handler postpones its message without using an attempt. After MaxSnoozes (here 2) the next snooze must
// make the message a dead letter. Message "m" is done at its third delivery, and "n" snoozes a third time.
func TestSnoozedMessageIsDeliveredAgainWithTheSameAttempt(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Policy(map[string]string{policy.SettingMaxAttempts: "1", policy.SettingMaxSnoozes: "2"})
	told := make(chan string, 10)
	w, _ := r.start(WorkerConfig{
		Handler: func(_ context.Context, m *Message) error {
			if m.ID == "m" && m.Extra[lua.FieldSnoozes] == "2" {
				return nil
			}
			return fmt.Errorf("outer: %w", Snooze(0))
		},
		Settled: func(m *Message, s Settlement) {
			told <- fmt.Sprint(m.ID, " ", m.Attempt, " ", m.Extra[lua.FieldSnoozes], " ", s)
		},
		Retried: func(m *Message, _ time.Duration, err string) { told <- "retried " + m.ID + err },
	})
	for _, id := range []string{"m", "n"} {
		r.Ready(id)
		last := map[string]string{"m": " 1 2 acknowledged", "n": " 1 2 dead"}[id]
		// Each text is attempt, earlier snoozes (none at first), settlement.
		for _, want := range []string{" 1  snoozed", " 1 1 snoozed", last} {
			redistest.Want(t, "settlement", <-told, id+want)
			r.DrainAll()
		}
	}
	letters, err := r.Client.Do(t.Context(), r.Client.B().Xrange().Key(r.Keys.Dead).Start("-").End("+").Build()).AsXRange()
	if err != nil || len(letters) != 1 || letters[0].FieldValues[lua.FieldReason] != lua.ReasonMaxSnoozes {
		t.Fatalf("%v, %v", letters, err)
	}
	s := w.Stats()
	redistest.Want(t, "stats", fmt.Sprint(s.Snoozed, s.Retried, s.Dead, s.Acknowledged), "4 0 1 1")
}
