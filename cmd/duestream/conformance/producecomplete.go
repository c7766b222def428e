package conformance

import (
	"fmt"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

const (
	window      = time.Minute     // a dedup window that outlasts its case
	shortWindow = 2 * time.Second // one that ends in it
	looksAgain  = 20 * time.Second
)

// What needs the script enqueue, or the function duestream_schedule.
var scheduleCompletely = []Case{
	{
		Name: "duplicate", Level: Complete, Section: "6 (enqueue) and 15",
		Rule: "An ID that is still scheduled is refused, and nothing of the message that has it changes; when that was drained, the ID is taken again.",
		run: func(t *trial) error {
			p, err := t.ready()
			if err != nil {
				return err
			}
			first, err := t.dueIn("again", far)
			if err != nil {
				return err
			}
			first.Payload, first.Headers, first.MaxAttempts = []byte("first"), map[string]string{"kind": "first"}, 3
			second := order{ID: first.ID, Due: first.Due - 60_000, Payload: []byte("second"), Headers: map[string]string{"kind": "second"}}
			if err := t.taken(p, first); err != nil {
				return err
			}
			for _, o := range []order{second, {ID: first.ID, Due: 1_600_000_000_000}} {
				if err := firstError(t.refused(p, o, "its ID is scheduled"), t.holds(first)); err != nil {
					return err
				}
			}
			soon, err := t.dueIn("reused", 300*time.Millisecond)
			if err != nil {
				return err
			}
			for _, payload := range []string{"one", "two"} {
				soon.Payload = []byte(payload)
				if err := t.taken(p, soon); err != nil {
					return fmt.Errorf("when the message before it was drained: %w", err)
				}
				if _, err := t.arrivalOf(soon.ID, payload); err != nil {
					return err
				}
			}
			return t.finished(p)
		},
	},
	{
		Name: "dedup-window", Level: Complete, Section: "15 and 17 (dedup)",
		Rule: "An ID that was scheduled with a dedup window is refused until the window has ended, also after the message was drained; then it is taken again.",
		run: func(t *trial) error {
			p, err := t.ready()
			if err != nil {
				return err
			}
			long, err := t.dueIn("once", 100*time.Millisecond)
			if err != nil {
				return err
			}
			long.Dedup, long.Payload = window.Milliseconds(), []byte("first")
			short := long
			short.ID, short.Dedup = "once-in-a-while", shortWindow.Milliseconds()
			if err := t.taken(p, long, short); err != nil {
				return err
			}
			answered, err := t.now()
			if err != nil {
				return err
			}
			for _, o := range []order{long, short} {
				if _, err := t.arrival(o.ID, 0); err != nil {
					return err
				}
			}
			again, bare := long, long
			again.Payload, bare.Dedup = []byte("second"), 0
			for _, o := range []order{again, bare} {
				if err := t.refused(p, o, "it was drained, and its dedup window has not ended"); err != nil {
					return err
				}
			}
			if err := t.after(answered.Add(shortWindow)); err != nil {
				return err
			}
			short.Payload = []byte("second")
			if err := t.taken(p, short); err != nil {
				return fmt.Errorf("after its dedup window of %s: %w", shortWindow, err)
			}
			if _, err := t.arrivalOf(short.ID, "second"); err != nil {
				return err
			}
			return firstError(t.onlyOnce(long.ID), t.finished(p))
		},
	},
	{
		Name: "functions-lost", Level: Complete, Section: "17", alone: "it removes all functions and scripts of the server",
		Rule: "When the functions or scripts that a producer calls are gone, it goes on, with plain commands or by loading its scripts again; when the functions are back it calls them again.",
		run: func(t *trial) error {
			p, err := t.ready()
			if err != nil {
				return err
			}
			one, err := t.dueIn("one", far)
			if err != nil {
				return err
			}
			one.Payload, one.Headers = []byte("body"), map[string]string{"kind": "order"}
			two := one
			two.ID = "two"
			if err := firstError(t.taken(p, one), t.removeScripts(), t.taken(p, two), t.holds(two)); err != nil {
				return err
			}
			if _, err := admin.New(t.rig.redis, "").LoadFunctions(t.ctx, "conformance", false); err != nil {
				return couldNot("FUNCTION LOAD", err)
			}
			end := time.Now().Add(looksAgain)
			for {
				answered, err := t.ask(p, one)
				if err != nil {
					return err
				}
				if !answered.OK {
					return t.finished(p)
				}
				if time.Now().After(end) {
					return failf("%s after the functions were loaded again, message %q, which is scheduled, is still taken again", looksAgain, one.ID)
				}
				if err := t.pause(time.Second); err != nil {
					return err
				}
			}
		},
	},
}

// ask sends one order and returns the answer to it.
func (t *trial) ask(p *program, o order) (answer, error) {
	t.mu.Lock()
	before := len(t.answers)
	t.mu.Unlock()
	if err := t.send(p, o); err != nil {
		return answer{}, err
	}
	answers, err := t.answered(before + 1)
	if err != nil {
		return answer{}, err
	}
	if a := answers[before]; a.ID == o.ID {
		return a, nil
	}
	return answer{}, failf("message %q was answered with the id %q", o.ID, answers[before].ID)
}

// refused sends an order that must be answered with ok: false and an error.
func (t *trial) refused(p *program, o order, because string) error {
	a, err := t.ask(p, o)
	if err != nil {
		return fmt.Errorf("%s: %w", because, err)
	}
	if a.OK {
		return failf("message %q was answered with ok: true, although %s", o.ID, because)
	}
	if a.Error == "" {
		return failf("message %q was answered with ok: false and no error; wanted one that says that %s", o.ID, because)
	}
	return nil
}

// after waits until the server's clock has passed a time.
func (t *trial) after(end time.Time) error {
	return t.await(0, func() (string, error) {
		now, err := t.now()
		return missingIf(!now.After(end), "the server's clock does not go on"), err
	})
}

// arrivalOf waits until a message with this payload is in the stream.
func (t *trial) arrivalOf(id, payload string) (found entry, err error) {
	err = t.await(0, func() (string, error) {
		entries, err := t.kept(t.keys(0).Stream)
		for _, e := range entries {
			if e.Fields[lua.FieldID] == id && e.Fields[lua.FieldPayload] == payload {
				found = e
				return "", nil
			}
		}
		return fmt.Sprintf("message %q, which was answered with ok, did not arrive with the payload %q", id, payload), err
	})
	return found, err
}

// onlyOnce checks that a message is in the stream once, and not scheduled any more.
func (t *trial) onlyOnce(id string) error {
	entries, err := t.kept(t.keys(0).Stream)
	if err != nil {
		return err
	}
	n := 0
	for _, e := range entries {
		if e.Fields[lua.FieldID] == id {
			n++
		}
	}
	_, waits, err := t.scheduled(id)
	if err == nil && (n != 1 || waits) {
		err = failf("message %q was delivered %s, and is scheduled again: %v; wanted once", id, times(n), waits)
	}
	return err
}

func (t *trial) removeScripts() error {
	for _, what := range []string{"FUNCTION FLUSH", "SCRIPT FLUSH"} {
		if err := t.do(what, "SYNC").Error(); err != nil {
			return couldNot(what, err)
		}
	}
	return nil
}
