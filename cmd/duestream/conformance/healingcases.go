package conformance

import (
	"fmt"
	"time"
)

const (
	healWithin = 15 * time.Second // a worker must work again within this time after its server is back
	outage     = time.Second      // from a crash of the server to its next start
)

// healingCases: a group, connections or a server are lost and come back.
var healingCases = []Case{
	{
		Name: "connections-killed", Level: Good, Section: "8, step 2", alone: "it kills the connections of all clients",
		Rule: "A worker whose connections break connects again, and goes on.",
		worker: func(t *workerTrial) {
			t.served("one")
			for round := range 3 {
				messages := several(5, fmt.Sprintf("round-%d", round+1), "slow 50")
				t.schedule(messages...)
				t.awaitBegun(0, messages[0].id, 1)
				t.killConnections()
				during("after its connections were killed", func() {
					t.done(healWithin+2*t.cfg.Visibility, ids(messages)...)
				})
			}
		},
	},
	{
		Name: "server-restart", Level: Good, Section: "8, steps 2 and 8", alone: "it kills the server, and starts it again",
		Rule: "When the server crashes and comes back, a worker goes on by itself within 15 s, and nothing is lost.",
		worker: func(t *workerTrial) {
			t.served("one")
			messages := several(40, "m", "slow 30")
			for i := range messages {
				messages[i].in = time.Duration(i) * 40 * time.Millisecond
			}
			t.schedule(messages...)
			t.awaitBegun(0, messages[5].id, 1)
			t.restart()
			t.schedule(message{id: "after"})
			during("after the server came back", func() {
				t.awaitBegun(healWithin, "after", 1)
			})
			t.done(0, ids(messages)...)
		},
	},
}

// killConnections makes the server close all client connections, including those of the kit.
func (t *trial) killConnections() {
	_ = t.redis.Client.Do(t.ctx, t.redis.Client.B().Arbitrary("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no").Build()).Error()
	t.reachable()
}

// reachable waits until all connections of the kit's own client are open again.
func (t *trial) reachable() {
	t.await(0, func() string {
		for range 20 {
			t.number("EXISTS", t.keys(0).Stream)
		}
		return ""
	})
}

// restart kills the server, and starts it again after outage with the same append-only file.
func (t *trial) restart() {
	couldNot("start the server again", t.server.Restart(t.ctx, func() error { return t.sleep(outage) }))
	t.reachable()
}
