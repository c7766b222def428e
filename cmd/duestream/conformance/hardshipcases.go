package conformance

import (
	"fmt"
	"slices"
	"time"

	"github.com/duestream/duestream/lua"
)

// What producers do when the server does not.
var hardshipCases = []Case{
	{
		Name: "connections-killed", Level: Good, Section: "7 and 15", alone: "it kills the connections of all clients",
		Rule: "A producer whose connections break repeats what failed: what it answers with ok is delivered.",
		run: func(t *trial) error {
			return t.throughTrouble(200, 50, t.killConnections)
		},
	},
	{
		Name: "server-restart", Level: Good, Section: "7 and 15", alone: "it kills the server, and starts it again",
		Rule: "When the server crashes and comes back within 10 s, a producer repeats what failed: every message is taken, and what it answers with ok is delivered.",
		run: func(t *trial) error {
			return t.throughTrouble(500, 100, t.restart)
		},
	},
	{
		Name: "full-server", Level: Good, Section: "7 (full server)", alone: "it fills the memory of the server",
		Rule: "What Redis refuses because it is full is answered with ok: false and an error; the producer goes on.",
		run: func(t *trial) error {
			p, err := t.ready()
			if err != nil {
				return err
			}
			before, err := t.rich("before")
			if err != nil {
				return err
			}
			if err := t.taken(p, before); err != nil {
				return err
			}
			refused := before
			refused.ID, refused.Payload, refused.Headers = "refused", []byte("body"), map[string]string{"kind": "order"}
			if err := t.maxMemory("1"); err != nil {
				return err
			}
			if err := t.send(p, refused); err != nil {
				return err
			}
			answers, err := t.answered(2)
			if err != nil {
				return fmt.Errorf("the server is full: %w", err)
			}
			if a := answers[1]; a.OK || a.Error == "" || a.ID != refused.ID {
				return failf("the server is full, and message %q was answered with id %q, ok %v, error %q; wanted ok false, and the error", refused.ID, a.ID, a.OK, a.Error)
			}
			bare := order{ID: before.ID, Due: before.Due + 1}
			if err := t.send(p, bare); err != nil {
				return err
			}
			if answers, err = t.answered(3); err != nil {
				return fmt.Errorf("the server is full: %w", err)
			}
			if err := t.maxMemory("0"); err != nil {
				return err
			}
			kept := before
			if answers[2].OK { // a script that begins with a write which Redis never refuses
				kept = bare
			}
			if err := t.holds(kept); err != nil {
				return fmt.Errorf("the server was full, and message %q was sent again, which was answered with ok: %v: %w", before.ID, answers[2].OK, err)
			}
			if _, there, err := t.scheduled(refused.ID); err != nil || there {
				return firstError(err, failf("message %q was answered with ok: false, and is scheduled", refused.ID))
			}
			after := before
			after.ID = "after"
			if err := t.taken(p, after); err != nil {
				return fmt.Errorf("after the server was full: %w", err)
			}
			return t.finished(p)
		},
	},
}

func (t *trial) maxMemory(bytes string) error {
	c := t.redis.Client
	return couldNot("CONFIG SET maxmemory", c.Do(t.ctx, c.B().ConfigSet().ParameterValue().ParameterValue("maxmemory", bytes).Build()).Error())
}

// throughTrouble orders n messages, makes trouble when some of them have been answered, and checks that all are answered ok and arrive.
func (t *trial) throughTrouble(n, some int, trouble func() error) error {
	p, err := t.ready()
	if err != nil {
		return err
	}
	now, err := t.now()
	if err != nil {
		return err
	}
	orders := make([]order, n)
	for i := range orders {
		orders[i] = order{ID: fmt.Sprintf("m-%03d", i), Due: now.Add(time.Duration(i) * 5 * time.Millisecond).UnixMilli(), Payload: fmt.Appendf(nil, "payload %d", i)}
	}
	half := some + (n-some)/2
	if err := t.taken(p, orders[:some]...); err != nil {
		return err
	}
	if err := t.send(p, orders[some:half]...); err != nil {
		return err
	}
	if err := trouble(); err != nil {
		return err
	}
	if err := t.send(p, orders[half:]...); err != nil {
		return err
	}
	answers, err := t.answered(n)
	if err != nil {
		return err
	}
	for _, a := range answers {
		if !a.OK {
			return failf("message %q was answered with ok: false, error %q: it was to be repeated for 10 s", a.ID, a.Error)
		}
	}
	if err := t.finished(p); err != nil {
		return err
	}
	var missing []string
	return t.await(0, func() (string, error) {
		entries, err := t.kept(t.keys(0).Stream)
		if err != nil {
			return "", err
		}
		there := map[string]bool{}
		for _, e := range entries {
			there[e.Fields[lua.FieldID]] = true
		}
		missing = missing[:0]
		for _, o := range orders {
			if !there[o.ID] {
				missing = append(missing, o.ID)
			}
		}
		slices.Sort(missing)
		return missingIf(len(missing) > 0, fmt.Sprintf("%d messages that were answered with ok did not arrive, the first is %q", len(missing), append(missing, "")[0])), nil
	})
}
