package conformance

import (
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

const (
	healWithin = 15 * time.Second
	outage     = time.Second // between a crash of the server and its next start
)

// A group, connections and a server that go away, and come back.
var healingCases = []Case{
	{
		Name: "group-lost", Level: Good, Section: "8, step 8",
		Rule: "When its group is gone (NOGROUP, or UNBLOCKED) a worker creates it again at 0, every time, and goes on: it also gets what became ready meanwhile.",
		run: func(t *trial) error {
			if _, err := t.served("one"); err != nil {
				return err
			}
			for round, lose := range loseStream {
				id := fmt.Sprintf("meanwhile-%d", round+1)
				if err := t.loseGroup(0, lose, id); err != nil {
					return err
				}
				if err := t.done(0, id); err != nil {
					return fmt.Errorf("after the group was lost (time %d), with a message ready: %w", round+1, err)
				}
			}
			return t.marker("after")
		},
	},
	{
		Name: "connections-killed", Level: Good, Section: "8, step 2", alone: "it kills the connections of all clients",
		Rule: "A worker whose connections break connects again, and goes on.",
		run: func(t *trial) error {
			if _, err := t.served("one"); err != nil {
				return err
			}
			for round := range 3 {
				messages := several(5, fmt.Sprintf("round-%d", round+1), "slow 50")
				if err := t.schedule(messages...); err != nil {
					return err
				}
				if _, err := t.awaitBegun(0, messages[0].id, 1); err != nil {
					return err
				}
				if err := t.killConnections(); err != nil {
					return err
				}
				if err := t.done(healWithin+2*t.cfg.Visibility, ids(messages)...); err != nil {
					return fmt.Errorf("after its connections were killed: %w", err)
				}
			}
			return nil
		},
	},
	{
		Name: "server-restart", Level: Good, Section: "8, steps 2 and 8", alone: "it kills the server, and starts it again",
		Rule: "When the server crashes and comes back, a worker goes on by itself within 15 s, and nothing is lost.",
		run: func(t *trial) error {
			if _, err := t.served("one"); err != nil {
				return err
			}
			messages := several(40, "m", "slow 30")
			for i := range messages {
				messages[i].in = time.Duration(i) * 40 * time.Millisecond
			}
			if err := t.schedule(messages...); err != nil {
				return err
			}
			if _, err := t.awaitBegun(0, messages[5].id, 1); err != nil {
				return err
			}
			if err := t.restart(); err != nil {
				return err
			}
			if err := t.schedule(message{id: "after"}); err != nil {
				return err
			}
			if _, err := t.awaitBegun(healWithin, "after", 1); err != nil {
				return fmt.Errorf("after the server came back: %w", err)
			}
			return t.done(0, ids(messages)...)
		},
	},
}

// killConnections has the server close the connections of all clients, ours, too.
func (t *trial) killConnections() error {
	_ = t.redis.Client.Do(t.ctx, t.redis.Client.B().Arbitrary("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no").Build()).Error()
	return t.reachable()
}

// reachable waits until our own client, which has several connections, is connected again.
func (t *trial) reachable() error {
	return t.await(0, func() (string, error) {
		for range 20 {
			if _, err := t.number("EXISTS", t.keys(0).Stream); err != nil {
				return "", err
			}
		}
		return "", nil
	})
}

// restart kills the server and starts it again after a while, with its append-only file.
func (t *trial) restart() error {
	if err := t.server.Restart(t.ctx, func() error { return t.pause(outage) }); err != nil {
		return couldNot("start the server again", err)
	}
	return t.reachable()
}

func noGroup(err error) bool {
	refused, ok := rueidis.IsRedisErr(err)
	return ok && strings.HasPrefix(refused.Error(), "NOGROUP")
}

func noReply(err error) bool { return rueidis.IsRedisNil(err) }
