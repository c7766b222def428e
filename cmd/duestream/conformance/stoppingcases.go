package conformance

import (
	"fmt"
	"time"
)

const stopWithin = 10 * time.Second

// What happens at SIGTERM.
var stoppingCases = []Case{
	{
		Name: "stop", Level: Good, Section: "8, step 9",
		Rule: "At SIGTERM a worker finishes and acknowledges what it has begun, and exits with 0 within 10 s; what it held and did not begin is not lost.",
		run: func(t *trial) error {
			one, err := t.served("one")
			if err != nil {
				return err
			}
			messages := several(12, "m", "slow 300")
			if err := t.schedule(messages...); err != nil {
				return err
			}
			if err := t.await(0, func() (string, error) {
				for _, m := range messages {
					if len(t.begunOf(m.id)) > 0 {
						return "", nil
					}
				}
				return "no message was begun", nil
			}); err != nil {
				return err
			}
			t.stop(one)
			if err := t.exited(one, stopWithin); err != nil {
				return err
			}
			begun := map[string]bool{}
			for _, m := range messages {
				begun[m.id] = len(t.begunOf(m.id)) > 0
			}
			if _, err := t.worker("two"); err != nil {
				return err
			}
			if err := t.done(0, ids(messages)...); err != nil {
				return fmt.Errorf("after a worker was stopped that held them: %w", err)
			}
			for _, m := range messages {
				if all := t.begunOf(m.id); begun[m.id] && len(all) > 1 {
					return failf("message %q, which the stopped worker had begun, was begun again by worker %s with attempt %d: it was not acknowledged", m.id, all[1].by, all[1].Attempt)
				}
			}
			return nil
		},
	},
	{
		Name: "stop-idle", Level: Good, Section: "8, steps 2 and 9",
		Rule: "A worker that waits for messages exits with 0 within 10 s of SIGTERM.",
		run: func(t *trial) error {
			w, err := t.served("one")
			if err != nil {
				return err
			}
			t.stop(w)
			return t.exited(w, stopWithin)
		},
	},
}
